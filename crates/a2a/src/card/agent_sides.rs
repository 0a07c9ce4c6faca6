//! The sides on which an agent can be called, by its card ([`AgentSides`]).

use std::sync::Arc;

use super::{Card, interfaces};
use crate::bridge::{FileBytes, Side};
use crate::fields::Fields;
use crate::generation::Generation;

/// The sides on which an agent can be called; none if no card says it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct AgentSides(Arc<[AgentSide]>);

/// One side, with the tenant that callers must name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSide {
    /// The generation and the binding.
    pub side: Side,
    /// The tenant of the interface.
    pub tenant: Option<String>,
    /// The meaning of the bytes of files, if it is HTTP+JSON of 0.3.
    pub files: FileBytes,
}

impl AgentSide {
    /// JSON-RPC of a generation.
    pub const fn json_rpc(generation: Generation) -> Self {
        Self {
            side: Side::json_rpc(generation),
            tenant: None,
            files: FileBytes::Unknown,
        }
    }
}

impl AgentSides {
    /// Reads the sides of a card: its interfaces with a binding that the gateway carries. A card without any, but
    /// with a version, is one of JSON-RPC.
    pub fn from_card(card: &Card<'_>) -> Self {
        let all = interfaces::list_interfaces(&card.fields);
        let files = read_file_bytes(&card.fields);
        let sides = all.iter().filter_map(|interface| {
            let side = Side {
                generation: interface.generation,
                binding: interface.binding?,
            };
            let tenant = interface.tenant.clone().filter(|tenant| !tenant.is_empty());
            Some(AgentSide {
                side,
                tenant,
                files,
            })
        });
        let mut sides: Vec<AgentSide> = sides.collect();
        if all.is_empty()
            && let Some(version) = card.fields.get_text("protocolVersion")
        {
            let generation = interfaces::parse_generation(Some(version), Generation::V0);
            sides.push(AgentSide::json_rpc(generation));
        }
        Self(sides.into())
    }

    /// Returns true if no card says what the agent speaks.
    pub fn is_unknown(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the sides in the order of the card.
    pub fn sides(&self) -> impl Iterator<Item = Side> {
        self.0.iter().map(|spoke| spoke.side)
    }

    /// Returns true if the card names this tenant for HTTP+JSON of 1.0.
    pub fn has_tenant(&self, tenant: &str) -> bool {
        let asked = Side::http_json(Generation::V1);
        let mut all = self.0.iter();
        all.any(|spoke| spoke.side == asked && spoke.tenant.as_deref() == Some(tenant))
    }

    /// Returns the side on which a caller's call is changed least ([`Side::find_nearest`]). `None`: no card says what
    /// the agent speaks.
    pub fn find_nearest(&self, caller: Side) -> Option<&AgentSide> {
        let nearest = caller.find_nearest(self.sides())?;
        self.0.iter().find(|spoke| spoke.side == nearest)
    }
}

/// Returns the meaning of the bytes of files for an agent with this card. Cards of a2a-sdk 0.3 for Python always have
/// these members, and all in the order of the alphabet.
fn read_file_bytes(card: &Fields<'_>) -> FileBytes {
    let version = card.get_text("protocolVersion").unwrap_or_default();
    let has_all = card.contains("capabilities") && card.contains("preferredTransport");
    let is_sorted = card.iter().map(|(name, _)| name).is_sorted();
    match has_all && is_sorted && version.starts_with("0.3") {
        true => FileBytes::Twice,
        false => FileBytes::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spoken(card: &str) -> AgentSides {
        AgentSides::from_card(&Card::parse(card.as_bytes()).unwrap())
    }

    const V0: Generation = Generation::V0;
    const V1: Generation = Generation::V1;

    #[test]
    fn a_card_says_each_side_that_it_names() {
        let cases = [
            ("{}", vec![]),
            (r#"{"name":"a"}"#, vec![]),
            (r#"{"protocolVersion":"0.3.0"}"#, vec![Side::json_rpc(V0)]),
            (r#"{"protocolVersion":"1.0"}"#, vec![Side::json_rpc(V1)]),
            (r#"{"url":"http://a"}"#, vec![Side::json_rpc(V0)]),
            (
                r#"{"url":"http://a","preferredTransport":"HTTP+JSON","protocolVersion":"0.3.0"}"#,
                vec![Side::http_json(V0)],
            ),
            (r#"{"url":"http://a","preferredTransport":"GRPC"}"#, vec![]),
            (
                r#"{"supportedInterfaces":[{"protocolBinding":"JSONRPC","protocolVersion":"1.0"},
                  {"protocolBinding":"HTTP+JSON","protocolVersion":"0.3"}],"url":"http://a"}"#,
                vec![Side::json_rpc(V1), Side::http_json(V0), Side::json_rpc(V0)],
            ),
        ];
        for (card, sides) in cases {
            assert_eq!(spoken(card).sides().collect::<Vec<_>>(), sides, "{card}");
        }
    }

    #[test]
    fn a_card_of_the_python_sdk_is_known_by_its_order() {
        let rest = r#""preferredTransport":"HTTP+JSON","protocolVersion":"0.3.0","url":"http://a""#;
        for (card, files) in [
            (
                format!(r#"{{"capabilities":{{}},"name":"a",{rest}}}"#),
                FileBytes::Twice,
            ),
            (
                format!(r#"{{"name":"a","capabilities":{{}},{rest}}}"#),
                FileBytes::Unknown,
            ),
            (format!(r#"{{"name":"a",{rest}}}"#), FileBytes::Unknown),
        ] {
            let near = spoken(&card);
            let near = near.find_nearest(Side::http_json(V0)).unwrap();
            assert_eq!((near.side, near.files), (Side::http_json(V0), files));
        }
    }

    #[test]
    fn the_nearest_side_is_the_callers_own_or_its_generation() {
        let both = spoken(
            r#"{"supportedInterfaces":[{"protocolBinding":"HTTP+JSON","protocolVersion":"1.0","tenant":"t"},
               {"protocolBinding":"JSONRPC","protocolVersion":"0.3"}]}"#,
        );
        let near = |caller| both.find_nearest(caller).unwrap();
        assert_eq!(near(Side::http_json(V1)).side, Side::http_json(V1));
        assert_eq!(near(Side::json_rpc(V1)).side, Side::http_json(V1));
        assert_eq!(near(Side::json_rpc(V1)).tenant.as_deref(), Some("t"));
        assert_eq!(near(Side::json_rpc(V0)).side, Side::json_rpc(V0));
        assert_eq!(near(Side::http_json(V0)).side, Side::json_rpc(V0));
        let only = spoken(
            r#"{"url":"http://a","preferredTransport":"HTTP+JSON","protocolVersion":"0.3.0",
               "additionalInterfaces":[{"url":"http://a","transport":"JSONRPC"}]}"#,
        );
        assert_eq!(
            only.find_nearest(Side::http_json(V1)).unwrap().side,
            Side::json_rpc(V0)
        );
        assert!(spoken("{}").find_nearest(Side::json_rpc(V1)).is_none());
    }
}
