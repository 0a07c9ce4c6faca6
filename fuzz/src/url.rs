//! `directory::Endpoint::parse`: agents' URLs and the address policy.
//!
//! The first byte of an input chooses the policy (`s`: strict) and what follows: `d` and `s` a URL;
//! `n` and `N` (strict) four bytes of an address, one for each of two notations, and the rest of a URL.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use a2a_gateway::config::{AddressProfile, Config, load};
use a2a_gateway::directory::{Endpoint, Policy};

static POLICIES: LazyLock<[Policy; 2]> = LazyLock::new(|| {
    let mut config: Config = toml::from_str(load::DEFAULT).expect("the defaults");
    let open = Policy::new(&config);
    config.address.profile = AddressProfile::Strict;
    [open, Policy::new(&config)]
});

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((mode, rest)) = input.split_first() else {
        return;
    };
    let strict = matches!(mode, b's' | b'N');
    match (mode, rest) {
        (b'n' | b'N', [a, b, c, d, v4, v6, tail @ ..]) => {
            let tail = String::from_utf8_lossy(tail);
            spelled(Ipv4Addr::new(*a, *b, *c, *d), [*v4, *v6], &tail, strict);
        }
        _ => {
            if let Ok(text) = std::str::from_utf8(rest) {
                let _ = judged(text, strict);
            }
        }
    }
}

/// Reads `text`, and checks all that must hold of what passes.
fn judged(text: &str, strict: bool) -> Option<Endpoint> {
    let policy = &POLICIES[usize::from(strict)];
    let endpoint = Endpoint::parse(text, policy).ok()?;
    let url = endpoint.url();
    assert!(
        url.len() <= 2048 && url.bytes().all(|b| b.is_ascii_graphic()),
        "{url}"
    );
    let again = Endpoint::parse(&url, policy).expect("what passed is read again");
    assert_eq!(again, endpoint, "a second reading of {url}");
    assert!(endpoint.path_and_query.starts_with('/'));
    assert!(!endpoint.path_and_query.contains('#'));
    assert_ne!(endpoint.port, 0);

    // What stands in `Host` is what is dialled, by a reading of its own.
    let (name, port) = match endpoint.host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (&*endpoint.host, None),
    };
    let own = if endpoint.tls { 443 } else { 80 };
    assert_eq!(port.map_or(Ok(own), str::parse), Ok(endpoint.port), "{url}");
    let literal = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let bare = literal.unwrap_or(name.strip_suffix('.').unwrap_or(name));
    let same = match literal {
        // The two spell an address with one of IPv4 inside differently.
        Some(six) => six.parse::<Ipv6Addr>() == endpoint.sni.parse(),
        None => bare == endpoint.sni,
    };
    assert!(same, "{url} is {}", endpoint.sni);
    let odd = |b: u8| b.is_ascii_uppercase() || b"@/\\?#%: []<>^|".contains(&b);
    assert!(literal.is_some() || !name.bytes().any(odd), "{url}");

    match endpoint.sni.parse::<IpAddr>() {
        Ok(address) => {
            assert_eq!(literal.is_some(), address.is_ipv6(), "{url}");
            assert!(may_be_dialled(address, strict), "{url}");
        }
        // A name that a resolver would take for an address (inet_aton) is none.
        Err(_) => {
            let last = bare.rsplit('.').next().unwrap_or_default();
            let digits = last.strip_prefix("0x").unwrap_or(last);
            let hex = last.starts_with("0x") && digits.bytes().all(|b| b.is_ascii_hexdigit());
            let decimal = !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit());
            assert!(!hex && !decimal, "{url}");
        }
    }
    Some(endpoint)
}

/// An address in two of its notations: refused in both or the same in both.
fn spelled(address: Ipv4Addr, notations: [u8; 2], tail: &str, strict: bool) {
    let may = may_be_dialled(address.into(), strict);
    let [a, b, c, d] = address.octets();
    let whole = u32::from(address);
    let (high, low) = (whole >> 16, whole & 0xffff);
    let v4 = match notations[0] % 12 {
        0 => format!("{whole}"),
        1 => format!("{whole:#x}"),
        2 => format!("0{whole:o}"),
        3 => format!("{a:#x}.{b:#X}.{c:#x}.{d:#x}").replace("0X", "0x"),
        4 => format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        5 => format!("{a}.{}", whole & 0x00ff_ffff),
        6 => format!("{a}.{b}.{low}"),
        7 => format!("{address}."),
        8 => address.to_string().replace('.', "。"),
        9 => address.to_string().replace('.', "%2E"),
        10 => address.to_string().replace('1', "１"),
        _ => address.to_string(),
    };
    let v6 = match notations[1] % 8 {
        0 => format!("[::ffff:{address}]"),
        1 => format!("[::ffff:{high:x}:{low:x}]"),
        2 => format!("[0:0:0:0:0:FFFF:{high:04x}:{low:04X}]"),
        3 => format!("[64:ff9b::{address}]"),
        4 => format!("[2002:{high:x}:{low:x}::1]"),
        5 => format!("[2001:0:{high:x}:{low:x}::f7f7:f7f7]"),
        6 => format!("[2001:0:808:808::{:x}:{:x}]", high ^ 0xffff, low ^ 0xffff),
        _ => format!("[64:ff9b::{high:x}:{low:x}]"),
    };
    let plain = |host: &str| judged(&format!("http://{host}/"), strict);
    let four = plain(&v4);
    assert_eq!(four.is_some(), may, "{v4}");
    if let Some(four) = four {
        assert_eq!(four.sni, address.to_string(), "{v4}");
    }
    assert_eq!(plain(&v6).is_some(), may, "{v6}");
    // Whatever stands behind it, it is no way around; unless it makes another host of it.
    for host in [v4, v6] {
        if let Some(endpoint) = judged(&format!("http://{host}{tail}"), strict) {
            let address = endpoint.sni.parse::<IpAddr>();
            assert!(
                address.is_err() || may || !tail.starts_with([':', '/', '?']),
                "{host}{tail}"
            );
        }
    }
}

/// The contract's ranges (§7.4), by another reading than the policy's.
fn may_be_dialled(address: IpAddr, strict: bool) -> bool {
    match address {
        IpAddr::V4(address) => may_v4(address, strict),
        IpAddr::V6(address) => may_v6(address, strict),
    }
}

fn may_v4(address: Ipv4Addr, strict: bool) -> bool {
    match address.octets() {
        [0 | 224.., ..]
        | [100, 64..=127, ..]
        | [168, 63, 129, 16]
        | [169, 254, ..]
        | [192, 0, 0 | 2, _]
        | [192, 88, 99, _]
        | [198, 18 | 19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _] => false,
        _ => !strict || !(address.is_private() || address.is_loopback()),
    }
}

fn may_v6(address: Ipv6Addr, strict: bool) -> bool {
    let s = address.segments();
    let four = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        may_v4(Ipv4Addr::new(a, b, c, d), strict)
    };
    match s {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            four(high, low)
        }
        [0, 0, 0, 0, 0, 0, 0, 1] => !strict,
        [0x2002, high, low, ..] => four(high, low),
        [0x2001, 0, high, low, _, _, x, y] => four(high, low) && four(!x, !y),
        [0x2001, 2, 0, ..] | [0x2001, 0x10..=0x2f | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        [0xfd00, 0xec2, ..]
        | [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42]
        | [0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1]
        | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254] => false,
        [0xfc00..=0xfdff, ..] => !strict,
        [first, ..] => first >> 13 == 1,
    }
}
