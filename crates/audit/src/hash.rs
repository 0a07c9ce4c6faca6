//! The hash of a record, and the canonical form of JSON (RFC 8785).

use serde_json::Value;
use sha2::{Digest, Sha256};

/// A SHA-256 hash.
pub(super) type Hash = [u8; 32];

/// `prev` of the first record.
pub(super) const NO_HASH: Hash = [0; 32];

/// Returns the hash of a canonical form.
pub(super) fn digest(canonical: &[u8]) -> Hash {
    Sha256::digest(canonical).into()
}

/// Returns the canonical form of a JSON value.
pub(super) fn to_canonical(value: &Value) -> Option<String> {
    serde_json_canonicalizer::to_string(value).ok()
}
