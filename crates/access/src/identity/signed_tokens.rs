//! Tokens that this gateway signs and accepts: canvas tokens, which are short-lived JWTs for browser users, and
//! pair tokens (`docs/reference/credentials.md`, "Pair tokens"), each of which proves a workspace to one target.
//! Pair tokens are issued at discovery, and for forwarded requests, where only the target accepts them.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::caller_tokens::{CallerToken, Epoch};
use super::chain_token::{CALL_USE, Chain, SEALED};
use super::credential::CredentialHash;
use super::proof::{
    CredentialKind, NAME_CHARS_MAX, Principal, Proof, Signer, is_valid_name, open_proof,
};
use super::refusal::{AuthError, Refusal};
use crate::identity::revocations::Revocable;
use kernel::config::Live;
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use trust::{
    CHAIN_TYP, Keys, PAIR_TYP, Pair, PairClaims, Seal, ServiceClaims, ServiceKind, SignError,
    TOKEN_BYTES_MAX, TokenError, claimed_audience, own_type,
};

pub use trust::{CANVAS_SCOPE, CANVAS_TYP};

/// The owner of what is sealed in chain tokens.
const SEALED_FOR: &str = "chain";

/// Most groups of a user.
pub(super) const GROUPS_MAX: usize = 64;

/// Default lifetime: a working hour.
pub const CANVAS_TTL_DEFAULT: Duration = Duration::from_secs(3600);

/// Longest lifetime that can be requested.
pub const CANVAS_TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// The claims of the token. Times are seconds since 1970.
#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    sub: String,
    iat: i64,
    nbf: i64,
    exp: i64,
    jti: String,
    scope: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    org: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workspaces: Option<Vec<WorkspaceId>>,
    #[serde(default, skip_serializing_if = "<[String]>::is_empty")]
    groups: Box<[String]>,
    /// SHA-256 of the org token with which it was made: it ends with that token, and reaches only that org.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    via: Option<CredentialHash>,
    /// The root of that org token's subtree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    within: Option<WorkspaceIncarnation>,
}

/// A canvas token to be issued.
#[derive(Clone, Copy)]
pub struct NewCanvas<'a> {
    /// The user.
    pub user: &'a str,
    /// The org that the user can reach.
    pub org: Option<&'a str>,
    /// If present, only these workspaces.
    pub workspaces: Option<&'a [WorkspaceId]>,
    /// The user's groups.
    pub groups: &'a [String],
    /// The lifetime.
    pub ttl: Duration,
    /// The caller that issues it. With an org token it ends with that token, and reaches no more than it.
    pub maker: Option<&'a Proof>,
}

/// A canvas token to be returned to its maker.
#[derive(Debug)]
pub struct IssuedCanvas {
    /// The token.
    pub token: SecretString,
    /// Its id (`jti`), by which it can be revoked.
    pub id: String,
    /// Expiry: milliseconds since 1970.
    pub expires_at: i64,
}

/// A pair token to be returned to a caller.
#[derive(Debug)]
pub struct IssuedPair {
    /// The token.
    pub token: SecretString,
    /// Expiry: milliseconds since 1970.
    pub expires_at: i64,
    /// The lifetime.
    pub ttl: Duration,
}

/// Signs and verifies tokens.
pub struct SignedTokens {
    pub(super) config: Live,
    pub(super) keys: Arc<Keys>,
    /// Seals what chain tokens hide from other orgs.
    seal: Arc<Seal>,
    /// The signed caller tokens.
    pub(super) epoch: ArcSwap<Epoch>,
}

impl SignedTokens {
    pub(super) fn new(config: Live, keys: Arc<Keys>, seal: Arc<Seal>) -> Self {
        Self {
            epoch: ArcSwap::from_pointee(Epoch::new(&config, &keys)),
            config,
            keys,
            seal,
        }
    }

