//! Tests of key sets, and of invalid tokens of each kind.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA512,
    RSA_PSS_SHA256, RsaKeyPair,
};
use serde_json::json;

use super::*;
use crate::{TOKEN_BYTES_MAX, claimed_issuer};

const ISSUER: &str = "https://login.test";
const AUDIENCE: &str = "gateway";

enum Pair {
    Ed(Ed25519KeyPair),
    Ec(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl Pair {
    fn ed() -> Self {
        Self::Ed(Ed25519KeyPair::generate().unwrap())
    }

    fn ec(algorithm: &'static EcdsaSigningAlgorithm) -> Self {
        Self::Ec(EcdsaKeyPair::generate(algorithm).unwrap())
    }

    fn rsa() -> Self {
        Self::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap())
    }

    fn jwk(&self, kid: &str) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Self::Ed(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": text(pair.public_key().as_ref())})
            }
            Self::Ec(pair) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                let crv = if x.len() == 32 { "P-256" } else { "P-384" };
                json!({"kty": "EC", "crv": crv, "kid": kid, "x": text(x), "y": text(y)})
            }
            Self::Rsa(pair) => {
                // RSAPublicKey of 2048 bits: 9 bytes before the modulus, the exponent at the end.
                let der = pair.public_key().as_ref();
                json!({"kty": "RSA", "kid": kid, "n": text(&der[9..265]), "e": text(&der[der.len() - 3..])})
            }
        }
    }

    fn sign(&self, head: &Value, claims: &Value) -> String {
        let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let input = format!("{}.{}", encode(head), encode(claims));
        let random = SystemRandom::new();
        let signature = match self {
            Self::Ed(pair) => pair.sign(input.as_bytes()).as_ref().to_vec(),
            Self::Ec(pair) => pair
                .sign(&random, input.as_bytes())
                .unwrap()
                .as_ref()
                .to_vec(),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                let padding: &dyn aws_lc_rs::signature::RsaEncoding =
                    match head["alg"].as_str().unwrap() {
                        "RS512" => &RSA_PKCS1_SHA512,
                        "PS256" => &RSA_PSS_SHA256,
                        _ => &RSA_PKCS1_SHA256,
                    };
                pair.sign(padding, &random, input.as_bytes(), &mut signature)
                    .unwrap();
                signature
            }
        };
        format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn set(keys: &[Value]) -> KeySet {
    KeySet::parse(json!({"keys": keys}).to_string().as_bytes()).unwrap()
}

fn claims() -> Value {
    let now = jsonwebtoken::get_current_timestamp();
    json!({"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": now + 60})
}

fn verify(set: &KeySet, token: &str) -> Result<Value, TokenError> {
    let head = TokenHead::parse_foreign(token)?;
    let key = set.find(&head).ok_or(TokenError::UnknownKey)?;
    key.verify(token, &head, 5, ISSUER, AUDIENCE)
}

#[test]
fn every_algorithm_that_is_named_verifies_with_its_own_kind_of_key_only() {
    let pairs = [
        (Pair::ed(), &["EdDSA"][..]),
        (Pair::ec(&ECDSA_P256_SHA256_FIXED_SIGNING), &["ES256"]),
        (Pair::ec(&ECDSA_P384_SHA384_FIXED_SIGNING), &["ES384"]),
        (Pair::rsa(), &["RS256", "RS512", "PS256"]),
    ];
    for (pair, own) in &pairs {
        let keys = set(&[pair.jwk("k")]);
        for alg in ["EdDSA", "ES256", "ES384", "RS256", "RS512", "PS256"] {
            let token = pair.sign(&json!({"alg": alg, "kid": "k"}), &claims());
            let answer = verify(&keys, &token);
            if own.contains(&alg) {
                assert_eq!(answer.unwrap()["sub"], "ada", "{alg}");
                // A key with an `alg` is for that algorithm only.
                let mut other = pair.jwk("k");
                other["alg"] = "RS384".into();
                assert_eq!(verify(&set(&[other]), &token), Err(TokenError::UnknownKey));
            } else {
                assert_eq!(answer, Err(TokenError::UnknownKey), "{alg}");
            }
        }
    }
}

