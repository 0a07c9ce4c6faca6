//! Sizes and names: files, types, circles of imports, functions; and how long a test sleeps.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::Imports;
use crate::tree::{Source, code, sources};
use crate::{
    FILE_LINES_MAX, FILES_IN_CIRCLES_MAX, LARGE_TYPES, METHODS_MAX, ONE_WORD_PERCENT_MAX,
    TYPE_FILES_MAX,
};

/// Folders with Rust files that are read whole.
const RUST: [&str; 5] = ["src", "crates", "tests", "benches", "examples"];

#[test]
fn no_room_is_called_anything() {
    for source in code() {
        let name = source
            .path
            .file_stem()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        let is_vague = ["utils", "util", "helpers", "common", "misc"].contains(&name.as_str());
        assert!(!is_vague, "{name}");
    }
}

#[test]
fn every_file_says_what_it_is_for_and_stays_readable() {
    for source in RUST.iter().flat_map(|folder| sources(folder)) {
        let path = source.path.display();
        assert!(source.text.starts_with("//!"), "{path} has no header");
        let lines = source.text.lines().count();
        assert!(lines <= FILE_LINES_MAX, "{path} has {lines} lines");
    }
}

#[test]
fn nothing_is_left_for_later() {
    for source in code() {
        for word in ["TODO", "FIXME", "XXX", "todo!(", "unimplemented!("] {
            let path = source.path.display();
            assert!(!source.text.contains(word), "{path} says {word}");
        }
    }
}

#[test]
fn no_registry_or_machine_is_named() {
    for source in RUST.iter().flat_map(|folder| sources(folder)) {
        if source.path.ends_with("tests/tidy/shapes.rs") {
            continue;
        }
        for word in ["crates.io", "pypi.org", "npmjs", "/work/"] {
            let path = source.path.display();
            assert!(!source.text.contains(word), "{path} names {word}");
        }
    }
}

