//! The sidecar in front of one agent: verifies that each request carries a token signed by the
//! gateway, and detects replays (`docs/design/security.md`, "The sidecar"). It has no store and no
//! registry: the token names the caller and the rule.
//!
//! Invariants: only [`Sidecar::authenticate`] returns claims; without keys, no request is admitted.

mod agent;
mod replay;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::sleep;
use url::Url;

pub use self::agent::{Agent, InvalidUpstream};
pub use self::replay::TokenUse;
use self::replay::{ReplayCache, is_expired};
use kernel::config::Live;
use kernel::drain::Drain;
use kernel::ids::WorkspaceId;
use kernel::metrics::{CredentialFlaw, Metrics};
use kernel::rejection::{Reason, Rejection};
use kernel::telemetry::Chain;
use kernel::time::Timestamp;
use trust::{
    FetchTiming, HeldChain, PAIR_TYP, PairClaims, RemoteKeySet, TokenError, TokenHead,
    TooManyWaiters, body_hash, fetch_issuer,
};

/// Retries for a gateway that does not respond. An unavailable gateway issues no tokens either. A
/// gateway that only fails to publish its keys does, as long as it signs with a known key.
const FETCH_TIMING: FetchTiming = FetchTiming {
    first_pause: Duration::from_secs(1),
    stale_max: Duration::from_secs(24 * 3600),
};

/// The agent behind a sidecar and the gateway that it trusts.
#[derive(Debug)]
pub struct Settings {
    /// The agent's workspace, the required `aud` of every token.
    pub workspace: WorkspaceId,
    /// The agent's location.
    pub agent: Agent,
    /// URL of the gateway's published keys.
    pub jwks: Url,
    /// The required `iss` of every token.
    pub issuer: Issuer,
    /// Access to the agent's card.
    pub card: CardAccess,
    /// Treatment of tokens that are not bound to a body.
    pub unbound: UnboundTokens,
}

/// The accepted issuer.
#[derive(Clone, Debug)]
pub enum Issuer {
    /// This issuer.
    Named(String),
    /// The issuer named by the gateway's discovery document at this URL.
    FromDiscovery(Url),
}

/// Access to the agent's card at its well-known paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardAccess {
    /// A token is needed.
    ForCallers,
    /// No token is needed.
    Public,
}

/// Treatment of tokens that are valid with any body: those of a workspace with `proof` `pair`, or of discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnboundTokens {
    /// They are accepted repeatedly, until they expire.
    Admitted,
    /// They are rejected.
    Refused,
}

/// The sidecar of one agent.
pub struct Sidecar {
    /// The configuration in force.
    pub config: Live,
    /// The metrics of this process.
    pub metrics: Arc<Metrics>,
    /// The shutdown of this process.
    pub drain: Arc<Drain>,
    /// The agent and the gateway.
    pub settings: Settings,
    keys: RemoteKeySet,
    issuer: OnceLock<String>,
    replays: ReplayCache,
}

impl Sidecar {
    /// Creates a sidecar. [`Sidecar::run`] fetches the keys.
    pub fn new(config: Live, metrics: Arc<Metrics>, settings: Settings) -> Arc<Self> {
        let issuer = match &settings.issuer {
            Issuer::Named(issuer) => OnceLock::from(issuer.clone()),
            Issuer::FromDiscovery(_) => OnceLock::new(),
        };
        let host = settings.jwks.origin().ascii_serialization();
        Arc::new(Self {
            config,
            metrics,
            drain: Arc::default(),
            keys: RemoteKeySet::new(host, settings.jwks.clone(), FETCH_TIMING),
            settings,
            issuer,
            replays: ReplayCache::default(),
        })
    }

    /// Keeps the keys fresh. Runs until the future is dropped.
    pub async fn run(&self) {
        tokio::join!(self.keys.keep_fresh(&self.metrics), self.learn_issuer());
    }

