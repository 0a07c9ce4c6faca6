//! Card cache: concurrent requests share one fetch, and cards are kept while they are fresh. A new
//! registration, configuration or signing key counts at once.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use moka::future::Cache;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::a2a::Generation;
use crate::a2a::card::{AgentSides, Binding, Card, CardError, Facts};
use crate::config::Config;
use crate::directory::CardSource;
use crate::gateway::Gateway;
use crate::ids::WorkspaceId;
use crate::metrics;
use crate::proxy::cards::fetch::{CardRequest, fetch_card};
use crate::proxy::cards::forms::{CardForms, ServedCard};
use crate::proxy::upstream::Upstream;
use crate::rejection::{Reason, Rejection};
use crate::telemetry::Chain;
use crate::trust::sign_card;

/// Freshness of a card, also for callers' caches.
pub(in crate::proxy) const FRESH: Duration = Duration::from_secs(30);
/// Lifetime of a failed fetch: shields an agent in trouble.
const FAILED: Duration = Duration::from_secs(3);
/// Maximum size of all cards together.
const BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Size of an entry without its texts.
const ENTRY_BYTES: usize = 1024;

/// Cached card of one workspace, or its failure.
pub(in crate::proxy) struct CachedCard {
    /// Card for callers, or the reason why there is none.
    pub(in crate::proxy) served: Result<CardForms, Rejection>,
    /// What the card that counts says of the agent.
    pub(super) said: CardFacts,
    /// True if the fetch failed.
    failed: bool,
    /// True once a call has begun to fetch it again.
    refreshes: AtomicBool,
    made_at: Instant,
    fingerprint: [u8; 32],
    config: Arc<Config>,
    /// Id of the key that signed it.
    kid: Option<String>,
}

/// Paths of an agent for one binding, each with its generation.
#[derive(Clone, Default)]
pub(super) struct InterfacePaths(Vec<(Generation, String)>);

impl InterfacePaths {
    fn from_card(card: &Card<'_>, binding: Binding) -> Self {
        let found = card.interfaces(binding);
        let found = found.filter_map(|interface| Some((interface.generation, interface.path()?)));
        Self(found.collect())
    }

    /// Returns the path for a request of this generation, else the first.
    pub(super) fn path_for(&self, generation: Generation) -> Option<&str> {
        let same = self.0.iter().find(|(of, _)| *of == generation);
        same.or_else(|| self.0.first())
            .map(|(_, path)| path.as_str())
    }
}

/// What a card says of its agent; without one nothing.
#[derive(Clone, Default)]
pub(super) struct CardFacts {
    pub(super) generation: Option<Generation>,
    /// The sides on which it can be called.
    pub(super) spoken: AgentSides,
    pub(super) json_rpc: InterfacePaths,
    pub(super) http_json: InterfacePaths,
    /// True if it sends push notifications.
    pub(super) pushes: Option<bool>,
}

/// Card cache. What a card said of its agent is kept while its registration is the same, also behind a fetch that failed.
/// Cheap to clone.
#[derive(Clone)]
pub(super) struct CardCache {
    cached: Cache<WorkspaceId, Arc<CachedCard>>,
}

