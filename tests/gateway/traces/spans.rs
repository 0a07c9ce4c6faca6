//! What spans say: of calls, streams, refusals, cards, the control plane, calls that are made later.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Case, SPAN, TRACE, context_of, counted, traced, two};
use crate::harness::collector::{Collector, Span};
use crate::harness::sidecar::{Guarded, call};
use crate::harness::{
    ADMIN, Agent, CALL, Connection, LAST_CHUNK, Request, SSE_HEAD, Step, answering, chunk, ok_json,
    until_found,
};
use crate::on_both_pairs;

const STREAM: &str = r#"{"jsonrpc":"2.0","id":"s-1","method":"message/stream","params":{"message":{"kind":"message","messageId":"m-1","role":"user","parts":[{"kind":"text","text":"hi"}]}}}"#;

fn assert_has(span: &Span, expected: Value) {
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(span.get(key), *value, "{key} of {span:#?}");
    }
}

on_both_pairs! {
    async fn a_call_that_is_made_later_follows_from_the_one_that_was_accepted(pair: Pair) {
        let collector = Collector::start().await;
        let builder = traced(pair, &collector);
        let case = Case::on(collector, builder, answering().await).await;
        let change = |what: &str| Request::post(format!("/workspaces/target/{what}"), "");
        assert_eq!(case.gateway.as_operator(change("pause")).await.status, 200);
        let parent = format!("00-{TRACE}-{}-01", SPAN);
        let fields = [("Prefer", "respond-async"), ("traceparent", parent.as_str()), ("tracestate", "a=1")];
        case.call("kept", &fields).await.has(202);
        assert_eq!(case.gateway.as_operator(change("resume")).await.status, 200);
        let spans = case.collector.await_spans(3, |span| span.trace == TRACE).await;
        let find = |kind: i32| spans.iter().find(|span| span.kind == kind).unwrap();
        let (accepted, made, call) = (find(2), find(5), find(3));
        assert_eq!((accepted.parent.as_str(), &made.parent, &call.parent), (SPAN, &accepted.id, &made.id));
        assert_has(accepted, json!({"http.response.status_code": 202, "a2a.outcome": "answered"}));
        assert_has(made, json!({"a2a.method": "send_message", "a2a.outcome": "answered", "http.route": null}));
        assert_eq!(made.name, "make SendMessage");
        let asked = case.target.agent.take();
        assert_eq!(context_of(&asked), [TRACE.to_owned(), call.id.clone(), "01".into()]);
        assert_eq!(asked.fields("tracestate"), ["a=1"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_one_span_from_the_request_to_its_last_event() {
    let case = Case::with(|_| {
        let event = |n: u8| Step::Write(chunk(format!("data: {{\"n\":{n}}}\n\n")));
        let pause = Step::Wait(Duration::from_millis(300));
        let last = Step::write(LAST_CHUNK);
        vec![Step::write(SSE_HEAD), event(1), pause, event(2), last]
    })
    .await;
    let answer = case.gateway.call(&case.request("s-1", STREAM)).await;
    assert_eq!(answer.events().len(), 2);
    let spans = case.collector.of_request("s-1", 2).await;
    let (server, client) = two(&spans);
    let streamed = json!({"a2a.events": 2, "rpc.method": "SendStreamingMessage"});
    assert_has(server, streamed);
    assert_has(server, json!({"a2a.outcome": "answered"}));
    for span in [server, client] {
        assert!(span.nanos.1 - span.nanos.0 >= 300_000_000, "{span:#?}");
    }
    assert_eq!(case.arrived()[1], client.id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_leaves_ends_both_spans() {
    let event = || Step::write(chunk("data: 1\n\n"));
    let case = Case::with(move |_| vec![Step::write(SSE_HEAD), event(), Step::Hang]).await;
    let mut connection = Connection::open(case.gateway.public).await;
    connection.ask(&case.request("left", STREAM)).await;
    let open = "a2a_gateway_open_streams";
    case.gateway.until_counted(open, &[], 1.0).await;
    drop(connection);
    let spans = case.collector.of_request("left", 2).await;
    let (server, client) = two(&spans);
    let left = json!({"a2a.outcome": "caller_left", "error.type": null});
    assert_has(server, left);
    assert_eq!((server.status, client.status), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_say_why_and_only_what_reached_the_agent_has_a_call() {
    let case = Case::new().await;
    let agent = Agent::json("{}").await;
    case.gateway.seat("stranger", "caller", agent).await;
    let at = |id: &str, path: &str| Request {
        path: path.to_owned(),
        ..case.request(id, CALL)
    };
    let unproven = case.request("no-proof", CALL).without("authorization");
    let nobody = at("nobody", "/workspaces/nobody/a2a");
    let no_id = at("no-id", "/workspaces/a%20b/a2a");
    let no_json = case.request("no-json", "{");
    for (id, request, reason, status, code) in [
        ("no-proof", unproven, "unauthenticated", 401, "-32000"),
        ("no-json", no_json, "parse_error", 400, "-32700"),
        ("nobody", nobody, "not_permitted", 403, "-32000"),
        ("no-id", no_id, "invalid_workspace_id", 400, "-32600"),
    ] {
        let answer = case.gateway.call(&request).await;
        let told = (answer.status, answer.reason());
        assert_eq!(told, (status, reason.to_owned()), "{id}");
        let spans = case.collector.of_request(id, 1).await;
        assert_eq!(spans.len(), 1, "{id}: {spans:#?}");
        assert_eq!(spans[0].status, 0, "{id}");
        let refused = json!({
            "error.type": reason, "a2a.outcome": reason, "http.response.status_code": status,
            "rpc.response.status_code": code, "http.route": "/workspaces/{id}/a2a",
        });
        assert_has(&spans[0], refused);
    }
    assert_eq!(case.target.agent.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_fails_shows_in_the_call_and_above() {
    let case = Case::with(|request| {
        if request.text().contains("break") {
            return vec![Step::write("HTTP/1.1 banana\r\n\r\n"), Step::Close];
        }
        vec![Step::write(
            "HTTP/1.1 500 No\r\nContent-Length: 11\r\n\r\n{\"error\":1}",
        )]
    })
    .await;
    let ended = |status: Value, error: &str| json!({"http.response.status_code": status, "error.type": error});
    let broken = case.request("broken", &CALL.replace("hi", "break"));
    let broken = case.gateway.call(&broken).await;
    assert_eq!(broken.reason(), "agent_protocol_error");
    let spans = case.collector.of_request("broken", 2).await;
    let (server, client) = two(&spans);
    assert_has(server, ended(json!(502), "agent_protocol_error"));
    assert_has(client, ended(json!(null), "agent_protocol_error"));
    assert_eq!((server.status, client.status), (2, 2));

    case.call("passed", &[]).await.has(500);
    let spans = case.collector.of_request("passed", 2).await;
    let (server, client) = two(&spans);
    assert_has(server, ended(json!(500), "500"));
    assert_has(server, json!({"a2a.outcome": "answered"}));
    assert_has(client, ended(json!(500), "500"));
    assert_eq!((server.status, client.status), (2, 2));

    // Nobody listens there any more, soon: connections that were open may end in the middle of a call.
    drop(case.target.agent);
    let mut tries = 0;
    let gone = until_found("nobody listens", async || {
        tries += 1;
        let id = format!("gone-{tries}");
        let request = Request::post("/workspaces/target/a2a", CALL).bearer(&case.caller.token);
        let request = request.field("X-Request-Id", &id);
        let answer = case.gateway.call(&request).await;
        // Its own answer, while it still gives one, is a 500.
        let is_gone = answer.status == 502 && answer.reason() == "agent_unreachable";
        is_gone.then_some(id)
    });
    let spans = case.collector.of_request(&gone.await, 2).await;
    assert_has(two(&spans).1, ended(json!(null), "agent_unreachable"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_answers_in_the_servers_span_alone() {
    let case = Case::new().await;
    case.gateway.poller("poller").await;
    let request = Request::post("/workspaces/poller/a2a", CALL).bearer(&case.caller.token);
    let request = request.field("X-Request-Id", "polled");
    case.gateway.call(&request).await.has(200);
    let spans = case.collector.of_request("polled", 1).await;
    assert_eq!(spans.len(), 1);
    assert_has(
        &spans[0],
        json!({"a2a.callee": "poller", "a2a.outcome": "answered"}),
    );
    assert_has(&spans[0], json!({"gen_ai.agent.id": "poller"}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cards_and_the_control_plane_have_spans_with_their_routes() {
    let case = Case::new().await;
    let get = |path: &str, id: &str| Request::get(path).bearer(ADMIN).field("X-Request-Id", id);
    let of_one = "/workspaces/{id}";
    let secret = "/workspaces/target?secret=planted-query";
    let nowhere = "/nowhere/planted-path-of-a-caller";
    for (path, id, route, status, reason) in [
        (secret, "ws", of_one, 200, None),
        (
            "/workspaces/nobody",
            "none",
            of_one,
            404,
            Some("workspace_not_found"),
        ),
        (nowhere, "un", "unmatched", 404, Some("not_found")),
    ] {
        let answer = case.gateway.call(&get(path, id)).await;
        assert_eq!(answer.status, status, "{path}");
        let spans = case.collector.of_request(id, 1).await;
        let named = (spans[0].kind, &*spans[0].name);
        assert_eq!(named, (2, &*format!("GET {route}")));
        let read = json!({
            "http.request.method": "GET", "http.route": route, "http.response.status_code": status,
            "error.type": reason, "rpc.system.name": null,
        });
        assert_has(&spans[0], read);
    }
    let path = "/workspaces/target/.well-known/agent-card.json";
    case.gateway.call(&get(path, "card")).await.has(200);
    let spans = case.collector.of_request("card", 1).await;
    let name = "GET /workspaces/{id}/.well-known/agent-card.json";
    assert_eq!(spans[0].name, name);
    let card = json!({"a2a.method": "agent_card", "rpc.system.name": null});
    assert_has(&spans[0], card);
    let all = format!("{:?}", case.collector.spans());
    assert!(!all.contains("planted-"), "{all}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_said_and_no_credential_is_in_a_span() {
    let secret = "planted-word-of-a-conversation";
    let case = Case::with(move |_| {
        let body = format!(r#"{{"jsonrpc":"2.0","id":"c-1","result":{{"text":"{secret}"}}}}"#);
        vec![Step::Write(ok_json(&body))]
    })
    .await;
    let said = CALL.replace("hi", secret);
    let odd = said.replace("message/send", secret);
    for (id, body) in [("said", &*said), ("odd", &odd), ("broken", &said[1..])] {
        let mut request = case.request(id, body).field("Cookie", secret);
        request = request.field("baggage", secret);
        request.path.push_str(&format!("?token={secret}"));
        case.gateway.call(&request).await;
        case.collector.of_request(id, 1).await;
    }
    let odd = case.collector.of_request("odd", 1).await;
    assert_eq!(odd[0].get("rpc.method"), "_OTHER");
    // Credentials are looked for when the collector is dropped.
    let all = format!("{:?}", case.collector.spans());
    assert!(!all.contains(secret), "{all}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_has_the_same_two() {
    let collector = Collector::start().await;
    let endpoint = format!("telemetry.otlp_endpoint={}", collector.http());
    let service = "telemetry.service_name=guard";
    let guarded = Guarded::start(&["--set", &endpoint, "--set", service]).await;
    let parent = format!("00-{TRACE}-{}-01", SPAN);
    let request = call(&guarded.token(CALL)).field("X-Request-Id", "past");
    let request = request.field("traceparent", &parent);
    guarded.call(&request).await.has(200);
    let spans = collector.of_request("past", 2).await;
    let (server, client) = two(&spans);
    assert_eq!((server.parent.as_str(), server.service()), (SPAN, "guard"));
    let port = guarded.agent.port;
    assert_has(
        server,
        json!({"rpc.method": "SendMessage", "a2a.caller": "caller"}),
    );
    assert_has(server, json!({"http.route": null}));
    assert_has(
        client,
        json!({"server.port": port, "http.response.status_code": 200}),
    );
    let context = context_of(&guarded.agent.take());
    assert_eq!(context, [TRACE, &client.id, "01"]);
    let refused = call("x").field("X-Request-Id", "refused");
    guarded.call(&refused).await.has(401);
    let spans = collector.of_request("refused", 1).await;
    assert_has(&spans[0], json!({"error.type": "unauthenticated"}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_leaves_two_spans_that_say_what_it_was() {
    let case = Case::new().await;
    let answer = case.call("r-1", &[]).await.has(200);
    let spans = case.collector.of_request("r-1", 2).await;
    let (server, client) = two(&spans);
    let both = json!({
        "http.request.method": "POST", "http.response.status_code": 200, "url.scheme": "http",
        "rpc.system.name": "jsonrpc", "rpc.method": "SendMessage", "error.type": null,
        "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.id": "target",
    });
    assert_has(server, both.clone());
    assert_has(client, both);
    assert_eq!((&*server.name, server.status), ("SendMessage", 0));
    let of_server = json!({
        "http.route": "/workspaces/{id}/a2a", "jsonrpc.protocol.version": "2.0",
        "http.request.body.size": CALL.len(), "http.response.body.size": answer.body.len(),
        "rpc.response.status_code": null, "a2a.method": "send_message", "a2a.outcome": "answered",
        "a2a.caller": "caller", "a2a.callee": "target", "a2a.rule": "root_sibling",
        "a2a.request_id": "r-1", "a2a.events": null,
    });
    assert_has(server, of_server);
    assert_eq!((&*client.name, client.status), ("invoke_agent target", 0));
    let port = case.target.agent.port;
    assert_has(
        client,
        json!({"server.address": "127.0.0.1", "server.port": port}),
    );
    for span in &spans {
        assert_eq!(span.service(), "a2a-gateway");
        assert_eq!(span.resource["service.version"], env!("CARGO_PKG_VERSION"));
        assert!(span.resource["service.instance.id"].as_str().unwrap().len() >= 16);
    }
    counted(&case, "exported", 2.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_with_a_key_have_one_call_below_the_first() {
    let case = Case::new().await;
    for id in ["first", "again"] {
        let answer = case.call(id, &[("Idempotency-Key", "k-1")]).await;
        assert_eq!(answer.status, 200, "{id}: {}", answer.text());
    }
    let first = case.collector.of_request("first", 2).await;
    let client = first.iter().find(|span| span.is_client()).unwrap();
    assert_eq!(client.parent, first[0].id);
    let made = json!({"http.response.status_code": 200, "error.type": null});
    assert_has(client, made);
    assert_eq!(case.arrived()[1], client.id);
    let again = case.collector.of_request("again", 1).await;
    assert_eq!(again.len(), 1, "{again:#?}");
    assert_eq!(case.target.agent.count(), 0, "it was called once");
}
