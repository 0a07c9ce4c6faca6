//! SIGNED TOKENS: the gateway's own keys, and what they signed.

mod keys;

pub use keys::{KeyError, Keys, TOKEN_BYTES_MAX, TokenError};
