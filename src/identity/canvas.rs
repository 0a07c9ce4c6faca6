//! Canvas tokens: short-lived JWTs for a browser user, signed and accepted by this gateway.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::authenticate::Signed;
use super::credential::CredentialHash;
use super::issuers::Signer;
use super::{CredentialKind, Identity, Principal, Proof, now_ms};
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::trust::{TOKEN_BYTES_MAX, TokenError};

/// The `typ` of the header, so that no other token of this gateway is accepted as one.
pub const TYP: &str = "a2a-canvas+jwt";

/// The only scope.
pub const SCOPE: &str = "a2a:canvas";

/// Default lifetime: a working hour, since a canvas token cannot be revoked.
pub const CANVAS_TTL_DEFAULT: Duration = Duration::from_secs(3600);

/// Longest lifetime that can be requested.
pub const CANVAS_TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// Characters of the longest name of a user or an org.
const NAME_CHARS_MAX: usize = 256;

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
    workspaces: Option<Vec<String>>,
    /// SHA-256 of the org token with which it was made: it ends with that token, and reaches only that org.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    via: Option<String>,
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
    /// The lifetime.
    pub ttl: Duration,
    /// The caller that issues it. With an org token it ends with that token.
    pub maker: Option<&'a Proof>,
}

impl Identity {
    /// Signs a canvas token: for its workspaces if given, else for all of its org. Returns the token and its
    /// expiry, in milliseconds since 1970.
    ///
    /// # Errors
    /// `invalid_params` when a name or the lifetime is out of bounds, or the list is too long.
    pub fn issue_canvas_token(&self, new: &NewCanvas<'_>) -> Result<(String, i64), Rejection> {
        let NewCanvas {
            user,
            org,
            workspaces,
            ttl,
            maker,
        } = *new;
        check_name("user", user)?;
        if let Some(org) = org {
            check_name("org", org)?;
        }
        if ttl < Duration::from_secs(1) || ttl > CANVAS_TTL_MAX {
            return Err(Rejection::new(
                Reason::InvalidParams,
                "`ttl_seconds` is a whole number from 1 to 86400",
            ));
        }
        let now = now_ms() / 1000;
        let exp = now + i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX - now);
        let issuer = self.config.get().issuer();
        let claims = Claims {
            aud: issuer.clone(),
            iss: issuer,
            sub: user.to_owned(),
            iat: now,
            nbf: now,
            exp,
            jti: uuid::Uuid::now_v7().to_string(),
            scope: SCOPE.to_owned(),
            org: org.map(str::to_owned),
            workspaces: workspaces.map(|ids| ids.iter().map(ToString::to_string).collect()),
            via: maker
                .filter(|maker| maker.kind == CredentialKind::Org)
                .and_then(|maker| maker.credential)
                .map(CredentialHash::to_hex),
        };
        let token = self.keys.sign(TYP, &claims).map_err(|error| {
            Rejection::new(Reason::Internal, "the token could not be signed").cause(error)
        })?;
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Rejection::new(
                Reason::InvalidParams,
                "`workspaces` is too long for a token of 8192 bytes: name fewer, or an `org` instead",
            ));
        }
        Ok((token, exp * 1000))
    }

    /// Verifies a canvas token of this gateway.
    pub(super) fn verify_canvas(&self, token: &str) -> Result<Signed, TokenError> {
        let issuer = self.config.get().issuer();
        let verified = self.keys.verify(token, TYP, &issuer, &issuer)?;
        let claims: Claims = verified.claims;
        if claims.scope != SCOPE {
            return Err(TokenError::Claims);
        }
        let parse = |ids: Vec<String>| ids.iter().map(|id| WorkspaceId::parse(id)).collect();
        let workspaces = claims
            .workspaces
            .map(parse)
            .transpose()
            .map_err(|_| TokenError::Claims)?;
        let maker = claims.via.as_deref().map(CredentialHash::from_hex);
        if matches!(maker, Some(None)) {
            return Err(TokenError::Claims);
        }
        let maker = maker.flatten();
        let principal = Principal::Canvas {
            user: claims.sub,
            org: claims.org,
            workspaces,
            confined: maker.is_some(),
        };
        Ok(Signed {
            principal,
            kind: CredentialKind::Canvas,
            expires_at: claims.exp.saturating_mul(1000),
            signer: Signer::own(verified.head, verified.key),
            maker,
            only_to: None,
        })
    }
}

fn check_name(member: &str, name: &str) -> Result<(), Rejection> {
    let fits = !name.trim().is_empty() && name.chars().count() <= NAME_CHARS_MAX;
    if fits && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(Rejection::new(
        Reason::InvalidParams,
        format!(
            "`{member}` has 1 to {NAME_CHARS_MAX} characters, none of them a control character"
        ),
    ))
}
