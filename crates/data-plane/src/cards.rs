//! The cards of agents ([`a2a::card`]): fetched from the agent or taken from the registry, with the gateway's
//! URL in place of the agent's.

use std::borrow::Cow;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::StatusCode;
use moka::future::Cache;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::admission::AdmittedCall;
use crate::fetch::{BufferedRequest, get_head, locate_card};
use crate::listener::client_disconnected;
use crate::record::{Exchange, ExchangeError, box_cold_path};
use crate::upstream::{
    CancelWatch, Relay, Upstream, WireRequest, refuse_redirect, reject_answer, too_large,
};
use a2a::Generation;
use a2a::bridge::Side;
use a2a::bridge::card::{Facts as FormFacts, GrpcInterface, RequestedForm, translate_card};
use a2a::card::{AgentSides, Binding, Card, CardError, Facts};
use assembly::gateway::Gateway;
use directory::{AGENT_CARD_BYTES_MAX, CardLocation, CardSource};
use kernel::config::{Bridging, Config};
use kernel::ids::{RequestId, WorkspaceId};
use kernel::metrics;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::Account;
use kernel::telemetry::Chain;
use trust::sign_card;

/// The sides that the gateway translates, for agents that do not speak them. An inbox has no routes of the last one.
const TRANSLATED: [Side; 4] = [
    Side::json_rpc(Generation::V0),
    Side::json_rpc(Generation::V1),
    Side::http_json(Generation::V1),
    Side::http_json(Generation::V0),
];

/// A card in its form for callers.
#[derive(Clone)]
pub(super) struct ServedCard {
    /// JSON.
    pub(super) body: Bytes,
    /// Value of `ETag`.
    pub(super) tag: String,
    /// Time of its last change.
    pub(super) modified: SystemTime,
    /// Generations of A2A in its interfaces, for `X-A2A-Speaks`.
    pub(super) speaks: Option<&'static str>,
}

/// The forms, in the order of their use.
const FORMS: [RequestedForm; 3] = [
    RequestedForm::Both,
    RequestedForm::Only(Generation::V1),
    RequestedForm::Only(Generation::V0),
];

/// A card for callers, in each form.
#[derive(Clone)]
pub(super) struct CardForms([ServedCard; 3]);

impl CardForms {
    /// Makes the forms of a card, with `serve` for each text. `text`: the card with the gateway's interfaces. `polls`:
    /// the agent has an inbox.
    fn build(
        text: &str,
        place: &ServedPlace,
        (bridge, polls): (Bridging, bool),
        mut serve: impl FnMut(usize, String) -> ServedCard,
    ) -> Self {
        let sides = CallerSides::from_card(text, bridge, polls);
        let speaks = sides.generations();
        let forms = [0, 1, 2].map(|at| ServedCard {
            speaks,
            ..serve(at, sides.write_form(text, FORMS[at], place))
        });
        Self(forms)
    }

    /// Returns the card in a form.
    pub(super) fn get(&self, asked: RequestedForm) -> &ServedCard {
        let at = FORMS.iter().position(|form| *form == asked);
        &self.0[at.unwrap_or_default()]
    }
}

/// Where callers reach the agent of a workspace.
struct ServedPlace {
    /// The base of its A2A routes.
    base: String,
    id: WorkspaceId,
    /// Host and port for clients of gRPC.
    grpc: Option<String>,
}

impl ServedPlace {
    fn new(config: &Config, id: &WorkspaceId) -> Self {
        Self {
            base: config.base_of(id),
            id: id.clone(),
            grpc: config.grpc_authority(),
        }
    }
}

/// The sides on which callers can use an agent, by its card.
struct CallerSides {
    bridge: Bridging,
    /// Those of the agent, and what the gateway translates.
    all: Vec<Side>,
    /// The generations in which a call is not translated.
    native: Vec<Generation>,
    /// The agent's tenant, for a call of gRPC.
    tenant: Option<String>,
}

