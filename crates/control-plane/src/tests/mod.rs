//! Tests of every route through the router, on the embedded stores.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures_util::FutureExt as _;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use tower::ServiceExt;

use super::*;
use access::identity::ClientAddr;
use kernel::config::{AuthMode, Config};
use kernel::ids::RequestId;
use kernel::metrics::Metrics;

mod canvas;
pub(crate) mod openapi;
mod refusals;

struct House {
    gateway: Arc<Gateway>,
    router: Router,
    admin: SecretString,
    _dir: tempfile::TempDir,
}

struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    json: Value,
}

impl Reply {
    fn reason(&self) -> &str {
        self.json["reason"].as_str().unwrap_or("none")
    }

    fn text(&self, member: &str) -> String {
        let found = self.json[member].as_str();
        found
            .unwrap_or_else(|| panic!("no {member} in {}", self.json))
            .to_owned()
    }
}

impl House {
    async fn new(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config: Config =
            toml::from_str(include_str!("../../../../config/default.toml")).unwrap();
        config.stores.sql = format!("sqlite:{}", dir.path().join("gw.db").display()).into();
        config.stores.timeout = Duration::from_secs(60);
        config.keys.dir = dir.path().join("keys");
        // The origin at which all cases register.
        let shared = kernel::config::AgentPrefix::parse("http://127.0.0.1:9");
        config.registry.shared_origins = vec![shared.unwrap()];
        change(&mut config);
        let metrics = Arc::new(Metrics::new());
        let gateway = Gateway::open(config.into(), metrics).unwrap();
        let admin = gateway.prepare().await.unwrap();
        let router = router(Arc::clone(&gateway));
        Self {
            gateway,
            router,
            admin,
            _dir: dir,
        }
    }

    async fn plain() -> Self {
        Self::new(|config| config.rate.caller_per_second = 0).await
    }

    fn admin(&self) -> &str {
        self.admin.expose_secret()
    }

    async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Reply {
            status: parts.status,
            headers: parts.headers,
            json: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        }
    }

    async fn call(&self, method: &str, path: &str, token: &str, body: Value) -> Reply {
        let mut request = Request::builder().method(method).uri(path);
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let body = match body {
            Value::Null => Body::empty(),
            body => Body::from(body.to_string()),
        };
        self.send(request.body(body).unwrap()).await
    }

    async fn get(&self, path: &str, token: &str) -> Reply {
        self.call("GET", path, token, Value::Null).await
    }

    async fn post(&self, path: &str, token: &str, body: Value) -> Reply {
        self.call("POST", path, token, body).await
    }

    /// Creates and registers a workspace. Returns its token.
    async fn workspace(&self, new: Value) -> String {
        let created = self.post("/workspaces", self.admin(), new).await;
        assert_eq!(created.status, 201, "{}", created.json);
        let enrolment = created.text("enrolment_token");
        let body = registration(&created.text("id"));
        let registered = self.post("/registry/register", &enrolment, body).await;
        assert_eq!(registered.status, 200, "{}", registered.json);
        registered.text("token")
    }
}

fn registration(id: &str) -> Value {
    json!({"id": id, "url": "http://127.0.0.1:9/a2a", "agent_card": {"name": "n"}})
}

fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(path)
}

#[tokio::test]
async fn no_route_answers_without_a_credential() {
    let house = House::new(|config| config.rate.failures_per_second = 0).await;
    let pages = ["/canvas", "/canvas/", "/canvas/{file}"];
    // The catalogue has public entries; OAuth answers in a form of its own.
    let catalogue = ["/search", "/agents", "/agents/{urn}", "/explore"];
    let known = |path: &str| {
        let apart = ["/.well-known/", "/oauth/"];
        apart.iter().any(|start| path.starts_with(start))
            || pages.contains(&path)
            || catalogue.contains(&path)
    };
    for (method, pattern) in ROUTES.iter().filter(|(_, path)| !known(path)) {
        let path = pattern
            .replace("{id}", "ws-1")
            .replace("{org}", "acme")
            .replace("{token_id}", "t");
        for token in ["", "rubbish", &format!("a2aw_{}", "x".repeat(43))] {
            let reply = house.call(method, &path, token, Value::Null).await;
            assert_eq!(reply.status, 401, "{method} {path}");
            assert_eq!(reply.reason(), "unauthenticated");
            assert_eq!(reply.headers["www-authenticate"], "Bearer");
            assert_eq!(reply.headers["cache-control"], "no-store");
        }
    }
}

