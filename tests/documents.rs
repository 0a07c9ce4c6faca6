//! The documents: their links lead somewhere, and their lines fit into a window.
#![expect(
    clippy::unwrap_used,
    reason = "a file that cannot be read fails the test"
)]

use std::fs;
use std::path::{Path, PathBuf};

/// Longest line of a document, in columns, but for tables and code.
const COLUMNS_MAX: usize = 120;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Folders that packages are installed into.
const INSTALLED: [&str; 2] = ["node_modules", "dist"];

/// All files below `folder` with one of these extensions.
fn files(folder: &str, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !INSTALLED.iter().any(|name| path.ends_with(name)) {
                    folders.push(path);
                }
            } else if path
                .extension()
                .is_some_and(|e| extensions.iter().any(|of| e == *of))
            {
                found.push(path);
            }
        }
    }
    found
}

/// The documents: the pages at the root, all below `docs`, and those of packages and examples.
fn documents() -> Vec<PathBuf> {
    let at_root = fs::read_dir(root()).unwrap();
    let mut found: Vec<_> = at_root.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|e| e == "md"));
    for folder in ["docs", "bench", "clients", "examples"] {
        found.extend(files(folder, &["md"]));
    }
    assert!(found.len() > 30, "{found:?}");
    found
}

/// The anchor of a heading, as Git hosts make it.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let text: String = heading.to_lowercase().chars().filter(kept).collect();
    text.trim().replace(' ', "-")
}

/// The lines of a document outside of its code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().zip(1..).filter_map(move |(line, number)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((number, line))
    })
}

/// True if the document has a heading with this anchor.
fn has_anchor(document: &Path, wanted: &str) -> bool {
    let text = fs::read_to_string(document).unwrap();
    prose(&text)
        .filter_map(|(_, line)| line.strip_prefix('#'))
        .any(|heading| anchor(heading.trim_start_matches('#').trim()) == wanted)
}

#[test]
fn links_of_documents_lead_to_files_and_headings_that_there_are() {
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for link in text.split("](").skip(1) {
            let link = link.split([')', ' ']).next().unwrap();
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let mut target = path.clone();
            if !file.is_empty() {
                target = path.parent().unwrap().join(file);
            }
            // Not a folder: a site has no page for one.
            assert!(target.is_file(), "{}: no file {link}", path.display());
            let is_document = target.extension().is_some_and(|e| e == "md");
            assert!(
                heading.is_empty() || !is_document || has_anchor(&target, heading),
                "{}: no heading {link}",
                path.display()
            );
        }
    }
}

#[test]
fn the_list_of_documents_has_every_page() {
    let list = fs::read_to_string(root().join("docs/README.md")).unwrap();
    for page in files("docs", &["md"]) {
        let page = page.strip_prefix(root().join("docs")).unwrap();
        let linked = format!("({})", page.display());
        let is_there = page.ends_with("README.md") || list.contains(&linked);
        assert!(is_there, "docs/README.md: no link to {}", page.display());
    }
}

#[test]
fn the_order_of_checks_is_that_of_the_stages() {
    let document = fs::read_to_string(root().join("docs/reference/a2a.md")).unwrap();
    let words: Vec<_> = document.split_whitespace().collect();
    let order = a2a_gateway::stage::Stage::order_of_checks();
    assert!(
        words.join(" ").contains(&order),
        "\"Order of checks\" in docs/reference/a2a.md has to say: {order}"
    );
}

#[test]
fn lines_of_documents_fit_into_a_window() {
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in prose(&text) {
            let start = line.trim_start();
            // A table cannot be wrapped, nor can a long piece of code.
            let is_whole = start.starts_with('|') || start.starts_with('`');
            assert!(
                is_whole || line.chars().count() <= COLUMNS_MAX,
                "{}:{number} has more than {COLUMNS_MAX} columns",
                path.display()
            );
        }
    }
}

/// Measured numbers that other documents state, in the words that they stand in. Each stands in the benchmarks, too.
const MEASURED: [(&str, &[&str]); 3] = [
    ("README.md", &["0.47 of nginx", "0.97 of a bare"]),
    (
        "docs/guide/compare.md",
        &["0.47 of nginx", "0.29 of plain nginx"],
    ),
    (
        "docs/reference/limits.md",
        &[
            "37 µs of CPU",
            "91 µs of a core",
            "4.0 KiB a connection",
            "22.1 KiB a stream",
        ],
    ),
];

