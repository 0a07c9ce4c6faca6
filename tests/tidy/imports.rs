//! Which module names an item of which other module, and the circles among them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::tree::{PROGRAM, Source, read_sources};

/// The names of a module or an item: its crate's folder first.
pub(crate) type Name = Vec<String>;

/// The names that the product code of each module has.
pub(crate) fn read_imports() -> BTreeMap<Name, BTreeSet<Name>> {
    let mut sources = read_sources(&PROGRAM);
    sources.retain(|one| !one.code().trim().is_empty() && !one.path.ends_with("main.rs"));
    let find_own = |one: &Source| (name_module(&one.path), find_names(one));
    sources.iter().map(find_own).collect()
}

/// Sets of modules that reach each other by the imports that count, each from a module into another.
pub(crate) fn find_circles(counts: impl Fn(&[String], &[String]) -> bool) -> BTreeSet<Vec<String>> {
    let imports = read_imports();
    let find_module = |name: &Name| {
        let mut lengths = (2..=name.len()).rev();
        let found = lengths.find_map(|length| imports.get_key_value(&name[..length]))?;
        Some(found.0)
    };
    let mut graph: BTreeMap<&Name, BTreeSet<&Name>> = BTreeMap::new();
    for (own, named) in &imports {
        let targets = named.iter().filter_map(find_module);
        let counted = targets.filter(|target| *target != own && counts(own, target));
        graph.insert(own, counted.collect());
    }
    let mut reached: BTreeMap<&Name, BTreeSet<&Name>> = BTreeMap::new();
    for own in imports.keys() {
        let (found, mut ahead) = (reached.entry(own).or_default(), vec![own]);
        while let Some(next) = ahead.pop() {
            ahead.extend(graph[next].iter().filter(|target| found.insert(**target)));
        }
    }
    let circles = reached.iter().map(|(own, all)| {
        let circle = all.iter().filter(|other| reached[**other].contains(own));
        circle.map(|module| module.join("::")).collect::<Vec<_>>()
    });
    circles.filter(|circle| !circle.is_empty()).collect()
}

/// The name of the module of a file: its crate's folder and the names below `src`.
pub(crate) fn name_module(path: &Path) -> Name {
    let text = path.to_str().unwrap();
    let (folder, inner) = text.split_at(text.find("src/").unwrap() + 3);
    let names = inner.trim_end_matches(".rs").split('/');
    let names = names.filter(|name| !["", "mod", "lib"].contains(name));
    let parts = [folder].into_iter().chain(names);
    parts.map(String::from).collect()
}

/// All paths from `crate`, `self` and `super` in the product code of a file, from its crate's root.
fn find_names(source: &Source) -> BTreeSet<Name> {
    let (code, own) = (source.code(), name_module(&source.path));
    let mut found = BTreeSet::new();
    for start in ["crate", "self", "super"] {
        for (at, word) in code.match_indices(&format!("{start}::")) {
            let before = code[..at].chars().next_back();
            let goes_on = before.is_some_and(|c| c == ':' || c == '_' || c.is_alphanumeric());
            // A visibility is no import.
            if goes_on || code[..at].ends_with("pub(in ") {
                continue;
            }
            let base = match start {
                "crate" => own[..1].to_vec(),
                "self" => own.clone(),
                _ => own[..own.len() - 1].to_vec(),
            };
            expand_paths(&code[at + word.len()..], base, &mut found);
        }
    }
    found
}

/// Notes the paths of a tree behind `base`; returns the text behind it.
fn expand_paths<'t>(text: &'t str, mut base: Name, found: &mut BTreeSet<Name>) -> &'t str {
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = expand_paths(rest.trim_start(), base.clone(), found);
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
        Some(more) => expand_paths(more, base, found),
        None => {
            found.insert(base);
            rest
        }
    }
}