    /// Signs a canvas token: for its workspaces if given, else for all of its org.
    ///
    /// # Errors
    /// `invalid_params` when a name or the lifetime is out of bounds, or the list is too long.
    pub fn issue_canvas(&self, new: &NewCanvas<'_>) -> Result<IssuedCanvas, Rejection> {
        check_name("user", new.user)?;
        if let Some(org) = new.org {
            check_name("org", org)?;
        }
        if !(Duration::from_secs(1)..=CANVAS_TTL_MAX).contains(&new.ttl) {
            return Err(Rejection::new(
                Reason::InvalidParams,
                "`ttl_seconds` is a whole number from 1 to 86400",
            ));
        }
        if new.groups.len() > GROUPS_MAX {
            let message = "`groups` has at most 64 names";
            return Err(Rejection::new(Reason::InvalidParams, message));
        }
        for group in new.groups {
            check_name("groups", group)?;
        }
        let now = Timestamp::now().0 / 1000;
        let exp = now + i64::try_from(new.ttl.as_secs()).unwrap_or(i64::MAX - now);
        let issuer = self.config.get().issuer();
        let maker = new.maker.filter(|maker| maker.kind == CredentialKind::Org);
        let claims = Claims {
            aud: issuer.clone(),
            iss: issuer,
            sub: new.user.to_owned(),
            iat: now,
            nbf: now,
            exp,
            jti: uuid::Uuid::now_v7().to_string(),
            scope: CANVAS_SCOPE.to_owned(),
            org: new.org.map(str::to_owned),
            workspaces: new.workspaces.map(<[WorkspaceId]>::to_vec),
            groups: new.groups.into(),
            via: maker.and_then(|maker| maker.credential),
            within: maker.and_then(|maker| maker.principal.within()).cloned(),
        };
        let token = self.sign_bounded(
            CANVAS_TYP,
            &claims,
            "token",
            "`workspaces` is too long for a token of 8192 bytes: name fewer, or an `org` instead",
        )?;
        Ok(IssuedCanvas {
            token: token.into(),
            id: claims.jti,
            expires_at: exp * 1000,
        })
    }

    fn sign(&self, typ: &str, claims: &impl Serialize, name: &str) -> Result<String, Rejection> {
        let signed = self.keys.sign(typ, claims);
        signed.map_err(|error| sign_failure(name, error))
    }

    /// Signs claims whose length depends on a list of workspaces. `too_long`: the message for a list that is too long.
    pub(super) fn sign_bounded(
        &self,
        typ: &str,
        claims: &impl Serialize,
        name: &str,
        too_long: &'static str,
    ) -> Result<String, Rejection> {
        let signed = self.sign(typ, claims, name)?;
        match signed.len() <= TOKEN_BYTES_MAX {
            true => Ok(signed),
            false => Err(Rejection::new(Reason::InvalidParams, too_long)),
        }
    }

    /// Verifies a canvas token of this gateway.
    fn verify_canvas(&self, token: &str) -> Result<Proof, TokenError> {
        let issuer = self.config.get().issuer();
        let verified = self.keys.verify(token, CANVAS_TYP, &issuer, &issuer)?;
        let claims: Claims = verified.claims;
        if claims.scope != CANVAS_SCOPE {
            return Err(TokenError::Claims);
        }
        let (named, issued_at) = ((&*issuer, &*claims.sub), claims.iat.saturating_mul(1000));
        let revocable = Revocable::of_person(named, None, Some(&claims.jti), issued_at);
        Ok(Proof {
            principal: Principal::Canvas {
                user: claims.sub,
                org: claims.org,
                workspaces: claims.workspaces,
                confined: claims.via.is_some(),
                within: claims.within,
            },
            kind: CredentialKind::Canvas,
            expires_at: Some(claims.exp.saturating_mul(1000)),
            signer: Some(Signer::from_own_key(verified.head, verified.key)),
            maker: claims.via,
            revocable: Some(Arc::new(revocable)),
            groups: claims.groups,
            ..open_proof()
        })
    }

    /// Issues a token with which the caller of `pair`, a workspace, may message its target for
    /// `tokens.pair_ttl`, and not beyond the end of the credential that `maker` proved.
    ///
    /// # Errors
    /// `internal` when it cannot be signed.
    pub fn issue_pair(&self, pair: Pair<'_>, maker: &Proof) -> Result<IssuedPair, Rejection> {
        let config = self.config.get();
        let now = Timestamp::now();
        let left = maker.ends_at().map(|end| Timestamp(end).since(now));
        // Its end has whole seconds.
        let left = left.map_or(Duration::MAX, |left| left.max(Duration::from_secs(1)));
        let ttl = config
            .tokens
            .pair_ttl
            .min(Duration::from_secs(left.as_secs()));
        let claims = PairClaims::new(config.issuer(), pair, now, ttl);
        Ok(IssuedPair {
            token: self.sign(PAIR_TYP, &claims, "pair token")?.into(),
            expires_at: claims.exp.saturating_mul(1000),
            ttl,
        })
    }

