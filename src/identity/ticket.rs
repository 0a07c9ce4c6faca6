//! Tickets: how a browser, which cannot send `Authorization` with a WebSocket, proves who it is. And
//! whether a credential that was good still is, for what stays open for hours.

use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::credential::{CredentialHash, Form, Fresh};
use super::issuers::{Named, NotForeign, Signer};
use super::{CredentialKind, Identity, Principal, Proof, now_ms};
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::shared::Shared;
use crate::shares::Account;
use crate::store::Unavailable;
use crate::trust::{TOKEN_BYTES_MAX, TokenError, Verified};

/// How long a ticket waits to be used (contract §8.4).
pub const TICKET_TTL: Duration = Duration::from_secs(30);

/// The `typ` of what stands behind a canvas user's ticket.
const TYP: &str = "a2a-ticket+jwt";

/// What stands behind a ticket, under the ticket's hash. Whoever can write there gains nothing: a
/// credential of a table is looked up again, and a canvas user's claims are signed.
#[derive(Serialize, Deserialize)]
struct Stored {
    kind: String,
    prefix: String,
    hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signed: Option<String>,
}

/// A canvas user, as the maker's token proved them. Times are seconds since 1970.
#[derive(Serialize, Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    iat: i64,
    nbf: i64,
    exp: i64,
    user: String,
    org: Option<String>,
    workspaces: Option<Vec<String>>,
    /// The org token by which the canvas token was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    via: Option<String>,
    until_ms: i64,
    /// What the credential was signed with: when that is withdrawn, its tickets end too.
    signer: Named,
}

/// A canvas user behind a ticket.
struct Vouched {
    principal: Principal,
    /// Milliseconds since 1970.
    until_ms: i64,
    signer: Named,
    maker: Option<CredentialHash>,
}

/// The credential behind a proof is no good any more.
struct Gone;

impl Identity {
    /// A ticket for whom `proof` proves, and when it lapses in milliseconds since 1970.
    ///
    /// # Errors
    /// `store_unavailable`; `invalid_params` when a canvas token names too many workspaces.
    pub async fn issue_ticket(
        &self,
        shared: &Shared,
        proof: &Proof,
    ) -> Result<(SecretString, i64), Rejection> {
        let fresh = Fresh::new(Form::Ticket);
        let stored = Stored {
            kind: proof.kind.word().to_owned(),
            prefix: proof.prefix.clone(),
            hash: proof.credential.map(CredentialHash::to_hex),
            signed: self.sign_canvas(proof)?,
        };
        let text = serde_json::to_string(&stored)
            .map_err(|error| Rejection::new(Reason::Internal, "no ticket").cause(error))?;
        let lapses = now_ms() + i64::try_from(TICKET_TTL.as_millis()).unwrap_or(0);
        shared
            .set(&key(fresh.hash), &text, Some(TICKET_TTL))
            .await?;
        Ok((fresh.text, lapses))
    }

    /// Who made the ticket, once.
    ///
    /// # Errors
    /// `unauthenticated` when it is unknown, used, older than 30 s, or its maker's credential is no
    /// good any more; `store_unavailable`.
    pub async fn redeem_ticket(
        &self,
        shared: &Shared,
        ticket: &SecretString,
    ) -> Result<Arc<Proof>, Rejection> {
        let refused = || {
            Rejection::new(
                Reason::Unauthenticated,
                "the ticket is unknown, used or older than 30 s; get a new one from POST /ws/tickets",
            )
        };
        let text = ticket.expose_secret();
        if Form::of(text) != Some(Form::Ticket) {
            return Err(refused());
        }
        let stored = shared.take(&key(CredentialHash::of(text))).await?;
        let stored = stored.ok_or_else(refused)?;
        let stored: Stored = serde_json::from_str(&stored).map_err(|_| refused())?;
        self.maker(stored).await?.ok_or_else(refused)
    }

    async fn maker(&self, stored: Stored) -> Result<Option<Arc<Proof>>, Rejection> {
        if stored.kind == CredentialKind::Open.word() {
            return Ok(self.open());
        }
        let Some(hash) = stored.hash.as_deref().and_then(CredentialHash::from_hex) else {
            return Ok(None);
        };
        let (mut signer, mut maker) = (None, None);
        let (kind, principal, expires_at) = if let Some(signed) = &stored.signed {
            let Some(vouched) = self.verify_signed(signed).await? else {
                return Ok(None);
            };
            let (principal, until, named) = (vouched.principal, vouched.until_ms, vouched.signer);
            maker = vouched.maker;
            let found = if named.issuer.is_none() {
                let key = self.keys.find(&named.head);
                key.map(|key| Signer::own(named.head, key))
            } else {
                match self.issuers.signer(named).await {
                    Ok(found) => found,
                    Err(NotForeign::Refused(_)) => None,
                    Err(NotForeign::Unavailable(rejection)) => return Err(rejection),
                }
            };
            let Some(found) = found else {
                return Ok(None);
            };
            signer = Some(found);
            (CredentialKind::Canvas, principal, Some(until))
        } else {
            let tables = [
                CredentialKind::Workspace,
                CredentialKind::Org,
                CredentialKind::Admin,
            ];
            let kind = tables.into_iter().find(|kind| kind.word() == stored.kind);
            let Some(kind) = kind else { return Ok(None) };
            match self.principal_of(kind, hash).await? {
                Some(principal) => (kind, principal, None),
                None => return Ok(None),
            }
        };
        let proof = Proof {
            principal,
            kind,
            prefix: stored.prefix,
            account: Account::default(),
            expires_at,
            hash: None,
            signer,
            maker,
            only_to: None,
            credential: Some(hash),
        };
        let good = proof.is_current() && self.maker_stands(&proof).await?;
        Ok(good.then(|| Arc::new(proof.with_account())))
    }