#[test]
fn a_forged_header_is_refused_before_any_key_is_looked_at() {
    let pair = Pair::ed();
    let keys = set(&[pair.jwk("k")]);
    for typ in ["JWT", "jwt", "JOSE", "at+jwt", "application/at+JWT"] {
        let token = pair.sign(&json!({"alg": "EdDSA", "kid": "k", "typ": typ}), &claims());
        assert!(verify(&keys, &token).is_ok(), "{typ}");
    }
    for head in [
        json!({"alg": "none", "kid": "k"}),
        json!({"alg": "None", "kid": "k"}),
        json!({"alg": "HS256", "kid": "k"}),
        json!({"alg": "HS512", "kid": "k"}),
        json!({"alg": "EdDSA", "kid": 7}),
        json!({"kid": "k"}),
        json!({"alg": "EdDSA", "kid": "k", "typ": "a2a-canvas+jwt"}),
        json!({"alg": "EdDSA", "kid": "k", "typ": "A2A-Pair+JWT"}),
        json!({"alg": "EdDSA", "kid": "k", "typ": "application/a2a-canvas+jwt"}),
        json!({"alg": "EdDSA", "kid": "k", "typ": "logout+jwt"}),
        json!({"alg": "EdDSA", "kid": "k", "crit": ["exp"]}),
        json!({"alg": "EdDSA", "kid": "k", "crit": []}),
        json!({"alg": "EdDSA", "kid": "k", "b64": false}),
        json!({"alg": "EdDSA", "kid": "k", "zip": "DEF"}),
        json!({"alg": "EdDSA", "kid": "k", "jwk": pair.jwk("k")}),
        json!({"alg": "EdDSA", "kid": "k", "jku": "https://evil.test"}),
        json!({"alg": "EdDSA", "kid": "k", "x5u": "https://evil.test"}),
        json!({"alg": "EdDSA", "kid": "k", "x5c": ["AAAA"]}),
        json!([]),
    ] {
        let token = pair.sign(&head, &claims());
        assert_eq!(verify(&keys, &token), Err(TokenError::Malformed), "{head}");
    }
    // A duplicate member could be read in two ways.
    let twice = URL_SAFE_NO_PAD.encode(r#"{"alg":"EdDSA","kid":"k","kid":"l"}"#);
    for token in ["", "a.b", "a.b.c.d", &format!("{twice}.e30.e30")] {
        assert_eq!(verify(&keys, token), Err(TokenError::Malformed), "{token}");
    }
    let long = "x".repeat(TOKEN_BYTES_MAX + 1);
    assert_eq!(verify(&keys, &long), Err(TokenError::TooLong));
}

#[test]
fn a_forged_signature_or_claim_is_refused() {
    let (pair, stranger) = (Pair::ed(), Pair::ed());
    let keys = set(&[pair.jwk("k")]);
    let head = json!({"alg": "EdDSA", "kid": "k"});
    let now = jsonwebtoken::get_current_timestamp();
    let with = |name: &str, value: Value| {
        let mut claims = claims();
        claims[name] = value;
        claims
    };
    assert_eq!(
        verify(&keys, &stranger.sign(&head, &claims())),
        Err(TokenError::Signature)
    );
    let other = pair.sign(&json!({"alg": "EdDSA", "kid": "K"}), &claims());
    assert_eq!(verify(&keys, &other), Err(TokenError::UnknownKey));
    let several = with("aud", json!(["else", AUDIENCE]));
    assert!(verify(&keys, &pair.sign(&head, &several)).is_ok());
    for (claims, error) in [
        (
            with("iss", "https://login.test/".into()),
            TokenError::Claims,
        ),
        (with("iss", json!(null)), TokenError::Claims),
        (with("aud", "gateway2".into()), TokenError::Claims),
        (with("aud", json!(["else"])), TokenError::Claims),
        (with("aud", json!(null)), TokenError::Claims),
        (with("exp", json!(null)), TokenError::Claims),
        (with("exp", "soon".into()), TokenError::Claims),
        (with("exp", (now - 10).into()), TokenError::Expired),
        (with("nbf", (now + 30).into()), TokenError::Immature),
    ] {
        let token = pair.sign(&head, &claims);
        assert_eq!(verify(&keys, &token), Err(error), "{claims}");
    }
}

#[test]
fn a_set_is_read_with_its_bounds_and_odd_keys_are_passed_over() {
    let (pair, rsa) = (Pair::ed(), Pair::rsa());
    let with = |mut jwk: Value, name: &str, value: Value| {
        jwk[name] = value;
        jwk
    };
    let good = with(pair.jwk("sig"), "use", "sig".into());
    let ops = with(pair.jwk("ops"), "key_ops", json!(["verify"]));
    let svid = with(pair.jwk("svid"), "use", "jwt-svid".into());
    let odd = [
        with(pair.jwk("a"), "use", "enc".into()),
        with(pair.jwk("q"), "use", "x509-svid".into()),
        with(pair.jwk("b"), "key_ops", json!(["sign"])),
        with(pair.jwk("c"), "alg", "HS256".into()),
        with(pair.jwk("d"), "alg", "ES256".into()),
        with(pair.jwk("e"), "x", "AAAA".into()),
        with(pair.jwk("f"), "x", "not base64url!".into()),
        with(pair.jwk("h"), "crv", "X25519".into()),
        with(pair.jwk("p"), "d", "AAAA".into()),
        with(rsa.jwk("i"), "n", URL_SAFE_NO_PAD.encode([255; 128]).into()),
        json!({"kty": "oct", "kid": "j", "k": "c2VjcmV0"}),
        json!({"kty": 7}),
        json!("key"),
        json!(null),
        // An array, which serde would accept for an object.
        json!([
            "OKP",
            "l",
            "EdDSA",
            "sig",
            null,
            "Ed25519",
            pair.jwk("l")["x"],
            null,
            null,
            null,
            null
        ]),
    ];
    let keys: Vec<_> = odd.into_iter().chain([good, ops, svid]).collect();
    let keys = set(&keys);
    let kids: Vec<_> = keys.keys.iter().map(|key| key.kid.as_str()).collect();
    assert_eq!(kids, ["sig", "ops", "svid"]);
    assert!(set(&[]).is_empty());
    let many = vec![pair.jwk("k"); KEYS_MAX + 1];
    assert_eq!(set(&many[1..]).len(), KEYS_MAX);
    let many = json!({"keys": many}).to_string();
    assert_eq!(
        KeySet::parse(many.as_bytes()).err(),
        Some(KeySetError::TooMany)
    );
    for body in [
        "",
        "<html>",
        "[]",
        "[[]]",
        "{}",
        r#"{"keys":{}}"#,
        r#"{"keys":[]"#,
    ] {
        let error = KeySet::parse(body.as_bytes()).err();
        assert_eq!(error, Some(KeySetError::Malformed), "{body}");
    }
}

#[test]
fn a_token_without_a_kid_is_verified_by_the_only_key_that_fits() {
    let (pair, rsa) = (Pair::ed(), Pair::rsa());
    let token = pair.sign(&json!({"alg": "EdDSA"}), &claims());
    let mut unnamed = pair.jwk("k");
    unnamed.as_object_mut().unwrap().remove("kid");
    for keys in [
        set(&[pair.jwk("k"), rsa.jwk("r")]),
        set(&[unnamed.clone(), rsa.jwk("r")]),
    ] {
        assert_eq!(verify(&keys, &token).unwrap()["sub"], "ada");
        // The key is found again by its own name.
        let head = TokenHead::parse_foreign(&token).unwrap();
        let kid = keys.find(&head).unwrap().kid().to_owned();
        let with_kid = TokenHead {
            kid: Some(kid.clone()),
            ..head
        };
        assert_eq!(keys.find(&with_kid).unwrap().kid(), kid);
    }
    let two = set(&[pair.jwk("k"), Pair::ed().jwk("l")]);
    assert_eq!(verify(&two, &token), Err(TokenError::UnknownKey));
    let named = pair.sign(&json!({"alg": "EdDSA", "kid": "k"}), &claims());
    assert!(verify(&two, &named).is_ok());
    let nothing_named_so = verify(&set(&[unnamed]), &named);
    assert_eq!(nothing_named_so, Err(TokenError::UnknownKey));
}

#[test]
fn times_may_have_a_fraction_and_the_leeway_is_as_it_is_set() {
    let pair = Pair::ed();
    let keys = set(&[pair.jwk("k")]);
    let now = jsonwebtoken::get_current_timestamp();
    let sign = |exp: Value| {
        let mut claims = claims();
        claims["exp"] = exp;
        pair.sign(&json!({"alg": "EdDSA", "kid": "k"}), &claims)
    };
    for fraction in ["0", "5", "999"] {
        let exp = serde_json::from_str(&format!("{}.{fraction}", now + 60)).unwrap();
        assert!(verify(&keys, &sign(exp)).is_ok(), "{fraction}");
    }
    let late = sign((now - 30).into());
    let head = TokenHead::parse_foreign(&late).unwrap();
    let within = |leeway| keys.keys[0].verify::<Value>(&late, &head, leeway, ISSUER, AUDIENCE);
    assert_eq!(within(5), Err(TokenError::Expired));
    assert!(within(60).is_ok());
}

#[test]
fn what_a_new_set_leaves_out_is_withdrawn() {
    let (stays, goes) = (Pair::ed(), Pair::ed());
    let first = set(&[stays.jwk("a"), goes.jwk("b")]);
    let [kept, gone] = [0, 1].map(|at: usize| Arc::clone(&first.keys[at]));
    // The same `kid` for another key is another key.
    let second = set(&[stays.jwk("a"), Pair::ed().jwk("b")]).supersede(&first);
    assert!(Arc::ptr_eq(&second.keys[0], &kept));
    assert!(!kept.is_withdrawn() && gone.is_withdrawn());
    assert!(!second.keys[1].is_withdrawn());
    second.withdraw();
    assert!(kept.is_withdrawn());
}

#[test]
fn the_claimed_issuer_is_read_and_not_believed() {
    let token = |claims: &str| format!("e30.{}.x", URL_SAFE_NO_PAD.encode(claims));
    let claimed = claimed_issuer(&token(r#"{"iss":"https://login.test","x":1}"#));
    assert_eq!(claimed.as_deref(), Some(ISSUER));
    for none in [r#"{"iss":7}"#, r"{}", "[]", r#"{"iss":"a","iss":"b"}"#] {
        assert_eq!(claimed_issuer(&token(none)), None, "{none}");
    }
}
