//! `[admin]`: the operator's listener.

use std::net::SocketAddr;

use serde::Deserialize;

use super::sign_in::SignIn;

sections! {
    /// `[admin]`.
    Admin {
        /// Address of the listener.
        listen: SocketAddr,
        /// Authentication of routes that expose data of callers and workspaces.
        auth: AdminAuth,
        /// True if the console is served.
        console: bool,
        /// `[admin.sign_in]`
        sign_in: SignIn,
    }
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