    /// Whether the credential behind `proof` is still good. From memory in steady state, so that it
    /// can be asked every second; when the store is away, what was good stays good.
    pub async fn still_good(&self, proof: &Proof) -> bool {
        proof.is_current() && self.stands(proof).await
    }

    /// The same, but for its time: what began in time goes on when a token expires, not when it is revoked.
    pub async fn stands(&self, proof: &Proof) -> bool {
        if proof
            .signer
            .as_ref()
            .is_some_and(|by| by.key.is_withdrawn())
        {
            return false;
        }
        let Some(hash) = proof.credential else {
            // Nothing was shown: good for as long as nothing has to be.
            return proof.kind != CredentialKind::Open || self.open().is_some();
        };
        if matches!(proof.kind, CredentialKind::Canvas | CredentialKind::Pair) {
            // Signed, so there is nothing to look up but the token by which it was made.
            return self.maker_stands(proof).await.unwrap_or(true);
        }
        let load = || async {
            match self.principal_of(proof.kind, hash).await {
                Ok(Some(principal)) => Ok(Arc::new(Proof {
                    principal,
                    ..proof.clone()
                })),
                Ok(None) => Err(Ok(Gone)),
                Err(error) => Err(Err(error)),
            }
        };
        match self.proofs.get_or_load(&hash, load).await {
            Ok(now) => now.principal == proof.principal,
            Err(why) => match &*why {
                Ok(Gone) => false,
                Err(Unavailable { .. }) => true,
            },
        }
    }

    /// Whom an opaque credential proves now.
    async fn principal_of(
        &self,
        kind: CredentialKind,
        hash: CredentialHash,
    ) -> Result<Option<Principal>, Unavailable> {
        Ok(match kind {
            CredentialKind::Workspace => {
                let found = self.tokens.find_workspace(hash).await?;
                found.map(|found| Principal::Workspace {
                    id: found.workspace,
                })
            }
            CredentialKind::Org => {
                let found = self.tokens.find_org(hash).await?;
                found.map(|(org, _)| Principal::Org { org })
            }
            CredentialKind::Admin => {
                let known =
                    hash.is_one_of(&self.admins.get()) || self.tokens.is_admin(hash).await?;
                known.then_some(Principal::Operator)
            }
            CredentialKind::Canvas
            | CredentialKind::Enrolment
            | CredentialKind::Open
            | CredentialKind::Pair
            | CredentialKind::Stored => None,
        })
    }

    fn sign_canvas(&self, proof: &Proof) -> Result<Option<String>, Rejection> {
        let (
            CredentialKind::Canvas,
            Principal::Canvas {
                user,
                org,
                workspaces,
                ..
            },
        ) = (proof.kind, &proof.principal)
        else {
            return Ok(None);
        };
        // Every canvas token ends, and is signed by something.
        let (Some(signer), Some(until_ms)) = (&proof.signer, proof.expires_at) else {
            return Err(Rejection::new(
                Reason::Internal,
                "the canvas token has no signer or no end",
            ));
        };
        let (issuer, now) = (self.config.get().issuer(), now_ms() / 1000);
        let ids = |list: &Vec<WorkspaceId>| list.iter().map(ToString::to_string).collect();
        let claims = Claims {
            aud: issuer.clone(),
            iss: issuer,
            iat: now,
            nbf: now,
            exp: now + i64::try_from(TICKET_TTL.as_secs()).unwrap_or(0),
            user: user.clone(),
            org: org.clone(),
            workspaces: workspaces.as_ref().map(ids),
            via: proof.maker.map(CredentialHash::to_hex),
            until_ms,
            signer: signer.named.clone(),
        };
        let signed = self.keys.sign(TYP, &claims).map_err(|error| {
            Rejection::new(Reason::Internal, "the ticket could not be signed").cause(error)
        })?;
        if TOKEN_BYTES_MAX < signed.len() {
            return Err(Rejection::new(
                Reason::InvalidParams,
                "the canvas token names too many workspaces for a ticket; read GET /events with it instead",
            ));
        }
        Ok(Some(signed))
    }

    /// Whom it names. `None`: it is not good.
    async fn verify_signed(&self, signed: &str) -> Result<Option<Vouched>, Rejection> {
        let issuer = self.config.get().issuer();
        let verify = || self.keys.verify::<Claims>(signed, TYP, &issuer, &issuer);
        let mut verified = verify();
        if matches!(verified, Err(TokenError::UnknownKey)) {
            // The replica that made it may have another key by now.
            self.look_for_key().await?;
            verified = verify();
        }
        let Ok(Verified { claims, .. }) = verified else {
            return Ok(None);
        };
        let parse = |ids: Vec<String>| ids.iter().map(|id| WorkspaceId::parse(id)).collect();
        let Ok(workspaces) = claims.workspaces.map(parse).transpose() else {
            return Ok(None);
        };
        let maker = claims.via.as_deref().and_then(CredentialHash::from_hex);
        let principal = Principal::Canvas {
            user: claims.user,
            org: claims.org,
            workspaces,
            confined: maker.is_some(),
        };
        Ok(Some(Vouched {
            principal,
            until_ms: claims.until_ms,
            signer: claims.signer,
            maker,
        }))
    }
}

/// Where a ticket waits.
fn key(ticket: CredentialHash) -> String {
    format!("gw:ticket:{}", ticket.to_hex())
}
