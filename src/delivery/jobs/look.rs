//! What nobody else will find: deadlines that passed, what crashed replicas left behind, results whose
//! delegators were not told, what is old enough to be forgotten. Every replica looks each second.

use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::time::{MissedTickBehavior, interval};

use super::job::{Ending, Job, expired, lost};
use super::result::apart;
use super::table::Claim;
use super::{Jobs, LEASE};
use crate::rejection::Rejection;
use crate::store::Unavailable;
use crate::telemetry::Chain;
use crate::workspace::Timestamp;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// Rows of one kind that one look takes. The next comes at once if there were as many.
const BATCH: u32 = 64;

/// Jobs whose ends are written down at once.
const AT_ONCE: usize = 8;

/// Between two tries to tell of an end at most: an inbox that is full may be emptied.
const UNTOLD_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Between two looks for what is to be forgotten.
const PURGE_EVERY: Duration = Duration::from_secs(60);

/// Rows that are forgotten at once.
const PURGE_BATCH: u32 = 500;

impl Jobs {
    /// The work in the background. Runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(self.look_regularly(), self.purge_regularly());
    }

    async fn look_regularly(&self) {
        let mut tick = interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // On an SQLite file nobody but this process works: leases from before its start are nobody's.
        let mut waiting = String::new();
        let mut fresh = self.table.is_alone();
        loop {
            tick.tick().await;
            let looked = async {
                if fresh {
                    self.table.end_leases(self.started.after(LEASE)).await?;
                    fresh = false;
                }
                self.look(&mut waiting).await
            };
            if let Err(error) = looked.await {
                tracing::debug!(error = %Chain(&error), "No look at jobs this time");
            }
        }
    }

    /// `waiting`: up to where inboxes were looked at.
    async fn look(&self, waiting: &mut String) -> Result<(), Unavailable> {
        loop {
            let now = Timestamp::now();
            let until = now.after(LEASE);
            let overdue = self.table.claim(Claim::Overdue, now, until, BATCH).await?;
            let lost = self.table.claim(Claim::Lost, now, until, BATCH).await?;
            let mut count = overdue.len().max(lost.len());
            let mut ends = Vec::with_capacity(overdue.len() + lost.len());
            for job in &overdue {
                let delivered = match self.is_in_inbox(job).await {
                    Some(false) => "false",
                    Some(true) => "true",
                    None => "unknown",
                };
                ends.push((job, Ending::Expired(expired(delivered))));
            }
            let lost = lost.iter().map(|job| (job, Ending::Failed(lost_job(job))));
            ends.extend(lost);
            // Together, so that those who are told share commits.
            let ends = stream::iter(ends);
            ends.for_each_concurrent(AT_ONCE, |(job, ending)| {
                apart(&job.id, self.finish(job, ending)).map(drop)
            })
            .await;
            self.look_at_inboxes(waiting).await?;
            count = count.max(self.tell_results().await?);
            if count < BATCH as usize {
                return Ok(());
            }
        }
    }

    /// Tells of what ended, and answers of how many it tried to. Each is put off before it is tried, so that one
    /// of which cannot be told keeps none of the others from its turn, even if it ends this process.
    async fn tell_results(&self) -> Result<usize, Unavailable> {
        let now = Timestamp::now();
        let untold = self.table.untold(now, BATCH).await?;
        for id in &untold {
            let taken = self.table.take_untold(id, now, UNTOLD_PAUSE_MAX).await;
            let taken = taken.inspect_err(|error| self.untold(id, &Chain(error).to_string()));
            let Some(job) = taken? else { continue };
            if apart(id, self.put_result(&job)).await.is_none() {
                self.untold(id, "a bug");
            }
        }
        Ok(untold.len())
    }

    async fn purge_regularly(&self) {
        let mut tick = interval(PURGE_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let retention = self.config.get().delegation.retention;
            let before = Timestamp::now().before(retention);
            loop {
                match self.table.purge(before, PURGE_BATCH).await {
                    Ok(purged) if purged >= u64::from(PURGE_BATCH) => {}
                    Ok(_) => break,
                    Err(error) => {
                        tracing::debug!(error = %Chain(&error), "Old jobs are not forgotten this time");
                        break;
                    }
                }
            }
        }
    }
}

/// Why a job of somebody who is gone has no answer.
fn lost_job(job: &Job) -> Rejection {
    tracing::warn!(
        job = job.id,
        "A job was sent by a gateway that ended before there was an answer"
    );
    lost()
}