impl CallerSides {
    fn from_card(text: &str, bridge: Bridging, polls: bool) -> Self {
        let own = Card::parse(text.as_bytes()).map(|card| AgentSides::from_card(&card));
        let own = own.unwrap_or_default();
        let nearest = own.find_nearest(Side::json_rpc(Generation::V1));
        let tenant = nearest.and_then(|side| side.tenant.clone());
        let mut all: Vec<Side> = own.sides().collect();
        let native = match bridge {
            Bridging::Auto => all.iter().map(|side| side.generation).collect(),
            Bridging::Off => vec![Generation::V0, Generation::V1],
        };
        if bridge == Bridging::Auto {
            let translated = &TRANSLATED[..TRANSLATED.len() - usize::from(polls)];
            let missing = translated.iter().filter(|side| !all.contains(side));
            let missing: Vec<Side> = missing.copied().collect();
            all.extend(missing);
        }
        Self {
            bridge,
            all,
            native,
            tenant,
        }
    }

    /// Returns the card in a form. Where nothing is translated, that of both generations is the agent's own.
    fn write_form(&self, text: &str, asked: RequestedForm, place: &ServedPlace) -> String {
        if self.bridge == Bridging::Off && asked == RequestedForm::Both {
            return text.to_owned();
        }
        let id = place.id.as_str();
        let tenant = match &self.tenant {
            Some(tenant) => format!("{id}/{tenant}"),
            None => id.to_owned(),
        };
        let authority = place.grpc.as_deref();
        let authority = authority.filter(|_| self.bridge == Bridging::Auto);
        let facts = FormFacts {
            base: &place.base,
            sides: &self.all,
            native: &self.native,
            grpc: authority.map(|authority| GrpcInterface {
                authority,
                tenant: &tenant,
            }),
        };
        translate_card(text, asked, &facts).unwrap_or_else(|| text.to_owned())
    }

    /// Returns the generations, for `X-A2A-Speaks`.
    fn generations(&self) -> Option<&'static str> {
        let has = |generation| self.all.iter().any(|side| side.generation == generation);
        match (has(Generation::V0), has(Generation::V1)) {
            (true, false) => Some("0.x"),
            (false, true) => Some("1.x"),
            (true, true) => Some("0.x, 1.x"),
            (false, false) => None,
        }
    }
}

/// Returns a card in the form of the call that it answers, unless nothing is translated for its agent.
fn form_for_call(
    text: &str,
    place: &ServedPlace,
    bridge: Bridging,
    generation: Generation,
) -> String {
    let asked = match bridge {
        Bridging::Auto => RequestedForm::Only(generation),
        Bridging::Off => RequestedForm::Both,
    };
    CallerSides::from_card(text, bridge, false).write_form(text, asked, place)
}

// Fetches the card of an agent from its places. Redirects are not followed.

/// Timeout of a fetch, after the connect timeout.
const PATIENCE: Duration = Duration::from_secs(5);

/// Request that a card is fetched for.
struct CardRequest<'a> {
    /// Timeouts and limits of the request.
    config: &'a Arc<Config>,
    /// Id of the request, which is sent to the agent.
    request_id: &'a RequestId,
    /// Account for the look-up of the agent's name.
    account: Account,
    /// Gateways that the call has passed, this one included.
    hops: u32,
}

