//! Every route × every role of an operator, on the public and the admin listener: what a role does not cover is refused,
//! names the role that it takes, and changes nothing.

use a2a_gateway::admin::{API_ROUTES, CONSOLE_ROUTES};
use serde_json::{Value, json};

use super::Case;
use super::table::Who::Operator;
use super::table::*;
use crate::harness::{ADMIN, Answer, Connection, Gateway, Request, assert_refusal};
use crate::on_both_pairs;

/// The roles, each of which may do all that those before it may.
pub(super) const ROLES: [&str; 3] = ["read", "operate", "admin"];

/// What `operate` is needed for. Of all other routes those that are no GET need `admin`, but for [`READ`].
const OPERATE: [(&str, &str); 9] = [
    A2A,
    ("POST", "/workspaces/{id}/pause"),
    ("POST", "/workspaces/{id}/resume"),
    ("POST", "/registry/deregister"),
    ("POST", "/registry/drain"),
    ("POST", "/grants"),
    ("DELETE", "/grants/{grant_id}"),
    ("POST", "/stops"),
    ("DELETE", "/stops/{stop_id}"),
];

/// What only reads, by another method than GET.
const READ: [(&str, &str); 4] = [
    ("POST", "/registry/check-access"),
    ("POST", "/ws/tickets"),
    ("POST", "/console/session"),
    ("DELETE", "/console/session"),
];

pub(super) fn needed(method: &str, pattern: &str) -> &'static str {
    let route = (method, pattern);
    if method == "GET" || READ.contains(&route) {
        "read"
    } else if OPERATE.contains(&route) {
        "operate"
    } else {
        "admin"
    }
}

pub(super) fn covers(role: &str, needed: &str) -> bool {
    let rank = |role| ROLES.iter().position(|one| *one == role);
    rank(role) >= rank(needed)
}

pub(super) async fn token(gateway: &Gateway, role: &str) -> String {
    let body = json!({"role": role, "label": format!("{role} only")});
    let request = Request::post("/operators/tokens", body.to_string());
    let made = gateway.as_operator(request).await;
    assert_eq!(made.status, 201, "{}", made.text());
    made.json()["token"].as_str().unwrap().to_owned()
}

/// The role that a refusal says is needed, in any of the forms of a body.
fn said(answer: &Answer) -> Value {
    let body = answer.json();
    let lists = [&body["error"]["data"], &body["error"]["details"]];
    let metadata = lists.map(|list| list[0]["metadata"]["needed_role"].clone());
    let plain = [body["needed_role"].clone()].into_iter();
    let mut all = plain.chain(metadata).filter(|said| !said.is_null());
    all.next().unwrap_or_default()
}

