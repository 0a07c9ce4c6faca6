//! Guard tokens (`docs/reference/credentials.md`, "Guard tokens"): the gateway proves itself, and the body of its
//! question, to a guard.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The `typ` of the header.
pub const GUARD_TYP: &str = "a2a-guard+jwt";

/// The only scope.
pub const GUARD_SCOPE: &str = "a2a:guard";

/// Lifetime of the token.
pub const GUARD_TTL: Duration = Duration::from_secs(60);

/// The claims of a guard token. Times are whole seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardClaims {
    /// The gateway: `tokens.issuer`.
    pub iss: String,
    /// The name of the guard.
    pub sub: String,
    /// The origin of the guard's URL.
    pub aud: String,
    /// Time of issue.
    pub iat: i64,
    /// Start of validity.
    pub nbf: i64,
    /// End of validity.
    pub exp: i64,
    /// The unique id of the token.
    pub jti: String,
    /// [`GUARD_SCOPE`].
    pub scope: String,
    /// The SHA-256 of the body, in base64url without padding.
    pub bh: String,
}

impl GuardClaims {
    /// Creates the claims of a token that is valid from the second of `now` on. `bh`: as
    /// [`body_hash`](super::body_hash) returns it.
    pub fn new(
        issuer: String,
        (guard, audience): (&str, String),
        bh: String,
        now: Timestamp,
    ) -> Self {
        let now = now.0.div_euclid(1000);
        Self {
            iss: issuer,
            sub: guard.to_owned(),
            aud: audience,
            iat: now,
            nbf: now,
            exp: now.saturating_add(i64::try_from(GUARD_TTL.as_secs()).unwrap_or(i64::MAX)),
            jti: uuid::Uuid::now_v7().to_string(),
            scope: GUARD_SCOPE.to_owned(),
            bh,
        }
    }
}
