//! Caller tokens, which prove the caller of a forwarded request to its target (`docs/reference/credentials.md`, "Caller
//! tokens"). One of a pair is signed once and used again, for half its lifetime; one of a request is used once.
//!
//! Invariants: a token that is used again was signed by the key in force, for the issuer in force, for exactly this
//! caller, target, rule, org, access generation and chain token.

use std::sync::Arc;

use quick_cache::Equivalent;
use quick_cache::sync::Cache;
use secrecy::{ExposeSecret, SecretString};

use kernel::config::{Config, Live};
use kernel::time::Timestamp;
use trust::{CALLER_TTL, CALLER_USE, Keys, PAIR_TYP, Pair, PairClaims, SignError, Signer};

/// The scheme, which stands before the token in `Authorization`.
const SCHEME: &str = "Bearer ";

/// Most tokens that are cached: some 30 MB, or 100 MB with the longest names of canvas users. With more pairs at once,
/// tokens are signed more often.
const TOKENS_MAX: usize = 32_768;

/// A caller token as a field has it.
pub struct CallerToken(SecretString);

impl CallerToken {
    /// Returns the value of `Authorization`.
    pub fn authorization(&self) -> &str {
        self.0.expose_secret()
    }

    /// Returns the token without its scheme.
    pub fn bare_token(&self) -> &str {
        &self.authorization()[SCHEME.len()..]
    }
}

impl std::fmt::Debug for CallerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CallerToken(..)")
    }
}

/// A [`Pair`] as a key: everything that a token says of its caller and target, in the same order, so that both have one
/// hash.
#[derive(PartialEq, Eq, Hash)]
struct PairKey {
    caller: Box<str>,
    target: Box<str>,
    rule: &'static str,
    org: Option<Box<str>>,
    generation: i64,
    chain_hash: Option<Box<str>>,
}

impl PairKey {
    fn from_pair(pair: &Pair<'_>) -> Self {
        Self {
            caller: pair.caller.into(),
            target: pair.target.into(),
            rule: pair.rule,
            org: pair.org.map(Box::from),
            generation: pair.generation,
            chain_hash: pair.chain_hash.map(Box::from),
        }
    }

    fn as_pair(&self) -> Pair<'_> {
        Pair {
            caller: &self.caller,
            target: &self.target,
            rule: self.rule,
            org: self.org.as_deref(),
            generation: self.generation,
            chain_hash: self.chain_hash.as_deref(),
        }
    }
}

impl Equivalent<PairKey> for Pair<'_> {
    fn equivalent(&self, key: &PairKey) -> bool {
        *self == key.as_pair()
    }
}

/// A caller token in the cache, with the time in which it may be used again.
#[derive(Clone)]
struct CachedToken {
    from: Timestamp,
    until: Timestamp,
    token: Arc<CallerToken>,
}

impl CachedToken {
    /// A clock that was set back makes a token immature at its target, so it is not used again then.
    fn is_usable(&self, now: Timestamp) -> bool {
        self.from <= now && now < self.until
    }
}

/// The signing key, the issuer, and the tokens of both. Another configuration or another reading of the keys makes
/// another one, without tokens.
pub(super) struct Epoch {
    config: Arc<Config>,
    signer: Signer,
    issuer: String,
    tokens: Cache<PairKey, CachedToken>,
}

impl Epoch {
    pub(super) fn new(config: &Live, keys: &Keys) -> Self {
        let config = config.snapshot();
        Self {
            signer: keys.signer(),
            issuer: config.issuer(),
            tokens: Cache::new(TOKENS_MAX),
            config,
        }
    }

    pub(super) fn is_current(&self, config: &Live, keys: &Keys) -> bool {
        Arc::ptr_eq(&self.config, &config.get()) && keys.is_current(&self.signer)
    }

    /// Returns a token of the pair at the time `now`: one that was signed within half its lifetime, or a new one.
    pub(super) fn token_for_pair(
        &self,
        pair: &Pair<'_>,
        now: Timestamp,
    ) -> Result<Arc<CallerToken>, SignError> {
        match self.tokens.get(pair) {
            Some(cached) if cached.is_usable(now) => Ok(cached.token),
            _ => self.sign_and_cache(pair, now),
        }
    }

