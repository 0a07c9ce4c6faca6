//! One record: what is written down of a call or a change, and what links it to the one before.

use std::sync::Arc;

use opentelemetry::TraceId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::each_once::names_each_once;
use crate::identity::Proof;
use crate::ids::{RequestId, WorkspaceId};
use crate::telemetry::ShownAddress;
use crate::workspace::Timestamp;

/// Longest text from outside (an agent's task id, a name) in a record, in bytes. The rest is left out.
const TEXT_BYTES_MAX: usize = 256;

macro_rules! event_types {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)+) => {
        /// What a record is about. The word is its member `event_type`, and a label in metrics.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum EventType {
            $($(#[$doc])* $name,)+
        }

        impl EventType {
            /// Every one.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The word.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)+
                }
            }
        }
    };
}

event_types! {
    /// An exchange on an A2A route, whatever came of it.
    A2aCall = "A2A_CALL",
    /// A caller goes on reading a stream whose connection was lost.
    StreamResumed = "STREAM_RESUMED",
    /// A workspace was created.
    WorkspaceCreated = "WORKSPACE_CREATED",
    /// An operator changed a workspace: its place, address, limits.
    WorkspaceChanged = "WORKSPACE_CHANGED",
    /// A workspace was removed.
    WorkspaceRemoved = "WORKSPACE_REMOVED",
    /// A workspace was paused.
    WorkspacePaused = "WORKSPACE_PAUSED",
    /// A workspace was resumed.
    WorkspaceResumed = "WORKSPACE_RESUMED",
    /// An agent registered.
    WorkspaceRegistered = "WORKSPACE_REGISTERED",
    /// An agent deregistered.
    WorkspaceDeregistered = "WORKSPACE_DEREGISTERED",
    /// A workspace came to another status; `detail.status` is the new one.
    WorkspaceStatus = "WORKSPACE_STATUS",
    /// An agent has another card.
    CardUpdated = "CARD_UPDATED",
    /// A token was issued: to a workspace, an org, a canvas user, a watcher, or for one pair.
    TokenIssued = "TOKEN_ISSUED",
    /// A token was revoked.
    TokenRevoked = "TOKEN_REVOKED",
    /// A grant was made.
    GrantCreated = "GRANT_CREATED",
    /// A grant was taken back.
    GrantRemoved = "GRANT_REMOVED",
    /// A workspace handed a task to another.
    DelegationCreated = "DELEGATION_CREATED",
    /// An agent answered an entry of its inbox.
    MessageReplied = "MESSAGE_REPLIED",
    /// An agent said something to its user.
    MessageNotified = "MESSAGE_NOTIFIED",
    /// Other trust keys are in force on this replica.
    KeysChanged = "KEYS_CHANGED",
    /// Another configuration is in force on this replica.
    ConfigChanged = "CONFIG_CHANGED",
    /// A changed configuration was wrong; the old one stays.
    ConfigRefused = "CONFIG_REFUSED",
    /// The first record of a replica.
    AuditStarted = "AUDIT_STARTED",
    /// All before this record is signed by it.
    AuditCheckpoint = "AUDIT_CHECKPOINT",
    /// Records were lost for want of room; `detail.count` says how many.
    AuditLost = "AUDIT_LOST",
    /// Records were removed, being older than `audit.retention`.
    AuditPruned = "AUDIT_PRUNED",
    /// The last record of a replica that ended in order.
    AuditStopped = "AUDIT_STOPPED",
}

impl EventType {
    /// The event of a word, if it is one.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.word() == word)
    }
}

/// What happened, as whoever makes it happen hands it over. Nothing is copied that can be shared:
/// this is made at the end of each exchange, and turned into a [`Record`] elsewhere.
#[derive(Clone, Debug)]
pub struct Draft {
    /// When.
    pub time: Timestamp,
    /// What.
    pub event_type: EventType,
    /// The request that it came with.
    pub request_id: Option<RequestId>,
    /// The trace that it is part of.
    pub trace_id: Option<TraceId>,
    /// Who asked, proven.
    pub proof: Option<Arc<Proof>>,
    /// Where it came from, as far as that is written down.
    pub client: Option<ShownAddress>,
    /// The workspace that it was about.
    pub target: Option<WorkspaceId>,
    /// The caller's org.
    pub org: Option<String>,
    /// Which rule let it pass.
    pub rule: Option<&'static str>,
    /// The JSON-RPC method, of a closed set.
    pub method: Option<&'static str>,
    /// `answered`, `done`, `caller_left`, or the reason of a refusal.
    pub outcome: &'static str,
    /// The HTTP status; 0: none was sent.
    pub status: u16,
    /// Bytes of the request's body.
    pub request_bytes: u64,
    /// Bytes of the response's body.
    pub response_bytes: u64,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// The task that it was about.
    pub task_id: Option<String>,
    /// More about a change: names, never content. An object with its members in order.
    pub detail: Option<Value>,
}