#[tokio::test]
async fn a_workspace_comes_to_be_registers_beats_and_is_found() {
    let house = House::plain().await;
    let new = json!({"id": "pm", "name": "PM", "role": "leads", "org": "acme"});
    let created = house.post("/workspaces", house.admin(), new).await;
    assert_eq!(created.status, 201);
    assert_eq!(created.headers["location"], "/workspaces/pm");
    assert_eq!(created.json["status"], "provisioning");
    let enrolment = created.text("enrolment_token");

    // A failed registration does not consume the enrolment token; a successful one does.
    let mut broken = registration("pm");
    broken["url"] = "ftp://127.0.0.1".into();
    let refused = house.post("/registry/register", &enrolment, broken).await;
    assert!(refused.status.is_client_error() || refused.reason() == "address_forbidden");
    let register = || house.post("/registry/register", &enrolment, registration("pm"));
    let registered = register().await;
    assert_eq!(registered.status, 200, "{}", registered.json);
    assert_eq!(registered.json["status"], "registered");
    assert_eq!(registered.json["token"], registered.json["auth_token"]);
    assert_eq!(register().await.reason(), "unauthenticated");

    let token = registered.text("token");
    let again = house
        .post("/registry/register", &token, registration("pm"))
        .await;
    assert_eq!(again.status, 200);
    assert_eq!(again.json.get("token"), None);

    let beat = json!({"workspace_id": "pm", "active_tasks": 2, "current_task": "x",
        "runtime_metadata": {"idle_timeout_seconds": 9, "capabilities": {"a": true}}});
    let heard = house.post("/registry/heartbeat", &token, beat).await;
    assert_eq!(heard.json, json!({"status": "ok", "expires_in": 90}));

    let read = house.get("/workspaces/pm", &token).await;
    assert_eq!(read.json["status"], "online");
    assert_eq!(read.json["url"], "http://127.0.0.1:9/a2a");
    assert_eq!(read.json["active_tasks"], 2);
    assert_eq!(read.json["agent_card"], json!({"name": "n"}));

    let found = house.get("/registry/discover/pm", house.admin()).await;
    assert_eq!(found.status, 200, "{}", found.json);
    assert_eq!(found.json["url"], "http://127.0.0.1:9/a2a");
    let proxy = format!("{}/workspaces/pm/a2a", house.gateway.config().public_url());
    assert_eq!(found.json["proxy_url"], proxy);
    assert_eq!(found.json["agent_card"], json!({"name": "n"}));
    assert_eq!(found.json.get("token"), None);
}

#[tokio::test]
async fn relations_open_reading_and_hide_urls_and_strangers_learn_nothing() {
    let house = House::plain().await;
    let parent = house.workspace(json!({"id": "a", "name": "A"})).await;
    let child = json!({"id": "b", "name": "B", "parent_id": "a"});
    let child = house.workspace(child).await;
    let stranger = json!({"id": "s", "name": "S", "org": "else"});
    let stranger = house.workspace(stranger).await;

    let read = house.get("/workspaces/b", &parent).await;
    assert_eq!(read.status, 200);
    assert_eq!(read.json["url"], Value::Null);
    assert_eq!(house.get("/registry/discover/a", &child).await.status, 200);
    for path in [
        "/workspaces/b",
        "/workspaces/nowhere",
        "/registry/discover/b",
    ] {
        let refused = house.get(path, &stranger).await;
        assert_eq!(refused.reason(), "not_permitted");
    }
    let unknown = house.get("/workspaces/nowhere", house.admin()).await;
    assert_eq!(unknown.reason(), "workspace_not_found");
    for path in ["/workspaces/a:b", "/workspaces/%ff", "/workspaces/a%2Fb"] {
        let refused = house.get(path, house.admin()).await;
        assert_eq!(refused.reason(), "invalid_workspace_id", "{path}");
    }
}

