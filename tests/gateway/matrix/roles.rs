//! Every route × every role of an operator, on the public and the admin listener: what a role does not cover is
//! refused, names the role that it takes, and changes nothing.

use a2a_gateway::admin::{API_ROUTES, CONSOLE_ROUTES};
use serde_json::{Value, json};

use super::Case;
use super::table::Who::Operator;
use super::table::*;
use crate::audit::recorded;
use crate::harness::watcher::Feed;
use crate::harness::{ADMIN, Answer, Connection, Gateway, Pair, Request, assert_refusal};
use crate::on_embedded;

/// The roles, each of which may do all that those before it may.
pub(super) const ROLES: [&str; 3] = ["read", "operate", "admin"];

/// What `operate` is needed for. Of all other routes those that are no GET need `admin`, but for [`READ`].
const OPERATE: [(&str, &str); 10] = [
    A2A,
    ("POST", "/workspaces/{id}/pause"),
    ("POST", "/workspaces/{id}/resume"),
    ("POST", "/registry/deregister"),
    ("POST", "/registry/drain"),
    ("POST", "/grants"),
    ("DELETE", "/grants/{grant_id}"),
    ("POST", "/stops"),
    ("DELETE", "/stops/{stop_id}"),
    ("POST", "/revocations"),
];

/// The events of a stream are content.
const STREAM: &str = "/workspaces/{id}/streams/{stream}";

/// What only reads, by another method than GET.
const READ: [(&str, &str); 5] = [
    ("POST", "/policy/prove"),
    ("POST", "/registry/check-access"),
    ("POST", "/ws/tickets"),
    ("POST", "/console/session"),
    ("DELETE", "/console/session"),
];

