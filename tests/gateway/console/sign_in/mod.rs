//! People sign in at the console, by a provider that says what each case needs: what is not exactly the answer to this
//! browser's own sign-in is refused, and makes nothing. `tests/pages/signin.mjs` shows it with a real provider and a
//! browser.

mod refused;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::{ask, told};
use crate::audit::recorded;
use crate::harness::agent::{Step, ok_json};
use crate::harness::issuer::Key;
use crate::harness::watcher::Feed;
use crate::harness::{Agent, Answer, Builder, Gateway, Pair, Recorded, Request, until_holds};

/// The name of the gateway at the provider.
const CLIENT: &str = "the-gateway";

/// Next answers of the provider, by path.
type Script = Arc<Mutex<HashMap<&'static str, Vec<Step>>>>;

struct Provider {
    host: Agent,
    key: Key,
    script: Script,
}

impl Provider {
    async fn start() -> Self {
        let script = Script::default();
        let (said, base) = (Arc::clone(&script), Arc::new(OnceLock::<String>::new()));
        let at = Arc::clone(&base);
        let key = Key::rsa("one");
        let keys = json!({"keys": [key.jwk()]}).to_string();
        let host = Agent::scripted(move |request| {
            let path = request.head.split_whitespace().nth(1).unwrap();
            if let Some(steps) = said.lock().unwrap().get(path) {
                return steps.clone();
            }
            let base = at.get().unwrap();
            let body = match path {
                "/.well-known/openid-configuration" => json!({
                    "issuer": base,
                    "authorization_endpoint": format!("{base}/authorize?kept=1"),
                    "token_endpoint": format!("{base}/token"),
                    "jwks_uri": format!("{base}/keys"),
                }),
                _ => return vec![Step::Write(ok_json(&keys))],
            };
            vec![Step::Write(ok_json(&body.to_string()))]
        });
        let host = host.await;
        base.set(format!("http://127.0.0.1:{}", host.port)).unwrap();
        Self { host, key, script }
    }

    fn issuer(&self) -> String {
        format!("http://127.0.0.1:{}", self.host.port)
    }

    fn gateway(&self, pair: Pair) -> Builder {
        Builder::new(pair)
            .set("admin.sign_in.issuer", &self.issuer())
            .set("admin.sign_in.client_id", CLIENT)
            .set("admin.sign_in.roles.read", "staff")
            .set("admin.sign_in.roles.operate", "night")
            .set("admin.sign_in.roles.admin", "admins")
    }

    fn says(&self, path: &'static str, steps: Vec<Step>) {
        self.script.lock().unwrap().insert(path, steps);
    }

    /// Has the next code give this token.
    fn gives(&self, token: &str) {
        let body = json!({"access_token": "x", "token_type": "Bearer", "id_token": token});
        self.says("/token", vec![Step::Write(ok_json(&body.to_string()))]);
    }

    /// Good claims for ada, with `more` in them.
    fn claims(&self, nonce: &str, more: Value) -> Value {
        let now = jsonwebtoken::get_current_timestamp();
        let mut claims = json!({"iss": self.issuer(), "aud": CLIENT, "sub": "ada-1", "iat": now, "exp": now + 300,
            "nonce": nonce, "email": "ada@example.com", "groups": ["night"]});
        let more = more.as_object().unwrap().clone();
        claims.as_object_mut().unwrap().extend(more);
        claims
    }
}

/// A sign-in, as the browser has it that began it.
struct Begun {
    /// `name=value`.
    cookie: String,
    asked: HashMap<String, String>,
}

impl Begun {
    async fn new(gateway: &Gateway) -> Self {
        let answer = ask(gateway.admin, &Request::get("/console/sign-in")).await;
        assert_eq!(answer.status, 303, "{}", answer.text());
        let cookie = answer.field("set-cookie").unwrap().to_owned();
        for part in [
            "Path=/console/sign-in;",
            "HttpOnly",
            "SameSite=Lax",
            "Max-Age=600",
        ] {
            assert!(cookie.contains(part), "{cookie}");
        }
        let location: Url = answer.field("location").unwrap().parse().unwrap();
        assert_eq!(location.path(), "/authorize");
        Self {
            cookie: cookie.split(';').next().unwrap().to_owned(),
            asked: location.query_pairs().into_owned().collect(),
        }
    }

