//! Cards in the form that their reader asked for ([`card`]).
//!
//! | Asked for with | Form |
//! |---|---|
//! | no `A2A-Version` | the members of both generations; security schemes in 0.3's shape, with at most one OAuth flow |
//! | `A2A-Version: 1.0` | 1.0 |
//! | `A2A-Version: 0.3`, `agent.json` | 0.3 |
//!
//! The answer differs by that field, so it says `Vary: A2A-Version` in each case. A card that was changed has
//! no signature; the gateway adds its own afterwards.

use super::left_out::LeftOut;
use super::schemes::{Shape, requirements, schemes};
use super::sides::{Said, Side, said as version};
use crate::card::Binding;
use crate::fields::{Fields, array, elements, kind, quoted};
use crate::generation::Generation;
use crate::json::Kind;

/// The value of `Vary`, in each answer with a card.
pub const VARY: &str = "A2A-Version";

/// The form in which a card is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
    /// Not said: the members of both generations.
    Both,
    /// That of one generation.
    Only(Generation),
}

impl Asked {
    /// Returns the form for a request with this `A2A-Version`. `is_old_path`: `agent.json`, which only clients
    /// of 0.2 and 0.3 read.
    pub fn of(asked: Option<&str>, is_old_path: bool) -> Self {
        match version(asked) {
            _ if is_old_path => Self::Only(Generation::V0),
            Said::Generation(generation) => Self::Only(generation),
            Said::Nothing | Said::Unknown => Self::Both,
        }
    }

