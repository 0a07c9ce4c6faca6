//! Paths that comments, documents and settings name lead to files that there are, and those of the glossary to items.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::imports::Imports;
use crate::tree::{files, root, text};

/// Endings of the files that are looked for.
const ENDINGS: [&str; 13] = [
    ".rs", ".md", ".py", ".toml", ".sql", ".sh", ".mjs", ".js", ".css", ".html", ".yaml", ".yml",
    ".json",
];

/// Folders at the root: a path that begins with one is meant from there.
const FOLDERS: [&str; 14] = [
    "benches",
    "config",
    "crates",
    "deploy",
    "docs",
    "examples",
    "fuzz",
    "grafana",
    "packaging",
    "pages",
    "scripts",
    "src",
    "tests",
    ".ci",
];

/// The paths in a text: words of the characters of paths, with one of the endings.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let is_of_a_path = |c: char| c.is_alphanumeric() || "/-_.{}<>*$:".contains(c);
    let words = text.split(move |c| !is_of_a_path(c));
    let bare = words.map(|word| {
        word.trim_end_matches(['.', ':'])
            .trim_start_matches(['<', '{'])
    });
    bare.filter(|word| ENDINGS.iter().any(|ending| word.ends_with(ending)))
        // Addresses, patterns, files of the system, and endings alone.
        .filter(|word| {
            !word.contains([':', '{', '<', '*', '$']) && !word.starts_with(['/', '.', '-'])
        })
}

/// The comments of a Rust file.
fn comments(text: &str) -> String {
    let lines = text.lines().filter_map(|line| {
        let whole = line.trim_start().strip_prefix("//");
        whole.or_else(|| Some(line.split_once(" // ")?.1))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Every file and folder of the repository, from the root.
fn all() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in files(".") {
        for part in path.ancestors() {
            found.insert(part.to_string_lossy().into_owned());
        }
    }
    found
}

/// True if a file of this path is there, from the root or from a folder that the reader is in.
fn is_there(all: &BTreeSet<String>, named: &str) -> bool {
    let below = format!("/{named}");
    all.contains(named) || all.iter().any(|path| path.ends_with(&below))
}

/// Text files that are no Rust: their paths from the root are looked for.
fn others() -> Vec<PathBuf> {
    let folders = [
        "config",
        "deploy",
        "docs",
        "grafana",
        "packaging",
        "pages",
        "scripts",
        "tests",
        "fuzz",
    ];
    let mut found: Vec<_> = folders.iter().flat_map(|folder| files(folder)).collect();
    found.push("Cargo.toml".into());
    found.retain(|path| !path.starts_with("pages/vendor"));
    found.retain(|path| std::fs::read_to_string(root().join(path)).is_ok());
    found.retain(|path| path.extension().is_none_or(|e| e != "rs" && e != "md"));
    found
}

#[test]
fn files_that_are_named_are_there() {
    let all = all();
    let mut lost = Vec::new();
    let mut look = |path: &PathBuf, named: &str| {
        if !is_there(&all, named) {
            lost.push(format!("{}: no {named}", path.display()));
        }
    };
    for path in ["src", "crates", "tests", "benches", "examples", "fuzz"]
        .iter()
        .flat_map(|folder| files(folder))
    {
        if path.extension().is_some_and(|e| e == "rs") {
            let text = text(path.to_str().unwrap());
            let comments = comments(&text);
            let in_comments =
                paths(&comments).filter(|named| named.ends_with(".rs") || named.contains('/'));
            let in_strings = paths(&text).filter(|named| named.starts_with("docs/"));
            for named in in_comments.chain(in_strings) {
                look(&path, named);
            }
        }
    }
    let mut documents = files("docs");
    documents.extend(["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"].map(PathBuf::from));
    documents.retain(|path| path.extension().is_some_and(|e| e == "md"));
    for path in documents.iter().chain(&others()) {
        for named in paths(&text(path.to_str().unwrap())) {
            let start = named.split('/').next().unwrap();
            if named.ends_with(".rs") || (named.contains('/') && FOLDERS.contains(&start)) {
                look(path, named);
            }
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
}

#[test]
fn folders_that_the_architecture_names_are_there() {
    let all = all();
    for file in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = text(file);
        for named in text.split('`').skip(1).step_by(2) {
            let folder = named.trim_end_matches('/');
            let is_path = folder
                .chars()
                .all(|c| c.is_alphanumeric() || "/-_.".contains(c));
            if is_path && named.ends_with('/') && !named.starts_with('/') {
                assert!(is_there(&all, folder), "{file}: no folder {named}");
            }
        }
    }
}

/// True if `name` is a word of a file.
fn says(file: &Path, name: &str) -> bool {
    let text = text(file.to_str().unwrap());
    let mut words = text.split(|c: char| c != '_' && !c.is_alphanumeric());
    words.any(|word| word == name)
}

#[test]
fn the_glossary_names_items_that_there_are() {
    let modules = Imports::read().modules;
    let contributing = text("CONTRIBUTING.md");
    let glossary = contributing.split("\n## Words\n").nth(1).unwrap();
    let glossary = glossary.split("\n## ").next().unwrap();
    let rows = glossary.lines().filter(|line| line.starts_with("| "));
    let mut found = 0;
    for row in rows.skip(1) {
        let code = row.trim_end_matches('|').rsplit('|').next().unwrap();
        // A name without a path is of the module before it.
        let mut door = None;
        for path in code.split('`').skip(1).step_by(2) {
            let mut names: Vec<_> = path.split("::").map(str::to_owned).collect();
            if names.len() > 1 || door.is_none() {
                if names[0] == "a2a" {
                    names[0] = "crates/a2a/src".to_owned();
                } else {
                    names.insert(0, "src".to_owned());
                }
                let mut lengths = (1..=names.len()).rev();
                let length = lengths.find(|length| modules.contains_key(&names[..*length]));
                let length = length.unwrap();
                door = modules.get(&names[..length]);
                names.drain(..length);
            }
            found += 1;
            let (Some(door), Some((item, members))) = (door, names.split_first()) else {
                continue;
            };
            assert!(says(door, item), "{path}: no {item} in {}", door.display());
            let folder = door.parent().unwrap();
            for member in members {
                let mut files = modules.values().filter(|file| file.starts_with(folder));
                let is_there = files.any(|file| says(file, member));
                assert!(is_there, "{path}: no {member} in {}", folder.display());
            }
        }
    }
    assert!(found > 40, "{found} paths");
}