    fn state(&self) -> &str {
        &self.asked["state"]
    }

    fn nonce(&self) -> &str {
        &self.asked["nonce"]
    }

    /// The browser comes back with this query.
    async fn back(&self, gateway: &Gateway, query: &str) -> Answer {
        let request = Request::get(format!("/console/sign-in/callback?{query}"));
        // The answer of another site.
        let request = request.field("Sec-Fetch-Site", "cross-site");
        ask(gateway.admin, &request.field("Cookie", &self.cookie)).await
    }

    async fn with_code(&self, gateway: &Gateway) -> Answer {
        let query = format!("code=c&state={}", self.state());
        self.back(gateway, &query).await
    }

    /// The page begins the session with the code.
    fn end(&self, gateway: &Gateway, code: &str) -> Request {
        Request::post("/console/sign-in", "")
            .field("Origin", format!("http://{}", gateway.admin))
            .field("Cookie", &self.cookie)
            .field("X-A2A-Sign-In", code)
    }
}

/// The code in the address of the page.
fn code(answer: &Answer) -> String {
    assert_eq!(answer.status, 303, "{}", answer.text());
    let location = answer.field("location").unwrap();
    let code = location.strip_prefix("../../#signed-in=");
    code.unwrap_or_else(|| panic!("{location}")).to_owned()
}

/// A session of the console.
struct Session {
    cookie: String,
    page: String,
}

