//! Tests that no card contains the agent's address, whether it is served or shown.

use serde_json::{Value, json};

use super::super::{CardError, conceal_addresses};
use super::{BASE, card_0_3, facts, served_by, served_with};

#[test]
fn nothing_tells_where_the_agent_listens() {
    let hidden = [
        "http://agent.internal/a2a".to_owned(),
        "http://127.0.0.1:8001/".to_owned(),
        "https://[::1]:9000/x".to_owned(),
    ];
    let mut with = facts();
    with.hidden = &hidden;
    let cases = [
        (
            "see http://127.0.0.1:8001/docs.",
            format!("see {BASE}/docs."),
        ),
        ("127.0.0.1:8001", BASE.to_owned()),
        ("(HTTP://user:pw@127.0.0.1:8001)", format!("({BASE})")),
        ("http://agent.internal", BASE.to_owned()),
        (
            "http://AGENT.internal:80/x http://agent.internal./",
            format!("{BASE}/x {BASE}./"),
        ),
        ("wss://[::1]:9000/x?y=1", format!("{BASE}/x?y=1")),
        ("a10.0.0.9:50051", "a10.0.0.9:50051".to_owned()),
        ("grpc on 10.0.0.9:50051, ok", format!("grpc on {BASE}, ok")),
        // Other addresses.
        (
            "http://127.0.0.1:80010 x127.0.0.1:8001 agent.internal",
            "http://127.0.0.1:80010 x127.0.0.1:8001 agent.internal".to_owned(),
        ),
        (
            "http://agent.internal:8443 http://agent.internal.example",
            "http://agent.internal:8443 http://agent.internal.example".to_owned(),
        ),
        ("https://gw.example/x", "https://gw.example/x".to_owned()),
        ("gw.example:443", "gw.example:443".to_owned()),
        ("ü http://127.0.0.1:8001 ü", format!("ü {BASE} ü")),
        // A port is not part of the scheme after it, and is not kept if its digits are replaced.
        (
            "http://agent.internal:4http://agent.internal",
            format!("http://agent.internal:4{BASE}"),
        ),
        (
            "http://agent.internal:10.0.0.9:50051",
            format!("{BASE}:{BASE}"),
        ),
    ];
    for (said, expected) in cases {
        let card = card_0_3(json!({"description": said, "x": {said: [said]},
            "additionalInterfaces": [{"transport": "GRPC", "url": "10.0.0.9:50051"}, {"transport": "JSONRPC", "url": "https://gw.example/a"}]}));
        let served = served_by(&card, &with);
        assert_eq!(served["description"], expected, "{said}");
        let number = if said == expected { "" } else { "#1" };
        let name = format!("{expected}{number}");
        assert_eq!(served["x"], json!({name: [&expected]}), "{said}");
    }
    let escaped = r#"{"name":"a","x":"http:\/\/127.0.0.1:8001\/","documentationUrl":"http:\u002f/127.0.0.1:8001/d","iconUrl":"https://cdn.example/i"}"#;
    let served: Value = serde_json::from_str(&served_with(escaped, &with)).unwrap();
    assert_eq!(served["x"], format!("{BASE}/"));
    assert_eq!(
        (served.get("documentationUrl"), &served["iconUrl"]),
        (None, &json!("https://cdn.example/i"))
    );
}

