//! The record of a draft, and its canonical form (RFC 8785), which is hashed and spooled.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use serde_json::value::RawValue;

use super::record::{Draft, Record};
use access::workspace::Timestamp;

/// Maximum length of text from outside (an agent's task id, a name) in a record, in bytes. The rest is cut
/// off.
const TEXT_BYTES_MAX: usize = 256;

impl<'a> Record<'a> {
    /// Returns the record of a draft, without its place in a chain.
    pub(super) fn from_draft(draft: &'a Draft) -> Self {
        let proof = draft.proof.as_deref();
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let text = |text: Option<&'a String>| text.map(|text| clean_text(text.as_str().into()));
        let caller = proof.map(|proof| match proof.principal.workspace() {
            Some(id) => Cow::Borrowed(id.as_str()),
            None => to_text(&proof.principal),
        });
        Self {
            bridged: draft.bridged.map(Cow::Borrowed),
            caller: caller.map(clean_text),
            client_address: draft.client.as_ref().map(to_text),
            credential_kind: proof.map(|proof| proof.kind.as_str().into()),
            credential_prefix: proof.map(|proof| clean_text(Cow::Borrowed(&proof.prefix))),
            detail: draft.detail.as_ref().and_then(|detail| {
                let detail = serde_json::from_str::<&RawValue>(detail.as_str());
                detail.ok().map(Cow::Borrowed)
            }),
            duration_ms: number(draft.duration_ms),
            event_type: draft.event_type.as_str().into(),
            hash: None,
            method: draft.method.map(Cow::Borrowed),
            org: text(draft.org.as_ref()),
            outcome: draft.outcome.into(),
            prev: Cow::Borrowed(""),
            replica: Cow::Borrowed(""),
            request_bytes: number(draft.request_bytes),
            request_id: draft.request_id.as_ref().map(|id| id.as_str().into()),
            response_bytes: number(draft.response_bytes),
            rule: draft.rule.map(Cow::Borrowed),
            seq: 0,
            status: draft.status.into(),
            target: draft.target.as_ref().map(|id| id.as_str().into()),
            task_id: text(draft.task_id.as_ref()),
            time: Cow::Borrowed(""),
            trace_id: draft.trace_id.map(|id| id.to_string().into()),
        }
    }

    /// Appends the canonical form: what it serializes to without its hash (tested below), in less time.
    pub(super) fn write_canonical(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        if let Some(bridged) = &self.bridged {
            write_text(out, "\"bridged\":", Some(bridged));
            out.push(b',');
        }
        write_text(out, "\"caller\":", self.caller.as_deref());
        if let Some(address) = &self.client_address {
            write_text(out, ",\"client_address\":", Some(address));
        }
        let (kind, prefix) = (&self.credential_kind, &self.credential_prefix);
        write_text(out, ",\"credential_kind\":", kind.as_deref());
        write_text(out, ",\"credential_prefix\":", prefix.as_deref());
        out.extend_from_slice(b",\"detail\":");
        let detail = self.detail.as_deref().map_or("null", RawValue::get);
        out.extend_from_slice(detail.as_bytes());
        write_number(out, ",\"duration_ms\":", self.duration_ms);
        write_text(out, ",\"event_type\":", Some(&self.event_type));
        write_text(out, ",\"method\":", self.method.as_deref());
        write_text(out, ",\"org\":", self.org.as_deref());
        write_text(out, ",\"outcome\":", Some(&self.outcome));
        write_text(out, ",\"prev\":", Some(&self.prev));
        write_text(out, ",\"replica\":", Some(&self.replica));
        write_number(out, ",\"request_bytes\":", self.request_bytes);
        write_text(out, ",\"request_id\":", self.request_id.as_deref());
        write_number(out, ",\"response_bytes\":", self.response_bytes);
        write_text(out, ",\"rule\":", self.rule.as_deref());
        write_number(out, ",\"seq\":", self.seq);
        write_number(out, ",\"status\":", self.status);
        write_text(out, ",\"target\":", self.target.as_deref());
        write_text(out, ",\"task_id\":", self.task_id.as_deref());
        write_text(out, ",\"time\":", Some(&self.time));
        write_text(out, ",\"trace_id\":", self.trace_id.as_deref());
        out.push(b'}');
    }
}

