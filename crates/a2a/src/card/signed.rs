//! The signed content of a card (A2A 1.0, 8.4): all of it except its signatures.
//!
//! Verifiers differ in their reading of this. Some canonicalise the document as it was sent. The
//! SDKs first parse it into the types of A2A 1.0 and canonicalise those: that drops members unknown
//! to 1.0, converts those of 0.x, and drops empty ones and `null`s. If the two forms differ, the
//! card gets a signature over each: either kind of verifier needs only one that it can verify.

use serde_json::{Map, Value, json};

use crate::bridge::schemes::TYPES;
use crate::fields::Fields;

/// The parts of a value that remain when it is parsed into the types of 1.0.
enum Shape {
    /// All of it.
    Any,
    /// A flag that is absent while it is off.
    Flag,
    /// These members.
    Object(&'static [(&'static str, Shape)]),
    /// Elements of one shape.
    List(&'static Shape),
    /// Values of one shape under any name.
    Map(&'static Shape),
}

use Shape::{Any, Flag, List, Object};

const REQUIREMENT: Shape = Object(&[("schemes", Shape::Map(&Object(&[("list", Any)])))]);

const CARD: Shape = Object(&[
    ("name", Any),
    ("description", Any),
    (
        "supportedInterfaces",
        List(&Object(&[
            ("url", Any),
            ("protocolBinding", Any),
            ("tenant", Any),
            ("protocolVersion", Any),
        ])),
    ),
    ("provider", Object(&[("url", Any), ("organization", Any)])),
    ("version", Any),
    ("documentationUrl", Any),
    (
        "capabilities",
        Object(&[
            ("streaming", Any),
            ("pushNotifications", Any),
            (
                "extensions",
                List(&Object(&[
                    ("uri", Any),
                    ("description", Any),
                    ("required", Flag),
                    ("params", Any),
                ])),
            ),
            ("extendedAgentCard", Any),
        ]),
    ),
    ("securitySchemes", Any),
    ("securityRequirements", List(&REQUIREMENT)),
    ("defaultInputModes", Any),
    ("defaultOutputModes", Any),
    (
        "skills",
        List(&Object(&[
            ("id", Any),
            ("name", Any),
            ("description", Any),
            ("tags", Any),
            ("examples", Any),
            ("inputModes", Any),
            ("outputModes", Any),
            ("securityRequirements", List(&REQUIREMENT)),
        ])),
    ),
    ("iconUrl", Any),
]);

/// Returns the forms of a served card that are signed: the document, and, if it differs, the form
/// that the SDKs canonicalise. `None`: it has a number or a string without a canonical form.
pub fn signed_forms(card: &str) -> Option<Vec<Value>> {
    let mut document: Value = serde_json::from_str(card).ok()?;
    document.as_object_mut()?.remove("signatures");
    let mut known = document.clone();
    modernise_card(known.as_object_mut()?);
    let known = drop_empty(retain_shape(known, &CARD)).unwrap_or_else(|| json!({}));
    let mut forms = vec![document];
    if known != forms[0] {
        forms.push(known);
    }
    Some(forms)
}

/// Returns the card with `signatures`, each a JSON object.
pub fn with_signatures(card: &str, signatures: &[Value]) -> String {
    let Some(mut fields) = Fields::parse(card) else {
        return card.to_owned();
    };
    fields.set("signatures", Value::from(signatures).to_string());
    fields.to_json()
}

/// Converts members of 0.x to those of 1.0.
fn modernise_card(card: &mut Map<String, Value>) {
    let version = card.remove("protocolVersion").unwrap_or("0.3.0".into());
    let main = card.remove("url");
    let transport = card
        .remove("preferredTransport")
        .unwrap_or("JSONRPC".into());
    let more = card.remove("additionalInterfaces");
    if let (false, Some(url)) = (card.contains_key("supportedInterfaces"), main) {
        let interface = |url: &Value, binding: &Value| json!({"url": url, "protocolBinding": binding, "protocolVersion": version});
        let more = more.as_ref().and_then(Value::as_array);
        let more = more.into_iter().flatten();
        let all = std::iter::once(interface(&url, &transport))
            .chain(more.map(|one| interface(&one["url"], &one["transport"])));
        let all: Vec<Value> = all.collect();
        card.insert("supportedInterfaces".into(), all.into());
    }
    if card.remove("supportsAuthenticatedExtendedCard") == Some(Value::Bool(true))
        && let Some(capabilities) = card.get_mut("capabilities").and_then(Value::as_object_mut)
    {
        let flag = capabilities.entry("extendedAgentCard");
        flag.or_insert(Value::Bool(true));
    }
    modernise_requirements(card);
    let skills = card.get_mut("skills").and_then(Value::as_array_mut);
    for skill in skills.into_iter().flatten() {
        if let Some(skill) = skill.as_object_mut() {
            modernise_requirements(skill);
        }
    }
    let schemes = card
        .get_mut("securitySchemes")
        .and_then(Value::as_object_mut);
    for scheme in schemes.into_iter().flat_map(Map::values_mut) {
        modernise_scheme(scheme);
    }
}

fn modernise_requirements(of: &mut Map<String, Value>) {
    let Some(Value::Array(old)) = of.remove("security") else {
        return;
    };
    if of.contains_key("securityRequirements") {
        return;
    }
    let requirement = |old: &Value| {
        let schemes = old.as_object().into_iter().flatten();
        let schemes = schemes.map(|(name, scopes)| (name.clone(), json!({"list": scopes})));
        json!({"schemes": schemes.collect::<Map<_, _>>()})
    };
    let new: Vec<Value> = old.iter().map(requirement).collect();
    of.insert("securityRequirements".into(), new.into());
}

fn modernise_scheme(scheme: &mut Value) {
    let Some(members) = scheme.as_object_mut() else {
        return;
    };
    let said = members.remove("type");
    let said = said.as_ref().and_then(Value::as_str);
    let Some((_, named, _)) = TYPES.into_iter().find(|(v0, ..)| said == Some(*v0)) else {
        return;
    };
    if let Some(place) = members.remove("in") {
        members.insert("location".into(), place);
    }
    // The other half of a hybrid scheme.
    members.remove(named);
    *scheme = json!({ named: members });
}

fn retain_shape(value: Value, shape: &Shape) -> Value {
    match (shape, value) {
        (Flag, Value::Bool(false)) => Value::Null,
        (Any | Flag, value) => value,
        (Object(known), Value::Object(mut members)) => {
            let kept_member = |(name, shape): &(&str, Shape)| {
                let value = members.remove(*name)?;
                Some(((*name).to_owned(), retain_shape(value, shape)))
            };
            let kept = known.iter().filter_map(kept_member);
            kept.collect::<Map<_, _>>().into()
        }
        (List(element), Value::Array(list)) => {
            let list = list.into_iter().map(|one| retain_shape(one, element));
            list.collect::<Vec<_>>().into()
        }
        (Shape::Map(of), Value::Object(members)) => {
            let members = members.into_iter();
            let kept = members.map(|(name, one)| (name, retain_shape(one, of)));
            kept.collect::<Map<_, _>>().into()
        }
        (_, value) => value,
    }
}

/// Removes empty values at each level.
fn drop_empty(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::Array(list) => {
            let list: Vec<Value> = list.into_iter().filter_map(drop_empty).collect();
            (!list.is_empty()).then(|| list.into())
        }
        Value::Object(members) => {
            let members = members.into_iter();
            let members: Map<_, _> = members
                .filter_map(|(name, value)| drop_empty(value).map(|value| (name, value)))
                .collect();
            (!members.is_empty()).then(|| members.into())
        }
        other => Some(other),
    }
}
