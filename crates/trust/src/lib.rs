//! Signed tokens and sealed secrets: the gateway's own keys ([`Keys`], [`Seal`]), the tokens and
//! cards signed with them, and the published keys of other issuers ([`RemoteKeySet`]).

mod card;
mod certificate;
mod file;
mod jwks;
mod keys;
mod pair;
mod provider;
mod remote_keys;
mod seal;
mod service;
mod token;

pub use card::{CardSignError, sign_card};
pub use certificate::{
    CertificateSummary, Certificates, PEM_BYTES_MAX, PemError, parse_private_key,
};
pub use jwks::{KEYS_MAX, KeySet, KeySetError, PublicKey};
pub use keys::{
    KeyError, KeyInfo, KeyState, KeyTimeSource, Keys, PUBLISHED_FIRST, ReloadError, RotateError,
    RotationOutcome, SignError, Signer, SigningAlgorithm, VerifiedClaims, list, next_age,
    read_published_keys, rotate,
};
pub use pair::{
    CALLER_TTL, CALLER_USE, CANVAS_SCOPE, CANVAS_TYP, CHAIN_TYP, HeldChain, PAIR_SCOPE, PAIR_TYP,
    Pair, PairClaims, body_hash,
};
pub use provider::{CodeExchange, ExchangeFailure, Provider};
pub use remote_keys::{
    FETCH_PAUSE, FetchFailure, FetchTiming, RemoteKeySet, TooManyWaiters, fetch_issuer,
};
pub use seal::{Seal, SealError, SealedSecret};
pub use service::{GUARD, SERVICE_TTL, ServiceClaims, ServiceKind, WAKE};
pub use token::{
    LEEWAY_SECONDS, TOKEN_BYTES_MAX, TokenError, TokenHead, claimed_audience, claimed_issuer,
    decode_unverified, own_type, whole_seconds,
};
