//! The sides on which an agent can be called, by its card ([`AgentSides`]).

use std::sync::Arc;

use super::{Binding, Card, interfaces};
use crate::bridge::{FileBytes, Side};
use crate::fields::Fields;
use crate::generation::Generation;

/// The sides on which an agent can be called; none if no card says it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct AgentSides(Arc<[AgentSide]>);

/// The carrier of the calls of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// JSON-RPC over HTTP.
    JsonRpc,
    /// HTTP with JSON bodies.
    HttpJson,
    /// gRPC.
    Grpc,
}

impl Carrier {
    /// Returns its name in `X-A2A-Bridged`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::JsonRpc => "jsonrpc",
            Self::HttpJson => "http+json",
            Self::Grpc => "grpc",
        }
    }
}

impl From<Binding> for Carrier {
    fn from(binding: Binding) -> Self {
        match binding {
            Binding::JsonRpc => Self::JsonRpc,
            Binding::HttpJson => Self::HttpJson,
        }
    }
}

/// One side, with the tenant that callers must name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSide {
    /// The generation and the binding: of gRPC JSON-RPC, since its messages are those in protobuf.
    pub side: Side,
    /// The URL, if it is gRPC.
    pub grpc: Option<Arc<str>>,
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
            grpc: None,
            tenant: None,
            files: FileBytes::Unknown,
        }
    }

    /// Returns what carries its calls.
    pub fn carrier(&self) -> Carrier {
        match self.grpc {
            Some(_) => Carrier::Grpc,
            None => self.side.binding.into(),
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
                binding: match interface.is_grpc {
                    true => Binding::JsonRpc,
                    false => interface.binding?,
                },
            };
            let grpc = interface.is_grpc.then(|| interface.url.as_str().into());
            let tenant = interface.tenant.clone().filter(|tenant| !tenant.is_empty());
            Some(AgentSide {
                side,
                grpc,
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

    /// Returns all sides in the order of the card.
    pub fn all(&self) -> impl Iterator<Item = &AgentSide> {
        self.0.iter()
    }

    /// Returns true if the card names this tenant for HTTP+JSON of 1.0.
    pub fn has_tenant(&self, tenant: &str) -> bool {
        let asked = Side::http_json(Generation::V1);
        let mut all = self.0.iter();
        all.any(|spoke| spoke.side == asked && spoke.tenant.as_deref() == Some(tenant))
    }

    /// Returns the sides in the order of the card, but for those of gRPC.
    pub fn sides(&self) -> impl Iterator<Item = Side> {
        let over_http = self.0.iter().filter(|spoke| spoke.grpc.is_none());
        over_http.map(|spoke| spoke.side)
    }

    /// Returns true if it is called by gRPC only.
    pub fn is_grpc_only(&self) -> bool {
        !self.is_unknown() && self.sides().next().is_none()
    }

    /// Returns the side on which a caller's call is changed least. `None`: no card says what the agent speaks.
    pub fn find_nearest(&self, caller: Side) -> Option<&AgentSide> {
        self.choose((caller, caller.binding.into()), None)
    }

    /// Returns the side for a call: one that is carried as is `wanted`, in the caller's generation if there is one.
    /// There its own carrier comes first, then JSON-RPC, HTTP+JSON and gRPC. gRPC of 0.3 is the last of all: it cannot
    /// be called. `None`: no card says what the agent speaks.
    pub fn choose(
        &self,
        (caller, by): (Side, Carrier),
        wanted: Option<Carrier>,
    ) -> Option<&AgentSide> {
        self.0.iter().min_by_key(|spoke| {
            let (carrier, is_other) = (spoke.carrier(), spoke.side.generation != caller.generation);
            let far = match carrier {
                _ if carrier == by && !is_other => 0,
                Carrier::JsonRpc => 1,
                Carrier::HttpJson => 2,
                Carrier::Grpc => 3,
            };
            let is_closed = carrier == Carrier::Grpc && spoke.side.generation == Generation::V0;
            let is_unwanted = wanted.is_some_and(|wanted| wanted != carrier);
            (is_closed, is_unwanted, is_other, far)
        })
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

    #[test]
    fn grpc_is_chosen_by_its_callers_by_a_setting_and_where_there_is_nothing_else() {
        let all = spoken(
            r#"{"supportedInterfaces":[{"protocolBinding":"GRPC","protocolVersion":"1.0","url":"a:1"},
               {"protocolBinding":"HTTP+JSON","protocolVersion":"1.0"},
               {"protocolBinding":"GRPC","protocolVersion":"0.3","url":"a:2"}]}"#,
        );
        let choose = |caller, by, wanted| all.choose((caller, by), wanted).unwrap().carrier();
        let (rpc, rest) = (Side::json_rpc(V1), Side::http_json(V0));
        assert_eq!(choose(rpc, Carrier::Grpc, None), Carrier::Grpc);
        assert_eq!(choose(rpc, Carrier::JsonRpc, None), Carrier::HttpJson);
        assert_eq!(choose(rest, Carrier::HttpJson, None), Carrier::HttpJson);
        assert_eq!(
            choose(rest, Carrier::HttpJson, Some(Carrier::Grpc)),
            Carrier::Grpc
        );
        assert_eq!(
            choose(rpc, Carrier::Grpc, Some(Carrier::JsonRpc)),
            Carrier::Grpc
        );
        assert_eq!(all.sides().collect::<Vec<_>>(), [Side::http_json(V1)]);
        assert!(!all.is_grpc_only());
        let only = spoken(r#"{"url":"a:1","preferredTransport":"GRPC","protocolVersion":"0.3.0"}"#);
        assert!(only.is_grpc_only());
        let closed = only.find_nearest(Side::json_rpc(V1)).unwrap();
        assert_eq!(
            (closed.grpc.as_deref(), closed.side.generation),
            (Some("a:1"), V0)
        );
    }
}