impl Draft {
    /// A record of a change that nobody asked for by a request.
    pub fn new(event_type: EventType) -> Self {
        Self {
            time: Timestamp::now(),
            event_type,
            request_id: None,
            trace_id: None,
            proof: None,
            client: None,
            target: None,
            org: None,
            rule: None,
            method: None,
            outcome: DONE,
            status: 0,
            request_bytes: 0,
            response_bytes: 0,
            duration_ms: 0,
            task_id: None,
            detail: None,
        }
    }

    /// The same with more about it.
    #[must_use]
    pub fn with(mut self, detail: Value) -> Self {
        self.detail = Some(detail);
        self
    }

    /// The same about a workspace.
    #[must_use]
    pub fn about(mut self, target: &WorkspaceId) -> Self {
        self.target = Some(target.clone());
        self
    }
}

/// The outcome of a change that was made.
pub const DONE: &str = "done";

/// One record of a chain. Its members in this order, without `hash`, are its canonical form (RFC 8785):
/// the SHA-256 of that, in hexadecimal, is its hash, and `prev` is the hash of the record before.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Who asked, as logs name callers; `None`: nobody was proven, or nobody asked.
    pub caller: Option<String>,
    /// The address of the client, or its network. Records of earlier releases have no such member, and neither have those
    /// without an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_address: Option<String>,
    /// The kind of the credential.
    pub credential_kind: Option<String>,
    /// Its first 8 characters.
    pub credential_prefix: Option<String>,
    /// More about a change.
    pub detail: Option<Box<RawValue>>,
    /// How long it took, in milliseconds.
    pub duration_ms: i64,
    /// What it is about: a word of [`EventType`].
    pub event_type: String,
    /// What the record and all before it come to. Not part of the canonical form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// The JSON-RPC method.
    pub method: Option<String>,
    /// The caller's org.
    pub org: Option<String>,
    /// What came of it.
    pub outcome: String,
    /// The hash of the record before; of the first one: zeros.
    pub prev: String,
    /// Whose chain.
    pub replica: String,
    /// Bytes of the request's body.
    pub request_bytes: i64,
    /// The request's id.
    pub request_id: Option<String>,
    /// Bytes of the response's body.
    pub response_bytes: i64,
    /// Which rule let it pass.
    pub rule: Option<String>,
    /// Its number in the chain, from 1.
    pub seq: i64,
    /// The HTTP status; 0: none was sent.
    pub status: i64,
    /// The workspace that it was about.
    pub target: Option<String>,
    /// The task that it was about.
    pub task_id: Option<String>,
    /// When, RFC 3339 with milliseconds.
    pub time: String,
    /// The trace that it is part of, in hexadecimal.
    pub trace_id: Option<String>,
}

/// `prev` of the first record.
pub(super) const NO_RECORD: &str =
    "0000000000000000000000000000000000000000000000000000000000000000";

impl Record {
    /// The record of `draft`, in its place in a chain, without its hash.
    pub(super) fn of(draft: Draft, replica: &str, seq: i64, prev: &str) -> Self {
        let proof = draft.proof.as_deref();
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        Self {
            caller: proof.map(|proof| clean(proof.principal.to_string())),
            client_address: draft.client.map(|client| client.to_string()),
            credential_kind: proof.map(|proof| proof.kind.word().to_owned()),
            credential_prefix: proof.map(|proof| clean(proof.prefix.clone())),
            detail: draft.detail.as_ref().and_then(raw),
            duration_ms: number(draft.duration_ms),
            event_type: draft.event_type.word().to_owned(),
            hash: None,
            method: draft.method.map(str::to_owned),
            org: draft.org.map(clean),
            outcome: draft.outcome.to_owned(),
            prev: prev.to_owned(),
            replica: replica.to_owned(),
            request_bytes: number(draft.request_bytes),
            request_id: draft.request_id.map(|id| id.as_str().to_owned()),
            response_bytes: number(draft.response_bytes),
            rule: draft.rule.map(str::to_owned),
            seq,
            status: draft.status.into(),
            target: draft.target.map(|id| id.as_str().to_owned()),
            task_id: draft.task_id.map(clean),
            time: draft.time.to_string(),
            trace_id: draft.trace_id.map(|id| id.to_string()),
        }
    }

