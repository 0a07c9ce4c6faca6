//! The conditions of a query of stored records.

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