    const fn has(self, generation: Generation) -> bool {
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
/// [`crate::card::Card::served`] returned it: complete, with the gateway's address. `None`: it is no object, or
/// has a member twice.
pub fn card(text: &str, asked: Asked, facts: &Facts<'_>) -> Option<(String, LeftOut)> {
    let from = Fields::read(text)?;
    let mut left = LeftOut::default();
    let mut to = Fields::default();
    let (v0, v1) = (asked.has(Generation::V0), asked.has(Generation::V1));
    for (name, value) in from.iter() {
        let Some(name) = serde_json::from_str::<String>(name).ok() else {
            continue;
        };
        if TRANSLATED.contains(&name.as_str()) {
            continue;
        }
        if let Some(shared) = SHARED.iter().find(|shared| **shared == name) {
            if kind(value) != Kind::Null {
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
        if !to.has(modes) {
            to.set(modes, "[]");
        }
    }
    interfaces(&from, &mut to, asked, facts);
    capabilities(&from, &mut to, asked, facts, &mut left);
    security(&from, &mut to, asked, &mut left);
    let skills = from.get("skills").and_then(elements).unwrap_or_default();
    let skills = skills
        .into_iter()
        .filter_map(|one| skill(one, v0, v1, &mut left));
    let skills: Vec<String> = skills.collect();
    to.set("skills", array(&skills));
    Some((to.write(), left))
}

/// Returns the word of a binding in cards.
const fn word(binding: Binding) -> &'static str {
    match binding {
        Binding::JsonRpc => "JSONRPC",
        Binding::HttpJson => "HTTP+JSON",
    }
}

fn interfaces(from: &Fields<'_>, to: &mut Fields<'_>, asked: Asked, facts: &Facts<'_>) {
    let own = from.get("supportedInterfaces").and_then(elements);
    let own: Vec<Fields<'_>> = own.into_iter().flatten().filter_map(Fields::read).collect();
    if asked.has(Generation::V1) {
        // Cards of 0.3 name their preferred interface among the additional ones, too.
        let sides = facts.sides.iter().enumerate();
        let sides = sides.filter(|(at, side)| !facts.sides[..*at].contains(side));
        let listed = sides.map(|(_, side)| {
            let same = own.iter().find(|one| is_of(one, *side));
            let written = same.map(Fields::write);
            written.unwrap_or_else(|| {
                let version = side.generation.version();
                format!(
                    r#"{{"url":{},"protocolBinding":"{}","protocolVersion":"{version}"}}"#,
                    quoted(facts.base),
                    word(side.binding)
                )
            })
        });
        let listed: Vec<String> = listed.collect();
        to.set("supportedInterfaces", array(&listed));
    }
    if !asked.has(Generation::V0) {
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
        .text("protocolVersion")
        .filter(|stated| stated.starts_with("0."));
    to.set(
        "protocolVersion",
        quoted(stated.as_deref().unwrap_or(CARD_VERSION)),
    );
    to.set("url", quoted(facts.base));
    to.set("preferredTransport", quoted(word(first.binding)));
    let others = sides.map(|side| {
        format!(
            r#"{{"url":{},"transport":"{}"}}"#,
            quoted(facts.base),
            word(side.binding)
        )
    });
    let others: Vec<String> = others.collect();
    if !others.is_empty() {
        to.set("additionalInterfaces", array(&others));
    }
}

/// Returns true if an interface of 1.0's list is of this side.
fn is_of(interface: &Fields<'_>, side: Side) -> bool {
    let binding = interface.text("protocolBinding").unwrap_or_default();
    let said = version(interface.text("protocolVersion").as_deref());
    binding.eq_ignore_ascii_case(word(side.binding)) && said == Said::Generation(side.generation)
}

fn capabilities(
    from: &Fields<'_>,
    to: &mut Fields<'_>,
    asked: Asked,
    facts: &Facts<'_>,
    left: &mut LeftOut,
) {
    let said = from
        .get("capabilities")
        .and_then(Fields::read)
        .unwrap_or_default();
    let extended = said
        .get("extendedAgentCard")
        .filter(|said| kind(said) == Kind::Bool);
    let extended = extended.or_else(|| from.get("supportsAuthenticatedExtendedCard"));
    let extended = extended
        .filter(|said| kind(said) == Kind::Bool)
        .map(str::to_owned);
    let mut written = Fields::default();
    for (name, value) in said.iter() {
        let Some(name) = serde_json::from_str::<String>(name).ok() else {
            continue;
        };
        let known = CAPABILITIES.contains(&name.as_str());
        if name == "extendedAgentCard" || kind(value) == Kind::Null {
            continue;
        }
        if known || asked.has(Generation::V0) {
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
        Asked::Both => Generation::V0,
        Asked::Only(generation) => generation,
    };
    if !facts.native.contains(&reader) {
        written.set("pushNotifications", "false");
    }
    if let Some(extended) = &extended
        && asked.has(Generation::V1)
    {
        written.set("extendedAgentCard", extended.clone());
    }
    to.set("capabilities", written.write());
    if let Some(extended) = extended
        && asked.has(Generation::V0)
    {
        to.set("supportsAuthenticatedExtendedCard", extended);
    }
}

fn security(from: &Fields<'_>, to: &mut Fields<'_>, asked: Asked, left: &mut LeftOut) {
    let shape = match asked {
        Asked::Both => Shape::V0OneFlow,
        Asked::Only(Generation::V0) => Shape::V0,
        Asked::Only(Generation::V1) => Shape::V1,
    };
    let said = from.get("securitySchemes");
    if let Some(schemes) = said.and_then(|said| schemes(said, shape, left)) {
        to.set("securitySchemes", schemes);
    }
    let required = from
        .get("securityRequirements")
        .or_else(|| from.get("security"));
    for (name, generation) in [
        ("security", Generation::V0),
        ("securityRequirements", Generation::V1),
    ] {
        let list = required.filter(|_| asked.has(generation));
        if let Some(list) = list.and_then(|list| requirements(list, generation)) {
            to.set(name, list);
        }
    }
}

fn skill(text: &str, v0: bool, v1: bool, left: &mut LeftOut) -> Option<String> {
    let from = Fields::read(text)?;
    let mut to = Fields::default();
    for (name, value) in from.iter() {
        let name = serde_json::from_str::<String>(name).ok()?;
        if matches!(name.as_str(), "security" | "securityRequirements") || kind(value) == Kind::Null
        {
            continue;
        }
        if v0 || OF_SKILL.contains(&name.as_str()) {
            to.push(&name, value.to_owned());
        } else {
            left.add("skill", "other");
        }
    }
    if !to.has("tags") {
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
            if let Some(list) = requirements(required, generation).filter(|_| is_asked) {
                to.set(name, list);
            }
        }
    }
    Some(to.write())
}
