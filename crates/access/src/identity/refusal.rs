//! Reasons why a credential proves nothing, and their rejections.

use std::borrow::Cow;

use kernel::metrics::CredentialFlaw;
use kernel::rejection::{Reason, Rejection};
use stores::store::Unavailable;
use trust::TokenError;

/// The reason why a credential proves nothing. It is not secret, since it depends on the credential alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// In no table: never issued, revoked, or its workspace was removed.
    Unknown,
    /// A signed token of this gateway that is invalid.
    Signed(TokenError),
    /// An invalid token that names an issuer of `auth.issuers` or `auth.workspace_issuers`.
    Foreign(TokenError),
    /// A genuine token of a platform, with claims that its issuer's patterns do not match.
    Unmatched,
    /// A genuine token of a platform that names no workspace.
    NoId,
    /// A workspace token after its end.
    Over,
    /// A pair token that was put on a forwarded request.
    Forwarded,
    /// A chain token that was handed to an agent.
    Context,
    /// A signed token of a person, issued before the person, the session or the token was revoked.
    Revoked,
}

/// The reason why there is no proof.
pub(super) enum AuthError {
    /// The credential proves nothing.
    Refused(Refusal),
    /// It is not known what it proves: a store, or the keys of its issuer, are unavailable.
    Unavailable(Rejection),
}

impl From<Refusal> for AuthError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Unavailable> for AuthError {
    fn from(error: Unavailable) -> Self {
        Self::Unavailable(error.into())
    }
}

impl Refusal {
    pub(super) const fn flaw(self) -> CredentialFlaw {
        match self {
            Self::Unknown | Self::Revoked => CredentialFlaw::Unknown,
            Self::Signed(error) | Self::Foreign(error) => error.flaw(),
            Self::Unmatched | Self::NoId => CredentialFlaw::Unmapped,
            Self::Over => CredentialFlaw::Expired,
            Self::Context | Self::Forwarded => CredentialFlaw::Forwarded,
        }
    }

    pub(super) fn to_rejection(self) -> Rejection {
        unauthenticated(match self {
            Self::Unknown => {
                "the credential is unknown, revoked, or belongs to a removed workspace; send one that is live"
            }
            Self::Signed(TokenError::Expired) | Self::Foreign(TokenError::Expired) => {
                "the token has expired; ask its issuer for a new one"
            }
            Self::Foreign(TokenError::Malformed) => {
                "the token's header is not one that is accepted: `alg` EdDSA, ES256, ES384, RS… or PS…, a `kid` that is text if it has one, `typ` JWT, JOSE or at+jwt, and none of `crit`, `jwk`, `jku`, `x5c`, `x5u`"
            }
            Self::Foreign(TokenError::UnknownKey) => {
                "the token names a key (`kid`) that its issuer does not publish for this `alg`, or names none and its issuer does not have exactly one for it"
            }
            Self::Foreign(TokenError::Claims) => {
                "the token is not meant for this gateway, or a claim is missing or of the wrong type: it needs `iss`, `aud`, `sub`, `exp`"
            }
            Self::Unmatched => {
                "the token is genuine, but its claims do not match `claims` of its issuer in auth.workspace_issuers"
            }
            Self::NoId => {
                "the token is genuine, but `workspace` of its issuer in auth.workspace_issuers makes no workspace id of it: 1 to 128 of letters, digits, `.`, `_` and `-`, and no part may contain the character that separates it from the next"
            }
            Self::Over => {
                "the token is past its end (`expires_at`); make a new one, of a workspace with POST /workspaces/{id}/tokens"
            }
            Self::Forwarded => {
                "the token came with a forwarded request (`token_use`, `bh`), and proves its caller to that target only; GET /registry/discover/{id} gives one to call with"
            }
            Self::Context => {
                "a chain token is no credential: send it as X-A2A-On-Behalf-Of beside the workspace's own, or exchange it at POST /oauth/token"
            }
            Self::Revoked => {
                "the token was revoked, or what its person or session began by then was: sign in again"
            }
            Self::Signed(error) | Self::Foreign(error) => {
                return unauthenticated(error.to_string());
            }
        })
    }
}

pub(super) fn unauthenticated(message: impl Into<Cow<'static, str>>) -> Rejection {
    Rejection::new(Reason::Unauthenticated, message)
}
