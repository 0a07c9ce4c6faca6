//! What a writer sees beside its own records: chains of other replicas, and what killed ones left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::spawn_blocking;

use super::chain::{STATEMENT_TYP, Statement};
use super::month::Month;
use super::spool::Spool;
use super::table::ChainRow;
use super::writer::{Writer, front, lock, on_disk};
use crate::workspace::Timestamp;

/// Other chains that one checkpoint tells of at most.
const SEEN_MAX: usize = 200;

/// The ends of other chains.
#[derive(Default)]
pub(super) struct Seen {
    ends: BTreeMap<String, (i64, String)>,
    /// Those that no checkpoint of ours tells of yet.
    pub(super) news: BTreeMap<String, (i64, String)>,
}

impl Writer<'_> {
    /// What processes left that were killed, what others have, and that we still are. False: the store is
    /// away.
    pub(super) async fn look_around(&self, written: &ChainRow, hash: &str) -> bool {
        let month = Month::of(Timestamp::now().0);
        for month in [month, month.next()] {
            if self.audit.stored.table.has_months()
                && self.audit.stored.table.ensure(month).await.is_err()
            {
                return false;
            }
        }
        let Ok(rows) = self.audit.stored.table.chains().await else {
            return false;
        };
        self.adopt(&rows).await;
        self.note(&rows);
        if written.last_seq > 0 {
            let end = (written.last_seq, hash);
            let first = self.audit.first.load(Ordering::Relaxed);
            if let Ok(row) = self.state_of(&written.replica, first, end) {
                // Nobody is told: the next one says the same.
                let _ = self.audit.stored.table.put(&[], &row).await;
            }
        }
        true
    }

    /// Notes the ends of other chains that are signed.
    fn note(&self, rows: &[ChainRow]) {
        let mut seen = lock(&self.seen);
        let others = rows
            .iter()
            .filter(|row| row.replica != self.audit.replica.as_str());
        for row in others {
            let stated = self
                .audit
                .keys
                .verify_statement(&row.statement, STATEMENT_TYP);
            let Ok(stated): Result<Statement, _> = stated else {
                continue;
            };
            let end = (stated.last, stated.hash);
            let known = seen.ends.get(&row.replica) == Some(&end);
            if !known && end.0 >= stated.first && seen.news.len() < SEEN_MAX {
                seen.ends.insert(row.replica.clone(), end.clone());
                seen.news.insert(row.replica.clone(), end);
            }
        }
    }

    /// Writes what killed processes left in the spool.
    async fn adopt(&self, rows: &[ChainRow]) {
        let folder = self.audit.spool.0.clone();
        let Ok(left) = spawn_blocking(move || Spool::left(&folder)).await else {
            return;
        };
        for spool in left {
            let replica = spool.replica().to_owned();
            let known = rows.iter().find(|row| row.replica == replica);
            let chain = (replica.as_str(), known.map_or(1, |row| row.first_seq));
            let spool = Arc::new(std::sync::Mutex::new(spool));
            loop {
                let Ok(front) = front(&spool).await else {
                    break;
                };
                if !front.records.is_empty()
                    && let Err(error) = self.put_rows(chain, &front.records).await
                {
                    tracing::warn!(%error, replica, "Audit records of an earlier start still wait in audit.spool_dir");
                    return;
                }
                let count = front.records.len();
                tracing::info!(
                    count,
                    replica,
                    "Audit records of an earlier start are written"
                );
                let over = on_disk(Arc::clone(&spool), move |spool| {
                    spool.drop_front(&front);
                    spool.is_empty()
                });
                if over.await.unwrap_or(true) {
                    break;
                }
            }
        }
    }
}
