//! What is written down of calls and changes.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::value::{ByteSize, duration};

/// `[audit]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Audit {
    /// Whether anything is.
    pub enabled: bool,
    /// Where records wait while the database is away.
    pub spool_dir: PathBuf,
    /// How much of them may wait there.
    pub spool_bytes: ByteSize,
    /// How long records are kept; zero: for ever.
    #[serde(with = "duration")]
    pub retention: Duration,
}
