//! Cards in each form.

use serde_json::json as made;

use super::*;
use crate::bridge::card::{Facts, RequestedForm, translate_card};
use crate::card::{Card, Facts as Gateway};

const BASE: &str = "http://gateway/workspaces/dev/a2a";
const BOTH: [Generation; 2] = [Generation::V0, Generation::V1];

/// Returns a card as callers get it.
fn served(agents: &Value, asked: RequestedForm, sides: &[Side], native: &[Generation]) -> Value {
    let text = agents.to_string();
    let served = Card::parse_fetched(text.as_bytes())
        .unwrap()
        .into_served(&Gateway {
            base: BASE,
            name: "dev",
            role: None,
            hidden: &[],
            bearer: false,
            push_notifications: true,
        });
    let facts = Facts {
        base: BASE,
        sides,
        native,
        grpc: None,
    };
    json(translate_card(&served.unwrap(), asked, &facts).unwrap())
}

fn old() -> Value {
    made!({"name": "a", "description": "d", "version": "1", "protocolVersion": "0.3.0", "url": "http://agent/rpc",
        "additionalInterfaces": [{"url": "http://agent/rpc", "transport": "JSONRPC"}],
        "capabilities": {"streaming": true, "pushNotifications": true, "stateTransitionHistory": true, "extensions": null},
        "supportsAuthenticatedExtendedCard": true, "defaultInputModes": [], "defaultOutputModes": ["a/b"],
        "security": [{"o": ["s1"], "k": []}], "x": 1, "signatures": [{"protected": "e30", "signature": "AA"}],
        "securitySchemes": {
            "k": {"type": "apiKey", "in": "cookie", "name": "n", "description": ""},
            "h": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            "o": {"type": "oauth2", "flows": {"password": {"tokenUrl": "t", "scopes": {}},
                "clientCredentials": {"tokenUrl": "t", "scopes": {"s1": "one"}}}},
            "i": {"type": "openIdConnect", "openIdConnectUrl": "u"},
            "m": {"type": "mutualTLS"},
            "?": {"type": "other"},
        },
        "skills": [{"id": "s", "name": "s", "description": "s", "tags": ["t"], "security": [{"k": []}], "y": 1}]})
}

fn new() -> Value {
    made!({"name": "a", "description": "d", "version": "1", "capabilities": {"extendedAgentCard": false, "pushNotifications": true},
        "supportedInterfaces": [
            {"url": "http://agent/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0", "tenant": "acme"},
            {"url": "http://agent/rest", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}],
        "securityRequirements": [{"schemes": {"o": {"list": ["s1"]}, "m": {}}}],
        "securitySchemes": {
            "k": {"apiKeySecurityScheme": {"location": "nowhere", "name": "n"}},
            "o": {"oauth2SecurityScheme": {"flows": {"authorizationCode": {"authorizationUrl": "a", "tokenUrl": "t", "pkceRequired": true}}}},
            "d": {"oauth2SecurityScheme": {"flows": {"deviceCode": {"deviceAuthorizationUrl": "a", "tokenUrl": "t", "scopes": {}}}}},
            "m": {"mtlsSecurityScheme": {}},
        },
        "skills": [{"id": "s", "name": "s", "description": "s", "securityRequirements": [{"schemes": {"k": {}}}]}]})
}

