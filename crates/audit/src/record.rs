//! The audit record: its draft, its event types, and its canonical form with the hash that links it to the
//! record before.

use std::borrow::Cow;
use std::sync::Arc;

use opentelemetry::TraceId;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use a2a::names;
use access::identity::Proof;
use access::workspace::Timestamp;
use kernel::closed_set::words;
use kernel::ids::{RequestId, WorkspaceId};
use kernel::telemetry::MaskedAddress;

words! {
    /// The event that a record reports. Its name is the member `event_type` and a metrics label.
    EventType {
        /// An exchange on an A2A route, with any outcome.
        A2aCall => "A2A_CALL",
        /// A caller resumed a stream after it lost the connection.
        StreamResumed => "STREAM_RESUMED",
        /// An operator read what was said: tasks, an inbox, delegations, a stream, events, an extended card.
        ContentRead => "CONTENT_READ",
        /// A workspace was created.
        WorkspaceCreated => "WORKSPACE_CREATED",
        /// An operator changed a workspace: its parent, address or limits.
        WorkspaceChanged => "WORKSPACE_CHANGED",
        /// A workspace was removed.
        WorkspaceRemoved => "WORKSPACE_REMOVED",
        /// A workspace was paused.
        WorkspacePaused => "WORKSPACE_PAUSED",
        /// A workspace was resumed.
        WorkspaceResumed => "WORKSPACE_RESUMED",
        /// An agent registered.
        WorkspaceRegistered => "WORKSPACE_REGISTERED",
        /// An agent deregistered.
        WorkspaceDeregistered => "WORKSPACE_DEREGISTERED",
        /// An instance of an agent takes no new calls from now on.
        InstanceDraining => "INSTANCE_DRAINING",
        /// The status of a workspace changed; `detail.status` is the new one.
        WorkspaceStatus => "WORKSPACE_STATUS",
        /// The gateway asked the waker of a workspace to start its agent; `detail.wake` is the outcome.
        WorkspaceWake => "WORKSPACE_WAKE",
        /// The credential for an agent goes to another address, which another program wrote to the shared state.
        CredentialMoved => "CREDENTIAL_MOVED",
        /// The card of an agent changed.
        CardUpdated => "CARD_UPDATED",
        /// A token was issued to a workspace, an org, a canvas user or a watcher, or for one pair.
        TokenIssued => "TOKEN_ISSUED",
        /// A token was revoked.
        TokenRevoked => "TOKEN_REVOKED",
        /// A person signed in at the console, or was refused.
        OperatorSignedIn => "OPERATOR_SIGNED_IN",
        /// A person signed out of the console.
        OperatorSignedOut => "OPERATOR_SIGNED_OUT",
        /// A grant was created.
        GrantCreated => "GRANT_CREATED",
        /// A grant was removed.
        GrantRemoved => "GRANT_REMOVED",
        /// An operator stopped calls.
        StopCreated => "STOP_CREATED",
        /// A stop was released, or expired; `detail.by` says which.
        StopReleased => "STOP_RELEASED",
        /// What a person, a session, a run or a credential began was revoked.
        RevocationCreated => "REVOCATION_CREATED",
        /// An operator applied a policy; `detail.changes` has the changes, a hundred in each record.
        PolicyApplied => "POLICY_APPLIED",
        /// The tasks of a stop were canceled at their agents; `detail` counts them by outcome.
        StopTasksCanceled => "STOP_TASKS_CANCELED",
        /// Guards judged a reply of an agent that polls, or a call after its record was written; `detail.guards` has
        /// the verdicts.
        GuardsJudged => "GUARDS_JUDGED",
        /// A workspace delegated a task to another.
        DelegationCreated => "DELEGATION_CREATED",
        /// An agent replied to an entry of its inbox.
        MessageReplied => "MESSAGE_REPLIED",
        /// An agent sent a message to its user.
        MessageNotified => "MESSAGE_NOTIFIED",
        /// The trust keys in force on this replica changed.
        KeysChanged => "KEYS_CHANGED",
        /// The configuration in force on this replica changed.
        ConfigChanged => "CONFIG_CHANGED",
        /// A changed configuration was invalid; the old one stays in force.
        ConfigRefused => "CONFIG_REFUSED",
        /// The first record of a replica.
        AuditStarted => "AUDIT_STARTED",
        /// A signature over all records before this one.
        AuditCheckpoint => "AUDIT_CHECKPOINT",
        /// Records were lost for lack of space; `detail.count` is their number.
        AuditLost => "AUDIT_LOST",
        /// Records older than `audit.retention` were removed.
        AuditPruned => "AUDIT_PRUNED",
        /// The last record of a replica that shut down cleanly.
        AuditStopped => "AUDIT_STOPPED",
    }
}

