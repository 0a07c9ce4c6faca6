//! Canvas tokens of foreign issuers (`auth.issuers`). Each issuer's keys are fetched in the
//! background, so a token is verified from memory; only one that names an unknown key waits, for one
//! fetch that all of them share.

mod fetch;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::fetch::{FETCH_MAX, Failure, client, fetch};
use super::authenticate::Signed;
use super::{CredentialKind, Principal, now_ms};
use crate::config;
use crate::ids::WorkspaceId;
use crate::metrics::{JwksFetch, Metrics};
use crate::rejection::{Reason, Rejection};
use crate::trust::{KeySet, LEEWAY_SECONDS, PublicKey, TokenError, TokenHead, claimed_issuer};

/// From one fetch of an issuer's keys to the next one at least, also for unknown keys and failures.
const FETCH_PAUSE: Duration = Duration::from_secs(10);

/// How long keys count after the last good fetch while their host does not answer.
const STALE_MAX: Duration = Duration::from_secs(3600);

/// Requests that wait for a fetch at most, of each issuer. More are `store_unavailable` at once.
const WAITING_MAX: usize = 100;

/// Longest name of a user or an org, in characters.
const NAME_CHARS_MAX: usize = 256;

/// Workspaces in one token at most.
const WORKSPACES_MAX: usize = 200;

/// What a token is signed with.
#[derive(Clone, Debug)]
pub(super) struct Signer {
    pub(super) named: Named,
    /// Withdrawn, it proves nothing any more.
    pub(super) key: Arc<PublicKey>,
}

impl Signer {
    /// A key of this gateway.
    pub(super) fn own(head: TokenHead, key: Arc<PublicKey>) -> Self {
        let named = Named { issuer: None, head };
        Self { named, key }
    }
}

/// A key by its name, as another replica can find it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Named {
    /// `None`: the gateway's own.
    pub(super) issuer: Option<String>,
    #[serde(flatten)]
    pub(super) head: TokenHead,
}

/// Why a foreign token proves nothing.
pub(super) enum NotForeign {
    /// It is not good.
    Refused(TokenError),
    /// Its issuer's keys are not known.
    Unavailable(Rejection),
}

impl From<TokenError> for NotForeign {
    fn from(error: TokenError) -> Self {
        Self::Refused(error)
    }
}

/// The issuers that are configured.
pub(super) struct Issuers {
    all: ArcSwap<Vec<Arc<Issuer>>>,
    changed: Notify,
    metrics: Arc<Metrics>,
}

impl Issuers {
    /// Fetches nothing: [`Issuers::run`] does.
    pub(super) fn new(settings: &[config::Issuer], metrics: Arc<Metrics>) -> Self {
        let issuers = Self {
            all: ArcSwap::default(),
            changed: Notify::new(),
            metrics,
        };
        issuers.set(settings);
        issuers
    }

    /// Other issuers from now on. One that stays as it is keeps its keys; of one that goes nothing
    /// is good any more.
    pub(super) fn set(&self, settings: &[config::Issuer]) {
        let earlier = self.all.load_full();
        let same =
            |wanted: &config::Issuer| earlier.iter().find(|issuer| issuer.settings == *wanted);
        let all: Vec<_> = settings
            .iter()
            .map(|wanted| {
                same(wanted).map_or_else(|| Arc::new(Issuer::new(wanted.clone())), Arc::clone)
            })
            .collect();
        self.all.store(Arc::new(all));
        for gone in earlier.iter().filter(|i| !settings.contains(&i.settings)) {
            gone.removed.store(true, Ordering::SeqCst);
            gone.forget();
        }
        self.changed.notify_one();
    }

    /// Keeps the keys of all issuers fresh. A background task; runs until it is dropped.
    pub(super) async fn run(&self) {
        loop {
            let all = self.all.load_full();
            let keeping = join_all(all.iter().map(|issuer| issuer.keep(&self.metrics)));
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = async { keeping.await; std::future::pending().await } => {}
            }
        }
    }

    /// Who `token` proves. `None`: it is from none of these issuers, by its own word.
    pub(super) async fn verify(&self, token: &str) -> Result<Option<Signed>, NotForeign> {
        let all = self.all.load();
        if all.is_empty() {
            return Ok(None);
        }
        let Some(claimed) = claimed_issuer(token) else {
            return Ok(None);
        };
        drop(all);
        match self.of(&claimed) {
            Some(issuer) => issuer.verify(token).await.map(Some),
            None => Ok(None),
        }
    }

    /// The foreign key of that name, if its issuer still stands by it. `None`: the issuer is gone.
    pub(super) async fn signer(&self, named: Named) -> Result<Option<Signer>, NotForeign> {
        let issuer = named.issuer.as_deref().and_then(|name| self.of(name));
        let Some(issuer) = issuer else {
            return Ok(None);
        };
        let key = issuer.key(&named.head).await?;
        Ok(Some(Signer { named, key }))
    }

    fn of(&self, name: &str) -> Option<Arc<Issuer>> {
        let all = self.all.load();
        let found = all.iter().find(|issuer| issuer.settings.issuer == name);
        found.map(Arc::clone)
    }
}

