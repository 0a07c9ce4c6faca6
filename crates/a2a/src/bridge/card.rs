//! Cards in the form that their reader asked for ([`translate_card`]).
//!
//! | Asked for with | Form |
//! |---|---|
//! | no `A2A-Version` | the members of both generations; security schemes in both shapes, with at most one OAuth flow |
//! | `A2A-Version: 1.0` | 1.0 |
//! | `A2A-Version: 0.3`, `agent.json` | 0.3 |
//!
//! The answer differs by that field, so it says `Vary: A2A-Version` in each case. A card that was changed has
//! no signature; the gateway adds its own afterwards.

use super::schemes::{Shape, convert_requirements, convert_schemes};
use super::sides::{RequestedVersion, Side, parse_version};
use crate::card::write_interface;
use crate::fields::{Fields, join_array, quote_string, unescape_string, value_kind};
use crate::generation::Generation;
use crate::json::Kind;

/// The value of `Vary`, in each answer with a card.
pub const VARY: &str = "A2A-Version";

/// The form in which a card is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestedForm {
    /// Not said: the members of both generations.
    Both,
    /// That of one generation.
    Only(Generation),
}

impl RequestedForm {
    /// Returns the form for a request with this `A2A-Version`. `is_old_path`: `agent.json`, which only clients
    /// of 0.2 and 0.3 read.
    pub fn from_version(asked: Option<&str>, is_old_path: bool) -> Self {
        match parse_version(asked) {
            _ if is_old_path => Self::Only(Generation::V0),
            RequestedVersion::Generation(generation) => Self::Only(generation),
            RequestedVersion::Nothing | RequestedVersion::Unknown => Self::Both,
        }
    }

    fn includes(self, generation: Generation) -> bool {
        self != Self::Only(generation.other())
    }
}

/// Facts about the agent behind a card.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The URL at which callers reach the agent.
    pub base: &'a str,
    /// All that callers can use there: what the agent speaks itself, then what the gateway translates.
    pub sides: &'a [Side],
    /// The generations that the agent speaks itself. Push notifications work in these alone.
    pub native: &'a [Generation],
    /// Where callers can use it by gRPC.
    pub grpc: Option<GrpcInterface<'a>>,
}

/// The gateway's interface of gRPC for one agent.
#[derive(Clone, Copy, Debug)]
pub struct GrpcInterface<'a> {
    /// Host and port of the gateway.
    pub authority: &'a str,
    /// The workspace, and behind a slash the agent's own tenant if it has one.
    pub tenant: &'a str,
}

/// The members of one object of a card.
struct Members {
    /// Those that are written apart: they have other names or forms, or are of one generation.
    apart: &'static str,
    /// The others of 1.0.
    known: &'static str,
    /// True if one without a value is left out, whatever its name.
    omits_null: bool,
}

const CARD: Members = Members {
    apart: "capabilities skills security securityRequirements securitySchemes signatures protocolVersion url \
            preferredTransport additionalInterfaces supportedInterfaces supportsAuthenticatedExtendedCard",
    known: "name description version provider documentationUrl iconUrl defaultInputModes defaultOutputModes",
    omits_null: false,
};

const SKILL: Members = Members {
    apart: "security securityRequirements",
    known: "id name description tags examples inputModes outputModes",
    omits_null: true,
};

const CAPABILITIES: Members = Members {
    apart: "extendedAgentCard",
    known: "streaming pushNotifications extensions",
    omits_null: true,
};

impl Members {
    /// Copies the members of an object that are not written apart. Clients of 0.3 take members that they do not know;
    /// others are omitted for those of 1.0.
    fn copy(&self, from: &Fields<'_>, to: &mut Fields<'_>, asked: RequestedForm) {
        let has = |list: &str, name: &str| list.split_ascii_whitespace().any(|one| one == name);
        for (name, value) in from.iter() {
            let name = unescape_string(name).filter(|name| !has(self.apart, name));
            let Some(name) = name else { continue };
            let is_known = has(self.known, &name);
            if (is_known || self.omits_null) && value_kind(value) == Kind::Null {
                continue;
            }
            if is_known || asked.includes(Generation::V0) {
                to.push(&name, value.to_owned());
            }
        }
    }
}

/// The version of 0.3's cards, and those of interfaces.
const CARD_VERSION: &str = "0.3.0";

/// Returns a card in the form that was asked for. `text` is the card as
/// [`crate::card::Card::into_served`] returned it: complete, with the gateway's address. `None`: it is no object, or
/// has a member twice.
pub fn translate_card(text: &str, asked: RequestedForm, facts: &Facts<'_>) -> Option<String> {
    let from = Fields::parse(text)?;
    let mut to = Fields::default();
    CARD.copy(&from, &mut to, asked);
    for modes in ["defaultInputModes", "defaultOutputModes"] {
        if !to.contains(modes) {
            to.set(modes, "[]");
        }
    }
    write_interfaces(&from, &mut to, asked, facts);
    write_capabilities(&from, &mut to, asked, facts);
    write_security(&from, &mut to, asked);
    let skills = from.get_list("skills").into_iter();
    let skills = skills.filter_map(|one| convert_skill(one, asked));
    to.set("skills", join_array(&skills.collect::<Vec<_>>()));
    Some(to.to_json())
}

