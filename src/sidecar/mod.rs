//! AT THE TARGET: what a sidecar in front of one agent knows (contract §7.3): the gateway's keys, and
//! which tokens were used. It has no store and no registry: a token says who calls, and by which rule.
//!
//! Invariants: [`Sidecar::authenticate`] is the only way to claims; without keys nothing is admitted.

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

/// With a gateway that does not answer. A gateway that is away makes no tokens either; one that only
/// its keys cannot be had from does, for as long as it signs with a key that is known.
const PATIENCE: Patience = Patience {
    first_pause: Duration::from_secs(1),
    stale_max: Duration::from_secs(24 * 3600),
};

/// Whom a sidecar guards, and whose word it takes.
#[derive(Debug)]
pub struct Settings {
    /// The agent's workspace: `aud` of every token.
    pub workspace: WorkspaceId,
    /// Where the agent listens.
    pub agent: Agent,
    /// Where the gateway publishes its keys.
    pub jwks: Url,
    /// `iss` of every token.
    pub issuer: Issuer,
    /// Who may read the agent's card.
    pub card: Card,
    /// Tokens that are not bound to a body.
    pub unbound: Unbound,
}

/// Whose tokens count.
#[derive(Clone, Debug)]
pub enum Issuer {
    /// This one's.
    Named(String),
    /// Whomever the gateway says at this URL that it is.
    AsSaidAt(Url),
}

/// Who may read the agent's card at its well-known paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Card {
    /// Whoever has a token.
    ForCallers,
    /// Everybody.
    Public,
}

/// What becomes of a token that could be sent with any body, as discovery gives it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unbound {
    /// It counts, again and again, until it expires.
    Admitted,
    /// It is refused.
    Refused,
}

/// One agent's guard.
pub struct Sidecar {
    /// In force.
    pub config: Live,
    /// Of this process.
    pub metrics: Arc<Metrics>,
    /// How the process ends.
    pub drain: Arc<Drain>,
    /// Whom it guards.
    pub settings: Settings,
    keys: Published,
    issuer: OnceLock<String>,
    uses: Uses,
}

impl Sidecar {
    /// Fetches nothing: [`Sidecar::run`] does.
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

    /// Keeps the keys fresh. Runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(self.keys.keep(&self.metrics), self.learn_issuer());
    }

    /// Asks the gateway who it is until it says so, and never again: another issuer is another start.
    async fn learn_issuer(&self) {
        let Issuer::AsSaidAt(url) = &self.settings.issuer else {
            return;
        };
        let mut told = false;
        loop {
            match issuer_of(url).await {
                Ok(issuer) => {
                    tracing::info!(issuer, "The gateway said who it is");
                    self.issuer.get_or_init(|| issuer);
                    return;
                }
                Err(failure) if !told => {
                    told = true;
                    let (reason, error) = (failure.outcome.word(), Chain(failure.cause.as_ref()));
                    tracing::warn!(reason, %error, "The gateway does not say who it is; asking until it does, or start with --issuer");
                }
                Err(_) => {}
            }
            sleep(PATIENCE.first_pause).await;
        }
    }

    /// Whether tokens can be verified.
    ///
    /// # Errors
    /// `store_unavailable` says what is missing.
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

    /// What `token` proves: a caller that the gateway lets message this agent.
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
                "the token is not bound to a request, and this sidecar takes no others: call through the gateway",
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

    /// Whether `body`, which calls `method`, is what the token was made for.
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
        // A call without a method, or with one of absurd length, is bound by its body alone.
        if claims.method.is_some() && claims.method.as_deref() != method {
            let message = "the token was made for another method";
            return Err(self.flawed(CredentialFlaw::OtherBody, message));
        }
        Ok(())
    }

    /// Notes that the token is used. One that is bound to a body counts once: to be asked last, so that
    /// nobody can use up the token of somebody else's request. It must still be good then, however long
    /// the body took to come.
    ///
    /// # Errors
    /// `unauthenticated` for the second use, or when it is over; `overloaded` when nobody could tell.
    pub fn use_up(&self, claims: &PairClaims) -> Result<(), Rejection> {
        let now = seconds_now();
        if !claims.is_bound() {
            if is_over(claims.exp, now) {
                return Err(self.refused(TokenError::Expired));
            }
            return Ok(());
        }
        let used = self.uses.note(&claims.jti, claims.exp, now);
        self.metrics.token_use(used.word(), self.uses.len());
        match used {
            Use::First => Ok(()),
            Use::Late => Err(self.refused(TokenError::Expired)),
            Use::Again => Err(self.flawed(
                CredentialFlaw::Replayed,
                "the token was used before: each request carries a fresh one",
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

    /// Counts, and says, that a request came without a token that could be looked at.
    pub fn no_token(&self, message: &'static str) -> Rejection {
        self.flawed(CredentialFlaw::Missing, message)
    }
}

/// Refuses a credential, with the reason why.
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
