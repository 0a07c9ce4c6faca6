//! Tokens with which the gateway proves itself to a service: to a guard, with the body of its question, and to the
//! waker of an agent (`docs/reference/credentials.md`, "Guard tokens", "Wake tokens").

use std::time::Duration;

use serde::Serialize;

use super::token::seconds_after;
use kernel::time::Timestamp;

/// A kind of tokens for a service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceKind {
    /// Its name, for messages.
    pub name: &'static str,
    /// The `typ` of the header.
    pub typ: &'static str,
    /// The only scope.
    pub scope: &'static str,
}

/// Guard tokens.
pub const GUARD: ServiceKind = ServiceKind {
    name: "guard token",
    typ: "a2a-guard+jwt",
    scope: "a2a:guard",
};

/// Wake tokens.
pub const WAKE: ServiceKind = ServiceKind {
    name: "wake token",
    typ: "a2a-wake+jwt",
    scope: "a2a:wake",
};

/// Lifetime of the tokens.
pub const SERVICE_TTL: Duration = Duration::from_secs(60);

/// The claims of a token for a service. Times are whole seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceClaims {
    /// The gateway: `tokens.issuer`.
    pub iss: String,
    /// The name of the guard, or the workspace to wake.
    pub sub: String,
    /// The origin of the service's URL.
    pub aud: String,
    /// Time of issue.
    pub iat: i64,
    /// Start of validity.
    pub nbf: i64,
    /// End of validity.
    pub exp: i64,
    /// The unique id of the token.
    pub jti: String,
    /// That of [`GUARD`] or [`WAKE`].
    pub scope: &'static str,
    /// The SHA-256 of the body of a guard's question, as [`body_hash`](super::body_hash) returns it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bh: Option<String>,
}

impl ServiceClaims {
    /// Creates the claims of a token that is valid from the second of `now` on.
    pub fn new(
        issuer: String,
        (subject, audience): (&str, String),
        scope: &'static str,
        bh: Option<String>,
        now: Timestamp,
    ) -> Self {
        let now = now.0.div_euclid(1000);
        Self {
            iss: issuer,
            sub: subject.to_owned(),
            aud: audience,
            iat: now,
            nbf: now,
            exp: seconds_after(now, SERVICE_TTL),
            jti: uuid::Uuid::now_v7().to_string(),
            scope,
            bh,
        }
    }
}