/// An event, as the code that causes it passes it to the audit. It shares instead of copying where it can:
/// a draft is built at the end of each exchange, and converted to a [`Record`] by another task.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The time of the event.
    pub time: Timestamp,
    /// The event type.
    pub event_type: EventType,
    /// The id of the request.
    pub request_id: Option<RequestId>,
    /// The trace that the event is part of.
    pub trace_id: Option<TraceId>,
    /// The proven identity of the caller.
    pub proof: Option<Arc<Proof>>,
    /// The address of the client, as far as it may be recorded.
    pub client: Option<MaskedAddress>,
    /// The workspace that was called or changed.
    pub target: Option<WorkspaceId>,
    /// The caller's org.
    pub org: Option<String>,
    /// The rule that permitted the call.
    pub rule: Option<&'static str>,
    /// The JSON-RPC method, from a closed set.
    pub method: Option<&'static str>,
    /// `answered`, `done`, `caller_left`, or the reason of a rejection.
    pub outcome: &'static str,
    /// The HTTP status; 0 if none was sent.
    pub status: u16,
    /// Size of the request body in bytes.
    pub request_bytes: u64,
    /// Size of the response body in bytes.
    pub response_bytes: u64,
    /// Duration in milliseconds.
    pub duration_ms: u64,
    /// The id of the task.
    pub task_id: Option<String>,
    /// The run of the call.
    pub run: Option<String>,
    /// The context of its message.
    pub context: Option<String>,
    /// The chain of delegation that the call is part of.
    pub on_chain: Option<Box<ChainMembers>>,
    /// The generations between which the call was translated, as in `X-A2A-Bridged`.
    pub bridged: Option<&'static str>,
    /// Details of a change: names, never content.
    pub detail: Option<Detail>,
}

/// A call's place in a chain of delegation.
#[derive(Clone, Debug, Default)]
pub struct ChainMembers {
    /// The root, in the spelling of callers.
    pub root: String,
    /// The id of the root's run.
    pub txn: String,
    /// The number of actors between root and target.
    pub depth: usize,
    /// The hash of the chain token that was handed in.
    pub link: Option<String>,
    /// The hash of the one that was sent.
    pub sent: Option<String>,
}

/// The canonical form (RFC 8785) of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detail(String);

impl Detail {
    /// Returns the canonical form of `members`; `None` if it has none.
    pub fn new(members: impl Into<Value>) -> Option<Self> {
        to_canonical(&members.into()).map(Self)
    }

    /// Takes text that is canonical already.
    pub const fn from_canonical(text: String) -> Self {
        Self(text)
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn into_raw(self) -> Option<Box<RawValue>> {
        RawValue::from_string(self.0).ok()
    }

    /// Returns it with one member more, or with another value of that member.
    #[must_use]
    pub fn with_member(&self, name: &str, value: Value) -> Self {
        let mut members: Map<String, Value> = serde_json::from_str(&self.0).unwrap_or_default();
        members.insert(name.to_owned(), value);
        Self::new(members).unwrap_or_else(|| self.clone())
    }
}

impl Default for Detail {
    fn default() -> Self {
        Self("{}".to_owned())
    }
}

impl Draft {
    /// Creates a draft of an event that no request caused.
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
            run: None,
            context: None,
            on_chain: None,
            bridged: None,
            detail: None,
        }
    }

    /// Returns the draft with `detail`.
    #[must_use]
    pub fn with_detail(mut self, detail: Value) -> Self {
        self.detail = Detail::new(detail);
        self
    }

    /// Returns the draft with the operator who caused the event, if one did, in the detail.
    #[must_use]
    pub(super) fn with_operator(mut self) -> Self {
        let proof = self.proof.as_ref();
        let operator = proof.and_then(|proof| proof.operator.as_ref());
        if let Some(operator) = operator.map(|operator| operator.to_json()) {
            let detail = self.detail.take().unwrap_or_default();
            self.detail = Some(detail.with_member(OPERATOR, operator.into()));
        }
        self
    }

    /// Returns the draft with `target`.
    #[must_use]
    pub fn with_target(mut self, target: &WorkspaceId) -> Self {
        self.target = Some(target.clone());
        self
    }
}

