//! The interfaces of a card in the form of each generation, and their replacement by those of the
//! gateway.
//!
//! | Generation | Members |
//! |---|---|
//! | 0.2 | `url`: JSON-RPC |
//! | 0.3 | `url` with `preferredTransport`; `additionalInterfaces` of `url` and `transport` |
//! | 1.0 | `supportedInterfaces` of `url`, `protocolBinding`, `protocolVersion` and `tenant` |
//!
//! A hybrid card has both, and both are rewritten.

use url::Url;

use crate::fields::{Fields, join_array};
use crate::generation::Generation;
use crate::json::Kind;
use crate::rest::is_segment;

/// The version that replaces 0.2 in a card with its own spelling of the member.
const VERSION_0_3: &str = "0.3.0";

/// Default version of a 1.0 interface.
const VERSION_1: &str = "1.0";

/// The name of gRPC in cards.
const GRPC: &str = "GRPC";

/// Most interfaces of one list that are read. Real cards have up to six.
const INTERFACES_MAX: usize = 64;

/// The protocol binding of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// JSON-RPC over HTTP.
    JsonRpc,
    /// HTTP with JSON bodies, "REST".
    HttpJson,
}

impl Binding {
    /// Returns its name in cards.
    pub const fn name(self) -> &'static str {
        match self {
            Self::JsonRpc => "JSONRPC",
            Self::HttpJson => "HTTP+JSON",
        }
    }

    /// `None`: gRPC, or an unknown binding.
    fn parse(word: &str) -> Option<Self> {
        let named = |binding: &Self| word.eq_ignore_ascii_case(binding.name());
        [Self::JsonRpc, Self::HttpJson].into_iter().find(named)
    }
}

/// One interface of an agent, as its card describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The binding; `None`: gRPC, or one that the gateway does not carry.
    pub binding: Option<Binding>,
    /// True for gRPC.
    pub is_grpc: bool,
    /// The URL as the card spells it. It is not validated.
    pub url: String,
    /// The generation of A2A: by its version, or else by the member that lists it.
    pub generation: Generation,
    /// The tenant that callers must name.
    pub tenant: Option<String>,
}

impl Interface {
    /// Returns path and query of its URL, the only parts that are used. Host and port are those that
    /// were registered and vetted, so that a card cannot direct the gateway elsewhere.
    pub fn path(&self) -> Option<String> {
        let url = Url::parse(&self.url).ok()?;
        matches!(url.scheme(), "http" | "https").then(|| match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        })
    }
}

/// Renames the members of the interfaces to their current names.
pub(super) fn respell_members(card: &mut Fields<'_>) {
    let is_odd = card.contains("protocol_version") && !card.contains("protocolVersion");
    card.rename(&[
        ("preferred_transport", "preferredTransport"),
        ("protocol_version", "protocolVersion"),
        ("additional_interfaces", "additionalInterfaces"),
        ("supported_interfaces", "supportedInterfaces"),
    ]);
    // No version of A2A spells it so. Calls of 0.2 are those of 0.3, and SDKs of 1.0 accept no card
    // below that.
    if is_odd
        && card
            .get_text("protocolVersion")
            .is_some_and(|said| said.starts_with("0.2"))
    {
        card.set_text("protocolVersion", VERSION_0_3);
    }
}

/// Returns true if the card has the list of 1.0.
pub(super) fn is_v1(card: &Fields<'_>) -> bool {
    !card.get_list("supportedInterfaces").is_empty()
}

/// Returns true if clients of 0.x can find an interface in it, or if it has none at all. A `url`
/// beside a version of 1.x is none of 0.x.
pub(super) fn is_v0(card: &Fields<'_>) -> bool {
    let version = || parse_generation(card.get_text("protocolVersion"), Generation::V0);
    !is_v1(card) || card.get_text("url").is_some() && version() == Generation::V0
}

/// Returns true if the card has an address of the agent, readable or not.
pub(super) fn are_in(card: &Fields<'_>) -> bool {
    let listed = |name| !card.get_list(name).is_empty();
    let url = card.get_of("url", Kind::String).is_some();
    url || listed("supportedInterfaces") || listed("additionalInterfaces")
}