    /// Whether its content gives its hash, as this gateway wrote it: canonical as it is.
    pub(super) fn is_as_written(&self) -> bool {
        serde_json::to_string(&self.bare()).is_ok_and(|text| digest(&text) == self.hash())
    }

    /// Whether its content gives its hash, also where a file says the same in another form: the canonical
    /// form (RFC 8785) counts.
    pub(super) fn is_whole(&self) -> bool {
        let same = || {
            let json = serde_json::to_value(self.bare()).ok()?;
            // Of a name that stands twice a reader may take the one, and the hash the other.
            let plain = self.detail.as_deref().is_none_or(names_each_once);
            canonical(&json).filter(|text| plain && digest(text) == self.hash())
        };
        self.is_as_written() || same().is_some()
    }

    fn bare(&self) -> Self {
        Self {
            hash: None,
            ..self.clone()
        }
    }

    /// The hash as it is written down.
    pub fn hash(&self) -> &str {
        self.hash.as_deref().unwrap_or_default()
    }

    /// As one JSON object.
    pub fn json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

fn canonical(value: &Value) -> Option<String> {
    serde_json_canonicalizer::to_string(value).ok()
}

/// The hash of a canonical form.
pub(super) fn digest(canonical: &str) -> String {
    hex::encode(Sha256::digest(canonical))
}

/// A detail as it stands in a record.
pub(super) fn raw(detail: &Value) -> Option<Box<RawValue>> {
    RawValue::from_string(canonical(detail)?).ok()
}

/// Text from outside, bounded, without what no database takes or no line of a log shows.
fn clean(text: String) -> String {
    let fits = text.len() <= TEXT_BYTES_MAX;
    if fits && !text.chars().any(char::is_control) {
        return text;
    }
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let shown = text[..end].chars();
    shown
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// A detail as a row has it, where somebody may have put anything.
pub(super) fn detail_of(text: String) -> Option<Box<RawValue>> {
    // An export has a record on each line.
    let plain = !text.contains(char::is_control);
    let read = plain.then(|| RawValue::from_string(text.clone()).ok());
    read.flatten().or_else(|| raw(&Value::String(text)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record() -> Record {
        let mut draft = Draft::new(EventType::A2aCall).with(json!({"b": 1, "a": "ä\u{7f}\n\""}));
        draft.task_id = Some("t\u{0}\u{1}".to_owned());
        Record::of(draft, "here-1", 7, NO_RECORD)
    }

    #[test]
    fn what_is_written_is_canonical_already() {
        let record = record();
        let written = serde_json::to_string(&record).unwrap();
        assert_eq!(Some(written), canonical(&record.json()));
        assert_eq!(record.task_id.as_deref(), Some("t\u{fffd}\u{fffd}"));
    }

    #[test]
    fn a_record_without_an_address_is_as_earlier_releases_wrote_it() {
        let mut record = record();
        assert!(
            !serde_json::to_string(&record)
                .unwrap()
                .contains("client_address")
        );
        record.client_address = Some("192.0.2.1".to_owned());
        let written = serde_json::to_string(&record).unwrap();
        assert_eq!(Some(written), canonical(&record.json()));
    }

    #[test]
    fn a_record_read_in_another_form_has_the_same_hash() {
        let mut record = record();
        record.hash = Some(digest(&serde_json::to_string(&record).unwrap()));
        let pretty = serde_json::to_string_pretty(&record.json()).unwrap();
        let read: Record = serde_json::from_str(&pretty).unwrap();
        assert!(read.is_whole());
        let changed = pretty.replace("\"b\": 1", "\"b\": 2");
        let read: Record = serde_json::from_str(&changed).unwrap();
        assert!(!read.is_whole());
    }

    #[test]
    fn every_word_names_one_event() {
        for event in EventType::ALL {
            assert_eq!(EventType::of(event.word()), Some(*event));
        }
        assert_eq!(EventType::of("A2A"), None);
    }

    #[test]
    fn text_from_outside_is_bounded() {
        assert_eq!(clean("ä".repeat(200)), "ä".repeat(128));
        assert_eq!(clean("plain".to_owned()), "plain");
    }
}
