//! What a writer sees beside its own records: chains of other replicas, and what killed ones left.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::spawn_blocking;

use super::chain::Statement;
use super::month::Month;
use super::spool::Spool;
use super::table::ChainRow;
use super::waiting::{front, lock, on_disk};
use super::writer::Writer;
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
    pub(super) async fn look_around(&self, stated: &Statement) -> bool {
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
        if stated.last > 0 {
            // Nobody is told of a failure: the next one says the same.
            let _ = self.put_rows(stated, &[]).await;
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
            let Ok(stated) = row.stated(&self.audit.keys) else {
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
            // What a row says without a good signature is not signed again.
            let mut stated = known
                .and_then(|row| row.stated(&self.audit.keys).ok())
                .unwrap_or_else(|| Statement::of_none(&replica));
            let spool = Arc::new(std::sync::Mutex::new(spool));
            loop {
                let front = match front(&spool).await {
                    Ok(front) => front,
                    Err(error) => {
                        tracing::warn!(%error, replica, "Audit records of an earlier start cannot be read in audit.spool_dir");
                        break;
                    }
                };
                if !front.records.is_empty() {
                    match self.put_rows(&stated, &front.records).await {
                        Ok(now) => stated = now,
                        Err(error) => {
                            tracing::warn!(%error, replica, "Audit records of an earlier start still wait in audit.spool_dir");
                            return;
                        }
                    }
                }
                let count = front.records.len();
                if count > 0 {
                    tracing::info!(
                        count,
                        replica,
                        "Audit records of an earlier start are written"
                    );
                }
                self.tell_of_damage(&replica, front.damaged);
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
