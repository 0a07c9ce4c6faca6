//! Sizes and names: files, types, circles of imports, functions; and how long a test sleeps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::imports::find_circles;
use crate::tree::{PROGRAM, RUST, read_sources};

/// Methods of a type, over all its `impl` blocks without a trait. A larger one has a second responsibility.
const METHODS_MAX: usize = 40;

/// Files with `impl` blocks of one type.
const TYPE_FILES_MAX: usize = 3;

/// Files of the data plane that import each other in a circle, the doors of their folders included.
const PROXY_CIRCLE_MAX: usize = 3;

// Ratchets: what was there when the rule came. A change may only lower these figures.

/// Types over the limits: methods and files of each.
const LARGE_TYPES: &[(&str, usize, usize)] = &[
    ("access::Identity", 45, 4),
    ("access::Workspaces", 25, 5),
    ("audit::Audit", 17, 4),
    ("mailbox::Inbox", 36, 7),
];

/// Files that import each other in a circle, other than through the door of their folder.
const FILES_IN_CIRCLES_MAX: usize = 42;

/// Share of the names of functions that have one word, in percent: model projects have 11 to 23.
const ONE_WORD_PERCENT_MAX: usize = 12;

#[test]
fn nothing_is_left_for_later_and_no_registry_or_machine_is_named() {
    let left = "TODO FIXME XXX unimplemented!(";
    let named = "crates.io pypi.org npmjs /work/";
    for (folders, words) in [(&PROGRAM[..], left), (&RUST[..], named)] {
        let mut sources = read_sources(folders);
        sources.retain(|source| !source.path.ends_with("tests/tidy/shapes.rs"));
        for source in sources {
            let word = words.split(' ').find(|word| source.text.contains(word));
            assert_eq!(word, None, "{}", source.path.display());
        }
    }
}

#[test]
fn every_file_says_what_it_is_for_and_no_room_is_called_anything() {
    for source in read_sources(&RUST) {
        let path = source.path.display();
        assert!(source.text.starts_with("//!"), "{path} has no header");
        let name = source.path.file_stem().unwrap().to_str().unwrap();
        let is_vague = ["utils", "util", "helpers", "common", "misc"].contains(&name);
        assert!(!is_vague, "{path} may hold anything");
    }
}

#[test]
fn comments_have_at_most_120_columns() {
    let is_long = |line: &&str| {
        let comment = line.trim_start();
        // A row of a table is a line.
        let is_prose = comment.starts_with("//") && !comment.starts_with("//! |");
        is_prose && line.chars().count() > 120
    };
    for source in read_sources(&RUST) {
        let long = source.text.lines().find(is_long);
        assert_eq!(long, None, "{}", source.path.display());
    }
}

/// The name of the function that a line begins.
fn read_function(line: &str) -> Option<&str> {
    let (before, name) = line.split_once("fn ")?;
    let is_qualifier = |word: &str| {
        let is_visibility = word.starts_with("pub") || word.ends_with(')');
        is_visibility || ["const", "async", "unsafe"].contains(&word)
    };
    let is_head = before.split_whitespace().all(is_qualifier);
    is_head.then(|| &name[..name.find(['(', '<']).unwrap_or(name.len())])
}

/// The type of the `impl` that a line begins; `None` if it is of a trait.
fn read_type(line: &str) -> Option<String> {
    let mut bare = line.replace("->", "");
    while let Some(end) = bare.find('>') {
        let start = bare[..end].rfind('<')?;
        bare.replace_range(start..=end, "");
    }
    let path = bare.strip_prefix("impl ")?.trim_end_matches([' ', '{']);
    let name = path.rsplit("::").next()?;
    (!path.contains(" for ")).then(|| name.to_owned())
}

/// Methods and files of each type, by room and name.
fn count_methods() -> BTreeMap<String, (usize, BTreeSet<PathBuf>)> {
    let mut found: BTreeMap<_, (usize, BTreeSet<_>)> = BTreeMap::new();
    for source in read_sources(&PROGRAM) {
        let room = source.path.iter().nth(1).unwrap().to_string_lossy();
        let mut owner = None;
        for line in source.product.lines() {
            if line.starts_with("impl") {
                owner = read_type(line).map(|name| format!("{room}::{name}"));
            } else if line == "}" {
                owner = None;
            }
            let inner = line.strip_prefix("    ").unwrap_or_default();
            let is_method = !inner.starts_with(' ') && read_function(inner).is_some();
            if let (true, Some(name)) = (is_method, &owner) {
                let (methods, files) = found.entry(name.clone()).or_default();
                *methods += 1;
                files.insert(source.path.clone());
            }
        }
    }
    found
}

