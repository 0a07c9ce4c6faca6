//! The ends of all chains, and whether each is signed, for the console. The records themselves are verified
//! by `audit verify` only.

use serde::Serialize;

use super::Audit;
use super::chain::Statement;
use access::workspace::Timestamp;
use stores::store::Unavailable;

/// The end of one chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChainEnd {
    /// The replica that owns the chain.
    pub replica: String,
    /// The sequence number of the first retained record.
    pub first_seq: i64,
    /// The sequence number of the last signed record.
    pub last_seq: i64,
    /// The time of the signature.
    pub signed_at: Timestamp,
    /// True if a known trust key signed exactly this end. False also if the key has been removed since.
    pub signed: bool,
    /// True if it is the chain of the replica that responds.
    pub own: bool,
}

impl Audit {
    /// Returns the ends of all chains, the latest signature first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn chain_ends(&self) -> Result<Vec<ChainEnd>, Unavailable> {
        let rows = self.stored.table.read_chains().await?;
        let end = |row: super::ChainRow| {
            let stated = row.verify_statement(&self.keys);
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
        // A chain that retention removed entirely is remembered, but not listed.
        let kept = rows.into_iter().filter(|row| row.first_seq <= row.last_seq);
        let mut ends: Vec<_> = kept.map(end).collect();
        ends.sort_by_key(|end| std::cmp::Reverse(end.signed_at.0));
        Ok(ends)
    }
}