#[tokio::test]
async fn a_workspace_speaks_for_itself_only() {
    let house = House::plain().await;
    let a = house.workspace(json!({"id": "a", "name": "A"})).await;
    house.workspace(json!({"id": "b", "name": "B"})).await;
    let beat = json!({"workspace_id": "b"});
    let own_words = json!({"id": "a", "url": "http://127.0.0.1:9", "agent_card": {}, "org": "x"});
    for (path, body) in [
        ("/registry/heartbeat", beat),
        ("/registry/register", registration("b")),
        ("/registry/register", own_words),
        ("/workspaces", json!({"name": "C"})),
        ("/canvas/tokens", json!({"user": "ada"})),
        ("/orgs/acme/tokens", Value::Null),
        ("/workspaces/b/tokens", Value::Null),
    ] {
        let refused = house.post(path, &a, body).await;
        assert_eq!(refused.reason(), "not_permitted", "{path}");
    }
    let claimed = request("GET", "/workspaces/a")
        .header("authorization", format!("Bearer {a}"))
        .header("x-workspace-id", "b");
    let refused = house.send(claimed.body(Body::empty()).unwrap()).await;
    assert_eq!(refused.reason(), "caller_mismatch");
    let twice = request("GET", "/workspaces/a")
        .header("authorization", format!("Bearer {a}"))
        .header("authorization", format!("Bearer {a}"));
    let refused = house.send(twice.body(Body::empty()).unwrap()).await;
    assert_eq!(refused.reason(), "unauthenticated");
}

#[tokio::test]
async fn a_heartbeat_of_nobody_asks_to_register() {
    let house = House::plain().await;
    let beat = json!({"workspace_id": "nobody"});
    let reply = house.post("/registry/heartbeat", house.admin(), beat).await;
    assert_eq!(reply.status, 404);
    assert_eq!(reply.reason(), "workspace_not_found");
    assert_eq!(reply.json["reregister"], true);
}

#[tokio::test]
async fn workspace_tokens_are_listed_made_and_revoked() {
    let house = House::plain().await;
    let first = house.workspace(json!({"id": "a", "name": "A"})).await;
    let path = "/workspaces/a/tokens";
    let made = house.post(path, &first, Value::Null).await;
    assert_eq!(made.status, 201);
    let second = made.text("token");
    assert_eq!(made.text("prefix"), second[..8]);
    assert_eq!(house.get("/workspaces/a", &second).await.status, 200);

    let page = house.get(&format!("{path}?limit=1"), house.admin()).await;
    assert_eq!(page.json["tokens"].as_array().unwrap().len(), 1);
    let cursor = page.text("next_cursor");
    let next = format!("{path}?limit=1&cursor={cursor}");
    let rest = house.get(&next, house.admin()).await;
    assert_eq!(rest.json["tokens"][0]["id"], made.json["id"]);
    assert_eq!(rest.json["next_cursor"], Value::Null);
    assert_eq!(rest.json["tokens"][0].get("token"), None);
    for wrong in ["limit=0", "limit=501", "limit=x", "cursor=!"] {
        let refused = house.get(&format!("{path}?{wrong}"), &first).await;
        assert_eq!(refused.reason(), "invalid_params", "{wrong}");
    }

    let one = format!("{path}/{}", made.text("id"));
    let revoked = house.call("DELETE", &one, &first, Value::Null).await;
    assert_eq!(revoked.json, json!({"status": "revoked"}));
    let refused = house.get("/workspaces/a", &second).await;
    assert_eq!(refused.reason(), "unauthenticated");
    let unknown = format!("{path}/none");
    let unknown = house.call("DELETE", &unknown, &first, Value::Null).await;
    assert_eq!(unknown.reason(), "not_found");
    let nowhere = house.get("/workspaces/nowhere/tokens", house.admin()).await;
    assert_eq!(nowhere.reason(), "workspace_not_found");
}

