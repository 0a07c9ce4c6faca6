//! Tickets, with which a browser authenticates a WebSocket, where it cannot send `Authorization`.

use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::authenticate::Identity;
use super::credential::{CredentialHash, Form, NewCredential};
use super::issuers::ForeignTokenError;
use super::proof::{CredentialKind, KeyName, Principal, Proof, Signer, open_proof};
use crate::ids::{WorkspaceId, WorkspaceIncarnation};
use crate::rejection::{Reason, Rejection};
use crate::shared::Shared;
use crate::time::Timestamp;
use crate::trust::{TOKEN_BYTES_MAX, TokenError, VerifiedClaims};

/// Lifetime of a ticket.
pub const TICKET_TTL: Duration = Duration::from_secs(30);

/// The `typ` of the claims of a ticket whose maker's credential was signed.
const TYP: &str = "a2a-ticket+jwt";

/// The value stored under a ticket's hash. Write access to the store gains nothing: a credential of a table
/// is looked up again, and the claims of a signed one are signed.
#[derive(Serialize, Deserialize)]
struct TicketRecord {
    kind: String,
    prefix: String,
    hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signed: Option<String>,
}

/// A principal, as proven by the maker's signed token. Times are seconds since 1970.
#[derive(Serialize, Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    iat: i64,
    nbf: i64,
    exp: i64,
    /// The canvas user; empty for a workload.
    user: String,
    /// The workspace of a workload; `workspaces` is empty then, so that a replica that does not know this claim lets the
    /// bearer reach nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workload: Option<String>,
    /// The org in which that workspace must be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    in_org: Option<String>,
    org: Option<String>,
    workspaces: Option<Vec<String>>,
    /// The org token with which the canvas token was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    via: Option<String>,
    /// The root of that org token's subtree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    within: Option<String>,
    until_ms: i64,
    /// The key that signed the credential: when it is withdrawn, its tickets end as well.
    signer: KeyName,
}

/// The maker of a ticket whose credential was signed.
struct TicketMaker {
    principal: Principal,
    kind: CredentialKind,
    in_org: Option<String>,
    /// Milliseconds since 1970.
    until_ms: i64,
    signer: KeyName,
    maker: Option<CredentialHash>,
}

/// Tickets in the shared state.
pub struct Tickets<'a> {
    identity: &'a Identity,
    shared: &'a Shared,
}

impl<'a> Tickets<'a> {
    /// Returns the tickets in `shared`.
    pub fn new(identity: &'a Identity, shared: &'a Shared) -> Self {
        Self { identity, shared }
    }

    /// Issues a ticket for the caller, and returns its expiry in milliseconds since 1970.
    ///
    /// # Errors
    /// `store_unavailable`; `invalid_params` when a canvas token names too many workspaces.
    pub async fn issue(&self, proof: &Proof) -> Result<(SecretString, i64), Rejection> {
        let fresh = NewCredential::new(Form::Ticket);
        let stored = TicketRecord {
            kind: proof.kind.as_str().to_owned(),
            prefix: proof.prefix.clone(),
            hash: proof.credential.map(CredentialHash::to_hex),
            signed: self.sign_claims(proof)?,
        };
        let text = serde_json::to_string(&stored)
            .map_err(|error| Rejection::new(Reason::Internal, "no ticket").with_cause(error))?;
        let lapses = Timestamp::now().0 + i64::try_from(TICKET_TTL.as_millis()).unwrap_or(0);
        self.shared
            .set(&ticket_key(fresh.hash), &text, Some(TICKET_TTL))
            .await?;
        Ok((fresh.text, lapses))
    }

    /// Redeems a ticket, once, and returns the proof of its maker.
    ///
    /// # Errors
    /// `unauthenticated` when it is unknown, used, older than 30 s, or its maker's credential is no longer
    /// valid; `store_unavailable`.
    pub async fn redeem(&self, ticket: &SecretString) -> Result<Arc<Proof>, Rejection> {
        let refused = || {
            Rejection::new(
                Reason::Unauthenticated,
                "the ticket is unknown, used or older than 30 s; get a new one from POST /ws/tickets",
            )
        };
        let text = ticket.expose_secret();
        if Form::detect(text) != Some(Form::Ticket) {
            return Err(refused());
        }
        let stored = self
            .shared
            .take(&ticket_key(CredentialHash::digest(text)))
            .await?;
        let stored = stored.ok_or_else(refused)?;
        let stored: TicketRecord = serde_json::from_str(&stored).map_err(|_| refused())?;
        self.restore_maker(stored).await?.ok_or_else(refused)
    }

