//! The periodic scan for jobs that no event leads to: passed deadlines, jobs of crashed replicas, results
//! that were not delivered to their delegators, jobs beyond their retention. Every replica scans each second.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _, stream};
use sqlx::Row as _;
use sqlx::any::AnyRow;
use tokio::time::Instant;

use super::job::{Ending, Job, deadline_expired, sender_lost};
use super::result::{catch_panic, count_undelivered};
use super::table::{Claim, TAKE_UNTOLD, UNTOLD, read_job};
use super::{GRACE, Jobs, LEASE, RENEWAL};
use crate::mailbox::{PURGE_EVERY, query};
use crate::repeat;
use access::workspace::Timestamp;
use kernel::deadline::ticks;
use kernel::rejection::{Delivery, Rejection};
use kernel::telemetry::Chain;
use stores::store::Unavailable;

/// Interval of scans.
const EVERY: Duration = Duration::from_secs(1);

/// Rows of one kind per scan. A full scan is followed by the next at once.
const BATCH: u32 = 64;

/// Ends of jobs that are written concurrently.
const AT_ONCE: usize = 8;

/// Longest pause between two attempts to deliver a result, in milliseconds: a full inbox may be emptied.
const UNTOLD_PAUSE_MAX_MS: i64 = 60_000;

impl Jobs {
    /// Scans and purges. A background task; runs until it is dropped.
    pub async fn run(&self) {
        let purge = || self.table.purge();
        tokio::join!(
            self.scan_regularly(),
            repeat(PURGE_EVERY, "purge of jobs", purge)
        );
    }

    async fn scan_regularly(&self) {
        let mut tick = ticks(EVERY);
        // On an SQLite file this process is the only worker: leases from before its start have no holder.
        let mut waiting = String::new();
        let alone = self.mailbox.db.is_embedded();
        let mut fresh = alone;
        let mut clock = ScanClock::new(Instant::now(), alone);
        loop {
            tick.tick().await;
            let looked = async {
                if fresh {
                    self.mailbox.end_leases(self.started.after(LEASE)).await?;
                    fresh = false;
                }
                // Boxed, as is the path that ends a job: the stack of a thread is not deep enough for all of
                // it.
                Box::pin(self.scan_until_done(&mut waiting, &mut clock)).await
            };
            if let Err(error) = looked.await {
                tracing::debug!(error = %Chain(&error), "job scan failed; retrying");
            }
        }
    }

    /// Runs scans until one is not full. `waiting`: the id up to which inboxes were checked.
    async fn scan_until_done(
        &self,
        waiting: &mut String,
        clock: &mut ScanClock,
    ) -> Result<(), Unavailable> {
        loop {
            // The replica that goes on finds the jobs: the audit records of their ends might not be written
            // here any more.
            if self.closing.load(Ordering::Acquire) {
                return Ok(());
            }
            let now = Timestamp::now();
            let overdue = self.table.claim(Claim::Overdue, now, BATCH).await?;
            let unrenewed = *self.unrenewed.lock();
            let spares = clock.must_spare(Instant::now(), unrenewed);
            let lost = match spares {
                true => Vec::new(),
                false => self
                    .table
                    .claim(Claim::Lost, now, BATCH)
                    .await
                    .inspect_err(|_| clock.extend_grace(Instant::now()))?,
            };
            // Marked here, since the following steps may wait for a store that becomes unavailable meanwhile.
            clock.record_scan(Instant::now());
            let mut count = overdue.len().max(lost.len());
            let mut ends = Vec::with_capacity(overdue.len() + lost.len());
            for job in &overdue {
                let delivered = match self.is_in_inbox(job).await {
                    Some(false) => Delivery::NotSent,
                    Some(true) => Delivery::Sent,
                    None => Delivery::Unknown,
                };
                ends.push((job, Ending::Expired(deadline_expired(delivered))));
            }
            let lost = lost
                .iter()
                .map(|job| (job, Ending::Failed(lost_job_rejection(job))));
            ends.extend(lost);
            // Concurrently, so that deliveries to inboxes share commits.
            let ends = stream::iter(ends);
            ends.for_each_concurrent(AT_ONCE, |(job, ending)| {
                catch_panic(&job.id, Box::pin(self.give_up(job, ending))).map(drop)
            })
            .await;
            self.check_inboxes(waiting).await?;
            count = count.max(self.deliver_results().await?);
            if count < BATCH as usize {
                return Ok(());
            }
        }
    }

