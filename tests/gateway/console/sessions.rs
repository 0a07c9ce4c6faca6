//! Sessions of the console: a request needs both secrets and comes from the console's own page, and a session ends with
//! its token, with the process, and when its operator logs out.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::{ask, refused, ticks, told};
use crate::audit::recorded;
use crate::harness::watcher::Feed;
use crate::harness::{ADMIN, Agent, Builder, Gateway, Pair, Request, until_holds};
use crate::operators::paired;

/// What a browser has of a session.
struct Session {
    /// `name=value`.
    cookie: String,
    page: String,
    origin: String,
}

impl Session {
    async fn begin(gateway: &Gateway, token: &str) -> Self {
        Self::begin_beside(gateway, token, None).await
    }

    /// Begins one in a browser that may have a cookie already.
    async fn begin_beside(gateway: &Gateway, token: &str, cookie: Option<&str>) -> Self {
        let origin = format!("http://{}", gateway.admin);
        let mut request = Request::post("/console/session", "{}").bearer(token);
        if let Some(cookie) = cookie {
            request = request.field("Cookie", cookie);
        }
        let answer = ask(gateway.admin, &request.field("Origin", &origin)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let cookie = answer.field("set-cookie").unwrap().split(';').next();
        Self {
            cookie: cookie.unwrap().to_owned(),
            page: answer.json()["session"].as_str().unwrap().to_owned(),
            origin,
        }
    }

    /// A request as the page sends it.
    fn request(&self, method: &str, path: &str) -> Request {
        Self::sent(method, path, &self.cookie, &self.page).field("Origin", &self.origin)
    }

    fn sent(method: &str, path: &str, cookie: &str, page: &str) -> Request {
        let request = match method {
            "POST" => Request::post(path, "{}"),
            _ => Request::new(method, path),
        };
        let request = request.field("Cookie", format!("theme=dark; {cookie}"));
        request.field("X-A2A-Session", page)
    }
}

/// The page sees an answer to this request.
async fn answered(gateway: &Gateway, request: &Request) {
    let answer = ask(gateway.admin, request).await;
    assert_eq!(answer.status, 200, "{request:?}: {}", answer.text());
}

async fn is_nobodys(gateway: &Gateway, request: &Request) {
    refused(gateway, request, 401, "unauthenticated").await;
}

const KEYS: &str = "/console/keys";

#[tokio::test]
async fn a_session_stands_for_its_token_until_its_operator_logs_out() {
    let gateway = Gateway::start(Pair::Embedded).await;
    gateway.seat("w1", "", Agent::json("{}").await).await;
    let session = Session::begin(&gateway, ADMIN).await;
    for path in [
        "/console/keys",
        "/api/workspaces/w1",
        "/audit",
        "/explain?caller=operator&target=w1",
    ] {
        answered(&gateway, &session.request("GET", path)).await;
    }
    let pause = session.request("POST", "/api/workspaces/w1/pause");
    answered(&gateway, &pause.field("X-Request-Id", "by-session")).await;
    let records = recorded(&gateway, "request_id=by-session", 1).await;
    assert_eq!(records[0]["caller"], json!("operator:"), "{records:?}");
    let mut feed = Feed::open(gateway.admin, &session.request("GET", "/console/feed")).await;
    ticks(&mut feed, |_| true).await;
    answered(&gateway, &session.request("DELETE", "/console/session")).await;
    let why = told(&mut feed, |event, _| event == "end").await;
    assert_eq!(why["reason"], "unauthenticated", "{why}");
    // Also where a request without any credential is let in, on loopback.
    for path in ["/console/keys", "/audit", "/console/feed"] {
        is_nobodys(&gateway, &session.request("GET", path)).await;
    }
    let log = gateway.log();
    let cookie = session.cookie.split_once('=').unwrap().1;
    assert!(!log.contains(cookie) && !log.contains(&session.page));
}

#[tokio::test]
async fn a_session_needs_both_of_its_secrets() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let one = Session::begin(&gateway, ADMIN).await;
    let other = Session::begin(&gateway, ADMIN).await;
    answered(&gateway, &one.request("GET", KEYS)).await;
    let (name, value) = one.cookie.split_once('=').unwrap();
    let sent = |cookie: &str, page: &str| Session::sent("GET", KEYS, cookie, page);
    for stolen in [
        sent(&one.cookie, &other.page),
        Request::get(KEYS).field("X-A2A-Session", &one.page),
        // What another server of the same host name gets to see.
        Request::get(KEYS).field("Cookie", &one.cookie),
        Request::get(KEYS).bearer(&one.page),
        Request::get(KEYS).bearer(value),
        sent(&format!("a2a_console={value}"), &one.page),
        sent(&one.cookie, "x").field("X-A2A-Session", "y"),
    ] {
        is_nobodys(&gateway, &stolen).await;
    }
    // A cookie that somebody put beside it keeps nobody out.
    let tossed = sent(&format!("{name}=x; {}", one.cookie), &one.page);
    answered(&gateway, &tossed).await;
    // It opens the admin listener alone.
    let public = one.request("GET", "/workspaces").without("Origin");
    let public = gateway.call(&public).await;
    assert_eq!(public.status, 401, "{}", public.text());
}

