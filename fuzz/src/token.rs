//! `trust`: compact JWTs and key sets, against three keys whose private halves nobody has any more.
//! What they signed is all that may ever verify.
//!
//! The first byte of an input says what follows: `t` a token as it is, `j` the JSON of header and
//! claims and a signature in base64url, a line each, `1` to `3` edits of a signed token (an offset of
//! two bytes and a new byte each), `k` a key set.

use std::sync::LazyLock;

use a2a_gateway::trust::{
    KEYS_MAX, KeySet, PAIR_TYP, PairClaims, TOKEN_BYTES_MAX, TokenError, TokenHead,
    claimed_audience, claimed_issuer, decode_unverified, own_type,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

/// Ed25519 and P-256, whose tokens are our own, and RSA, whose is a foreign one.
const PUBLISHED: &str = include_str!("../keys/jwks.json");

/// What each of them signed once, good until 2100.
const SIGNED: &str = include_str!("../keys/signed.txt");

const ISSUER: &str = "https://gw.example";
const AUDIENCE: &str = "dev";

static KEYS: LazyLock<KeySet> = LazyLock::new(|| {
    let keys = KeySet::parse(PUBLISHED.as_bytes()).expect("a key set");
    for token in SIGNED.lines() {
        assert!(verifies(token, &keys), "the target would show nothing");
    }
    keys
});

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((mode, rest)) = input.split_first() else {
        return;
    };
    match mode {
        b'k' => key_set(rest),
        b'1'..=b'3' => edited(usize::from(mode - b'1'), rest),
        _ => {
            let Ok(text) = std::str::from_utf8(rest) else {
                return;
            };
            if *mode == b'j' {
                let parts: Vec<&str> = text.splitn(3, '\n').collect();
                if let [head, claims, signature] = parts[..] {
                    let [head, claims] = [head, claims].map(|json| URL_SAFE_NO_PAD.encode(json));
                    token(&format!("{head}.{claims}.{signature}"));
                }
            } else {
                token(text);
            }
        }
    }
}

fn edited(which: usize, edits: &[u8]) {
    let signed = SIGNED.lines().nth(which).unwrap_or_default();
    let mut bytes = signed.as_bytes().to_vec();
    for edit in edits.chunks_exact(3) {
        let at = usize::from(u16::from_be_bytes([edit[0], edit[1]])) % bytes.len();
        bytes[at] = edit[2];
    }
    if let Ok(text) = std::str::from_utf8(&bytes) {
        token(text);
    }
}

fn token(text: &str) {
    let is_signed = SIGNED.lines().any(|signed| signed == text);
    assert_eq!(verifies(text, &KEYS), is_signed, "{text}");
    let own = TokenHead::parse_own(text, PAIR_TYP);
    let foreign = TokenHead::parse_foreign(text);
    if text.len() > TOKEN_BYTES_MAX {
        assert_eq!(own, Err(TokenError::TooLong));
        assert_eq!(foreign, Err(TokenError::TooLong));
        assert_eq!(decode_unverified(text), Err(TokenError::TooLong));
    }
    let (issuer, audience) = (claimed_issuer(text), claimed_audience(text));
    let Ok([head, claims]) = decode_unverified(text) else {
        assert!(issuer.is_none() || text.split('.').count() == 3);
        return;
    };
    // A second reading of header and claims says the same.
    assert!(issuer.is_none_or(|issuer| claims["iss"] == *issuer));
    assert!(audience.is_none_or(|audience| claims["aud"] == *audience));
    let typ = own_type(text);
    if let Ok(own) = own {
        let members = head.as_object().expect("a header is an object");
        assert_eq!(members.len(), 3, "a member that is not ours: {head}");
        assert!(head["alg"] == "EdDSA" || head["alg"] == "ES256", "{head}");
        assert_eq!(head["typ"], PAIR_TYP);
        assert_eq!(typ.as_deref(), Some(PAIR_TYP));
        assert_eq!(head["kid"], own.kid.as_deref().unwrap_or_default());
    }
    if let Ok(foreign) = foreign {
        let alg = head["alg"].as_str().expect("an algorithm");
        assert!(alg != "none" && !alg.starts_with("HS"), "{head}");
        for chooses in ["jwk", "jku", "x5c", "x5u", "crit", "b64", "zip"] {
            assert!(head.get(chooses).is_none_or(Value::is_null), "{head}");
        }
        assert_eq!(
            head.get("kid").and_then(Value::as_str),
            foreign.kid.as_deref()
        );
    }
}

/// Whether the gateway would take it for the token of a caller: as its own, or as a foreign one.
fn verifies(token: &str, keys: &KeySet) -> bool {
    let own = TokenHead::parse_own(token, PAIR_TYP)
        .and_then(|head| PairClaims::verify(token, &head, keys, ISSUER, AUDIENCE));
    let foreign = TokenHead::parse_foreign(token).and_then(|head| {
        let key = keys.find(&head).ok_or(TokenError::UnknownKey)?;
        key.verify::<Value>(token, &head, 5, ISSUER, AUDIENCE)
    });
    own.is_ok() || foreign.is_ok()
}

fn key_set(body: &[u8]) {
    let Ok(keys) = KeySet::parse(body) else {
        return;
    };
    assert!(keys.len() <= KEYS_MAX);
    let published: Value = serde_json::from_slice(body).expect("a key set is JSON");
    let published = published["keys"].as_array().expect("with a list of keys");
    // Those that verify for somebody, by the simplest reading.
    let usable = published.iter().filter(|key| {
        key["kid"].is_string()
            && matches!(key["kty"].as_str(), Some("OKP" | "EC" | "RSA"))
            && key.get("d").is_none_or(Value::is_null)
            && (key["use"].is_null() || key["use"] == "sig")
    });
    let usable: Vec<&Value> = usable.collect();
    assert!(
        keys.len() <= usable.len(),
        "a key that may not verify is in use"
    );
    let known: Value = serde_json::from_str(PUBLISHED).expect("JSON");
    for (at, signed) in SIGNED.lines().enumerate() {
        let of = &known["keys"][at];
        let is_there = usable.iter().any(|key| {
            // A number of RSA has many spellings.
            let same = |name: &str| key[name] == of[name];
            ["kid", "kty", "x", "y"].into_iter().all(same)
        });
        assert!(
            is_there || !verifies(signed, &keys),
            "verified by another key"
        );
    }
    let replaced = KeySet::parse(PUBLISHED.as_bytes()).expect("a key set");
    let count = keys.len();
    assert_eq!(keys.supersede(&replaced).len(), count);
}
