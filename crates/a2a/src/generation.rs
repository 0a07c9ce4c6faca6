//! The generations of A2A, and the detection of an agent's generation from its card.

use serde_json::Value;

/// The two generations on the wire. Their method names, parts and roles differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Generation {
    /// 0.x: `message/send`, parts with `kind`, role `user`. Also the default for cards without a
    /// version.
    #[default]
    V0,
    /// 1.x: `SendMessage`, bare parts, role `ROLE_USER`.
    V1,
}

impl Generation {
    /// Returns the version, as `A2A-Version` has it.
    pub const fn version(self) -> &'static str {
        match self {
            Self::V0 => "0.3",
            Self::V1 => "1.0",
        }
    }

    /// Returns the other one.
    pub const fn other(self) -> Self {
        match self {
            Self::V0 => Self::V1,
            Self::V1 => Self::V0,
        }
    }

    /// Detects the generation from an agent card.
    ///
    /// [`Generation::V1`] if it has a JSON-RPC interface of 1.x (`supportedInterfaces`, A2A 1.0,
    /// 4.4.6), or a `protocolVersion` of 1.x, and offers no 0.x: no JSON-RPC interface of 0.x, no
    /// `protocolVersion` of 0.x, no `url` beside the list. A hybrid card offers both and counts as
    /// 0.x, which each client can read.
    pub fn from_card(card: &Value) -> Self {
        let major = |version: &Value| version.as_str().map(|v| v.split('.').next() == Some("0"));
        let stated = major(&card["protocolVersion"]);
        let interfaces = card["supportedInterfaces"].as_array();
        let rpc: Vec<bool> = interfaces
            .into_iter()
            .flatten()
            .filter(|interface| {
                interface["protocolBinding"]
                    .as_str()
                    .is_some_and(|binding| binding.eq_ignore_ascii_case("JSONRPC"))
            })
            // The list was introduced in 1.0: an interface without a version is of 1.0.
            .map(|interface| major(&interface["protocolVersion"]).unwrap_or(false))
            .collect();
        let old_url = card["url"].is_string() && stated.is_none();
        let offers_old = stated == Some(true) || rpc.contains(&true) || old_url;
        let offers_new = stated == Some(false) || rpc.contains(&false);
        if offers_new && !offers_old {
            Self::V1
        } else {
            Self::V0
        }
    }

    /// Returns the generation with a method of this name: all of 0.x contain a slash.
    pub fn of_method(name: &str) -> Self {
        if name.contains('/') {
            Self::V0
        } else {
            Self::V1
        }
    }

    /// Returns the role of a message's author, as JSON.
    pub(super) const fn user_role(self) -> &'static str {
        match self {
            Self::V0 => r#""user""#,
            Self::V1 => r#""ROLE_USER""#,
        }
    }

    /// Returns the text in front of the string in `[{…"text":"hi"}]`.
    pub(super) const fn text_parts_open(self) -> &'static str {
        match self {
            Self::V0 => r#"[{"kind":"text","text":"#,
            Self::V1 => r#"[{"text":"#,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_card_tells_its_generation() {
        let interface = |version: &str| json!({"url": "http://a", "protocolBinding": "JSONRPC", "protocolVersion": version});
        let cases = [
            (json!(null), Generation::V0),
            (json!({}), Generation::V0),
            (json!({"name": "a", "url": "http://a"}), Generation::V0),
            (
                json!({"url": "http://a", "protocolVersion": "0.3.0"}),
                Generation::V0,
            ),
            (
                json!({"supportedInterfaces": [interface("1.0")]}),
                Generation::V1,
            ),
            (
                json!({"supportedInterfaces": [interface("1.1.2")]}),
                Generation::V1,
            ),
            (
                json!({"supportedInterfaces": [interface("0.3")]}),
                Generation::V0,
            ),
            (
                json!({"supportedInterfaces": [interface("1.0"), interface("0.3")]}),
                Generation::V0,
            ),
            (
                json!({"supportedInterfaces": [interface("1.0")], "url": "http://a"}),
                Generation::V0,
            ),
            (
                json!({"supportedInterfaces": [interface("1.0")], "protocolVersion": "0.3.0"}),
                Generation::V0,
            ),
            (
                json!({"supportedInterfaces": [{"url": "a:1", "protocolBinding": "GRPC", "protocolVersion": "1.0"}]}),
                Generation::V0,
            ),
            (
                json!({"supportedInterfaces": [{"url": "http://a", "protocolBinding": "JSONRPC"}]}),
                Generation::V1,
            ),
            (
                json!({"supportedInterfaces": {}, "protocolVersion": 1}),
                Generation::V0,
            ),
            (
                json!({"protocolVersion": "1.0", "url": "http://a"}),
                Generation::V1,
            ),
        ];
        for (card, generation) in cases {
            assert_eq!(Generation::from_card(&card), generation, "{card}");
        }
    }
}