#[test]
fn measured_numbers_of_documents_stand_in_the_benchmarks() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let text = read("docs/design/benchmarks.md");
    let results = text.split("\n## Results\n").nth(1).unwrap();
    let results = results.split("\n## ").next().unwrap();
    let numbers: Vec<_> = results
        .split(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | ','))
        .map(|number| number.trim_matches(['.', ',']))
        .collect();
    for (path, statements) in MEASURED {
        let text = read(path);
        let words: Vec<_> = text.split_whitespace().collect();
        let text = words.join(" ");
        for statement in statements {
            assert!(
                text.contains(statement),
                "{path} no longer says {statement:?}"
            );
            let number = statement.split(' ').next().unwrap();
            assert!(
                numbers.contains(&number),
                "{path}: {number} is not in the results of docs/design/benchmarks.md"
            );
        }
    }
}

/// Pronouns that name no component: a comment or a document names the caller, the writer, the replica.
const PRONOUNS: [&str; 7] = [
    "whoever",
    "nobody",
    "somebody",
    "everybody",
    "anybody",
    "whom",
    "whose",
];

/// Model projects have 0 to 3.
const PRONOUNS_MAX_IN_10_000: usize = 5;

/// Words that a doc comment does not begin with: it begins with a noun, or a verb.
const QUESTIONS: [&str; 7] = ["What", "Who", "Whose", "Where", "Whether", "When", "How"];

/// The first words and all words of the comments in a source file.
fn comments(text: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut firsts, mut words) = (Vec::new(), Vec::new());
    let mut goes_on = false;
    for line in text.lines().map(str::trim_start) {
        let doc = line
            .strip_prefix("///")
            .or_else(|| line.strip_prefix("//!"));
        let comment = doc.or_else(|| line.strip_prefix("//"));
        let mut said = comment.unwrap_or_default().split_whitespace();
        if doc.is_some() && !goes_on {
            firsts.extend(said.clone().next());
        }
        goes_on = doc.is_some();
        words.extend(said.by_ref());
    }
    (firsts, words)
}

/// The messages of the log lines in a source file: the last string of each call of a macro of `tracing`.
fn messages(text: &str) -> impl Iterator<Item = String> {
    let calls = text.split("tracing::").skip(1).filter_map(|call| {
        let (name, rest) = call.split_once("!(")?;
        name.chars().all(char::is_alphanumeric).then_some(rest)
    });
    calls.filter_map(|call| {
        let (arguments, _) = call.split_once(");")?;
        Some(arguments.rsplit('"').nth(1)?.to_owned())
    })
}

fn of_all(texts: &[String]) -> Vec<&str> {
    texts
        .iter()
        .flat_map(|text| text.split_whitespace())
        .collect()
}

fn pronouns(words: &[&str]) -> usize {
    let bare = |word: &str| {
        word.trim_matches(|c: char| !c.is_alphabetic())
            .to_lowercase()
    };
    let named = words.iter().map(|word| bare(word));
    named
        .filter(|word| PRONOUNS.contains(&word.as_str()))
        .count()
}

#[test]
fn comments_and_documents_use_the_fields_words() {
    let sources = ["src", "crates"]
        .map(|folder| files(folder, &["rs"]))
        .concat();
    let texts: Vec<_> = sources
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let (mut firsts, mut words) = (Vec::new(), Vec::new());
    for text in &texts {
        let (first, all) = comments(text);
        firsts.extend(first);
        words.extend(all);
    }
    let asked = firsts
        .iter()
        .filter(|word| QUESTIONS.contains(word))
        .count();
    assert!(
        asked * 100 <= firsts.len() * 3,
        "{asked} of {} doc comments begin with {QUESTIONS:?}: at most 3 %",
        firsts.len()
    );
    let documents: Vec<_> = documents()
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let read = of_all(&documents);
    let logged: Vec<_> = texts.iter().flat_map(|text| messages(text)).collect();
    assert!(logged.len() > 100, "{logged:?}");
    let logged = of_all(&logged);
    for (kind, words) in [
        ("comments", &words),
        ("logs", &logged),
        ("documents", &read),
    ] {
        let found = pronouns(words);
        assert!(
            found * 10_000 <= words.len() * PRONOUNS_MAX_IN_10_000,
            "{found} of {} words of {kind} are of {PRONOUNS:?}: at most {PRONOUNS_MAX_IN_10_000} in 10,000; scripts/house counts",
            words.len()
        );
    }
}
