//! Keys published at a URL (RFC 7517, 5), fetched in the background and kept fresh ([`RemoteKeySet`]).
//! Tokens are verified from memory. Only a token with an unknown key waits, for a fetch that all
//! such requests share.

mod fetch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use url::Url;

pub(super) use self::fetch::{FETCH_MAX, build_client, fetch_json, fetch_keys, read_bounded};
pub use self::fetch::{FetchFailure, fetch_issuer};
use super::KeySet;
use kernel::metrics::{JwksFetch, Metrics};
use kernel::telemetry::Chain;

/// Least time between two fetches, also for unknown keys and after failures.
pub const FETCH_PAUSE: Duration = Duration::from_secs(10);

/// Most requests that wait for a fetch, of each publisher.
const WAITING_MAX: usize = 100;

/// Timing of fetches from a host that does not answer.
#[derive(Clone, Copy, Debug)]
pub struct FetchTiming {
    /// Replaces [`FETCH_PAUSE`] until the first successful fetch.
    pub first_pause: Duration,
    /// Time for which keys are valid after the last successful fetch.
    pub stale_max: Duration,
}

/// Too many requests wait for the same fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyWaiters;

/// Keys, and the time until which they are valid without another fetch.
struct CachedKeySet {
    keys: Arc<KeySet>,
    good_until: Instant,
}

/// The state of the fetches.
#[derive(Clone, Copy, Default)]
struct FetchState {
    /// Start of the last one.
    began: Option<Instant>,
    /// Number of completed fetches.
    ended: u64,
    running: bool,
    /// Outcome of the last one.
    outcome: Option<JwksFetch>,
}

/// The keys at one URL.
pub struct RemoteKeySet {
    /// The issuer of the keys, for the log.
    issuer: String,
    url: Url,
    timing: FetchTiming,
    known: ArcSwapOption<CachedKeySet>,
    fetches: watch::Sender<FetchState>,
    /// Signals that a token names an unknown key.
    asked: Notify,
    waiting: Semaphore,
    /// Set by [`RemoteKeySet::withdraw`]: the result of a later fetch is discarded.
    over: AtomicBool,
}

impl RemoteKeySet {
    /// Creates the store. Fetches nothing: [`RemoteKeySet::keep_fresh`] does.
    pub fn new(issuer: String, url: Url, timing: FetchTiming) -> Self {
        Self {
            issuer,
            url,
            timing,
            known: ArcSwapOption::empty(),
            fetches: watch::Sender::default(),
            asked: Notify::new(),
            waiting: Semaphore::new(WAITING_MAX),
            over: AtomicBool::new(false),
        }
    }

    /// Fetches when the keys are due or on request, and never more often than [`FETCH_PAUSE`]. A
    /// background task; runs until it is dropped.
    pub async fn keep_fresh(&self, metrics: &Metrics) {
        // A cancelled fetch did not complete: reset the state.
        self.fetches.send_modify(|fetches| fetches.running = false);
        loop {
            let began = Instant::now();
            self.fetches.send_modify(|fetches| {
                fetches.began = Some(began);
                fetches.running = true;
            });
            let (outcome, due_in) = match self.fetch().await {
                Ok(age) => (JwksFetch::Fetched, age.mul_f32(0.8)),
                Err(failure) => {
                    self.record_failure(&failure);
                    (failure.outcome, self.fetch_pause())
                }
            };
            metrics.jwks_fetches[outcome].inc();
            let before = self.fetches.borrow().outcome;
            if outcome == JwksFetch::Fetched && before != Some(outcome) {
                let keys = self.known.load().as_ref().map_or(0, |k| k.keys.len());
                tracing::info!(
                    issuer = self.issuer,
                    keys,
                    "fetched the published keys of an issuer"
                );
            }
            self.fetches.send_modify(|fetches| {
                fetches.running = false;
                fetches.ended += 1;
                fetches.outcome = Some(outcome);
            });
            tokio::select! {
                () = sleep(due_in) => {}
                () = self.asked.notified() => {}
            }
            sleep_until(began + self.fetch_pause()).await;
        }
    }

    /// Returns the keys that are valid now. `None`: none were fetched, or too long ago.
    pub fn valid_keys(&self) -> Option<Arc<KeySet>> {
        let known = self.known.load();
        let good = known.as_ref().filter(|k| Instant::now() < k.good_until)?;
        Some(Arc::clone(&good.keys))
    }

