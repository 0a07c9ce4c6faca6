//! SIGNED TOKENS: the gateway's own keys and what they signed, and the keys of foreign issuers.

mod jwks;
mod keys;

pub use jwks::{ForeignHead, KEYS_MAX, KeySet, KeySetError, PublicKey, claimed_issuer};
pub use keys::{KeyError, Keys, LEEWAY_SECONDS, TOKEN_BYTES_MAX, TokenError};
