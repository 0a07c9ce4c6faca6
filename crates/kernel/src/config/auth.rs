//! `[auth]`: accepted credentials.

use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;

use super::issuers::{Issuer, WorkspaceIssuer};
use super::value::{Sha256Hex, duration};

sections! {
    /// `[auth]`: accepted credentials.
    Auth {
        /// The treatment of requests without a credential.
        mode: AuthMode,
        /// SHA-256 of the admin tokens, in hexadecimal.
        admin_token_sha256: Vec<Sha256Hex>,
        /// The operator's token from the environment. Not a key, so that no file contains it.
        #[serde(skip)]
        admin_token: Option<SecretString>,
        /// Foreign issuers of canvas tokens.
        issuers: Vec<Issuer>,
        /// Platforms whose tokens are credentials of workspaces.
        workspace_issuers: Vec<WorkspaceIssuer>,
        /// Tolerated clock difference to the signers of foreign tokens, in whole seconds.
        leeway: Duration as "duration",
    }
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