    async fn restore_maker(&self, stored: TicketRecord) -> Result<Option<Arc<Proof>>, Rejection> {
        if stored.kind == CredentialKind::Open.as_str() {
            return Ok(self.identity.open_mode_proof());
        }
        let Some(hash) = stored.hash.as_deref().and_then(CredentialHash::from_hex) else {
            return Ok(None);
        };
        let (mut signer, mut maker, mut in_org, mut operator) = (None, None, None, None);
        let mut life = 0;
        let (kind, principal, expires_at) = if let Some(signed) = &stored.signed {
            let Some(ticket_maker) = self.verify_signed(signed).await? else {
                return Ok(None);
            };
            let (principal, until, named) = (
                ticket_maker.principal,
                ticket_maker.until_ms,
                ticket_maker.signer,
            );
            (maker, in_org) = (ticket_maker.maker, ticket_maker.in_org);
            let found = if named.issuer.is_none() {
                let key = self.identity.signed.keys.find(&named.head);
                key.map(|key| Signer::from_own_key(named.head, key))
            } else {
                match self
                    .identity
                    .issuers
                    .find_signer(named, ticket_maker.kind)
                    .await
                {
                    Ok(found) => found,
                    Err(ForeignTokenError::Refused(_)) => None,
                    Err(ForeignTokenError::Unavailable(rejection)) => return Err(rejection),
                }
            };
            let Some(found) = found else {
                return Ok(None);
            };
            signer = Some(found);
            (ticket_maker.kind, principal, Some(until))
        } else {
            let tables = [
                CredentialKind::Workspace,
                CredentialKind::Org,
                CredentialKind::Admin,
            ];
            let kind = tables.into_iter().find(|kind| kind.as_str() == stored.kind);
            let Some(kind) = kind else { return Ok(None) };
            match self.identity.resolve_credential(kind, hash).await? {
                Some(now) => {
                    (operator, life) = (now.operator, now.born_at);
                    (kind, now.principal, now.expires_at)
                }
                None => return Ok(None),
            }
        };
        let proof = Proof {
            principal,
            kind,
            operator,
            prefix: stored.prefix,
            expires_at,
            signer,
            maker,
            in_org,
            credential: Some(hash),
            born_at: life,
            ..open_proof()
        };
        let good = proof.is_current()
            && self.identity.is_maker_unrevoked(&proof).await?
            && self
                .identity
                .workspaces
                .find_refusal(&proof)
                .await?
                .is_none();
        if !good {
            return Ok(None);
        }
        let proof = Arc::new(proof.with_account());
        self.identity.with_present_life(proof).await.map(Some)
    }

    /// Signs the principal of a signed credential. `None`: the credential is in a table.
    fn sign_claims(&self, proof: &Proof) -> Result<Option<String>, Rejection> {
        let none = Vec::new();
        let (user, workload, org, workspaces) = match (proof.kind, &proof.principal) {
            (
                CredentialKind::Canvas,
                Principal::Canvas {
                    user,
                    org,
                    workspaces,
                    ..
                },
            ) => (user.clone(), None, org.clone(), workspaces.as_ref()),
            (CredentialKind::Workload, Principal::Workspace { id }) => {
                (String::new(), Some(id.to_string()), None, Some(&none))
            }
            _ => return Ok(None),
        };
        // Every signed token expires.
        let (Some(signer), Some(until_ms)) = (&proof.signer, proof.expires_at) else {
            return Err(Rejection::new(
                Reason::Internal,
                "the signed token has no signer or no end",
            ));
        };
        let (issuer, now) = (
            self.identity.config.get().issuer(),
            Timestamp::now().0 / 1000,
        );
        let ids = |list: &Vec<WorkspaceId>| list.iter().map(ToString::to_string).collect();
        let claims = Claims {
            aud: issuer.clone(),
            iss: issuer,
            iat: now,
            nbf: now,
            exp: now + i64::try_from(TICKET_TTL.as_secs()).unwrap_or(0),
            user,
            workload,
            in_org: proof.in_org.clone(),
            org,
            workspaces: workspaces.map(ids),
            via: proof.maker.map(CredentialHash::to_hex),
            within: proof
                .principal
                .within()
                .map(WorkspaceIncarnation::to_string),
            until_ms,
            signer: signer.named.clone(),
        };
        let signed = self
            .identity
            .signed
            .keys
            .sign(TYP, &claims)
            .map_err(|error| {
                Rejection::new(Reason::Internal, "the ticket could not be signed").with_cause(error)
            })?;
        if TOKEN_BYTES_MAX < signed.len() {
            return Err(Rejection::new(
                Reason::InvalidParams,
                "the canvas token names too many workspaces for a ticket; read GET /events with it instead",
            ));
        }
        Ok(Some(signed))
    }

    /// Verifies the claims of a ticket. `None`: they are invalid.
    async fn verify_signed(&self, signed: &str) -> Result<Option<TicketMaker>, Rejection> {
        let issuer = self.identity.config.get().issuer();
        let verify = || {
            self.identity
                .signed
                .keys
                .verify::<Claims>(signed, TYP, &issuer, &issuer)
        };
        let mut verified = verify();
        if matches!(verified, Err(TokenError::UnknownKey)) {
            // The replica that signed it may use a newer key.
            self.identity.signed.reload_keys().await?;
            verified = verify();
        }
        let Ok(VerifiedClaims { claims, .. }) = verified else {
            return Ok(None);
        };
        let parse = |ids: Vec<String>| ids.iter().map(|id| WorkspaceId::parse(id)).collect();
        let Ok(workspaces) = claims.workspaces.map(parse).transpose() else {
            return Ok(None);
        };
        let maker = claims.via.as_deref().and_then(CredentialHash::from_hex);
        let within = claims.within.as_deref().map(WorkspaceIncarnation::parse);
        if matches!(within, Some(None)) {
            return Ok(None);
        }
        let (principal, kind, in_org) = match claims.workload.as_deref().map(WorkspaceId::parse) {
            None => {
                let principal = Principal::Canvas {
                    user: claims.user,
                    org: claims.org,
                    workspaces,
                    confined: maker.is_some(),
                    within: within.flatten(),
                };
                (principal, CredentialKind::Canvas, None)
            }
            Some(Ok(id)) => (
                Principal::Workspace { id },
                CredentialKind::Workload,
                claims.in_org,
            ),
            Some(Err(_)) => return Ok(None),
        };
        Ok(Some(TicketMaker {
            principal,
            kind,
            in_org,
            until_ms: claims.until_ms,
            signer: claims.signer,
            maker,
        }))
    }
}

/// Returns the key of a ticket in the shared state.
fn ticket_key(ticket: CredentialHash) -> String {
    format!("gw:ticket:{}", ticket.to_hex())
}