/// Fetches the card from the first of the agent's places that has one.
///
/// # Errors
/// The reason why there is none: of the first place, if all answered and none had it.
async fn fetch_card(
    upstream: &Upstream,
    gateway: &Gateway,
    place: &CardLocation,
    asked: &CardRequest<'_>,
) -> Result<Bytes, Rejection> {
    let fetching = async {
        let timeouts = &asked.config.timeouts;
        let patience = (timeouts.connect + PATIENCE).min(timeouts.total);
        let deadline = Instant::now() + patience;
        let peer = locate_card(
            (gateway, upstream),
            place,
            asked.account,
            (timeouts.connect, deadline),
            card_timeout,
        )
        .await?;
        let mut first = None;
        for path in &place.paths {
            let question = BufferedRequest {
                peer: &peer,
                call: WireRequest::new(request_head(place, path, asked), Bytes::new()),
                deadline,
                bytes_max: AGENT_CARD_BYTES_MAX,
                idle: asked.config.upstream.idle,
                late: card_timeout,
            };
            let answered = match question.send(upstream, &gateway.metrics).await {
                // The pooled connection may have died, and a GET may be sent twice.
                Err(refusal) if refusal.reason == Reason::AgentProtocolError => {
                    question.send(upstream, &gateway.metrics).await
                }
                answered => answered,
            };
            let (head, body) = answered?;
            match check_card(&head, &body) {
                Ok(()) => return Ok(body),
                Err(refusal) => first = first.or(Some(refusal)),
            }
        }
        Err(first.unwrap_or_else(|| not_given("the agent has no place for a card")))
    };
    let fetched: Result<_, Rejection> = fetching.await;
    let outcome = fetched.as_ref().err();
    let outcome = outcome.map_or("fetched", |refusal| refusal.reason.as_str());
    gateway.metrics.count_card_fetch(outcome);
    fetched
}

/// Checks that a response is a card.
fn check_card(head: &ResponseHeader, body: &[u8]) -> Result<(), Rejection> {
    refuse_redirect(head)?;
    if head.status != StatusCode::OK {
        let status = head.status.as_u16();
        let message =
            format!("the agent does not give its card: it answers {status} where that should be");
        return Err(not_given(message).with_fact("status", status));
    }
    Card::parse_fetched(body).map(drop).map_err(|unreadable| {
        not_given("the agent's card cannot be read: what it gives is no JSON object, or is one and no agent card")
            .with_cause(unreadable)
    })
}

fn not_given(message: impl Into<Cow<'static, str>>) -> Rejection {
    Rejection::new(Reason::AgentProtocolError, message)
}

fn card_timeout() -> Rejection {
    let message = "the agent did not give its card in time";
    Rejection::new(Reason::AgentTimeout, message).with_fact("clock", "card")
}

/// Returns the request. It serves many callers, so it has no data of any caller.
fn request_head(place: &CardLocation, path: &str, asked: &CardRequest<'_>) -> Vec<u8> {
    let lines = [
        "accept: application/json",
        "user-agent: a2a-gateway",
        &format!("x-request-id: {}", asked.request_id.as_str()),
        &format!("x-a2a-hops: {}", asked.hops),
        "via: 1.1 a2a-gateway",
    ];
    get_head(place, path, &lines)
}

// Card cache: concurrent requests share one fetch, and cards are kept while they are fresh. A new
// registration, configuration or signing key applies immediately.

/// Freshness of a card, also for callers' caches.
pub(super) const FRESH: Duration = Duration::from_secs(30);
/// Lifetime of a failed fetch: shields an agent in trouble.
const FAILED: Duration = Duration::from_secs(3);
/// Maximum size of all cards together.
const BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Size of an entry without its texts.
const ENTRY_BYTES: usize = 1024;

/// Cached card of one workspace, or its failure.
pub(super) struct CachedCard {
    /// Card for callers, or the reason why there is none.
    pub(super) served: Result<CardForms, Rejection>,
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
struct InterfacePaths(Vec<(Generation, String)>);

impl InterfacePaths {
    fn from_card(card: &Card<'_>, binding: Binding) -> Self {
        let found = card.interfaces(binding);
        let found = found.filter_map(|interface| Some((interface.generation, interface.path()?)));
        Self(found.collect())
    }

