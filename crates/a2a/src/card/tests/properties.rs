//! Properties of all cards, by generated ones.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Map, Value};

use super::super::{Card, Facts, conceal_addresses};
use super::BASE;

const HIDDEN: &str = "127.0.0.1:8001";

const MEMBERS: [&str; 24] = [
    "name",
    "description",
    "version",
    "url",
    "protocolVersion",
    "protocol_version",
    "preferredTransport",
    "additionalInterfaces",
    "additional_interfaces",
    "supportedInterfaces",
    "capabilities",
    "pushNotifications",
    "defaultInputModes",
    "default_output_modes",
    "skills",
    "id",
    "tags",
    "provider",
    "documentationUrl",
    "transport",
    "protocolBinding",
    "tenant",
    "security",
    "é\"\\",
];

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "",
            "JSONRPC",
            "GRPC",
            "HTTP+JSON",
            "0.3.0",
            "1.0",
            "http://127.0.0.1:8001/",
            "127.0.0.1:8001",
            "see HTTP://u:p@127.0.0.1:8001/x.",
            "http://other:7/",
            "other:7",
            "https://gw.example/workspaces/dev/a2a",
        ])
        .prop_map(str::to_owned),
        "[ -~\u{e9}\u{1F600}]{0,12}",
        "(a127|://|[@:./x ]|127\\.0\\.0\\.1:8001){0,8}",
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            members(inner).prop_map(Value::from),
        ]
    })
}

fn members(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    let name = prop_oneof![
        4 => prop::sample::select(MEMBERS.to_vec()).prop_map(str::to_owned),
        1 => text(),
    ];
    btree_map(name, value, 0..8).prop_map(|members| members.into_iter().collect())
}

/// Collects all strings in the value, including names.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(list) => list.iter().for_each(|one| texts(one, found)),
        Value::Object(members) => {
            for (name, one) in members {
                found.push(name.clone());
                texts(one, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns true if none of its strings contains the agent's address.
fn tells_nothing(value: &Value) -> bool {
    let mut found = Vec::new();
    texts(value, &mut found);
    found.iter().all(|text| {
        // As a part of another name it is another address: `a127.0.0.1:8001`.
        let part = |c: char| c.is_alphanumeric() || "-._".contains(c);
        let mut places = text.match_indices(HIDDEN);
        places.all(|(at, _)| {
            text[..at].ends_with(part) || text[at + HIDDEN.len()..].starts_with(part)
        })
    })
}

proptest! {
    #[test]
    fn a_served_card_is_whole_stays_as_it_is_and_names_no_agent(
        card in members(value()), bearer in any::<bool>(), push_notifications in any::<bool>()
    ) {
        let hidden = [format!("http://{HIDDEN}/a2a")];
        let facts = Facts { base: BASE, name: "n", role: None, hidden: &hidden, bearer, push_notifications };
        let text = Value::from(card).to_string();
        let served = Card::parse(text.as_bytes()).unwrap().into_served(&facts).unwrap();
        let value: Value = serde_json::from_str(&served).unwrap();
        for required in ["name", "description", "version"] {
            prop_assert!(value[required].is_string(), "{served}");
        }
        prop_assert!(tells_nothing(&value), "{served}");
        let again = Card::parse(served.as_bytes()).unwrap().into_served(&facts).unwrap();
        prop_assert_eq!(again, served);
        let shown = conceal_addresses(&text, BASE, &hidden).unwrap();
        prop_assert!(tells_nothing(&serde_json::from_str(&shown).unwrap()), "{shown}");
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..64), at in 0_usize..200) {
        let mut card = br#"{"name":"a","url":"http://127.0.0.1:8001/","skills":["x",{"id":1}],"capabilities":{"streaming":1}}"#.to_vec();
        let at = at.min(card.len());
        card.splice(at..at, bytes);
        if let Ok(card) = Card::parse_fetched(&card) {
            let facts = Facts { base: BASE, name: "n", role: None, hidden: &[], bearer: true, push_notifications: false };
            let served = card.into_served(&facts).unwrap();
            prop_assert!(Card::parse_fetched(served.as_bytes()).is_ok());
        }
    }
}
