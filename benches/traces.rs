//! What a span costs the exchange that it belongs to: while nothing is traced, while its trace is not recorded, and
//! recorded, up to the queue that it waits in. And what reading the caller's context costs.

#![expect(missing_docs, reason = "criterion_group! makes a function without")]

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use a2a_gateway::config::{Config, Live, Ratio};
use a2a_gateway::ids::ReplicaId;
use a2a_gateway::metrics::{Metrics, SpanOutcome};
use a2a_gateway::telemetry::traces::{KeyValue, Parent, SpanKind, Status, Traces, context};
use criterion::{Criterion, criterion_group, criterion_main};

const WHY: &str = "the bench brings a collector of its own";

const PARENT: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Attributes of an exchange, about as many as there are, a third of them text that is copied.
fn attributes() -> Vec<KeyValue> {
    let mut set = Vec::with_capacity(24);
    for key in ["k0", "k1", "k2", "k3", "k4", "k5"] {
        set.push(KeyValue::new(
            key,
            black_box("workspace-of-somebody").to_owned(),
        ));
    }
    for key in ["n0", "n1", "n2", "n3"] {
        set.push(KeyValue::new(key, black_box(200_i64)));
    }
    for key in ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"] {
        set.push(KeyValue::new(key, "jsonrpc"));
    }
    set
}

/// Takes every batch at once.
fn collector() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect(WHY);
    let address = listener.local_addr().expect(WHY);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect(WHY);
            std::thread::spawn(move || {
                let mut held = Vec::new();
                let mut piece = vec![0; 1 << 16];
                while let Ok(read @ 1..) = stream.read(&mut piece) {
                    held.extend_from_slice(&piece[..read]);
                    let text = String::from_utf8_lossy(&held);
                    let Some(head) = text.find("\r\n\r\n") else {
                        continue;
                    };
                    let length = text[..head].lines().find_map(|line| {
                        line.to_ascii_lowercase()
                            .strip_prefix("content-length: ")?
                            .parse()
                            .ok()
                    });
                    let length: usize = length.expect(WHY);
                    if held.len() >= head + 4 + length {
                        held.clear();
                        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                        stream.write_all(answer).expect(WHY);
                    }
                }
            });
        }
    });
    format!("http://{address}")
}

fn traces(c: &mut Criterion) {
    let mut config: Config = toml::from_str(include_str!("../config/default.toml")).expect(WHY);
    let off = Traces::default();
    c.bench_function("traces/off", |b| {
        b.iter(|| black_box(&off).begin_span(&config.telemetry, Parent::Callers, || None));
    });
    c.bench_function("traces/context", |b| {
        b.iter(|| context::parse_context(black_box([PARENT]), []));
    });

    config.telemetry.otlp_endpoint = Some(collector().parse().expect(WHY));
    let metrics = Arc::new(Metrics::new());
    let on = Traces::start(&Live::from(config.clone()), &metrics, &ReplicaId::random()).expect(WHY);
    for (name, share) in [("not recorded", 0.0), ("recorded", 1.0)] {
        config.telemetry.sampling = Ratio(share);
        c.bench_function(&format!("traces/exchange and call, {name}"), |b| {
            b.iter(|| {
                let server = on.begin_span(&config.telemetry, Parent::Callers, || {
                    context::parse_context([PARENT], [])
                });
                let server = server.expect(WHY);
                let mut call = server.new_child();
                black_box(context::to_traceparent(call.context()));
                call.restart();
                if call.is_recorded() {
                    call.end(
                        SpanKind::Client,
                        "invoke_agent target",
                        attributes(),
                        Status::Unset,
                    );
                    server.end(SpanKind::Server, "SendMessage", attributes(), Status::Unset);
                }
            });
        });
    }
    let counted = &metrics.telemetry;
    let count = |outcome| counted.spans[outcome].get();
    let (exported, dropped) = (count(SpanOutcome::Exported), count(SpanOutcome::Dropped));
    // How much of it found no room: then a span costs less.
    assert_eq!(
        count(SpanOutcome::Failed),
        0,
        "{exported} exported, {dropped} dropped"
    );
    eprintln!("spans: {exported} exported, {dropped} dropped");
}

criterion_group!(benches, traces);
criterion_main!(benches);