    /// Issues the token that proves the gateway to the service of this kind for `subject`, at the origin `audience`.
    /// `bh`: the hash of a question's body.
    ///
    /// # Errors
    /// `internal` when it cannot be signed.
    pub fn issue_for_service(
        &self,
        kind: &ServiceKind,
        subject: &str,
        audience: String,
        bh: Option<String>,
    ) -> Result<SecretString, Rejection> {
        let issuer = self.config.get().issuer();
        let service = (subject, audience);
        let claims = ServiceClaims::new(issuer, service, kind.scope, bh, Timestamp::now());
        self.sign(kind.typ, &claims, kind.name).map(Into::into)
    }

    /// Returns a token that proves the caller to the target of `pair`: one that is used for all of its calls for half
    /// its lifetime.
    ///
    /// # Errors
    /// `internal` when it cannot be signed.
    pub fn caller_token_for_pair(&self, pair: Pair<'_>) -> Result<Arc<CallerToken>, Rejection> {
        self.caller_token_at(pair, Timestamp::now())
    }

    /// Returns a token of the pair at the time `now`: one that was signed within half its lifetime, or a new one.
    pub(super) fn caller_token_at(
        &self,
        pair: Pair<'_>,
        now: Timestamp,
    ) -> Result<Arc<CallerToken>, Rejection> {
        self.with_epoch(|epoch| epoch.token_for_pair(&pair, now))
    }

    /// Issues the token that proves the caller to the target of `pair`, for one request of the JSON-RPC
    /// `method` with a body of this hash ([`body_hash`](trust::body_hash)).
    ///
    /// # Errors
    /// `internal` when it cannot be signed.
    pub fn caller_token_for_request(
        &self,
        pair: Pair<'_>,
        method: Option<&str>,
        body_hash: String,
    ) -> Result<Arc<CallerToken>, Rejection> {
        self.with_epoch(|epoch| {
            let claims = epoch.pair_claims(pair, Timestamp::now());
            epoch.sign(&claims.bind_to(method, body_hash))
        })
    }

    /// Drops caller tokens that are not used again at the time `now`, so that memory follows the pairs that call.
    pub fn drop_stale(&self, now: Timestamp) {
        self.epoch.load().drop_stale(now);
    }

    fn with_epoch<T>(
        &self,
        work: impl FnOnce(&Epoch) -> Result<T, SignError>,
    ) -> Result<T, Rejection> {
        let mut epoch = self.epoch.load();
        if !epoch.is_current(&self.config, &self.keys) {
            // Of several callers at once each may begin one: the last one stays, and what the others signed is as good.
            let new = Arc::new(Epoch::new(&self.config, &self.keys));
            self.epoch.store(Arc::clone(&new));
            epoch = Guard::from_inner(new);
        }
        work(&epoch).map_err(|error| sign_failure("pair token", error))
    }

    /// Verifies a pair token of this gateway.
    fn verify_pair(&self, token: &str) -> Result<Proof, Refusal> {
        let signed = Refusal::Signed;
        let issuer = self.config.get().issuer();
        // The audience is compared with the target later, when the target is known.
        let audience = claimed_audience(token).ok_or(signed(TokenError::Claims))?;
        let verified = self.keys.verify(token, PAIR_TYP, &issuer, &audience);
        let verified = verified.map_err(signed)?;
        let claims = PairClaims::validate(verified.claims).map_err(signed)?;
        if claims.is_forwarded() {
            return Err(Refusal::Forwarded);
        }
        let id = |text: &str| WorkspaceId::parse(text).map_err(|_| signed(TokenError::Claims));
        Ok(Proof {
            principal: Principal::Workspace {
                id: id(&claims.sub)?,
            },
            kind: CredentialKind::Pair,
            expires_at: Some(claims.exp.saturating_mul(1000)),
            signer: Some(Signer::from_own_key(verified.head, verified.key)),
            only_to: Some(id(&claims.aud)?),
            pair_generation: Some(claims.generation),
            ..open_proof()
        })
    }

