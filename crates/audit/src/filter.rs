//! The conditions of a query of stored records.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::record::Record;
use access::workspace::Timestamp;

/// The conditions of a query. The empty filter matches all records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The caller or the target.
    pub workspace: Option<String>,
    /// The caller, in the spelling of records.
    pub caller: Option<String>,
    /// The target workspace.
    pub target: Option<String>,
    /// The outcome.
    pub outcome: Option<String>,
    /// The event type.
    pub event_type: Option<String>,
    /// The JSON-RPC method.
    pub method: Option<String>,
    /// The request id.
    pub request_id: Option<String>,
    /// The id of the run of a chain's root.
    pub txn: Option<String>,
    /// The replica that owns the chain.
    pub replica: Option<String>,
    /// The earliest time, included.
    pub since: Option<Timestamp>,
    /// The latest time, not included.
    pub until: Option<Timestamp>,
}

impl Filter {
    /// True if every record matches.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the columns and the values that they must have. `workspace` means the caller or the target.
    pub(super) fn column_conditions(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("workspace", &self.workspace),
            ("caller", &self.caller),
            ("target", &self.target),
            ("outcome", &self.outcome),
            ("event_type", &self.event_type),
            ("method", &self.method),
            ("request_id", &self.request_id),
            ("txn", &self.txn),
            ("replica", &self.replica),
        ]
        .into_iter()
        .filter_map(|(column, value)| Some((column, value.as_deref()?)))
    }

    pub(super) fn time_bounds(&self) -> impl Iterator<Item = (&'static str, Timestamp)> {
        [(">=", self.since), ("<", self.until)]
            .into_iter()
            .filter_map(|(comparison, at)| Some((comparison, at?)))
    }
}

/// The position of a record in either order, after which the next page begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RecordPosition {
    /// The id of a row.
    Row(i64),
    /// The time, the replica and the sequence number of a record in texts.
    Text(i64, String, i64),
}

impl RecordPosition {
    /// Returns the place of a record in texts.
    pub(super) fn from_record(record: &Record<'_>) -> Self {
        let ms = Timestamp::parse(&record.time).map_or(0, |at| at.0);
        Self::Text(ms, record.replica.to_string(), record.seq)
    }
}

/// Parses the cursor of a page.
pub fn parse_cursor<T: DeserializeOwned>(text: &str) -> Option<T> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Returns the cursor of the page behind `position`.
pub fn encode_cursor(position: &impl Serialize) -> String {
    URL_SAFE_NO_PAD.encode(json!(position).to_string())
}

#[cfg(test)]
mod cursor_tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_as_it_was_given() {
        let text = RecordPosition::Text(1, "a-1".to_owned(), 2);
        for place in [text, RecordPosition::Row(1 << 41)] {
            assert_eq!(parse_cursor(&encode_cursor(&place)), Some(place));
        }
        for bad in ["", "!", "AAAA", &URL_SAFE_NO_PAD.encode("[1]")] {
            assert_eq!(parse_cursor::<RecordPosition>(bad), None, "{bad}");
        }
    }
}