#[test]
fn a_host_is_hidden_by_itself_where_it_means_nothing_else() {
    let hidden = [
        "http://127.0.0.1:8001/".to_owned(),
        "http://10.0.0.7:8000/".to_owned(),
        "http://10.0.0.8/".to_owned(),
        "http://Paw.agents.internal.:8000/a2a".to_owned(),
        "https://[fd00::7]:9000/".to_owned(),
        "http://gw.example:8001/".to_owned(),
        "http://dev:8002/".to_owned(),
        "http://paw:8003/".to_owned(),
    ];
    for (said, expected) in [
        (
            "http://10.0.0.7/docs, 10.0.0.7. ftp://u@10.0.0.7:21/x (10.0.0.8)",
            format!("{BASE}/docs, {BASE}. {BASE}/x ({BASE})"),
        ),
        (
            "on paw.agents.internal, http://Paw.Agents.Internal:9999/x.",
            format!("on {BASE}, {BASE}/x."),
        ),
        (
            "fd00::7 [fd00::7] http://[fd00::7]/",
            format!("{BASE} {BASE} {BASE}/"),
        ),
        (
            "10.0.0.70 110.0.0.7 10.0.0.7.1 10.0.0.7-x afd00::7 fd00::7a",
            "10.0.0.70 110.0.0.7 10.0.0.7.1 10.0.0.7-x afd00::7 fd00::7a".to_owned(),
        ),
        (
            "ops@paw.agents.internal x.paw.agents.internal paw.agents.internal.example",
            "ops@paw.agents.internal x.paw.agents.internal paw.agents.internal.example".to_owned(),
        ),
        (
            "http://127.0.0.1/ https://gw.example:9/ dev paw http://paw:1/",
            "http://127.0.0.1/ https://gw.example:9/ dev paw http://paw:1/".to_owned(),
        ),
        ("gw.example:8001, dev:8002", format!("{BASE}, {BASE}")),
    ] {
        let card = json!({"x": said}).to_string();
        let expected = json!({"x": expected}).to_string();
        assert_eq!(
            conceal_addresses(&card, BASE, &hidden),
            Ok(expected),
            "{said}"
        );
    }
}

#[test]
fn a_shown_card_tells_no_place_and_is_not_completed() {
    let hidden = ["http://127.0.0.1:8001/".to_owned()];
    let shown_as = |text: &str| conceal_addresses(text, BASE, &hidden);
    for (text, expected) in [
        // Nothing to conceal: unchanged byte for byte.
        (
            r#"{ "a":1.0,"name" : "A" }"#,
            r#"{ "a":1.0,"name" : "A" }"#.to_owned(),
        ),
        (
            r#"{"signatures":[{}],"skills":["s"],"protocol_version":"0.2.5"}"#,
            r#"{"signatures":[{}],"skills":["s"],"protocol_version":"0.2.5"}"#.to_owned(),
        ),
        ("{}", "{}".to_owned()),
        (
            r#"{"url":null,"supportedInterfaces":[],"additionalInterfaces":{}}"#,
            r#"{"url":null,"supportedInterfaces":[],"additionalInterfaces":{}}"#.to_owned(),
        ),
        // A value that is not valid text, and not an interface, may be one to other parsers.
        (
            r#"{"url":"http://a:1/\udc00"}"#,
            format!(r#"{{"url":"{BASE}"}}"#),
        ),
        (
            r#"{"additionalInterfaces":["http://a:1/"]}"#,
            format!(r#"{{"url":"{BASE}"}}"#),
        ),
        // Only in its text.
        (
            r#"{"z":"at 127.0.0.1:8001","signatures":[{}],"iconUrl":"http://127.0.0.1:8001/i"}"#,
            format!(r#"{{"z":"at {BASE}"}}"#),
        ),
        // In its interfaces, of each generation; order and the rest are kept.
        (
            r#"{"z":1.0,"url":"http://a:1/","name":7,"signatures":[{}]}"#,
            format!(r#"{{"z":1.0,"url":"{BASE}","name":7}}"#),
        ),
        (
            r#"{"supportedInterfaces":[{"url":"a:1","protocolBinding":"GRPC"},{"url":"http://a:2/","protocolBinding":"JSONRPC","protocolVersion":"1.0"}],"default_input_modes":[]}"#,
            format!(
                r#"{{"supportedInterfaces":[{{"url":"{BASE}","protocolBinding":"JSONRPC","protocolVersion":"1.0"}}],"default_input_modes":[]}}"#
            ),
        ),
        (
            r#"{"preferred_transport":"GRPC","url":"a:1","additional_interfaces":[{"url":"http://a:2/","transport":"JSONRPC"}]}"#,
            format!(
                r#"{{"preferredTransport":"JSONRPC","url":"{BASE}","additionalInterfaces":[{{"url":"{BASE}","transport":"JSONRPC"}}]}}"#
            ),
        ),
    ] {
        let said = shown_as(text).unwrap();
        assert_eq!(said, expected, "{text}");
        assert_eq!(shown_as(&said).as_ref(), Ok(&said));
    }
    assert_eq!(
        shown_as(r#"{"url":"a:1","url":"b:1"}"#),
        Err(CardError::Form)
    );
    let long = format!(r#"{{"url":"http://h:1/","x":"{}"}}"#, "h:1 ".repeat(60_000));
    assert_eq!(shown_as(&long), Err(CardError::TooLong));
}