    /// Returns the path for a request of this generation, else the first.
    fn path_for(&self, generation: Generation) -> Option<&str> {
        let same = self.0.iter().find(|(of, _)| *of == generation);
        same.or_else(|| self.0.first())
            .map(|(_, path)| path.as_str())
    }
}

/// What a card says of its agent; without one nothing.
#[derive(Clone, Default)]
pub(super) struct CardFacts {
    generation: Option<Generation>,
    /// The sides on which it can be called.
    pub(super) spoken: AgentSides,
    json_rpc: InterfacePaths,
    http_json: InterfacePaths,
    /// True if it sends push notifications.
    pub(super) pushes: Option<bool>,
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
                let place = ServedPlace::new(config, &source.id);
                let polls = matches!(source.place, Ok(None));
                let bridged = (source.bridge, polls);
                let forms = CardForms::build(&text, &place, bridged, |at, text| {
                    let before = before.map(|before| &before.0[at]);
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

    /// True if calls go by it: it says something of its agent, or that the agent gives no card, and is not stale.
    fn counts(&self, config: &Config) -> bool {
        let is_away = |why: &Rejection| why.reason == Reason::AgentUnreachable;
        let is_informed =
            self.said.generation.is_some() || !self.served.as_ref().is_err_and(is_away);
        is_informed && self.age() < config.directory.stale
    }

    /// Returns the generation of the agent. After a failed fetch: the generation that counts without a card.
    pub(super) fn generation(&self) -> Option<Generation> {
        let recent = self.age() < FRESH;
        self.said.generation.or(recent.then(Generation::default))
    }

    /// True for one call, once it is no longer fresh: that one has it fetched again.
    fn claim_refresh(&self) -> bool {
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
fn render_card(card: Card<'_>, source: &CardSource, config: &Config) -> Result<String, CardError> {
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
fn sign_if_enabled(gateway: &Gateway, text: String, config: &Config) -> String {
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

fn unreadable_card(error: CardError) -> Rejection {
    let message = "the agent's card cannot be served; register one that A2A describes";
    Rejection::new(Reason::AgentProtocolError, message).with_cause(error)
}

fn no_card() -> Rejection {
    let message = "the workspace has registered no card, and no agent can be asked for one";
    Rejection::new(Reason::WorkspaceOffline, message).with_retry_after(Duration::from_secs(15))
}

// Extended card, which is the result of a call. Like the public card it does not contain the agent's URLs.

/// Workspace of the extended card, and the form of the response.
pub(super) struct ExtendedCard {
    pub(super) gateway: Arc<Gateway>,
    /// Configuration of the exchange.
    pub(super) config: Arc<Config>,
    /// The workspace.
    pub(super) source: Arc<CardSource>,
    /// The generation of the call.
    pub(super) generation: Generation,
}

impl ExtendedCard {
    /// Returns the card as callers may see it. `None`: it is empty.
    ///
    /// # Errors
    /// `agent_protocol_error` if it is no card, `response_too_large`.
    pub(super) fn render(&self, text: &str) -> Result<Option<String>, Rejection> {
        if text.len() > AGENT_CARD_BYTES_MAX {
            return Err(too_large(AGENT_CARD_BYTES_MAX as u64));
        }
        if text.trim() == "{}" {
            return Ok(None);
        }
        let card = Card::parse_fetched(text.as_bytes()).map_err(|broken| match broken {
            CardError::NoCard | CardError::Form => {
                reject_answer("the agent's answer holds no card")
            }
            CardError::TooLong => unreadable_card(broken),
        })?;
        let card = render_card(card, &self.source, &self.config).map_err(unreadable_card)?;
        let place = ServedPlace::new(&self.config, &self.source.id);
        let card = form_for_call(&card, &place, self.source.bridge, self.generation);
        Ok(Some(sign_if_enabled(&self.gateway, card, &self.config)))
    }
}

// The cards of the agents: what calls read from them, from memory or by a fetch.

/// Maximum cards that are read at once for agents that were added.
pub(super) const AHEAD_MAX: usize = 64;

/// The cards of the agents, and what is known of how they are called. Cheap to clone.
#[derive(Clone)]
pub(super) struct Cards {
    gateway: Arc<Gateway>,
    relay: Arc<Relay>,
    /// What a card said of its agent is kept while its registration is the same, also behind a fetch that failed.
    cache: Cache<WorkspaceId, Arc<CachedCard>>,
    /// For agents that were added.
    ahead: Arc<Semaphore>,
}

impl Cards {
    /// Creates an empty cache.
    pub(super) fn new(gateway: &Arc<Gateway>, relay: &Arc<Relay>) -> Self {
        let weight = |_: &WorkspaceId, cached: &Arc<CachedCard>| {
            let forms = cached.served.iter().flat_map(|CardForms(forms)| forms);
            let bytes: usize = forms.map(|served| served.body.len()).sum();
            u32::try_from(bytes + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        let cache = Cache::builder().weigher(weight).max_capacity(BYTES_MAX);
        Self {
            gateway: Arc::clone(gateway),
            relay: Arc::clone(relay),
            cache: cache.build(),
            ahead: Arc::new(Semaphore::new(AHEAD_MAX)),
        }
    }

    /// Returns the card of a workspace, and fetches it if the cached one does not count any more. From
    /// [`Drain::cut_all`](kernel::drain::Drain::cut_all) on no fetch begins, and this may not resolve: await the cut
    /// beside it.
    async fn get(&self, source: &CardSource, asked: &CardRequest<'_>) -> Arc<CachedCard> {
        let (gateway, config) = (&*self.gateway, asked.config);
        let kid = kid_for(gateway, config);
        let is_current =
            |cached: &Arc<CachedCard>| cached.is_current(source, config, kid.as_deref());
        let before = self.cache.get(&source.id).await;
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
            let upstream = &self.relay.upstream;
            let fetched = match &source.place {
                Ok(Some(place)) => fetch_card(upstream, gateway, place, asked).await.map(Some),
                Ok(None) => Ok(None),
                Err(refusal) => Err(refusal.clone()),
            };
            let before = before.as_deref();
            let made = CachedCard::build(gateway, source, fetched, config, kid.clone(), before);
            let says_other =
                |before: &CachedCard| !made.said.spoken.sides().eq(before.said.spoken.sides());
            if before.is_some_and(says_other) {
                gateway.resolution.learnt.forget(&source.id).await;
            }
            Arc::new(made)
        };
        loop {
            let entry = self.cache.entry_by_ref(&source.id);
            let made = entry.or_insert_with_if(make(), |cached| !is_current(cached));
            let entry = Box::pin(made).await;
            // A request that waited for another's fetch gets its result, which may be of an earlier location of
            // the card.
            if entry.is_fresh() || is_current(entry.value()) {
                return entry.into_value();
            }
        }
    }

    /// Returns what the target speaks: by its registered card, else by its own ([`Cards::known_card`]). Nothing, if it
    /// gives none.
    ///
    /// # Errors
    /// The caller left, or the process shuts down; `store_unavailable`.
    pub(super) async fn sides(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &AdmittedCall,
    ) -> Result<AgentSides, ExchangeError> {
        let options = admitted.options();
        if options.has_card && !options.path_in_card {
            return Ok(options.spoken.clone());
        }
        let known = box_cold_path(self.known_card(caller, exchange, admitted)).await?;
        Ok(known.said.spoken.clone())
    }

    /// Returns what is known of the target by its own card. It is read before the first call, and again before it is
    /// `directory.stale` old: calls wait for that only if none has had it read meanwhile.
    async fn known_card(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &AdmittedCall,
    ) -> Result<Arc<CachedCard>, ExchangeError> {
        let source = self.card_source(admitted).await?;
        if let Some(known) = self.cached(&source).await
            && known.counts(&exchange.call.config)
        {
            if known.claim_refresh() {
                let request_id = exchange.call.request_id.clone();
                let by = (account_of(exchange), admitted.hops);
                tokio::spawn(self.clone().fetch_aside(source, request_id, by));
            }
            return Ok(known);
        }
        let hops = admitted.hops;
        self.get_card(caller, exchange, hops, &source).await
    }

    /// Has the card of an agent that was added read at once, so that its first call does not wait. Of more than
    /// [`AHEAD_MAX`] at once the first call reads it.
    pub(super) fn read_ahead(&self, id: &WorkspaceId) {
        let Ok(place) = Arc::clone(&self.ahead).try_acquire_owned() else {
            let outcome = Reason::Overloaded.as_str();
            return self.gateway.metrics.count_card_fetch(outcome);
        };
        let (cards, id) = (self.clone(), id.clone());
        tokio::spawn(async move {
            let _place = place;
            let Ok(source) = cards.gateway.resolution.source_by_id(&id).await else {
                return;
            };
            let known = cards.cached(&source).await;
            if known.is_none_or(|known| known.claim_refresh()) {
                let by = (Account::default(), 1);
                cards.fetch_aside(source, RequestId::random(), by).await;
            }
        });
    }

    /// Fetches a card, while calls go on with what is known. `by`: the account, and the gateways that were passed.
    async fn fetch_aside(self, source: Arc<CardSource>, request_id: RequestId, by: (Account, u32)) {
        let config = self.gateway.config.snapshot();
        let asked = CardRequest {
            config: &config,
            request_id: &request_id,
            account: by.0,
            hops: by.1,
        };
        let fetched = self.get(&source, &asked);
        let mut cut = CancelWatch::for_drain(&self.relay.drain);
        tokio::select! {
            _ = cut.cancelled(Delivery::NotSent) => {}
            _ = fetched => {}
        }
    }

    /// Returns path and query of the target's HTTP+JSON interface for callers of a generation.
    ///
    /// # Errors
    /// As [`Cards::reachable_card`]; `agent_protocol_error` if the card that callers get has no such interface.
    pub(super) async fn http_json_path(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &AdmittedCall,
        generation: Generation,
    ) -> Result<String, ExchangeError> {
        let cached = self.reachable_card(caller, exchange, admitted).await?;
        let path = cached.said.http_json.path_for(generation).ok_or_else(|| {
            let message = "the agent's card names an HTTP+JSON interface without an http URL: correct the url in the card";
            mark_undelivered(&Rejection::new(Reason::AgentProtocolError, message))
        })?;
        Ok(path.to_owned())
    }

    /// Returns the card of the target, which is fetched if it is not fresh, unless the agent cannot be reached: then
    /// its interfaces are unknown.
    ///
    /// # Errors
    /// The agent cannot be reached; the caller left, or the process shuts down.
    pub(super) async fn reachable_card(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &AdmittedCall,
    ) -> Result<Arc<CachedCard>, ExchangeError> {
        let cached = self.card_of_target(caller, exchange, admitted).await?;
        match &cached.served {
            Err(refusal)
                if cached.said.spoken.is_unknown()
                    && matches!(
                        refusal.reason,
                        Reason::AgentUnreachable | Reason::AgentTimeout
                    ) =>
            {
                Err(mark_undelivered(refusal).into())
            }
            _ => Ok(cached),
        }
    }

    /// Returns the path for a call of `method` at a target with a card URL only.
    ///
    /// # Errors
    /// The reason why there is no card; `agent_protocol_error` if it has no such interface.
    pub(super) async fn json_rpc_path(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &AdmittedCall,
        method: Option<&str>,
    ) -> Result<String, ExchangeError> {
        let cached = self.known_card(caller, exchange, admitted).await?;
        let generation = method.map_or_else(Generation::default, Generation::of_method);
        Ok(path_in_card(&cached, generation)?)
    }

    /// As [`Cards::json_rpc_path`], from the card in memory by which calls go, with its age. `None`: it would be
    /// fetched.
    pub(super) async fn peek_path(
        &self,
        source: &CardSource,
        generation: Generation,
    ) -> Option<(Result<String, Rejection>, Duration)> {
        let config = self.gateway.config.snapshot();
        let known = self.cached(source).await?;
        let kid = kid_for(&self.gateway, &config);
        let is_used = known.counts(&config) || known.is_current(source, &config, kid.as_deref());
        is_used.then(|| (path_in_card(&known, generation), known.age()))
    }

    /// Returns the card of the target of a call.
    ///
    /// # Errors
    /// The caller left, or the process shuts down; `store_unavailable`.
    pub(super) async fn card_of_target(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &AdmittedCall,
    ) -> Result<Arc<CachedCard>, ExchangeError> {
        let source = self.card_source(admitted).await?;
        let hops = admitted.hops;
        self.get_card(caller, exchange, hops, &source).await
    }

    async fn card_source(&self, admitted: &AdmittedCall) -> Result<Arc<CardSource>, Rejection> {
        let permit = &admitted.allowed.permit;
        self.gateway.resolution.card_source(permit).await
    }

    /// Returns the cached card, fresh or not.
    pub(super) async fn cached(&self, source: &CardSource) -> Option<Arc<CachedCard>> {
        let cached = self.cache.get(&source.id).await;
        cached.filter(|cached| cached.fingerprint == source.fingerprint)
    }

    /// Returns a card. Waits until the caller disconnects, if there is one, or the process is cut. Of several
    /// requests that wait for one fetch each can leave alone: if it was the one that fetches, the next begins a
    /// new fetch.
    pub(super) async fn get_card(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        hops: u32,
        source: &CardSource,
    ) -> Result<Arc<CachedCard>, ExchangeError> {
        let asked = CardRequest {
            config: &exchange.call.config,
            request_id: &exchange.call.request_id,
            account: account_of(exchange),
            hops,
        };
        let cached = self.get(source, &asked);
        let mut cut = CancelWatch::for_drain(&self.relay.drain);
        let gone = async {
            // While a body is to come, as with an unusual GET, a disconnect cannot be detected without reading
            // it.
            if let Some(session) = caller
                && session.is_body_done()
            {
                client_disconnected(session).await;
            } else {
                pending::<()>().await;
            }
        };
        tokio::select! {
            why = cut.cancelled(Delivery::NotSent) => Err(why.into()),
            cached = cached => Ok(cached),
            () = gone => Err(ExchangeError::CallerLeft),
        }
    }

    /// Returns the generation of the target of a call: from the registered card, else from the fetched one. If
    /// it is needed and no card was fetched yet, the card is fetched: to complete the call, or to find its
    /// path.
    ///
    /// # Errors
    /// The caller left, or the process shuts down.
    pub(super) async fn generation(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        admitted: &AdmittedCall,
        is_bare: bool,
    ) -> Result<Generation, ExchangeError> {
        let options = admitted.options();
        if options.has_card {
            return Ok(options.generation);
        }
        let Ok(source) = self.card_source(admitted).await else {
            return Ok(options.generation);
        };
        let known = self.cached(&source).await;
        if let Some(generation) = known.and_then(|known| known.generation()) {
            return Ok(generation);
        }
        if !is_bare && !options.path_in_card {
            return Ok(options.generation);
        }
        let cached = self.get_card(caller, exchange, admitted.hops, &source);
        let cached = cached.await?;
        Ok(cached.said.generation.unwrap_or_default())
    }
}

fn account_of(exchange: &Exchange) -> Account {
    let proof = exchange.call.proof.as_ref();
    proof.map_or(Account::default(), |proof| proof.account)
}

fn path_in_card(cached: &CachedCard, generation: Generation) -> Result<String, Rejection> {
    let path = cached.said.json_rpc.path_for(generation).map(str::to_owned);
    path.ok_or_else(|| {
        if let Err(refusal) = &cached.served {
            return mark_undelivered(refusal);
        }
        let message = "the workspace has no url, and the card at its card_url names no JSON-RPC \
                       interface by an http URL; one of HTTP+JSON is reached below /workspaces/{id}/a2a";
        mark_undelivered(&Rejection::new(Reason::AgentProtocolError, message))
    })
}

/// Marks the call as not sent: its target's card could not be fetched.
fn mark_undelivered(refusal: &Rejection) -> Rejection {
    refusal.clone().with_delivery(Delivery::NotSent)
}
