//! The address of a client behind proxies.

use http::HeaderMap;
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};

/// Returns the client's address: the peer's, or the one forwarded by a trusted proxy (`trusted`).
/// IPv4-mapped addresses are converted: a listener on `[::]` sees `::ffff:192.0.2.1`.
pub fn forwarded_address(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
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
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_client_is_the_first_from_the_right_that_is_no_proxy_of_ours() {
        let trusted = ["10.0.0.0/8", "fd00::/8"].map(|net| net.parse::<IpNet>().unwrap());
        let client = |peer: &str, lines: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                let line = HeaderValue::from_bytes(line).unwrap();
                headers.append("x-forwarded-for", line);
            }
            forwarded_address(peer.parse().unwrap(), &headers, &trusted).to_string()
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