/// Keys, and until when they count without another fetch.
struct Known {
    keys: KeySet,
    good_until: Instant,
}

/// The fetches of one issuer so far.
#[derive(Clone, Copy, Default)]
struct Fetches {
    /// When the last one began.
    began: Option<Instant>,
    /// How many have ended.
    ended: u64,
    running: bool,
    /// How the last one ended.
    outcome: Option<JwksFetch>,
}

/// One issuer and its keys.
struct Issuer {
    settings: config::Issuer,
    client: Result<reqwest::Client, Failure>,
    known: ArcSwapOption<Known>,
    fetches: watch::Sender<Fetches>,
    /// A token names a key that is not known.
    asked: Notify,
    waiting: AtomicUsize,
    /// No longer configured: a fetch that ends now teaches nothing.
    removed: AtomicBool,
}

impl Issuer {
    fn new(settings: config::Issuer) -> Self {
        let client = client(&settings.jwks_url).map_err(|error| Failure {
            outcome: JwksFetch::Unreachable,
            cause: error.into(),
        });
        Self {
            settings,
            client,
            known: ArcSwapOption::empty(),
            fetches: watch::Sender::default(),
            asked: Notify::new(),
            waiting: AtomicUsize::new(0),
            removed: AtomicBool::new(false),
        }
    }

