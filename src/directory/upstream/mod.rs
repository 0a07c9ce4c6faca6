//! Credential and client certificate that the gateway shows an agent. Sealed in the row of the workspace, and
//! opened once for each directory entry.

mod auth;
mod secret;
mod tls;

pub use self::auth::UpstreamAuth;
pub(super) use self::tls::require_https;
pub use self::tls::{ClientIdentity, UpstreamTls};
