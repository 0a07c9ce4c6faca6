//! Tokens that are not what they say (RFC 8725, and what else is known of JWTs), each refused with the
//! contract's reason before anything reaches the agent.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::{Family, jwks};
use crate::harness::issuer::{Key, with_hmac};
use crate::harness::{Pair, Request, until_holds};

const TYP: &str = "a2a-pair+jwt";

fn now() -> i64 {
    i64::try_from(jsonwebtoken::get_current_timestamp()).unwrap()
}

fn with(mut object: Value, name: &str, value: Value) -> Value {
    object[name] = value;
    object
}

fn without(mut object: Value, name: &str) -> Value {
    object.as_object_mut().unwrap().remove(name);
    object
}

/// The same object with `member` once more in front.
fn twice(object: &Value, member: &str) -> String {
    format!("{{{member},{}", &object.to_string()[1..])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_forged_token_proves_anything() {
    let family = Family::new(Pair::Embedded).await;
    let published = jwks(&family.gateway).await;
    let folder = family.gateway.dir.join("keys");
    let key = Key::stolen(&folder.join("active.pem"), &published["keys"][0]["kid"]);
    let next = Key::stolen(&folder.join("next.pem"), &published["keys"][1]["kid"]);
    let stranger = Key::new(&key.kid);
    let issuer = format!("http://{}", family.gateway.public);
    let claims = || {
        json!({
            "iss": issuer, "sub": "one", "aud": "two", "iat": now(), "nbf": now(), "exp": now() + 60,
            "jti": "j-1", "scope": "a2a:message", "rel": "sibling", "org": "acme", "gen": 0,
        })
    };
    let say = |claims: Value| key.sign_text(&key.head(TYP).to_string(), &claims.to_string());
    let head = |head: Value| key.sign_text(&head.to_string(), &claims().to_string());
    let good = say(claims());
    assert_eq!(family.call(&good).await.0, 200, "what is right is right");
    let of_next = next.sign_text(&next.head(TYP).to_string(), &claims().to_string());
    assert_eq!(family.call(&of_next).await.0, 200);
    family.two.agent.take();
    family.two.agent.take();
    let [h, c, s] = good.split('.').collect::<Vec<_>>()[..] else {
        panic!()
    };
    let encoded = |text: &str| URL_SAFE_NO_PAD.encode(text);

    // RFC 8725, 2.1 and 3.1: the algorithm is the key's, not the token's.
    let hmac = |secret: &[u8], alg: &str, algorithm: hmac::Algorithm| {
        let head = with(key.head(TYP), "alg", alg.into()).to_string();
        with_hmac(&head, &claims().to_string(), algorithm, secret)
    };
    let x = published["keys"][0]["x"].as_str().unwrap();
    let jwks_bytes = Request::get("/.well-known/jwks.json");
    let jwks_bytes = family.gateway.call(&jwks_bytes).await.body;
    let none = with(key.head(TYP), "alg", "none".into()).to_string();
    let none_signed = with(key.head(TYP), "alg", "nOnE".into()).to_string();
    let signed = |head: &str| key.sign_text(head, &claims().to_string());
    let claimed = |claims: &str| key.sign_text(&key.head(TYP).to_string(), claims);
    let of_alg = |alg: &str| head(with(key.head(TYP), "alg", alg.into()));
    let (sha256, no_alg) = (hmac::HMAC_SHA256, r#"{"alg":"none","typ":"a2a-pair+jwt"}"#);
    let set = published.to_string();
    let decoded = URL_SAFE_NO_PAD.decode(x).unwrap();
    let mut forged = Vec::new();
    let mut add = |what: &'static str, token: String| forged.push((what, token));
    add("alg none", format!("{}.{c}.", encoded(no_alg)));
    add("alg none, with a kid", format!("{}.{c}.", encoded(&none)));
    add("alg nOnE", format!("{}.{c}.{s}", encoded(&none_signed)));
    add("HMAC with the JWKS", hmac(&jwks_bytes, "HS256", sha256));
    add("HMAC, rewritten", hmac(set.as_bytes(), "HS256", sha256));
    add("HMAC with x", hmac(x.as_bytes(), "HS256", sha256));
    add("HMAC, decoded", hmac(&decoded, "HS512", hmac::HMAC_SHA512));
    add("HMAC of nothing", hmac(b"", "HS384", hmac::HMAC_SHA384));
    add("another alg of the key", of_alg("ES256"));
    add("an alg of RSA", of_alg("RS256"));
    add("an unknown alg", of_alg("Ed448"));
    add("no alg", head(without(key.head(TYP), "alg")));
    add(
        "alg twice",
        signed(&twice(&key.head(TYP), r#""alg":"none""#)),
    );
    // 3.10: no key of the token's choice.
    let own = json!({"kty": "OKP", "crv": "Ed25519", "x": x, "kid": key.kid});
    for (name, value) in [
        ("jwk", own),
        ("jku", "http://127.0.0.1:1/jwks.json".into()),
        ("x5u", "http://127.0.0.1:1/cert.pem".into()),
        ("x5c", json!(["MIIB"])),
        ("x5t", "abc".into()),
        ("crit", json!(["exp"])),
        ("crit", json!([])),
        ("b64", false.into()),
        ("zip", "DEF".into()),
        ("cty", "JWT".into()),
    ] {
        add(name, head(with(key.head(TYP), name, value)));
    }
    for kid in [
        json!(""),
        json!("unknown"),
        json!("../../../../etc/passwd"),
        json!("active.pem"),
        json!("' OR '1'='1"),
        json!("\u{0}"),
        json!(next.kid),
        json!(7),
        json!(null),
        json!([key.kid]),
        json!(key.kid.to_uppercase()),
    ] {
        add("kid", head(with(key.head(TYP), "kid", kid)));
    }
    add("no kid", head(without(key.head(TYP), "kid")));
    add("kid twice", signed(&twice(&key.head(TYP), r#""kid":"x""#)));
    // 3.11: one type for one use.
    let types = "JWT a2a-canvas+jwt a2a-ticket+jwt A2A-Pair+JWT application/a2a-pair+jwt at+jwt ";
    for typ in types.split(' ') {
        add("typ", head(with(key.head(TYP), "typ", typ.into())));
    }
    add("no typ", head(without(key.head(TYP), "typ")));
    // Signatures.
    let other = say(claims());
    let swapped = other.rsplit('.').next().unwrap();
    let last = s.as_bytes()[s.len() - 1];
    // 64 bytes leave four bits unused in the last character: they must be zero.
    let alike = char::from(if last == b'A' { b'B' } else { last + 1 });
    let of = |sub: &str| encoded(&with(claims(), "sub", sub.into()).to_string());
    let respelt = json!({"typ": TYP, "alg": "EdDSA", "kid": key.kid}).to_string();
    let respelt = encoded(&respelt.replace(':', ": "));
    let theirs = stranger.sign_text(&stranger.head(TYP).to_string(), &claims().to_string());
    add("a stranger's signature", theirs);
    add("no signature", format!("{h}.{c}."));
    add("half a signature", format!("{h}.{c}.{}", &s[..s.len() / 2]));
    add("of zeros", format!("{h}.{c}.{}", "A".repeat(s.len())));
    add("of another token", format!("{h}.{}.{swapped}", of("two")));
    let spelt = &s[..s.len() - 1];
    add("of another spelling", format!("{h}.{c}.{spelt}{alike}"));
    add("claims of another", format!("{h}.{}.{s}", of("lead")));
    add("a header of another", format!("{respelt}.{c}.{s}"));
    add("a JWE", format!("{h}.{c}.{s}.{c}.{s}"));
    add("claims that are a token", claimed(&good));
    add("claims that are a list", claimed("[]"));
    add("claims that are no JSON", claimed("{"));
    let long = "x".repeat(8 * 1024);
    add("too long", say(with(claims(), "more", long.into())));
    // 3.8, 3.9 and 3.12: from whom, for whom, for what; each claim there, once, of its type.
    for name in "iss sub aud iat nbf exp jti scope rel gen".split(' ') {
        add(name, say(without(claims(), name)));
        add(name, say(with(claims(), name, Value::Null)));
        add(name, say(with(claims(), name, json!([claims()[name]]))));
        let more = format!("{}:{}", json!(name), claims()[name]);
        add(name, claimed(&twice(&claims(), &more)));
    }
    for (name, value) in [
        ("iss", "http://127.0.0.1:1".into()),
        ("iss", format!("{issuer}/").into()),
        ("aud", json!(["two", "one"])),
        ("aud", "".into()),
        ("aud", "no id!".into()),
        ("sub", "".into()),
        ("sub", "canvas:ada".into()),
        ("sub", "operator:".into()),
        ("scope", "a2a:canvas".into()),
        ("scope", "a2a:message a2a:canvas".into()),
        ("exp", (now() - 6).into()),
        ("exp", format!("{}", now() + 60).into()),
        ("exp", (-1).into()),
        ("nbf", (now() + 600).into()),
        ("jti", "".into()),
        ("gen", "0".into()),
        // For a forwarded request, to its target: the gateway is not that.
        ("token_use", "caller".into()),
        ("token_use", "another".into()),
        ("token_use", 1.into()),
        ("bh", "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU".into()),
        ("method", "message/send".into()),
    ] {
        add(name, say(with(claims(), name, value)));
    }
    for (what, token) in &forged {
        let (status, reason) = family.call(token).await;
        assert_eq!(
            (status, &*reason),
            (401, "unauthenticated"),
            "{what}: {token}"
        );
    }
    // Genuine, and not enough.
    for (name, value) in [("aud", "one"), ("aud", "nobody"), ("sub", "nobody")] {
        let refused = family.call(&say(with(claims(), name, value.into()))).await;
        assert_eq!(refused, (403, "not_permitted".to_owned()), "{name} {value}");
    }
    // No forged token reached the agent.
    assert_eq!(family.two.agent.count(), 0);
    assert!(forged.len() > 100, "{}", forged.len());
    // Within the leeway, which is 5 s.
    until_holds("a token that ended 2 s ago counts", async || {
        let late = say(with(claims(), "exp", (now() - 2).into()));
        family.call(&late).await.0 == 200
    })
    .await;
    // Unknown claims are passed over (RFC 7519, 4), and an org is not needed.
    let more = without(with(claims(), "more", "x".into()), "org");
    assert_eq!(family.call(&say(more)).await.0, 200);
    let log = family.gateway.log();
    let mut all = forged.iter();
    assert!(all.all(|(_, token)| !log.contains(&**token)), "in the log");
}
