//! The sidecar in front of one agent: verifies that each request carries a token signed by the
//! gateway, and detects replays (`docs/design/security.md`, "The sidecar"). It has no store and no
//! registry: the token names the caller and the rule.
//!
//! Invariants: only [`Sidecar::authenticate`] returns claims; without keys, no request is admitted.

mod agent;
mod replay;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::sleep;
use url::Url;

pub use self::agent::{Agent, InvalidUpstream};
pub use self::replay::{Use, Uses, is_over};
use crate::config::Live;
use crate::drain::Drain;
use crate::ids::WorkspaceId;
use crate::metrics::{CredentialFlaw, Metrics};
use crate::rejection::{Reason, Rejection};
use crate::telemetry::Chain;
use crate::trust::{
    Crowded, PAIR_TYP, PairClaims, Patience, Published, TokenError, TokenHead, body_hash, issuer_of,
};

/// Retries for a gateway that does not respond. An unavailable gateway issues no tokens either. A
/// gateway that only fails to publish its keys does, as long as it signs with a known key.
const PATIENCE: Patience = Patience {
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
    pub card: Card,
    /// Treatment of tokens that are not bound to a body.
    pub unbound: Unbound,
}

/// The accepted issuer.
#[derive(Clone, Debug)]
pub enum Issuer {
    /// This issuer.
    Named(String),
    /// The issuer named by the gateway's discovery document at this URL.
    AsSaidAt(Url),
}

/// Access to the agent's card at its well-known paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Card {
    /// A token is needed.
    ForCallers,
    /// No token is needed.
    Public,
}

/// Treatment of a token that is valid with any body: one of a workspace with `proof` `pair`, or of discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unbound {
    /// It is accepted repeatedly, until it expires.
    Admitted,
    /// It is rejected.
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
    keys: Published,
    issuer: OnceLock<String>,
    uses: Uses,
}

impl Sidecar {
    /// Creates a sidecar. [`Sidecar::run`] fetches the keys.
    pub fn new(config: Live, metrics: Arc<Metrics>, settings: Settings) -> Arc<Self> {
        let issuer = match &settings.issuer {
            Issuer::Named(issuer) => OnceLock::from(issuer.clone()),
            Issuer::AsSaidAt(_) => OnceLock::new(),
        };
        let host = settings.jwks.origin().ascii_serialization();
        Arc::new(Self {
            config,
            metrics,
            drain: Arc::default(),
            keys: Published::new(host, settings.jwks.clone(), PATIENCE),
            settings,
            issuer,
            uses: Uses::default(),
        })
    }

    /// Keeps the keys fresh. Runs until the future is dropped.
    pub async fn run(&self) {
        tokio::join!(self.keys.keep(&self.metrics), self.learn_issuer());
    }

    /// Fetches the issuer from the gateway until it succeeds, and never again: a change of the
    /// issuer needs a restart.
    async fn learn_issuer(&self) {
        let Issuer::AsSaidAt(url) = &self.settings.issuer else {
            return;
        };
        let mut told = false;
        loop {
            match issuer_of(url).await {
                Ok(issuer) => {
                    tracing::info!(issuer, "learned the gateway's issuer");
                    self.issuer.get_or_init(|| issuer);
                    return;
                }
                Err(failure) if !told => {
                    told = true;
                    let (reason, error) = (failure.outcome.as_str(), Chain(failure.cause.as_ref()));
                    tracing::warn!(reason, %error, "cannot learn the gateway's issuer; retrying (--issuer sets it)");
                }
                Err(_) => {}
            }
            sleep(PATIENCE.first_pause).await;
        }
    }

    /// Checks that tokens can be verified.
    ///
    /// # Errors
    /// `store_unavailable`, with the missing part in its message.
    pub fn ready(&self) -> Result<(), Rejection> {
        let keys = self.keys.keys();
        let why = match (&keys, self.issuer.get()) {
            (Some(keys), Some(_)) if !keys.is_empty() => return Ok(()),
            (Some(keys), _) if keys.is_empty() => "it publishes none",
            (Some(_), _) => "who it is",
            (None, _) => self.keys.last_fetch(),
        };
        let message = format!(
            "the gateway's keys are not known yet ({why}), so no caller can be verified; check --gateway and --jwks"
        );
        Err(Rejection::new(Reason::StoreUnavailable, message).retry_after(PATIENCE.first_pause))
    }

