//! Public documents for verifiers (`docs/reference/http-api.md`): the keys, and the properties of tokens.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::json;
use sha2::{Digest, Sha256};

use access::identity::{CANVAS_TTL_DEFAULT, CANVAS_TTL_MAX, CANVAS_TYP};
use assembly::gateway::Gateway;
use trust::{CALLER_TTL, GUARD, PAIR_SCOPE, PAIR_TYP, SERVICE_TTL, SigningAlgorithm, WAKE};

/// Caching of the documents. A key is published long before it signs, so verifiers may cache them.
const KEPT: HeaderValue = HeaderValue::from_static("public, max-age=300");

const CLAIMS: [&str; 11] = [
    "iss", "sub", "aud", "iat", "nbf", "exp", "jti", "scope", "rel", "org", "gen",
];

const WAKE_CLAIMS: [&str; 8] = ["iss", "sub", "aud", "iat", "nbf", "exp", "jti", "scope"];

const GUARD_CLAIMS: [&str; 9] = [
    "iss", "sub", "aud", "iat", "nbf", "exp", "jti", "scope", "bh",
];

/// `GET /.well-known/jwks.json`.
pub(super) async fn serve_jwks(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
) -> Response {
    cacheable_response(&headers, gateway.keys.jwks().to_string())
}

/// `GET /.well-known/a2a-gateway`.
pub(super) async fn serve_discovery(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
) -> Response {
    let config = gateway.config();
    let more = ["token_use", "method", "bh"];
    let forwarded: Vec<&str> = CLAIMS.iter().copied().chain(more).collect();
    let document = json!({
        "issuer": config.issuer(),
        "jwks_uri": format!("{}/.well-known/jwks.json", config.public_url()),
        "algorithms": [SigningAlgorithm::EdDsa.as_str(), SigningAlgorithm::Es256.as_str()],
        // Earlier releases pass over the parameter, and make the change.
        "dry_run": true,
        "tokens": {
            "pair": {
                "typ": PAIR_TYP,
                "scope": PAIR_SCOPE,
                "lifetime_seconds": config.tokens.pair_ttl.as_secs(),
                "claims": CLAIMS,
            },
            "caller": {
                "typ": PAIR_TYP,
                "scope": PAIR_SCOPE,
                "lifetime_seconds": CALLER_TTL.as_secs(),
                "claims": forwarded,
                "headers": ["authorization", "x-a2a-caller-token"],
            },
            "wake": {
                "typ": WAKE.typ,
                "scope": WAKE.scope,
                "lifetime_seconds": SERVICE_TTL.as_secs(),
                "claims": WAKE_CLAIMS,
                "headers": ["authorization", "x-a2a-wake-token"],
            },
            "guard": {
                "typ": GUARD.typ,
                "scope": GUARD.scope,
                "lifetime_seconds": SERVICE_TTL.as_secs(),
                "claims": GUARD_CLAIMS,
                "headers": ["authorization", "x-a2a-guard-token"],
            },
            "canvas": {
                "typ": CANVAS_TYP,
                "lifetime_seconds": CANVAS_TTL_DEFAULT.as_secs(),
                "lifetime_seconds_max": CANVAS_TTL_MAX.as_secs(),
            },
        },
    });
    cacheable_response(&headers, document.to_string())
}

/// Answers with a cacheable document, or with 304 if it is unchanged (RFC 9110, 13.1.2).
pub(super) fn cacheable_response(headers: &HeaderMap, body: String) -> Response {
    tagged_response(headers, body, "application/json")
}

/// As [`cacheable_response`], with another media type. The caller may set other fields for caches.
pub(super) fn tagged_response(headers: &HeaderMap, body: String, media: &'static str) -> Response {
    let tag = URL_SAFE_NO_PAD.encode(&Sha256::digest(&body)[..12]);
    let tag = format!("\"{tag}\"");
    let known = headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|value| value.trim().trim_start_matches("W/"))
        .any(|value| value == tag || value == "*");
    let mut response = if known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(CONTENT_TYPE, media)], body).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, KEPT);
    // The data plane adds the CORS fields for the page's origin.
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    response
}
