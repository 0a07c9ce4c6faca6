//! `a2a::card`: cards as they are served, and as the registry shows them.
//!
//! The first byte of an input chooses the agent's URL (`l`: on loopback, `p`: a private address, `n`: a
//! name with a port, `o`: one without, anything else: an address of IPv6; in upper case the gateway
//! declares no scheme and has push notifications off), the rest is the card.

use a2a_gateway::a2a::card::{Binding, Card, Facts, conceal_addresses, signed_forms};
use serde_json::Value;
use serde_json::value::RawValue;

const BASE: &str = "https://gw.example/workspaces/dev/a2a";

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((mode, text)) = input.split_first() else {
        return;
    };
    // The URL, and what of it must stand nowhere.
    let (url, told): (_, &[&str]) = match mode.to_ascii_lowercase() {
        b'l' => ("http://127.0.0.1:8001/a2a", &["127.0.0.1:8001"]),
        b'p' => ("http://10.0.0.7:8000/", &["10.0.0.7"]),
        b'n' => ("http://paw.internal:9000/x", &["paw.internal"]),
        b'o' => ("https://agent.internal/", &["agent.internal:443"]),
        _ => ("https://[fd00::7]:9000/", &["[fd00::7]"]),
    };
    let hidden = [url.to_owned()];
    let facts = Facts {
        base: BASE,
        name: "Developer",
        role: None,
        hidden: &hidden,
        bearer: mode.is_ascii_lowercase(),
        push_notifications: mode.is_ascii_lowercase(),
    };
    let Ok(card) = Card::parse(text) else {
        assert!(Card::parse_fetched(text).is_err());
        return;
    };
    card.generation();
    for binding in [Binding::JsonRpc, Binding::HttpJson] {
        for interface in card.interfaces(binding) {
            assert!(interface.path().is_none_or(|path| path.starts_with('/')));
        }
    }
    let served = card.into_served(&facts).expect("a short card is served");
    tells_nothing(&served, told);
    points_at_the_gateway(&served);
    signed_forms(&served);
    let again = Card::parse_fetched(served.as_bytes()).expect("what is served is a card");
    assert_eq!(
        again.into_served(&facts).as_ref(),
        Ok(&served),
        "served again"
    );

    let text = std::str::from_utf8(text).expect("it was read");
    let text = text.trim_start_matches('\u{feff}');
    let seen = conceal_addresses(text, BASE, &hidden).expect("a short card is shown");
    tells_nothing(&seen, told);
    if seen != text {
        points_at_the_gateway(&seen);
        let members: Option<Value> = serde_json::from_str(&seen).ok();
        assert!(members.is_none_or(|members| members.get("signatures").is_none()));
        assert_eq!(
            conceal_addresses(&seen, BASE, &hidden).as_ref(),
            Ok(&seen),
            "shown again"
        );
    }
}

/// It is JSON, and `told` is a word by itself in none of its strings.
fn tells_nothing(card: &str, told: &[&str]) {
    serde_json::from_str::<&RawValue>(card).expect("it is JSON");
    let part = |c: char| c.is_alphanumeric() || "-._@".contains(c);
    for said in strings(card) {
        let said = said.to_ascii_lowercase();
        for told in told {
            for (at, _) in said.match_indices(told) {
                let (before, behind) = (&said[..at], &said[at + told.len()..]);
                assert!(
                    before.ends_with(part) || behind.starts_with(part),
                    "{said} in {card}"
                );
            }
        }
    }
}

/// Every URL of an interface that clients would find is the base.
fn points_at_the_gateway(card: &str) {
    // A lone half of a surrogate pair is JSON, and no text.
    let Ok(card) = serde_json::from_str::<Value>(card) else {
        return;
    };
    let lists = ["supportedInterfaces", "additionalInterfaces"].map(|list| card[list].as_array());
    let listed = lists.into_iter().flatten().flatten();
    for interface in listed.chain([&card]) {
        if let Some(url) = interface["url"].as_str() {
            assert_eq!(url, BASE, "{card}");
        }
    }
}

/// What the strings of a JSON text say, names of members included; as spelled where that is no text.
fn strings(json: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = json;
    while let Some(start) = rest.find('"') {
        let mut escaped = false;
        let mut end = rest.len();
        for (at, byte) in rest.bytes().enumerate().skip(start + 1) {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    end = at + 1;
                    break;
                }
                _ => {}
            }
        }
        let spelled = &rest[start..end];
        let said = serde_json::from_str(spelled);
        found.push(said.unwrap_or_else(|_| spelled.to_owned()));
        rest = &rest[end..];
    }
    found
}
