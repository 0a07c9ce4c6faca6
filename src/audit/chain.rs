//! The chain of one replica, and what is signed of it.

use serde::{Deserialize, Serialize};

use super::record::{Draft, NO_RECORD, Record, digest};
use crate::trust::{Keys, SignError};

/// The type of what is signed: no token, so none can be made of it.
pub(super) const STATEMENT_TYP: &str = "a2a-audit+jws";

/// What is said of a chain, and signed: where it begins and ends, at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Statement {
    /// Whose chain.
    pub replica: String,
    /// The number of the first record that is kept; older ones were removed by retention.
    pub first: i64,
    /// The number of the last record.
    pub last: i64,
    /// Its hash.
    pub hash: String,
    /// When this was so, RFC 3339.
    pub time: String,
}

impl Statement {
    /// Signs it with the active trust key, as a compact JWS (RFC 7515).
    ///
    /// # Errors
    /// [`SignError`].
    pub(super) fn sign(&self, keys: &Keys) -> Result<String, SignError> {
        keys.sign(STATEMENT_TYP, self)
    }
}

/// A record in its chain, and how it is written down.
#[derive(Clone, Debug)]
pub(super) struct Chained {
    /// When, in milliseconds since 1970.
    pub(super) ms: i64,
    pub(super) seq: i64,
    pub(super) hash: String,
    /// The canonical form.
    pub(super) text: String,
}

/// Where a chain is.
#[derive(Clone)]
pub(super) struct Chain {
    replica: String,
    pub(super) last: i64,
    pub(super) hash: String,
}

impl Chain {
    pub(super) fn new(replica: &str) -> Self {
        Self {
            replica: replica.to_owned(),
            last: 0,
            hash: NO_RECORD.to_owned(),
        }
    }

    /// Puts the next record to it.
    pub(super) fn push(&mut self, draft: Draft) -> Chained {
        let ms = draft.time.0;
        let record = Record::of(draft, &self.replica, self.last + 1, &self.hash);
        // As it is written it is canonical (`record`'s test), and this is ten times as fast.
        let text = serde_json::to_string(&record).unwrap_or_default();
        let hash = digest(&text);
        self.last += 1;
        self.hash.clone_from(&hash);
        Chained {
            ms,
            seq: self.last,
            hash,
            text,
        }
    }

    /// What is said of it now, if nothing was removed from its beginning.
    pub(super) fn statement(&self, first: i64, time: String) -> Statement {
        Statement {
            replica: self.replica.clone(),
            first,
            last: self.last,
            hash: self.hash.clone(),
            time,
        }
    }
}
