//! Tickets, with which a browser authenticates a WebSocket, where it cannot send `Authorization`.

use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::authenticate::Identity;
use super::credential::{CredentialHash, Form, IssuedToken};
use super::proof::{CredentialKind, KeyName, Principal, Proof, Signer, open_proof};
use super::refusal::{AuthError, Refusal};
use crate::identity::revocations::Revocable;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use stores::shared::Shared;

/// Lifetime of a ticket.
pub const TICKET_TTL: Duration = Duration::from_secs(30);

/// The `typ` of the claims of a ticket whose maker's credential was signed.
const TYP: &str = "a2a-ticket+jwt";

/// The value stored under a ticket's hash. Write access to the store gains nothing: a credential of a table
/// is looked up again, and the claims of a signed one are signed.
#[derive(Serialize, Deserialize)]
struct TicketRecord {
    kind: CredentialKind,
    prefix: String,
    hash: Option<CredentialHash>,
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
    principal: Principal,
    /// The kind of the credential: that of a canvas user, or of a workload.
    credential: CredentialKind,
    /// The org in which the workspace of a workload must be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    in_org: Option<String>,
    /// The org token with which the canvas token was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    via: Option<CredentialHash>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revocable: Option<Revocable>,
    until_ms: i64,
    /// The key that signed the credential: when it is withdrawn, its tickets end as well.
    signer: KeyName,
}

/// Tickets, in the shared state.
impl Identity {
    /// Issues a ticket for the caller, and returns its expiry in milliseconds since 1970.
    ///
    /// # Errors
    /// `store_unavailable`; `invalid_params` when a canvas token names too many workspaces.
    pub async fn issue_ticket(
        &self,
        shared: &Shared,
        proof: &Proof,
    ) -> Result<(SecretString, i64), Rejection> {
        let fresh = IssuedToken::generate(Form::Ticket);
        let stored = TicketRecord {
            kind: proof.kind,
            prefix: proof.prefix.clone(),
            hash: proof.credential,
            signed: self.sign_claims(proof)?,
        };
        let text = serde_json::to_string(&stored)
            .map_err(|error| Rejection::new(Reason::Internal, "no ticket").with_cause(error))?;
        let lapses = Timestamp::now().0 + i64::try_from(TICKET_TTL.as_millis()).unwrap_or(0);
        let key = ticket_key(fresh.hash);
        shared.set(&key, &text, Some(TICKET_TTL)).await?;
        Ok((fresh.token, lapses))
    }

    /// Redeems a ticket, once, and returns the proof of its maker.
    ///
    /// # Errors
    /// `unauthenticated` when it is unknown, used, older than 30 s, or its maker's credential is no longer
    /// valid; `store_unavailable`.
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
        if Form::detect(text) != Some(Form::Ticket) {
            return Err(refused());
        }
        let key = ticket_key(CredentialHash::digest(text));
        let stored = shared.take(&key).await?;
        let stored = stored.ok_or_else(refused)?;
        let stored: TicketRecord = serde_json::from_str(&stored).map_err(|_| refused())?;
        match self.restore_maker(stored).await {
            Ok(Some(proof)) => Ok(proof),
            Ok(None) | Err(AuthError::Refused(_)) => Err(refused()),
            Err(AuthError::Unavailable(rejection)) => Err(rejection),
        }
    }

    /// Returns the proof of the maker of a ticket; `None` if it is not valid any more.
    async fn restore_maker(&self, stored: TicketRecord) -> Result<Option<Arc<Proof>>, AuthError> {
        if stored.kind == CredentialKind::Open {
            return Ok(self.open_mode_proof());
        }
        let Some(hash) = stored.hash else {
            return Ok(None);
        };
        let proof = if let Some(signed) = &stored.signed {
            let claims = self.verify_signed(signed).await?;
            let Some(signer) = self.find_signer(claims.signer, claims.credential).await? else {
                return Ok(None);
            };
            Proof {
                principal: claims.principal,
                kind: claims.credential,
                expires_at: Some(claims.until_ms),
                signer: Some(signer),
                maker: claims.via,
                in_org: claims.in_org,
                revocable: claims.revocable.map(Arc::new),
                ..open_proof()
            }
        } else {
            let now = self.resolve_credential(stored.kind, hash).await?;
            let Some(now) = now else { return Ok(None) };
            now
        };
        let proof = Proof {
            prefix: stored.prefix,
            credential: Some(hash),
            ..proof
        };
        let workspaces = &self.workspaces;
        let good = proof.is_current()
            && !self.revocations.covers_proof(&proof)
            && self.is_maker_unrevoked(&proof).await?
            && workspaces.find_refusal(&proof).await?.is_none();
        if !good {
            return Ok(None);
        }
        let proof = Arc::new(proof.with_account());
        let proof = self.with_present_life(proof).await;
        proof.map(Some).map_err(AuthError::Unavailable)
    }

    /// Signs the principal of a signed credential. `None`: the credential is in a table.
    fn sign_claims(&self, proof: &Proof) -> Result<Option<String>, Rejection> {
        if !matches!(
            proof.kind,
            CredentialKind::Canvas | CredentialKind::Workload
        ) {
            return Ok(None);
        }
        // Every signed token expires.
        let (Some(signer), Some(until_ms)) = (&proof.signer, proof.expires_at) else {
            return Err(Rejection::new(
                Reason::Internal,
                "the signed token has no signer or no end",
            ));
        };
        let issuer = self.config.get().issuer();
        let now = Timestamp::now().0 / 1000;
        let claims = Claims {
            aud: issuer.clone(),
            iss: issuer,
            iat: now,
            nbf: now,
            exp: now + i64::try_from(TICKET_TTL.as_secs()).unwrap_or(0),
            principal: proof.principal.clone(),
            credential: proof.kind,
            in_org: proof.in_org.clone(),
            via: proof.maker,
            revocable: proof.revocable.as_deref().cloned(),
            until_ms,
            signer: signer.named.clone(),
        };
        let signed = self.signed.sign_bounded(
            TYP,
            &claims,
            "ticket",
            "the canvas token names too many workspaces for a ticket; read GET /events with it instead",
        );
        signed.map(Some)
    }

    /// Verifies the claims of a ticket.
    async fn verify_signed(&self, signed: &str) -> Result<Claims, AuthError> {
        let (issuer, tokens) = (self.config.get().issuer(), &self.signed);
        let verify = || {
            let verified = tokens.keys.verify::<Claims>(signed, TYP, &issuer, &issuer);
            let verified = verified.map_err(Refusal::Signed);
            verified.map(|verified| verified.claims)
        };
        tokens.verify_with_reload(verify).await
    }

    /// Returns the key that signed a credential of this kind, if it is valid now.
    async fn find_signer(
        &self,
        named: KeyName,
        kind: CredentialKind,
    ) -> Result<Option<Signer>, AuthError> {
        if named.issuer.is_none() {
            let key = self.signed.keys.find(&named.head);
            return Ok(key.map(|key| Signer::from_own_key(named.head, key)));
        }
        self.issuers.find_signer(named, kind).await
    }
}

/// Returns the key of a ticket in the shared state.
fn ticket_key(ticket: CredentialHash) -> String {
    format!("gw:ticket:{}", ticket.to_hex())
}
