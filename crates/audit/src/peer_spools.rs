//! The writer's work on other chains: it records their ends in checkpoints, and adopts the spools of killed
//! processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::chain::{ChainedRecord, Statement};
use super::queue::{read_front, run_blocking};
use super::record::EventType;
use super::spool::Spool;
use super::table::{ChainRow, Month};
use super::writer::{CHECKPOINT_EVERY, TICK, Writer};
use access::workspace::Timestamp;

/// Maximum number of other chains in one checkpoint.
const SEEN_MAX: usize = 200;

/// The ends of other chains.
#[derive(Default)]
pub(super) struct PeerEnds {
    ends: BTreeMap<String, (i64, String)>,
    /// The ends that no checkpoint of this replica contains yet.
    pub(super) news: BTreeMap<String, (i64, String)>,
}

impl PeerEnds {
    /// Restores the ends of a checkpoint that was not written.
    pub(super) fn restore_news(&mut self, untold: BTreeMap<String, (i64, String)>) {
        for (replica, end) in untold {
            self.news.entry(replica).or_insert(end);
        }
    }
}

impl Writer<'_> {
    /// Reads the chains of other replicas and renews the signature of this one. Creates the partitions of
    /// this month and the next. Returns false if the store is down.
    pub(super) async fn refresh_chains(&self, stated: &Statement) -> bool {
        let month = Month::from_millis(Timestamp::now().0);
        for month in [month, month.next()] {
            if self.audit.stored.table.is_partitioned()
                && self
                    .audit
                    .stored
                    .table
                    .ensure_partition(month)
                    .await
                    .is_err()
            {
                return false;
            }
        }
        let Ok(rows) = self.audit.stored.table.read_chains().await else {
            return false;
        };
        self.record_peer_ends(&rows);
        if stated.last > 0 {
            // A failure is ignored: the next write sends the same statement.
            let _ = self.write_rows(stated, &Arc::default()).await;
        }
        true
    }

    /// Notes the ends of other chains that have a valid signature.
    fn record_peer_ends(&self, rows: &[ChainRow]) {
        let mut seen = self.peer_ends.lock();
        let others = rows
            .iter()
            .filter(|row| row.replica != self.audit.replica.as_str());
        for row in others {
            let Ok(stated) = row.verify_statement(&self.audit.keys) else {
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

    /// Writes the spools of killed processes to SQL, concurrently with this replica's own records, which
    /// must not be delayed. It can be dropped at any time without loss: a record that is written but still
    /// spooled is written again, which has no effect.
    pub(super) async fn adopt_spools(&self) {
        self.audit.stored.table.wait_for_schema().await;
        // Retries soon at first: the owner of a spool may be exiting at this moment and still be using SQL.
        let mut pause = TICK;
        loop {
            let folder = self.audit.spool.0.clone();
            let left = spawn_blocking(move || Spool::find_abandoned(&folder)).await;
            self.write_spools(left.unwrap_or_default()).await;
            sleep(pause).await;
            pause = (pause * 2).min(CHECKPOINT_EVERY);
        }
    }

    async fn write_spools(&self, left: Vec<Spool>) {
        if left.is_empty() {
            return;
        }
        // Read while the locks of the spools are held, so no other process extends these chains.
        let Ok(rows) = self.audit.stored.table.read_chains().await else {
            return;
        };
        for spool in left {
            let replica = spool.replica.clone();
            let known = rows.iter().find(|row| row.replica == replica);
            // A row without a valid signature is not signed again.
            let mut stated = known
                .and_then(|row| row.verify_statement(&self.audit.keys).ok())
                .unwrap_or_else(|| Statement::of_empty_chain(&replica));
            let spool = Arc::new(parking_lot::Mutex::new(spool));
            loop {
                let front = match read_front(&spool).await {
                    Ok(front) => front,
                    Err(error) => {
                        tracing::warn!(%error, replica, "failed to read audit records of an earlier start in audit.spool_dir");
                        break;
                    }
                };
                // The last record may be a checkpoint that still has to be signed.
                let goes_on = |one: &ChainedRecord| {
                    one.seq > stated.last && !one.has_type(EventType::AuditCheckpoint)
                };
                if stated.over && front.records.iter().any(goes_on) {
                    tracing::error!(
                        replica,
                        "records in audit.spool_dir follow the signed end of a chain; no gateway wrote them, so they are ignored"
                    );
                    break;
                }
                if !front.records.is_empty() {
                    match self.write_rows(&stated, &front.records).await {
                        Ok((now, _)) => stated = now,
                        // The records of other chains may still be written.
                        Err(error) => {
                            tracing::warn!(%error, replica, "failed to write audit records of an earlier start; they remain in audit.spool_dir");
                            break;
                        }
                    }
                }
                let count = front.records.len();
                if count > 0 {
                    tracing::info!(count, replica, "wrote audit records of an earlier start");
                }
                self.report_damage(&replica, front.damaged);
                let over = run_blocking(&spool, move |spool| {
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
