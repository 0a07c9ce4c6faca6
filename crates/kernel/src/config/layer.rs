//! One layer of the configuration as a tree of TOML values: the known keys, conversion of text to
//! the type of a key, display with masked secrets.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use strsim::levenshtein;
use toml::{Table, Value};

use super::load::DEFAULT;
use super::tables::describe_misfit as describe_misfit_of;
use super::{Cap, Guard, RootRule, WorkspaceIssuer, guard};

/// Keys with values that may contain a password.
const SECRET: [&str; 3] = ["stores.sql", "stores.shared", "telemetry.otlp_headers"];

/// Returns the embedded default.
pub(super) fn default_table() -> Table {
    DEFAULT
        .parse()
        .expect("config/default.toml is part of the program and parsed by every test")
}

/// Returns every known key: the default, and its lines `#key = …`, which stand for keys without a
/// default. Their values are examples of the right type.
pub(super) fn known_keys() -> Table {
    let text: String = DEFAULT
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if key.starts_with(|c: char| c.is_ascii_lowercase()) => key,
            _ => line,
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    text.parse()
        .expect("config/default.toml is part of the program and parsed by every test")
}

/// Returns the value at a dotted path.
pub(super) fn find<'a>(table: &'a Table, dotted: &str) -> Option<&'a Value> {
    let mut keys = dotted.split('.');
    let first = table.get(keys.next()?)?;
    keys.try_fold(first, |value, key| value.as_table()?.get(key))
}

/// Sets the value at a dotted path, and creates missing sections.
pub(super) fn put_value(table: &mut Table, dotted: &str, value: Value) {
    match dotted.split_once('.') {
        None => {
            table.insert(dotted.to_owned(), value);
        }
        Some((section, rest)) => {
            let inner = table
                .entry(section)
                .or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                put_value(inner, rest, value);
            }
        }
    }
}

/// Returns all values with their dotted keys, in key order.
pub(super) fn list_leaves(table: &Table) -> Vec<(String, Value)> {
    table
        .iter()
        .flat_map(|(key, value)| match value {
            Value::Table(inner) => list_leaves(inner)
                .into_iter()
                .map(|(rest, value)| (format!("{key}.{rest}"), value))
                .collect(),
            _ => vec![(key.clone(), value.clone())],
        })
        .collect()
}

/// Converts `raw` to the type of `example`: the TOML value if it has that type, a comma-separated
/// list for a list, else the text itself.
pub(super) fn read(raw: &str, example: &Value) -> Value {
    let parsed = format!("value = {raw}")
        .parse::<Table>()
        .ok()
        // More than one member: the text contained a line break and is not a value.
        .filter(|table| table.len() == 1)
        .and_then(|mut table| table.remove("value"));
    match (parsed, example) {
        (Some(value), _) if value.same_type(example) => value,
        (_, Value::Array(_)) if let Some(list) = json_list(raw) => list,
        (_, Value::Array(_)) => Value::Array(
            raw.split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .map(Into::into)
                .collect(),
        ),
        (_, _) => Value::String(raw.to_owned()),
    }
}

/// Reads a JSON list, the easier form for a list of tables in an environment variable.
fn json_list(raw: &str) -> Option<Value> {
    let value: Value = serde_json::from_str(raw).ok()?;
    value.is_array().then_some(value)
}

/// Returns the name that was probably meant.
fn find_similar<'a>(names: impl Iterator<Item = &'a str>, written: &str) -> Option<&'a str> {
    let near = names.map(|name| (levenshtein(name, written), name));
    let near = near.filter(|(edits, name)| *edits <= 2.max(name.len() / 4));
    // Of two names at the same distance, the longer one shares more letters.
    let nearest = near.min_by_key(|(edits, name)| (*edits, Reverse(name.len())));
    nearest.map(|(_, name)| name)
}

/// Returns the message for an unknown key, with the most similar key.
pub(super) fn unknown_key(known: &Table, written: &str) -> String {
    let last = written.rsplit('.').next();
    let keys: Vec<String> = list_leaves(known).into_iter().map(|(key, _)| key).collect();
    let keys = || keys.iter().map(String::as_str);
    let meant = keys()
        .filter(|key| key.rsplit('.').next() == last)
        .min_by_key(|key| levenshtein(key, written));
    let all = keys().chain(known.keys().map(String::as_str));
    match meant.or_else(|| find_similar(all, written)) {
        Some(key) => format!("there is no such key; did you mean `{key}`?"),
        None => {
            "there is no such key; config/default.toml in the source explains all keys".to_owned()
        }
    }
}

/// Returns the message for an unknown section, with the most similar section.
pub(super) fn unknown_section(known: &Table, written: &str) -> String {
    let keys = list_leaves(known);
    let sections: BTreeSet<&str> = keys
        .iter()
        .flat_map(|(key, _)| key.match_indices('.').map(|(end, _)| &key[..end]))
        .collect();
    match find_similar(sections.into_iter(), written) {
        Some(section) => format!("there is no such section; did you mean `{section}`?"),
        None => unknown_key(known, written),
    }
}

