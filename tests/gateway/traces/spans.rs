//! What spans say: of calls, streams, refusals, cards, the control plane, calls that are made later.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Case, SPAN, TRACE, context_of, counted, traced, two};
use crate::harness::collector::{Collector, Span};
use crate::harness::sidecar::{Guarded, call};
use crate::harness::{
    ADMIN, Agent, CALL, LAST_CHUNK, Pair, Request, SSE_HEAD, Step, card, chunk, ok_json,
};
use crate::on_both_pairs;

const STREAM: &str = r#"{"jsonrpc":"2.0","id":"s-1","method":"message/stream","params":{"message":{"kind":"message","messageId":"m-1","role":"user","parts":[{"kind":"text","text":"hi"}]}}}"#;

const ANSWER: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#;

fn assert_has(span: &Span, expected: Value) {
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(span.get(key), *value, "{key} of {span:#?}");
    }
}

on_both_pairs! {
    async fn a_call_that_is_made_later_follows_from_the_one_that_was_accepted(pair: Pair) {
        let collector = Collector::start().await;
        let builder = traced(pair, &collector);
        let case = Case::on(collector, builder, Agent::json(ANSWER).await).await;
        let change = |what: &str| Request::post(format!("/workspaces/target/{what}"), "");
        assert_eq!(case.gateway.as_operator(change("pause")).await.status, 200);
        let parent = format!("00-{TRACE}-{}-01", SPAN);
        let fields = [("Prefer", "respond-async"), ("traceparent", parent.as_str()), ("tracestate", "a=1")];
        let kept = case.call("kept", &fields).await;
        assert_eq!(kept.status, 202, "{}", kept.text());
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
    assert_has(
        server,
        json!({"a2a.events": 2, "rpc.method": "SendStreamingMessage", "a2a.outcome": "answered"}),
    );
    for span in [server, client] {
        assert!(span.nanos.1 - span.nanos.0 >= 300_000_000, "{span:#?}");
    }
    assert_eq!(case.arrived()[1], client.id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_leaves_ends_both_spans() {
    let case = Case::with(|_| {
        vec![
            Step::write(SSE_HEAD),
            Step::write(chunk("data: 1\n\n")),
            Step::Hang,
        ]
    })
    .await;
    let mut connection = crate::harness::Connection::open(case.gateway.public).await;
    let wire = case
        .request("left", STREAM)
        .wire(&case.gateway.public.to_string());
    connection.send(&wire).await;
    let open = "a2a_gateway_open_streams";
    case.gateway.until_counted(open, &[], 1.0).await;
    drop(connection);
    let spans = case.collector.of_request("left", 2).await;
    let (server, client) = two(&spans);
    assert_has(
        server,
        json!({"a2a.outcome": "caller_left", "error.type": null}),
    );
    assert_eq!((server.status, client.status), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_say_why_and_only_what_reached_the_agent_has_a_call() {
    let case = Case::new().await;
    case.gateway
        .seat("stranger", "caller", Agent::json("{}").await)
        .await;
    let at = |path: &str, id: &str| {
        Request::post(path, CALL)
            .bearer(&case.caller.token)
            .field("X-Request-Id", id)
    };
    let cases = [
        (
            case.request("no-proof", CALL).without("authorization"),
            "unauthenticated",
            401,
            "-32000",
            0,
        ),
        (
            case.request("no-json", "{"),
            "parse_error",
            400,
            "-32700",
            0,
        ),
        (
            at("/workspaces/nobody/a2a", "nobody"),
            "not_permitted",
            403,
            "-32000",
            0,
        ),
        (
            at("/workspaces/a%20b/a2a", "no-id"),
            "invalid_workspace_id",
            400,
            "-32600",
            0,
        ),
    ];
    for (request, reason, status, code, error) in cases {
        let id = request
            .fields
            .iter()
            .find(|(name, _)| name == "X-Request-Id")
            .unwrap()
            .1
            .clone();
        let answer = case.gateway.call(&request).await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (status, reason),
            "{id}"
        );
        let spans = case.collector.of_request(&id, 1).await;
        assert_eq!(spans.len(), 1, "{id}: {spans:#?}");
        assert_eq!(spans[0].status, error, "{id}");
        assert_has(
            &spans[0],
            json!({
                "error.type": reason, "a2a.outcome": reason, "http.response.status_code": status,
                "rpc.response.status_code": code, "http.route": "/workspaces/{id}/a2a",
            }),
        );
    }
    assert_eq!(case.target.agent.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_fails_shows_in_the_call_and_above() {
    let case = Case::with(|request| {
        if request.text().contains("break") {
            return vec![Step::write("HTTP/1.1 banana\r\n\r\n"), Step::Close];
        }
        let body = "{\"error\":1}";
        vec![Step::write(format!(
            "HTTP/1.1 500 No\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))]
    })
    .await;
    let broken = case
        .gateway
        .call(&case.request("broken", &CALL.replace("hi", "break")))
        .await;
    assert_eq!(broken.reason(), "agent_protocol_error");
    let spans = case.collector.of_request("broken", 2).await;
    let (server, client) = two(&spans);
    assert_has(
        server,
        json!({"http.response.status_code": 502, "error.type": "agent_protocol_error"}),
    );
    assert_has(
        client,
        json!({"http.response.status_code": null, "error.type": "agent_protocol_error"}),
    );
    assert_eq!((server.status, client.status), (2, 2));

    let passed = case.call("passed", &[]).await;
    assert_eq!(passed.status, 500);
    let spans = case.collector.of_request("passed", 2).await;
    let (server, client) = two(&spans);
    assert_has(
        server,
        json!({"http.response.status_code": 500, "error.type": "500", "a2a.outcome": "answered"}),
    );
    assert_has(
        client,
        json!({"http.response.status_code": 500, "error.type": "500"}),
    );
    assert_eq!((server.status, client.status), (2, 2));

    // Nobody listens there any more, soon: connections that were open may end in the middle of a call.
    drop(case.target.agent);
    let mut tries = 0;
    let gone = loop {
        let id = format!("gone-{tries}");
        let request = Request::post("/workspaces/target/a2a", CALL).bearer(&case.caller.token);
        let request = request.field("X-Request-Id", &id);
        let answer = case.gateway.call(&request).await;
        // Its own answer, while it still gives one, is a 500.
        if answer.status == 502 && answer.reason() == "agent_unreachable" {
            break id;
        }
        tries += 1;
        assert!(tries < 1_000, "{}", case.gateway.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let spans = case.collector.of_request(&gone, 2).await;
    let (_, client) = two(&spans);
    assert_has(
        client,
        json!({"error.type": "agent_unreachable", "http.response.status_code": null}),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_answers_in_the_servers_span_alone() {
    let case = Case::new().await;
    let enrolment = case
        .gateway
        .create(json!({"id": "poller", "name": "poller"}))
        .await;
    let body = json!({"id": "poller", "delivery_mode": "poll", "agent_card": card("poller")});
    let request = Request::post("/registry/register", body.to_string()).bearer(&enrolment);
    let registered = case.gateway.call(&request).await;
    assert_eq!(registered.status, 200, "{}", registered.text());
    let request = Request::post("/workspaces/poller/a2a", CALL).bearer(&case.caller.token);
    let answer = case
        .gateway
        .call(&request.field("X-Request-Id", "polled"))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let spans = case.collector.of_request("polled", 1).await;
    assert_eq!(spans.len(), 1);
    assert_has(
        &spans[0],
        json!({"a2a.callee": "poller", "a2a.outcome": "answered", "gen_ai.agent.id": "poller"}),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cards_and_the_control_plane_have_spans_with_their_routes() {
    let case = Case::new().await;
    let get = |path: &str, id: &str| Request::get(path).bearer(ADMIN).field("X-Request-Id", id);
    for (path, id, route, status, reason) in [
        (
            "/workspaces/target?secret=planted-query",
            "ws",
            "/workspaces/{id}",
            200,
            None,
        ),
        (
            "/workspaces/nobody",
            "none",
            "/workspaces/{id}",
            404,
            Some("workspace_not_found"),
        ),
        (
            "/nowhere/planted-path-of-a-caller",
            "un",
            "unmatched",
            404,
            Some("not_found"),
        ),
    ] {
        assert_eq!(
            case.gateway.call(&get(path, id)).await.status,
            status,
            "{path}"
        );
        let spans = case.collector.of_request(id, 1).await;
        assert_eq!(
            (spans[0].kind, spans[0].name.as_str()),
            (2, format!("GET {route}").as_str())
        );
        assert_has(
            &spans[0],
            json!({
                "http.request.method": "GET", "http.route": route, "http.response.status_code": status,
                "error.type": reason, "rpc.system.name": null,
            }),
        );
    }
    let path = "/workspaces/target/.well-known/agent-card.json";
    assert_eq!(case.gateway.call(&get(path, "card")).await.status, 200);
    let spans = case.collector.of_request("card", 1).await;
    assert_eq!(
        spans[0].name,
        "GET /workspaces/{id}/.well-known/agent-card.json"
    );
    assert_has(
        &spans[0],
        json!({"a2a.method": "agent_card", "rpc.system.name": null}),
    );
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
    for (id, body) in [
        ("said", said.as_str()),
        ("odd", &odd),
        ("broken", &said[1..]),
    ] {
        let mut request = case
            .request(id, body)
            .field("Cookie", secret)
            .field("baggage", secret);
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
    let guarded =
        Guarded::start(&["--set", &endpoint, "--set", "telemetry.service_name=guard"]).await;
    let parent = format!("00-{TRACE}-{}-01", SPAN);
    let request = call(&guarded.token(CALL))
        .field("X-Request-Id", "past")
        .field("traceparent", &parent);
    assert_eq!(guarded.call(&request).await.status, 200);
    let spans = collector.of_request("past", 2).await;
    let (server, client) = two(&spans);
    assert_eq!((server.parent.as_str(), server.service()), (SPAN, "guard"));
    assert_has(
        server,
        json!({"rpc.method": "SendMessage", "a2a.caller": "caller", "http.route": null}),
    );
    assert_has(
        client,
        json!({"server.port": guarded.agent.port, "http.response.status_code": 200}),
    );
    assert_eq!(
        context_of(&guarded.agent.take()),
        [TRACE.to_owned(), client.id.clone(), "01".into()]
    );
    let refused = guarded
        .call(&call("x").field("X-Request-Id", "refused"))
        .await;
    assert_eq!(refused.status, 401);
    let spans = collector.of_request("refused", 1).await;
    assert_has(&spans[0], json!({"error.type": "unauthenticated"}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_leaves_two_spans_that_say_what_it_was() {
    let collector = Collector::start().await;
    let builder = traced(Pair::Embedded, &collector);
    let case = Case::on(collector, builder, Agent::json(ANSWER).await).await;
    let answer = case.call("r-1", &[]).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let spans = case.collector.of_request("r-1", 2).await;
    let (server, client) = two(&spans);
    assert_eq!((server.name.as_str(), server.status), ("SendMessage", 0));
    assert_has(
        server,
        json!({
            "http.request.method": "POST", "http.response.status_code": 200,
            "http.route": "/workspaces/{id}/a2a", "url.scheme": "http",
            "http.request.body.size": CALL.len(), "http.response.body.size": ANSWER.len(),
            "rpc.system.name": "jsonrpc", "rpc.method": "SendMessage", "jsonrpc.protocol.version": "2.0",
            "rpc.response.status_code": null, "error.type": null,
            "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.id": "target",
            "a2a.method": "send_message", "a2a.outcome": "answered", "a2a.caller": "caller",
            "a2a.callee": "target", "a2a.rule": "root_sibling", "a2a.request_id": "r-1", "a2a.events": null,
        }),
    );
    assert_eq!(
        (client.name.as_str(), client.status),
        ("invoke_agent target", 0)
    );
    assert_has(
        client,
        json!({
            "http.request.method": "POST", "http.response.status_code": 200, "url.scheme": "http",
            "server.address": "127.0.0.1", "server.port": case.target.agent.port,
            "rpc.system.name": "jsonrpc", "rpc.method": "SendMessage",
            "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.id": "target", "error.type": null,
        }),
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
    let collector = Collector::start().await;
    let builder = traced(Pair::Embedded, &collector);
    let case = Case::on(collector, builder, Agent::json(ANSWER).await).await;
    for id in ["first", "again"] {
        let answer = case.call(id, &[("Idempotency-Key", "k-1")]).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let first = case.collector.of_request("first", 2).await;
    let client = first.iter().find(|span| span.is_client()).unwrap();
    assert_eq!(client.parent, first[0].id);
    assert_has(
        client,
        json!({"http.response.status_code": 200, "error.type": null}),
    );
    assert_eq!(case.arrived()[1], client.id);
    let again = case.collector.of_request("again", 1).await;
    assert_eq!(again.len(), 1, "{again:#?}");
    assert_eq!(case.target.agent.count(), 0, "it was called once");
}
