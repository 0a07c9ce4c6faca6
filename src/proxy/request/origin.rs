//! Browsers: accepted hosts (`Host`), allowed origins (`Origin`), and the CORS fields (Fetch, 3.2).
//!
//! Runs before credentials are checked, so that a hostile page learns nothing (`docs/reference/a2a.md`, "Order of checks").

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderValue, Method, header};
use pingora::http::{RequestHeader, ResponseHeader};

use super::validate::authority;
use crate::config::Config;
use crate::rejection::{Reason, Rejection};

/// Request fields that a page may send.
const ALLOW_HEADERS: &str = "authorization, content-type, accept, a2a-version, a2a-extensions, \
    x-a2a-extensions, x-workspace-id, x-timeout, x-request-id, idempotency-key, last-event-id, \
    prefer, traceparent, tracestate";

/// Response fields that a page may read.
const EXPOSE_HEADERS: &str = "x-request-id, retry-after, etag, www-authenticate, a2a-version, \
    a2a-extensions, x-a2a-extensions, x-a2a-completed, x-a2a-refused, x-a2a-stream, idempotent-replay, ratelimit-limit, \
    ratelimit-remaining, ratelimit-reset, ratelimit-policy, ratelimit, link";

/// The value of `X-Content-Type-Options`.
pub(in crate::proxy) const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// The accepted hosts and allowed origins. The default accepts none.
#[derive(Default)]
pub(in crate::proxy) struct Origins {
    hosts: HashSet<String>,
    own: HashSet<String>,
    allowed: HashSet<String>,
    any: bool,
}

impl Origins {
    /// Reads `server.public_url`, `server.hosts` and `cors.origins`.
    pub(in crate::proxy) fn new(config: &Config) -> Self {
        let port = config.server.listen.port();
        let (scheme, default_port) = if config.server.tls.cert.is_some() {
            ("https", 443)
        } else {
            ("http", 80)
        };
        let mut hosts: HashSet<String> = HashSet::new();
        for name in ["localhost", "127.0.0.1", "[::1]"] {
            hosts.insert(format!("{name}:{port}"));
            hosts.insert(name.to_owned());
        }
        hosts.insert(config.server.listen.to_string());
        if let Some(url) = &config.server.public_url
            && let Some(host) = url.host_str()
        {
            hosts.insert(
                url.port()
                    .map_or_else(|| host.to_owned(), |p| format!("{host}:{p}")),
            );
            if let Some(port) = url.port_or_known_default() {
                hosts.insert(format!("{host}:{port}"));
            }
        }
        // Only with the listener's own port: other servers on this machine are foreign origins.
        let mut own: HashSet<String> = ["localhost", "127.0.0.1", "[::1]"]
            .iter()
            .map(|name| format!("{scheme}://{name}:{port}"))
            .collect();
        own.insert(format!("{scheme}://{}", config.server.listen));
        if port == default_port {
            let bare = own
                .iter()
                .filter_map(|o| o.strip_suffix(&format!(":{port}")));
            let bare: Vec<String> = bare.map(str::to_owned).collect();
            own.extend(bare);
        }
        let public = config.server.public_url.as_ref();
        own.extend(public.map(|url| url.origin().ascii_serialization()));
        let listed = config.server.hosts.iter().map(|h| h.to_ascii_lowercase());
        for host in listed {
            let scheme = public.map_or(scheme, url::Url::scheme);
            own.insert(format!("{scheme}://{host}"));
            hosts.insert(host);
        }
        let any = config.cors.origins.iter().any(|o| o == "*");
        Self {
            hosts,
            own,
            allowed: config.cors.origins.iter().cloned().collect(),
            any,
        }
    }

    /// Rejects requests for other hosts, and pages of other origins.
    ///
    /// # Errors
    /// `misdirected` and `origin_forbidden`.
    pub(in crate::proxy) fn check(&self, head: &RequestHeader) -> Result<(), Rejection> {
        let host = authority(head).unwrap_or_default();
        if !self.is_own_host(host) {
            return Err(Rejection::new(
                Reason::Misdirected,
                "this gateway does not answer to that Host; add it to server.hosts",
            ));
        }
        match origin_field(&head.headers) {
            Some(origin) if self.is_allowed(origin) => Ok(()),
            Some(_) => Err(Rejection::new(
                Reason::OriginForbidden,
                "pages of this origin may not call; add it to cors.origins",
            )),
            None if is_cross_site(&head.headers) && !is_canvas_visit(head) => Err(Rejection::new(
                Reason::OriginForbidden,
                "a cross-site request without an Origin is not served",
            )),
            None => Ok(()),
        }
    }

    fn is_own_host(&self, host: &str) -> bool {
        self.hosts.contains(host) || self.hosts.contains(&host.to_ascii_lowercase())
    }

    fn is_allowed(&self, origin: &str) -> bool {
        self.any && !origin.is_empty() || self.allowed.contains(origin) || self.own.contains(origin)
    }

    /// Adds the browser fields to an answer, including errors and the heads of streams: those of CORS, and
    /// `X-Content-Type-Options: nosniff`.
    pub(in crate::proxy) fn put_browser_fields(
        &self,
        request: &HeaderMap,
        response: &mut ResponseHeader,
    ) {
        // Cannot fail, here and below: the map's limit is far above a handful of fields.
        let _ = response.insert_header("x-content-type-options", NOSNIFF);
        let Some(origin) = origin_field(request).filter(|o| self.is_allowed(o)) else {
            return;
        };
        let Ok(value) = HeaderValue::from_str(origin) else {
            return;
        };
        let allow = if self.any {
            HeaderValue::from_static("*")
        } else {
            value
        };
        let fields = [
            (header::ACCESS_CONTROL_ALLOW_ORIGIN, allow),
            (
                header::ACCESS_CONTROL_EXPOSE_HEADERS,
                HeaderValue::from_static(EXPOSE_HEADERS),
            ),
            (header::VARY, HeaderValue::from_static("Origin")),
        ];
        for (name, value) in fields {
            let _ = response.append_header(name, value);
        }
    }

