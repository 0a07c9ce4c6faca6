//! Agent cards of both generations, made by a seed.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

struct Cards {
    rng: StdRng,
    v0: bool,
}

/// Returns a card in the form of 0.3 or of 1.0.
pub(crate) fn card(seed: u64, v0: bool) -> Value {
    let mut made = Cards {
        rng: StdRng::seed_from_u64(seed),
        v0,
    };
    let mut card = json!({"name": "n", "description": "d", "version": "1", "defaultInputModes": ["a/b"],
        "defaultOutputModes": ["a/b", "c/d"], "capabilities": made.capabilities(), "skills": [made.skill(), made.skill()]});
    if v0 {
        card["url"] = "http://agent/".into();
        card["protocolVersion"] = "0.3.0".into();
    } else {
        card["supportedInterfaces"] = json!([{"url": "http://agent/", "protocolBinding": "JSONRPC", "protocolVersion": "0.3"}]);
    }
    let extended = made.likely().then(|| made.likely());
    match (v0, extended) {
        (true, Some(extended)) => card["supportsAuthenticatedExtendedCard"] = extended.into(),
        (false, Some(extended)) => card["capabilities"]["extendedAgentCard"] = extended.into(),
        _ => {}
    }
    for (name, value) in [
        ("provider", json!({"organization": "o", "url": "http://o/"})),
        ("documentationUrl", "http://docs/".into()),
        ("iconUrl", "http://icon/".into()),
    ] {
        if made.likely() {
            card[name] = value;
        }
    }
    if made.likely() {
        card["securitySchemes"] = made.schemes();
    }
    made.require(&mut card);
    card
}

impl Cards {
    fn likely(&mut self) -> bool {
        self.rng.random_bool(0.5)
    }

    fn capabilities(&mut self) -> Value {
        let mut capabilities = json!({});
        for name in ["streaming", "pushNotifications"] {
            if self.likely() {
                capabilities[name] = self.likely().into();
            }
        }
        if self.v0 && self.likely() {
            capabilities["stateTransitionHistory"] = true.into();
        }
        if self.likely() {
            capabilities["extensions"] = json!([{"uri": "u", "description": "d", "required": true, "params": {"n": 1.5, "k": ["v"]}}, {"uri": "v"}]);
        }
        capabilities
    }

    fn skill(&mut self) -> Value {
        let mut skill = json!({"id": "s", "name": "s", "description": "d", "tags": ["t"]});
        for name in ["examples", "inputModes", "outputModes"] {
            if self.likely() {
                skill[name] = json!(["one", "two"]);
            }
        }
        self.require(&mut skill);
        skill
    }

    /// Adds requirements in half of the cases.
    fn require(&mut self, object: &mut Value) {
        if !self.likely() {
            return;
        }
        let (name, list) = match (self.v0, self.likely()) {
            (true, true) => ("security", json!([{"a": ["s1", "s2"], "b": []}])),
            (true, false) => ("security", json!([{"a": []}, {"b": ["s"]}])),
            (false, true) => (
                "securityRequirements",
                json!([{"schemes": {"a": {"list": ["s1", "s2"]}, "b": {}}}]),
            ),
            (false, false) => (
                "securityRequirements",
                json!([{"schemes": {"a": {"list": []}}}, {"schemes": {"b": {"list": ["s"]}}}]),
            ),
        };
        object[name] = list;
    }

    fn flow(&mut self, name: &str) -> Value {
        let mut flow = json!({"scopes": {"s1": "one"}});
        if name != "implicit" {
            flow["tokenUrl"] = "http://token/".into();
        }
        if matches!(name, "implicit" | "authorizationCode") {
            flow["authorizationUrl"] = "http://login/".into();
        }
        if self.likely() {
            flow["refreshUrl"] = "http://refresh/".into();
        }
        flow
    }

    fn schemes(&mut self) -> Value {
        let names = [
            "authorizationCode",
            "clientCredentials",
            "implicit",
            "password",
        ];
        let mut flows = Map::new();
        for _ in 0..if self.v0 {
            self.rng.random_range(1..3)
        } else {
            1
        } {
            let name = names[self.rng.random_range(0..names.len())];
            flows.insert(name.to_owned(), self.flow(name));
        }
        let place = ["header", "query", "cookie"][self.rng.random_range(0..3)];
        let all = [
            ("apiKey", "apiKeySecurityScheme", json!({"name": "k"})),
            (
                "http",
                "httpAuthSecurityScheme",
                json!({"scheme": "bearer", "bearerFormat": "JWT"}),
            ),
            (
                "oauth2",
                "oauth2SecurityScheme",
                json!({"flows": flows, "oauth2MetadataUrl": "http://m/"}),
            ),
            (
                "openIdConnect",
                "openIdConnectSecurityScheme",
                json!({"openIdConnectUrl": "http://i/"}),
            ),
            ("mutualTLS", "mtlsSecurityScheme", json!({})),
        ];
        let mut schemes = Map::new();
        for (v0, v1, mut scheme) in all {
            if !self.likely() {
                continue;
            }
            if self.likely() {
                scheme["description"] = "d".into();
            }
            if v0 == "apiKey" {
                scheme[if self.v0 { "in" } else { "location" }] = place.into();
            }
            if self.v0 {
                scheme["type"] = v0.into();
            } else {
                scheme = json!({v1: scheme});
            }
            schemes.insert(v0.to_owned(), scheme);
        }
        schemes.into()
    }
}