pub(super) fn needed(method: &str, pattern: &str) -> &'static str {
    let route = (method, pattern);
    if pattern == STREAM {
        "admin"
    } else if method == "GET" || READ.contains(&route) {
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
    let made = gateway.as_operator(request).await.has(201);
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

/// The payload of the first message to a user that a reader of events gets.
async fn message_to_user(gateway: &Gateway, request: &Request) -> Value {
    let mut feed = Feed::open(gateway.public, request).await;
    loop {
        let mut event = feed.event().await.data;
        if event["event"] == "AGENT_MESSAGE" {
            return event["payload"].take();
        }
    }
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

on_embedded! {
    async fn each_role_may_what_it_covers_and_changes_nothing_else() {
        let mut case = Case::new(Pair::Embedded).await;
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
                assert_refusal(&answer, &request.path, "seen", "role_required", &what);
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

    async fn a_role_holds_on_every_form_of_a_call() {
        let case = Case::new(Pair::Embedded).await;
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
        // A card is read.
        let card = Request::get("/workspaces/target/a2a/.well-known/agent-card.json").bearer(&read);
        assert_eq!(case.gateway.call(&card).await.status, 200);
        let explained = |caller: &str| format!("/explain?caller={caller}&target=target");
        let read = case.gateway.admin_get(&explained("operator:read")).await.unwrap().json();
        assert_eq!(read["reason"], "role_required", "{read:#}");
        assert!(read["message"].as_str().unwrap().contains("`operate`"), "{read:#}");
        let operate = case.gateway.admin_get(&explained("operator:operate")).await.unwrap().json();
        assert_eq!(operate["reason"], Value::Null, "{operate:#}");
        let other = case.gateway.admin_get(&explained("operator:other")).await.unwrap();
        assert_eq!((other.status, other.reason()), (400, "invalid_params".to_owned()));
    }

    async fn content_is_for_admins_and_each_look_is_a_record() {
        let case = Case::new(Pair::Embedded).await;
        let gateway = &case.gateway;
        let base = "/workspaces/target/a2a";
        let rpc = |method: &str| {
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": "t", "taskId": "t"}});
            Request::post(base, call.to_string())
        };
        let methods = ["GetTask", "ListTasks", "SubscribeToTask", "GetExtendedAgentCard", "tasks/get", "tasks/resubscribe",
            "agent/getAuthenticatedExtendedCard", "tasks/pushNotificationConfig/get", "vendor/history"];
        let tails = ["tasks", "tasks/t", "v1/tasks/t", "tasks/t:subscribe", "tasks/t/pushNotificationConfigs", "extendedAgentCard", "v1/card"];
        let mut looks: Vec<Request> = methods.into_iter().map(rpc).collect();
        looks.extend(tails.map(|tail| Request::get(format!("{base}/{tail}"))));
        looks.extend(["/workspaces/target/tasks/t", "/tasks/t"].map(Request::get));
        let inbox = || Request::get("/workspaces/target/activity");
        let feed = || inbox().field("Accept", "text/event-stream");
        let delegation = format!("/workspaces/target/delegations/{}", case.delegation);
        let delegations = || ["/workspaces/target/delegations", &delegation].map(Request::get);
        // All events that are kept.
        let events = || Request::get("/events").field("Last-Event-ID", "unknown");
        for role in ["read", "operate"] {
            let token = token(gateway, role).await;
            for look in &looks {
                let answer = gateway.call(&look.clone().bearer(&token)).await;
                let what = format!("{role}: {} {}", look.path, answer.text());
                assert_eq!((answer.status, answer.reason().as_str()), (403, "role_required"), "{what}");
            }
            let entry = &gateway.call(&inbox().bearer(&token)).await.json()[0];
            let streamed = Feed::open(gateway.public, &feed().bearer(&token)).await.event().await.data;
            for entry in [entry, &streamed] {
                assert_eq!((&entry["body_withheld"], entry.get("body")), (&json!(true), Some(&Value::Null)), "{entry}");
                assert_eq!((&entry["request_body"], &entry["activity_type"]), (&Value::Null, &json!("notify")), "{entry}");
            }
            for look in delegations() {
                let answer = gateway.call(&look.bearer(&token)).await.json();
                let shown = answer.get(0).unwrap_or(&answer);
                assert_eq!((&shown["body_withheld"], shown.get("task")), (&json!(true), None), "{shown}");
                assert!(shown["status"].is_string(), "{shown}");
            }
            let withheld = json!({"body": null, "body_withheld": true});
            assert_eq!(message_to_user(gateway, &events().bearer(&token)).await, withheld);
        }
        assert_eq!(case.agent.count(), 0, "a refused look reached the agent");
        // That of the case before, and these.
        let admin = |request: Request| request.bearer(ADMIN);
        let entry = &gateway.call(&admin(inbox())).await.json()[0];
        assert_eq!((&entry["request_body"]["message"], entry.get("body_withheld")), (&json!("told"), None), "{entry}");
        let streamed = Feed::open(gateway.public, &admin(feed())).await.event().await.data;
        assert_eq!(streamed["request_body"]["message"], "told", "{streamed}");
        for look in delegations() {
            let answer = gateway.call(&admin(look)).await.json();
            assert_eq!(answer.get(0).unwrap_or(&answer)["task"], "x", "{answer}");
        }
        assert_eq!(message_to_user(gateway, &admin(events())).await["message"], "told");
        for look in [rpc("tasks/get"), Request::get(format!("{base}/tasks/t"))] {
            assert_eq!(gateway.call(&admin(look)).await.status, 200);
        }
        // An answer that is kept is of the operator who asked.
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message":
            {"kind": "message", "role": "user", "messageId": "m", "parts": [{"kind": "text", "text": "x"}]}}});
        let keyed = || Request::post(base, call.to_string()).field("Idempotency-Key", "k-1");
        for (token, replays) in [(ADMIN, false), (ADMIN, true), (&*token(gateway, "operate").await, false)] {
            let answer = gateway.call(&keyed().bearer(token)).await.has(200);
            assert_eq!(answer.field("idempotent-replay").is_some(), replays);
        }
        let records = recorded(gateway, "event_type=CONTENT_READ", 8).await;
        assert_eq!(records.len(), 8, "{records:#?}");
        assert!(records.iter().all(|record| record["caller"] == "operator:"), "{records:#?}");
        let of = |name: &str, value: &str| records.iter().filter(|record| record[name] == value).count();
        assert_eq!((of("target", "target"), of("method", "get_task"), of("outcome", "done")), (7, 2, 6), "{records:#?}");
    }

    async fn only_an_admin_makes_tokens_and_a_role_is_named() {
        let gateway = Gateway::start(Pair::Embedded).await;
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
