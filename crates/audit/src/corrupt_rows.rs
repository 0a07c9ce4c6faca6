//! The reasons why records cannot be read from a store that is up: rows were tampered with, or removed
//! meanwhile.

use sqlx::AssertSqlSafe;

use super::table::{REPLICA, TEXTS, Table};
use stores::store::Unavailable;

/// Number of rows in one lookup.
const LOOKED_AT: usize = 2000;

/// The reason.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadFailure {
    /// The sequence number is not a number, so the scan cannot continue behind the record.
    #[error(
        "records of the chain {0:?} have a `replica` or a `seq` that is not a text or not a number: they were changed"
    )]
    Disordered(String),
    /// Another task removes records.
    #[error("retention removed records of the chain {0:?} while they were read: try again")]
    Pruned(String),
    /// `SQLite` stores any bytes as a text. The driver then rejects the whole page.
    #[error("{0}: record {1} was changed: it holds bytes that are no text")]
    Bytes(String, String),
    /// The same in a row of `audit_chains`.
    #[error("{0}: its row in audit_chains was changed: it holds bytes that are no text")]
    ChainBytes(String),
}

impl From<ReadFailure> for Unavailable {
    fn from(why: ReadFailure) -> Self {
        Self::new("sql", "audit_page", why)
    }
}

impl Table {
    /// True if the driver may have failed to decode a row. Other errors mean that the store is down, slow
    /// or refuses, so it is not queried again.
    fn may_hold_bytes(&self, error: &Unavailable) -> bool {
        self.db.is_embedded() && error.source.is::<sqlx::Error>()
    }

    /// Replaces the error by one that names the undecodable record, if there is one.
    pub(super) async fn name_corrupt_record(&self, error: Unavailable) -> Unavailable {
        if !self.may_hold_bytes(&error) {
            return error;
        }
        let columns = [REPLICA, "seq"].into_iter().chain(TEXTS.split(", "));
        match self.find_undecodable(&hex_expression(columns)).await {
            Some([replica, seq]) => ReadFailure::Bytes(replica, seq).into(),
            None => error,
        }
    }

    /// Returns the chain and the number of the first row with bytes that are no text. `columns` is an
    /// expression that begins with both.
    async fn find_undecodable(&self, columns: &str) -> Option<[String; 2]> {
        let text = format!(
            "SELECT rowid, {columns} FROM structure_events WHERE rowid > $1 ORDER BY rowid LIMIT {LOOKED_AT}"
        );
        let mut after = 0_i64;
        loop {
            let rows = sqlx::query_as(AssertSqlSafe(text.as_str())).bind(after);
            let rows = self.db.run("audit_page", rows.fetch_all(self.db.pool()));
            let rows: Vec<(i64, String)> = rows.await.unwrap_or_default();
            after = rows.last()?.0;
            if let Some(found) = rows.iter().find_map(|(_, row)| decode_corrupt_row(row)) {
                return Some(found);
            }
        }
    }

    /// Does the same for rows of `audit_chains`.
    pub(super) async fn name_corrupt_chain(&self, error: Unavailable) -> Unavailable {
        if !self.may_hold_bytes(&error) {
            return error;
        }
        let columns = ["replica", "first_seq", "last_seq", "statement", "signed_at"];
        let columns = hex_expression(columns.into_iter());
        let text = format!("SELECT {columns} FROM audit_chains");
        let rows = sqlx::query_scalar(AssertSqlSafe(text)).fetch_all(self.db.pool());
        let rows: Vec<String> = self.db.run("audit_chains", rows).await.unwrap_or_default();
        match rows.iter().find_map(|row| decode_corrupt_row(row)) {
            Some([replica, _]) => ReadFailure::ChainBytes(replica).into(),
            None => error,
        }
    }
}

/// Returns an SQL expression: all `columns` but bytes in hexadecimal, separated by spaces.
fn hex_expression<'c>(columns: impl Iterator<Item = &'c str>) -> String {
    let columns = columns
        .map(|column| format!("CASE typeof({column}) WHEN 'blob' THEN '' ELSE hex({column}) END"));
    columns.collect::<Vec<_>>().join(" || ' ' || ")
}

/// Returns the first two columns of a row, decoded lossily, if one of its columns is not valid UTF-8.
fn decode_corrupt_row(row: &str) -> Option<[String; 2]> {
    let columns = row
        .split(' ')
        .map(|column| hex::decode(column).unwrap_or_default());
    let columns: Vec<Vec<u8>> = columns.collect();
    let is_text = |column: &Vec<u8>| std::str::from_utf8(column).is_ok();
    if columns.iter().all(is_text) {
        return None;
    }
    let shown =
        |n: usize| String::from_utf8_lossy(columns.get(n).map_or(&[], Vec::as_slice)).into_owned();
    Some([shown(0), shown(1)])
}