    /// Writes that a job ended without an answer, and reports it.
    async fn give_up(&self, job: &Job, ending: Ending) {
        if self.closing.load(Ordering::Acquire) {
            return;
        }
        if let Some(settled) = self.settle_until_written(job, &ending).await {
            self.report_given_up(job, &ending);
            self.put_result(&settled).await;
        }
    }

    /// Reports a job that ended without an answer to the listener of [`Jobs::listeners`].
    pub(super) fn report_given_up(&self, job: &Job, ending: &Ending) {
        if let (Ending::Expired(why) | Ending::Failed(why), Some(listeners)) =
            (ending, self.listeners.get())
        {
            (listeners.given_up)(job, why);
        }
    }

    /// Delivers results to delegators, and returns the number of attempts. Each job is put off before its
    /// attempt, so that one that cannot be delivered does not hold up the others, even if it crashes this
    /// process.
    async fn deliver_results(&self) -> Result<usize, Unavailable> {
        let (mailbox, now) = (&self.mailbox, Timestamp::now());
        let query = query!(UNTOLD, now.0, i64::from(BATCH));
        let read = |row: &AnyRow| row.try_get::<String, _>("id");
        let untold = mailbox.fetch_all("job_untold", query, read).await?;
        for id in &untold {
            let take = query!(TAKE_UNTOLD, id, now.0, UNTOLD_PAUSE_MAX_MS);
            let taken = mailbox.fetch("job_take_untold", take, read_job).await;
            let taken = taken.inspect_err(|error| {
                count_undelivered(&self.mailbox.metrics, id, &Chain(error).to_string())
            });
            let Some(job) = taken? else { continue };
            if catch_panic(id, self.put_result(&job)).await.is_none() {
                count_undelivered(&self.mailbox.metrics, id, "a bug");
            }
        }
        Ok(untold.len())
    }
}

/// The time of the last scan. After a time without scans, the start included, leases may have expired because
/// the store was unavailable to their holders as well: the holders get time to renew them.
struct ScanClock {
    last: Instant,
    spared_until: Instant,
}

impl ScanClock {
    /// No scan yet. `alone`: no other process has leases.
    fn new(now: Instant, alone: bool) -> Self {
        let spared = if alone { Duration::ZERO } else { SPARED };
        Self {
            last: now,
            spared_until: now + spared,
        }
    }

    /// True while no job may be declared lost. `unrenewed`: when this replica last failed to renew a lease.
    fn must_spare(&mut self, now: Instant, unrenewed: Option<Instant>) -> bool {
        if now - self.last > RENEWAL {
            self.extend_grace(now);
        }
        if let Some(at) = unrenewed {
            self.extend_grace(at);
        }
        now < self.spared_until
    }

    /// The store may answer reads and reject writes.
    fn extend_grace(&mut self, at: Instant) {
        self.spared_until = self.spared_until.max(at + SPARED);
    }

    /// Records a scan that the store answered.
    fn record_scan(&mut self, now: Instant) {
        self.last = now;
    }
}

/// Time that live holders need to renew their leases once the store is back.
const SPARED: Duration = RENEWAL.saturating_add(GRACE);

/// Returns the rejection of a job after its holder crashed.
fn lost_job_rejection(job: &Job) -> Rejection {
    tracing::warn!(
        job = job.id,
        "job lost: the gateway that sent it ended before there was an answer"
    );
    sender_lost()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_time_without_looks_nothing_is_lost_until_everybody_could_say_that_it_lives() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut clock = ScanClock::new(start, false);
        let mut scan = |now| {
            let spares = clock.must_spare(now, None);
            clock.record_scan(now);
            spares
        };
        for (at_seconds, spared) in [(0, true), (9, true), (15, false), (24, false)] {
            assert_eq!(scan(at(at_seconds)), spared, "{at_seconds}");
        }
        for during in [60, 67, 74] {
            assert!(scan(at(during)), "{during}");
        }
        assert!(!scan(at(75)));
        let mut alone = ScanClock::new(start, true);
        assert!(!alone.must_spare(start, None));
        assert!(alone.must_spare(at(3), Some(at(2))));
        alone.record_scan(at(12));
        assert!(alone.must_spare(at(16), Some(at(2))));
        assert!(!alone.must_spare(at(17), Some(at(2))));
    }
}
