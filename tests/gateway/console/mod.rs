//! The console's routes on the admin listener: always with an operator's token, never for another page; its feed tells
//! what passes through every replica, and is bounded. What an operator sees of it, `tests/pages/console.mjs` shows.

mod connections;
mod health;
mod keys;
mod replicas;
mod sessions;
mod sign_in;

use std::net::SocketAddr;
use std::time::Duration;

use a2a_gateway::admin::{API_ROUTES, CONSOLE_ROUTES};
use serde_json::{Value, json};

use crate::audit::recorded;
use crate::events::Replicas;
use crate::harness::watcher::Feed;
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Connection, Gateway, Pair, Request, until_holds,
};
use crate::operators::paired;
use crate::stores::open_db;

/// Readers that one replica has at most.
const READERS_MAX: usize = 16;

/// How long anything may take, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Its answer, which is a refusal for this reason.
async fn refused(gateway: &Gateway, request: &Request, status: u16, reason: &str) -> Answer {
    let answer = ask(gateway.admin, request).await;
    let said = answer.reason();
    assert_eq!((answer.status, &*said), (status, reason), "{request:?}");
    answer
}

async fn ask(admin: SocketAddr, request: &Request) -> Answer {
    let mut connection = Connection::open(admin).await;
    connection.send(&request.wire(&admin.to_string())).await;
    connection.try_answer().await.unwrap()
}

fn feed() -> Request {
    Request::get("/console/feed").bearer(ADMIN)
}

