//! An identity provider: keys, tokens, and a host for its JWKS with scripted faults.

use std::path::Path;
use std::sync::{Arc, Mutex};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RsaKeyPair,
};
use aws_lc_rs::{hmac, rsa};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::agent::{Agent, Step, ok_json};
use super::authority::{door, self_signed, server_config};

/// `aud` of its tokens.
pub(crate) const AUDIENCE: &str = "the-gateway";

/// A key with its name.
pub(crate) struct Key {
    pub(crate) kid: String,
    pair: Pair,
}

enum Pair {
    Ed25519(Ed25519KeyPair),
    /// As Kubernetes signs.
    Rsa(RsaKeyPair),
    /// As SPIRE signs.
    P256(EcdsaKeyPair),
}

impl Key {
    pub(crate) fn new(kid: &str) -> Self {
        Self::of(
            kid,
            Pair::Ed25519(Ed25519KeyPair::generate().expect("a key")),
        )
    }

    pub(crate) fn rsa(kid: &str) -> Self {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
        Self::of(kid, Pair::Rsa(pair))
    }

    pub(crate) fn p256(kid: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
        Self::of(kid, Pair::P256(pair))
    }

    fn of(kid: &str, pair: Pair) -> Self {
        Self {
            kid: kid.to_owned(),
            pair,
        }
    }

    /// Reads a gateway's own private key: tokens that it signs are genuine except for their content.
    pub(crate) fn stolen(path: &Path, kid: &Value) -> Self {
        let pem = std::fs::read_to_string(path).expect("a key file");
        let text: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let der = STANDARD.decode(text).expect("base64");
        let pair = Ed25519KeyPair::from_pkcs8(&der).expect("an Ed25519 key");
        Self::of(kid.as_str().expect("a kid"), Pair::Ed25519(pair))
    }

    fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::Ed25519(_) => "EdDSA",
            Pair::Rsa(_) => "RS256",
            Pair::P256(_) => "ES256",
        }
    }

    pub(crate) fn jwk(&self) -> Value {
        let coded = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = json!({"use": "sig", "alg": self.algorithm(), "kid": self.kid});
        let members = match &self.pair {
            Pair::Ed25519(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "x": coded(pair.public_key().as_ref())})
            }
            Pair::Rsa(pair) => {
                let public: &rsa::PublicKey = pair.public_key();
                let (n, e) = (public.modulus(), public.exponent());
                let n = n.big_endian_without_leading_zero();
                let e = e.big_endian_without_leading_zero();
                json!({"kty": "RSA", "n": coded(n), "e": coded(e)})
            }
            Pair::P256(pair) => {
                // An uncompressed point.
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "x": coded(x), "y": coded(y)})
            }
        };
        let members = members.as_object().expect("an object").clone();
        jwk.as_object_mut().expect("an object").extend(members);
        jwk
    }

    /// The header of its tokens.
    pub(crate) fn head(&self, typ: &str) -> Value {
        json!({"alg": self.algorithm(), "typ": typ, "kid": self.kid})
    }

    /// A token with exactly these claims.
    pub(crate) fn sign(&self, claims: &Value) -> String {
        self.sign_as("JWT", &self.kid, claims)
    }

    pub(crate) fn sign_as(&self, typ: &str, kid: &str, claims: &Value) -> String {
        let head = json!({"alg": self.algorithm(), "typ": typ, "kid": kid});
        self.sign_text(&head.to_string(), &claims.to_string())
    }

    /// A token of exactly these texts, whatever they are.
    pub(crate) fn sign_text(&self, head: &str, claims: &str) -> String {
        let input = signing_input(head, claims);
        let random = SystemRandom::new();
        let signature = match &self.pair {
            Pair::Ed25519(pair) => pair.sign(input.as_bytes()).as_ref().to_vec(),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                let signed =
                    pair.sign(&RSA_PKCS1_SHA256, &random, input.as_bytes(), &mut signature);
                signed.expect("a signature");
                signature
            }
            Pair::P256(pair) => {
                let signed = pair.sign(&random, input.as_bytes());
                signed.expect("a signature").as_ref().to_vec()
            }
        };
        format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// A token of exactly these texts that is authenticated with a secret.
pub(crate) fn with_hmac(head: &str, claims: &str, by: hmac::Algorithm, secret: &[u8]) -> String {
    let input = signing_input(head, claims);
    let tag = hmac::sign(&hmac::Key::new(by, secret), input.as_bytes());
    format!("{input}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

fn signing_input(head: &str, claims: &str) -> String {
    let [head, claims] = [head, claims].map(|part| URL_SAFE_NO_PAD.encode(part));
    format!("{head}.{claims}")
}

/// The provider.
pub(crate) struct Issuer {
    /// `iss`.
    pub(crate) name: String,
    /// Its JWKS host.
    pub(crate) host: Agent,
    answer: Arc<Mutex<Vec<Step>>>,
}

impl Issuer {
    pub(crate) async fn start(name: &str, keys: &[&Key]) -> Self {
        let answer = Arc::new(Mutex::new(Vec::new()));
        let said = Arc::clone(&answer);
        let host = Agent::scripted(move |_| said.lock().expect("not poisoned").clone());
        let issuer = Self {
            name: name.to_owned(),
            host: host.await,
            answer,
        };
        issuer.publish(keys);
        issuer
    }

    /// Publishes these keys from now on.
    pub(crate) fn publish(&self, keys: &[&Key]) {
        let keys: Vec<_> = keys.iter().map(|key| key.jwk()).collect();
        let body = json!({ "keys": keys }).to_string();
        self.answers(vec![Step::Write(ok_json(&body))]);
    }

    /// Sets the script of its host.
    pub(crate) fn answers(&self, steps: Vec<Step>) {
        *self.answer.lock().expect("not poisoned") = steps;
    }

    /// Its table in `auth.issuers`.
    pub(crate) fn table(&self) -> Value {
        let url = format!("{}jwks.json", self.host.url());
        json!({"issuer": self.name, "jwks_url": url, "audience": AUDIENCE})
    }

    /// Good claims for `ada`, with `more` in them.
    pub(crate) fn claims(&self, more: Value) -> Value {
        let now = jsonwebtoken::get_current_timestamp();
        let mut claims =
            json!({"iss": self.name, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 600});
        let more = more.as_object().expect("an object").clone();
        claims.as_object_mut().expect("an object").extend(more);
        claims
    }
}

/// The value of `auth.issuers` for all of `issuers`.
pub(crate) fn tables(issuers: &[&Issuer]) -> String {
    let tables: Vec<_> = issuers.iter().map(|issuer| issuer.table()).collect();
    Value::from(tables).to_string()
}

/// A TLS door in front of `host`. Answers its port, and the PEM of a certificate for `localhost` that only
/// clients which are configured to trust it accept.
pub(crate) async fn tls_door(host: &Agent) -> (u16, String) {
    let certificate = self_signed(&["localhost"]);
    let config = server_config(&certificate, None);
    let (port, _) = door("localhost", host.port, config, Arc::default()).await;
    (port, certificate.pem)
}
