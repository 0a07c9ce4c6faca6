//! Pair tokens (`docs/reference/credentials.md`, "Pair tokens"): each proves a workspace to one target. They are issued at
//! discovery, and for each forwarded request, where only the target accepts them.

use std::time::Duration;

use secrecy::SecretString;

use super::authenticate::{Refusal, Signed};
use super::issuers::Signer;
use super::{CredentialKind, Identity, Principal};
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::trust::{
    CALLER_TTL, PAIR_TYP, Pair, PairClaims, SignError, TokenError, claimed_audience,
};

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

impl Identity {
    /// Issues a token with which the caller of `pair`, a workspace, may message its target for
    /// `tokens.pair_ttl`.
    ///
    /// # Errors
    /// `internal` when it cannot be signed.
    pub fn issue_pair_token(&self, pair: Pair<'_>) -> Result<IssuedPair, Rejection> {
        let config = self.config.get();
        let ttl = config.tokens.pair_ttl;
        let claims = PairClaims::new(config.issuer(), pair, ttl);
        Ok(IssuedPair {
            token: self.keys.sign(PAIR_TYP, &claims).map_err(unsigned)?.into(),
            expires_at: claims.exp.saturating_mul(1000),
            ttl,
        })
    }

    /// Issues the token that proves the caller to the target of `pair`, for one request of the JSON-RPC
    /// `method` with this body.
    ///
    /// # Errors
    /// `internal` when it cannot be signed.
    pub fn issue_caller_token(
        &self,
        pair: Pair<'_>,
        method: Option<&str>,
        body: &[u8],
    ) -> Result<SecretString, Rejection> {
        let claims = PairClaims::new(self.config.get().issuer(), pair, CALLER_TTL);
        let token = self.keys.sign(PAIR_TYP, &claims.bound_to(method, body));
        Ok(token.map_err(unsigned)?.into())
    }

    /// Verifies a pair token of this gateway.
    pub(super) fn verify_pair(&self, token: &str) -> Result<Signed, Refusal> {
        let signed = Refusal::Signed;
        let issuer = self.config.get().issuer();
        // The audience is compared with the target later, when the target is known.
        let audience = claimed_audience(token).ok_or(signed(TokenError::Claims))?;
        let verified = self.keys.verify(token, PAIR_TYP, &issuer, &audience);
        let verified = verified.map_err(signed)?;
        let claims = PairClaims::checked(verified.claims).map_err(signed)?;
        if claims.is_bound() {
            return Err(Refusal::Bound);
        }
        let id = |text: &str| WorkspaceId::parse(text).map_err(|_| signed(TokenError::Claims));
        Ok(Signed {
            principal: Principal::Workspace {
                id: id(&claims.sub)?,
            },
            kind: CredentialKind::Pair,
            expires_at: claims.exp.saturating_mul(1000),
            signer: Signer::own(verified.head, verified.key),
            maker: None,
            only_to: Some(id(&claims.aud)?),
        })
    }
}

fn unsigned(error: SignError) -> Rejection {
    Rejection::new(Reason::Internal, "the pair token could not be signed").cause(error)
}