/// The member of a detail that names the operator.
const OPERATOR: &str = "operator";

/// The outcome of a change that was made.
pub const DONE: &str = "done";

/// One record of a chain. Its members in this order, without `hash`, are its canonical form (RFC 8785). The
/// hexadecimal SHA-256 of that form is its hash, and `prev` is the hash of the record before it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record<'a> {
    /// The generations between which a call was translated, the caller's first. The member is absent in records of
    /// calls that were not translated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridged: Option<Cow<'a, str>>,
    /// The caller, in the spelling of logs; `None` if the request was unauthenticated, or if there was no
    /// request.
    pub caller: Option<Cow<'a, str>>,
    /// The hash of the chain token that the target got. The members about a chain, run and context are absent where
    /// there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<Cow<'a, str>>,
    /// The address or the network of the client. The member is absent where the address is
    /// not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_address: Option<Cow<'a, str>>,
    /// The context of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Cow<'a, str>>,
    /// The kind of the credential.
    pub credential_kind: Option<Cow<'a, str>>,
    /// The first 8 characters of the credential.
    pub credential_prefix: Option<Cow<'a, str>>,
    /// The number of actors between root and target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<i64>,
    /// Details of a change.
    pub detail: Option<Cow<'a, RawValue>>,
    /// Duration in milliseconds.
    pub duration_ms: i64,
    /// The name of an [`EventType`].
    pub event_type: Cow<'a, str>,
    /// The hash of this record, which covers all records before it. Not part of the canonical form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// The hash of the chain token that was handed in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Cow<'a, str>>,
    /// The JSON-RPC method.
    pub method: Option<Cow<'a, str>>,
    /// The caller's org.
    pub org: Option<Cow<'a, str>>,
    /// The outcome.
    pub outcome: Cow<'a, str>,
    /// The hash of the record before; zeros in the first record.
    pub prev: Cow<'a, str>,
    /// The replica that owns the chain.
    pub replica: Cow<'a, str>,
    /// Size of the request body in bytes.
    pub request_bytes: i64,
    /// The request id.
    pub request_id: Option<Cow<'a, str>>,
    /// Size of the response body in bytes.
    pub response_bytes: i64,
    /// The root of the chain, in the spelling of callers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<Cow<'a, str>>,
    /// The rule that permitted the call.
    pub rule: Option<Cow<'a, str>>,
    /// The run of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Cow<'a, str>>,
    /// The sequence number in the chain, from 1.
    pub seq: i64,
    /// The HTTP status; 0 if none was sent.
    pub status: i64,
    /// The workspace that was called or changed.
    pub target: Option<Cow<'a, str>>,
    /// The id of the task.
    pub task_id: Option<Cow<'a, str>>,
    /// The time of the event, RFC 3339 with milliseconds.
    pub time: Cow<'a, str>,
    /// The id of the trace, in hexadecimal.
    pub trace_id: Option<Cow<'a, str>>,
    /// The id of the root's run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn: Option<Cow<'a, str>>,
}

impl Record<'_> {
    /// True if the hash matches the serialized form exactly as this gateway writes it.
    pub(super) fn is_as_written(&self) -> bool {
        serde_json::to_string(&self.without_hash()).is_ok_and(|text| self.has_hash_of(&text))
    }

    /// True if the hash matches the canonical form (RFC 8785), however the record was formatted.
    pub(super) fn is_whole(&self) -> bool {
        let same = || {
            let json = serde_json::to_value(self.without_hash()).ok()?;
            // The hash may cover one of two duplicate keys, and a reader may take the other.
            let is_plain = |detail: &RawValue| {
                names::scan_names(detail.get(), &[]).is_ok_and(|found| found.duplicate.is_none())
            };
            let plain = self.detail.as_deref().is_none_or(is_plain);
            to_canonical(&json).filter(|text| plain && self.has_hash_of(text))
        };
        self.is_as_written() || same().is_some()
    }

    fn has_hash_of(&self, text: &str) -> bool {
        hex::encode(digest(text.as_bytes())) == self.hash()
    }

    fn without_hash(&self) -> Self {
        Self {
            hash: None,
            ..self.clone()
        }
    }

    /// Returns the recorded hash.
    pub fn hash(&self) -> &str {
        self.hash.as_deref().unwrap_or_default()
    }

    /// Returns the record as a JSON object.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Parses the detail of a row, which may have been tampered with.
