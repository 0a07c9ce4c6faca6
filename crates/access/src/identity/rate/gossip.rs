//! Gossip of rates: replicas publish the requests that they let pass, so that one allowance holds for all of
//! them. No request waits for it: a replica decides by its own state, and late gossip becomes debt.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::{Limit, Rates};
use kernel::metrics::{Metrics, RateShare};
use stores::shared::{Notice, Shared};

/// The channel.
const CHANNEL: &str = "gw:rate";

/// Interval of publications, while there is something to publish.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// Minimum pause between two publications when a key was used a lot.
const TELL_PAUSE: Duration = Duration::from_millis(5);

/// A delay of the timer that indicates a stall: the process, or its machine, was stopped.
const STALL: Duration = Duration::from_secs(1);

/// Time after a stall during which received gossip is stale.
const STALE_FOR: Duration = Duration::from_millis(500);

/// Sets of buckets in one message: at most 512 keys, 14 KB.
const SETS_MAX: usize = 64;

/// Messages of one round; the rest is published in the next.
const MESSAGES_MAX: usize = 128;

/// Keys that are read from one message.
const KEYS_MAX: usize = 512;

/// A message to publish, the number of requests in it, and true if it did not hold everything.
type PendingUpdate = (String, u64, bool);

impl Rates {
    /// Publishes and receives gossip, as long as the process lives. Returns at once when the store is not
    /// shared. A background task.
    pub async fn run_gossip(&self, shared: &Shared, metrics: &Metrics) {
        if shared.is_embedded() {
            return;
        }
        self.publishing.store(true, Ordering::Relaxed);
        tokio::join!(self.publish(shared, metrics), self.receive(shared, metrics));
    }

    async fn publish(&self, shared: &Shared, metrics: &Metrics) {
        loop {
            let began = Instant::now();
            tokio::select! {
                () = sleep(TELL_EVERY) => {}
                () = self.soon.notified() => sleep(TELL_PAUSE).await,
            }
            if began.elapsed() > STALL {
                self.on_clock_jump();
            }
            for _ in 0..MESSAGES_MAX {
                let Some((message, count, more)) = self.pending_update() else {
                    break;
                };
                // A failed publication is not repeated: it would be stale by then. It is an error of 50 ms.
                let outcome = match shared.publish(CHANNEL, &message).await {
                    Ok(()) => RateShare::Told,
                    Err(_) => RateShare::Lost,
                };
                metrics.rate_shares[outcome].inc_by(count);
                // Requests that came in meanwhile are published in the next round.
                if !more {
                    break;
                }
            }
        }
    }

    async fn receive(&self, shared: &Shared, metrics: &Metrics) {
        let mut subscription = shared.subscribe(CHANNEL);
        loop {
            // Gossip that was missed while the link was down is forgiven.
            if let Notice::Message(text) = subscription.next().await {
                metrics.rate_shares[RateShare::Heard].inc_by(self.apply_update(&text));
            }
        }
    }

    /// Returns the next message: the sender, then `c` (caller), `u` (users of an org), `f` (failures) or `r`
    /// (cards read) with a key, `*` and a count, all in hexadecimal. Keys are of hashes.
    pub(super) fn pending_update(&self) -> Option<PendingUpdate> {
        let mut message = format!("{:x}", self.replica);
        let (mut sum, mut more) = (0, false);
        for limit in self.limits() {
            let Some(buckets) = limit.buckets.get() else {
                continue;
            };
            more |= buckets.drain_unpublished(SETS_MAX / 4, |key, count| {
                sum += u64::from(count);
                // Writing into a string does not fail.
                let _ = write!(message, " {}{key:x}*{count:x}", limit.sign);
            });
        }
        (sum > 0).then_some((message, sum, more))
    }

    /// Ignores gossip for a while after a stall. Messages of the stalled time arrive now, all at once, and
    /// their debt is long paid off: applied now, it would lock out callers that kept to the limit.
    pub(super) fn on_clock_jump(&self) {
        let span = u64::try_from(STALE_FOR.as_nanos()).unwrap_or(0);
        let until = self.now().saturating_add(span);
        self.ignore_gossip_until.store(until, Ordering::Relaxed);
    }

    /// Applies a message of another replica. Returns the number of requests in it.
    pub(super) fn apply_update(&self, message: &str) -> u64 {
        let mut words = message.split(' ');
        let teller = words.next().and_then(|id| u64::from_str_radix(id, 16).ok());
        if teller.is_none_or(|id| id == self.replica) {
            return 0;
        }
        let now = self.now();
        if now < self.ignore_gossip_until.load(Ordering::Relaxed) {
            return 0;
        }
        let mut sum = 0;
        for word in words.take(KEYS_MAX) {
            let Some((sign, key, count)) = parse_entry(word) else {
                continue;
            };
            let mut limits = self.limits().into_iter();
            let active = limits.find(|limit| limit.sign == sign);
            if let Some((rule, buckets)) = active.and_then(Limit::get_active) {
                buckets.charge(key, count, rule.quota, now);
                sum += u64::from(count);
            }
        }
        sum
    }
}

fn parse_entry(word: &str) -> Option<(char, u64, u32)> {
    let (key, count) = word.split_once('*')?;
    let sign = key.chars().next()?;
    let key = key.strip_prefix(sign)?;
    let key = u64::from_str_radix(key, 16).ok()?;
    let count = u32::from_str_radix(count, 16).ok()?;
    Some((sign, key, count))
}
