//! Declares in a card how callers authenticate: to the gateway, by a bearer token, independently of
//! the agent's own scheme. In the form of the card's generation; of both in a hybrid card.

use super::interfaces;
use crate::fields::{Fields, join_array};

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
