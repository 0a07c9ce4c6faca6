//! Tests of served cards: of each generation, and hostile ones.

mod places;
mod properties;

use serde_json::{Value, json};

use super::*;

const BASE: &str = "https://gw.example/workspaces/dev/a2a";

fn facts() -> Facts<'static> {
    Facts {
        base: BASE,
        name: "Developer",
        role: Some("writes code"),
        hidden: &[],
        bearer: false,
        push_notifications: true,
    }
}

fn served_with(card: &str, facts: &Facts<'_>) -> String {
    Card::parse(card.as_bytes())
        .unwrap()
        .into_served(facts)
        .unwrap()
}

fn served(card: &Value) -> Value {
    served_by(card, &facts())
}

fn served_by(card: &Value, facts: &Facts<'_>) -> Value {
    serde_json::from_str(&served_with(&card.to_string(), facts)).unwrap()
}

/// A complete card of 0.3, with the members `more`.
fn card_0_3(more: Value) -> Value {
    let mut card = json!({"protocolVersion": "0.3.0", "name": "A", "description": "d", "version": "1",
        "url": "http://127.0.0.1:8001/rpc", "capabilities": {"streaming": true},
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "s", "name": "S", "description": "s", "tags": ["t"]}]});
    card.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    card
}

fn card_1_0(interfaces: Value) -> Value {
    let mut card = card_0_3(json!({"supportedInterfaces": interfaces}));
    card.as_object_mut().unwrap().remove("url");
    card.as_object_mut().unwrap().remove("protocolVersion");
    card
}

fn all_point_at_the_gateway(cases: &[(Value, Value)]) {
    for (card, expected) in cases {
        let served = served(card);
        for (member, value) in expected.as_object().unwrap() {
            assert_eq!(served[member], *value, "{member} of {card}");
        }
        for address in ["127.0.0.1", "50051"] {
            assert!(!served.to_string().contains(address), "{served}");
        }
    }
}