    /// Drops tokens that are not used again, so that memory follows the pairs that call.
    pub(super) fn drop_stale(&self, now: Timestamp) {
        self.tokens.retain(|_, cached| cached.is_usable(now));
    }

    #[cold]
    fn sign_and_cache(
        &self,
        pair: &Pair<'_>,
        now: Timestamp,
    ) -> Result<Arc<CallerToken>, SignError> {
        let claims = self.pair_claims(*pair, now);
        let token = self.sign(&claims)?;
        let from = Timestamp(claims.iat.saturating_mul(1000));
        let cached = CachedToken {
            from,
            until: from.after(CALLER_TTL / 2),
            token: Arc::clone(&token),
        };
        self.tokens.insert(PairKey::from_pair(pair), cached);
        Ok(token)
    }

    pub(super) fn pair_claims(&self, pair: Pair<'_>, now: Timestamp) -> PairClaims {
        PairClaims {
            token_use: Some(CALLER_USE.to_owned()),
            ..PairClaims::new(self.issuer.clone(), pair, now, CALLER_TTL)
        }
    }

    pub(super) fn sign(&self, claims: &PairClaims) -> Result<Arc<CallerToken>, SignError> {
        let field = self.signer.sign_after(SCHEME, PAIR_TYP, claims)?;
        Ok(Arc::new(CallerToken(field.into())))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::identity::signed_tokens::SignedTokens;
    use kernel::config::load::DEFAULT;
    use trust::{Seal, SigningAlgorithm, body_hash, rotate};

    const ISSUER: &str = "https://gateway.example.com";

    const PAIR: Pair<'static> = Pair {
        caller: "one",
        target: "two",
        rule: "sibling",
        org: Some("acme"),
        generation: 7,
        chain_hash: None,
    };

    struct House {
        dir: tempfile::TempDir,
        live: Live,
        keys: Arc<Keys>,
        callers: SignedTokens,
    }

    fn house() -> House {
        let dir = tempfile::tempdir().unwrap();
        let keys = Arc::new(Keys::load_or_create(dir.path()).unwrap());
        let mut config: Config = toml::from_str(DEFAULT).unwrap();
        config.tokens.issuer = Some(ISSUER.to_owned());
        let live = Live::from(config);
        let seal = Arc::new(Seal::load_or_create(dir.path(), None).unwrap());
        let callers = SignedTokens::new(live.clone(), Arc::clone(&keys), seal);
        House {
            dir,
            live,
            keys,
            callers,
        }
    }

    impl House {
        fn token(&self, pair: Pair<'_>, now: Timestamp) -> Arc<CallerToken> {
            self.callers.caller_token_at(pair, now).unwrap()
        }

        fn claims(&self, token: &CallerToken, issuer: &str, audience: &str) -> PairClaims {
            let verified = self
                .keys
                .verify(token.bare_token(), PAIR_TYP, issuer, audience);
            verified.map_err(|error| error.to_string()).unwrap().claims
        }
    }

    /// The begin of the present second.
    fn second() -> Timestamp {
        Timestamp(Timestamp::now().0 / 1000 * 1000)
    }

    #[test]
    fn a_token_is_used_again_until_half_its_time_has_passed() {
        let house = house();
        let begin = second();
        let first = house.token(PAIR, begin.after(Duration::from_millis(700)));
        let claims = house.claims(&first, ISSUER, "two");
        assert_eq!(
            (claims.iat, claims.exp),
            (begin.0 / 1000, begin.0 / 1000 + 60)
        );
        assert_eq!(claims.token_use.as_deref(), Some(CALLER_USE));
        assert!(!claims.is_bound() && claims.is_forwarded());
        for ms in [0, 700, 15_000, 29_999] {
            let again = house.token(PAIR, begin.after(Duration::from_millis(ms)));
            assert!(Arc::ptr_eq(&again, &first), "after {ms} ms");
        }
        let next = house.token(PAIR, begin.after(CALLER_TTL / 2));
        assert!(!Arc::ptr_eq(&next, &first));
        assert_ne!(next.bare_token(), first.bare_token());
        // A clock that was set back: the target's would find the token immature.
        let earlier = house.token(PAIR, begin.before(Duration::from_secs(40)));
        assert!(!Arc::ptr_eq(&earlier, &next));
    }