fn write_interfaces(
    from: &Fields<'_>,
    to: &mut Fields<'_>,
    asked: RequestedForm,
    facts: &Facts<'_>,
) {
    let own = from.get_list("supportedInterfaces").into_iter();
    let own: Vec<Fields<'_>> = own.filter_map(Fields::parse).collect();
    if asked.includes(Generation::V1) {
        // Cards of 0.3 name their preferred interface among the additional ones, too.
        let sides = facts.sides.iter().enumerate();
        let sides = sides.filter(|(at, side)| !facts.sides[..*at].contains(side));
        let listed = sides.map(|(_, side)| {
            let same = own.iter().find(|one| is_of(one, *side));
            let written = same.map(Fields::to_json);
            written.unwrap_or_else(|| {
                write_interface(facts.base, side.binding, side.generation.version())
            })
        });
        let mut listed: Vec<String> = listed.collect();
        listed.extend(facts.grpc.map(|grpc| {
            let mut written = Fields::default();
            written.set_text("url", grpc.authority);
            written.set_text("protocolBinding", "GRPC");
            written.set_text("protocolVersion", "1.0");
            written.set_text("tenant", grpc.tenant);
            written.to_json()
        }));
        to.set("supportedInterfaces", join_array(&listed));
    }
    if !asked.includes(Generation::V0) {
        return;
    }
    let mut sides = facts
        .sides
        .iter()
        .filter(|side| side.generation == Generation::V0);
    let Some(first) = sides.next() else {
        return;
    };
    let stated = from
        .get_text("protocolVersion")
        .filter(|stated| stated.starts_with("0."));
    to.set_text("protocolVersion", stated.as_deref().unwrap_or(CARD_VERSION));
    to.set_text("url", facts.base);
    to.set_text("preferredTransport", first.binding.name());
    let others = sides.map(|side| {
        format!(
            r#"{{"url":{},"transport":"{}"}}"#,
            quote_string(facts.base),
            side.binding.name()
        )
    });
    let others: Vec<String> = others.collect();
    if !others.is_empty() {
        to.set("additionalInterfaces", join_array(&others));
    }
}

/// Returns true if an interface of 1.0's list is of this side.
fn is_of(interface: &Fields<'_>, side: Side) -> bool {
    let binding = interface.get_text("protocolBinding").unwrap_or_default();
    let said = parse_version(interface.get_text("protocolVersion").as_deref());
    binding.eq_ignore_ascii_case(side.binding.name())
        && said == RequestedVersion::Generation(side.generation)
}

fn write_capabilities(
    from: &Fields<'_>,
    to: &mut Fields<'_>,
    asked: RequestedForm,
    facts: &Facts<'_>,
) {
    let said = from.get_object("capabilities").unwrap_or_default();
    let extended = said
        .get_of("extendedAgentCard", Kind::Bool)
        .or_else(|| from.get_of("supportsAuthenticatedExtendedCard", Kind::Bool))
        .map(str::to_owned);
    let mut written = Fields::default();
    CAPABILITIES.copy(&said, &mut written, asked);
    // Clients of 0.3 do not say what they read; those of 1.0 use an agent's own interface, which comes first.
    let reader = match asked {
        RequestedForm::Both => Generation::V0,
        RequestedForm::Only(generation) => generation,
    };
    if !facts.native.contains(&reader) {
        written.set("pushNotifications", "false");
    }
    if let Some(extended) = &extended
        && asked.includes(Generation::V1)
    {
        written.set("extendedAgentCard", extended.clone());
    }
    to.set("capabilities", written.to_json());
    if let Some(extended) = extended
        && asked.includes(Generation::V0)
    {
        to.set("supportsAuthenticatedExtendedCard", extended);
    }
}

fn write_security(from: &Fields<'_>, to: &mut Fields<'_>, asked: RequestedForm) {
    let shapes: &[Shape] = match asked {
        RequestedForm::Both => &[Shape::V0OneFlow, Shape::V1],
        RequestedForm::Only(Generation::V0) => &[Shape::V0],
        RequestedForm::Only(Generation::V1) => &[Shape::V1],
    };
    let said = from.get("securitySchemes");
    if let Some(schemes) = said.and_then(|said| convert_schemes(said, shapes)) {
        to.set("securitySchemes", schemes);
    }
    write_requirements(from, to, asked);
}

/// Writes the requirements of a card or a skill.
fn write_requirements(from: &Fields<'_>, to: &mut Fields<'_>, asked: RequestedForm) {
    let required = from
        .get("securityRequirements")
        .or_else(|| from.get("security"));
    let Some(required) = required else { return };
    for (name, generation) in [
        ("security", Generation::V0),
        ("securityRequirements", Generation::V1),
    ] {
        let list = convert_requirements(required, generation);
        if let Some(list) = list.filter(|_| asked.includes(generation)) {
            to.set(name, list);
        }
    }
}

fn convert_skill(text: &str, asked: RequestedForm) -> Option<String> {
    let from = Fields::parse(text)?;
    let mut to = Fields::default();
    SKILL.copy(&from, &mut to, asked);
    if !to.contains("tags") {
        to.set("tags", "[]");
    }
    write_requirements(&from, &mut to, asked);
    Some(to.to_json())
}
