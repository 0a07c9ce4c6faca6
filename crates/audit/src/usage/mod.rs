//! Usage: sums of the audit's calls by day, for each workspace and each org, on the side of the caller and on that of the
//! target (`docs/reference/usage.md`).
//!
//! Sums are added in the transaction that writes their records, and `last_seq` of `audit_chains` says up to which record
//! of a chain they go, so a record that is written twice is counted once.

mod call;
mod day;
mod days;
mod query;
mod sums;

pub(super) use self::call::Call;
pub use self::day::Day;
pub(super) use self::days::{add_sums, add_sums_to_file, prune_sums};
pub use self::query::{Usage, UsageCursor, UsageLine, UsageQuery, UsageSpan};
pub(super) use self::sums::{Batch, Days, Orgs};
pub use self::sums::{Side, Sums};
