//! Credential and client certificate that the gateway shows an agent. Sealed in the row of the workspace, and
//! opened once for each directory entry.

mod auth;
mod tls;

use secrecy::SecretString;

pub use self::auth::UpstreamAuth;
pub(super) use self::auth::{field_name, field_value};
pub(super) use self::tls::require_https;
pub use self::tls::{ClientIdentity, UpstreamTls};
use super::rejections::RETRY_AFTER;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use trust::{Seal, SealError, SealedSecret};

/// Seals the secret in `column` of the row of `id`; it opens for no other row and column.
pub(crate) fn seal_for(
    seal: &Seal,
    (id, column): (&WorkspaceId, &str),
    secret: &SecretString,
) -> Result<SealedSecret, Rejection> {
    seal.seal(&seal_owner(id, column), secret).map_err(|error| {
        Rejection::new(
            Reason::Internal,
            "the gateway cannot seal the credential; the log says more under the request's id",
        )
        .with_cause(error)
    })
}

/// Opens the secret in `column` of the row of `id`, and parses it. `wrong`: what the log and the caller are told if it
/// cannot be opened, as the agent or its waker must not be called without it.
pub(crate) fn open_for<T>(
    seal: &Seal,
    (id, column): (&WorkspaceId, &str),
    sealed: &SealedSecret,
    parse: impl FnOnce(&SecretString) -> Option<T>,
    (logged, told): (&'static str, &'static str),
) -> Result<T, Rejection> {
    let opened = seal.open(&seal_owner(id, column), sealed);
    let parsed = opened.and_then(|secret| parse(&secret).ok_or(SealError::Form));
    parsed.map_err(|error| {
        tracing::error!(%error, workspace.id = %id, "{logged}");
        Rejection::new(Reason::StoreUnavailable, told)
            .with_retry_after(RETRY_AFTER)
            .with_cause(error)
    })
}

/// `:` is in no workspace id.
fn seal_owner(id: &WorkspaceId, column: &str) -> String {
    match column {
        "upstream_auth" => id.to_string(),
        _ => format!("{id}:{column}"),
    }
}
