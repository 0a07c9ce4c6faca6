//! `a2a-gateway apply FILE --replay TIME`: which calls a policy would have judged otherwise.

use std::fmt::Write as _;
use std::time::Duration;

use gateway_client::{Registry, RegistryError, Request};
use http::Method;
use serde_json::Value;

use super::super::failure::{Failure, OrFail as _};
use super::super::print_note;
use super::{PATH, to_failure};

/// Timeout of a replay.
const WITHIN: Duration = Duration::from_secs(3_600);

/// Longest line of the answer, in bytes.
const LINE_BYTES_MAX: usize = 64 << 20;

/// The answer broke off.
const BROKEN: &str = "the replay is not whole, ask again";

/// Records between two lines of progress.
const NOTE_EVERY: u64 = 100_000;

/// Runs a replay; Ctrl-C ends it, here and at the gateway.
pub(super) async fn run_replay(
    client: &Registry,
    query: &[(&str, &str)],
    policy: &Value,
    json: bool,
) -> Result<String, Failure> {
    let request = Request {
        accept: "application/x-ndjson",
        within: WITHIN,
        ..client.request(Method::POST, PATH, query)
    };
    let sent = request.with_body(policy).send_checked().await;
    let mut answer = sent.map_err(|error| match error {
        RegistryError::Refused { status, body, .. } => to_failure(status, &body, policy),
        RegistryError::Unanswered { source, .. } => source.into(),
        other => other.into(),
    })?;
    let (mut rest, mut noted) = (Vec::new(), 0);
    while let Some(piece) = answer.next_chunk().await.or_fail(BROKEN)? {
        rest.extend_from_slice(&piece);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let line: Value = serde_json::from_slice(&line).or_fail(BROKEN)?;
            if line["changes"].is_array() {
                return Ok(if json {
                    format!("{line}\n")
                } else {
                    format_replay(&line)
                });
            }
            let records = line["progress"]["records"].as_u64().unwrap_or_default();
            if records / NOTE_EVERY > noted {
                noted = records / NOTE_EVERY;
                print_note(&format!("{records} calls are judged"));
            }
        }
        if rest.len() > LINE_BYTES_MAX {
            return Err(Failure::new(BROKEN));
        }
    }
    Err(Failure::new(BROKEN))
}

/// Returns a line for each caller, target and rule.
fn format_replay(result: &Value) -> String {
    let text = |change: &Value, name: &str| change[name].as_str().unwrap_or("-").to_owned();
    let mut lines = String::new();
    for change in result["changes"].as_array().into_iter().flatten() {
        let verb = if change["rule_after"].is_null() {
            "denied"
        } else {
            "allowed"
        };
        let [caller, target, before, after, last, example] = [
            "caller",
            "target",
            "rule_before",
            "rule_after",
            "last",
            "example",
        ]
        .map(|name| text(change, name));
        // Writing to a string cannot fail.
        let _ = writeln!(
            lines,
            "{verb}: {caller} -> {target} ({before} > {after}), {} calls, the last at {last}, such as {example}",
            change["calls"]
        );
    }
    if let Some(untold) = result["untold_calls"].as_u64().filter(|untold| *untold > 0) {
        let _ = writeln!(lines, "and {untold} more calls of others");
    }
    let _ = writeln!(lines, "{} calls were judged.", result["records"]);
    lines
}
