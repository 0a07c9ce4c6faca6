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
const CLAIMS: &str = "for another workspace, of another gateway, or lacks a claim";

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
        let refused = [
            "InvalidAlgorithmError: The specified alg value is not allowed",
            "JOSEAlgNotAllowed: ",
        ];
        let row = |what: &str, token| flaw(what, token, NO_PAIR, refused);
        let claims = || self.claims(&json!({})).to_string();
        let unsigned = |token: String| format!("{}.", token.rsplit_once('.').unwrap().0);
        let x = self.key.jwk()["x"].as_str().unwrap().to_owned();
        let of_x = URL_SAFE_NO_PAD.decode(&x).unwrap();
        let hs256 = |secret: &[u8]| {
            let head = self.head(&json!({"alg": "HS256"}));
            with_hmac(&head, &claims(), HMAC_SHA256, secret)
        };
        let hs512 = self.head(&json!({"alg": "HS512"}));
        vec![
            row("alg none", unsigned(self.headed(json!({"alg": "none"})))),
            row("alg none, signed", self.headed(json!({"alg": "none"}))),
            row("HMAC with the JWKS", hs256(self.jwks)),
            row("HMAC with x", hs256(x.as_bytes())),
            row("HMAC with x, decoded", hs256(&of_x)),
            row(
                "HMAC with SHA-512",
                with_hmac(&hs512, &claims(), HMAC_SHA512, &of_x),
            ),
            row(
                "HS256, signed by the key",
                self.headed(json!({"alg": "HS256"})),
            ),
            flaw(
                "the algorithm of another key",
                self.headed(json!({"alg": "ES256"})),
                UNKNOWN,
                [
                    "InvalidAlgorithmError: The specified alg value is not allowed",
                    "JWKSNoMatchingKey: ",
                ],
            ),
        ]
    }

    /// 3.10 and 3.11: no key of the token's choice, one type for one use.
    fn headers(&self) -> Vec<Flaw> {
        let odd = "InvalidTokenError: not a pair token";
        let mut rows = Vec::new();
        for kid in [
            "unknown",
            "",
            "../../../../etc/passwd",
            "active.pem",
            "' OR '1'='1",
            "\0",
            "K-1",
        ] {
            let token = self.headed(json!({"kid": kid}));
            let refused = [
                "PyJWKClientError: Unable to find a signing key",
                "JWKSNoMatchingKey: ",
            ];
            rows.push(flaw(&format!("kid {kid:?}"), token, UNKNOWN, refused));
        }
        let own = self.key.jwk();
        for (name, value) in [
            ("jwk", own.clone()),
            ("jku", "http://127.0.0.1:1/jwks.json".into()),
            ("x5u", "http://127.0.0.1:1/cert.pem".into()),
            ("x5c", json!(["MIIB"])),
            ("cty", "JWT".into()),
        ] {
            let refused = [odd, "JWTInvalid: not a pair token"];
            rows.push(flaw(
                name,
                self.headed(json!({name: value})),
                NO_PAIR,
                refused,
            ));
        }
        for typ in [
            json!("JWT"),
            json!("a2a-canvas+jwt"),
            json!("at+jwt"),
            Value::Null,
        ] {
            let what = format!("typ {typ}");
            let refused = [
                odd,
                "JWTClaimValidationFailed: unexpected \"typ\" JWT header value",
            ];
            rows.push(flaw(
                &what,
                self.headed(json!({"typ": typ})),
                NO_PAIR,
                refused,
            ));
        }
        rows.extend([
            flaw(
                "typ in another spelling",
                self.headed(json!({"typ": "application/a2a-pair+jwt"})),
                NO_PAIR,
                [odd, "JWTInvalid: not a pair token"],
            ),
            flaw(
                "an unknown crit",
                self.headed(json!({"crit": ["exp"]})),
                NO_PAIR,
                [
                    "InvalidTokenError: Unsupported critical extension: exp",
                    "JOSENotSupported: Extension Header Parameter \"exp\" is not recognized",
                ],
            ),
            flaw(
                "no kid",
                self.headed(json!({"kid": null})),
                NO_PAIR,
                [odd, "JWKSMultipleMatchingKeys: "],
            ),
        ]);
        rows
    }

    fn signatures(&self) -> Vec<Flaw> {
        let refused = [
            "InvalidSignatureError: ",
            "JWSSignatureVerificationFailed: ",
        ];
        let row = |what: &str, token| flaw(what, token, SIGNATURE, refused);
        let good = self.saying(json!({}));
        let (signed, signature) = good.rsplit_once('.').unwrap();
        let other = self.saying(json!({}));
        let others = other.rsplit_once('.').unwrap().1;
        let stranger = Key::new(&self.key.kid);
        let claims = self.claims(&json!({})).to_string();
        vec![
            row("a bent signature", bent(&good)),
            row("another token's signature", format!("{signed}.{others}")),
            row("zeros", format!("{signed}.{}", "A".repeat(signature.len()))),
            row(
                "a stranger's key of that name",
                stranger.sign_text(&self.head(&json!({})), &claims),
            ),
        ]
    }

    /// 3.8, 3.9: from whom, for whom, for what, when; and for which request.
    fn times_and_parties(&self) -> Vec<Flaw> {
        let now = jsonwebtoken::get_current_timestamp();
        let row = |what: &str, more, sidecar, python: &str, jose: &str| {
            flaw(what, self.saying(more), sidecar, [python, jose])
        };
        let audience = "InvalidAudienceError: ";
        let scope = "JWTInvalid: another audience or scope";
        let unexpected =
            |name| format!("JWTClaimValidationFailed: unexpected \"{name}\" claim value");
        vec![
            row(
                "expired a second beyond the leeway",
                json!({"iat": now - 66, "nbf": now - 66, "exp": now - 6}),
                "the token has expired",
                "ExpiredSignatureError: ",
                "JWTExpired: \"exp\" claim timestamp check failed",
            ),
            row(
                "not yet good",
                json!({"nbf": now + 500}),
                "the token is not valid yet",
                "ImmatureSignatureError: The token is not yet valid (nbf)",
                "JWTClaimValidationFailed: \"nbf\" claim timestamp check failed",
            ),
            row(
                "another target",
                json!({"aud": "other"}),
                CLAIMS,
                audience,
                &unexpected("aud"),
            ),
            row(
                "two targets",
                json!({"aud": [GUARDED, "other"]}),
                CLAIMS,
                audience,
                scope,
            ),
            row(
                "a list of one target",
                json!({"aud": [GUARDED]}),
                CLAIMS,
                audience,
                scope,
            ),
            row(
                "another issuer",
                json!({"iss": "https://gateway.example"}),
                CLAIMS,
                "InvalidIssuerError: ",
                &unexpected("iss"),
            ),
            row(
                "the issuer with a slash",
                json!({"iss": format!("{}/", self.issuer)}),
                CLAIMS,
                "InvalidIssuerError: ",
                &unexpected("iss"),
            ),
            row(
                "another scope",
                json!({"scope": "a2a:message a2a:canvas"}),
                CLAIMS,
                "InvalidTokenError: another scope",
                scope,
            ),
            row(
                "another body",
                json!({"bh": bound("{}", json!({}))["bh"]}),
                "the token was made for another body",
                "InvalidTokenError: another body",
                "JWTInvalid: another body",
            ),
            row(
                "another method",
                json!({"method": "tasks/get"}),
                "the token was made for another method",
                "InvalidTokenError: another method",
                "JWTInvalid: another method",
            ),
        ]
    }

    fn absences(&self) -> Vec<Flaw> {
        let names = ["iss", "sub", "aud", "iat", "nbf", "exp", "jti", "scope"];
        let mut rows: Vec<_> = names
            .map(|name| {
                let python =
                    format!("MissingRequiredClaimError: Token is missing the \"{name}\" claim");
                let jose = format!("JWTClaimValidationFailed: missing required \"{name}\" claim");
                flaw(
                    &format!("no {name}"),
                    self.saying(json!({name: null})),
                    CLAIMS,
                    [&python, &jose],
                )
            })
            .into();
        for name in ["rel", "gen"] {
            rows.push(alone(
                &format!("no {name}"),
                self.saying(json!({name: null})),
                CLAIMS,
            ));
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
        rows.push(alone(
            "kid twice",
            self.key.sign_text(&twice, &good.to_string()),
            NO_PAIR,
        ));
        for (what, more) in [
            ("an empty caller", json!({"sub": ""})),
            ("an empty name", json!({"jti": ""})),
            ("an end in words", json!({"exp": "tomorrow"})),
        ] {
            rows.push(alone(what, self.saying(more), CLAIMS));
        }
        let half = self.saying(json!({"bh": null}));
        rows.push(alone(
            "half a binding",
            half,
            "the token was made for another body",
        ));
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