    /// Fetches the issuer from the gateway until it succeeds, and never again: a change of the
    /// issuer needs a restart.
    async fn learn_issuer(&self) {
        let Issuer::FromDiscovery(url) = &self.settings.issuer else {
            return;
        };
        let mut is_logged = false;
        loop {
            match fetch_issuer(url).await {
                Ok(issuer) => {
                    tracing::info!(issuer, "learned the gateway's issuer");
                    self.issuer.get_or_init(|| issuer);
                    return;
                }
                Err(failure) if !is_logged => {
                    is_logged = true;
                    let (reason, error) = (failure.outcome.as_str(), Chain(failure.cause.as_ref()));
                    tracing::warn!(reason, %error, "cannot learn the gateway's issuer; retrying (--issuer sets it)");
                }
                Err(_) => {}
            }
            sleep(FETCH_TIMING.first_pause).await;
        }
    }

    /// Checks that tokens can be verified.
    ///
    /// # Errors
    /// `store_unavailable`, with the missing part in its message.
    pub fn check_ready(&self) -> Result<(), Rejection> {
        let keys = self.keys.valid_keys();
        let why = match (&keys, self.issuer.get()) {
            (Some(keys), Some(_)) if !keys.is_empty() => return Ok(()),
            (Some(keys), _) if keys.is_empty() => "it publishes none",
            (Some(_), _) => "who it is",
            (None, _) => self.keys.last_fetch(),
        };
        let message = format!(
            "the gateway's keys are not known yet ({why}), so no caller can be verified; check --gateway and --jwks"
        );
        Err(Rejection::new(Reason::StoreUnavailable, message)
            .with_retry_after(FETCH_TIMING.first_pause))
    }

    /// Verifies `token`. Returns the claims about a caller that the gateway permits to message this
    /// agent.
    ///
    /// # Errors
    /// `unauthenticated`; `store_unavailable` without keys.
    pub async fn authenticate(&self, token: &str) -> Result<PairClaims, Rejection> {
        let head =
            TokenHead::parse_own(token, PAIR_TYP).map_err(|error| self.reject_token(error))?;
        let none_published = self.keys.valid_keys().is_some_and(|keys| keys.is_empty());
        if !none_published {
            self.check_ready()?;
        }
        let claims = match self.verify_token(token, &head) {
            Err(TokenError::UnknownKey) => {
                let crowded = |TooManyWaiters| {
                    let message = "many requests wait for the gateway's keys; try again shortly";
                    let again = Duration::from_secs(1);
                    Rejection::new(Reason::StoreUnavailable, message).with_retry_after(again)
                };
                self.keys.refresh().await.map_err(crowded)?;
                self.check_ready()?;
                self.verify_token(token, &head)
            }
            verified => verified,
        };
        let claims = claims.map_err(|error| self.reject_token(error))?;
        if self.settings.unbound == UnboundTokens::Refused && !claims.is_bound() {
            return Err(self.reject_flawed(
                CredentialFlaw::Unbound,
                "the token is not bound to a request (`bh`), and this sidecar takes no others (--require-bound): an \
                 operator sets proof: \"request\" for this workspace (PATCH /workspaces/{id} at the gateway), and \
                 callers come through the gateway",
            ));
        }
        Ok(claims)
    }

    fn verify_token(&self, token: &str, head: &TokenHead) -> Result<PairClaims, TokenError> {
        let keys = self.keys.valid_keys().ok_or(TokenError::UnknownKey)?;
        let issuer = self.issuer.get().ok_or(TokenError::UnknownKey)?;
        let audience = self.settings.workspace.as_str();
        PairClaims::verify(token, head, &keys, issuer, audience)
    }

