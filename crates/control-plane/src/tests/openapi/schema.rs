//! Schemas of types, in the form that the document has them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use access::workspace::{DeliveryMode, Status};
use audit::EventType;
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::rejection::Reason;
use kernel::time::Timestamp;

/// Types with a name that says less than that of the document.
const RENAMED: [(&str, &str); 3] = [
    ("Mode", "StopMode"),
    ("State", "DelegationStatus"),
    ("EventType", "AuditEvent"),
];

/// Schemas by their name.
#[derive(Default)]
pub(super) struct Schemas(BTreeMap<String, Value>);

impl Schemas {
    /// Returns those that `base.yaml` refers to.
    pub(super) fn of_closed_sets() -> Self {
        let mut all = Self::default();
        all.add::<WorkspaceId>(false);
        all.add::<InstanceId>(false);
        all.add::<Timestamp>(false);
        all.add::<DeliveryMode>(false);
        all.add::<Status>(false);
        all.add::<EventType>(false);
        let reason = json!({
            "type": "string",
            "description": "A closed set; docs/reference/reasons.md says what each means and what to do.",
            "enum": Reason::ALL.iter().map(|reason| reason.as_str()).collect::<Vec<_>>(),
        });
        all.insert("Reason".to_owned(), reason);
        all
    }

    /// Adds the schema of a type of an answer, or of a request, and returns a reference to it.
    pub(super) fn add<T: ToSchema>(&mut self, answers: bool) -> Value {
        let mut nested = Vec::new();
        T::schemas(&mut nested);
        nested.push((T::name().into_owned(), T::schema()));
        let nested: BTreeMap<_, _> = nested
            .iter()
            .map(|(name, schema)| (name.as_str(), json!(schema)))
            .collect();
        for (name, schema) in &nested {
            let cleaned = clean(schema.clone(), answers, &nested);
            self.insert(rename(name).to_owned(), cleaned);
        }
        super::named(rename(&T::name()))
    }

    /// Adds that of an answer that has the secret `member`, unless it is a dry run.
    pub(super) fn add_secret<T: ToSchema>(&mut self, member: &str) -> Value {
        let reference = self.add::<T>(true);
        if let Some(schema) = self.0.get_mut(rename(&T::name())) {
            schema["anyOf"] = json!([{"required": [member]}, {"required": ["dry_run"]}]);
            schema["properties"]["dry_run"] =
                json!({"const": true, "description": "Nothing was made."});
        }
        reference
    }

    pub(super) fn extend(&mut self, others: Self) {
        for (name, schema) in others.0 {
            self.insert(name, schema);
        }
    }

    fn insert(&mut self, name: String, schema: Value) {
        if let Some(before) = self.0.get(&name) {
            assert_eq!(*before, schema, "two types have the name {name}");
        }
        self.0.insert(name, schema);
    }

    pub(super) fn into_all(self) -> BTreeMap<String, Value> {
        self.0
    }
}

fn rename(name: &str) -> &str {
    let renamed = RENAMED.iter().find(|(old, _)| *old == name);
    renamed.map_or(name, |(_, new)| new)
}

/// Returns a schema without what `utoipa` says of Rust alone, with what it has no attribute for, and flattened members
/// among the others. A member of an answer that may be `null` is always there.
fn clean(schema: Value, answers: bool, nested: &BTreeMap<&str, Value>) -> Value {
    let mut map = match schema {
        Value::Object(map) => map,
        Value::Array(items) => {
            return items
                .into_iter()
                .map(|item| clean(item, answers, nested))
                .collect();
        }
        other => return other,
    };
    if let Some(parts) = map.remove("allOf") {
        for part in parts.as_array().unwrap() {
            flatten(&mut map, part, nested);
        }
    }
    if map
        .get("format")
        .and_then(Value::as_str)
        .is_some_and(|name| name.starts_with("int") || name == "double")
    {
        map.remove("format");
    }
    if let Some(name) = map
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|to| to.rsplit('/').next())
    {
        map["$ref"] = super::named(rename(name))["$ref"].clone();
    }
    let mut map: Map<_, _> = map
        .into_iter()
        .map(|(key, value)| (key, clean(value, answers, nested)))
        .collect();
    read_pattern(&mut map);
    if let Some(properties) = map
        .get("properties")
        .and_then(Value::as_object)
        .filter(|_| answers)
    {
        let nullable = properties.iter().filter(|(_, schema)| may_be_null(schema));
        let nullable: Vec<_> = nullable.map(|(name, _)| json!(name)).collect();
        let required = map.entry("required").or_insert_with(|| json!([]));
        let required = required.as_array_mut().unwrap();
        required.extend(nullable);
        required.sort_by_key(Value::to_string);
        required.dedup();
    }
    map.into()
}

fn may_be_null(schema: &Value) -> bool {
    let types = schema["type"]
        .as_array()
        .into_iter()
        .chain(schema["oneOf"].as_array())
        .flatten();
    types
        .into_iter()
        .any(|one| one == "null" || one["type"] == "null")
}

/// Adds the members of a flattened schema; those of one that may be missing are not required.
fn flatten(map: &mut Map<String, Value>, part: &Value, nested: &BTreeMap<&str, Value>) {
    let optional = part["oneOf"].as_array();
    let part = optional
        .and_then(|parts| parts.iter().find(|part| part["$ref"].is_string()))
        .unwrap_or(part);
    let resolved = match part["$ref"].as_str().and_then(|to| to.rsplit('/').next()) {
        Some(name) => &nested[name],
        None => part,
    };
    map.insert("type".to_owned(), json!("object"));
    for inner in resolved["allOf"].as_array().into_iter().flatten() {
        flatten(map, inner, nested);
    }
    if let Some(properties) = resolved["properties"].as_object() {
        let all = map.entry("properties").or_insert_with(|| json!({}));
        all.as_object_mut().unwrap().extend(properties.clone());
    }
    if let Some(required) = resolved["required"]
        .as_array()
        .filter(|_| optional.is_none())
    {
        let all = map.entry("required").or_insert_with(|| json!([]));
        all.as_array_mut().unwrap().extend(required.iter().cloned());
    }
}

/// Reads what stands in a pattern, since `utoipa` has no attribute for it: `^ok$` is a constant, `^(a|b)$` are words,
/// and `^#Label$` is a schema of `base.yaml`.
fn read_pattern(map: &mut Map<String, Value>) {
    let Some(pattern) = map.get("pattern").and_then(Value::as_str) else {
        return;
    };
    let inner = pattern
        .trim_start_matches('^')
        .trim_end_matches('$')
        .to_owned();
    let is_nullable = map["type"].is_array();
    if let Some(name) = inner.strip_prefix('#') {
        let reference = super::named(name);
        match is_nullable {
            true => _ = map.insert("oneOf".to_owned(), json!([reference, {"type": "null"}])),
            false => _ = map.insert("$ref".to_owned(), reference["$ref"].clone()),
        }
        map.remove("type");
    } else {
        let words = inner
            .trim_start_matches('(')
            .trim_end_matches(')')
            .split('|');
        let is_word = |word: &str| {
            !word.is_empty()
                && word
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        };
        let words: Vec<_> = words.collect();
        if !words.iter().all(|word| is_word(word)) {
            return;
        }
        let values = words
            .iter()
            .map(|word| serde_json::from_str(word).unwrap_or_else(|_| json!(word)));
        let values: Vec<Value> = values.collect();
        match &*values {
            [one] => {
                map.insert("const".to_owned(), one.clone());
                map.remove("type");
            }
            _ => _ = map.insert("enum".to_owned(), values.into()),
        }
    }
    map.remove("pattern");
}
