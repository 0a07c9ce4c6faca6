//! `[auth]`: accepted credentials.

use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;

use super::issuers::{Issuer, WorkspaceIssuer};
use super::value::{Sha256Hex, duration};

/// `[auth]`: accepted credentials.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    /// The treatment of requests without a credential.
    pub mode: AuthMode,
    /// SHA-256 of the admin tokens, in hexadecimal.
    pub admin_token_sha256: Vec<Sha256Hex>,
    /// The operator's token from the environment. Not a key, so that no file contains it.
    #[serde(skip)]
    pub admin_token: Option<SecretString>,
    /// Foreign issuers of canvas tokens.
    pub issuers: Vec<Issuer>,
    /// Platforms whose tokens are credentials of workspaces.
    pub workspace_issuers: Vec<WorkspaceIssuer>,
    /// Tolerated clock difference to the signers of foreign tokens, in whole seconds.
    #[serde(with = "duration")]
    pub leeway: Duration,
}

/// `auth.mode`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// Every request needs a credential.
    Token,
    /// For development on loopback: a request without a credential acts as the canvas.
    Open,
}
