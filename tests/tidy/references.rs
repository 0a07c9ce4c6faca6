//! Paths that comments, documents and settings name lead to files that there are, and those of the glossary to items.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;

use crate::tree::{PROGRAM, has_extension, list_files, read_sources, read_text, root, split_words};

/// Extensions of the files that are looked for.
const EXTENSIONS: [&str; 13] = [
    "rs", "md", "py", "toml", "sql", "sh", "mjs", "js", "css", "html", "yaml", "yml", "json",
];

/// The paths in a text: words of the characters of paths, with one of the extensions.
fn find_paths(text: &str) -> impl Iterator<Item = &str> {
    let is_of_a_path = |c: char| c.is_alphanumeric() || "/-_.{}<>*$:".contains(c);
    let words = text.split(move |c| !is_of_a_path(c));
    let words = words.map(|word| word.trim_end_matches(['.', ':']));
    let bare = words.map(|word| word.trim_start_matches(['<', '{']));
    bare.filter(|word| {
        // Not addresses, patterns, files of the system, and extensions alone.
        let is_other =
            word.contains([':', '{', '<', '*', '$']) || word.starts_with(['/', '.', '-']);
        !is_other && has_extension(Path::new(word), &EXTENSIONS)
    })
}

/// The comments of a Rust file.
fn read_comments(text: &str) -> String {
    let lines = text.lines().filter_map(|line| {
        let whole = line.trim_start().strip_prefix("//");
        whole.or_else(|| Some(line.split_once(" // ")?.1))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Every file and folder of the repository: its path from the root, and from each folder that a reader is in.
fn list_paths() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in list_files(".").iter().flat_map(|path| path.ancestors()) {
        let path = path.to_string_lossy();
        let inner = path.match_indices('/').map(|(at, _)| &path[at + 1..]);
        found.extend(inner.map(str::to_owned));
        found.insert(path.into_owned());
    }
    found
}

#[test]
fn files_that_are_named_are_there() {
    let (all, mut files) = (list_paths(), list_files("."));
    let roots = files.iter().filter_map(|path| path.iter().next());
    let roots: BTreeSet<OsString> = roots.map(OsStr::to_owned).collect();
    let is_from_root = |named: &&str| {
        let start = named.split_once('/').map(|(start, _)| OsStr::new(start));
        named.ends_with(".rs") || start.is_some_and(|start| roots.contains(start))
    };
    // The change log tells of files that were there.
    files.retain(|path| !path.starts_with("pages/vendor") && !path.ends_with("CHANGELOG.md"));
    let mut lost = Vec::new();
    for path in files {
        let Ok(text) = fs::read_to_string(root().join(&path)) else {
            continue;
        };
        let comments = read_comments(&text);
        let named: Vec<&str> = if has_extension(&path, &["rs"]) {
            let in_comments =
                find_paths(&comments).filter(|path| path.ends_with(".rs") || path.contains('/'));
            let in_strings = find_paths(&text).filter(|path| path.starts_with("docs/"));
            in_comments.chain(in_strings).collect()
        } else {
            find_paths(&text).filter(is_from_root).collect()
        };
        let missing = named.iter().filter(|named| !all.contains(**named));
        lost.extend(missing.map(|named| format!("{}: no {named}", path.display())));
    }
    assert!(lost.is_empty(), "{lost:#?}");
}

#[test]
fn folders_that_the_architecture_names_are_there() {
    let all = list_paths();
    let text = read_text("ARCHITECTURE.md") + &read_text("CONTRIBUTING.md");
    let is_of_a_path = |c: char| c.is_alphanumeric() || "/-_.".contains(c);
    let paths = text
        .split('`')
        .filter(|word| word.chars().all(is_of_a_path));
    // A path that begins with a slash is a route.
    for folder in paths.filter(|path| path.ends_with('/') && !path.starts_with('/')) {
        assert!(all.contains(folder.trim_end_matches('/')), "no {folder}");
    }
}

#[test]
fn the_glossary_names_items_that_there_are() {
    let contributing = read_text("CONTRIBUTING.md");
    let glossary = contributing.split("\n## Words\n").nth(1).unwrap();
    let glossary = glossary.split("\n## ").next().unwrap();
    let rows = glossary.lines().filter(|line| line.starts_with("| "));
    let sources = read_sources(&PROGRAM);
    let (mut found, mut words) = (0, BTreeSet::new());
    for row in rows.skip(1) {
        let code = row.trim_end_matches('|').rsplit('|').next().unwrap();
        for path in code.split('`').skip(1).step_by(2) {
            let mut names: Vec<&str> = path.split("::").collect();
            // A name without a path is of the module before it.
            if names.len() > 1 {
                let room = names.remove(0);
                let inside = sources.iter().filter(|source| {
                    let part = source.path.iter().nth(1).unwrap().to_string_lossy();
                    part.replace('-', "_") == room
                });
                let products = inside.map(|source| &*source.product);
                words = products.flat_map(split_words).collect::<BTreeSet<_>>();
            }
            for name in names {
                assert!(words.contains(name), "{path}: no {name}");
            }
            found += 1;
        }
    }
    assert!(found > 20, "{found} paths");
}
