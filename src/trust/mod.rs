//! SIGNED TOKENS AND SEALED SECRETS: the gateway's own keys, and what they signed or sealed.

mod file;
mod keys;
mod seal;

pub use keys::{KeyError, Keys, TOKEN_BYTES_MAX, TokenError};
pub use seal::{Seal, SealError, Sealed};
