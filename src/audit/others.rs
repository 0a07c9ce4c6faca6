//! What a writer sees beside its own records: chains of other replicas, and what killed ones left.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::chain::{Chained, Statement};
use super::month::Month;
use super::record::EventType;
use super::spool::Spool;
use super::table::ChainRow;
use super::waiting::{front, lock, on_disk};
use super::writer::{CHECKPOINT_EVERY, TICK, Writer};
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

impl Seen {
    /// The checkpoint that told of these never was.
    pub(super) fn tell_again(&mut self, untold: BTreeMap<String, (i64, String)>) {
        for (replica, end) in untold {
            self.news.entry(replica).or_insert(end);
        }
    }
}

impl Writer<'_> {
    /// What others have, and that we still are. False: the store is away.
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

    /// Writes what killed processes left in the spool, beside our own records, which it must not hold up. Until it is
    /// dropped, which loses nothing: what is written and still there is written once more.
    pub(super) async fn adopt_left(&self) {
        self.audit.stored.table.await_schema().await;
        // Soon again at first: who left them may be ending at this moment, and SQL be busy with that.
        let mut pause = TICK;
        loop {
            let folder = self.audit.spool.0.clone();
            let left = spawn_blocking(move || Spool::left(&folder)).await;
            self.adopt(left.unwrap_or_default()).await;
            sleep(pause).await;
            pause = (pause * 2).min(CHECKPOINT_EVERY);
        }
    }

    async fn adopt(&self, left: Vec<Spool>) {
        if left.is_empty() {
            return;
        }
        // Once they are held: nobody else goes on with these chains.
        let Ok(rows) = self.audit.stored.table.chains().await else {
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
                // Its last record may be a checkpoint, which has to be signed.
                let goes_on = |one: &Chained| {
                    let checkpoint = one.record.event_type == EventType::AuditCheckpoint.word();
                    one.record.seq > stated.last && !checkpoint
                };
                if stated.over && front.records.iter().any(goes_on) {
                    tracing::error!(
                        replica,
                        "Records in audit.spool_dir follow the signed end of a chain: no gateway put them there, and none writes them"
                    );
                    break;
                }
                if !front.records.is_empty() {
                    match self.put_rows(&stated, &front.records).await {
                        Ok((now, _)) => stated = now,
                        // Others' may be written all the same.
                        Err(error) => {
                            tracing::warn!(%error, replica, "Audit records of an earlier start still wait in audit.spool_dir");
                            break;
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
