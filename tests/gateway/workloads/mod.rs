//! Tokens of platforms as credentials of workspaces: a Kubernetes service account token, a SPIFFE JWT-SVID. What they
//! let a workload do, which are refused and why, and what ends them.

mod ends;
mod refused;

use serde_json::{Value, json};

use crate::audit::recorded;
use crate::events::ticket;
use crate::harness::issuer::{AUDIENCE, Issuer, Key};
use crate::harness::watcher::{Socket, handshake};
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Gateway, Pair, Request, answering, assert_refusal, card,
    until_holds,
};
use crate::matrix::{Case, TABLE, Who};
use crate::on_embedded;

pub(crate) const CLUSTER: &str = "https://kubernetes.default.svc.cluster.local";
const SPIRE: &str = "https://oidc.spire.example.org";

/// A table of `auth.workspace_issuers`: `more` over what the issuer says itself.
pub(crate) fn platform(issuer: &Issuer, more: Value) -> Value {
    let mut table = issuer.table();
    let more = more.as_object().unwrap().clone();
    table.as_object_mut().unwrap().extend(more);
    table
}

/// The rules for service accounts of all namespaces.
pub(crate) fn kubernetes() -> Value {
    json!({"claims": {"sub": "system:serviceaccount:{namespace}:{name}"}, "workspace": "{name}", "org": "{namespace}"})
}

/// Claims of a token that a kubelet projects into a pod.
pub(crate) fn claims(namespace: &str, name: &str) -> Value {
    let now = jsonwebtoken::get_current_timestamp();
    json!({
        "aud": [AUDIENCE], "exp": now + 600, "iat": now, "nbf": now, "iss": CLUSTER,
        "jti": uuid::Uuid::now_v7().to_string(),
        "kubernetes.io": {
            "namespace": namespace,
            "node": {"name": "node-1", "uid": "4a2b"},
            "pod": {"name": format!("{name}-0"), "uid": "9f1c"},
            "serviceaccount": {"name": name, "uid": "77aa"},
        },
        "sub": format!("system:serviceaccount:{namespace}:{name}"),
    })
}

/// As an API server signs: without `typ`.
pub(crate) fn account_token(key: &Key, claims: &Value) -> String {
    let head = json!({"alg": "RS256", "kid": key.kid});
    key.sign_text(&head.to_string(), &claims.to_string())
}

fn register(id: &str, agent: &Agent, token: &str) -> Request {
    let body = json!({"id": id, "url": agent.url(), "agent_card": card(id)});
    Request::post("/registry/register", body.to_string()).bearer(token)
}

fn beat(id: &str, token: &str) -> Request {
    let body = json!({"workspace_id": id}).to_string();
    Request::post("/registry/heartbeat", body).bearer(token)
}

fn call(target: &str, token: &str) -> Request {
    Request::post(format!("/workspaces/{target}/a2a"), CALL).bearer(token)
}

async fn ok(gateway: &Gateway, request: &Request) -> Answer {
    let answer = gateway.call(request).await;
    let what = format!("{} {}: {}", request.method, request.path, answer.text());
    assert!(answer.status < 300, "{what}");
    answer
}

async fn refused(gateway: &Gateway, request: &Request, status: u16, part: &str) {
    let answer = gateway.call(request).await;
    let text = answer.text();
    let what = format!("{} {}: {text}", request.method, request.path);
    assert_eq!(answer.status, status, "{what}");
    assert!(text.contains(part), "{what}");
}

/// Asks until the keys of the issuer are there.
async fn until(gateway: &Gateway, request: impl Fn() -> Request, status: u16) {
    let is_so = async || gateway.call(&request()).await.status == status;
    until_holds("the keys", is_so).await;
}

/// A gateway that trusts the issuer by these rules, with the workspaces `dev` and `target` of `acme`.
async fn with(pair: Pair, tables: &[Value]) -> (Gateway, Agent) {
    let tables = Value::from(tables).to_string();
    let builder = Builder::new(pair).set("auth.workspace_issuers", &tables);
    let gateway = builder.start().await;
    let workspace = |id: &str| json!({"id": id, "name": id, "org": "acme"});
    gateway.create(workspace("dev")).await;
    let agent = answering().await;
    let target = gateway.settle(workspace("target"), card("target"), agent);
    let agent = target.await.agent;
    (gateway, agent)
}