#[test]
fn every_interface_of_every_generation_points_at_the_gateway() {
    let rpc = |url: &str, version: &str| json!({"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version});
    let grpc =
        json!({"url": "127.0.0.1:50051", "protocolBinding": "GRPC", "protocolVersion": "1.0"});
    let cases = [
        // 0.2.5 and 0.3.
        (
            card_0_3(json!({"protocolVersion": "0.2.5"})),
            json!({"url": BASE}),
        ),
        (
            card_0_3(json!({"preferredTransport": "JSONRPC"})),
            json!({"url": BASE, "preferredTransport": "JSONRPC"}),
        ),
        (
            card_0_3(
                json!({"preferredTransport": "GRPC", "additionalInterfaces": [
                {"url": "127.0.0.1:50051", "transport": "GRPC"},
                {"url": "http://127.0.0.1:8001/v1", "transport": "HTTP+JSON", "x": 1.10},
                {"url": "http://127.0.0.1:8001/rpc", "transport": "JSONRPC"},
                "http://127.0.0.1:8001/", {"url": "http://127.0.0.1:8001/"}]}),
            ),
            json!({"url": BASE, "preferredTransport": "HTTP+JSON", "additionalInterfaces": [
                {"url": BASE, "transport": "HTTP+JSON", "x": 1.1}, {"url": BASE, "transport": "JSONRPC"}]}),
        ),
        (
            card_0_3(
                json!({"preferredTransport": "GRPC", "additionalInterfaces": [{"url": "a:1", "transport": "GRPC"}]}),
            ),
            json!({"url": BASE, "preferredTransport": "JSONRPC", "additionalInterfaces": null}),
        ),
        // 1.0, with tenant and order.
        (
            card_1_0(
                json!([grpc, {"url": "http://127.0.0.1:8001/rest", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0", "tenant": "t1"}, rpc("http://127.0.0.1:8001/", "1.0")]),
            ),
            json!({"url": null, "protocolVersion": null, "supportedInterfaces": [
                {"url": BASE, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0", "tenant": "t1"}, rpc(BASE, "1.0")]}),
        ),
    ];
    all_point_at_the_gateway(&cases);
}

#[test]
fn unusual_interfaces_point_at_the_gateway() {
    let rpc = |url: &str, version: &str| json!({"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version});
    let grpc =
        json!({"url": "127.0.0.1:50051", "protocolBinding": "GRPC", "protocolVersion": "1.0"});
    let cases = [
        // Bindings in another case; a `url` beside the list that is of 1.0, too.
        (
            card_1_0(
                json!([{"url": "http://127.0.0.1:8001/", "protocolBinding": "jsonrpc", "protocolVersion": "1.0", "tenant": "t1"},
                    {"url": "http://127.0.0.1:8001/", "protocolBinding": "http+json", "protocolVersion": "1.0", "tenant": "t1"}]),
            ),
            json!({"supportedInterfaces": [
                {"url": BASE, "protocolBinding": "JSONRPC", "protocolVersion": "1.0", "tenant": "t1"},
                {"url": BASE, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0", "tenant": "t1"}]}),
        ),
        (
            card_0_3(
                json!({"protocolVersion": "1.0", "preferredTransport": "JSONRPC",
                "supportedInterfaces": [rpc("http://127.0.0.1:8001/", "1.0")]}),
            ),
            json!({"url": null, "preferredTransport": null, "security": null,
                "supportedInterfaces": [rpc(BASE, "1.0")]}),
        ),
        (
            card_0_3(json!({"preferredTransport": "jsonrpc",
                "additionalInterfaces": [{"url": "http://127.0.0.1:8001/", "transport": "http+json"}]})),
            json!({"url": BASE, "preferredTransport": "JSONRPC",
                "additionalInterfaces": [{"url": BASE, "transport": "HTTP+JSON"}]}),
        ),
        (
            card_1_0(json!([grpc])),
            json!({"supportedInterfaces": [rpc(BASE, "1.0")]}),
        ),
        (
            card_1_0(
                json!([{"url": "http://127.0.0.1:8001/", "protocolBinding": "https://example.com/bindings/mqtt", "protocolVersion": "1.1"}]),
            ),
            json!({"supportedInterfaces": [rpc(BASE, "1.1")]}),
        ),
        (
            card_1_0(json!([{"url": "http://127.0.0.1:8001/"}])),
            json!({"supportedInterfaces": [rpc(BASE, "1.0")]}),
        ),
        // Hybrid: both, together.
        (
            card_0_3(
                json!({"additionalInterfaces": [{"url": "http://127.0.0.1:8001/rpc", "transport": "JSONRPC"}],
                "supportedInterfaces": [rpc("http://127.0.0.1:8001/", "1.0"), rpc("http://127.0.0.1:8001/old", "0.3")]}),
            ),
            json!({"url": BASE, "protocolVersion": "0.3.0", "additionalInterfaces": [{"url": BASE, "transport": "JSONRPC"}],
                "supportedInterfaces": [rpc(BASE, "1.0"), rpc(BASE, "0.3")]}),
        ),
        // A value that is not a list of interfaces offers none.
        (
            card_0_3(json!({"supportedInterfaces": {}})),
            json!({"url": BASE, "supportedInterfaces": null}),
        ),
        (
            card_0_3(json!({"supportedInterfaces": [], "url": 7, "preferredTransport": []})),
            json!({"url": BASE, "supportedInterfaces": null, "preferredTransport": "JSONRPC"}),
        ),
        (json!({}), json!({"url": BASE, "protocolVersion": "0.3.0"})),
    ];
    all_point_at_the_gateway(&cases);
}

#[test]
fn what_is_not_ours_stays_as_it_was_spelled() {
    let card = r#"{"x-1":{"a" : 1.10,"b":[ 1e400, "\u00e9"]},"name":"\u0041","description":"d","version":"1","protocolVersion":"0.3.0","url":"http://a:1","capabilities":{"streaming":true, "extensions":[ ]},"defaultInputModes":["a"],"defaultOutputModes":["b"],"skills":[{"id":"s","name":"S","description":"s","tags":[],"x":0.10}],"documentationUrl":"https://docs.example/a","iconUrl":null,"provider":{"organization":"o","url":"https://o.example"}}"#;
    let expected = card
        .replace("http://a:1", BASE)
        .replace(r#"true, "extensions""#, r#"true,"extensions""#);
    assert_eq!(served_with(card, &facts()), expected);
}

#[test]
fn a_snake_case_card_is_what_clients_look_for() {
    let card = json!({"name": "PocketPaw", "url": "http://127.0.0.1:8888/a2a", "protocol_version": "0.2.5",
        "capabilities": {"streaming": true, "push_notifications": false, "state_transition_history": "yes"},
        "default_input_modes": "text", "documentation_url": "https://pocketpaw.example/docs",
        "supports_authenticated_extended_card": false, "provider": {"organization": "PocketPaw"},
        "authentication": {"schemes": ["apiKey"]},
        "skills": [{"id": "chat", "name": "Chat", "input_modes": ["text"]}, "research", 7, null, {"name": "x", "tags": "no"}]});
    let mut with = facts();
    with.bearer = true;
    assert_eq!(
        served_by(&card, &with),
        json!({"name": "PocketPaw", "url": BASE, "protocolVersion": "0.3.0", "version": "0.0.0",
            "description": "writes code", "capabilities": {"streaming": true, "pushNotifications": false},
            "defaultInputModes": ["text"], "defaultOutputModes": ["text/plain"],
            "documentationUrl": "https://pocketpaw.example/docs", "supportsAuthenticatedExtendedCard": false,
            "provider": {"organization": "PocketPaw", "url": ""}, "authentication": {"schemes": ["bearer"]},
            "skills": [{"id": "chat", "name": "Chat", "inputModes": ["text"], "description": "Chat", "tags": []},
                {"id": "research", "name": "research", "description": "research", "tags": []},
                {"name": "x", "tags": [], "id": "x", "description": "x"}],
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}, "security": [{"bearer": []}]})
    );
}

#[test]
fn what_is_required_comes_from_the_registry() {
    let mut nothing = facts();
    assert_eq!(
        served_by(
            &json!({"name": "", "version": 2, "skills": null, "capabilities": []}),
            &nothing
        ),
        json!({"name": "Developer", "description": "writes code", "version": "2", "url": BASE, "protocolVersion": "0.3.0",
            "capabilities": {}, "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"], "skills": []})
    );
    nothing.role = None;
    nothing.push_notifications = false;
    let bare = served_by(&json!({"name": 7}), &nothing);
    assert_eq!(
        (&bare["name"], &bare["description"]),
        (&json!("Developer"), &json!("Developer"))
    );
    assert_eq!(bare["capabilities"], json!({"pushNotifications": false}));
    let said =
        card_0_3(json!({"capabilities": {"pushNotifications": true, "push_notifications": true}}));
    assert_eq!(
        served_by(&said, &nothing)["capabilities"],
        json!({"pushNotifications": false})
    );
    assert_eq!(
        served(&said)["capabilities"],
        json!({"pushNotifications": true})
    );
}

#[test]
fn the_gateways_scheme_takes_the_place_of_the_agents() {
    let own = json!({"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X"}}, "security": [{"key": []}],
        "securityRequirements": [{"schemes": {"key": {}}}],
        "skills": [{"id": "s", "name": "S", "description": "s", "tags": [], "security": [{"key": []}]}]});
    let old = json!({"type": "http", "scheme": "bearer"});
    let new = json!({"httpAuthSecurityScheme": {"scheme": "bearer"}});
    let both =
        json!({"type": "http", "scheme": "bearer", "httpAuthSecurityScheme": {"scheme": "bearer"}});
    let (security, required) = (
        json!([{"bearer": []}]),
        json!([{"schemes": {"bearer": {"list": []}}}]),
    );
    let interface =
        json!([{"url": "http://a:1", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]);
    let mut v1 = card_1_0(interface.clone());
    v1.as_object_mut()
        .unwrap()
        .extend(own.as_object().unwrap().clone());
    let v0 = card_0_3(own);
    let mut hybrid = v0.clone();
    hybrid["supportedInterfaces"] = interface;
    let mut with = facts();
    with.bearer = true;
    for (card, scheme, security, required) in [
        (&v0, &old, security.clone(), Value::Null),
        (&v1, &new, Value::Null, required.clone()),
        (&hybrid, &both, security, required),
    ] {
        let served = served_by(card, &with);
        assert_eq!(
            served["securitySchemes"],
            json!({"bearer": scheme}),
            "{card}"
        );
        assert_eq!(served["security"], security, "{card}");
        assert_eq!(served["securityRequirements"], required, "{card}");
        assert_eq!(served["skills"][0].get("security"), None, "{card}");
    }
    let left = served(&v0);
    assert_eq!(
        (&left["security"], &left["skills"][0]["security"]),
        (&json!([{"key": []}]), &json!([{"key": []}]))
    );
}

#[test]
fn signatures_of_the_agent_are_dropped() {
    let card = card_0_3(json!({"signatures": [{"protected": "e30", "signature": "x"}]}));
    assert_eq!(served(&card).get("signatures"), None);
}

#[test]
fn cards_that_mean_no_good_are_refused_or_made_harmless() {
    for text in [
        "",
        "null",
        "[]",
        "7",
        "{",
        "{}x",
        "{\"a\":1,}",
        "{\"a\":NaN}",
        "\u{feff}",
        "{\"a\":\"\n\"}",
        r#"{"url":"http://a:1","url":"http://b:1"}"#,
        r#"{"url":1,"\u0075rl":2}"#,
    ] {
        assert_eq!(
            Card::parse(text.as_bytes()).err(),
            Some(CardError::Form),
            "{text}"
        );
    }
    assert!(Card::parse(b"\xff\xfe{}").is_err());
    let deep = |levels: usize| format!("{{\"x\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    assert!(Card::parse(deep(511).as_bytes()).is_ok());
    assert!(Card::parse(deep(512).as_bytes()).is_err());
    assert!(Card::parse(deep(100_000).as_bytes()).is_err());
    for text in [
        "{}",
        r#"{"jsonrpc":"2.0","id":1,"error":{}}"#,
        r#"{"status":"ok"}"#,
        r#"{"name":7}"#,
    ] {
        assert_eq!(
            Card::parse_fetched(text.as_bytes()).err(),
            Some(CardError::NoCard),
            "{text}"
        );
    }
    let many = format!(
        r#"{{"supportedInterfaces":[{}{{}}],"skills":[{}""]}}"#,
        "{},".repeat(40_000),
        "\"\",".repeat(30_000)
    );
    let served: Value = serde_json::from_str(&served_with(&many, &facts())).unwrap();
    assert_eq!(served["supportedInterfaces"].as_array().unwrap().len(), 64);
    assert_eq!(served["skills"].as_array().unwrap().len(), 256);
    let grows = json!({"x": "h:1 ".repeat(60_000), "url": "http://h:1/"}).to_string();
    assert_eq!(
        Card::parse(grows.as_bytes()).unwrap().into_served(&facts()),
        Err(CardError::TooLong)
    );
}

/// Each member that is read, with values of each type: never a panic, always a card.
#[test]
fn wrong_types_make_no_trouble() {
    let wrong = [
        json!(null),
        json!(true),
        json!(1),
        json!("x"),
        json!([]),
        json!({}),
        json!([null, 1, "x", [], {}]),
        json!([{"url": 1, "transport": 2, "protocolBinding": [], "tenant": {}, "id": 1, "name": [], "tags": [1]}]),
        json!({"a": [{"b": null}]}),
    ];
    let members = [
        "name",
        "description",
        "version",
        "url",
        "protocolVersion",
        "preferredTransport",
        "additionalInterfaces",
        "supportedInterfaces",
        "capabilities",
        "defaultInputModes",
        "default_output_modes",
        "skills",
        "provider",
        "documentationUrl",
        "iconUrl",
        "securitySchemes",
        "security",
        "securityRequirements",
        "authentication",
        "signatures",
        "supportsAuthenticatedExtendedCard",
    ];
    let mut with = facts();
    with.bearer = true;
    for member in members {
        for value in &wrong {
            for card in [card_0_3(json!({member: value})), json!({member: value})] {
                let served = served_by(&card, &with);
                for text in ["name", "description", "version"] {
                    assert!(served[text].is_string(), "{text} of {card}");
                }
                let rpc = &served["supportedInterfaces"][0]["url"];
                assert!(served["url"] == BASE || *rpc == BASE, "{card}");
                assert!(
                    served["capabilities"].is_object() && served["skills"].is_array(),
                    "{card}"
                );
                assert!(signed_forms(&served.to_string()).is_some());
                Card::parse(card.to_string().as_bytes())
                    .unwrap()
                    .generation();
            }
        }
    }
}

#[test]
fn an_interface_lends_its_path_and_its_query_only() {
    let card = card_1_0(json!([
        {"url": "http://evil.example:1/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        {"url": "https://10.0.0.1/rest/%2e%2e/v1?x=1#f", "protocolBinding": "http+json", "protocolVersion": "1.0", "tenant": "t"}]));
    let text = card.to_string();
    let card = Card::parse(text.as_bytes()).unwrap();
    let rest = card.interfaces(Binding::HttpJson).next().unwrap();
    assert_eq!(
        (rest.path().as_deref(), rest.tenant.as_deref()),
        (Some("/v1?x=1"), Some("t"))
    );
    assert_eq!(
        card.interfaces(Binding::JsonRpc)
            .next()
            .unwrap()
            .path()
            .as_deref(),
        Some("/rpc")
    );
    assert_eq!(card.generation(), Generation::V1);
    for url in ["file:///etc/passwd", "", "a:1", "/v1"] {
        let text =
            card_0_3(json!({"additionalInterfaces": [{"url": url, "transport": "HTTP+JSON"}]}))
                .to_string();
        let rest = Card::parse(text.as_bytes())
            .unwrap()
            .interfaces(Binding::HttpJson)
            .next()
            .unwrap();
        assert_eq!(rest.path(), None, "{url}");
    }
}

#[test]
fn a_card_is_signed_in_each_form_that_verifiers_make_of_it() {
    let whole = json!({"name": "A", "capabilities": {"streaming": false}, "supportedInterfaces": [{"url": BASE}]});
    assert_eq!(signed_forms(&whole.to_string()).unwrap(), [whole]);
    let hybrid = json!({"name": "A", "url": BASE, "protocolVersion": "0.3.0", "x": 1, "skills": [], "security": [{"bearer": []}],
        "supportsAuthenticatedExtendedCard": true, "signatures": [], "capabilities": {"stateTransitionHistory": true,
            "extensions": [{"uri": "u", "required": false, "params": {"a": ""}}]},
        "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "httpAuthSecurityScheme": {"scheme": "bearer"}}}});
    let forms = signed_forms(&hybrid.to_string()).unwrap();
    let mut document = hybrid;
    document.as_object_mut().unwrap().remove("signatures");
    assert_eq!(forms[0], document);
    assert_eq!(
        forms[1],
        json!({"name": "A", "supportedInterfaces": [{"url": BASE, "protocolBinding": "JSONRPC", "protocolVersion": "0.3.0"}],
            "capabilities": {"extensions": [{"uri": "u"}], "extendedAgentCard": true},
            "securitySchemes": {"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}})
    );
    let signed = with_signatures(r#"{"a":1}"#, &[json!({"protected": "p", "signature": "s"})]);
    assert_eq!(
        signed,
        r#"{"a":1,"signatures":[{"protected":"p","signature":"s"}]}"#
    );
}
