//! `[admin]`: the operator's listener.

use std::net::SocketAddr;

use serde::Deserialize;

use super::sign_in::SignIn;

/// `[admin]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    /// Address of the listener.
    pub listen: SocketAddr,
    /// Authentication of routes that expose data of callers and workspaces.
    pub auth: AdminAuth,
    /// True if the console is served.
    pub console: bool,
    /// `[admin.sign_in]`
    pub sign_in: SignIn,
}

/// `admin.auth`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum AdminAuth {
    /// An operator's token is needed, unless the listener is on loopback.
    Auto,
    /// An operator's token is always needed.
    Token,
}

impl Admin {
    /// True if requests for data of callers and workspaces need an operator's token.
    pub fn needs_token(&self) -> bool {
        match self.auth {
            AdminAuth::Auto => !self.listen.ip().is_loopback(),
            AdminAuth::Token => true,
        }
    }
}
