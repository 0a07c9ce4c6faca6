//! SIGNED TOKENS AND SEALED SECRETS: the gateway's own keys, what they signed or sealed, and the keys
//! of foreign issuers.

mod certificate;
mod file;
mod jwks;
mod keys;
mod seal;

pub use certificate::{CertificateSummary, Certificates, PEM_BYTES_MAX, PemError, private_key};
pub use jwks::{ForeignHead, KEYS_MAX, KeySet, KeySetError, PublicKey, claimed_issuer};
pub use keys::{KeyError, Keys, LEEWAY_SECONDS, TOKEN_BYTES_MAX, TokenError};
pub use seal::{Seal, SealError, Sealed};