/// Returns all interfaces of the card, the preferred one first in each generation.
pub(super) fn list_interfaces(card: &Fields<'_>) -> Vec<Interface> {
    let mut found = Vec::new();
    let interface =
        |binding: Option<String>, otherwise, url: Option<String>, generation| Interface {
            binding: Binding::parse(binding.as_deref().unwrap_or(otherwise)),
            is_grpc: binding.is_some_and(|word| word.eq_ignore_ascii_case(GRPC)),
            url: url.unwrap_or_default(),
            generation,
            tenant: None,
        };
    for element in read_list(card, "supportedInterfaces") {
        let binding = element.get_text("protocolBinding");
        let generation = parse_generation(element.get_text("protocolVersion"), Generation::V1);
        found.push(Interface {
            tenant: element.get_text("tenant"),
            ..interface(binding, "JSONRPC", element.get_text("url"), generation)
        });
    }
    let generation = parse_generation(card.get_text("protocolVersion"), Generation::V0);
    if let Some(url) = card.get_text("url") {
        let transport = card.get_text("preferredTransport");
        found.push(interface(transport, "JSONRPC", Some(url), generation));
    }
    for element in read_list(card, "additionalInterfaces") {
        let transport = element.get_text("transport");
        found.push(interface(
            transport,
            "",
            element.get_text("url"),
            generation,
        ));
    }
    found
}

pub(super) fn parse_generation(version: Option<String>, otherwise: Generation) -> Generation {
    match version {
        Some(version) if version.split('.').next() == Some("0") => Generation::V0,
        Some(_) => Generation::V1,
        None => otherwise,
    }
}

/// Makes all interfaces point at `base`, where the gateway serves JSON-RPC and HTTP+JSON.
/// Interfaces with other bindings are dropped. A card left without any offers JSON-RPC, which is
/// always available.
pub(super) fn point_at(base: &str, card: &mut Fields<'_>) {
    let (v0, v1) = (is_v0(card), is_v1(card));
    if v1 {
        let list = served_v1(card, base);
        card.set("supportedInterfaces", list);
    } else {
        card.remove("supportedInterfaces");
    }
    if v0 {
        serve_v0(card, base);
    } else {
        // Without a `url` no client reads them.
        card.remove("url");
        card.remove("additionalInterfaces");
        card.remove("preferredTransport");
    }
}

fn served_v1(card: &Fields<'_>, base: &str) -> String {
    let mut version = None;
    let mut served = Vec::new();
    for mut element in read_list(card, "supportedInterfaces") {
        let stated = element.get_text("protocolVersion");
        version = version.or_else(|| stated.clone());
        let binding = element.get_text("protocolBinding");
        let Some(binding) = Binding::parse(binding.as_deref().unwrap_or("JSONRPC")) else {
            continue;
        };
        element.set_text("protocolBinding", binding.name());
        if stated.is_none() {
            element.set_text("protocolVersion", VERSION_1);
        }
        let tenant = element.get_text("tenant");
        // One that is no segment has no path in front.
        let is_served = |tenant: &str| binding == Binding::JsonRpc || is_segment(tenant);
        if !tenant.is_some_and(|tenant| is_served(&tenant)) {
            element.remove("tenant");
        }
        element.set_text("url", base);
        served.push(element.to_json());
    }
    if served.is_empty() {
        let version = version.unwrap_or_else(|| VERSION_1.to_owned());
        served.push(write_interface(base, Binding::JsonRpc, &version));
    }
    join_array(&served)
}

/// Writes an interface of 1.0.
pub(crate) fn write_interface(url: &str, binding: Binding, version: &str) -> String {
    let mut written = Fields::default();
    written.set_text("url", url);
    written.set_text("protocolBinding", binding.name());
    written.set_text("protocolVersion", version);
    written.to_json()
}

fn serve_v0(card: &mut Fields<'_>, base: &str) {
    let mut served = Vec::new();
    let mut first = None;
    for mut element in read_list(card, "additionalInterfaces") {
        let transport = element.get_text("transport");
        if let Some(binding) = transport.and_then(|word| Binding::parse(&word)) {
            first.get_or_insert(binding);
            element.set_text("transport", binding.name());
            element.set_text("url", base);
            served.push(element.to_json());
        }
    }
    if served.is_empty() {
        card.remove("additionalInterfaces");
    } else {
        card.set("additionalInterfaces", join_array(&served));
    }
    card.set_text("url", base);
    if card.contains("preferredTransport") {
        let preferred = card.get_text("preferredTransport");
        let preferred = preferred.and_then(|word| Binding::parse(&word)).or(first);
        let preferred = preferred.unwrap_or(Binding::JsonRpc);
        card.set_text("preferredTransport", preferred.name());
    }
}

/// Returns the readable elements of a list of interfaces.
fn read_list<'c>(card: &'c Fields<'_>, name: &str) -> Vec<Fields<'c>> {
    let readable = card.get_list(name).into_iter().filter_map(Fields::parse);
    let mut list: Vec<_> = readable.take(INTERFACES_MAX).collect();
    for element in &mut list {
        element.rename(&[
            ("protocol_binding", "protocolBinding"),
            ("protocol_version", "protocolVersion"),
        ]);
    }
    list
}
