//! The part of an audit record that usage is summed from. A record that was read from the spool or the database gives
//! the same as the draft that it was made of.

use std::borrow::Cow;

use serde_json::Value;

use super::super::chain::ChainedRecord;
use super::super::record::{EventType, clean_text};
use super::Day;
use a2a::method::Method;
use access::workspace::Timestamp;
use kernel::health::CallResult;
use kernel::metrics::Outcome;
use kernel::rejection::Reason;

/// The names of callers that are no workspaces. `:` is in no workspace id.
const ORG: &str = "org:";
const SUBTREE: &str = "subtree:";
/// The name of callers that proved nothing.
pub(super) const UNKNOWN: &str = "unknown:";

/// The end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnd {
    /// It was answered, or its caller left.
    Passed,
    /// Rejected with a reason of a 4xx status.
    Refused,
    /// Rejected, or cut, with a reason of a 5xx status.
    Failed,
}

/// One call, or several refusals that have one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Call<'a> {
    pub(super) day: Day,
    /// The time of its end, in milliseconds since 1970.
    pub(super) ms: i64,
    pub(super) outcome: &'a str,
    pub(super) status: i64,
    pub(super) result: CallResult,
    /// The workspace, or the kind of another caller: its name stays in the audit.
    pub(super) caller: &'a str,
    /// The caller's org, as far as the record has it.
    pub(super) org: Option<Cow<'a, str>>,
    pub(super) target: Option<&'a str>,
    /// True if its method opens a stream.
    pub(super) streams: bool,
    pub(super) end: CallEnd,
    pub(super) count: i64,
    pub(super) request_bytes: i64,
    pub(super) response_bytes: i64,
    pub(super) duration_ms: i64,
}

impl<'a> Call<'a> {
    /// Returns the call of a record, or `None` if it is about another event.
    pub(in super::super) fn from_record(one: &'a ChainedRecord) -> Option<Self> {
        if !one.has_type(EventType::A2aCall) {
            return None;
        }
        let record = &one.record;
        let (caller, own) = match record.caller.as_deref() {
            None => (UNKNOWN, None),
            Some(name) => match name.find(':') {
                None => (name, None),
                Some(at) => {
                    let (kind, name) = name.split_at(at + 1);
                    match (kind, name.split_once(':')) {
                        // An org token is one, with a subtree or without: `subtree:<root>:<org>`.
                        (SUBTREE, Some((_, org))) => (ORG, Some(org)),
                        _ => (kind, Some(name).filter(|_| kind == ORG)),
                    }
                }
            },
        };
        let detail = record
            .detail
            .as_deref()
            .map(serde_json::value::RawValue::get);
        Some(Self {
            day: Day::from_timestamp(Timestamp(one.ms)),
            ms: one.ms,
            outcome: &record.outcome,
            status: record.status,
            result: CallResult::of_record(&record.outcome, record.status),
            caller,
            org: record
                .org
                .as_deref()
                .or(own)
                .map(|org| clean_text(org.into())),
            target: record.target.as_deref(),
            streams: opens_stream(record.method.as_deref()),
            end: end_of_call(&record.outcome),
            count: count_calls(caller, &record.outcome, detail),
            request_bytes: record.request_bytes.max(0),
            response_bytes: record.response_bytes.max(0),
            duration_ms: record.duration_ms.max(0),
        })
    }
}

fn opens_stream(method: Option<&str>) -> bool {
    let streams = [Method::SendStreamingMessage, Method::SubscribeToTask];
    method.is_some_and(|method| streams.iter().any(|one| one.label() == method))
}

fn end_of_call(outcome: &str) -> CallEnd {
    if [Outcome::Answered, Outcome::CallerLeft]
        .iter()
        .any(|one| one.as_str() == outcome)
    {
        return CallEnd::Passed;
    }
    let reason = Reason::ALL.iter().find(|reason| reason.as_str() == outcome);
    match reason.map(|reason| reason.status()) {
        Some(..500) => CallEnd::Refused,
        // A reason of another release is taken for a failure.
        _ => CallEnd::Failed,
    }
}

/// Returns the number of calls that a record is about: refusals of callers that proved nothing have one together.
fn count_calls(caller: &str, outcome: &str, detail: Option<&str>) -> i64 {
    if caller != UNKNOWN || end_of_call(outcome) == CallEnd::Passed {
        return 1;
    }
    let several = detail.and_then(|detail| {
        let detail: Value = serde_json::from_str(detail).ok()?;
        detail["count"].as_i64()
    });
    several.map_or(1, |count| count.max(1))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::chain::Chain;
    use crate::record::Draft;
    use access::identity::{Principal, Proof};

    fn call(principal: Option<Principal>, outcome: &'static str) -> Draft {
        Draft {
            proof: principal.map(|principal| Arc::new(Proof::for_test(principal))),
            outcome,
            method: Some("send_streaming_message"),
            request_bytes: 3,
            response_bytes: 5,
            duration_ms: 7,
            ..Draft::new(EventType::A2aCall)
        }
    }

    #[test]
    fn a_record_that_was_read_gives_the_same_as_its_draft() {
        let id = kernel::ids::WorkspaceId::parse("acme-pm").unwrap();
        let org = "Ac\u{7}me".to_owned();
        let user = Principal::Canvas {
            user: "ada:x".to_owned(),
            org: Some(org.clone()),
            workspaces: None,
            confined: false,
            within: None,
        };
        let callers = [
            None,
            Some(Principal::Workspace { id }),
            Some(Principal::Org {
                org: org.clone(),
                within: None,
            }),
            Some(Principal::Org {
                org: format!("{org}:x"),
                within: kernel::ids::WorkspaceIncarnation::parse("team~7"),
            }),
            Some(Principal::Operator),
            Some(user),
        ];
        for outcome in ["answered", "caller_left", "not_permitted", "agent_timeout"] {
            for (n, principal) in callers.iter().enumerate() {
                let mut draft = call(principal.clone(), outcome).with_detail(json!({"count": 4}));
                draft.org = (n % 2 == 0).then(|| org.clone());
                let own = Chain::new("here").push(draft.clone());
                let (text, hash) = (own.record.canonical_text(), hex::encode(own.hash));
                let read = ChainedRecord::from_canonical("here", own.ms, &hash, &text).unwrap();
                let [here, there] = [&own, &read].map(Call::from_record);
                assert!(here.is_some());
                assert_eq!(here, there, "{text}");
            }
        }
        let other = Chain::new("here").push(Draft::new(EventType::StreamResumed));
        assert_eq!(Call::from_record(&other), None);
    }

    #[test]
    fn the_reasons_status_says_how_a_call_ended() {
        for (outcome, end) in [
            ("answered", CallEnd::Passed),
            ("caller_left", CallEnd::Passed),
            ("not_permitted", CallEnd::Refused),
            ("rate_limited", CallEnd::Refused),
            ("agent_timeout", CallEnd::Failed),
            ("workspace_offline", CallEnd::Failed),
            ("of_another_release", CallEnd::Failed),
        ] {
            assert_eq!(end_of_call(outcome), end, "{outcome}");
        }
    }

    #[test]
    fn refusals_that_have_one_record_are_counted_each() {
        let count = |draft| {
            let record = Chain::new("here").push(draft);
            Call::from_record(&record).unwrap().count
        };
        let many = call(None, "unauthenticated").with_detail(json!({"count": 40}));
        assert_eq!(count(many), 40);
        let own = call(Some(Principal::Operator), "rate_limited").with_detail(json!({"count": 40}));
        assert_eq!(count(own), 1);
    }
}