    /// Verifies a call token of this gateway: it proves its outermost actor to one target.
    fn verify_call(&self, token: &str) -> Result<Proof, Refusal> {
        let signed = Refusal::Signed;
        let issuer = self.config.get().issuer();
        // The audience is compared with the target later, when the target is known.
        let audience = claimed_audience(token).ok_or(signed(TokenError::Claims))?;
        let verified = self
            .keys
            .verify::<Map<String, Value>>(token, CHAIN_TYP, &issuer, &audience);
        let verified = verified.map_err(signed)?;
        let seconds = |name: &str| {
            verified
                .claims
                .get(name)
                .and_then(Value::as_i64)
                .unwrap_or(0)
        };
        let (issued_at, exp) = (seconds("iat").saturating_mul(1000), seconds("exp"));
        let mut chain = self
            .read_claims(verified.claims, CALL_USE)
            .map_err(|_| Refusal::Context)?;
        let id = |text: &str| WorkspaceId::parse(text).map_err(|_| signed(TokenError::Claims));
        let actor = id(chain.actors().next().ok_or(signed(TokenError::Claims))?)?;
        chain.set_link(token);
        Ok(Proof {
            principal: Principal::Workspace { id: actor },
            kind: CredentialKind::Pair,
            expires_at: Some(exp.saturating_mul(1000)),
            signer: Some(Signer::from_own_key(verified.head, verified.key)),
            only_to: Some(id(&audience)?),
            // Of no earlier life of either end; a claim has whole seconds.
            pair_generation: Some(issued_at.saturating_add(999)),
            revocable: Some(Arc::new(chain.revocable())),
            chain: Some(Arc::new(chain)),
            ..open_proof()
        })
    }

    /// Reads the claims of a chain token, with what is hidden in it.
    pub(super) fn read_claims(
        &self,
        claims: Map<String, Value>,
        usage: &str,
    ) -> Result<Chain, TokenError> {
        let mut chain = Chain::read(claims, usage)?;
        if let Some(sealed) = chain.take(SEALED) {
            let sealed = serde_json::from_value(sealed).map_err(|_| TokenError::Claims)?;
            let opened = self
                .seal
                .open(SEALED_FOR, &sealed)
                .map_err(|_| TokenError::Claims)?;
            let hidden = serde_json::from_str(opened.expose_secret());
            chain.reveal(hidden.map_err(|_| TokenError::Claims)?);
        }
        Ok(chain)
    }

    /// Returns a chain that shows `shown` in place of its root and its actors.
    ///
    /// # Errors
    /// `internal` when the system gives no randomness.
    pub(super) fn seal_chain(
        &self,
        chain: &Chain,
        shown: (Value, Option<Value>),
    ) -> Result<Chain, Rejection> {
        let mut made = chain.clone();
        let hidden = SecretString::from(Value::Object(made.conceal(shown)).to_string());
        let sealed = self.seal.seal(SEALED_FOR, &hidden).map_err(|error| {
            Rejection::new(Reason::Internal, "the chain could not be sealed").with_cause(error)
        })?;
        made.set(SEALED, json!(sealed));
        Ok(made)
    }

    /// Verifies a canvas token, a pair token or a call token of this gateway.
    pub(super) fn verify(&self, token: &str) -> Result<Proof, Refusal> {
        match own_type(token).as_deref() {
            Some(PAIR_TYP) => return self.verify_pair(token),
            Some(CHAIN_TYP) => return self.verify_call(token),
            _ => {}
        }
        self.verify_canvas(token).map_err(Refusal::Signed)
    }

    /// Verifies by `verify`, and once more if the key is unknown: another replica may have made it just now.
    pub(super) async fn verify_with_reload<T>(
        &self,
        verify: impl Fn() -> Result<T, Refusal>,
    ) -> Result<T, AuthError> {
        match verify() {
            Err(Refusal::Signed(TokenError::UnknownKey)) => {}
            known => return Ok(known?),
        }
        self.keys.reload_for_unknown_key().await.map_err(|error| {
            let message = "the token names a key that is not known, and keys.dir cannot be read to look for it; the log \
                           says why";
            let rejection = Rejection::new(Reason::StoreUnavailable, message);
            let rejection = rejection.with_retry_after(Duration::from_secs(1));
            AuthError::Unavailable(rejection.with_cause(error))
        })?;
        Ok(verify()?)
    }
}

fn check_name(member: &str, name: &str) -> Result<(), Rejection> {
    if is_valid_name(name) {
        return Ok(());
    }
    Err(Rejection::new(
        Reason::InvalidParams,
        format!(
            "`{member}` has 1 to {NAME_CHARS_MAX} characters, none of them a control character"
        ),
    ))
}

fn sign_failure(name: &str, error: SignError) -> Rejection {
    let message = format!("the {name} could not be signed");
    Rejection::new(Reason::Internal, message).with_cause(error)
}
