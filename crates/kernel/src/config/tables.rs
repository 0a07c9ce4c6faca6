//! Names the wrong keys of lists of tables, such as `[[guard]]`, where serde's message would name Rust types and quote
//! values, which may be credentials.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// The keys of a table, each with the form of its value.
pub(super) type Forms = [(&'static str, &'static str)];

/// Returns the problems of the first table that cannot be read as `T`; `None`: the value is no list of tables. `least`
/// can be read, and has no key more than each table needs.
pub(super) fn describe_misfit<T: DeserializeOwned>(
    kind: &str,
    list: &Value,
    forms: &Forms,
    least: &Table,
) -> Option<String> {
    let reads = |table: Table| Value::Table(table).try_into::<T>().is_ok();
    for (i, one) in list.as_array()?.iter().enumerate() {
        let table = one.as_table()?;
        if reads(table.clone()) {
            continue;
        }
        let missing = least.keys().filter(|key| !table.contains_key(*key));
        let missing = missing.map(|key| format!("`{key}` is missing"));
        let wrong = table.iter().filter_map(|(key, value)| {
            let Some((_, form)) = forms.iter().find(|(known, _)| known == key) else {
                let known: Vec<_> = forms.iter().map(|(key, _)| format!("`{key}`")).collect();
                return Some(format!(
                    "there is no `{key}`: its keys are {}",
                    known.join(", ")
                ));
            };
            let mut alone = least.clone();
            alone.insert(key.clone(), value.clone());
            (!reads(alone)).then(|| format!("`{key}` must be {form}"))
        });
        let problems: Vec<_> = missing.chain(wrong).collect();
        return Some(format!("{kind} {}: {}", i + 1, problems.join("; ")));
    }
    None
}
