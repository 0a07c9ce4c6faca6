//! What nobody else will find: deadlines that passed, what crashed replicas left behind, results whose
//! delegators were not told, what is old enough to be forgotten. Every replica looks each second.

use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::job::{Ending, Job, expired, lost};
use super::result::apart;
use super::table::Claim;
use super::{GRACE, Jobs, LEASE, RENEWAL};
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
        let mut looks = Looks::default();
        loop {
            tick.tick().await;
            let looked = async {
                if fresh {
                    self.table.end_leases(self.started.after(LEASE)).await?;
                    fresh = false;
                }
                looks.begin(Instant::now());
                self.look(&mut waiting, &looks).await
            };
            match looked.await {
                Ok(()) => looks.done(Instant::now()),
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "No look at jobs this time");
                }
            }
        }
    }

    /// `waiting`: up to where inboxes were looked at.
    async fn look(&self, waiting: &mut String, looks: &Looks) -> Result<(), Unavailable> {
        loop {
            let now = Timestamp::now();
            let until = now.after(LEASE);
            let overdue = self.table.claim(Claim::Overdue, now, until, BATCH).await?;
            let lost = match looks.spares(Instant::now()) {
                true => Vec::new(),
                false => self.table.claim(Claim::Lost, now, until, BATCH).await?,
            };
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
                apart(&job.id, self.give_up(job, ending)).map(drop)
            })
            .await;
            self.look_at_inboxes(waiting).await?;
            count = count.max(self.tell_results().await?);
            if count < BATCH as usize {
                return Ok(());
            }
        }
    }

    /// Writes down that a job ends without an answer, and tells of it.
    async fn give_up(&self, job: &Job, ending: Ending) {
        let finished = self.finish(job, &ending).await;
        if let (Ending::Expired(why) | Ending::Failed(why), true) = (&ending, finished)
            && let Some(told) = self.given_up.get()
        {
            told(job, why);
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

/// When it was looked last. After a time without looks the leases that have ended may be those of everybody whom the store
/// did not hear either: they get the time to say that they live.
#[derive(Default)]
struct Looks {
    last: Option<Instant>,
    spared_until: Option<Instant>,
}

impl Looks {
    fn begin(&mut self, now: Instant) {
        if self.last.is_some_and(|last| now - last > RENEWAL) {
            self.spared_until = Some(now + RENEWAL + GRACE);
        }
    }

    fn done(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// Whether nothing is lost yet.
    fn spares(&self, now: Instant) -> bool {
        self.spared_until.is_some_and(|until| now < until)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_time_without_looks_nothing_is_lost_until_everybody_could_say_that_it_lives() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut looks = Looks::default();
        let mut look = |now| {
            looks.begin(now);
            let spares = looks.spares(now);
            looks.done(now);
            spares
        };
        assert!(!look(at(0)), "before a start there were no looks to miss");
        assert!(!look(at(9)));
        for during in [60, 67, 74] {
            assert!(look(at(during)), "{during}");
        }
        assert!(!look(at(75)));
    }
}