#[test]
fn no_type_has_more_methods_or_files_than_one_responsibility_takes() {
    let types = count_methods();
    assert!(types.len() > 300);
    let mut large = Vec::new();
    for (name, (methods, files)) in &types {
        if *methods > METHODS_MAX || files.len() > TYPE_FILES_MAX {
            large.push((name.as_str(), *methods, files.len()));
        }
    }
    assert_eq!(large, LARGE_TYPES, "types with their methods and files");
}

#[test]
fn files_import_each_other_in_no_circle_but_through_their_folders_door() {
    let circles = find_circles(|own, target| own[..own.len() - 1] != *target);
    let files: usize = circles.iter().map(Vec::len).sum();
    assert!(
        files <= FILES_IN_CIRCLES_MAX,
        "{files} files are in circles, at most {FILES_IN_CIRCLES_MAX}: {circles:#?}"
    );
}

#[test]
fn a_circle_in_the_data_plane_has_few_files() {
    let is_inside = |module: &[String]| module.len() > 1 && module[0] == "crates/data-plane/src";
    let mut circles = find_circles(|own, target| is_inside(own) && is_inside(target));
    circles.retain(|circle| circle.len() > PROXY_CIRCLE_MAX);
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn functions_are_named_by_more_than_one_word() {
    let sources = read_sources(&PROGRAM);
    let lines = sources.iter().flat_map(|source| source.product.lines());
    let names: BTreeSet<_> = lines.filter_map(read_function).collect();
    assert!(names.len() > 1000);
    let single = names.iter().filter(|name| !name.contains('_')).count();
    let percent = single * 100 / names.len();
    assert!(percent < ONE_WORD_PERCENT_MAX, "{percent} % of names");
}

/// True for a `Duration::from_…` of a second or more. A number that is worked out is one of its unit.
fn is_long(expression: &str) -> bool {
    let call = expression.split_once("Duration::from_");
    let Some((unit, number)) = call.and_then(|(_, call)| call.split_once('(')) else {
        return false;
    };
    let number = number.split(')').next().unwrap_or_default();
    let number = number.replace('_', "").parse::<f64>().unwrap_or(1.0);
    match unit {
        "secs" | "secs_f64" => number >= 1.0,
        "millis" => number >= 1e3,
        _ => number >= 1e6,
    }
}

/// The constants of a text that are long durations, each behind its visibility.
fn find_long_constants(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines();
    let constants = lines.filter_map(|line| line.split_once(": Duration = "));
    let long = constants.filter(|(_, value)| is_long(value));
    long.filter_map(|(head, _)| head.split_once("const "))
}

#[test]
fn no_test_sleeps_for_a_second() {
    let mut sources = read_sources(&RUST);
    sources.retain(|source| !source.tests.trim().is_empty());
    assert!(sources.len() > 100);
    let tests = sources.iter().map(|source| &*source.tests);
    let mut shared: Vec<_> = tests.flat_map(find_long_constants).collect();
    shared.retain(|(visibility, _)| visibility.starts_with("pub"));
    for source in &sources {
        let own = find_long_constants(&source.tests).chain(shared.iter().copied());
        let known: BTreeSet<_> = own.map(|(_, name)| name).collect();
        for (line, number) in source.tests.lines().zip(1..) {
            let Some((before, call)) = line.split_once("sleep(") else {
                continue;
            };
            let is_call = !before.ends_with(|c: char| c == '_' || c.is_alphanumeric());
            let time = call.split(')').next().unwrap();
            assert!(
                !is_call || !is_long(time) && !known.contains(time),
                "{}:{number}: sleeps for {time}: poll for the condition, or assert what holds meanwhile (`holds_for`)",
                source.path.display()
            );
        }
    }
}
