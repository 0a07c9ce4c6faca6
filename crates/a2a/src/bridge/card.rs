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

use super::omitted_members::OmittedMembers;
use super::schemes::{Shape, convert_requirements, convert_schemes};
use super::sides::{RequestedVersion, Side, parse_version};
use crate::card::Binding;
use crate::fields::{Fields, array_elements, join_array, quote_string, value_kind};
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

    const fn includes(self, generation: Generation) -> bool {
        match self {
            Self::Both => true,
            Self::Only(only) => matches!(
                (only, generation),
                (Generation::V0, Generation::V0) | (Generation::V1, Generation::V1)
            ),
        }
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
}

/// Members of both generations, with one name and one form.
const SHARED: [&str; 8] = [
    "name",
    "description",
    "version",
    "provider",
    "documentationUrl",
    "iconUrl",
    "defaultInputModes",
    "defaultOutputModes",
];

/// Members of both with other names or forms, and of one of them.
const TRANSLATED: [&str; 12] = [
    "capabilities",
    "skills",
    "security",
    "securityRequirements",
    "securitySchemes",
    "signatures",
    "protocolVersion",
    "url",
    "preferredTransport",
    "additionalInterfaces",
    "supportedInterfaces",
    "supportsAuthenticatedExtendedCard",
];

/// Members of a skill in 1.0.
const OF_SKILL: [&str; 8] = [
    "id",
    "name",
    "description",
    "tags",
    "examples",
    "inputModes",
    "outputModes",
    "securityRequirements",
];

/// Members of `capabilities` in 1.0.
const CAPABILITIES: [&str; 4] = [
    "streaming",
    "pushNotifications",
    "extensions",
    "extendedAgentCard",
];

/// The version of 0.3's cards, and those of interfaces.
const CARD_VERSION: &str = "0.3.0";

/// Returns a card in the form that was asked for, and the members that were left out. `text` is the card as
/// [`crate::card::Card::into_served`] returned it: complete, with the gateway's address. `None`: it is no object, or
/// has a member twice.
pub fn translate_card(
    text: &str,
    asked: RequestedForm,
    facts: &Facts<'_>,
) -> Option<(String, OmittedMembers)> {
    let from = Fields::parse(text)?;
    let mut left = OmittedMembers::default();
    let mut to = Fields::default();
    let (v0, v1) = (
        asked.includes(Generation::V0),
        asked.includes(Generation::V1),
    );
    for (name, value) in from.iter() {
        let Some(name) = serde_json::from_str::<String>(name).ok() else {
            continue;
        };
        if TRANSLATED.contains(&name.as_str()) {
            continue;
        }
        if let Some(shared) = SHARED.iter().find(|shared| **shared == name) {
            if value_kind(value) != Kind::Null {
                to.set(shared, value.to_owned());
            }
        } else if v0 {
            // Clients of 0.3 take members that they do not know.
            to.push(&name, value.to_owned());
        } else {
            left.add("card", "other");
        }
    }
    for modes in ["defaultInputModes", "defaultOutputModes"] {
        if !to.contains(modes) {
            to.set(modes, "[]");
        }
    }
    write_interfaces(&from, &mut to, asked, facts);
    write_capabilities(&from, &mut to, asked, facts, &mut left);
    write_security(&from, &mut to, asked, &mut left);
    let skills = from
        .get("skills")
        .and_then(array_elements)
        .unwrap_or_default();
    let skills = skills
        .into_iter()
        .filter_map(|one| convert_skill(one, v0, v1, &mut left));
    let skills: Vec<String> = skills.collect();
    to.set("skills", join_array(&skills));
    Some((to.to_json(), left))
}

/// Returns the word of a binding in cards.
const fn binding_word(binding: Binding) -> &'static str {
    match binding {
        Binding::JsonRpc => "JSONRPC",
        Binding::HttpJson => "HTTP+JSON",
    }
}