/// The name of the function that a line begins.
fn function(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if let Some(public) = rest.strip_prefix("pub") {
        let inside = public
            .strip_prefix('(')
            .and_then(|path| path.split_once(')'));
        rest = inside.map_or(public, |(_, rest)| rest).trim_start();
    }
    for word in ["const ", "async ", "unsafe "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let name = rest.strip_prefix("fn ")?;
    Some(&name[..name.find(['(', '<']).unwrap_or(name.len())])
}

/// The type of an inherent `impl` that a line begins.
fn implemented(line: &str) -> Option<&str> {
    let mut rest = line.strip_prefix("impl")?;
    if rest.starts_with('<') {
        let mut depth = 0;
        let close = rest.char_indices().find(|(at, c)| {
            depth += i32::from(*c == '<') - i32::from(*c == '>' && !rest[..*at].ends_with('-'));
            depth == 0
        });
        rest = &rest[close?.0 + 1..];
    }
    let path = rest.strip_prefix(' ')?;
    let path = &path[..path.find(['<', '{']).unwrap_or(path.len())];
    let name = path.trim_end().rsplit("::").next()?;
    (!line.contains(" for ") && !name.is_empty()).then_some(name)
}

/// Methods and files of each type, by room and name.
fn types(sources: &[Source]) -> BTreeMap<String, (usize, BTreeSet<String>)> {
    let mut found: BTreeMap<String, (usize, BTreeSet<String>)> = BTreeMap::new();
    for source in sources {
        let path = source.path.display().to_string();
        let room = path.split('/').nth(1).unwrap_or_default();
        let mut owner = None;
        for line in source.product.lines() {
            if line.starts_with("impl") {
                owner = implemented(line);
            } else if line == "}" {
                owner = None;
            }
            let is_method =
                line.starts_with("    ") && !line.starts_with("     ") && function(line).is_some();
            if let Some(name) = owner.filter(|_| is_method) {
                let (methods, files) = found.entry(format!("{room}::{name}")).or_default();
                *methods += 1;
                files.insert(path.clone());
            }
        }
    }
    found
}

#[test]
fn no_type_has_more_methods_or_files_than_one_responsibility_takes() {
    let types = types(&code());
    assert!(types.len() > 300);
    let over: Vec<_> = types
        .iter()
        .map(|(name, (methods, files))| (name.as_str(), *methods, files.len()))
        .filter(|(name, methods, files)| {
            let found = LARGE_TYPES.iter().find(|(large, ..)| large == name);
            let &(_, methods_max, files_max) = found.unwrap_or(&("", METHODS_MAX, TYPE_FILES_MAX));
            *methods > methods_max || *files > files_max
        })
        .collect();
    assert!(
        over.is_empty(),
        "types with their methods and files, at most {METHODS_MAX} in {TYPE_FILES_MAX}: {over:?}"
    );
    for (name, ..) in LARGE_TYPES {
        let is_large = types
            .get(*name)
            .is_some_and(|(methods, files)| *methods > METHODS_MAX || files.len() > TYPE_FILES_MAX);
        assert!(is_large, "{name} needs no exception any more");
    }
}

#[test]
fn files_import_each_other_in_no_circle_but_through_their_folders_door() {
    let imports = Imports::read();
    let circles = imports.circles();
    let files: usize = circles.iter().map(BTreeSet::len).sum();
    assert!(
        files <= FILES_IN_CIRCLES_MAX,
        "{files} files are in circles, at most {FILES_IN_CIRCLES_MAX}: {circles:#?}"
    );
}

#[test]
fn functions_are_named_by_more_than_one_word() {
    let sources = code();
    let lines = sources.iter().flat_map(|source| source.product.lines());
    let names: BTreeSet<_> = lines.filter_map(function).collect();
    assert!(names.len() > 1000);
    let single: Vec<_> = names.iter().filter(|name| !name.contains('_')).collect();
    assert!(
        single.len() * 100 <= names.len() * ONE_WORD_PERCENT_MAX,
        "{} of {} names of functions have one word, at most {ONE_WORD_PERCENT_MAX} %",
        single.len(),
        names.len()
    );
}

/// The milliseconds of a `Duration::from_…` with a number; `None` for any other expression.
fn milliseconds(expression: &str) -> Option<f64> {
    let (_, call) = expression.split_once("Duration::from_")?;
    let (unit, rest) = call.split_once('(')?;
    let number = rest.split(')').next()?.replace('_', "").parse::<f64>();
    let scale = [
        ("secs", 1e3),
        ("secs_f64", 1e3),
        ("millis", 1.0),
        ("micros", 1e-3),
    ];
    let (_, scale) = scale.into_iter().find(|(name, _)| *name == unit)?;
    // A number of seconds that is worked out is a second at least.
    Some(number.unwrap_or(scale) * scale)
}

/// The constants of a text that are durations, in milliseconds.
fn durations(text: &str) -> impl Iterator<Item = (String, f64)> {
    text.lines().filter_map(|line| {
        let (head, value) = line.split_once(": Duration = ")?;
        let name = head.split_once("const ")?.1;
        Some((name.to_owned(), milliseconds(value)?))
    })
}

/// The text up to the parenthesis that closes a call.
fn argument(text: &str) -> &str {
    let mut depth = 1;
    let close = text.find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    });
    text[..close.unwrap_or(text.len())].trim()
}

#[test]
fn no_test_sleeps_for_a_second() {
    let sources: Vec<_> = RUST.iter().flat_map(|folder| sources(folder)).collect();
    let tests: Vec<_> = sources
        .iter()
        .filter(|source| !source.tests.is_empty())
        .collect();
    assert!(tests.len() > 100);
    let all: BTreeMap<_, _> = tests
        .iter()
        .flat_map(|source| durations(&source.tests))
        .collect();
    for source in tests {
        let own: BTreeMap<_, _> = durations(&source.tests).collect();
        for (at, call) in source.tests.match_indices("sleep(") {
            let before = source.tests[..at].chars().next_back();
            if before.is_some_and(|c| c == '_' || c.is_alphanumeric()) {
                continue;
            }
            let name = argument(&source.tests[at + call.len()..]);
            let constant = own.get(name).or_else(|| all.get(name)).copied();
            let long = milliseconds(name).or(constant).filter(|ms| *ms >= 1e3);
            assert!(
                long.is_none(),
                "{}:{}: sleeps for {name}: poll for the condition, or assert what holds meanwhile (`holds_for`)",
                source.path.display(),
                source.tests[..at].matches('\n').count() + 1
            );
        }
    }
}
