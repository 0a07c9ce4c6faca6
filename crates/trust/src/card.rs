//! Signs the agent cards that the gateway serves (A2A 1.0, 8.4): a JWS over the canonical form of
//! the card (RFC 8785).

use serde_json::json;

use super::keys::{Keys, SignError};
use a2a::card::{signed_forms, with_signatures};

/// The `typ` of the header.
const TYP: &str = "JOSE";

/// The card cannot be signed.
#[derive(Debug, thiserror::Error)]
pub enum CardSignError {
    /// It contains a number or a string that has no canonical form.
    #[error("the card has no canonical form (RFC 8785)")]
    Form,
    /// The key failed to sign.
    #[error("the card could not be signed")]
    Sign(#[from] SignError),
}

/// Returns the card with the gateway's signatures added: one for each form that verifiers may
/// canonicalize. `jwks_url` is the address of the gateway's keys.
///
/// # Errors
/// [`CardSignError`].
pub fn sign_card(keys: &Keys, card: &str, jwks_url: &str) -> Result<String, CardSignError> {
    let mut signatures = Vec::new();
    for form in signed_forms(card).ok_or(CardSignError::Form)? {
        let payload = serde_json_canonicalizer::to_vec(&form).map_err(|_| CardSignError::Form)?;
        let (protected, signature) = keys.sign_detached(TYP, jwks_url, &payload)?;
        signatures.push(json!({"protected": protected, "signature": signature}));
    }
    Ok(with_signatures(card, &signatures))
}