#[test]
fn a_card_of_0_3_is_told_in_1_0() {
    // Its preferred interface is among the additional ones, too.
    let sides = [V0, V0, V1, V1_REST];
    let card = served(
        &old(),
        RequestedForm::Only(Generation::V1),
        &sides,
        &BOTH[..1],
    );
    let interface = |binding: &str, version: &str| made!({"url": BASE, "protocolBinding": binding, "protocolVersion": version});
    let expected = made!({"name": "a", "description": "d", "version": "1",
        "supportedInterfaces": [interface("JSONRPC", "0.3"), interface("JSONRPC", "1.0"), interface("HTTP+JSON", "1.0")],
        "capabilities": {"streaming": true, "pushNotifications": false, "extendedAgentCard": true},
        "defaultInputModes": [], "defaultOutputModes": ["a/b"],
        "securityRequirements": [{"schemes": {"o": {"list": ["s1"]}, "k": {"list": []}}}],
        "securitySchemes": {
            "k": {"apiKeySecurityScheme": {"location": "cookie", "name": "n"}},
            "h": {"httpAuthSecurityScheme": {"scheme": "bearer", "bearerFormat": "JWT"}},
            "o": {"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": "t", "scopes": {"s1": "one"}}}}},
            "i": {"openIdConnectSecurityScheme": {"openIdConnectUrl": "u"}},
            "m": {"mtlsSecurityScheme": {}},
        },
        "skills": [{"id": "s", "name": "s", "description": "s", "tags": ["t"],
            "securityRequirements": [{"schemes": {"k": {"list": []}}}]}]});
    assert_eq!(card, expected);
}

#[test]
fn a_card_of_1_0_is_told_in_0_3() {
    let sides = [V1, V1_REST, V0];
    let card = served(
        &new(),
        RequestedForm::Only(Generation::V0),
        &sides,
        &BOTH[1..],
    );
    let expected = made!({"name": "a", "description": "d", "version": "1", "protocolVersion": "0.3.0", "url": BASE,
        "preferredTransport": "JSONRPC", "capabilities": {"pushNotifications": false}, "supportsAuthenticatedExtendedCard": false,
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        "security": [{"o": ["s1"], "m": []}],
        "securitySchemes": {
            "k": {"type": "apiKey", "in": "header", "name": "n"},
            "o": {"type": "oauth2", "flows": {"authorizationCode": {"authorizationUrl": "a", "tokenUrl": "t", "scopes": {}}}},
            "d": {"type": "oauth2", "flows": {}},
            "m": {"type": "mutualTLS"},
        },
        "skills": [{"id": "s", "name": "s", "description": "s", "tags": [], "security": [{"k": []}]}]});
    assert_eq!(card, expected);
}

#[test]
fn a_card_without_a_version_asked_for_is_of_both() {
    let card = served(&old(), RequestedForm::Both, &[V0, V1], &BOTH[..1]);
    assert_eq!(card["url"], BASE);
    assert_eq!(card["supportedInterfaces"].as_array().unwrap().len(), 2);
    assert_eq!(
        card["securitySchemes"]["o"]["flows"]
            .as_object()
            .unwrap()
            .len(),
        1
    );
    let schemes = [
        (
            "k",
            made!({"type": "apiKey", "in": "cookie", "name": "n",
            "apiKeySecurityScheme": {"location": "cookie", "name": "n"}}),
        ),
        (
            "h",
            made!({"type": "http", "scheme": "bearer", "bearerFormat": "JWT",
            "httpAuthSecurityScheme": {"scheme": "bearer", "bearerFormat": "JWT"}}),
        ),
        (
            "i",
            made!({"type": "openIdConnect", "openIdConnectUrl": "u",
            "openIdConnectSecurityScheme": {"openIdConnectUrl": "u"}}),
        ),
        ("m", made!({"type": "mutualTLS", "mtlsSecurityScheme": {}})),
    ];
    for (name, scheme) in schemes {
        assert_eq!(card["securitySchemes"][name], scheme, "{name}");
    }
    let oauth2 = &card["securitySchemes"]["o"];
    assert_eq!(oauth2["oauth2SecurityScheme"]["flows"], oauth2["flows"]);
    assert_eq!(card["security"], made!([{"o": ["s1"], "k": []}]));
    assert_eq!(
        card["securityRequirements"][0]["schemes"]["k"],
        made!({"list": []})
    );
    assert_eq!(card["skills"][0]["security"], made!([{"k": []}]));
    assert!(card["skills"][0]["securityRequirements"].is_array());
    assert_eq!(card["x"], 1);
    assert_eq!(card.get("signatures"), None);
    // The agent speaks 0.3, and so does a client that says nothing; one that says 1.0 is refused.
    assert_eq!(card["capabilities"]["pushNotifications"], true);
    let of_1_0 = RequestedForm::Only(Generation::V1);
    let of_1_0 = served(&old(), of_1_0, &[V0, V1], &BOTH[..1]);
    assert_eq!(of_1_0["capabilities"]["pushNotifications"], false);
    assert_eq!(
        (
            &card["capabilities"]["extendedAgentCard"],
            &card["supportsAuthenticatedExtendedCard"]
        ),
        (&true.into(), &true.into())
    );
    // An agent's own interface keeps its tenant.
    let card = served(
        &new(),
        RequestedForm::Both,
        &[V1, V1_REST, V0, V0_REST],
        &BOTH[1..],
    );
    assert_eq!(card["supportedInterfaces"][0]["tenant"], "acme");
    assert_eq!(card["preferredTransport"], "JSONRPC");
    assert_eq!(
        card["additionalInterfaces"],
        made!([{"url": BASE, "transport": "HTTP+JSON"}])
    );
    assert_eq!(card["protocolVersion"], "0.3.0");
}

