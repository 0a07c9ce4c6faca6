//! Signed tokens and sealed secrets: the gateway's own keys ([`Keys`], [`Seal`]), the tokens and
//! cards signed with them, and the published keys of other issuers ([`Published`]).

mod card;
mod certificate;
mod file;
mod guard;
mod jwks;
mod keys;
mod pair;
mod provider;
mod published;
mod seal;
mod token;
mod wake;

pub use card::{CardSignError, sign_card};
pub use certificate::{CertificateSummary, Certificates, PEM_BYTES_MAX, PemError, private_key};
pub use guard::{GUARD_SCOPE, GUARD_TTL, GUARD_TYP, GuardClaims};
pub use jwks::{KEYS_MAX, KeySet, KeySetError, PublicKey};
pub use keys::{
    KeyError, KeyInfo, Keys, Known, LookError, PUBLISHED_FIRST, RotateError, Rotated, SignError,
    Signer, SigningAlgorithm, State, Verified, list, next_age, published as published_keys, rotate,
};
pub use pair::{CALLER_TTL, CALLER_USE, PAIR_SCOPE, PAIR_TYP, Pair, PairClaims, body_hash};
pub use provider::{CodeExchange, ExchangeFailure, Provider};
pub use published::{Crowded, FETCH_PAUSE, FetchFailure, Patience, Published, issuer_of};
pub use seal::{Seal, SealError, Sealed};
pub use token::{
    LEEWAY_SECONDS, TOKEN_BYTES_MAX, TokenError, TokenHead, claimed_audience, claimed_issuer,
    own_type, unproven,
};
pub use wake::{WAKE_SCOPE, WAKE_TTL, WAKE_TYP, WakeClaims};
