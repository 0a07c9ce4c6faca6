//! Replicas tell each other what they let pass, so that one allowance holds for all of them. Off the
//! way of every request: a replica decides by what it knows, and owes what it hears of too late.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::Rates;
use crate::metrics::{Metrics, RateShare};
use crate::shared::{Notice, Shared};

/// Where it is told.
const CHANNEL: &str = "gw:rate";

/// How often, while there is something to tell.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// Between two tellings when a key was used a lot.
const TELL_PAUSE: Duration = Duration::from_millis(5);

/// A pause of ours that is none of the clock's: the process was stopped, or its machine.
const STALL: Duration = Duration::from_secs(1);

/// How long what is heard after that is old.
const STALE_FOR: Duration = Duration::from_millis(500);

/// Sets of buckets in one message: at most 512 keys, 14 KB.
const SETS_MAX: usize = 64;

/// Messages at once; what is left over is told the next time.
const MESSAGES_MAX: usize = 128;

/// Keys that are read from one message.
const KEYS_MAX: usize = 512;

/// What others are to be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Untold {
    pub(super) message: String,
    /// Of how many requests it tells.
    pub(super) count: u64,
    /// Whether the message did not hold everything.
    more: bool,
}

impl Rates {
    /// Tells and hears, for as long as the process lives. Returns at once when nobody shares the
    /// store. A background task of the gateway.
    pub async fn share(&self, shared: &Shared, metrics: &Metrics) {
        if shared.is_embedded() {
            return;
        }
        self.begin_telling();
        tokio::join!(self.tell(shared, metrics), self.hear(shared, metrics));
    }

    async fn tell(&self, shared: &Shared, metrics: &Metrics) {
        loop {
            let began = Instant::now();
            tokio::select! {
                () = sleep(TELL_EVERY) => {}
                () = self.soon.notified() => sleep(TELL_PAUSE).await,
            }
            if began.elapsed() > STALL {
                self.was_stalled();
            }
            for _ in 0..MESSAGES_MAX {
                let Some(Untold {
                    message,
                    count,
                    more,
                }) = self.untold()
                else {
                    break;
                };
                // What was not told is not repeated: by then it is old. It is an error of 50 ms.
                let outcome = match shared.publish(CHANNEL, &message).await {
                    Ok(()) => RateShare::Told,
                    Err(_) => RateShare::Lost,
                };
                metrics.rate_share(outcome, count);
                // What came in while this one was sent waits for its turn.
                if !more {
                    break;
                }
            }
        }
    }

    async fn hear(&self, shared: &Shared, metrics: &Metrics) {
        let mut subscription = shared.subscribe(CHANNEL);
        loop {
            // What was missed while the link was down is forgiven.
            if let Notice::Message(text) = subscription.next().await {
                metrics.rate_share(RateShare::Heard, self.heard(&text));
            }
        }
    }

    /// The next message: who says it, then `c` (caller), `u` (users of an org), `f` (failures) or `r` (cards read) with a
    /// key, `*` and a count, all in hexadecimal. Keys are of hashes.
    pub(super) fn untold(&self) -> Option<Untold> {
        let mut message = format!("{:x}", self.replica);
        let (mut sum, mut more) = (0, false);
        for (kind, limit) in [
            ('c', &self.callers),
            ('u', &self.org_users),
            ('f', &self.failures),
            ('r', &self.cards),
        ] {
            let Some(buckets) = limit.buckets.get() else {
                continue;
            };
            more |= buckets.drain_untold(SETS_MAX / 4, |key, count| {
                sum += u64::from(count);
                // Writing into a string does not fail.
                let _ = write!(message, " {kind}{key:x}*{count:x}");
            });
        }
        (sum > 0).then_some(Untold {
            message,
            count: sum,
            more,
        })
    }

    /// What others told in the meantime comes now, all at once, and is paid off long since: charged now,
    /// it would lock out whoever kept to the limit. Forgiven, as what is missed without a link.
    pub(super) fn was_stalled(&self) {
        let span = u64::try_from(STALE_FOR.as_nanos()).unwrap_or(0);
        let until = self.now().saturating_add(span);
        self.deaf_until.store(until, Ordering::Relaxed);
    }

    /// Takes what another replica told. Answers how many requests that was.
    pub(super) fn heard(&self, message: &str) -> u64 {
        let mut words = message.split(' ');
        let teller = words.next().and_then(|id| u64::from_str_radix(id, 16).ok());
        if teller.is_none_or(|id| id == self.replica) {
            return 0;
        }
        let now = self.now();
        if now < self.deaf_until.load(Ordering::Relaxed) {
            return 0;
        }
        let mut sum = 0;
        for word in words.take(KEYS_MAX) {
            let Some((kind, key, count)) = read(word) else {
                continue;
            };
            let limit = match kind {
                "c" => &self.callers,
                "u" => &self.org_users,
                "f" => &self.failures,
                "r" => &self.cards,
                _ => continue,
            };
            if let Some((rule, buckets)) = limit.on() {
                buckets.owe(key, count, rule.quota, now);
                sum += u64::from(count);
            }
        }
        sum
    }
}

fn read(word: &str) -> Option<(&str, u64, u32)> {
    let (kind, rest) = word.split_at_checked(1)?;
    let (key, count) = rest.split_once('*')?;
    let key = u64::from_str_radix(key, 16).ok()?;
    let count = u32::from_str_radix(count, 16).ok()?;
    Some((kind, key, count))
}
