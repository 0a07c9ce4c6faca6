//! Authentication: from the field `Authorization` to a proof. In steady state no store is read: a valid
//! credential is cached until it is revoked, ages or expires.

use std::sync::Arc;
use std::time::Duration;

use super::credential::{Credential, CredentialHash, Form};
use super::issuers::{NotForeign, Signer};
use super::{CredentialKind, Identity, Principal, Proof, now_ms, open_proof};
use crate::ids::WorkspaceId;
use crate::metrics::CredentialFlaw;
use crate::rejection::{Reason, Rejection};
use crate::shares::Account;
use crate::store::Unavailable;
use crate::trust::{PAIR_TYP, TokenError, own_type};

/// Minimum interval between two recorded uses of one token.
const USE_NOTED_EVERY_MS: i64 = 60_000;

/// The reason why a credential proves nothing. It is not secret, since it depends on the credential alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// In no table: never issued, revoked, or its workspace was removed.
    Unknown,
    /// A signed token of this gateway that is invalid.
    Signed(TokenError),
    /// An invalid token that names an issuer of `auth.issuers`.
    Foreign(TokenError),
    /// A pair token that was issued for one forwarded request.
    Bound,
}

/// The contents of a valid signed token.
pub(super) struct Signed {
    pub(super) principal: Principal,
    pub(super) kind: CredentialKind,
    /// Milliseconds since 1970.
    pub(super) expires_at: i64,
    pub(super) signer: Signer,
    /// The org token with which it was made.
    pub(super) maker: Option<CredentialHash>,
    pub(super) only_to: Option<WorkspaceId>,
}

impl Refusal {
    const fn flaw(self) -> CredentialFlaw {
        match self {
            Self::Unknown => CredentialFlaw::Unknown,
            Self::Signed(error) | Self::Foreign(error) => error.flaw(),
            Self::Bound => CredentialFlaw::Bound,
        }
    }

    pub(super) fn rejection(self) -> Rejection {
        match self {
            Self::Unknown => unauthenticated(
                "the credential is unknown, revoked, or belongs to a removed workspace; send one that is live",
            ),
            Self::Signed(TokenError::Expired) | Self::Foreign(TokenError::Expired) => {
                unauthenticated("the token has expired; ask its issuer for a new one")
            }
            Self::Foreign(TokenError::Malformed) => unauthenticated(
                "the token's header is not one that is accepted: `alg` EdDSA, ES256, ES384, RS… or PS…, a `kid`, `typ` JWT or at+jwt, and none of `crit`, `jwk`, `jku`, `x5c`, `x5u`",
            ),
            Self::Foreign(TokenError::UnknownKey) => unauthenticated(
                "the token names a key (`kid`) that its issuer does not publish for this `alg`",
            ),
            Self::Foreign(TokenError::Claims) => unauthenticated(
                "the token is not meant for this gateway, or a claim is missing or of the wrong type: it needs `iss`, `aud`, `sub`, `exp`",
            ),
            Self::Bound => unauthenticated(
                "the token was made for one forwarded request (`bh`), and proves its caller to that target only; GET /registry/discover/{id} gives one to call with",
            ),
            Self::Signed(error) | Self::Foreign(error) => unauthenticated(error.to_string()),
        }
    }
}

/// The reason why there is no proof.
enum NoProof {
    Refused(Refusal),
    Unavailable(Unavailable),
    /// The keys of its issuer are unavailable.
    NoKeys(Rejection),
}

impl From<Unavailable> for NoProof {
    fn from(error: Unavailable) -> Self {
        Self::Unavailable(error)
    }
}

impl Identity {
    /// Returns the principal that the value of an `Authorization` field proves. `None`: the request has no
    /// such field.
    ///
    /// # Errors
    /// `unauthenticated`, also for an enrolment token, which only [`Identity::authenticate_enrolment`] accepts;
    /// `not_permitted` for a pair token, which only [`Identity::authenticate_message`] accepts;
    /// `store_unavailable` when the credential cannot be read.
    pub async fn authenticate(
        &self,
        authorization: Option<&[u8]>,
    ) -> Result<Arc<Proof>, Rejection> {
        let proof = self.authenticate_message(authorization).await?;
        if proof.only_to.is_some() {
            return Err(Rejection::new(
                Reason::NotPermitted,
                "a pair token is good for calls to its own target, POST /workspaces/{id}/a2a, and for nothing else; send the workspace's own token",
            ));
        }
        Ok(proof)
    }