/// Reads on until an event says what is looked for.
async fn told(feed: &mut Feed, what: impl Fn(&str, &Value) -> bool) -> Value {
    let read = async {
        loop {
            let event = feed.event().await;
            if what(event.event.as_deref().unwrap_or_default(), &event.data) {
                return event.data;
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap()
}

/// Reads on until a tick says what is looked for.
async fn ticks(feed: &mut Feed, what: impl Fn(&Value) -> bool) -> Value {
    told(feed, |event, data| event == "tick" && what(data)).await
}

/// True if exchanges passed since the last tick.
fn passed(data: &Value) -> bool {
    let exchanges = data["exchanges"].as_array();
    exchanges.is_some_and(|all| !all.is_empty())
}

/// Of how many replicas a tick tells.
fn replicas_in(data: &Value) -> usize {
    data["replicas"].as_array().map_or(0, Vec::len)
}

/// The workspaces of a page of rows.
fn ids(rows: &Value) -> Vec<&str> {
    let rows = rows["rows"].as_array().unwrap().iter();
    rows.map(|row| row[0].as_str().unwrap()).collect()
}

fn message(target: &str, token: &str) -> Request {
    Request::post(format!("/workspaces/{target}/a2a"), CALL).bearer(token)
}

#[tokio::test]
async fn every_route_takes_an_operators_token_and_no_other_page() {
    let (gateway, caller, _target) = paired(Pair::Embedded, Agent::json("{}").await).await;
    for (method, path) in CONSOLE_ROUTES.iter().chain(API_ROUTES.iter()) {
        let path = path.replace("{id}", "target");
        let path = path.replace("{token_id}", "x").replace("{grant_id}", "x");
        let request = || Request::new(method, &path);
        let nobody = refused(&gateway, &request(), 401, "unauthenticated").await;
        assert_eq!(nobody.field("www-authenticate"), Some("Bearer"), "{path}");
        let agent = request().bearer(&caller.token);
        refused(&gateway, &agent, 403, "not_permitted").await;
        for (name, value) in [
            ("Origin", "http://elsewhere.example"),
            ("Sec-Fetch-Site", "cross-site"),
        ] {
            let foreign = request().bearer(ADMIN).field(name, value);
            refused(&gateway, &foreign, 403, "origin_forbidden").await;
        }
        // Nor are they on the public listener.
        let public = gateway.call(&request().bearer(ADMIN)).await;
        assert_eq!(public.status, 404, "{method} {path}");
    }
}

#[tokio::test]
async fn a_request_has_one_host_one_origin_and_one_spelling() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let own = format!("http://{}", gateway.admin);
    gateway.seat("w1", "", Agent::json("{}").await).await;
    let load = |id: &str| Request::get(format!("/console/workspaces/{id}")).bearer(ADMIN);
    let good = load("w1").field("Origin", &own);
    let good = ask(gateway.admin, &good).await;
    assert_eq!(good.status, 200, "{}", good.text());
    refused(&gateway, &load("w%31"), 400, "invalid_workspace_id").await;
    for (name, value) in [
        ("Origin", "http://evil.example"),
        ("Host", "evil.example"),
        ("Host", "localhost"),
    ] {
        let once = load("w1").field("Host", gateway.admin.to_string());
        let twice = once.field("Origin", &own).field(name, value);
        refused(&gateway, &twice, 400, "invalid_request").await;
    }
}

#[tokio::test]
async fn without_a_console_there_is_neither_page_nor_route() {
    let builder = Builder::new(Pair::Embedded).set("admin.console", "false");
    let gateway = builder.start().await;
    for path in ["/", "/console.js", "/console/feed", "/api/grants"] {
        let request = Request::get(path).bearer(ADMIN);
        refused(&gateway, &request, 404, "not_found").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_console_shows_what_passes_through_every_replica() {
    let replicas = Replicas::start(2, &[]).await;
    let [one, two] = &replicas.all[..] else {
        panic!("two");
    };
    let agent = Agent::json(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    let (caller, _target) = one.pair(agent).await;
    let mut feed = Feed::open(two.admin, &feed()).await;
    // From here on the other replica counts, too.
    ticks(&mut feed, |data| replicas_in(data) == 2).await;
    one.call(&message("target", &caller.token)).await;
    let tick = ticks(&mut feed, passed).await;
    assert_eq!(tick["exchanges"][0]["caller"], "caller", "{tick}");
}

#[tokio::test]
async fn places_are_bounded_and_given_back() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let mut open = Vec::new();
    for _ in 0..READERS_MAX {
        open.push(Feed::open(gateway.admin, &feed()).await);
    }
    refused(&gateway, &feed(), 503, "overloaded").await;
    drop(open);
    let is_free = async || {
        let feed = Feed::try_open(gateway.admin, &feed()).await;
        feed.is_some_and(|feed| feed.head.status == 200)
    };
    until_holds("there is a place again", is_free).await;
}

#[tokio::test]
async fn workspaces_that_could_not_be_read_come_as_soon_as_they_can() {
    let (gateway, _caller, _target) = paired(Pair::Embedded, Agent::json("{}").await).await;
    let db = open_db(&gateway.sql_url());
    let rename = async |text: &'static str| sqlx::query(text).execute(db.pool()).await.unwrap();
    rename("ALTER TABLE workspaces RENAME TO elsewhere").await;
    let mut feed = Feed::open(gateway.admin, &feed()).await;
    let trouble = told(&mut feed, |event, _| event == "trouble").await;
    assert_eq!(trouble["reason"], "store_unavailable");
    // What happens is told meanwhile, and the trouble again.
    ticks(&mut feed, |_| true).await;
    told(&mut feed, |event, _| event == "trouble").await;
    rename("ALTER TABLE elsewhere RENAME TO workspaces").await;
    let rows = told(&mut feed, |event, _| event == "rows").await;
    assert_eq!(ids(&rows), ["caller", "target"]);
    assert_eq!(rows["last"], true);
}

#[tokio::test]
async fn what_is_refused_here_is_written_down_as_on_the_public_listener() {
    let (gateway, caller, _target) = paired(Pair::Embedded, Agent::json("{}").await).await;
    let foreign = "http://elsewhere.example";
    for (n, (method, path, event, target)) in [
        (
            "POST",
            "/api/workspaces/target/pause",
            "WORKSPACE_PAUSED",
            json!("target"),
        ),
        (
            "DELETE",
            "/api/workspaces/target/tokens/t",
            "TOKEN_REVOKED",
            json!("target"),
        ),
        ("POST", "/api/grants", "GRANT_CREATED", Value::Null),
        ("POST", "/console/keys/rotate", "KEYS_CHANGED", Value::Null),
    ]
    .into_iter()
    .enumerate()
    {
        let request = || Request::new(method, path);
        let by_page = request().bearer(ADMIN).field("Origin", foreign);
        for (m, (request, status, outcome, who)) in [
            (request(), 401, "unauthenticated", Value::Null),
            (
                request().bearer(&caller.token),
                403,
                "not_permitted",
                json!("caller"),
            ),
            (by_page, 403, "origin_forbidden", Value::Null),
        ]
        .into_iter()
        .enumerate()
        {
            let id = format!("refused-{n}-{m}");
            let request = request.field("X-Request-Id", &*id);
            let answer = ask(gateway.admin, &request).await;
            assert_eq!(answer.status, status, "{method} {path}");
            let records = recorded(&gateway, &format!("request_id={id}"), 1).await;
            let record = &records[0];
            assert_eq!(records.len(), 1, "{records:?}");
            assert_eq!(record["event_type"], event, "{record}");
            assert_eq!(record["outcome"], outcome, "{record}");
            assert_eq!(record["status"], status, "{record}");
            assert_eq!(record["target"], target, "{record}");
            assert_eq!(record["caller"], who, "{record}");
        }
    }
    // Reading changes nothing, and of a stranger's words nothing stays.
    let stranger = Request::new("DELETE", "/api/grants/some-word").field("X-Request-Id", "word");
    ask(gateway.admin, &stranger).await;
    let read = Request::get("/api/grants").field("X-Request-Id", "read");
    ask(gateway.admin, &read).await;
    let records = recorded(&gateway, "request_id=word", 1).await;
    assert!(!records[0].to_string().contains("some-word"), "{records:?}");
    assert!(recorded(&gateway, "request_id=read", 0).await.is_empty());
}

#[tokio::test]
async fn no_page_shows_any_answer() {
    let gateway = Gateway::start(Pair::Embedded).await;
    for (path, status) in [
        ("/metrics", 200),
        ("/nowhere", 404),
        ("/api/grants", 401),
        ("/", 200),
    ] {
        let answer = ask(gateway.admin, &Request::get(path)).await;
        assert_eq!(answer.status, status, "{path}");
        let policy = answer.field("content-security-policy").unwrap_or_default();
        assert!(
            policy.contains("frame-ancestors 'none'"),
            "{path}: {policy}"
        );
        assert!(policy.starts_with("default-src 'none'"), "{path}: {policy}");
        let has_scripts = policy.contains("script-src 'self'");
        assert_eq!(has_scripts, path == "/", "{policy}");
        let is_kept = answer.field("cache-control") == Some("no-cache");
        assert!(is_kept || path != "/", "{:?}", answer.fields);
        for (name, value) in [
            ("x-frame-options", "DENY"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(answer.field(name), Some(value), "{path}");
        }
    }
}

#[tokio::test]
async fn names_that_nobody_has_are_counted_together() {
    let (gateway, caller, _target) = paired(Pair::Embedded, Agent::json("{}").await).await;
    let mut feed = Feed::open(gateway.admin, &feed()).await;
    told(&mut feed, |event, _| event == "rows").await;
    // The console knows the workspaces once it shows a change of one.
    gateway.patch("target", json!({"name": "T"})).await.has(200);
    ticks(&mut feed, |data| ids(data).contains(&"target")).await;
    for n in 0..20 {
        let made_up = message(&format!("made-up-{n}"), "a2aw_nobody");
        assert_eq!(gateway.call(&made_up).await.status, 401);
    }
    gateway.call(&message("target", "a2aw_nobody")).await;
    gateway.call(&message("target", &caller.token)).await;
    let mut counted = std::collections::BTreeMap::<String, (u64, u64)>::new();
    while counted.values().map(|counts| counts.0).sum::<u64>() < 22 {
        let tick = ticks(&mut feed, |_| true).await;
        for count in tick["counts"].as_array().unwrap() {
            let name = count[0].as_str().unwrap().to_owned();
            let counts = counted.entry(name).or_default();
            counts.0 += count[1].as_u64().unwrap();
            counts.1 += count[2].as_u64().unwrap();
        }
    }
    let expected = [("target", (2, 1)), ("unknown:", (20, 20))];
    let expected = expected.map(|(id, counts)| (id.to_owned(), counts));
    assert_eq!(counted, expected.into());
}

#[tokio::test]
async fn what_urls_have_no_room_for_is_no_name_for_a_workspace() {
    let gateway = Gateway::start(Pair::Embedded).await;
    for id in [".", ".."] {
        let new = json!({"id": id, "name": "dots", "url": "http://127.0.0.1:9/", "agent_card": {}});
        let created = json!({"id": id, "name": "dots"}).to_string();
        let refused = gateway
            .as_operator(Request::post("/workspaces", created))
            .await;
        assert_eq!(
            (refused.status, &*refused.reason()),
            (400, "invalid_workspace_id")
        );
        let refused = Request::post("/registry/register", new.to_string());
        let refused = gateway.as_operator(refused).await;
        assert_eq!(refused.status, 400, "{id}: {}", refused.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_feed_has_all_workspaces_then_what_happens() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let agent = Agent::json(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    let (caller, target) = gateway.pair(agent).await;
    let mut feed = Feed::open(gateway.admin, &feed()).await;
    let begin = feed.event().await;
    assert_eq!(begin.event.as_deref(), Some("begin"));
    let rows = told(&mut feed, |event, _| event == "rows").await;
    assert!(
        ids(&rows).contains(&"target") && rows["last"] == true,
        "{rows}"
    );
    gateway.call(&message("target", &caller.token)).await;
    let tick = ticks(&mut feed, passed).await;
    let exchange = &tick["exchanges"][0];
    assert_eq!(exchange["caller"], "caller", "{tick}");
    assert_eq!(exchange["target"], "target", "{tick}");
    assert_eq!(exchange["refused"], false, "{tick}");
    let counts = tick["counts"].as_array().unwrap();
    assert!(counts.contains(&json!(["target", 1, 0])), "{tick}");
    assert_eq!(tick["sent"], json!([["caller", 1]]), "{tick}");
    // A change is told with the row as it is then.
    let gone = json!({"workspace_id": "target"}).to_string();
    let leaves = Request::post("/registry/deregister", gone).bearer(&target.token);
    gateway.call(&leaves).await;
    let is_gone = |row: &Value| row[0] == "target" && row[4] == "offline";
    let offline = |data: &Value| {
        let rows = data["rows"].as_array();
        rows.is_some_and(|rows| rows.iter().any(is_gone))
    };
    ticks(&mut feed, offline).await;
}