impl Session {
    /// Signs ada in, with these claims besides.
    async fn of(gateway: &Gateway, provider: &Provider, more: Value) -> Self {
        let begun = Begun::new(gateway).await;
        let claims = provider.claims(begun.nonce(), more);
        provider.gives(&provider.key.sign(&claims));
        let code = code(&begun.with_code(gateway).await);
        let answer = ask(gateway.admin, &begun.end(gateway, &code)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let cookie = answer.field("set-cookie").unwrap();
        assert!(cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
        Self {
            cookie: cookie.split(';').next().unwrap().to_owned(),
            page: answer.json()["session"].as_str().unwrap().to_owned(),
        }
    }

    async fn ask(&self, gateway: &Gateway, method: &str, path: &str) -> Answer {
        let mut request = Request::post(path, "{}");
        request.method = method.to_owned();
        ask(gateway.admin, &self.on(gateway, request)).await
    }

    fn on(&self, gateway: &Gateway, request: Request) -> Request {
        request
            .field("Origin", format!("http://{}", gateway.admin))
            .field("Cookie", &self.cookie)
            .field("X-A2A-Session", &self.page)
    }
}

/// The form in the last request of a token, and the request.
fn asked_for_token(provider: &Provider) -> (HashMap<String, String>, Recorded) {
    let mut asked = provider.host.requests();
    asked.retain(|request| request.head.starts_with("POST"));
    let asked = asked.pop().unwrap();
    let form = url::form_urlencoded::parse(&asked.body).into_owned();
    (form.collect(), asked)
}

async fn tokens(gateway: &Gateway) -> Vec<Value> {
    let list = gateway.as_operator(Request::get("/operators/tokens")).await;
    list.json()["tokens"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_person_operates_in_their_name_by_their_role_until_they_sign_out() {
    let provider = Provider::start().await;
    let gateway = provider.gateway(Pair::Embedded).start().await;
    gateway.seat("w1", "", Agent::json("{}").await).await;
    let begun = Begun::new(&gateway).await;
    let callback = format!("http://{}/console/sign-in/callback", gateway.admin);
    for (name, value) in [
        ("kept", "1"),
        ("client_id", CLIENT),
        ("redirect_uri", &callback),
        ("response_type", "code"),
        ("scope", "openid profile email"),
        ("code_challenge_method", "S256"),
    ] {
        assert_eq!(begun.asked[name], value, "{name}");
    }
    let session = Session::of(&gateway, &provider, json!({"groups": ["staff", "night"]})).await;
    let (form, asked) = asked_for_token(&provider);
    for (name, value) in [
        ("code", "c"),
        ("grant_type", "authorization_code"),
        ("redirect_uri", &callback),
        ("client_id", CLIENT),
    ] {
        assert_eq!(form[name], value, "{name}");
    }
    assert_eq!(form["code_verifier"].len(), 43);
    assert!(asked.field("authorization").is_none());

    let me = session.ask(&gateway, "GET", "/api/operators/me").await;
    let me = me.json();
    let is_said = [&me["role"], &me["name"], &me["subject"]];
    assert_eq!(is_said, ["operate", "ada@example.com", "ada-1"]);
    let named = json!({"role": "operate", "token_id": me["token_id"], "issuer": provider.issuer(),
        "subject": "ada-1", "name": "ada@example.com"});
    let pause = session.ask(&gateway, "POST", "/api/workspaces/w1/pause");
    assert_eq!(pause.await.status, 200);
    let refused = session.ask(&gateway, "POST", "/console/keys/rotate").await;
    assert_eq!(refused.status, 403);
    assert_eq!(refused.json()["needed_role"], "admin");
    for (event, outcome) in [
        ("OPERATOR_SIGNED_IN", "done"),
        ("WORKSPACE_PAUSED", "done"),
        ("KEYS_CHANGED", "role_required"),
    ] {
        let record = &recorded(&gateway, &format!("event_type={event}"), 1).await[0];
        assert_eq!(record["detail"]["operator"], named, "{record}");
        assert_eq!(record["outcome"], outcome, "{record}");
    }
    let listed = tokens(&gateway).await;
    assert_eq!((listed.len(), &listed[0]["subject"]), (1, &json!("ada-1")));
    let ended = session.ask(&gateway, "DELETE", "/console/session").await;
    assert_eq!(ended.json()["signed_in_at"], provider.issuer());
    let keys = session.ask(&gateway, "GET", "/console/keys").await;
    assert_eq!(keys.status, 401);
    assert!(tokens(&gateway).await.is_empty(), "its token lasts");
    recorded(&gateway, "event_type=OPERATOR_SIGNED_OUT", 1).await;
    let log = gateway.log();
    let shows = log.contains(&session.page) || log.contains("a2aa_");
    assert!(!shows, "a secret is in the log");
}

#[tokio::test]
async fn the_challenge_is_that_of_the_verifier_and_a_secret_is_sent_as_the_provider_takes_it() {
    let provider = Provider::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, "s3cret:\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let gateway = provider.gateway(Pair::Embedded);
    let gateway = gateway.set("admin.sign_in.client_secret_file", file.to_str().unwrap());
    let gateway = gateway.start().await;
    let begun = Begun::new(&gateway).await;
    let claims = provider.claims(begun.nonce(), json!({}));
    provider.gives(&provider.key.sign(&claims));
    code(&begun.with_code(&gateway).await);
    let (form, asked) = asked_for_token(&provider);
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"]));
    assert_eq!(challenge, begun.asked["code_challenge"]);
    let basic = format!("Basic {}", STANDARD.encode(format!("{CLIENT}:s3cret%3A")));
    assert_eq!(asked.field("authorization"), Some(&*basic));
    assert!(!form.contains_key("client_secret"));
    assert!(!gateway.log().contains("s3cret"));
}

/// Asserts the status and the word of a refusal.
fn is_refused(answer: &Answer, status: u16, word: &str, what: &str) {
    let said = answer.json();
    let shown = (answer.status, said["sign_in"].as_str().unwrap_or_default());
    assert_eq!(shown, (status, word), "{what}: {said}");
}

#[tokio::test]
async fn a_code_is_good_once_and_for_the_browser_and_the_page_that_have_it() {
    let provider = Provider::start().await;
    let gateway = provider.gateway(Pair::Embedded).start().await;
    let (begun, other) = (Begun::new(&gateway).await, Begun::new(&gateway).await);
    let claims = provider.claims(begun.nonce(), json!({}));
    provider.gives(&provider.key.sign(&claims));
    let code = code(&begun.with_code(&gateway).await);
    let good = begun.end(&gateway, &code);
    let foreign = good.clone().without("Origin");
    for (request, status, reason) in [
        (other.end(&gateway, &code), 401, "unauthenticated"),
        (begun.end(&gateway, "x"), 401, "unauthenticated"),
        (good.clone().without("Cookie"), 401, "unauthenticated"),
        (
            good.clone().without("X-A2A-Sign-In"),
            401,
            "unauthenticated",
        ),
        (foreign.clone(), 403, "origin_forbidden"),
        (
            foreign.field("Origin", "http://elsewhere.test"),
            403,
            "origin_forbidden",
        ),
    ] {
        super::refused(&gateway, &request, status, reason).await;
    }
    assert_eq!(ask(gateway.admin, &good).await.status, 200);
    assert_eq!(ask(gateway.admin, &good).await.status, 401, "used twice");
}

#[tokio::test]
async fn a_session_ends_by_an_admin_and_by_its_time() {
    let provider = Provider::start().await;
    let gateway = provider.gateway(Pair::External).start().await;
    let ended = Session::of(&gateway, &provider, json!({"sub": "bob"})).await;
    let feed = ended.on(&gateway, Request::get("/console/feed"));
    let mut feed = Feed::open(gateway.admin, &feed).await;
    told(&mut feed, |event, _| event == "begin").await;
    let listed = tokens(&gateway).await;
    let mut bobs = listed.iter().filter(|token| token["subject"] == "bob");
    let bob = bobs.next().unwrap()["id"].as_str().unwrap();
    let end = Request::new("DELETE", format!("/operators/tokens/{bob}"));
    assert_eq!(gateway.as_operator(end).await.status, 200);
    let why = told(&mut feed, |event, _| event == "end").await;
    assert_eq!(why["reason"], "unauthenticated", "{why}");
    let keys = ended.ask(&gateway, "GET", "/console/keys").await;
    assert_eq!(keys.status, 401);
    let brief = provider.gateway(Pair::Embedded);
    let gateway = brief.set("admin.sign_in.session", "10s").start().await;
    let began = Instant::now();
    let brief = Session::of(&gateway, &provider, json!({})).await;
    let is_over = async || brief.ask(&gateway, "GET", "/console/keys").await.status != 200;
    until_holds("it ends by its time", is_over).await;
    let lasted = began.elapsed();
    assert!(lasted >= Duration::from_secs(10), "it ends too early");
}

#[tokio::test]
async fn a_provider_that_is_away_is_told() {
    let provider = Provider::start().await;
    let gateway = provider.gateway(Pair::Embedded).start().await;
    let begun = Begun::new(&gateway).await;
    let silent = vec![Step::Hang];
    provider.says("/token", silent.clone());
    is_refused(&begun.with_code(&gateway).await, 503, "away", "no token");
    // Of a gateway that has not asked it before, and of one that has another issuer.
    provider.says("/.well-known/openid-configuration", silent);
    let elsewhere = provider.gateway(Pair::Embedded);
    let elsewhere = elsewhere.set("admin.sign_in.issuer", "http://127.0.0.1:9");
    for gateway in [provider.gateway(Pair::Embedded), elsewhere] {
        let gateway = gateway.start().await;
        let request = Request::get("/console/sign-in").field("Accept", "application/json");
        let answer = ask(gateway.admin, &request).await;
        is_refused(&answer, 503, "away", "no metadata");
        assert!(answer.field("retry-after").is_some());
        let page = request.without("Accept").field("Accept", "text/html");
        let page = ask(gateway.admin, &page).await;
        let told = (page.status, page.field("location"));
        assert_eq!(told, (303, Some("../#sign-in=away")));
        // Lines are written in a thread of their own.
        let said = "failed to read the metadata";
        until_holds(said, async || gateway.log().contains(said)).await;
    }
    let off = Gateway::start(Pair::Embedded).await;
    let begin = Request::get("/console/sign-in");
    super::refused(&off, &begin, 404, "not_found").await;
    let issuer = ask(off.admin, &Request::get("/console/sign-in/provider")).await;
    assert_eq!(issuer.json(), json!({"issuer": null}));
}