fn write_text(out: &mut Vec<u8>, name: &str, value: Option<&str>) {
    out.extend_from_slice(name.as_bytes());
    let Some(value) = value else {
        return out.extend_from_slice(b"null");
    };
    let is_plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
    // Without an end at the first other byte, many bytes are looked at at once.
    if value
        .bytes()
        .fold(true, |plain, byte| plain & is_plain(byte))
    {
        out.push(b'"');
        out.extend_from_slice(value.as_bytes());
        out.push(b'"');
    } else {
        // Writing to a vector cannot fail.
        let _ = serde_json::to_writer(out, value);
    }
}

fn write_number(out: &mut Vec<u8>, name: &str, value: i64) {
    out.extend_from_slice(name.as_bytes());
    // Writing to a vector cannot fail.
    let _ = serde_json::to_writer(out, &value);
}

/// Returns a value as text. Its memory is taken at once: most names and addresses fit.
fn to_text<'a>(value: &impl fmt::Display) -> Cow<'a, str> {
    let mut text = String::with_capacity(64);
    // Writing to a string cannot fail.
    let _ = write!(text, "{value}");
    Cow::Owned(text)
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

/// The text of a time in records. Many records have the time of the one before.
#[derive(Clone, Default)]
pub(super) struct TimeText(Option<(Timestamp, String)>);

impl TimeText {
    pub(super) fn format(&mut self, time: Timestamp) -> &str {
        if self.0.as_ref().is_none_or(|(known, _)| *known != time) {
            self.0 = Some((time, time.to_string()));
        }
        self.0.as_ref().map_or("", |(_, text)| text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chain::Chain;
    use crate::hash::{digest, to_canonical};
    use crate::record::EventType;

    fn draft() -> Draft {
        let mut draft =
            Draft::new(EventType::A2aCall).with_detail(json!({"b": 1, "a": "ä\u{7f}\n\""}));
        draft.task_id = Some("t\u{0}\u{1}\"\\ä".to_owned());
        draft
    }

    fn translated() -> Draft {
        Draft {
            bridged: Some("0.3>1.0"),
            ..draft()
        }
    }

    #[test]
    fn what_is_written_is_canonical_and_what_a_record_serializes_to() {
        let mut here = Chain::new("here-1");
        for draft in [draft(), translated(), Draft::new(EventType::AuditStarted)] {
            let chained = here.push(draft);
            let text = chained.canonical_text("here-1");
            let record: Record = serde_json::from_str(&text).unwrap();
            assert_eq!(Some(&text), to_canonical(&record.to_json()).as_ref());
            assert_eq!(text, serde_json::to_string(&record).unwrap());
            assert_eq!(digest(text.as_bytes()), chained.hash);
            let mut again = Vec::new();
            record.write_canonical(&mut again);
            assert_eq!(text.as_bytes(), again);
        }
    }

    #[test]
    fn a_record_without_newer_members_is_as_earlier_releases_wrote_it() {
        let text = Chain::new("here-1").push(draft()).canonical_text("here-1");
        assert!(text.starts_with("{\"caller\":"), "{text}");
        assert!(!text.contains("client_address"), "{text}");
        assert!(
            text.contains("t\u{fffd}\u{fffd}\\\"\\\\ä"),
            "control characters are replaced: {text}"
        );
    }

    #[test]
    fn text_from_outside_is_bounded() {
        assert_eq!(clean_text("ä".repeat(200).into()), "ä".repeat(128));
        assert_eq!(clean_text("plain".into()), "plain");
    }
}
