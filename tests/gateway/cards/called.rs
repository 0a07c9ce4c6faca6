//! What a card says of calls: at which path, of which generation, and whether push notifications are sent.

use serde_json::{Value, json};

use super::{add, asked_for, card_of, patch, served};
use crate::explain::step;
use crate::harness::{Agent, CALL, Gateway, Pair, Request, Seat, Step, card, card_1_0, ok_json};

const WELL_KNOWN: &str = "/.well-known/agent-card.json";
const OK: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#;

async fn registered(gateway: &Gateway, id: &str, agent: Agent, card: Value) -> (Seat, Value) {
    let enrolment = gateway.found(id).await;
    let body = json!({"id": id, "url": agent.url(), "agent_card": card});
    let request = Request::post("/registry/register", body.to_string()).bearer(&enrolment);
    let answer = gateway.call(&request).await.has(200);
    let token = answer.json()["token"].as_str().unwrap().to_owned();
    let (id, said) = (id.into(), answer.json());
    (Seat { id, token, agent }, said)
}

async fn call_fact(gateway: &Gateway, id: &str) -> Value {
    let path = format!("/explain?caller={id}&target={id}");
    let explained = gateway.admin_get(&path).await.unwrap().json();
    step(&explained, "call")["fact"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_registered_by_its_host_is_called_where_its_card_says() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let agent = Agent::json(OK).await;
    let mut at_rpc = card("rpc");
    at_rpc["url"] = json!(format!("http://localhost:{}/rpc", agent.port));
    at_rpc["supportedInterfaces"] = json!([{"url": format!("http://127.0.0.1:{}/v1/rpc", agent.port),
        "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]);
    let (seat, said) = registered(&gateway, "rpc", agent, at_rpc.clone()).await;
    assert_eq!(said.get("warning"), None, "{said}");
    let call = |body: &str| Request::post(seat.path(), body).bearer(&seat.token);
    assert_eq!(gateway.call(&call(CALL)).await.status, 200);
    assert_eq!(asked_for(&seat.agent.take()), "/rpc");
    let of_1 = CALL.replace("message/send", "SendMessage");
    assert_eq!(gateway.call(&call(&of_1)).await.status, 200);
    assert_eq!(asked_for(&seat.agent.take()), "/v1/rpc");
    let fact = call_fact(&gateway, "rpc").await;
    assert_eq!(fact["path"], "/rpc", "{fact}");
    let by = fact["path_by"].as_str().unwrap();
    assert!(by.contains("registered card"), "{fact}");

    // A card of another server does not say where calls go, and the agent is told.
    let agent = Agent::json(OK).await;
    let (seat, said) = registered(&gateway, "elsewhere", agent, at_rpc).await;
    let warning = said["warning"].as_str().unwrap();
    assert!(warning.contains("another host or port"), "{said}");
    let call = Request::post(seat.path(), CALL).bearer(&seat.token);
    assert_eq!(gateway.call(&call).await.status, 200);
    assert_eq!(asked_for(&seat.agent.take()), "/");
    let fact = call_fact(&gateway, "elsewhere").await;
    assert!(fact["path_warning"].is_string(), "{fact}");
    assert_eq!(fact["path_by"], "the registered url");
}

/// The card's word comes before the look-up of a name that may mean nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_card_has_no_push_is_asked_for_none() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let mut without = card("silent");
    without["capabilities"] = json!({"pushNotifications": false});
    let shown = without.to_string();
    let agent = Agent::scripted(move |request| {
        if request.head.starts_with("GET ") {
            return vec![Step::Write(served(request, WELL_KNOWN, &shown))];
        }
        vec![Step::Write(ok_json(OK))]
    })
    .await;
    let url = agent.url();
    let (seat, _) = registered(&gateway, "silent", agent, without).await;
    // An operator adds it without a card: then the one that it serves counts.
    add(&gateway, "fetched", json!({"url": url})).await;
    let config = json!({"url": "http://no-such-name.invalid/hook"});
    let message = json!({"kind": "message", "messageId": "m", "role": "user", "parts": []});
    let with_push =
        json!({"message": message, "configuration": {"pushNotificationConfig": config}});
    let set = json!({"taskId": "t", "pushNotificationConfig": config});
    for (method, params) in [
        ("message/send", with_push),
        ("tasks/pushNotificationConfig/set", set),
    ] {
        let body = json!({"jsonrpc": "2.0", "id": "c-1", "method": method, "params": params});
        for id in ["silent", "fetched"] {
            let request = Request::post(format!("/workspaces/{id}/a2a"), body.to_string());
            let answer = gateway.as_operator(request).await;
            let shown = format!("{id} {method}: {}", answer.text());
            assert_eq!(answer.reason(), "push_not_supported", "{shown}");
            assert_eq!(answer.json()["error"]["code"], -32_003, "{shown}");
        }
    }
    assert_eq!(seat.agent.calls(), 0, "it was called");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_says_which_generations_its_agent_speaks() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let forms = ["0.3 JSONRPC", "1.0 JSONRPC"];
    for (id, card, speaks, [own, other], label) in [
        ("old", card("old"), "0.x", forms, "1.0>0.3"),
        (
            "new",
            card_1_0("new"),
            "1.x",
            [forms[1], forms[0]],
            "0.3>1.0",
        ),
    ] {
        let none = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        let agent = Agent::scripted(move |_| vec![Step::write(none)]);
        registered(&gateway, id, agent.await, card).await;
        let answer = card_of(&gateway, id).await;
        answer.has_field_for(&format!("{id}: translated"), "x-a2a-speaks", "0.x, 1.x");
        let bridge = call_fact(&gateway, id).await["bridge"].clone();
        assert_eq!(bridge["mode"], "auto", "{bridge}");
        assert_eq!(bridge["agent_speaks"], json!([own]), "{bridge}");
        assert_eq!(bridge["calls"][other], label, "{bridge}");
        patch(&gateway, id, json!({"bridge": "off"})).await;
        let answer = card_of(&gateway, id).await;
        assert_eq!(answer.field("x-a2a-speaks"), Some(speaks), "{id}");
        let bridge = call_fact(&gateway, id).await["bridge"].clone();
        assert_eq!(bridge["mode"], "off", "{bridge}");
        assert_eq!(bridge["calls"][own], Value::Null, "{bridge}");
        assert_eq!(bridge["calls"][other], "version_not_supported");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_that_is_provisioned_again_is_not_told_that_it_never_registered() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let (seat, _) = registered(&gateway, "again", Agent::json(OK).await, card("again")).await;
    let status = json!({"status": "provisioning"});
    gateway.patch("again", status).await.has(200);
    let call = Request::post(seat.path(), CALL).bearer(&seat.token);
    let answer = gateway.call(&call).await;
    assert_eq!(answer.reason(), "workspace_restarting");
    let text = answer.text();
    assert!(!text.contains("has not registered yet"), "{text}");
    answer.says("registered again");
}
