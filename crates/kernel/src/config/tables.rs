//! Names the wrong keys of lists of tables, such as `[[guard]]`, where serde's message would name Rust types and quote
//! values, which may be credentials.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// Declares the tables of such lists, as `sections!` does, with the form of each value after `=>`.
macro_rules! entries {
    ($(#[$about:meta])* $name:ident {
        $($(#[$doc:meta])* $key:ident: $kind:ty $(as $parser:literal)? => $form:expr,)*
    }) => {
        sections! {
            $(#[$about])*
            #[derive(PartialEq, Eq)]
            $name { $($(#[$doc])* $key: $kind $(as $parser)?,)* }
        }

        impl $crate::config::tables::Entry for $name {
            const FORMS: &'static [(&'static str, &'static str)] = &[$((stringify!($key), $form)),*];
        }
    };
}

pub(super) use entries;

/// A table of a list.
pub(super) trait Entry: DeserializeOwned {
    /// Its keys, each with the form of its value.
    const FORMS: &'static [(&'static str, &'static str)];
}

/// Returns the problems of the first table that cannot be read as `T`, or else `form`: the value is no list of tables.
/// `least` can be read, and has no key more than each table needs.
pub(super) fn describe_misfit<T: Entry>(
    (kind, form): (&str, &str),
    list: &Value,
    least: &Table,
) -> String {
    find_misfit::<T>(kind, list, least).unwrap_or_else(|| form.to_owned())
}

fn find_misfit<T: Entry>(kind: &str, list: &Value, least: &Table) -> Option<String> {
    let reads = |table: Table| Value::Table(table).try_into::<T>().is_ok();
    for (i, one) in list.as_array()?.iter().enumerate() {
        let table = one.as_table()?;
        if reads(table.clone()) {
            continue;
        }
        let missing = least.keys().filter(|key| !table.contains_key(*key));
        let missing = missing.map(|key| format!("`{key}` is missing"));
        let wrong = table.iter().filter_map(|(key, value)| {
            let Some((_, form)) = T::FORMS.iter().find(|(known, _)| known == key) else {
                let known: Vec<_> = T::FORMS.iter().map(|(key, _)| format!("`{key}`")).collect();
                let known = known.join(", ");
                return Some(format!("there is no `{key}`: its keys are {known}"));
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

/// Returns the problems of a list of named entries: how many there may be, names that stand twice, and those of each.
pub(super) fn find_problems<T>(
    (kinds, max): (&str, usize),
    list: &[T],
    name: impl Fn(&T) -> &str,
    mut of_entry: impl FnMut(usize, &T) -> Vec<String>,
) -> Vec<String> {
    let mut problems = Vec::new();
    list! { problems; list.len() > max => "may have at most {max} {kinds}"; }
    for (i, entry) in list.iter().enumerate() {
        let name_of = name(entry);
        list! { problems;
            list[..i].iter().any(|other| name(other) == name_of) => "`{name_of}` stands twice";
        }
        problems.extend(of_entry(i + 1, entry));
    }
    problems
}