    /// Verifies `token`. Returns the claims about a caller that the gateway permits to message this
    /// agent.
    ///
    /// # Errors
    /// `unauthenticated`; `store_unavailable` without keys.
    pub async fn authenticate(&self, token: &str) -> Result<PairClaims, Rejection> {
        let head = TokenHead::own(token, PAIR_TYP).map_err(|error| self.refused(error))?;
        let none_published = self.keys.keys().is_some_and(|keys| keys.is_empty());
        if !none_published {
            self.ready()?;
        }
        let claims = match self.verify(token, &head) {
            Err(TokenError::UnknownKey) => {
                let crowded = |Crowded| {
                    let message = "many requests wait for the gateway's keys; try again shortly";
                    let again = Duration::from_secs(1);
                    Rejection::new(Reason::StoreUnavailable, message).retry_after(again)
                };
                self.keys.refresh().await.map_err(crowded)?;
                self.ready()?;
                self.verify(token, &head)
            }
            verified => verified,
        };
        let claims = claims.map_err(|error| self.refused(error))?;
        if self.settings.unbound == Unbound::Refused && !claims.is_bound() {
            return Err(self.flawed(
                CredentialFlaw::Unbound,
                "the token is not bound to a request (`bh`), and this sidecar takes no others (--require-bound): an \
                 operator sets proof: \"request\" for this workspace (PATCH /workspaces/{id} at the gateway), and \
                 callers come through the gateway",
            ));
        }
        Ok(claims)
    }

    fn verify(&self, token: &str, head: &TokenHead) -> Result<PairClaims, TokenError> {
        let keys = self.keys.keys().ok_or(TokenError::UnknownKey)?;
        let issuer = self.issuer.get().ok_or(TokenError::UnknownKey)?;
        let audience = self.settings.workspace.as_str();
        PairClaims::verify(token, head, &keys, issuer, audience)
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
            return Err(self.flawed(CredentialFlaw::OtherBody, message));
        }
        // The claim is absent for a call without a method, or with one of excessive length: only
        // its body is bound.
        if claims.method.is_some() && claims.method.as_deref() != method {
            let message = "the token was made for another method";
            return Err(self.flawed(CredentialFlaw::OtherBody, message));
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
    pub fn use_up(&self, claims: &PairClaims) -> Result<(), Rejection> {
        let now = seconds_now();
        if !claims.is_bound() {
            if is_over(claims.exp, now) {
                return Err(self.refused(TokenError::Expired));
            }
            return Ok(());
        }
        let used = self.uses.note(&claims.jti, claims.exp, now);
        self.metrics.token_use(used.as_str(), self.uses.len());
        match used {
            Use::First => Ok(()),
            Use::Late => Err(self.refused(TokenError::Expired)),
            Use::Again => Err(self.flawed(
                CredentialFlaw::Replayed,
                "the token was used before: it was made for one request",
            )),
            Use::Full => Err(Rejection::new(
                Reason::Overloaded,
                "too many tokens were used in the last minute to tell a second use of one",
            )
            .retry_after(Duration::from_secs(1))),
        }
    }
}

impl Sidecar {
    fn refused(&self, error: TokenError) -> Rejection {
        self.metrics.refusals.credential(error.flaw());
        refused(error)
    }

    fn flawed(&self, flaw: CredentialFlaw, message: &'static str) -> Rejection {
        self.metrics.refusals.credential(flaw);
        unauthenticated(message)
    }

    /// Counts a request without a usable token, and returns its rejection.
    pub fn no_token(&self, message: &'static str) -> Rejection {
        self.flawed(CredentialFlaw::Missing, message)
    }
}

/// Returns the rejection of a credential.
fn unauthenticated(message: &'static str) -> Rejection {
    Rejection::new(Reason::Unauthenticated, message)
}

fn refused(error: TokenError) -> Rejection {
    unauthenticated(match error {
        TokenError::TooLong => "the token has more than 8192 bytes",
        TokenError::Malformed => "the token is no pair token: the gateway puts one on each request",
        TokenError::UnknownKey => "the token is signed by a key that the gateway does not publish",
        TokenError::Signature => "the token's signature is wrong",
        TokenError::Expired => "the token has expired",
        TokenError::Immature => "the token is not valid yet",
        TokenError::Claims => {
            "the token is for another workspace, of another gateway, or lacks a claim"
        }
    })
}

fn seconds_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}
