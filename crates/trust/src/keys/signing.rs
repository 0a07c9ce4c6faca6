//! A private key: generation, PEM form, and signing. The key material stays in the memory of the
//! cryptographic library, which clears it.

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{KeyError, SignError};

/// Length of the key id, in characters: 96 bits of the thumbprint distinguish a handful of keys.
pub(super) const KID_LEN: usize = 16;

const PEM_BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const PEM_END: &str = "-----END PRIVATE KEY-----";

/// The signature algorithm of a key (RFC 8037, RFC 7518).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SigningAlgorithm {
    /// Ed25519.
    #[default]
    EdDsa,
    /// ECDSA over P-256 with SHA-256.
    Es256,
}

impl SigningAlgorithm {
    /// Returns the value of `alg`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EdDsa => "EdDSA",
            Self::Es256 => "ES256",
        }
    }
}

enum KeyPair {
    Ed25519(Ed25519KeyPair),
    P256(EcdsaKeyPair),
}

/// A private key and its id.
pub(super) struct SigningKey {
    pair: KeyPair,
    kid: String,
}

impl SigningKey {
    /// Parses a PKCS#8 key. The kind is detected.
    pub(super) fn from_pkcs8(der: &SecretSlice<u8>) -> Option<Self> {
        let der = der.expose_secret();
        let pair = Ed25519KeyPair::from_pkcs8(der)
            .map(KeyPair::Ed25519)
            .or_else(|_| {
                EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der).map(KeyPair::P256)
            })
            .ok()?;
        let mut kid = URL_SAFE_NO_PAD.encode(Sha256::digest(public_members(&pair)));
        kid.truncate(KID_LEN);
        Some(Self { pair, kid })
    }

    pub(super) fn kid(&self) -> &str {
        &self.kid
    }

    pub(super) fn algorithm(&self) -> SigningAlgorithm {
        match self.pair {
            KeyPair::Ed25519(_) => SigningAlgorithm::EdDsa,
            KeyPair::P256(_) => SigningAlgorithm::Es256,
        }
    }

    /// Returns the public key as it is published (RFC 7517, 4).
    pub(super) fn jwk(&self) -> Value {
        let mut jwk: Value = serde_json::from_str(&public_members(&self.pair)).unwrap_or_default();
        jwk["kid"] = self.kid.as_str().into();
        jwk["use"] = "sig".into();
        jwk["alg"] = self.algorithm().as_str().into();
        jwk
    }

    /// Signs `claims` as a compact JWT of type `typ`. Returns it after `prefix`.
    pub(super) fn sign_token(
        &self,
        prefix: &str,
        typ: &str,
        claims: &impl Serialize,
    ) -> Result<String, SignError> {
        let (alg, kid) = (self.algorithm().as_str(), self.kid());
        // `typ` is a constant of this crate, and a kid has no character that JSON would escape.
        let head = format!(r#"{{"alg":"{alg}","typ":"{typ}","kid":"{kid}"}}"#);
        let mut token = String::with_capacity(768);
        token.push_str(prefix);
        URL_SAFE_NO_PAD.encode_string(head, &mut token);
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(serde_json::to_vec(claims)?, &mut token);
        let signature = self.sign(&token.as_bytes()[prefix.len()..]);
        token.push('.');
        token.push_str(&signature.ok_or(SignError::Randomness)?);
        Ok(token)
    }

    /// Returns the signature of `message`, in base64url. `None`: the system gives no randomness.
    pub(super) fn sign(&self, message: &[u8]) -> Option<String> {
        let signature = match &self.pair {
            KeyPair::Ed25519(pair) => pair.sign(message),
            KeyPair::P256(pair) => pair.sign(&SystemRandom::new(), message).ok()?,
        };
        Some(URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

/// Returns the members of the public key, sorted by name and without spaces (RFC 7638, 3).
fn public_members(pair: &KeyPair) -> String {
    let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    match pair {
        KeyPair::Ed25519(pair) => {
            let x = text(pair.public_key().as_ref());
            format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#)
        }
        KeyPair::P256(pair) => {
            // SEC 1: 0x04, x, y, of 32 bytes each.
            let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
            let (x, y) = (text(x), text(y));
            format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#)
        }
    }
}

/// Generates a key as a PEM file.
pub(super) fn new_pem(algorithm: SigningAlgorithm) -> Result<SecretString, KeyError> {
    let bytes = |der: &[u8]| SecretSlice::<u8>::from(der.to_vec());
    let der = match algorithm {
        SigningAlgorithm::EdDsa => Ed25519KeyPair::generate().and_then(|pair| {
            let der: Pkcs8V1Der<'_> = pair.as_der()?;
            Ok(bytes(der.as_ref()))
        }),
        SigningAlgorithm::Es256 => EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING)
            .and_then(|pair| Ok(bytes(pair.to_pkcs8v1()?.as_ref()))),
    };
    let der = der.map_err(|_| KeyError::Generation)?;
    // 48 to 138 bytes of DER: PEM lines have 64 characters.
    let text = SecretString::from(STANDARD.encode(der.expose_secret()));
    let mut pem = format!("{PEM_BEGIN}\n");
    for line in text.expose_secret().as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str(PEM_END);
    pem.push('\n');
    Ok(pem.into())
}

/// Returns the DER content of a PEM file.
pub(super) fn der_of(pem: &SecretString) -> Option<SecretSlice<u8>> {
    let (_, rest) = pem.expose_secret().split_once(PEM_BEGIN)?;
    let (text, _) = rest.split_once(PEM_END)?;
    let text = SecretString::from(text.split_ascii_whitespace().collect::<String>());
    let der = STANDARD.decode(text.expose_secret()).ok()?;
    Some(der.into())
}