    /// Verifies the chain token of a request, `field`, beside the caller token. Returns its root; `None`: there is
    /// none.
    ///
    /// # Errors
    /// `unauthenticated`, also if it is missing.
    pub fn verify_chain(
        &self,
        caller: &PairClaims,
        field: Option<&[u8]>,
    ) -> Result<Option<String>, Rejection> {
        if field.is_none() && caller.tth.is_none() {
            return Ok(None);
        }
        let token = field.and_then(|field| std::str::from_utf8(field).ok());
        let verified = token.ok_or(TokenError::Claims).and_then(|token| {
            let keys = self.keys.valid_keys().ok_or(TokenError::UnknownKey)?;
            let issuer = self.issuer.get().ok_or(TokenError::UnknownKey)?;
            let names = (issuer.as_str(), self.settings.workspace.as_str());
            HeldChain::verify(token, caller, &keys, names)
        });
        match verified {
            Ok(chain) => Ok(Some(chain.sub)),
            Err(TokenError::Claims) => {
                let message = "the chain token (X-A2A-On-Behalf-Of) does not belong to the caller token, or is missing: \
                               both come with one request of the gateway";
                Err(self.reject_flawed(CredentialFlaw::Unmapped, message))
            }
            Err(error) => Err(self.reject_token(error)),
        }
    }

    /// Checks that the token was issued for `body`, which calls `method`.
    ///
    /// # Errors
    /// `unauthenticated`.
    pub fn check_body(
        &self,
        claims: &PairClaims,
        body: &[u8],
        method: Option<&str>,
    ) -> Result<(), Rejection> {
        if !claims.is_bound() {
            return Ok(());
        }
        if claims.bh.as_deref() != Some(body_hash(body).as_str()) {
            let message = "the token was made for another body";
            return Err(self.reject_flawed(CredentialFlaw::OtherBody, message));
        }
        // The claim is absent for a call without a method, or with one of excessive length: only
        // its body is bound.
        if claims.method.is_some() && claims.method.as_deref() != method {
            let message = "the token was made for another method";
            return Err(self.reject_flawed(CredentialFlaw::OtherBody, message));
        }
        Ok(())
    }

    /// Marks the token as used; a token that is bound to a body is valid once. To be called after
    /// all other checks, so that another client cannot use up the token of a request. The token
    /// must still be valid at this point, however long the body took to arrive.
    ///
    /// # Errors
    /// `unauthenticated` for a replay or an expired token; `overloaded` if the replay cache is
    /// full.
    pub fn mark_used(&self, claims: &PairClaims) -> Result<(), Rejection> {
        let now = Timestamp::now().0.div_euclid(1000);
        if !claims.is_bound() {
            if is_expired(claims.exp, now) {
                return Err(self.reject_token(TokenError::Expired));
            }
            return Ok(());
        }
        let outcome = self.replays.record(&claims.jti, claims.exp, now);
        self.metrics
            .count_token_use(outcome.as_str(), self.replays.len());
        match outcome {
            TokenUse::First => Ok(()),
            TokenUse::Late => Err(self.reject_token(TokenError::Expired)),
            TokenUse::Again => Err(self.reject_flawed(
                CredentialFlaw::Replayed,
                "the token was used before: it was made for one request",
            )),
            TokenUse::Full => Err(Rejection::new(
                Reason::Overloaded,
                "too many tokens were used in the last minute to tell a second use of one",
            )
            .with_retry_after(Duration::from_secs(1))),
        }
    }

    fn reject_token(&self, error: TokenError) -> Rejection {
        let message = match error {
            TokenError::TooLong => "the token has more than 8192 bytes",
            TokenError::Malformed => {
                "the token is no pair token: the gateway puts one on each request"
            }
            TokenError::UnknownKey => {
                "the token is signed by a key that the gateway does not publish"
            }
            TokenError::Signature => "the token's signature is wrong",
            TokenError::Expired => "the token has expired",
            TokenError::Immature => "the token is not valid yet",
            TokenError::Claims => {
                "the token is for another workspace, of another gateway, or lacks a claim"
            }
        };
        self.reject_flawed(error.flaw(), message)
    }

    fn reject_flawed(&self, flaw: CredentialFlaw, message: &'static str) -> Rejection {
        self.metrics.refusals.credentials[flaw].inc();
        Rejection::new(Reason::Unauthenticated, message)
    }

    /// Counts a request without a usable token, and returns its rejection.
    pub fn reject_missing_token(&self, message: &'static str) -> Rejection {
        self.reject_flawed(CredentialFlaw::Missing, message)
    }
}
