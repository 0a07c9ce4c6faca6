//! Completing a call: untouched and bare, by size. 1 µs for 0.5 KB is the aim.
#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;

use a2a_gateway::a2a::Generation;
use a2a_gateway::a2a::envelope::{Completion, complete};
use a2a_gateway::config::CompletionMode;
use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// `call`, with so much text that it has `len` bytes.
fn padded(call: &str, len: usize) -> Bytes {
    let text = "The gateway edits by byte range. \\n".repeat(len / 32);
    Bytes::from(call.replace("<text>", &text[..len - call.len()]))
}

fn envelope(c: &mut Criterion) {
    let completion = Completion {
        target: "developer",
        caller: Some("developer-pm"),
        complete: CompletionMode::Full,
        generation: Generation::V0,
        accept_prefers_stream: false,
    };
    let whole = r#"{"jsonrpc":"2.0","id":"task-1","method":"message/send","params":{"message":{"kind":"message","role":"user","messageId":"0199a3c2-7d4e-7bd1-9a0f-2f1f4f5d1c11","parts":[{"kind":"text","text":"<text>"}]},"metadata":{"run_id":"r-1","source_workspace_id":"developer-pm"}}}"#;
    let bare = r#"{"method":"message/send","params":{"message":{"role":"user","parts":[{"type":"text","text":"<text>"}]}}}"#;
    let text = r#"{"text":"<text>","run_id":"r-1"}"#;
    let mut group = c.benchmark_group("envelope");
    for (name, call) in [("untouched", whole), ("bare", bare), ("scattered", text)] {
        for len in [512, 10 << 10, 1 << 20] {
            let body = padded(call, len);
            group.throughput(Throughput::Bytes(body.len() as u64));
            group.bench_with_input(BenchmarkId::new(name, len), &body, |b, body| {
                b.iter(|| complete(black_box(body), &completion));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, envelope);
criterion_main!(benches);
