//! Credential and client certificate that the gateway shows an agent. Sealed in the row of the workspace, and
//! opened once for each directory entry.

mod auth;
mod secret;
mod tls;

pub use self::auth::UpstreamAuth;
pub(super) use self::auth::{field_name, field_value};
pub(super) use self::secret::{open_for, seal_for};
pub(super) use self::tls::require_https;
pub use self::tls::{ClientIdentity, UpstreamTls};
