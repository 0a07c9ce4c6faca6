//! The signed content of a card (A2A 1.0, 8.4): all of it except its signatures.
//!
//! Verifiers differ in their reading of this. Some canonicalise the document as it was sent. The
//! SDKs first parse it into the types of A2A 1.0 and canonicalise those: that drops members unknown
//! to 1.0, converts those of 0.x, and drops empty ones and `null`s. If the two forms differ, the
//! card gets a signature over each: either kind of verifier needs only one that it can verify.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::bridge::schemes::TYPES;
use crate::fields::Fields;

/// The members that remain when a card is parsed into the types of 1.0: `true` stands for all of a value, `false` for a
/// flag that is absent while it is off, a list for elements of one shape, and `*` for any name.
static CARD: LazyLock<Value> = LazyLock::new(|| {
    let requirements = json!([{"schemes": {"*": {"list": true}}}]);
    json!({
        "name": true, "description": true, "version": true, "documentationUrl": true, "iconUrl": true,
        "supportedInterfaces": [{"url": true, "protocolBinding": true, "tenant": true, "protocolVersion": true}],
        "provider": {"url": true, "organization": true},
        "capabilities": {
            "streaming": true, "pushNotifications": true, "extendedAgentCard": true,
            "extensions": [{"uri": true, "description": true, "required": false, "params": true}],
        },
        "securitySchemes": true, "securityRequirements": requirements,
        "defaultInputModes": true, "defaultOutputModes": true,
        "skills": [{
            "id": true, "name": true, "description": true, "tags": true, "examples": true,
            "inputModes": true, "outputModes": true, "securityRequirements": requirements,
        }],
    })
});

/// Returns the forms of a served card that are signed: the document, and, if it differs, the form
/// that the SDKs canonicalise. `None`: it has a number or a string without a canonical form.
pub fn signed_forms(card: &str) -> Option<Vec<Value>> {
    let mut document: Value = serde_json::from_str(card).ok()?;
    document.as_object_mut()?.remove("signatures");
    let mut known = document.clone();
    modernise_card(known.as_object_mut()?);
    retain_shape(&mut known, &CARD);
    drop_empty(&mut known);
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

/// Drops what a value has beyond its shape.
fn retain_shape(value: &mut Value, shape: &Value) {
    match (shape, value) {
        (Value::Bool(false), value @ Value::Bool(false)) => *value = Value::Null,
        (Value::Object(known), Value::Object(members)) => members.retain(|name, one| {
            let shape = known.get(name).or_else(|| known.get("*"));
            shape.is_some_and(|shape| {
                retain_shape(one, shape);
                true
            })
        }),
        (Value::Array(of), Value::Array(list)) => {
            list.iter_mut().for_each(|one| retain_shape(one, &of[0]));
        }
        _ => {}
    }
}

/// Removes empty values at each level. Returns true if something is left.
fn drop_empty(value: &mut Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => {
            list.retain_mut(drop_empty);
            !list.is_empty()
        }
        Value::Object(members) => {
            members.retain(|_, one| drop_empty(one));
            !members.is_empty()
        }
        _ => true,
    }
}