#[tokio::test]
async fn no_other_page_uses_a_session() {
    let gateway = Gateway::start(Pair::Embedded).await;
    gateway.seat("w1", "", Agent::json("{}").await).await;
    let session = Session::begin(&gateway, ADMIN).await;
    let port = gateway.admin.port();
    for (name, value) in [
        ("Origin", "http://elsewhere.example".to_owned()),
        ("Origin", "null".to_owned()),
        // The same site to a browser: SameSite lets the cookie pass.
        ("Origin", format!("http://127.0.0.1:{}", port ^ 1)),
        ("Origin", format!("http://localhost:{port}")),
        ("Sec-Fetch-Site", "same-site".to_owned()),
        ("Sec-Fetch-Site", "cross-site".to_owned()),
    ] {
        for (method, path) in [
            ("GET", KEYS),
            ("POST", "/api/workspaces/w1/pause"),
            ("DELETE", "/console/session"),
        ] {
            let request = session.request(method, path).without("Origin");
            let request = request.field(name, &value);
            refused(&gateway, &request, 403, "origin_forbidden").await;
        }
    }
    // No browser leaves it out of a change.
    let unnamed = session.request("POST", "/api/workspaces/w1/pause");
    let unnamed = unnamed.without("Origin");
    refused(&gateway, &unnamed, 403, "origin_forbidden").await;
    let still = ask(gateway.admin, &session.request("GET", "/api/workspaces/w1")).await;
    assert_eq!(still.json()["status"], "online", "nothing was done");
}

#[tokio::test]
async fn only_an_admin_token_begins_a_session() {
    let (gateway, caller, _target) = paired(Pair::Embedded, Agent::json("{}").await).await;
    let session = Session::begin(&gateway, ADMIN).await;
    let begin = || Request::post("/console/session", "{}");
    let own = format!("http://{}", gateway.admin);
    let foreign = begin().bearer(ADMIN);
    let foreign = foreign.field("Origin", "http://elsewhere.example");
    // So no session lasts for ever.
    let again = session.request("POST", "/console/session");
    for (request, status, reason) in [
        (begin(), 401, "unauthenticated"),
        (begin().bearer(&caller.token), 403, "not_permitted"),
        (again, 403, "not_permitted"),
        (foreign, 403, "origin_forbidden"),
    ] {
        let answer = refused(&gateway, &request, status, reason).await;
        assert_eq!(answer.field("set-cookie"), None, "{request:?}");
    }
    for (origin, secure) in [
        (own.clone(), ""),
        (own.replace("http:", "https:"), "; Secure"),
    ] {
        let request = begin().bearer(ADMIN).field("Origin", origin);
        let answer = ask(gateway.admin, &request).await;
        let cookie = answer.field("set-cookie").unwrap();
        let (pair, attributes) = cookie.split_once("; ").unwrap();
        let expected = format!("Path=/; HttpOnly; SameSite=Strict{secure}");
        assert_eq!(attributes, expected);
        let (name, value) = pair.split_once('=').unwrap();
        let expected = format!("a2a_console_{}", gateway.admin.port());
        assert_eq!((name, value.len()), (&*expected, 43));
        assert_eq!(answer.field("cache-control"), Some("no-store"));
    }
}

#[tokio::test]
async fn tabs_of_a_browser_have_sessions_of_their_own() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let first = Session::begin(&gateway, ADMIN).await;
    let second = Session::begin_beside(&gateway, ADMIN, Some(&first.cookie)).await;
    assert_eq!(first.cookie, second.cookie, "a browser has one for both");
    assert_ne!(first.page, second.page);
    let unknown = first.cookie.replace(|c: char| c.is_ascii_lowercase(), "x");
    let planted = Session::begin_beside(&gateway, ADMIN, Some(&unknown)).await;
    assert_ne!(planted.cookie, unknown, "it is not ours");
    // The token's own request, with the session that it has: that one makes way.
    let again = first.request("POST", "/console/session").bearer(ADMIN);
    answered(&gateway, &again).await;
    let keys = |session: &Session| session.request("GET", KEYS);
    is_nobodys(&gateway, &keys(&first)).await;
    answered(&gateway, &keys(&second)).await;
    let end = ask(gateway.admin, &second.request("DELETE", "/console/session")).await;
    assert_eq!(end.field("set-cookie"), None, "another tab has it");
    let end = ask(
        gateway.admin,
        &planted.request("DELETE", "/console/session"),
    )
    .await;
    let cookie = end.field("set-cookie").unwrap();
    assert!(cookie.ends_with("; Max-Age=0"), "{end:?}");
}

#[tokio::test]
async fn a_session_ends_with_its_token_and_with_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let write = |token: &str| {
        let new = folder.path().join("new");
        fs::write(&new, token).unwrap();
        fs::set_permissions(&new, Permissions::from_mode(0o600)).unwrap();
        fs::rename(&new, &file).unwrap();
    };
    let [before, after] = ["b", "c"].map(|letter| format!("a2aa_{}", letter.repeat(43)));
    write(&before);
    let builder = Builder::new(Pair::Embedded).env("A2A_GATEWAY_ADMIN_TOKEN", "");
    let builder = builder.env("A2A_GATEWAY_ADMIN_TOKEN_FILE", file.to_str().unwrap());
    let mut gateway = builder.start().await;
    let session = Session::begin(&gateway, &before).await;
    let keys = session.request("GET", KEYS);
    answered(&gateway, &keys).await;
    write(&after);
    let is_over = async || ask(gateway.admin, &keys).await.status != 200;
    until_holds("its token is another", is_over).await;
    is_nobodys(&gateway, &keys).await;
    let session = Session::begin(&gateway, &after).await;
    let keys = session.request("GET", KEYS);
    answered(&gateway, &keys).await;
    gateway.restart().await;
    is_nobodys(&gateway, &keys).await;
}
