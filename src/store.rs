//! How a store fails: its URL cannot be used, or it cannot be asked. Both stores share these.

use std::sync::Arc;

/// What a driver, or the system below it, said.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// A store could not answer. Never to be read as "no": whoever decides access must refuse.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{store} store: {operation} failed")]
pub struct Unavailable {
    /// `sql` or `shared`.
    pub store: &'static str,
    /// What was tried, as a metric label: a closed set of short words.
    pub operation: &'static str,
    /// What the driver said. Shared, since single-flight hands one failure to several waiters.
    #[source]
    pub source: Cause,
}

impl Unavailable {
    /// Whether nothing was changed: the store itself said no. Of all else it may have done what was asked, or do it yet.
    pub fn is_refusal(&self) -> bool {
        let refused = self.source.downcast_ref::<Refused>();
        // A connection that broke behind a pooler, a server that was stopped, and "completion unknown" come as these, too.
        refused.is_some_and(|refused| {
            let code = refused.code.as_str();
            !code.starts_with("08") && !code.starts_with("57P") && code != "40003"
        })
    }
}

/// What the database refused, without the detail line, in which PostgreSQL repeats whole rows.
#[derive(Clone, Debug, thiserror::Error)]
#[error("database error {code}: {message}")]
pub struct Refused {
    /// As the database has it (SQLSTATE).
    pub code: String,
    /// In its words.
    pub message: String,
}

/// The store took longer than its clock allows.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
pub struct TooSlow(pub std::time::Duration);

/// A store's URL cannot be used. Never shows the URL, which may carry a password.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct InvalidUrl {
    /// The configuration key: `stores.sql` or `stores.shared`.
    pub key: &'static str,
    /// What is wrong, and what to write instead.
    pub problem: String,
    /// What the system said, when the URL is well formed but what it names cannot be used.
    #[source]
    pub source: Option<Cause>,
}