    /// Fetches when it is time, or when asked to, and never more often than [`FETCH_PAUSE`].
    async fn keep(&self, metrics: &Metrics) {
        // A fetch that another list of issuers cut short did not end: begin anew.
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
                    self.failed(&failure);
                    (failure.outcome, FETCH_PAUSE)
                }
            };
            metrics.jwks_fetch(outcome);
            let before = self.fetches.borrow().outcome;
            if outcome == JwksFetch::Fetched && before != Some(outcome) {
                let keys = self
                    .known
                    .load()
                    .as_ref()
                    .map_or(0, |known| known.keys.len());
                tracing::info!(
                    issuer = self.settings.issuer,
                    keys,
                    "The keys of an issuer are known"
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
            sleep_until(began + FETCH_PAUSE).await;
        }
    }

    async fn fetch(&self) -> Result<Duration, Failure> {
        let client = self.client.as_ref().map_err(|failure| Failure {
            outcome: failure.outcome,
            cause: failure.cause.to_string().into(),
        })?;
        let (keys, age) = fetch(client, &self.settings.jwks_url).await?;
        if keys.is_empty() {
            tracing::warn!(
                issuer = self.settings.issuer,
                "An issuer publishes no usable key: none of its tokens is accepted"
            );
        }
        let earlier = self.known.load_full();
        let keys = match &earlier {
            Some(known) => keys.replacing(&known.keys),
            None => keys,
        };
        let good_until = Instant::now() + STALE_MAX;
        self.known.store(Some(Arc::new(Known { keys, good_until })));
        if self.removed.load(Ordering::SeqCst) {
            self.forget();
        }
        Ok(age)
    }

    fn failed(&self, failure: &Failure) {
        let error = crate::telemetry::Chain(failure.cause.as_ref());
        let (issuer, reason) = (self.settings.issuer.as_str(), failure.outcome.word());
        if self.fetches.borrow().outcome == Some(failure.outcome) {
            tracing::debug!(issuer, reason, %error, "The keys of an issuer can still not be fetched");
        } else {
            tracing::warn!(issuer, reason, %error, "The keys of an issuer cannot be fetched; its known ones count for an hour");
        }
        let lapsed = |known: &Known| known.good_until <= Instant::now();
        if self.known.load().as_deref().is_some_and(lapsed) {
            self.forget();
        }
    }

    /// Nothing that it signed is good any more.
    fn forget(&self) {
        if let Some(known) = self.known.swap(None) {
            known.keys.withdraw();
        }
    }

    async fn verify(&self, token: &str) -> Result<Signed, NotForeign> {
        let head = TokenHead::foreign(token)?;
        let key = self.key(&head).await?;
        let (issuer, audience) = (&self.settings.issuer, &self.settings.audience);
        let claims: Claims = key.verify(token, &head, issuer, audience)?;
        let expires_at = claims.exp.saturating_mul(1000);
        let principal = claims.principal()?;
        let issuer = Some(issuer.clone());
        let named = Named { issuer, head };
        Ok(Signed {
            principal,
            kind: CredentialKind::Canvas,
            expires_at,
            signer: Signer { named, key },
            only_to: None,
        })
    }

    async fn key(&self, head: &TokenHead) -> Result<Arc<PublicKey>, NotForeign> {
        if let Some(Some(key)) = self.find(head) {
            return Ok(key);
        }
        self.await_fetch().await.map_err(NotForeign::Unavailable)?;
        match self.find(head) {
            Some(Some(key)) => Ok(key),
            Some(None) => Err(TokenError::UnknownKey.into()),
            None => Err(NotForeign::Unavailable(self.unavailable())),
        }
    }

    /// The outer `None`: no keys are known that still count.
    fn find(&self, head: &TokenHead) -> Option<Option<Arc<PublicKey>>> {
        let known = self.known.load();
        let good = known.as_ref().filter(|k| Instant::now() < k.good_until)?;
        Some(good.keys.find(head).map(Arc::clone))
    }

    /// Waits for the fetch that is running, or for a new one unless the last was just now.
    async fn await_fetch(&self) -> Result<(), Rejection> {
        let mut fetches = self.fetches.subscribe();
        let seen = *fetches.borrow_and_update();
        if !seen.running {
            if seen.began.is_some_and(|at| at.elapsed() < FETCH_PAUSE) {
                return Ok(());
            }
            self.asked.notify_one();
        }
        let _waiting = Waiting::take(&self.waiting).ok_or_else(|| self.unavailable())?;
        let ended = fetches.wait_for(|now| now.ended > seen.ended);
        // Past it whatever is known decides.
        let _ = timeout(FETCH_MAX + Duration::from_secs(1), ended).await;
        Ok(())
    }

    fn unavailable(&self) -> Rejection {
        let issuer = &self.settings.issuer;
        let outcome = self.fetches.borrow().outcome;
        let why = outcome.map_or("not_fetched", JwksFetch::word);
        Rejection::new(
            Reason::StoreUnavailable,
            format!(
                "the keys of the issuer `{issuer}` cannot be fetched ({why}), so its tokens cannot be verified; \
                 the operator should check its `jwks_url` in auth.issuers, and that the gateway reaches it"
            ),
        )
        .retry_after(FETCH_PAUSE)
    }
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer")
            .field("issuer", &self.settings.issuer)
            .finish_non_exhaustive()
    }
}

/// One of [`WAITING_MAX`]. Dropping it frees the place.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn take(taken: &'a AtomicUsize) -> Option<Self> {
        let before = taken.fetch_add(1, Ordering::Relaxed);
        let place = Self(taken);
        (before < WAITING_MAX).then_some(place)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The claims that count besides `iss`, `aud` and `nbf`. Times are whole seconds since 1970.
#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: i64,
    iat: Option<i64>,
    org: Option<String>,
    workspaces: Option<Vec<String>>,
}

impl Claims {
    fn principal(self) -> Result<Principal, TokenError> {
        let leeway = i64::try_from(LEEWAY_SECONDS).unwrap_or(0);
        if self.iat.is_some_and(|iat| iat > now_ms() / 1000 + leeway) {
            return Err(TokenError::Immature);
        }
        let names = [Some(&self.sub), self.org.as_ref()];
        let named = names.into_iter().flatten().all(|name| is_name(name));
        let listed = self.workspaces.as_ref().map_or(0, Vec::len);
        if !named || listed > WORKSPACES_MAX {
            return Err(TokenError::Claims);
        }
        let parse = |ids: Vec<String>| ids.iter().map(|id| WorkspaceId::parse(id)).collect();
        let workspaces = self.workspaces.map(parse).transpose();
        Ok(Principal::Canvas {
            user: self.sub,
            org: self.org,
            workspaces: workspaces.map_err(|_| TokenError::Claims)?,
        })
    }
}

fn is_name(text: &str) -> bool {
    !text.trim().is_empty()
        && text.chars().count() <= NAME_CHARS_MAX
        && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests;
