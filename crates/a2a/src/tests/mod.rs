//! Table tests of the whole module: one body in, one body or fault out.

mod bare;
mod event;
mod message;
mod pass;
mod properties;
mod refs;
mod refuse;
mod stamp;
mod task;
mod v1;

use bytes::Bytes;

use super::Generation;
use super::envelope::{CompletedCall, Completion, Fault, complete};
use crate::CompletionMode;

/// A call to `dev` by the workspace `pm`, with full completion, for an agent of 0.x.
const FULL: Completion<'static> = Completion {
    target: "dev",
    caller: Some("pm"),
    complete: CompletionMode::Full,
    generation: Generation::V0,
    accept_prefers_stream: false,
};

const BARE: Completion<'static> = Completion {
    complete: CompletionMode::Bare,
    ..FULL
};

const OFF: Completion<'static> = Completion {
    complete: CompletionMode::Off,
    ..FULL
};

const STREAM: Completion<'static> = Completion {
    accept_prefers_stream: true,
    ..FULL
};

const V1: Completion<'static> = Completion {
    generation: Generation::V1,
    ..FULL
};

fn run(input: impl AsRef<[u8]>, completion: &Completion<'_>) -> Result<CompletedCall, Fault> {
    complete(&Bytes::copy_from_slice(input.as_ref()), completion)
}

/// Returns the text with each UUID v4 masked.
fn masked(body: &[u8]) -> String {
    let text = std::str::from_utf8(body).unwrap();
    let mut out = String::new();
    let mut rest = text;
    while let Some(quote) = rest.find('"') {
        let inner = &rest[quote + 1..];
        let is_new = inner
            .get(..36)
            .and_then(|id| uuid::Uuid::try_parse(id).ok())
            .is_some_and(|id| id.get_version_num() == 4);
        out.push_str(&rest[..=quote]);
        rest = inner;
        if is_new {
            out.push_str("<new>");
            rest = &inner[36..];
        }
    }
    out + rest
}

/// Checks that `input` becomes `expect`, that `done` lists the changes, and that the result is
/// complete.
fn check_with(completion: &Completion<'_>, input: &str, expect: &str, done: &str) {
    let completed = run(input, completion).unwrap_or_else(|fault| panic!("{input}: {fault:?}"));
    assert_eq!(masked(&completed.body), expect, "of {input}");
    assert_eq!(completed.done.to_string(), done, "of {input}");
    assert_eq!(completed.done.is_empty(), input == expect, "of {input}");
    serde_json::from_slice::<serde::de::IgnoredAny>(&completed.body).unwrap();
    let again = complete(&completed.body, completion).unwrap();
    assert_eq!(again.body, completed.body, "again, of {input}");
    assert!(again.done.is_empty(), "again, of {input}: {}", again.done);
}

fn check(input: &str, expect: &str, done: &str) {
    check_with(&FULL, input, expect, done);
}