on_embedded! {
    async fn a_service_account_token_enrols_and_is_the_workspaces_credential() {
        let key = Key::rsa("k8s-1");
        let issuer = Issuer::start(CLUSTER, &[&key]).await;
        let (gateway, target) = with(Pair::Embedded, &[platform(&issuer, kubernetes())]).await;
        let own = Agent::json("{}").await;
        let token = || account_token(&key, &claims("acme", "dev"));
        until(&gateway, || register("dev", &own, &token()), 200).await;
        let again = ok(&gateway, &register("dev", &own, &token())).await.json();
        assert_eq!(again["status"], "registered");
        assert_eq!((&again["token"], &again["auth_token"]), (&Value::Null, &Value::Null));
        let list = Request::get("/workspaces/dev/tokens").bearer(&token());
        assert_eq!(ok(&gateway, &list).await.json()["tokens"], json!([]), "no static secret");
        let token = token();
        assert_eq!(ok(&gateway, &beat("dev", &token)).await.json()["status"], "ok");
        ok(&gateway, &call("target", &token).field("X-Workspace-ID", "dev")).await;
        assert_eq!(target.take().field("x-workspace-id"), Some("dev"));
        let other = call("target", &token).field("X-Workspace-ID", "target");
        refused(&gateway, &other, 403, "X-Workspace-ID names a workspace").await;
        refused(&gateway, &register("target", &own, &token), 403, "registers itself").await;
        refused(&gateway, &beat("target", &token), 403, "not_permitted").await;
        // It would outlive the issuer.
        let made = Request::post("/workspaces/dev/tokens", r#"{"expires_in":1}"#).bearer(&token);
        refused(&gateway, &made, 403, "the token of a platform makes no tokens").await;
        let ticket = ticket(&gateway, &token).await;
        Socket::open(gateway.public, &handshake(&format!("/ws?ticket={ticket}"))).await;
        let record = &recorded(&gateway, "caller=dev&method=send_message", 1).await[0];
        assert_eq!(record["credential_kind"], "workload");
        assert_eq!(record["credential_prefix"], token[..8]);
        assert!(!gateway.log().contains(&token[..60]), "a token is in the log");
    }

    async fn a_workspace_must_exist_before_its_workload() {
        let key = Key::rsa("k8s-1");
        let issuer = Issuer::start(CLUSTER, &[&key]).await;
        let (gateway, _agent) = with(Pair::Embedded, &[platform(&issuer, kubernetes())]).await;
        let own = Agent::json("{}").await;
        let token = account_token(&key, &claims("acme", "late"));
        until(&gateway, || register("late", &own, &token), 404).await;
        refused(&gateway, &register("late", &own, &token), 404, "workspace_not_found").await;
        let absent = "the workspace `late`, which does not exist";
        refused(&gateway, &beat("late", &token), 401, absent).await;
        refused(&gateway, &call("target", &token), 401, absent).await;
        let enrolment = gateway.create(json!({"id": "late", "name": "late", "org": "acme"})).await;
        ok(&gateway, &register("late", &own, &token)).await;
        ok(&gateway, &call("target", &token)).await;
        // The enrolment token ended with the registration.
        refused(&gateway, &register("late", &own, &enrolment), 401, "unauthenticated").await;
        // In another org it is another tenant's.
        gateway.patch("late", json!({"org": "globex"})).await.has(200);
        for request in [beat("late", &token), register("late", &own, &token)] {
            refused(&gateway, &request, 401, "not in the org that the token names").await;
        }
        gateway.patch("late", json!({"org": "acme"})).await;
        ok(&gateway, &beat("late", &token)).await;
        let gone = Request::new("DELETE", "/workspaces/late");
        assert_eq!(gateway.as_operator(gone).await.status, 200);
        refused(&gateway, &beat("late", &token), 401, "unauthenticated").await;
        refused(&gateway, &register("late", &own, &token), 410, "workspace_removed").await;
    }

    async fn a_workload_may_what_its_workspace_may_on_every_route() {
        let key = Key::p256("spire-1");
        let issuer = Issuer::start(SPIRE, &[&key]).await;
        let rules = json!({"claims": {"sub": "spiffe://example.org/ns/agents/sa/{id}"}, "workspace": "{id}"});
        let builder = Builder::new(Pair::Embedded)
            .set("auth.workspace_issuers", &json!([platform(&issuer, rules)]).to_string());
        let case = Case::on(builder.start().await).await;
        let svid = |id: &str| {
            key.sign(&issuer.claims(json!({"sub": format!("spiffe://example.org/ns/agents/sa/{id}")})))
        };
        let beat = || beat("target", &svid("target"));
        until(&case.gateway, beat, 200).await;
        for row in TABLE {
            for (who, id) in [(Who::Own, "target"), (Who::Sibling, "sibling"), (Who::Stranger, "stranger")] {
                let request = case.request(row.0, row.1, who).bearer(&svid(id));
                let answer = case.answer(&request).await;
                let makes_tokens = (row.0, row.1) == ("POST", "/workspaces/{id}/tokens");
                let may = row.3.contains(&who) && !makes_tokens;
                let expected = if may { row.2 } else { 403 };
                let what = format!("{} {} as the workload {id}", row.0, row.1);
                assert_eq!(answer.status, expected, "{what}: {}", answer.text());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_knows_that_a_platform_may_prove_a_caller() {
    let key = Key::rsa("k8s-1");
    let issuer = Issuer::start(CLUSTER, &[&key]).await;
    let (gateway, _agent) = with(Pair::Embedded, &[platform(&issuer, kubernetes())]).await;
    let own = Agent::json("{}").await;
    let asked = "/explain?caller=dev&target=target";
    let caller = async || {
        let explained = gateway.admin_get(asked).await.unwrap().json();
        assert_eq!(explained["admitted"], true, "{explained:#}");
        let steps = explained["steps"].as_array().unwrap().clone();
        let step = steps.iter().find(|step| step["step"] == "caller").unwrap();
        step["fact"]["credentials"].clone()
    };
    let before = caller().await;
    assert_eq!(before["complete"], false);
    assert_eq!(before["known"], 0);
    assert_eq!(before["issuers"], json!([CLUSTER]));
    let token = account_token(&key, &claims("acme", "dev"));
    until(&gateway, || register("dev", &own, &token), 200).await;
    let after = caller().await;
    assert_eq!(after["prefixes"], json!([token[..8]]), "{after}");
}