/// Returns a message for a value of the wrong form, where serde's message would name Rust types.
/// `None`: serde's message is used.
pub(super) fn describe_misfit(
    dotted: &str,
    value: &Value,
    example: Option<&Value>,
) -> Option<String> {
    let shown = match value {
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    };
    let right_type = example.is_none_or(|example| value.same_type(example));
    let said = match (dotted, example) {
        ("server.listen" | "admin.listen", _) => format!(
            "{shown} is not an address and a port: write \"127.0.0.1:8080\" or \"[::1]:8080\""
        ),
        ("server.trusted_proxies" | "address.allow", _) => format!(
            "{shown} is not a list of networks, one is invalid: write [\"10.0.0.0/8\", \"fd00::/8\"]"
        ),
        ("trusted_agents", _) if !right_type => {
            "is not a list of URL prefixes: write [\"http://10.0.3.7:8000\"]".to_owned()
        }
        // The value is not quoted: a URL may hold a password.
        ("auth.issuers", _) => "is not a list of issuers: write [[auth.issuers]] and below it `issuer`, `jwks_url` (https) and \
             `audience`, if need be `name`, `client_id` and `groups`, all text, and nothing else; or, as one value, \
             [{\"issuer\":\"…\",\"jwks_url\":\"https://…\",\"audience\":\"…\"}]"
            .to_owned(),
        ("auth.workspace_issuers", _) => {
            let least = toml::toml! {
                issuer = "https://a.test"
                jwks_url = "https://a.test"
                audience = "a"
                claims = { sub = "{a}" }
                workspace = "{a}"
            };
            let form = "is not a list of issuers: write [[auth.workspace_issuers]] and below it `issuer`, `jwks_url`, \
                        `audience`, `claims` and `workspace`";
            describe_misfit_of::<WorkspaceIssuer>(("issuer", form), value, &least)
        }
        ("cap", _) => {
            let least = toml::toml! { name = "least" per = "run" count = "messages" limit = 1 };
            let form = "is not a list of caps: write [[cap]] and below it `name`, `per`, `count` and `limit`; or, as one \
                        value, [{\"name\":\"…\",\"per\":\"run\",\"count\":\"messages\",\"limit\":500}]";
            describe_misfit_of::<Cap>(("cap", form), value, &least)
        }
        ("access.require", _) => {
            let least = toml::toml! { targets = ["*"] root = "person" };
            let form = "is not a list of rules: write [[access.require]] and below it `targets` and `root`; or, as one \
                        value, [{\"targets\":[\"my-agent\"],\"root\":\"person\"}]";
            describe_misfit_of::<RootRule>(("rule", form), value, &least)
        }
        ("guard", _) => {
            let least = toml::toml! { name = "least" };
            let form = "is not a list of guards: write [[guard]] and below it `name` and `url` (or `builtin` and \
                        `patterns`); or, as one value, [{\"name\":\"…\",\"url\":\"https://…\"}]";
            describe_misfit_of::<Guard>(("guard", form), value, &least)
        }
        // The value is not quoted: a URL may hold a password.
        ("telemetry.otlp_endpoint", _) => {
            "is not a URL: write \"http://127.0.0.1:4318\"".to_owned()
        }
        ("telemetry.sampling" | "breaker.ratio", _) => {
            format!("{shown} is not a share: write a number from 0 to 1, such as 0.1")
        }
        ("telemetry.otlp_protocol", _) => {
            format!("{shown} is not possible: write \"http/protobuf\" or \"grpc\"")
        }
        ("server.public_url", _) => {
            format!("{shown} is not a URL: write \"https://gateway.example.com\"")
        }
        (_, Some(Value::Integer(_))) => {
            format!("{shown} is not possible: write a whole number from 0 on, without quotes")
        }
        (_, Some(Value::Boolean(_))) => format!("{shown} is not possible: write true or false"),
        (_, Some(example)) if !right_type => {
            format!("{shown} is not possible: write something like {example}")
        }
        (_, _) => return None,
    };
    Some(said)
}

/// True if the value of a key may contain a password.
pub(super) fn is_secret(dotted: &str) -> bool {
    SECRET.contains(&dotted)
}

/// Returns a value as TOML for display, with passwords masked.
pub(super) fn displayed_value(dotted: &str, value: &Value) -> String {
    match value {
        _ if dotted == "guard" => guard::mask_urls(value, mask_passwords).to_string(),
        Value::String(text) if is_secret(dotted) && !text.is_empty() => {
            Value::String(mask_passwords(text)).to_string()
        }
        _ => value.to_string(),
    }
}

/// Returns a store's URL with its password masked, and with every query value masked unless its
/// name is known to be harmless.
pub(super) fn mask_passwords(text: &str) -> String {
    const HARMLESS: [&str; 5] = [
        "sslmode",
        "application_name",
        "password_file",
        "protocol",
        "mode",
    ];
    if text == "memory" || text.starts_with("sqlite:") {
        return text.to_owned();
    }
    let Ok(mut url) = url::Url::parse(text) else {
        return "***".to_owned();
    };
    // set_password fails only for URLs without an authority, and those have no password.
    if url.password().is_some() && url.set_password(Some("***")).is_err() {
        return "***".to_owned();
    }
    if url.query().is_some() {
        let pairs: Vec<(String, String)> = url
            .query_pairs()
            .map(|(name, value)| {
                let harmless = HARMLESS.contains(&name.as_ref());
                let value = if harmless {
                    value.into_owned()
                } else {
                    "***".to_owned()
                };
                (name.into_owned(), value)
            })
            .collect();
        url.query_pairs_mut().clear().extend_pairs(pairs);
    }
    url.to_string()
}