    #[test]
    fn pairs_that_differ_in_anything_share_no_token() {
        let house = house();
        let now = Timestamp::now();
        let others = [
            PAIR,
            Pair {
                caller: "onet",
                ..PAIR
            },
            Pair {
                target: "wo",
                ..PAIR
            },
            Pair {
                caller: "onetwo",
                target: "",
                ..PAIR
            },
            Pair {
                rule: "grant",
                ..PAIR
            },
            Pair { org: None, ..PAIR },
            Pair {
                org: Some(""),
                ..PAIR
            },
            Pair {
                org: Some("acme2"),
                ..PAIR
            },
            Pair {
                generation: 8,
                ..PAIR
            },
            Pair {
                chain_hash: Some("hash-of-a-chain-token"),
                ..PAIR
            },
        ];
        let tokens = others.map(|pair| house.token(pair, now));
        for (pair, token) in others.iter().zip(&tokens) {
            let claims = house.claims(token, ISSUER, pair.target);
            assert_eq!((&*claims.sub, &*claims.rel), (pair.caller, pair.rule));
            assert_eq!(
                (claims.org.as_deref(), claims.generation),
                (pair.org, pair.generation)
            );
            assert_eq!(claims.tth.as_deref(), pair.chain_hash);
            assert!(Arc::ptr_eq(token, &house.token(*pair, now)));
        }
    }

    #[test]
    fn another_key_or_issuer_makes_another_token() {
        let house = house();
        let now = Timestamp::now();
        let first = house.token(PAIR, now);
        house
            .live
            .change(|config| config.tokens.issuer = Some("https://other.test".to_owned()));
        let renamed = house.token(PAIR, now);
        assert_eq!(
            house.claims(&renamed, "https://other.test", "two").iss,
            "https://other.test"
        );
        assert!(Arc::ptr_eq(&renamed, &house.token(PAIR, now)));
        let kid =
            |token: &CallerToken| jsonwebtoken::decode_header(token.bare_token()).unwrap().kid;
        assert_eq!(kid(&renamed), kid(&first));
        rotate(house.dir.path(), SigningAlgorithm::EdDsa).unwrap();
        assert!(
            Arc::ptr_eq(&renamed, &house.token(PAIR, now)),
            "the keys were not read yet"
        );
        assert!(house.keys.refresh().unwrap());
        let rotated = house.token(PAIR, now);
        assert_eq!(kid(&rotated), Some(house.keys.kid()));
        assert_ne!(kid(&rotated), kid(&renamed));
    }

    #[test]
    fn a_token_of_a_request_is_used_for_no_other() {
        let house = house();
        let make = || {
            house
                .callers
                .caller_token_for_request(PAIR, Some("message/send"), body_hash(b"{}"))
                .unwrap()
        };
        let [one, other] = [make(), make()].map(|token| house.claims(&token, ISSUER, "two"));
        assert!(one.is_bound() && one.bh == other.bh && one.method == other.method);
        assert_ne!(one.jti, other.jti);
        let plain = house.claims(&house.token(PAIR, Timestamp::now()), ISSUER, "two");
        assert!(!plain.is_bound(), "it is not kept for the pair");
    }

    #[test]
    fn few_are_kept_and_none_for_longer_than_it_is_used() {
        let house = house();
        let now = second();
        let count = || house.callers.epoch.load().tokens.len();
        for generation in 0..100 {
            house.token(Pair { generation, ..PAIR }, now);
        }
        assert_eq!(count(), 100);
        // The same pair takes its own place again.
        house.token(PAIR, now.after(CALLER_TTL / 2));
        assert_eq!(count(), 100);
        house.callers.drop_stale(now.after(CALLER_TTL / 2));
        assert_eq!(count(), 1);
        house.callers.drop_stale(now.after(CALLER_TTL));
        assert_eq!(count(), 0);
        assert_eq!(
            house.callers.epoch.load().tokens.capacity(),
            TOKENS_MAX as u64
        );
    }

    #[test]
    fn debug_shows_nothing_of_a_token() {
        let token = house().token(PAIR, Timestamp::now());
        assert!(token.authorization().starts_with("Bearer eyJ"));
        assert_eq!(format!("{token:?}"), "CallerToken(..)");
    }
}