impl Default for CardCache {
    fn default() -> Self {
        let weight = |_: &WorkspaceId, cached: &Arc<CachedCard>| {
            let served = cached.served.as_ref().map_or(0, CardForms::total_bytes);
            u32::try_from(served + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        Self {
            cached: Cache::builder()
                .weigher(weight)
                .max_capacity(BYTES_MAX)
                .build(),
        }
    }
}

impl CardCache {
    /// Returns the card of a workspace, and fetches it if the cached one does not count any more. From
    /// [`Drain::cut_all`](crate::drain::Drain::cut_all) on no fetch begins, and this may not resolve: await the cut
    /// beside it.
    pub(super) async fn get(
        &self,
        gateway: &Gateway,
        upstream: &Upstream,
        source: &CardSource,
        config: &Arc<Config>,
        asked: &CardRequest<'_>,
    ) -> Arc<CachedCard> {
        let kid = kid_for(gateway, config);
        let is_current =
            |cached: &Arc<CachedCard>| cached.is_current(source, config, kid.as_deref());
        let before = self.cached.get(&source.id).await;
        if let Some(cached) = before.as_ref().filter(|cached| is_current(cached)) {
            gateway.metrics.count_lookup(metrics::Cache::Cards, true);
            return Arc::clone(cached);
        }
        gateway.metrics.count_lookup(metrics::Cache::Cards, false);
        let make = || async {
            // A request that waited for another's fetch may be woken because the cut cancelled that fetch,
            // before it sees the cut itself. It must not begin a fetch.
            if gateway.drain.is_cut() {
                return pending().await;
            }
            let fetched = match &source.place {
                Ok(Some(place)) => fetch_card(upstream, gateway, place, asked).await.map(Some),
                Ok(None) => Ok(None),
                Err(refusal) => Err(refusal.clone()),
            };
            let made = CachedCard::build(
                gateway,
                source,
                fetched,
                config,
                kid.clone(),
                before.as_deref(),
            );
            let says_other =
                |before: &Arc<CachedCard>| !made.said.spoken.sides().eq(before.said.spoken.sides());
            if before.as_ref().is_some_and(says_other) {
                gateway.resolution.learnt.forget(&source.id).await;
            }
            Arc::new(made)
        };
        loop {
            let entry = self.cached.entry_by_ref(&source.id);
            let made = entry.or_insert_with_if(make(), |cached| !is_current(cached));
            let entry = Box::pin(made).await;
            // A request that waited for another's fetch gets its result, which may be of an earlier location of
            // the card.
            if entry.is_fresh() || is_current(entry.value()) {
                return entry.into_value();
            }
        }
    }

    /// Returns the card that [`CardCache::get`] would return without a fetch.
    pub(super) async fn get_cached(
        &self,
        gateway: &Gateway,
        source: &CardSource,
        config: &Arc<Config>,
    ) -> Option<Arc<CachedCard>> {
        let kid = kid_for(gateway, config);
        let cached = self.cached.get(&source.id).await?;
        cached
            .is_current(source, config, kid.as_deref())
            .then_some(cached)
    }

    /// Returns the card that was fetched last, fresh or not.
    pub(super) async fn get_known(&self, source: &CardSource) -> Option<Arc<CachedCard>> {
        let cached = self.cached.get(&source.id).await;
        cached.filter(|cached| cached.fingerprint == source.fingerprint)
    }

    /// Returns the generation of an agent, from its cached card. After a failed fetch: the generation that
    /// counts without a card.
    pub(super) async fn generation(&self, source: &CardSource) -> Option<Generation> {
        let cached = self.get_known(source).await?;
        let recent = cached.made_at.elapsed() < FRESH;
        cached.said.generation.or(recent.then(Generation::default))
    }
}

/// Returns the id of the key that signs cards, if they are signed.
fn kid_for(gateway: &Gateway, config: &Config) -> Option<String> {
    config.card.sign.then(|| gateway.keys.kid())
}

impl CachedCard {
    fn build(
        gateway: &Gateway,
        source: &CardSource,
        fetched: Result<Option<Bytes>, Rejection>,
        config: &Arc<Config>,
        kid: Option<String>,
        before: Option<&Self>,
    ) -> Self {
        let failed = fetched.is_err();
        let serve = |text: &[u8]| {
            let card = Card::parse(text).map_err(unreadable_card)?;
            let said = CardFacts {
                generation: Some(card.generation()),
                spoken: AgentSides::from_card(&card),
                json_rpc: InterfacePaths::from_card(&card, Binding::JsonRpc),
                http_json: InterfacePaths::from_card(&card, Binding::HttpJson),
                pushes: card.says_push(),
            };
            let text = render_card(card, source, config).map_err(unreadable_card)?;
            Ok((text, said))
        };
        let own = fetched.as_ref().map(Option::as_deref);
        let own = own.unwrap_or_default();
        let registered = source.registered.as_deref().map(str::as_bytes);
        let mut made = Err(fetched.as_ref().err().cloned().unwrap_or_else(no_card));
        for text in own.into_iter().chain(registered) {
            made = serve(text);
            if made.is_ok() {
                break;
            }
        }
        let known = before.filter(|cached| cached.fingerprint == source.fingerprint);
        let before = before.and_then(|cached| cached.served.as_ref().ok());
        let (served, said) = match made {
            Ok((text, said)) => {
                let base = config.base_of(&source.id);
                let polls = matches!(source.place, Ok(None));
                let bridged = (source.bridge, polls);
                let forms = CardForms::build(&text, &base, bridged, |at, text| {
                    let before = before.and_then(|before| before.form_at(at));
                    ServedCard::new(gateway, text, config, kid.as_deref(), before)
                });
                (Ok(forms), said)
            }
            Err(refusal) => {
                let said = known.map(|known| known.said.clone());
                (Err(refusal), said.unwrap_or_default())
            }
        };
        Self {
            served,
            said,
            failed,
            refreshes: AtomicBool::new(false),
            made_at: Instant::now(),
            fingerprint: source.fingerprint,
            config: Arc::clone(config),
            kid,
        }
    }

    /// True if it says something of its agent, or that the agent gives no card: then no call waits for another fetch.
    pub(super) fn is_informed(&self) -> bool {
        let is_away = |why: &Rejection| why.reason == Reason::AgentUnreachable;
        self.said.generation.is_some() || !self.served.as_ref().is_err_and(is_away)
    }

    /// True for one call, once it is no longer fresh: that one has it fetched again.
    pub(super) fn claim_refresh(&self) -> bool {
        self.age() >= FRESH && !self.refreshes.swap(true, Ordering::AcqRel)
    }

    /// Returns the time since it was made.
    pub(super) fn age(&self) -> Duration {
        self.made_at.elapsed()
    }

    fn is_current(&self, source: &CardSource, config: &Arc<Config>, kid: Option<&str>) -> bool {
        let fresh = if self.failed { FAILED } else { FRESH };
        self.made_at.elapsed() < fresh
            && self.fingerprint == source.fingerprint
            && Arc::ptr_eq(&self.config, config)
            && self.kid.as_deref() == kid
    }
}

impl ServedCard {
    fn new(
        gateway: &Gateway,
        text: String,
        config: &Config,
        kid: Option<&str>,
        before: Option<&Self>,
    ) -> Self {
        // Hash of the signed text and the key's id: ECDSA signatures differ each time.
        let hash = Sha256::new()
            .chain_update(&text)
            .chain_update(kid.unwrap_or_default());
        let hash = URL_SAFE_NO_PAD.encode(&hash.finalize()[..16]);
        let weak = if kid.is_some() && !gateway.keys.is_deterministic() {
            "W/"
        } else {
            ""
        };
        let tag = format!("{weak}\"{hash}\"");
        let body = sign_if_enabled(gateway, text, config);
        let same = before.filter(|before| before.tag == tag);
        Self {
            modified: same.map_or_else(SystemTime::now, |before| before.modified),
            body: body.into(),
            tag,
            speaks: None,
        }
    }
}

/// Returns the card for callers, without a signature.
///
/// # Errors
/// [`CardError`].
pub(super) fn render_card(
    card: Card<'_>,
    source: &CardSource,
    config: &Config,
) -> Result<String, CardError> {
    card.into_served(&Facts {
        base: &config.base_of(&source.id),
        name: &source.name,
        role: source.role.as_deref(),
        hidden: &source.hidden,
        bearer: config.card.declare_security,
        push_notifications: source.push_notifications,
    })
}

/// Signs the card, if `card.sign` is set. If signing fails, the card is served without a signature.
pub(super) fn sign_if_enabled(gateway: &Gateway, text: String, config: &Config) -> String {
    if !config.card.sign {
        return text;
    }
    let jwks = format!("{}/.well-known/jwks.json", config.public_url());
    match sign_card(&gateway.keys, &text, &jwks) {
        Ok(signed) => signed,
        Err(error) => {
            tracing::warn!(error = %Chain(&error), "failed to sign a card; served without a signature");
            text
        }
    }
}

pub(super) fn unreadable_card(error: CardError) -> Rejection {
    let message = "the agent's card cannot be served; register one that A2A describes";
    Rejection::new(Reason::AgentProtocolError, message).with_cause(error)
}

fn no_card() -> Rejection {
    let message = "the workspace has registered no card, and no agent can be asked for one";
    Rejection::new(Reason::WorkspaceOffline, message).with_retry_after(Duration::from_secs(15))
}
