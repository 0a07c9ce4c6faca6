//! Wake tokens (`docs/reference/credentials.md`, "Wake tokens"): the gateway proves itself to the waker of an agent.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The `typ` of the header.
pub const WAKE_TYP: &str = "a2a-wake+jwt";

/// The only scope.
pub const WAKE_SCOPE: &str = "a2a:wake";

/// Lifetime of the token.
pub const WAKE_TTL: Duration = Duration::from_secs(60);

/// The claims of a wake token. Times are whole seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeClaims {
    /// The gateway: `tokens.issuer`.
    pub iss: String,
    /// The workspace to wake.
    pub sub: String,
    /// The origin of the waker's URL.
    pub aud: String,
    /// Time of issue.
    pub iat: i64,
    /// Start of validity.
    pub nbf: i64,
    /// End of validity.
    pub exp: i64,
    /// The unique id of the token.
    pub jti: String,
    /// [`WAKE_SCOPE`].
    pub scope: String,
}

impl WakeClaims {
    /// Creates the claims of a token that is valid from the second of `now` on.
    pub fn new(issuer: String, workspace: &str, audience: String, now: Timestamp) -> Self {
        let now = now.0.div_euclid(1000);
        Self {
            iss: issuer,
            sub: workspace.to_owned(),
            aud: audience,
            iat: now,
            nbf: now,
            exp: now.saturating_add(i64::try_from(WAKE_TTL.as_secs()).unwrap_or(i64::MAX)),
            jti: uuid::Uuid::now_v7().to_string(),
            scope: WAKE_SCOPE.to_owned(),
        }
    }
}
