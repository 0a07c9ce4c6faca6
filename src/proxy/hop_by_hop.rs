//! The header fields that end at this hop.

use http::{HeaderMap, HeaderName, header};

/// True for hop-by-hop fields (RFC 9110, 7.6.1) and fields that proxies exchange among themselves.
pub(in crate::proxy) fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// True for a field that `Connection` lists: it ends at this hop (RFC 9110, 7.6.1).
pub(in crate::proxy) fn named_by_connection(name: &HeaderName, headers: &HeaderMap) -> bool {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .any(|token| token.trim().eq_ignore_ascii_case(name.as_str()))
}