fn write_interfaces(
    from: &Fields<'_>,
    to: &mut Fields<'_>,
    asked: RequestedForm,
    facts: &Facts<'_>,
) {
    let own = from.get("supportedInterfaces").and_then(array_elements);
    let own: Vec<Fields<'_>> = own
        .into_iter()
        .flatten()
        .filter_map(Fields::parse)
        .collect();
    if asked.includes(Generation::V1) {
        // Cards of 0.3 name their preferred interface among the additional ones, too.
        let sides = facts.sides.iter().enumerate();
        let sides = sides.filter(|(at, side)| !facts.sides[..*at].contains(side));
        let listed = sides.map(|(_, side)| {
            let same = own.iter().find(|one| is_of(one, *side));
            let written = same.map(Fields::to_json);
            written.unwrap_or_else(|| {
                let version = side.generation.version();
                format!(
                    r#"{{"url":{},"protocolBinding":"{}","protocolVersion":"{version}"}}"#,
                    quote_string(facts.base),
                    binding_word(side.binding)
                )
            })
        });
        let listed: Vec<String> = listed.collect();
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
    to.set(
        "protocolVersion",
        quote_string(stated.as_deref().unwrap_or(CARD_VERSION)),
    );
    to.set("url", quote_string(facts.base));
    to.set(
        "preferredTransport",
        quote_string(binding_word(first.binding)),
    );
    let others = sides.map(|side| {
        format!(
            r#"{{"url":{},"transport":"{}"}}"#,
            quote_string(facts.base),
            binding_word(side.binding)
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
    binding.eq_ignore_ascii_case(binding_word(side.binding))
        && said == RequestedVersion::Generation(side.generation)
}

fn write_capabilities(
    from: &Fields<'_>,
    to: &mut Fields<'_>,
    asked: RequestedForm,
    facts: &Facts<'_>,
    left: &mut OmittedMembers,
) {
    let said = from
        .get("capabilities")
        .and_then(Fields::parse)
        .unwrap_or_default();
    let extended = said
        .get("extendedAgentCard")
        .filter(|said| value_kind(said) == Kind::Bool);
    let extended = extended.or_else(|| from.get("supportsAuthenticatedExtendedCard"));
    let extended = extended
        .filter(|said| value_kind(said) == Kind::Bool)
        .map(str::to_owned);
    let mut written = Fields::default();
    for (name, value) in said.iter() {
        let Some(name) = serde_json::from_str::<String>(name).ok() else {
            continue;
        };
        let known = CAPABILITIES.contains(&name.as_str());
        if name == "extendedAgentCard" || value_kind(value) == Kind::Null {
            continue;
        }
        if known || asked.includes(Generation::V0) {
            written.push(&name, value.to_owned());
        } else {
            left.add(
                "card",
                if name == "stateTransitionHistory" {
                    "stateTransitionHistory"
                } else {
                    "other"
                },
            );
        }
    }
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

fn write_security(
    from: &Fields<'_>,
    to: &mut Fields<'_>,
    asked: RequestedForm,
    left: &mut OmittedMembers,
) {
    let shapes: &[Shape] = match asked {
        RequestedForm::Both => &[Shape::V0OneFlow, Shape::V1],
        RequestedForm::Only(Generation::V0) => &[Shape::V0],
        RequestedForm::Only(Generation::V1) => &[Shape::V1],
    };
    let said = from.get("securitySchemes");
    if let Some(schemes) = said.and_then(|said| convert_schemes(said, shapes, left)) {
        to.set("securitySchemes", schemes);
    }
    let required = from
        .get("securityRequirements")
        .or_else(|| from.get("security"));
    for (name, generation) in [
        ("security", Generation::V0),
        ("securityRequirements", Generation::V1),
    ] {
        let list = required.filter(|_| asked.includes(generation));
        if let Some(list) = list.and_then(|list| convert_requirements(list, generation)) {
            to.set(name, list);
        }
    }
}

fn convert_skill(text: &str, v0: bool, v1: bool, left: &mut OmittedMembers) -> Option<String> {
    let from = Fields::parse(text)?;
    let mut to = Fields::default();
    for (name, value) in from.iter() {
        let name = serde_json::from_str::<String>(name).ok()?;
        if matches!(name.as_str(), "security" | "securityRequirements")
            || value_kind(value) == Kind::Null
        {
            continue;
        }
        if v0 || OF_SKILL.contains(&name.as_str()) {
            to.push(&name, value.to_owned());
        } else {
            left.add("skill", "other");
        }
    }
    if !to.contains("tags") {
        to.set("tags", "[]");
    }
    let required = from
        .get("securityRequirements")
        .or_else(|| from.get("security"));
    if let Some(required) = required {
        for (is_asked, name, generation) in [
            (v0, "security", Generation::V0),
            (v1, "securityRequirements", Generation::V1),
        ] {
            if let Some(list) = convert_requirements(required, generation).filter(|_| is_asked) {
                to.set(name, list);
            }
        }
    }
    Some(to.to_json())
}
