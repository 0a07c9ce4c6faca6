//! Tokens that are genuine but for one flaw: signed with the key that the gateway publishes, whatever
//! they say, so that nothing but the flaw can be what they are refused for.

use aws_lc_rs::hmac::{HMAC_SHA256, HMAC_SHA512};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::harness::CALL;
use crate::harness::issuer::{Key, with_hmac};
use crate::harness::sidecar::{GUARDED, bound};

const TYP: &str = "a2a-pair+jwt";

// What a sidecar says.
const NO_PAIR: &str = "the token is no pair token";
const UNKNOWN: &str = "signed by a key that the gateway does not publish";
const SIGNATURE: &str = "the token's signature is wrong";
const BODY: &str = "the token was made for another body";
const CLAIMS: &str = "for another workspace, of another gateway, or lacks a claim";

/// What a sidecar, PyJWT and jose refuse a token with.
type Words<'a> = (&'static str, &'a str, &'a str);

/// A token for [`CALL`] with one flaw, and the words that each verifier refuses it with.
pub(crate) struct Flaw {
    pub(crate) what: String,
    pub(crate) token: String,
    pub(crate) sidecar: &'static str,
    /// PyJWT and jose as the document has them. `None`: they don't look for what no gateway signs.
    pub(crate) libraries: Option<[String; 2]>,
}

/// Who signs.
pub(crate) struct Forger<'a> {
    /// The gateway's own key.
    pub(crate) key: &'a Key,
    /// The gateway.
    pub(crate) issuer: &'a str,
    /// The JWKS as it is served.
    pub(crate) jwks: &'a [u8],
}