    /// Returns the answer to a preflight, if the request is one.
    pub(in crate::proxy) fn answer_preflight(
        &self,
        head: &RequestHeader,
    ) -> Option<ResponseHeader> {
        let asks = head
            .headers
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if head.method != Method::OPTIONS || !asks {
            return None;
        }
        let mut response = ResponseHeader::build(204, Some(6)).ok()?;
        let fields = [
            (
                header::ACCESS_CONTROL_ALLOW_METHODS,
                "GET, POST, PATCH, DELETE, OPTIONS",
            ),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOW_HEADERS),
            (header::ACCESS_CONTROL_MAX_AGE, "7200"),
        ];
        for (name, value) in fields {
            response.append_header(name, value).ok()?;
        }
        Some(response)
    }
}

fn origin_field(headers: &HeaderMap) -> Option<&str> {
    // An origin that is not text, or one of several, never matches: no list contains an empty string.
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let first = origins.next()?.to_str().unwrap_or_default();
    Some(if origins.next().is_some() { "" } else { first })
}

fn is_cross_site(headers: &HeaderMap) -> bool {
    headers
        .get("sec-fetch-site")
        .is_some_and(|v| v.as_bytes() == b"cross-site")
}

/// True if a user follows a link to the canvas in a top-level window: not in a frame, and without access to the answer
/// for the linking page.
fn is_canvas_visit(head: &RequestHeader) -> bool {
    let says = |name: &str, what: &[u8]| {
        let value = head.headers.get(name);
        value.is_some_and(|value| value.as_bytes() == what)
    };
    head.method == Method::GET
        && matches!(head.uri.path(), "/canvas" | "/canvas/")
        && says("sec-fetch-mode", b"navigate")
        && says("sec-fetch-dest", b"document")
}

/// True if a browser probably made the request. Such a request must declare the type of its body.
pub(in crate::proxy) fn is_from_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN)
        || headers
            .keys()
            .any(|name| name.as_str().starts_with("sec-fetch-"))
}

/// Returns the client's address: the peer's, or the one forwarded by a trusted proxy (`server.trusted_proxies`).
/// IPv4-mapped addresses are converted: a listener on `[::]` sees `::ffff:192.0.2.1`.
pub(in crate::proxy) fn client_address(
    peer: IpAddr,
    headers: &HeaderMap,
    trusted: &[ipnet::IpNet],
) -> IpAddr {
    let peer = peer.to_canonical();
    let is_trusted = |ip: &IpAddr| trusted.iter().any(|net| net.contains(ip));
    if !is_trusted(&peer) {
        return peer;
    }
    // Bytes: a non-text line must not hide the address that a proxy appended to it.
    let lines = headers.get_all("x-forwarded-for").iter();
    let hops: Vec<&[u8]> = lines
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .collect();
    // From the right: the first hop that is not a trusted proxy is the client. Hops to the left of an unreadable one
    // were written by the caller.
    let mut client = peer;
    for hop in hops.iter().rev() {
        let Some(ip) = hop_address(hop) else { break };
        client = ip;
        if !is_trusted(&ip) {
            break;
        }
    }
    client
}

/// Parses `203.0.113.9` or `2001:db8::1`; some proxies add the port.
fn hop_address(hop: &[u8]) -> Option<IpAddr> {
    let hop = std::str::from_utf8(hop).ok()?.trim();
    let with_port = || hop.parse().map(|address: SocketAddr| address.ip());
    let address: IpAddr = hop.parse().or_else(|_| with_port()).ok()?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_the_first_from_the_right_that_is_no_proxy_of_ours() {
        let trusted = ["10.0.0.0/8", "fd00::/8"].map(|net| net.parse::<ipnet::IpNet>().unwrap());
        let client = |peer: &str, lines: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                let line = HeaderValue::from_bytes(line).unwrap();
                headers.append("x-forwarded-for", line);
            }
            client_address(peer.parse().unwrap(), &headers, &trusted).to_string()
        };
        let lb = "10.0.0.1";
        let cases: [(&str, &[&[u8]], &str); 13] = [
            // An untrusted peer can write any value.
            ("192.0.2.7", &[b"203.0.113.9"], "192.0.2.7"),
            (lb, &[b"203.0.113.9"], "203.0.113.9"),
            (lb, &[b"6.6.6.6, 203.0.113.9, 10.2.3.4"], "203.0.113.9"),
            (lb, &[b"6.6.6.6", b"203.0.113.9:1234"], "203.0.113.9"),
            (lb, &[b"6.6.6.6", b"\xff\xfe, 203.0.113.9"], "203.0.113.9"),
            (lb, &[b"6.6.6.6, unknown"], lb),
            (lb, &[b"6.6.6.6", b"\xff"], lb),
            (lb, &[b"6.6.6.6,"], lb),
            (lb, &[b"10.9.9.9"], "10.9.9.9"),
            (lb, &[], lb),
            // Addresses as a listener on `[::]` sees them.
            ("::ffff:10.0.0.1", &[b"203.0.113.9"], "203.0.113.9"),
            (
                lb,
                &[b"6.6.6.6, 203.0.113.9, ::ffff:10.0.0.2"],
                "203.0.113.9",
            ),
            ("fd00::1", &[b"[2001:db8::9]:80"], "2001:db8::9"),
        ];
        for (peer, lines, expected) in cases {
            assert_eq!(client(peer, lines), expected, "{peer} {lines:?}");
        }
    }
}