/// Whether the console serves a route in its place below `/api`, or one of its own.
pub(super) async fn at_console(
    case: &Case,
    (method, pattern): (&str, &str),
    token: &str,
    query: &str,
) -> Answer {
    let at = case.gateway.admin;
    let mut request = match pattern.strip_prefix("/api") {
        Some(inner) => {
            let mut request = case.request(method, inner, Operator);
            request.path = format!("/api{}", request.path);
            request
        }
        None => {
            let path = pattern.replace("{id}", "target");
            let mut request = Request::post(path, r#"{"active":"another"}"#);
            request.method = method.to_owned();
            request
        }
    };
    request.path.push_str(query);
    request = request.bearer(token).field("X-Request-Id", "seen");
    let mut connection = Connection::open(at).await;
    connection.send(&request.wire(&at.to_string())).await;
    if pattern == "/console/feed" {
        return connection.read_head().await.expect("a head");
    }
    connection.try_answer().await.expect("an answer")
}

on_both_pairs! {
    async fn each_role_may_what_it_covers_and_changes_nothing_else(pair: Pair) {
        let mut case = Case::new(pair).await;
        let mut tokens = Vec::new();
        for role in ROLES {
            tokens.push((role, token(&case.gateway, role).await));
        }
        let table = TABLE.iter().filter(|row| row.3.contains(&Operator));
        let before = case.state().await;
        for row in table.clone() {
            let needed = needed(row.0, row.1);
            for (role, token) in tokens.iter().filter(|(role, _)| !covers(role, needed)) {
                let request = case.request(row.0, row.1, Operator).bearer(token);
                let request = request.field("X-Request-Id", "seen");
                let answer = case.gateway.call(&request).await;
                let what = format!("{} {} with {role}: {}", row.0, row.1, answer.text());
                assert_eq!(answer.status, 403, "{what}");
                assert_refusal(&answer, &request.path, "seen", "not_permitted", &what);
                assert_eq!(said(&answer), needed, "{what}");
            }
        }
        for (method, pattern) in API_ROUTES.iter().chain(CONSOLE_ROUTES) {
            let needed = needed(method, pattern.strip_prefix("/api").unwrap_or(pattern));
            for (role, token) in &tokens {
                let may = covers(role, needed);
                // Those that change something are below, on the other listener, with the same handlers.
                if may && needed != "read" {
                    continue;
                }
                let answer = at_console(&case, (method, pattern), token, "").await;
                let what = format!("{method} {pattern} with {role}: {}", answer.text());
                if may {
                    assert_eq!(answer.status, 200, "{what}");
                } else {
                    assert_eq!((answer.status, said(&answer)), (403, json!(needed)), "{what}");
                }
            }
        }
        assert_eq!(case.state().await, before, "a refused request changed something");
        assert_eq!(case.agent.count(), 0, "a refused request reached the agent");
        for row in table {
            let needed = needed(row.0, row.1);
            for (role, token) in tokens.iter().filter(|(role, _)| covers(role, needed)) {
                let request = case.request(row.0, row.1, Operator).bearer(token);
                let answer = case.answer(&request).await;
                assert_eq!(answer.status, row.2, "{} {} with {role}: {}", row.0, row.1, answer.text());
                if row.0 == "DELETE" {
                    case.renew_doomed().await;
                }
            }
        }
        assert_eq!(case.agent.count(), 2);
    }

    async fn a_role_holds_on_every_form_of_a_call(pair: Pair) {
        let case = Case::new(pair).await;
        let read = token(&case.gateway, "read").await;
        let body = json!({"message": {"role": "ROLE_USER", "messageId": "1", "parts": [{"text": "x"}]}});
        for path in [
            "/workspaces/target/a2a/message:send",
            "/workspaces/target/a2a/v1/message:stream",
            "/workspaces/target/a2a/tasks/t:cancel",
            "/workspaces/target/a2a/tasks/t/pushNotificationConfigs",
        ] {
            let request = Request::post(path, body.to_string()).bearer(&read);
            let answer = case.gateway.call(&request).await;
            assert_eq!((answer.status, said(&answer)), (403, json!("operate")), "{path}: {}", answer.text());
        }
        assert_eq!(case.agent.count(), 0);
        // A card is read, and so is a task.
        let card = Request::get("/workspaces/target/a2a/.well-known/agent-card.json").bearer(&read);
        assert_eq!(case.gateway.call(&card).await.status, 200);
        let task = Request::get("/workspaces/target/a2a/tasks/t").bearer(&read);
        let task = case.gateway.call(&task).await;
        assert_ne!(task.status, 403, "{}", task.text());
        let explained = |caller: &str| format!("/explain?caller={caller}&target=target");
        let read = case.gateway.admin_get(&explained("operator:read")).await.unwrap().json();
        assert_eq!(read["reason"], "not_permitted", "{read:#}");
        assert!(read["message"].as_str().unwrap().contains("`operate`"), "{read:#}");
        let operate = case.gateway.admin_get(&explained("operator:operate")).await.unwrap().json();
        assert_eq!(operate["reason"], Value::Null, "{operate:#}");
        let other = case.gateway.admin_get(&explained("operator:other")).await.unwrap();
        assert_eq!((other.status, other.reason()), (400, "invalid_params".to_owned()));
    }

    async fn only_an_admin_makes_tokens_and_a_role_is_named(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let operate = token(&gateway, "operate").await;
        for body in [json!({}), json!({"role": "root"}), json!({"role": "Admin"}), json!({"role": "read", "label": ""}), json!({"role": "read", "expires_in": 0})] {
            let request = Request::post("/operators/tokens", body.to_string());
            let answer = gateway.as_operator(request).await;
            assert_eq!((answer.status, answer.reason()), (400, "invalid_params".to_owned()), "{body}");
        }
        let me = gateway.call(&Request::get("/operators/me").bearer(&operate)).await.json();
        assert_eq!((&me["role"], &me["label"]), (&json!("operate"), &json!("operate only")));
        let list = gateway.call(&Request::get("/operators/tokens").bearer(&operate)).await.json();
        assert_eq!(list["tokens"].as_array().unwrap().len(), 1, "{list}");
        assert_eq!(list["tokens"][0]["id"], me["token_id"]);
        assert_eq!(list["tokens"][0]["role"], "operate");
        let own = gateway.call(&Request::get("/operators/me").bearer(ADMIN)).await.json();
        assert_eq!(own, json!({"role": "admin"}));
    }
}
