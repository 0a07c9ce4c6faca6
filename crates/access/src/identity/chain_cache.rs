//! Chain tokens in memory: those that were handed in, and those that were signed.

use std::sync::Arc;

use quick_cache::sync::Cache;
use secrecy::{ExposeSecret, SecretString};

use super::chain_token::Chain;
use super::credential::CredentialHash;
use super::proof::Signer;
use kernel::time::Timestamp;

/// Tokens that are cached, of those handed in and of those signed: some 30 MB each.
const TOKENS_MAX: usize = 8192;

/// A chain that was handed in.
pub(super) struct Seen {
    pub(super) chain: Arc<Chain>,
    pub(super) signer: Signer,
}

/// A token for an agent.
pub struct SentChain {
    pub(super) token: SecretString,
    pub(super) hash: String,
    pub(super) txn: String,
    pub(super) until: Timestamp,
}

impl SentChain {
    /// Returns the token.
    pub fn token(&self) -> &str {
        self.token.expose_secret()
    }

    /// Returns the id of the root's run.
    pub fn txn(&self) -> &str {
        &self.txn
    }

    /// Returns its SHA-256 in base64url: the claim `tth` of the caller token beside it.
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

/// The tokens in memory.
pub(super) struct Chains {
    pub(super) seen: Cache<(CredentialHash, Option<CredentialHash>), Arc<Seen>>,
    pub(super) sent: Cache<(Box<str>, Box<str>), Arc<SentChain>>,
}

impl Default for Chains {
    fn default() -> Self {
        Self {
            seen: Cache::new(TOKENS_MAX),
            sent: Cache::new(TOKENS_MAX),
        }
    }
}
