//! Translating a request and an answer of half a kilobyte, and events of a stream, in both directions.
#![allow(missing_docs, reason = "criterion's macros make public items")]
#![expect(clippy::unwrap_used, reason = "a body that has no form ends the bench")]

use std::hint::black_box;

use a2a_gateway::a2a::Generation;
use a2a_gateway::a2a::bridge::{Bridge, Call, Exchange, FileBytes, Side};
use a2a_gateway::a2a::method::Method;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// A request and an answer.
const UNARY_BYTES: usize = 512;

/// Events: of a status, and of a piece of a result.
const EVENT_BYTES: [usize; 3] = [1024, 64 << 10, 1 << 20];

const V0: Side = Side::json_rpc(Generation::V0);
const V1: Side = Side::json_rpc(Generation::V1);

const fn bridge(caller: Side, agent: Side) -> Bridge<'static> {
    Bridge {
        caller,
        agent,
        tenant: None,
        files: FileBytes::Unknown,
    }
}

/// Fills `X` in `text` so that it has `bytes`.
fn padded(text: &str, bytes: usize) -> String {
    text.replace('X', &"x".repeat(bytes + 1 - text.len()))
}

const MESSAGE_V0: &str = r#"{"kind":"message","messageId":"m-0192","role":"user","contextId":"c-1","parts":[{"kind":"text","text":"X"},{"kind":"data","data":{"n":1.5}}],"metadata":{"trace":"t"}}"#;
const MESSAGE_V1: &str = r#"{"messageId":"m-0192","role":"ROLE_USER","contextId":"c-1","parts":[{"text":"X"},{"data":{"n":1.5}}],"metadata":{"trace":"t"}}"#;

/// Returns a request, the answer to it and an event, in the form of one side.
fn texts(side: Side, event_bytes: usize) -> [String; 3] {
    let is_v0 = side == V0;
    let message = if is_v0 { MESSAGE_V0 } else { MESSAGE_V1 };
    let method = Method::SendMessage.name_in(side.generation).unwrap();
    let request = format!(
        r#"{{"jsonrpc":"2.0","id":"1","method":"{method}","params":{{"message":{message},"configuration":{{"acceptedOutputModes":["text/plain"]}}}}}}"#
    );
    let status = if is_v0 {
        format!(
            r#""taskId":"t-1","contextId":"c-1","status":{{"state":"working","timestamp":"2026-08-18T10:00:00.123456+00:00","message":{message}}}"#
        )
    } else {
        format!(
            r#""taskId":"t-1","contextId":"c-1","status":{{"state":"TASK_STATE_WORKING","timestamp":"2026-08-18T10:00:00.123456Z","message":{message}}}"#
        )
    };
    let event = if is_v0 {
        format!(r#"{{"kind":"status-update","final":false,{status}}}"#)
    } else {
        format!(r#"{{"statusUpdate":{{{status}}}}}"#)
    };
    let result = if is_v0 {
        message.to_owned()
    } else {
        format!(r#"{{"message":{message}}}"#)
    };
    let enveloped = |result: &str| format!(r#"{{"jsonrpc":"2.0","id":"1","result":{result}}}"#);
    let event = format!("data: {}\r\n\r\n", enveloped(&event));
    [
        padded(&request, UNARY_BYTES),
        padded(&enveloped(&result), UNARY_BYTES),
        padded(&event, event_bytes),
    ]
}

fn exchange(bridge: &Bridge<'_>, request: &str) -> Exchange {
    let call = Call::Rpc(request.as_bytes());
    bridge
        .translate_request(Method::SendMessage, call)
        .unwrap()
        .1
}

fn unary(c: &mut Criterion) {
    let mut group = c.benchmark_group("bridge");
    for (name, bridge) in [("up", bridge(V0, V1)), ("down", bridge(V1, V0))] {
        let [request, ..] = texts(bridge.caller, EVENT_BYTES[0]);
        let [_, answer, _] = texts(bridge.agent, EVENT_BYTES[0]);
        let exchange = exchange(&bridge, &request);
        group.bench_function(BenchmarkId::new("request", name), |b| {
            b.iter(|| {
                bridge.translate_request(
                    Method::SendMessage,
                    Call::Rpc(black_box(request.as_bytes())),
                )
            });
        });
        group.bench_function(BenchmarkId::new("answer", name), |b| {
            b.iter(|| {
                exchange
                    .translate_answer(200, black_box(answer.as_bytes()))
                    .unwrap()
            });
        });
    }
    group.finish();
}

fn events(c: &mut Criterion) {
    let mut group = c.benchmark_group("bridge/event");
    for bytes in EVENT_BYTES {
        group.throughput(Throughput::Bytes(bytes as u64));
        for (name, bridge) in [("0.3>1.0", bridge(V0, V1)), ("1.0>0.3", bridge(V1, V0))] {
            let [request, ..] = texts(bridge.caller, bytes);
            let [.., event] = texts(bridge.agent, bytes);
            let call = Call::Rpc(request.as_bytes());
            let method = Method::SendStreamingMessage;
            let mut stream = bridge
                .translate_request(method, call)
                .unwrap()
                .1
                .start_stream();
            let mut out = Vec::with_capacity(2 * bytes);
            group.bench_function(BenchmarkId::new(name, bytes), |b| {
                b.iter(|| {
                    out.clear();
                    stream
                        .translate_block(black_box(event.as_bytes()), &mut out)
                        .unwrap()
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, unary, events);
criterion_main!(benches);