pub(super) fn parse_detail(text: String) -> Option<Box<RawValue>> {
    // An export has one record in each line.
    let plain = !text.contains(char::is_control);
    let read = plain.then(|| RawValue::from_string(text.clone()).ok());
    let as_text = || RawValue::from_string(to_canonical(&Value::String(text))?).ok();
    read.flatten().or_else(as_text)
}

/// A SHA-256 hash.
pub(super) type Hash = [u8; 32];

/// `prev` of the first record.
pub(super) const NO_HASH: Hash = [0; 32];

/// Returns the hash of a canonical form.
pub(super) fn digest(canonical: &[u8]) -> Hash {
    Sha256::digest(canonical).into()
}

/// Returns the canonical form of a JSON value.
pub(super) fn to_canonical(value: &Value) -> Option<String> {
    serde_json_canonicalizer::to_string(value).ok()
}

/// Maximum length of text from outside (a name) in a record, in bytes. The rest is cut off.
const TEXT_BYTES_MAX: usize = 256;

impl Record<'static> {
    /// Returns the record of a draft, without its place in a chain.
    pub(super) fn from_draft(draft: Draft) -> Self {
        let proof = draft.proof.as_deref();
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let clean = |text: String| clean_text(text.into());
        let (mut root, mut txn, mut depth, mut link, mut chain) = (None, None, None, None, None);
        if let Some(on) = draft.on_chain {
            (root, txn) = (Some(clean(on.root)), Some(clean(on.txn)));
            depth = i64::try_from(on.depth).ok();
            (link, chain) = (on.link.map(Cow::Owned), on.sent.map(Cow::Owned));
        }
        Self {
            bridged: draft.bridged.map(Cow::Borrowed),
            caller: proof.map(|proof| clean(proof.principal.to_string())),
            chain,
            client_address: draft.client.map(|client| client.to_string().into()),
            context: draft.context.map(mask_name),
            credential_kind: proof.map(|proof| proof.kind.as_str().into()),
            credential_prefix: proof.map(|proof| clean(proof.prefix.to_string())),
            depth,
            detail: draft.detail.and_then(Detail::into_raw).map(Cow::Owned),
            duration_ms: number(draft.duration_ms),
            event_type: draft.event_type.as_str().into(),
            link,
            method: draft.method.map(Cow::Borrowed),
            org: draft.org.map(clean),
            outcome: draft.outcome.into(),
            request_bytes: number(draft.request_bytes),
            request_id: draft.request_id.map(|id| id.to_string().into()),
            response_bytes: number(draft.response_bytes),
            root,
            rule: draft.rule.map(Cow::Borrowed),
            run: draft.run.map(mask_name),
            status: draft.status.into(),
            target: draft.target.map(|id| id.to_string().into()),
            task_id: draft.task_id.map(mask_name),
            trace_id: draft.trace_id.map(|id| id.to_string().into()),
            txn,
            ..Self::default()
        }
    }
}

impl Record<'_> {
    /// Returns the canonical form of a record without its hash: what it serializes to (tested below).
    pub(super) fn canonical_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Appends the canonical form to a buffer.
    pub(super) fn write_canonical(&self, to: &mut Vec<u8>) {
        // Writing to memory cannot fail, and no member has a name that is no text.
        let _ = serde_json::to_writer(to, self);
    }
}

/// Longest name of a task, a run or a context that a record has as it is.
const NAME_BYTES_MAX: usize = 128;

/// Returns a name that a caller or an agent chose: as it is if it looks like an id, else the first 16 hex digits of its
/// SHA-256, since others may be content.
fn mask_name(name: String) -> Cow<'static, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain) {
        return name.into();
    }
    hex::encode(&digest(name.as_bytes())[..8]).into()
}

