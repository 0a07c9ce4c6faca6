//! Writes the document as YAML: in one line what fits in one, the rest as blocks.

use std::fmt::Write as _;

use serde_json::Value;

/// Longest line with more than one value.
const WIDTH: usize = 140;

/// Members that come first, in this order.
const FIRST: [&str; 15] = [
    "info",
    "servers",
    "security",
    "tags",
    "paths",
    "components",
    "operationId",
    "summary",
    "name",
    "in",
    "type",
    "required",
    "description",
    "schema",
    "$ref",
];

/// Returns the document.
pub(super) fn to_yaml(mut document: Value) -> String {
    let version = document
        .as_object_mut()
        .and_then(|parts| parts.remove("openapi"))
        .unwrap();
    let mut text = format!("openapi: {}\n", version.as_str().unwrap());
    text.push_str("# Written by a test from the declarations of the routes and crates/control-plane/src/tests/openapi/base.yaml.\n");
    text.push_str("# After a change: UPDATE=1 cargo test --locked -p a2a-gateway-control-plane --lib openapi\n");
    write_block(&mut text, &document, 0);
    text
}

/// Returns the members of an object, or the entries of an array, each with what stands before it.
fn parts(value: &Value) -> Vec<(String, &Value)> {
    let mut members: Vec<_> = value.as_object().into_iter().flatten().collect();
    let place = |name: &str| {
        FIRST
            .iter()
            .position(|first| *first == name)
            .unwrap_or(FIRST.len())
    };
    members.sort_by_key(|(name, _)| (place(name), *name));
    let members = members
        .into_iter()
        .map(|(name, value)| (format!("{}:", key(name)), value));
    let entries = value.as_array().into_iter().flatten();
    members
        .chain(entries.map(|entry| ("-".to_owned(), entry)))
        .collect()
}

fn write_block(text: &mut String, value: &Value, indent: usize) {
    for (before, part) in parts(value) {
        let line = line_of(part);
        let is_short = indent + before.len() + 1 + line.len() <= WIDTH;
        let _ = write!(text, "{:indent$}{before}", "");
        if is_short || line.starts_with('"') {
            let _ = writeln!(text, " {line}");
        } else {
            text.push('\n');
            write_block(text, part, indent + 2);
        }
    }
}

/// Returns a value in one line.
fn line_of(value: &Value) -> String {
    let all = parts(value);
    let lines = all.iter().map(|(before, part)| match value {
        Value::Array(_) => line_of(part),
        _ => format!("{before} {}", line_of(part)),
    });
    let lines = lines.collect::<Vec<_>>().join(", ");
    match value {
        Value::Object(_) => format!("{{{lines}}}"),
        Value::Array(_) => format!("[{lines}]"),
        Value::String(text) if is_word(text) => text.clone(),
        _ => value.to_string(),
    }
}

/// True if a text needs no quotes.
fn is_word(text: &str) -> bool {
    let is_other = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !is_other && text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(is_plain)
}

/// Returns a name, in quotes where it could be read as something else.
fn key(name: &str) -> String {
    let is_plain = name.starts_with(|c: char| c == '/' || c.is_ascii_alphabetic());
    match is_plain {
        true => name.to_owned(),
        false => Value::from(name).to_string(),
    }
}