    /// Waits for the fetch in progress, or for a new one unless the last was just now. If it takes
    /// too long, the caller decides by the keys that are known.
    ///
    /// # Errors
    /// [`TooManyWaiters`], without waiting.
    pub async fn refresh(&self) -> Result<(), TooManyWaiters> {
        let mut fetches = self.fetches.subscribe();
        let seen = *fetches.borrow_and_update();
        if !seen.running {
            if seen
                .began
                .is_some_and(|at| at.elapsed() < self.fetch_pause())
            {
                return Ok(());
            }
            self.asked.notify_one();
        }
        let _waiting = self.waiting.try_acquire().map_err(|_| TooManyWaiters)?;
        let ended = fetches.wait_for(|now| now.ended > seen.ended);
        let _ = timeout(FETCH_MAX + Duration::from_secs(1), ended).await;
        Ok(())
    }

    /// Returns the outcome of the last fetch as a word.
    pub fn last_fetch(&self) -> &'static str {
        let outcome = self.fetches.borrow().outcome;
        outcome.map_or("not_fetched", JwksFetch::as_str)
    }

    /// Withdraws the keys: from now on their signatures are not valid.
    pub fn withdraw(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.clear();
    }

    fn fetch_pause(&self) -> Duration {
        if self.known.load().is_some() {
            FETCH_PAUSE
        } else {
            self.timing.first_pause
        }
    }

    async fn fetch(&self) -> Result<Duration, FetchFailure> {
        let (keys, age) = fetch_keys(&self.url).await?;
        if keys.is_empty() {
            tracing::warn!(
                issuer = self.issuer,
                "an issuer publishes no usable keys; its tokens are rejected"
            );
        }
        let earlier = self.known.load_full();
        let keys = match &earlier {
            Some(known) => keys.supersede(&known.keys),
            None => keys,
        };
        let known = CachedKeySet {
            keys: Arc::new(keys),
            good_until: Instant::now() + self.timing.stale_max,
        };
        self.known.store(Some(Arc::new(known)));
        if self.over.load(Ordering::SeqCst) {
            self.clear();
        }
        Ok(age)
    }

    fn record_failure(&self, failure: &FetchFailure) {
        let error = Chain(failure.cause.as_ref());
        let (issuer, reason) = (self.issuer.as_str(), failure.outcome.as_str());
        if self.fetches.borrow().outcome == Some(failure.outcome) {
            tracing::debug!(issuer, reason, %error, "still failing to fetch the keys of an issuer");
        } else {
            let count_on = humantime::format_duration(self.timing.stale_max);
            tracing::warn!(issuer, reason, %error, %count_on, "failed to fetch the keys of an issuer; keeping the known ones");
        }
        let lapsed = |known: &CachedKeySet| known.good_until <= Instant::now();
        if self.known.load().as_deref().is_some_and(lapsed) {
            self.clear();
        }
    }

    fn clear(&self) {
        if let Some(known) = self.known.swap(None) {
            known.keys.withdraw();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No server listens there.
    fn published(first_pause: Duration) -> RemoteKeySet {
        let url = "http://127.0.0.1:9/jwks.json".parse().unwrap();
        let timing = FetchTiming {
            first_pause,
            stale_max: Duration::from_secs(3600),
        };
        RemoteKeySet::new("https://login.test".to_owned(), url, timing)
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_long_and_a_crowd_not_at_all() {
        let published = published(FETCH_PAUSE);
        let began = Instant::now();
        assert_eq!(published.refresh().await, Ok(()));
        assert!(began.elapsed() <= FETCH_MAX + Duration::from_secs(1));
        assert!(published.valid_keys().is_none());
        let places = u32::try_from(WAITING_MAX).unwrap();
        let _crowd = published.waiting.try_acquire_many(places).unwrap();
        let began = Instant::now();
        assert_eq!(published.refresh().await, Err(TooManyWaiters));
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn until_the_first_keys_it_asks_as_often_as_it_was_told_to() {
        let published = published(Duration::from_millis(20));
        let metrics = Metrics::new();
        let mut fetches = published.fetches.subscribe();
        let third = fetches.wait_for(|fetches| fetches.ended == 3);
        let waited = tokio::select! {
            () = published.keep_fresh(&metrics) => unreachable!("runs until it is dropped"),
            waited = timeout(FETCH_PAUSE / 2, third) => waited,
        };
        assert!(waited.is_ok());
    }
}