/// Truncates text from outside to `TEXT_BYTES_MAX`. Replaces control characters, which some databases
/// reject and logs do not show.
pub(super) fn clean_text(text: Cow<'_, str>) -> Cow<'_, str> {
    let fits = text.len() <= TEXT_BYTES_MAX;
    let is_printable = |byte: u8| (b' '..0x7f).contains(&byte);
    if fits && (text.bytes().all(is_printable) || !text.chars().any(char::is_control)) {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chain::Chain;

    #[test]
    fn a_record_read_in_another_form_has_the_same_hash() {
        let draft = Draft::new(EventType::A2aCall).with_detail(json!({"b": 1, "a": "ä\u{7f}\n\""}));
        let chained = Chain::new("here-1").push(draft);
        let mut record: Record = serde_json::from_str(&chained.record.canonical_text()).unwrap();
        record.hash = Some(hex::encode(chained.hash));
        let pretty = serde_json::to_string_pretty(&record.to_json()).unwrap();
        let read: Record = serde_json::from_str(&pretty).unwrap();
        assert!(read.is_whole());
        let changed = pretty.replace("\"b\": 1", "\"b\": 2");
        let read: Record = serde_json::from_str(&changed).unwrap();
        assert!(!read.is_whole());
    }

    #[test]
    fn every_word_names_one_event() {
        for event in EventType::ALL {
            assert_eq!(EventType::parse(event.as_str()), Some(*event));
        }
        assert_eq!(EventType::parse("A2A"), None);
    }
}

#[cfg(test)]
mod canonical_tests {
    use serde_json::json;

    use super::*;
    use crate::chain::Chain;
    use crate::record::EventType;
    use crate::record::{digest, to_canonical};

    fn draft() -> Draft {
        let mut draft =
            Draft::new(EventType::A2aCall).with_detail(json!({"b": 1, "a": "ä\u{7f}\n\""}));
        draft.org = Some("t\u{0}\u{1}\"\\ä".to_owned());
        draft.task_id = Some("t 1".to_owned());
        draft
    }

    fn translated() -> Draft {
        Draft {
            bridged: Some("0.3>1.0"),
            run: Some("run.1:a_-".to_owned()),
            context: Some("ä".to_owned()),
            on_chain: Some(Box::new(ChainMembers {
                root: "canvas:ada".to_owned(),
                txn: "q7".to_owned(),
                depth: 2,
                link: Some("in".to_owned()),
                sent: Some("out".to_owned()),
            })),
            ..draft()
        }
    }

    #[test]
    fn what_is_written_is_canonical_and_what_a_record_serializes_to() {
        let mut here = Chain::new("here-1");
        for draft in [draft(), translated(), Draft::new(EventType::AuditStarted)] {
            let chained = here.push(draft);
            let text = chained.record.canonical_text();
            let record: Record = serde_json::from_str(&text).unwrap();
            assert_eq!(Some(&text), to_canonical(&record.to_json()).as_ref());
            assert_eq!(text, serde_json::to_string(&record).unwrap());
            assert_eq!(digest(text.as_bytes()), chained.hash);
            assert_eq!(text, record.canonical_text());
        }
    }

    #[test]
    fn a_record_without_newer_members_is_as_earlier_releases_wrote_it() {
        let text = Chain::new("here-1").push(draft()).record.canonical_text();
        assert!(text.starts_with("{\"caller\":"), "{text}");
        assert!(!text.contains("client_address"), "{text}");
        for name in ["chain", "context", "depth", "link", "root", "run", "txn"] {
            assert!(!text.contains(&format!("\"{name}\"")), "{text}");
        }
        assert!(
            text.contains("t\u{fffd}\u{fffd}\\\"\\\\ä"),
            "control characters are replaced: {text}"
        );
    }

    #[test]
    fn names_are_as_they_are_or_hashed() {
        let hashed = |text: &str| hex::encode(&digest(text.as_bytes())[..8]);
        let long = "a".repeat(129);
        for (name, shown) in [
            ("Run.1:a_-b", "Run.1:a_-b".to_owned()),
            (&long[1..], long[1..].to_owned()),
            (&long, hashed(&long)),
            ("", hashed("")),
            ("two words", hashed("two words")),
            ("ä", hashed("ä")),
        ] {
            assert_eq!(mask_name(name.to_owned()), shown, "{name}");
        }
    }

    #[test]
    fn text_from_outside_is_bounded() {
        assert_eq!(clean_text("ä".repeat(200).into()), "ä".repeat(128));
        assert_eq!(clean_text("plain".into()), "plain");
    }
}