#[test]
fn an_agent_of_both_keeps_what_it_has() {
    let mut hybrid = old();
    hybrid["supportedInterfaces"] = new()["supportedInterfaces"].clone();
    for asked in [
        RequestedForm::Both,
        RequestedForm::Only(Generation::V0),
        RequestedForm::Only(Generation::V1),
    ] {
        let card = served(&hybrid, asked, &[V1, V0], &BOTH);
        assert_eq!(card["capabilities"]["pushNotifications"], true);
        assert_eq!(
            card.get("url").is_some(),
            asked != RequestedForm::Only(Generation::V1)
        );
        assert_eq!(
            card.get("supportedInterfaces").is_some(),
            asked != RequestedForm::Only(Generation::V0)
        );
    }
    // `preferredTransport` is JSON-RPC where it is missing.
    let mut plain = old();
    plain
        .as_object_mut()
        .unwrap()
        .remove("additionalInterfaces");
    let card = served(
        &plain,
        RequestedForm::Only(Generation::V0),
        &[V0, V1],
        &BOTH[..1],
    );
    assert_eq!(
        (
            &card["preferredTransport"],
            card.get("additionalInterfaces")
        ),
        (&"JSONRPC".into(), None)
    );
    assert_eq!(card["capabilities"]["stateTransitionHistory"], true);
    assert_eq!(
        card["securitySchemes"]["o"]["flows"]
            .as_object()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn the_header_field_decides_and_what_1_0_has_not_is_lost() {
    for (version, is_old_path, expected) in [
        (None, false, RequestedForm::Both),
        (Some("1.0"), false, RequestedForm::Only(Generation::V1)),
        (Some("0.3.0"), false, RequestedForm::Only(Generation::V0)),
        (Some("9"), false, RequestedForm::Both),
        (Some("1.0"), true, RequestedForm::Only(Generation::V0)),
    ] {
        assert_eq!(RequestedForm::from_version(version, is_old_path), expected);
    }
    let facts = Facts {
        base: BASE,
        sides: &[V0, V1],
        native: &BOTH[..1],
        grpc: None,
    };
    let of_1_0 = RequestedForm::Only(Generation::V1);
    let card = json(translate_card(&old().to_string(), of_1_0, &facts).unwrap());
    assert_eq!(card.get("x"), None);
    assert_eq!(card["capabilities"].get("stateTransitionHistory"), None);
    assert_eq!(card["securitySchemes"].get("?"), None);
    let flows = &card["securitySchemes"]["o"]["oauth2SecurityScheme"]["flows"];
    assert_eq!(flows.get("password"), None);
    assert_eq!(translate_card("[]", RequestedForm::Both, &facts), None);
}
