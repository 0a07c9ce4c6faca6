//! The files of the repository: their text, and the part of a Rust file that is no test.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders that are not the repository's own text.
const FOREIGN: [&str; 3] = ["target", ".git", "node_modules"];

/// The folders of the program: the root package and the crates beside it.
pub(crate) const PROGRAM: [&str; 2] = ["src", "crates"];

/// Folders with Rust files that are read whole.
pub(crate) const RUST: [&str; 5] = ["src", "crates", "tests", "benches", "examples"];

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read_text(file: impl AsRef<Path>) -> String {
    let file = file.as_ref();
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// All files below `folder`, by their path below the root.
pub(crate) fn list_files(folder: &str) -> Vec<PathBuf> {
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

/// True if the name of a file ends with one of `extensions`.
pub(crate) fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    let extension = path.extension();
    extension.is_some_and(|own| extensions.iter().any(|extension| own == *extension))
}

/// The words of a text, as code has them.
pub(crate) fn split_words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| c != '_' && !c.is_alphanumeric());
    words.filter(|word| !word.is_empty())
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
        let text = read_text(&path);
        let is_test = path.iter().any(|part| {
            let part = part.to_string_lossy();
            part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs")
        });
        let (product, tests) = if is_test {
            (String::new(), text.clone())
        } else {
            split_tests(&text)
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
        let code = lines.map(|line| Some(line).filter(is_code).unwrap_or_default());
        code.collect::<Vec<_>>().join("\n")
    }
}

/// All Rust files below `folders`.
pub(crate) fn read_sources(folders: &[&str]) -> Vec<Source> {
    let files = folders.iter().flat_map(|folder| list_files(folder));
    let files = files.filter(|path| has_extension(path, &["rs"]));
    files.map(Source::read).collect()
}

/// Fails for each of `sources` whose product code has one of `words`, which stand between spaces.
pub(crate) fn assert_lacks(sources: &[Source], words: &str) {
    for source in sources {
        for (line, number) in source.code().lines().zip(1..) {
            for word in words.split(' ') {
                let path = source.path.display();
                assert!(!line.contains(word), "{path}:{number}: `{word}`");
            }
        }
    }
}

/// Product code, and the items behind a `#[cfg(test)]`.
fn split_tests(text: &str) -> (String, String) {
    let lines: Vec<&str> = text.lines().collect();
    let (mut product, mut tests, mut end) = (String::new(), String::new(), 0);
    for (at, line) in lines.iter().enumerate() {
        if at >= end && line.trim() == "#[cfg(test)]" {
            end = at + count_lines_of_item(&lines[at..]);
        }
        let part = if at < end { &mut tests } else { &mut product };
        part.push_str(line);
        product.push('\n');
        tests.push('\n');
    }
    (product, tests)
}

/// Lines of the item that begins with the first of `lines`, an attribute. Its braces stand where rustfmt puts them.
fn count_lines_of_item(lines: &[&str]) -> usize {
    let indent = &lines[0][..lines[0].find('#').unwrap()];
    let close = format!("{indent}}}");
    let mut is_body = false;
    let is_last = |line: &&str| {
        let rest = line.strip_prefix(indent);
        let is_outer = rest.is_some_and(|rest| !rest.starts_with(' '));
        let ended = if is_body {
            line.trim_end_matches(';') == close
        } else {
            line.ends_with(';') || is_outer && line.ends_with(['}', ','])
        };
        is_body |= is_outer && line.ends_with('{');
        ended
    };
    let last = lines.iter().position(is_last);
    last.map_or(lines.len(), |at| at + 1)
}
