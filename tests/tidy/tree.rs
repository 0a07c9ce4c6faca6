//! The files of the repository: their text, and the part of a Rust file that is no test.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders that are not the repository's own text.
const FOREIGN: [&str; 3] = ["target", ".git", "node_modules"];

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// All files below `folder`, by their path below the root.
pub(crate) fn files(folder: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !FOREIGN.contains(&name.as_str()) {
                folders.push(path);
            } else if path.is_file() {
                found.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    assert!(!found.is_empty(), "nothing below {folder}");
    found.sort();
    found
}

/// A Rust file. `product` and `tests` have each line of it in the same place; the lines of the other part are empty.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) product: String,
    pub(crate) tests: String,
}

impl Source {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        let below_tests = path.iter().any(|part| part == "tests");
        let (product, tests) = if below_tests || path.ends_with("tests.rs") {
            (String::new(), text.clone())
        } else {
            split(&text)
        };
        Self {
            path,
            text,
            product,
            tests,
        }
    }

    /// The product code without its comment lines.
    pub(crate) fn code(&self) -> String {
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        let lines = self.product.lines();
        lines
            .map(|line| Some(line).filter(is_code).unwrap_or_default())
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// All Rust files below `folder`.
pub(crate) fn sources(folder: &str) -> Vec<Source> {
    let mut found = files(folder);
    found.retain(|path| path.extension().is_some_and(|e| e == "rs"));
    found.into_iter().map(Source::read).collect()
}

/// The files of the program: the root package and the crates beside it.
pub(crate) fn code() -> Vec<Source> {
    let mut found = sources("src");
    found.extend(sources("crates"));
    found
}

/// Product code, and the items behind a `#[cfg(test)]`: as `split_tests` of `scripts/lib/house.py`.
fn split(text: &str) -> (String, String) {
    let (mut product, mut tests) = (String::new(), String::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let is_test = line.trim() == "#[cfg(test)]";
        let (to, other) = if is_test {
            (&mut tests, &mut product)
        } else {
            (&mut product, &mut tests)
        };
        let mut put = |line: &str| {
            to.push_str(line);
            to.push('\n');
            other.push('\n');
        };
        put(line);
        let (mut depth, mut opened) = (0, false);
        while let Some(line) = is_test.then(|| lines.next()).flatten() {
            put(line);
            let bare = bare(line);
            depth += bare.matches('{').count().cast_signed();
            depth -= bare.matches('}').count().cast_signed();
            opened |= bare.contains('{');
            if (opened && depth <= 0) || (!opened && bare.trim_end().ends_with(';')) {
                break;
            }
        }
    }
    (product, tests)
}

/// A line without its strings, characters and comment.
fn bare(line: &str) -> String {
    let mut kept = String::new();
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' => {
                while let Some(c) = rest.next().filter(|c| *c != '"') {
                    if c == '\\' {
                        rest.next();
                    }
                }
            }
            '\'' => {
                let mut ahead = rest.clone();
                ahead.next();
                if ahead.next() == Some('\'') {
                    rest = ahead;
                }
            }
            '/' if rest.peek() == Some(&'/') => break,
            _ => kept.push(c),
        }
    }
    kept
}