    /// As [`Identity::authenticate`], for a message, where a pair token for the target is valid as well. The
    /// target is compared with the permit.
    ///
    /// # Errors
    /// As [`Identity::authenticate`], except for pair tokens.
    pub async fn authenticate_message(
        &self,
        authorization: Option<&[u8]>,
    ) -> Result<Arc<Proof>, Rejection> {
        let Some(field) = authorization else {
            return self.open().ok_or_else(|| {
                self.flawed(
                    CredentialFlaw::Missing,
                    "send `Authorization: Bearer <token>` with a workspace, canvas, org or admin token",
                )
            });
        };
        let credential = self.parse(field)?;
        if credential.form == Form::Enrolment {
            return Err(self.flawed(
                CredentialFlaw::Misplaced,
                "an enrolment token is only good for one POST /registry/register; send the workspace token that it answers with",
            ));
        }
        if credential.form == Form::Ticket {
            return Err(self.flawed(
                CredentialFlaw::Misplaced,
                "a ticket is sent as `?ticket=` to GET /ws or GET /events, and nowhere else",
            ));
        }
        let hash = credential.hash();
        // Most credentials are valid, so the cache of rejected ones is read second.
        if let Some(proof) = self.proofs.get(&hash).await {
            return self.require_maker(hash, proof).await;
        }
        if let Some(refusal) = self.refusals.get(&hash).await {
            return Err(self.refused(refusal));
        }
        let load = || self.load(credential, hash);
        // Boxed: a miss is rare, and its future would otherwise widen every exchange's.
        let loaded = Box::pin(self.proofs.get_or_load(&hash, load)).await;
        match loaded {
            Ok(proof) => self.require_maker(hash, proof).await,
            Err(no_proof) => match &*no_proof {
                NoProof::Refused(refusal) => {
                    // The key may become known at any moment.
                    if *refusal != Refusal::Signed(TokenError::UnknownKey) {
                        Box::pin(self.refusals.insert(hash, *refusal)).await;
                    }
                    Err(self.refused(*refusal))
                }
                NoProof::Unavailable(error) => Err(error.clone().into()),
                NoProof::NoKeys(rejection) => Err(rejection.clone()),
            },
        }
    }

    /// Rejects a canvas token if its maker's org token has ended. Does nothing for any other credential.
    async fn require_maker(
        &self,
        hash: CredentialHash,
        proof: Arc<Proof>,
    ) -> Result<Arc<Proof>, Rejection> {
        if proof.maker.is_none() || self.maker_stands(&proof).await? {
            return Ok(proof);
        }
        // Cached as rejected, so that its next use reads no store.
        self.proofs.forget(&hash).await;
        Box::pin(self.refusals.insert(hash, Refusal::Unknown)).await;
        Err(self.refused(Refusal::Unknown))
    }

    /// True if the org token with which a credential was made, if there was one, is still valid. Cached as if
    /// the org token itself had been presented.
    pub(super) async fn maker_stands(&self, proof: &Proof) -> Result<bool, Unavailable> {
        let Some(maker) = proof.maker else {
            return Ok(true);
        };
        let load = || async {
            match self.tokens.find_org(maker).await {
                Ok(Some((org, prefix))) => {
                    let proof = Proof {
                        principal: Principal::Org { org },
                        kind: CredentialKind::Org,
                        prefix,
                        credential: Some(maker),
                        ..open_proof()
                    };
                    Ok(Arc::new(proof.with_account()))
                }
                Ok(None) => Err(None),
                Err(away) => Err(Some(away)),
            }
        };
        match Box::pin(self.proofs.get_or_load(&maker, load)).await {
            Ok(_) => Ok(true),
            Err(why) => match &*why {
                None => Ok(false),
                Some(away) => Err(Unavailable::clone(away)),
            },
        }
    }

    /// As [`Identity::authenticate`], for the one route that accepts an enrolment token. The token stays
    /// unused; [`Identity::redeem_enrolment`] uses it up.
    ///
    /// # Errors
    /// As [`Identity::authenticate`].
    pub async fn authenticate_enrolment(
        &self,
        authorization: Option<&[u8]>,
    ) -> Result<Arc<Proof>, Rejection> {
        let credential = match authorization.map(Credential::parse) {
            Some(Ok(credential)) if credential.form == Form::Enrolment => credential,
            _ => return self.authenticate(authorization).await,
        };
        let hash = credential.hash();
        // Never cached: it is presented once.
        let found = self.tokens.find_enrolment(hash, now_ms()).await?;
        let id = found.ok_or_else(|| {
            self.flawed(
                CredentialFlaw::Unknown,
                "the enrolment token is unknown, used or older than 24 h; ask an operator for a token of the workspace",
            )
        })?;
        let principal = Principal::Workspace { id };
        let mut proof = prove(principal, CredentialKind::Enrolment, credential, hash);
        proof.hash = Some(hash);
        Ok(Arc::new(proof))
    }

    /// Checks `claimed`, the value of `X-Workspace-ID`, against the proven principal. The field is a claim,
    /// never a proof (`docs/reference/credentials.md`, "Credentials").
    ///
    /// # Errors
    /// `caller_mismatch` when it names anything else, or when the credential proves no workspace.
    pub fn check_caller(proof: &Proof, claimed: Option<&[u8]>) -> Result<(), Rejection> {
        let Some(claimed) = claimed else {
            return Ok(());
        };
        let proven = proof.principal.workspace();
        if proven.is_some_and(|id| id.as_str().as_bytes() == claimed) {
            return Ok(());
        }
        Err(Rejection::new(
            Reason::CallerMismatch,
            "X-Workspace-ID names a workspace that the credential does not prove; leave it out, or send that workspace's token",
        ))
    }

