//! Completes a card for clients: renames members to the spelling of A2A, and fills in members that
//! its generation requires, from the registration.

use super::interfaces;
use crate::fields::{
    Fields, array_elements, join_array, quote_string, unescape_string, value_kind,
};
use crate::json::Kind;

/// Default input and output modes of an agent.
const MODES: &str = r#"["text/plain"]"#;
/// Default version of an agent.
const VERSION: &str = "0.0.0";
/// Default A2A version of a 0.x card: the one that clients assume, too.
const PROTOCOL_VERSION: &str = "0.3.0";
/// Most strings in `skills` that are converted to objects.
const SKILLS_MADE_MAX: usize = 256;

/// The flags in `capabilities`.
const FLAGS: [&str; 4] = [
    "streaming",
    "pushNotifications",
    "stateTransitionHistory",
    "extendedAgentCard",
];

/// Names in snake case, as `PocketPaw` and writers of `ProtoJSON` spell them.
const TOP: [(&str, &str); 7] = [
    ("default_input_modes", "defaultInputModes"),
    ("default_output_modes", "defaultOutputModes"),
    ("documentation_url", "documentationUrl"),
    ("icon_url", "iconUrl"),
    ("security_schemes", "securitySchemes"),
    ("security_requirements", "securityRequirements"),
    (
        "supports_authenticated_extended_card",
        "supportsAuthenticatedExtendedCard",
    ),
];

/// Renames the members that clients look for to their current names.
pub(super) fn respell_members(card: &mut Fields<'_>) {
    card.rename(&TOP);
    interfaces::respell_members(card);
}

/// Fills in members that are required and missing, or of the wrong type. `name` and `role` are
/// those of the registry.
pub(super) fn fill_missing(card: &mut Fields<'_>, name: &str, role: Option<&str>) {
    if card.get_text("name").is_none_or(|said| said.is_empty()) {
        card.set("name", quote_string(name));
    }
    if card.get_text("description").is_none() {
        card.set("description", quote_string(role.unwrap_or(name)));
    }
    if card.get_text("version").is_none() {
        // `1` instead of `"1"`: the intention is clear.
        let number = card
            .get("version")
            .filter(|v| value_kind(v) == Kind::Number);
        let version = number.unwrap_or(VERSION).to_owned();
        card.set("version", quote_string(&version));
    }
    if interfaces::is_v0(card) && card.get_text("protocolVersion").is_none() {
        card.set("protocolVersion", quote_string(PROTOCOL_VERSION));
    }
    for modes in ["defaultInputModes", "defaultOutputModes"] {
        let value = card.get(modes).unwrap_or_default();
        let list = array_elements(value)
            .is_some_and(|all| all.iter().all(|e| value_kind(e) == Kind::String));
        if !list {
            let one = unescape_string(value).map(|mode| join_array(&[quote_string(&mode)]));
            card.set(modes, one.unwrap_or_else(|| MODES.to_owned()));
        }
    }
    let skills = complete_skills(card.get("skills").unwrap_or_default());
    card.set("skills", skills);
    complete_provider(card);
}

/// Writes the flags, with `pushNotifications` off if the gateway disables them.
pub(super) fn set_capabilities(card: &mut Fields<'_>, push_notifications: bool) {
    let value = card.get("capabilities").unwrap_or_default().to_owned();
    let mut capabilities = Fields::parse(&value).unwrap_or_default();
    capabilities.rename(&[
        ("push_notifications", "pushNotifications"),
        ("state_transition_history", "stateTransitionHistory"),
        ("extended_agent_card", "extendedAgentCard"),
    ]);
    for flag in FLAGS {
        if capabilities
            .get(flag)
            .is_some_and(|v| value_kind(v) != Kind::Bool)
        {
            capabilities.remove(flag);
        }
    }
    if !push_notifications {
        capabilities.set("pushNotifications", "false");
    }
    card.set("capabilities", capabilities.to_json());
}

fn complete_skills(value: &str) -> String {
    let mut made = 0;
    let skills = array_elements(value).unwrap_or_default();
    let complete = |(at, skill): (usize, &str)| {
        if let Some(name) = unescape_string(skill) {
            made += 1;
            return (made <= SKILLS_MADE_MAX).then(|| skill_of(&name, at));
        }
        let mut fields = Fields::parse(skill)?;
        fields.rename(&[
            ("input_modes", "inputModes"),
            ("output_modes", "outputModes"),
        ]);
        complete_skill(&mut fields, at);
        Some(fields.to_json())
    };
    let complete: Vec<String> = skills
        .into_iter()
        .enumerate()
        .filter_map(complete)
        .collect();
    join_array(&complete)
}

fn skill_of(name: &str, at: usize) -> String {
    let mut fields = Fields::default();
    if !name.is_empty() {
        fields.set("id", quote_string(name));
    }
    complete_skill(&mut fields, at);
    fields.to_json()
}

fn complete_skill(skill: &mut Fields<'_>, at: usize) {
    let id = skill.get_text("id").or_else(|| skill.get_text("name"));
    let id = id.unwrap_or_else(|| format!("skill-{}", at + 1));
    if skill.get_text("id").is_none() {
        skill.set("id", quote_string(&id));
    }
    if skill.get_text("name").is_none() {
        skill.set("name", quote_string(&id));
    }
    if skill.get_text("description").is_none() {
        let name = skill.get_text("name").unwrap_or(id);
        skill.set("description", quote_string(&name));
    }
    if skill.get("tags").and_then(array_elements).is_none() {
        skill.set("tags", "[]");
    }
}

/// Completes the provider. It is optional, but must have all members if it is present.
fn complete_provider(card: &mut Fields<'_>) {
    let Some(value) = card.get("provider").map(str::to_owned) else {
        return;
    };
    let whole = Fields::parse(&value)
        .is_some_and(|p| p.get_text("organization").is_some() && p.get_text("url").is_some());
    if whole || value_kind(&value) == Kind::Null {
        return;
    }
    let Some(mut provider) = Fields::parse(&value).filter(|p| p.get_text("organization").is_some())
    else {
        card.remove("provider");
        return;
    };
    provider.set("url", quote_string(""));
    card.set("provider", provider.to_json());
}
