//! Where each chain ends, and whether that is signed: for a look. Whether its records are as they were written,
//! only `audit verify` says.

use serde::Serialize;

use super::Audit;
use super::chain::Statement;
use crate::store::Unavailable;
use crate::workspace::Timestamp;

/// The end of one chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChainEnd {
    /// Whose.
    pub replica: String,
    /// The number of the first record that is kept.
    pub first_seq: i64,
    /// The number of the last record that is signed.
    pub last_seq: i64,
    /// When it was signed.
    pub signed_at: Timestamp,
    /// Whether a trust key signed just that. False also when the key was removed since.
    pub signed: bool,
    /// Whether it is the chain of the replica that answers.
    pub own: bool,
}

impl Audit {
    /// The ends of all chains, the last signed first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn ends(&self) -> Result<Vec<ChainEnd>, Unavailable> {
        let rows = self.stored.table.chains().await?;
        let end = |row: super::ChainRow| {
            let stated = row.stated(&self.keys);
            let same = |said: Statement| {
                (said.replica.as_str(), said.first, said.last)
                    == (row.replica.as_str(), row.first_seq, row.last_seq)
            };
            ChainEnd {
                signed: stated.is_ok_and(same),
                own: row.replica == self.replica.as_str(),
                first_seq: row.first_seq,
                last_seq: row.last_seq,
                signed_at: Timestamp(row.signed_at),
                replica: row.replica,
            }
        };
        // What is remembered of a chain that retention removed is no chain.
        let kept = rows.into_iter().filter(|row| row.first_seq <= row.last_seq);
        let mut ends: Vec<_> = kept.map(end).collect();
        ends.sort_by_key(|end| std::cmp::Reverse(end.signed_at.0));
        Ok(ends)
    }
}
