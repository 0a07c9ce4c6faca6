//! The binding of a sign-in to the browser that began it: a random cookie, from which `state`, `nonce` and the
//! `code_verifier` follow by a key that only this process has. So nothing is kept for a sign-in that is not completed,
//! a browser cannot know these values, and a value of another browser's sign-in fits no cookie of this one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::admin::session::random_secret;

/// Longest time from the begin of a sign-in to its callback.
pub(super) const SIGN_IN_MAX: Duration = Duration::from_secs(600);

/// The value of the cookie: the time in seconds since 1970, and 256 random bits.
pub(super) struct Cookie(String);

/// The values that follow from a cookie.
pub(super) struct DerivedValues {
    /// Comes back with the answer of the provider.
    pub(super) state: String,
    /// Comes back in the ID token.
    pub(super) nonce: String,
    /// Proves at the exchange that the same sign-in began.
    pub(super) verifier: String,
}

/// The key of this process.
pub(super) struct Binding(hmac::Key);

impl Cookie {
    pub(super) fn new() -> Self {
        Self(format!("{}.{}", unix_seconds(), random_secret()))
    }

    /// Reads a cookie, if it is not older than [`SIGN_IN_MAX`]. Whether this gateway made it, only its `state` tells.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (begun, _) = text.split_once('.')?;
        let age = unix_seconds().checked_sub(begun.parse().ok()?)?;
        (age <= SIGN_IN_MAX.as_secs()).then(|| Self(text.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Binding {
    /// Makes a key.
    pub(super) fn new() -> Self {
        Self(hmac::Key::new(
            hmac::HMAC_SHA256,
            random_secret().as_bytes(),
        ))
    }

    /// Returns the values of a cookie.
    pub(super) fn derive(&self, cookie: &Cookie) -> DerivedValues {
        let derived = |name: &str| {
            let tag = hmac::sign(&self.0, format!("{name}.{}", cookie.0).as_bytes());
            URL_SAFE_NO_PAD.encode(tag)
        };
        DerivedValues {
            state: derived("state"),
            nonce: derived("nonce"),
            verifier: derived("verifier"),
        }
    }
}

impl DerivedValues {
    /// Returns `code_challenge` by the method S256.
    pub(super) fn code_challenge(&self) -> String {
        URL_SAFE_NO_PAD.encode(Sha256::digest(&self.verifier))
    }

    /// True if `state` is that of this sign-in.
    pub(super) fn matches_state(&self, state: &str) -> bool {
        self.state.as_bytes().ct_eq(state.as_bytes()).into()
    }
}

fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_fits_the_cookie_of_its_own_sign_in_only() {
        let binding = Binding::new();
        let (one, other) = (Cookie::new(), Cookie::new());
        let bound = binding.derive(&one);
        assert!(bound.matches_state(&binding.derive(&one).state));
        for state in [
            &binding.derive(&other).state,
            &Binding::new().derive(&one).state,
            &bound.nonce,
            "",
        ] {
            assert!(!bound.matches_state(state), "{state}");
        }
        assert_eq!(
            (bound.verifier.len(), bound.code_challenge().len()),
            (43, 43)
        );
    }

    #[test]
    fn a_cookie_ends() {
        let made = |begun: u64| format!("{begun}.{}", random_secret());
        assert!(Cookie::parse(&made(unix_seconds())).is_some());
        assert!(Cookie::parse(&made(unix_seconds() - 599)).is_some());
        for text in [
            &*made(unix_seconds() - 602),
            &made(unix_seconds() + 60),
            "",
            "x",
            "x.y",
            "-1.y",
        ] {
            assert!(Cookie::parse(text).is_none(), "{text}");
        }
    }
}