#[tokio::test]
async fn a_revocation_is_finished_though_its_caller_has_left() {
    let house = House::plain().await;
    let own = house.workspace(json!({"id": "a", "name": "A"})).await;
    let made = house.post("/workspaces/a/tokens", &own, Value::Null).await;
    let token = made.text("token");
    assert_eq!(house.get("/workspaces/a", &token).await.status, 200);
    let one = format!("/workspaces/a/tokens/{}", made.text("id"));
    let left = house.call("DELETE", &one, &own, Value::Null);
    // Polled once, then dropped.
    assert!(left.now_or_never().is_none());
    let refused = async {
        while house.get("/workspaces/a", &token).await.status != 401 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let refused = tokio::time::timeout(Duration::from_secs(60), refused);
    refused.await.unwrap();
}

#[tokio::test]
async fn an_org_token_stays_in_its_org() {
    let house = House::plain().await;
    let made = house
        .post("/orgs/acme/tokens", house.admin(), json!({"note": "ci"}))
        .await;
    assert_eq!(made.status, 201);
    let org = made.text("token");
    let created = house.post("/workspaces", &org, json!({"id": "a", "name": "A"}));
    let created = created.await;
    assert_eq!(created.json["org"], "acme");
    assert_eq!(house.get("/workspaces/a", &org).await.status, 200);
    house
        .workspace(json!({"id": "s", "name": "S", "org": "else"}))
        .await;
    for (path, body) in [
        ("/workspaces", json!({"name": "B", "org": "else"})),
        ("/workspaces", json!({"name": "B", "parent_id": "s"})),
        ("/workspaces", json!({"name": "B", "parent_id": "nowhere"})),
        ("/registry/register", registration("s")),
        ("/canvas/tokens", json!({"user": "ada", "org": "else"})),
        (
            "/canvas/tokens",
            json!({"user": "ada", "workspaces": ["s"]}),
        ),
        ("/orgs/acme/tokens", Value::Null),
    ] {
        let refused = house.post(path, &org, body.clone()).await;
        assert_eq!(refused.reason(), "not_permitted", "{path} {body}");
    }
    let registered = house
        .post("/registry/register", &org, registration("new"))
        .await;
    assert_eq!(registered.status, 200, "{}", registered.json);
    assert_eq!(registered.text("token").len(), 48);

    let listed = house.get("/orgs/acme/tokens", house.admin()).await;
    assert_eq!(listed.json["tokens"][0]["note"], "ci");
    let one = format!("/orgs/acme/tokens/{}", made.text("id"));
    let revoked = house.call("DELETE", &one, house.admin(), Value::Null);
    assert_eq!(revoked.await.status, 200);
    let refused = house.get("/workspaces/a", &org).await;
    assert_eq!(refused.reason(), "unauthenticated");
}

#[tokio::test]
async fn a_canvas_token_reaches_what_it_names() {
    let house = House::plain().await;
    for id in ["a", "b"] {
        house
            .workspace(json!({"id": id, "name": id, "org": "acme"}))
            .await;
    }
    let ask = |body| house.post("/canvas/tokens", house.admin(), body);
    let org = json!({"user": "ada", "org": "acme", "ttl_seconds": 60});
    let all = ask(org).await;
    assert_eq!(all.status, 201);
    assert_eq!(all.json["expires_in"], 60);
    let one = json!({"user": "ada", "org": "acme", "workspaces": ["a"]});
    let one = ask(one).await;
    let (all, one) = (all.text("token"), one.text("token"));
    assert_eq!(house.get("/workspaces/b", &all).await.status, 200);
    let read = house.get("/workspaces/a", &one).await;
    assert_eq!(read.json["url"], Value::Null);
    assert_eq!(
        house.get("/workspaces/b", &one).await.reason(),
        "not_permitted"
    );
    for (body, reason) in [
        (json!({"user": ""}), "invalid_params"),
        (
            json!({"user": "ada", "ttl_seconds": 86401}),
            "invalid_params",
        ),
        (json!({"user": "ada", "workspaces": []}), "invalid_params"),
        (
            json!({"user": "ada", "workspaces": ["a b"]}),
            "invalid_workspace_id",
        ),
        (json!({"org": "acme"}), "invalid_params"),
    ] {
        assert_eq!(ask(body.clone()).await.reason(), reason, "{body}");
    }
}