    fn parse<'a>(&self, field: &'a [u8]) -> Result<Credential<'a>, Rejection> {
        Credential::parse(field).map_err(|_| {
            self.flawed(
                CredentialFlaw::Form,
                "the credential has no known form: send `Authorization: Bearer <token>` with exactly one a2aw_, a2ao_ or a2aa_ token, or a canvas JWT",
            )
        })
    }

    fn refused(&self, refusal: Refusal) -> Rejection {
        self.metrics.refusals.credential(refusal.flaw());
        refusal.rejection()
    }

    /// Counts a credential that proves nothing, and returns its rejection.
    fn flawed(&self, flaw: CredentialFlaw, message: &'static str) -> Rejection {
        self.metrics.refusals.credential(flaw);
        unauthenticated(message)
    }

    async fn load(
        &self,
        credential: Credential<'_>,
        hash: CredentialHash,
    ) -> Result<Arc<Proof>, NoProof> {
        let unknown = NoProof::Refused(Refusal::Unknown);
        let (principal, kind) = match credential.form {
            Form::Workspace => {
                let found = self.tokens.find_workspace(hash).await?.ok_or(unknown)?;
                self.note_use(found.token_id, found.last_used_at);
                let principal = Principal::Workspace {
                    id: found.workspace,
                };
                (principal, CredentialKind::Workspace)
            }
            Form::Org => {
                let (org, _) = self.tokens.find_org(hash).await?.ok_or(unknown)?;
                (Principal::Org { org }, CredentialKind::Org)
            }
            Form::Admin => {
                if !hash.is_one_of(&self.admins.get()) && !self.tokens.is_admin(hash).await? {
                    return Err(unknown);
                }
                (Principal::Operator, CredentialKind::Admin)
            }
            Form::Jwt => return self.load_signed(credential, hash).await,
            // `authenticate` has rejected them.
            Form::Enrolment | Form::Ticket => return Err(unknown),
        };
        Ok(Arc::new(prove(principal, kind, credential, hash)))
    }

    /// Verifies a canvas token of the foreign issuer that it names, or else a canvas or pair token of this
    /// gateway.
    async fn load_signed(
        &self,
        credential: Credential<'_>,
        hash: CredentialHash,
    ) -> Result<Arc<Proof>, NoProof> {
        let text = credential.text();
        let foreign = self.issuers.verify(text).await;
        let foreign = foreign.map_err(|not| match not {
            NotForeign::Refused(error) => NoProof::Refused(Refusal::Foreign(error)),
            NotForeign::Unavailable(rejection) => NoProof::NoKeys(rejection),
        })?;
        let signed = match foreign {
            Some(signed) => signed,
            None => match self.verify_own(text) {
                // Another replica may have created the key just now.
                Err(Refusal::Signed(TokenError::UnknownKey)) => {
                    self.look_for_key().await.map_err(NoProof::NoKeys)?;
                    self.verify_own(text)
                }
                known => known,
            }
            .map_err(NoProof::Refused)?,
        };
        let mut proof = prove(signed.principal, signed.kind, credential, hash);
        proof.expires_at = Some(signed.expires_at);
        proof.signer = Some(signed.signer);
        proof.maker = signed.maker;
        proof.only_to = signed.only_to;
        // The issuer is part of a canvas user's name.
        Ok(Arc::new(proof.with_account()))
    }

    fn verify_own(&self, token: &str) -> Result<Signed, Refusal> {
        if own_type(token).as_deref() == Some(PAIR_TYP) {
            return self.verify_pair(token);
        }
        self.verify_canvas(token).map_err(Refusal::Signed)
    }

    /// Reads the trust keys again, since the key of a token is unknown.
    pub(super) async fn look_for_key(&self) -> Result<(), Rejection> {
        self.keys.look_again().await.map_err(|error| {
            Rejection::new(
                Reason::StoreUnavailable,
                "the token names a key that is not known, and keys.dir cannot be read to look for it; the log says why",
            )
            .retry_after(Duration::from_secs(1))
            .cause(error)
        })
    }

    /// Queues a use to be recorded, at most once a minute per token. A full queue drops it.
    fn note_use(&self, token_id: String, last_used_at: Option<i64>) {
        if last_used_at.is_none_or(|at| now_ms() - at >= USE_NOTED_EVERY_MS) {
            let _ = self.uses.try_send(token_id);
        }
    }
}

fn prove(
    principal: Principal,
    kind: CredentialKind,
    credential: Credential<'_>,
    hash: CredentialHash,
) -> Proof {
    Proof {
        principal,
        kind,
        prefix: credential.prefix().to_owned(),
        account: Account::default(),
        expires_at: None,
        hash: None,
        credential: Some(hash),
        signer: None,
        maker: None,
        only_to: None,
    }
    .with_account()
}

fn unauthenticated(message: impl Into<std::borrow::Cow<'static, str>>) -> Rejection {
    Rejection::new(Reason::Unauthenticated, message)
}
