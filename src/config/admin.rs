//! `[admin]`: the operator's listener.

use std::net::SocketAddr;

use serde::Deserialize;

/// `[admin]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    /// Where metrics, health and version are served.
    pub listen: SocketAddr,
    /// Who may read what tells of callers and workspaces.
    pub auth: AdminAuth,
    /// Whether the console is served.
    pub console: bool,
}

/// `admin.auth`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum AdminAuth {
    /// Whoever reaches a loopback listener; elsewhere whoever shows an operator's token.
    Auto,
    /// Whoever shows an operator's token.
    Token,
}

impl Admin {
    /// Whether a request for what tells of callers and workspaces needs an operator's token.
    pub fn needs_token(&self) -> bool {
        match self.auth {
            AdminAuth::Auto => !self.listen.ip().is_loopback(),
            AdminAuth::Token => true,
        }
    }
}
