//! Cutting a stream of 1 KB events: one event a chunk, and chunks that cut them.
#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;

use a2a_gateway::a2a::event::Splitter;
use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// One status update of 1 KB.
const EVENT_BYTES: usize = 1024;

const EVENTS: usize = 64;

fn event(c: &mut Criterion) {
    let head = r#"data: {"jsonrpc":"2.0","id":1,"result":{"kind":"status-update","taskId":"t","contextId":"c","final":false,"status":{"state":"working","message":{"role":"agent","messageId":"m","parts":[{"kind":"text","text":""#;
    let tail = "\"}]}}}}\r\n\r\n";
    let text = "x".repeat(EVENT_BYTES - head.len() - tail.len());
    let stream = Bytes::from(format!("{head}{text}{tail}").repeat(EVENTS));
    let mut group = c.benchmark_group("event");
    group.throughput(Throughput::Elements(EVENTS as u64));
    for (name, chunk) in [("whole", EVENT_BYTES), ("cut", 700), ("many", 16 << 10)] {
        group.bench_with_input(BenchmarkId::new(name, chunk), &chunk, |b, chunk| {
            b.iter(|| {
                let mut splitter = Splitter::new();
                for at in (0..stream.len()).step_by(*chunk) {
                    black_box(splitter.push(stream.slice(at..stream.len().min(at + chunk))));
                }
                splitter.pending_len()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, event);
criterion_main!(benches);