impl Forger<'_> {
    /// Good claims for [`CALL`] but for `more`; `null` takes one out. Good for long: the machine may be
    /// slow.
    fn claims(&self, more: &Value) -> Value {
        let exp = jsonwebtoken::get_current_timestamp() + 600;
        let mut all = json!({"iss": self.issuer, "exp": exp});
        let more = more.as_object().unwrap().clone();
        all.as_object_mut().unwrap().extend(more);
        bound(CALL, all)
    }

    /// The header of a good token but for `more`; `null` takes a member out.
    fn head(&self, more: &Value) -> String {
        let mut head = self.key.head(TYP);
        let all = head.as_object_mut().unwrap();
        all.extend(more.as_object().unwrap().clone());
        all.retain(|_, value| !value.is_null());
        head.to_string()
    }

    /// Signed.
    pub(crate) fn saying(&self, more: Value) -> String {
        let claims = self.claims(&more).to_string();
        self.key.sign_text(&self.head(&json!({})), &claims)
    }

    fn headed(&self, more: Value) -> String {
        let claims = self.claims(&json!({})).to_string();
        self.key.sign_text(&self.head(&more), &claims)
    }

    /// Every flaw.
    pub(crate) fn flaws(&self) -> Vec<Flaw> {
        let rows = [
            self.algorithms(),
            self.headers(),
            self.signatures(),
            self.times_and_parties(),
            self.absences(),
            self.odd_spellings(),
        ];
        rows.into_iter().flatten().collect()
    }

    /// RFC 8725, 3.1: the algorithm is the key's, not the token's.
    fn algorithms(&self) -> Vec<Flaw> {
        let python = "InvalidAlgorithmError: The specified alg value is not allowed";
        let refused = [python, "JOSEAlgNotAllowed: "];
        let row = |what: &str, token| flaw(what, token, NO_PAIR, refused);
        let claims = || self.claims(&json!({})).to_string();
        let unsigned = |token: String| format!("{}.", token.rsplit_once('.').unwrap().0);
        let x = self.key.jwk()["x"].as_str().unwrap().to_owned();
        let of_x = URL_SAFE_NO_PAD.decode(&x).unwrap();
        let hmac = |alg: &str, by, secret: &[u8]| {
            let head = self.head(&json!({ "alg": alg }));
            with_hmac(&head, &claims(), by, secret)
        };
        let hs256 = |secret: &[u8]| hmac("HS256", HMAC_SHA256, secret);
        let alg = |alg: &str| self.headed(json!({ "alg": alg }));
        let others = [python, "JWKSNoMatchingKey: "];
        let another = "the algorithm of another key";
        vec![
            row("alg none", unsigned(alg("none"))),
            row("alg none, signed", alg("none")),
            row("HMAC with the JWKS", hs256(self.jwks)),
            row("HMAC with x", hs256(x.as_bytes())),
            row("HMAC with x, decoded", hs256(&of_x)),
            row("HMAC with SHA-512", hmac("HS512", HMAC_SHA512, &of_x)),
            row("HS256, signed by the key", alg("HS256")),
            flaw(another, alg("ES256"), UNKNOWN, others),
        ]
    }

    /// 3.10 and 3.11: no key of the token's choice, one type for one use.
    fn headers(&self) -> Vec<Flaw> {
        let odd = "InvalidTokenError: not a pair token";
        let mut rows = Vec::new();
        let (path, quote) = ("../../../../etc/passwd", "' OR '1'='1");
        for kid in ["unknown", "", path, "active.pem", quote, "\0", "K-1"] {
            let token = self.headed(json!({ "kid": kid }));
            let python = "PyJWKClientError: Unable to find a signing key";
            let refused = [python, "JWKSNoMatchingKey: "];
            rows.push(flaw(&format!("kid {kid:?}"), token, UNKNOWN, refused));
        }
        let mut row = |what: &str, more: Value, python, jose| {
            rows.push(flaw(what, self.headed(more), NO_PAIR, [python, jose]));
        };
        let (python, jose) = (odd, "JWTInvalid: not a pair token");
        for (name, value) in [
            ("jwk", self.key.jwk()),
            ("jku", "http://127.0.0.1:1/jwks.json".into()),
            ("x5u", "http://127.0.0.1:1/cert.pem".into()),
            ("x5c", json!(["MIIB"])),
            ("cty", "JWT".into()),
        ] {
            row(name, json!({ name: value }), python, jose);
        }
        let spelling = json!({"typ": "application/a2a-pair+jwt"});
        row("typ in another spelling", spelling, python, jose);
        let jose = "JWTClaimValidationFailed: unexpected \"typ\" JWT header value";
        for typ in [
            json!("JWT"),
            json!("a2a-canvas+jwt"),
            json!("at+jwt"),
            Value::Null,
        ] {
            row(&format!("typ {typ}"), json!({ "typ": typ }), python, jose);
        }
        let jose = "JWKSMultipleMatchingKeys: ";
        row("no kid", json!({"kid": null}), python, jose);
        let python = "InvalidTokenError: Unsupported critical extension: exp";
        let jose = "JOSENotSupported: Extension Header Parameter \"exp\" is not recognized";
        row("an unknown crit", json!({"crit": ["exp"]}), python, jose);
        rows
    }

    fn signatures(&self) -> Vec<Flaw> {
        let jose = "JWSSignatureVerificationFailed: ";
        let refused = ["InvalidSignatureError: ", jose];
        let row = |what: &str, token| flaw(what, token, SIGNATURE, refused);
        let good = self.saying(json!({}));
        let (signed, signature) = good.rsplit_once('.').unwrap();
        let other = self.saying(json!({}));
        let others = other.rsplit_once('.').unwrap().1;
        let stranger = Key::new(&self.key.kid);
        let claims = self.claims(&json!({})).to_string();
        let strangers = stranger.sign_text(&self.head(&json!({})), &claims);
        vec![
            row("a bent signature", bent(&good)),
            row("another token's signature", format!("{signed}.{others}")),
            row("zeros", format!("{signed}.{}", "A".repeat(signature.len()))),
            row("a stranger's key of that name", strangers),
        ]
    }

    /// 3.8, 3.9: from whom, for whom, for what, when; and for which request.
    fn times_and_parties(&self) -> Vec<Flaw> {
        let now = jsonwebtoken::get_current_timestamp();
        let mut rows = Vec::new();
        let mut row = |what: &str, more: Value, (sidecar, python, jose): Words<'_>| {
            rows.push(flaw(what, self.saying(more), sidecar, [python, jose]));
        };
        let jose = "JWTExpired: \"exp\" claim timestamp check failed";
        let expired = ("the token has expired", "ExpiredSignatureError: ", jose);
        let over = json!({"iat": now - 66, "nbf": now - 66, "exp": now - 6});
        row("expired a second beyond the leeway", over, expired);
        let python = "ImmatureSignatureError: The token is not yet valid (nbf)";
        let jose = "JWTClaimValidationFailed: \"nbf\" claim timestamp check failed";
        let early = ("the token is not valid yet", python, jose);
        row("not yet good", json!({"nbf": now + 500}), early);
        let failed =
            |name: &str| format!("JWTClaimValidationFailed: unexpected \"{name}\" claim value");
        let (aud, iss) = (failed("aud"), failed("iss"));
        let scope = "JWTInvalid: another audience or scope";
        let targets = (CLAIMS, "InvalidAudienceError: ", scope);
        let target = (CLAIMS, "InvalidAudienceError: ", &*aud);
        row("another target", json!({"aud": "other"}), target);
        row("two targets", json!({"aud": [GUARDED, "other"]}), targets);
        row("a list of one target", json!({"aud": [GUARDED]}), targets);
        let issuer = (CLAIMS, "InvalidIssuerError: ", &*iss);
        let (elsewhere, slash) = ("https://gateway.example", format!("{}/", self.issuer));
        row("another issuer", json!({ "iss": elsewhere }), issuer);
        row("the issuer with a slash", json!({ "iss": slash }), issuer);
        let scopes = json!({"scope": "a2a:message a2a:canvas"});
        let refused = (CLAIMS, "InvalidTokenError: another scope", scope);
        row("another scope", scopes, refused);
        let other_body = json!({"bh": bound("{}", json!({}))["bh"]});
        for (part, more) in [
            ("body", other_body),
            ("method", json!({"method": "tasks/get"})),
        ] {
            let python = format!("InvalidTokenError: another {part}");
            let jose = format!("JWTInvalid: another {part}");
            let sidecar = match part {
                "body" => BODY,
                _ => "the token was made for another method",
            };
            row(
                &format!("another {part}"),
                more,
                (sidecar, &*python, &*jose),
            );
        }
        rows
    }

    fn absences(&self) -> Vec<Flaw> {
        let lacks = |name: &str| (format!("no {name}"), self.saying(json!({ name: null })));
        let mut rows = Vec::new();
        for name in ["iss", "sub", "aud", "iat", "nbf", "exp", "jti", "scope"] {
            let python =
                format!("MissingRequiredClaimError: Token is missing the \"{name}\" claim");
            let jose = format!("JWTClaimValidationFailed: missing required \"{name}\" claim");
            let (what, token) = lacks(name);
            rows.push(flaw(&what, token, CLAIMS, [&python, &jose]));
        }
        for name in ["rel", "gen"] {
            let (what, token) = lacks(name);
            rows.push(alone(&what, token, CLAIMS));
        }
        rows
    }

    /// What no gateway signs, and a sidecar refuses all the same.
    fn odd_spellings(&self) -> Vec<Flaw> {
        let mut rows = Vec::new();
        let good = self.claims(&json!({}));
        for name in ["iss", "sub", "aud", "exp", "jti", "scope", "bh"] {
            // The same value: nothing but its standing there twice is wrong.
            let twice = format!("{{\"{name}\":{},{}", good[name], &good.to_string()[1..]);
            let token = self.key.sign_text(&self.head(&json!({})), &twice);
            rows.push(alone(&format!("{name} twice"), token, CLAIMS));
        }
        let head = self.head(&json!({}));
        let twice = format!("{{\"kid\":{},{}", json!(self.key.kid), &head[1..]);
        let twice = self.key.sign_text(&twice, &good.to_string());
        rows.push(alone("kid twice", twice, NO_PAIR));
        for (what, more) in [
            ("an empty caller", json!({"sub": ""})),
            ("an empty name", json!({"jti": ""})),
            ("an end in words", json!({"exp": "tomorrow"})),
        ] {
            rows.push(alone(what, self.saying(more), CLAIMS));
        }
        let half = self.saying(json!({"bh": null}));
        rows.push(alone("half a binding", half, BODY));
        let long = self.saying(json!({"org": "x".repeat(9000)}));
        rows.push(alone("too long", long, "more than 8192 bytes"));
        rows
    }
}

fn flaw(what: &str, token: String, sidecar: &'static str, libraries: [&str; 2]) -> Flaw {
    Flaw {
        libraries: Some(libraries.map(str::to_owned)),
        ..alone(what, token, sidecar)
    }
}

fn alone(what: &str, token: String, sidecar: &'static str) -> Flaw {
    Flaw {
        what: what.to_owned(),
        token,
        sidecar,
        libraries: None,
    }
}

/// The token with another signature.
fn bent(token: &str) -> String {
    let at = token.len() - 40;
    let other = if token.as_bytes()[at] == b'A' {
        "B"
    } else {
        "A"
    };
    format!("{}{other}{}", &token[..at], &token[at + 1..])
}
