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
        card.set_text("name", name);
    }
    if card.get_text("description").is_none() {
        card.set_text("description", role.unwrap_or(name));
    }
    if card.get_text("version").is_none() {
        // `1` instead of `"1"`: the intention is clear.
        let version = card.get_of("version", Kind::Number);
        let version = version.unwrap_or(VERSION).to_owned();
        card.set_text("version", &version);
    }
    if interfaces::is_v0(card) && card.get_text("protocolVersion").is_none() {
        card.set_text("protocolVersion", PROTOCOL_VERSION);
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
    let skills = complete_skills(&card.get_list("skills"));
    card.set("skills", skills);
    complete_provider(card);
}

/// Writes the flags, with `pushNotifications` off if the gateway disables them.
pub(super) fn set_capabilities(card: &mut Fields<'_>, push_notifications: bool) {
    let mut capabilities = card.get_object("capabilities").unwrap_or_default();
    capabilities.rename(&[
        ("push_notifications", "pushNotifications"),
        ("state_transition_history", "stateTransitionHistory"),
        ("extended_agent_card", "extendedAgentCard"),
    ]);
    for flag in FLAGS {
        if capabilities.get_of(flag, Kind::Bool).is_none() {
            capabilities.remove(flag);
        }
    }
    if !push_notifications {
        capabilities.set("pushNotifications", "false");
    }
    let capabilities = capabilities.to_json();
    card.set("capabilities", capabilities);
}

fn complete_skills(skills: &[&str]) -> String {
    let mut made = 0;
    let complete = |(at, skill): (usize, &str)| {
        if let Some(name) = unescape_string(skill) {
            made += 1;
            if made > SKILLS_MADE_MAX {
                return None;
            }
            let mut fields = Fields::default();
            if !name.is_empty() {
                fields.set_text("id", &name);
            }
            complete_skill(&mut fields, at);
            return Some(fields.to_json());
        }
        let mut fields = Fields::parse(skill)?;
        fields.rename(&[
            ("input_modes", "inputModes"),
            ("output_modes", "outputModes"),
        ]);
        complete_skill(&mut fields, at);
        Some(fields.to_json())
    };
    let skills = skills.iter().copied().enumerate();
    join_array(&skills.filter_map(complete).collect::<Vec<_>>())
}

fn complete_skill(skill: &mut Fields<'_>, at: usize) {
    let id = skill.get_text("id").or_else(|| skill.get_text("name"));
    let id = id.unwrap_or_else(|| format!("skill-{}", at + 1));
    if skill.get_text("id").is_none() {
        skill.set_text("id", &id);
    }
    if skill.get_text("name").is_none() {
        skill.set_text("name", &id);
    }
    if skill.get_text("description").is_none() {
        let name = skill.get_text("name").unwrap_or(id);
        skill.set_text("description", &name);
    }
    if skill.get("tags").and_then(array_elements).is_none() {
        skill.set("tags", "[]");
    }
}

/// Completes the provider. It is optional, but must have all members if it is present.
fn complete_provider(card: &mut Fields<'_>) {
    let Some(value) = card.get_given("provider") else {
        return;
    };
    let provider = Fields::parse(value).filter(|p| p.get_text("organization").is_some());
    let provider = match provider {
        Some(provider) if provider.get_text("url").is_some() => return,
        Some(mut provider) => {
            provider.set_text("url", "");
            provider.to_json()
        }
        None => return card.remove("provider"),
    };
    card.set("provider", provider);
}

/// The security scheme in the card.
const V0_SCHEME: &str = r#""type":"http","scheme":"bearer""#;
const V1_SCHEME: &str = r#""httpAuthSecurityScheme":{"scheme":"bearer"}"#;

/// Replaces the agent's schemes by the gateway's.
pub(super) fn declare_scheme(card: &mut Fields<'_>) {
    let (v0, v1) = (interfaces::is_v0(card), interfaces::is_v1(card));
    let scheme = match (v0, v1) {
        (true, true) => format!("{V0_SCHEME},{V1_SCHEME}"),
        (true, false) => V0_SCHEME.to_owned(),
        (false, _) => V1_SCHEME.to_owned(),
    };
    card.set("securitySchemes", format!(r#"{{"bearer":{{{scheme}}}}}"#));
    if v0 {
        card.set("security", r#"[{"bearer":[]}]"#);
    } else {
        card.remove("security");
    }
    if v1 {
        let required = r#"[{"schemes":{"bearer":{"list":[]}}}]"#;
        card.set("securityRequirements", required);
    } else {
        card.remove("securityRequirements");
    }
    // The form of 0.1.
    if card.contains("authentication") {
        card.set("authentication", r#"{"schemes":["bearer"]}"#);
    }
    // They name the agent's schemes, which are removed.
    let skills = card.get_list("skills").into_iter();
    let skills: Vec<String> = skills.map(without_security).collect();
    let skills = join_array(&skills);
    card.set("skills", skills);
}

fn without_security(skill: &str) -> String {
    let Some(mut fields) = Fields::parse(skill) else {
        return skill.to_owned();
    };
    for name in ["security", "securityRequirements", "security_requirements"] {
        fields.remove(name);
    }
    fields.to_json()
}
