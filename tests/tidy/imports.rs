//! Which file names an item of which other file, and the circles among them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::tree::{Source, code};

/// The modules of a path: the crate's folder first.
type Module = Vec<String>;

pub(crate) struct Imports {
    /// The files of the modules.
    pub(crate) modules: BTreeMap<Module, PathBuf>,
    /// The paths that each file writes, resolved to names from its crate's root.
    pub(crate) named: Vec<(PathBuf, BTreeSet<Module>)>,
}

impl Imports {
    pub(crate) fn read() -> Self {
        let sources = code();
        let with_product = sources
            .iter()
            .filter(|source| !source.code().trim().is_empty());
        let files: Vec<&Source> = with_product
            .filter(|source| !source.path.ends_with("main.rs"))
            .collect();
        let modules = files
            .iter()
            .map(|source| (module(&source.path), source.path.clone()))
            .collect();
        let named = files
            .iter()
            .map(|source| (source.path.clone(), named(source)))
            .collect();
        Self { modules, named }
    }

    /// The files that each file imports from, but for its own door: the file of the module above it.
    fn beyond_doors(&self) -> BTreeMap<&Path, BTreeSet<&Path>> {
        let mut graph = BTreeMap::new();
        for (path, named) in &self.named {
            let own = module(path);
            let targets = named.iter().filter_map(|name| {
                (2..=name.len())
                    .rev()
                    .find_map(|length| self.modules.get_key_value(&name[..length]))
            });
            let beyond = targets
                .filter(|(target, _)| **target != own && own[..own.len() - 1] != target[..])
                .map(|(_, path)| path.as_path());
            graph.insert(path.as_path(), beyond.collect::<BTreeSet<_>>());
        }
        graph
    }

    /// Sets of files that reach each other.
    pub(crate) fn circles(&self) -> BTreeSet<BTreeSet<&Path>> {
        let graph = self.beyond_doors();
        let reached = |from: &Path| {
            let (mut found, mut ahead) = (BTreeSet::new(), vec![from]);
            while let Some(next) = ahead.pop() {
                for path in graph.get(next).into_iter().flatten() {
                    if found.insert(*path) {
                        ahead.push(path);
                    }
                }
            }
            found
        };
        let reach: BTreeMap<_, _> = graph.keys().map(|path| (*path, reached(path))).collect();
        let circle = |path: &Path| -> BTreeSet<&Path> {
            let back = |other: &&&Path| reach[**other].contains(path);
            reach[path].iter().filter(back).copied().collect()
        };
        let all = graph.keys().map(|path| circle(path));
        all.filter(|circle| circle.len() > 1).collect()
    }
}

/// The module of a file: its crate's folder and the names below `src`.
fn module(path: &Path) -> Module {
    let mut parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    let start = parts.iter().position(|part| part == "src").unwrap();
    let names = parts.split_off(start + 1);
    let mut module = vec![parts.join("/")];
    let bare = names.iter().map(|name| name.trim_end_matches(".rs"));
    module.extend(
        bare.filter(|name| !["mod", "lib"].contains(name))
            .map(String::from),
    );
    module
}

/// All paths from `crate`, `self` and `super` in the product code of a file.
fn named(source: &Source) -> BTreeSet<Module> {
    let (code, own) = (source.code(), module(&source.path));
    let mut found = BTreeSet::new();
    for start in ["crate", "self", "super"] {
        for (at, word) in code.match_indices(&format!("{start}::")) {
            let before = code[..at].chars().next_back();
            let is_visibility = code[..at].ends_with("pub(in ");
            if is_visibility || before.is_some_and(|c| c == ':' || c == '_' || c.is_alphanumeric())
            {
                continue;
            }
            let base = match start {
                "crate" => own[..1].to_vec(),
                "self" => own.clone(),
                _ => own[..own.len() - 1].to_vec(),
            };
            expand(&code[at + word.len()..], base, &mut found);
        }
    }
    found
}

/// Notes the paths of a tree behind `base`; returns the text behind it.
fn expand<'t>(text: &'t str, mut base: Module, found: &mut BTreeSet<Module>) -> &'t str {
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = expand(rest.trim_start(), base.clone(), found);
            let end = rest.find([',', '}']).unwrap_or(rest.len());
            let goes_on = rest[end..].starts_with(',');
            rest = rest.get(end + 1..).unwrap_or_default();
            if !goes_on || rest.trim_start().starts_with('}') {
                return rest;
            }
        }
    }
    let end = text
        .find(|c: char| c != '_' && !c.is_alphanumeric())
        .unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    match name {
        "" | "self" => {}
        "super" => {
            base.pop();
        }
        _ => base.push(name.to_owned()),
    }
    match rest.strip_prefix("::") {
        Some(more) => expand(more, base, found),
        None => {
            found.insert(base);
            rest
        }
    }
}
