//! Why records cannot be read although the store answers: somebody changed them, or they went meanwhile.

use std::sync::Arc;

use sqlx::AssertSqlSafe;

use super::table::{COLUMNS, Table};
use crate::store::Unavailable;

/// Rows that are looked at at once.
const LOOKED_AT: usize = 2000;

/// What is wrong with them.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    /// Reading cannot go on behind a record whose number is none.
    #[error(
        "records of the chain {0:?} have a `replica` or a `seq` that is no text or no number: somebody changed them"
    )]
    Disordered(String),
    /// Others remove them.
    #[error("retention removed records of the chain {0:?} while they were read: try again")]
    Pruned(String),
    /// `SQLite` takes any bytes for a text, and hands none of a page over that has such.
    #[error("{0}: record {1} was changed: it holds bytes that are no text")]
    Bytes(String, String),
    /// The same of what is signed of a chain.
    #[error("{0}: its row in audit_chains was changed: it holds bytes that are no text")]
    ChainBytes(String),
}

impl From<Unreadable> for Unavailable {
    fn from(why: Unreadable) -> Self {
        Self {
            store: "sql",
            operation: "audit_page",
            source: Arc::new(why),
        }
    }
}

impl Table {
    /// Whether rows were there that the driver could not read. A store that is away, slow or refuses says so otherwise,
    /// and is not asked again.
    fn may_hold_bytes(&self, error: &Unavailable) -> bool {
        self.db.is_embedded() && error.source.is::<sqlx::Error>()
    }

    /// Names the record that keeps others from being read, if that is why.
    pub(super) async fn named(&self, error: Unavailable) -> Unavailable {
        if !self.may_hold_bytes(&error) {
            return error;
        }
        let columns = in_hex(COLUMNS);
        let text = format!(
            "SELECT rowid, {columns} FROM structure_events WHERE rowid > $1 ORDER BY rowid LIMIT {LOOKED_AT}"
        );
        let mut after = 0_i64;
        loop {
            let rows = sqlx::query_as(AssertSqlSafe(text.as_str())).bind(after);
            let rows = self.db.run("audit_page", rows.fetch_all(self.db.pool()));
            let rows: Vec<(i64, String)> = rows.await.unwrap_or_default();
            let Some((last, _)) = rows.last() else {
                return error;
            };
            after = *last;
            if let Some([replica, seq]) = rows.iter().find_map(|(_, row)| no_text(row)) {
                return Unreadable::Bytes(replica, seq).into();
            }
        }
    }

    /// The same of the rows of chains.
    pub(super) async fn named_chain(&self, error: Unavailable) -> Unavailable {
        if !self.may_hold_bytes(&error) {
            return error;
        }
        let columns = in_hex("replica, first_seq, last_seq, statement, signed_at");
        let text = format!("SELECT {columns} FROM audit_chains");
        let rows = sqlx::query_scalar(AssertSqlSafe(text)).fetch_all(self.db.pool());
        let rows: Vec<String> = self.db.run("audit_chains", rows).await.unwrap_or_default();
        match rows.iter().find_map(|row| no_text(row)) {
            Some([replica, _]) => Unreadable::ChainBytes(replica).into(),
            None => error,
        }
    }
}

/// An expression for all of `columns`, in hexadecimal, with spaces between.
fn in_hex(columns: &str) -> String {
    let columns = columns
        .split(", ")
        .map(|column| format!("hex({})", column.trim()));
    columns.collect::<Vec<_>>().join(" || ' ' || ")
}

/// The first two columns of a row that holds bytes that are no text, as far as they are text.
fn no_text(row: &str) -> Option<[String; 2]> {
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
