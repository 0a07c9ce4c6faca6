//! House rules as a test: the walls between the rooms, one home for each table and key, names,
//! documents that agree with the code. Standard library only.

#![expect(
    clippy::unwrap_used,
    reason = "a file that cannot be read fails the test"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Longest source file, in lines. A longer one has a second room inside.
const FILE_LINES_MAX: usize = 500;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All Rust files below `folder`, with their text.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let start = root().join(folder);
    let mut folders = vec![start.clone()];
    if start.is_file() {
        return vec![(start.clone(), fs::read_to_string(start).unwrap())];
    }
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty(), "nothing below {folder}");
    found
}

/// The files of the program: the root package and the crates beside it.
fn code() -> Vec<(PathBuf, String)> {
    let mut found = sources("src");
    found.extend(sources("crates"));
    found
}

fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// The part of a file before its tests.
fn product(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

/// Fails for each file below `folder` whose product code mentions one of `words`.
fn deny(folder: &str, words: &[&str]) {
    for (path, text) in sources(folder) {
        for (number, line) in product(&text).lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for word in words {
                assert!(
                    !line.contains(word),
                    "{}:{}: `{word}` has no business in {folder}",
                    path.display(),
                    number + 1
                );
            }
        }
    }
}

#[test]
fn rooms_keep_their_walls() {
    deny(
        "crates/a2a/src",
        &[
            "tokio::",
            "pingora",
            "axum",
            ".await",
            "Instant::now",
            "SystemTime::now",
        ],
    );
    deny("src/hierarchy/mod.rs", &["sqlx", "redis::", "Instant::now"]);
    deny(
        "src/proxy",
        &[
            "crate::control",
            "crate::admin",
            "crate::cli",
            "sqlx",
            "redis::",
        ],
    );
    deny(
        "src/control",
        &[
            "crate::proxy",
            "crate::admin",
            "crate::cli",
            "sqlx",
            "redis::",
        ],
    );
    deny(
        "src/admin",
        &[
            "crate::proxy",
            "crate::control",
            "crate::cli",
            "sqlx",
            "redis::",
        ],
    );
    for room in [
        "trust",
        "identity",
        "workspace",
        "hierarchy",
        "tasks",
        "delivery",
        "directory",
        "events",
        "delivery",
        "db",
        "explain",
        "pages",
        "shared",
        "sidecar",
    ] {
        let upward = [
            "crate::proxy",
            "crate::control",
            "crate::admin",
            "crate::cli",
            "pingora",
            "axum",
        ];
        deny(&format!("src/{room}"), &upward);
    }
}

#[test]
fn redis_commands_have_one_home() {
    for (path, text) in code() {
        if path
            .parent()
            .is_none_or(|folder| !folder.ends_with("shared/redis"))
        {
            assert!(!product(&text).contains("redis::cmd"), "{}", path.display());
        }
    }
}

#[test]
fn each_table_is_spelled_in_one_file() {
    let tables = [
        "workspaces",
        "workspace_auth_tokens",
        "enrolment_tokens",
        "org_tokens",
        "admin_tokens",
        "coherence_gaps",
        "access_grants",
        "activity_logs",
        "inbox_heads",
        "task_updates",
        "delegations",
        "idempotent_calls",
        "kept_changes",
        "task_owners",
    ];
    // A removed workspace's tokens prove nothing, whatever happens at the same moment: that takes
    // one statement over both tables.
    // And a page of peers is one statement over relations and grants.
    let joined = [
        ("workspaces", "identity/token/mod.rs"),
        ("workspaces", "identity/token/enrolment.rs"),
        ("access_grants", "workspace/reach.rs"),
    ];
    // A table with more statements than fit into one file has a folder.
    let inbox = || root().join("src/delivery/inbox");
    let tokens = || root().join("src/identity/token");
    let folders = [
        ("workspaces", root().join("src/workspace")),
        ("workspace_auth_tokens", tokens()),
        ("enrolment_tokens", tokens()),
        ("org_tokens", tokens()),
        ("activity_logs", inbox()),
        ("inbox_heads", inbox()),
        ("task_updates", inbox()),
    ];
    for table in tables {
        let mut homes = BTreeSet::new();
        for (path, text) in code() {
            let exempt = |(of, file): &(&str, &str)| *of == table && path.ends_with(file);
            if path.ends_with("tests.rs") || joined.iter().any(exempt) {
                continue;
            }
            let spelled = ["FROM ", "INTO ", "UPDATE ", "JOIN "].iter().any(|verb| {
                product(&text)
                    .match_indices(&format!("{verb}{table}"))
                    .any(|(at, hit)| {
                        !product(&text)[at + hit.len()..]
                            .starts_with(|c: char| c == '_' || c.is_alphanumeric())
                    })
            });
            if spelled {
                let folder = folders
                    .iter()
                    .find(|(of, folder)| *of == table && path.starts_with(folder));
                homes.insert(folder.map_or(path, |(_, folder)| folder.clone()));
            }
        }
        assert!(homes.len() <= 1, "table {table} is spelled in {homes:?}");
    }
}

#[test]
fn no_room_is_called_anything() {
    for (path, _) in code() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(
            !["utils", "util", "helpers", "common", "misc"].contains(&name.as_str()),
            "{name}"
        );
    }
}

#[test]
fn every_file_says_what_it_is_for_and_stays_readable() {
    for folder in ["src", "crates", "tests", "benches", "examples"] {
        for (path, text) in sources(folder) {
            assert!(text.starts_with("//!"), "{} has no header", path.display());
            let lines = text.lines().count();
            assert!(
                lines <= FILE_LINES_MAX,
                "{} has {lines} lines",
                path.display()
            );
        }
    }
}

#[test]
fn the_pages_stay_readable_and_make_no_markup_of_text() {
    let mut folders = vec![root().join("pages"), root().join("tests/pages")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("pages/vendor") {
                folders.push(path);
                continue;
            }
            let is_source = |e: &std::ffi::OsStr| e == "js" || e == "mjs" || e == "css";
            if !path.extension().is_some_and(is_source) {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().count();
            assert!(
                lines <= FILE_LINES_MAX,
                "{} has {lines} lines",
                path.display()
            );
            let begins = text.starts_with("//") || text.starts_with("/*");
            assert!(begins, "{} has no header", path.display());
            if path.starts_with(root().join("tests")) {
                continue;
            }
            // Nor is anything kept where the next user of the browser finds it.
            // Half of a session, which opens nothing alone, is kept by one module.
            let keeps = path.ends_with("console/session.js");
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "setAttribute(\"style\"",
                "localStorage",
                "sessionStorage",
                "document.cookie",
                "indexedDB",
            ] {
                let allowed = keeps && word == "sessionStorage";
                assert!(
                    allowed || !text.contains(word),
                    "{} says {word}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn nothing_is_left_for_later() {
    for (path, text) in code() {
        for word in ["TODO", "FIXME", "XXX", "todo!(", "unimplemented!("] {
            assert!(!text.contains(word), "{} says {word}", path.display());
        }
    }
}

#[test]
fn every_reason_is_documented() {
    let documented = text("docs/reference/reasons.md");
    for reason in a2a_gateway::rejection::Reason::ALL {
        let word = format!("`{}`", reason.as_str());
        assert!(
            documented.contains(&word),
            "docs/reference/reasons.md does not explain {word}"
        );
    }
}

#[test]
fn openapi_has_exactly_the_routes_that_there_are() {
    let mut routes: BTreeSet<String> = a2a_gateway::control::ROUTES
        .iter()
        .map(|(method, path)| format!("{method} {path}"))
        .collect();
    let a2a = a2a_gateway::proxy::A2A_ROUTES.iter();
    let a2a = a2a.chain(&a2a_gateway::proxy::REST_ROUTES);
    let console = a2a_gateway::admin::CONSOLE_ROUTES.iter();
    let console = console.chain(a2a_gateway::admin::API_ROUTES);
    routes.extend(
        a2a.chain(console)
            .map(|(method, path)| format!("{method} {path}")),
    );
    // The others of the admin listener: every one is read.
    let admin = text("src/admin/mod.rs");
    for route in admin.split(".route(\"").skip(1) {
        routes.insert(format!("GET {}", route.split('"').next().unwrap()));
    }
    let mut described = BTreeSet::new();
    let mut path = "";
    let document = text("docs/openapi.yaml");
    let paths = document.split("\npaths:\n").nth(1).unwrap();
    for line in paths.lines().take_while(|line| line.starts_with(' ')) {
        let Some(name) = line.strip_suffix(':') else {
            continue;
        };
        let method = name.trim().to_uppercase();
        if name.starts_with("  /") {
            path = name.trim();
        } else if ["GET", "POST", "PUT", "PATCH", "DELETE"].contains(&method.as_str()) {
            described.insert(format!("{method} {path}"));
        }
    }
    assert_eq!(described, routes);
}

#[test]
fn openapi_and_the_documents_have_every_word_of_the_closed_sets() {
    let openapi = text("docs/openapi.yaml");
    for reason in a2a_gateway::rejection::Reason::ALL {
        let entry = format!("        - {}\n", reason.as_str());
        assert!(openapi.contains(&entry), "docs/openapi.yaml: {entry}");
    }
    let calls = text("docs/reference/a2a.md");
    for step in a2a::done::Step::ALL {
        let row = format!("| `{}` |", step.as_str());
        assert!(
            calls.contains(&row),
            "docs/reference/a2a.md does not explain {row}"
        );
    }
    let access_line = text("docs/reference/logging.md");
    for method in a2a::method::Method::ALL {
        let word = format!("`{}`", method.label());
        assert!(
            access_line.contains(&word),
            "docs/reference/logging.md: {word}"
        );
    }
}

#[test]
fn every_metric_is_documented() {
    let documented = text("docs/reference/metrics.md");
    let files = sources("src/metrics");
    let names: BTreeSet<_> = files
        .iter()
        .flat_map(|(_, source)| product(source).split('"'))
        .filter(|word| word.starts_with("a2a_gateway_") || word.starts_with("process_"))
        .collect();
    assert!(names.len() > 10);
    for name in names {
        assert!(
            documented.contains(name),
            "docs/reference/metrics.md does not explain {name}"
        );
    }
}

/// Words of a text that begin with `prefix`.
fn words<'t>(text: &'t str, prefix: &'t str) -> impl Iterator<Item = &'t str> {
    let is_of_a_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
    text.split(move |c| !is_of_a_word(c))
        .filter(move |word| word.starts_with(prefix))
}

#[test]
fn grafana_asks_only_for_metrics_that_there_are() {
    let sources = sources("src/metrics");
    let known: BTreeSet<_> = sources
        .iter()
        .flat_map(|(_, source)| product(source).split('"'))
        .collect();
    let mut files = vec![
        root().join("grafana/alerts.yaml"),
        root().join("grafana/alerts_test.yaml"),
    ];
    let dashboards = fs::read_dir(root().join("grafana/dashboards")).unwrap();
    files.extend(dashboards.map(|entry| entry.unwrap().path()));
    assert!(files.len() > 6);
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let names = words(&text, "a2a_gateway_").chain(words(&text, "process_"));
        for name in names {
            let family = ["_bucket", "_count", "_sum"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .filter(|family| known.contains(family));
            assert!(
                family.is_some() || known.contains(name),
                "{} asks for {name}",
                file.display()
            );
        }
    }
}

#[test]
fn every_alert_has_a_runbook_and_a_test_of_firing_and_of_not() {
    let (rules, tests) = (
        text("grafana/alerts.yaml"),
        text("grafana/alerts_test.yaml"),
    );
    let runbooks = text("docs/reference/alerts.md");
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 30);
    for alert in alerts {
        let name = alert.lines().next().unwrap();
        let link = format!(
            "runbook_url: docs/reference/alerts.md#{}\n",
            name.to_lowercase()
        );
        assert!(alert.contains(&link), "{name} lacks {link}");
        for part in ["severity: ", "summary: ", "description: "] {
            assert!(alert.contains(part), "{name} lacks {part}");
        }
        let heading = format!("\n### {name}\n");
        assert!(runbooks.contains(&heading), "no section {name}");
        for what in ["fires", "does not fire"] {
            let case = format!("- name: {name} {what}\n");
            assert!(tests.contains(&case), "{name}: no test that it {what}");
        }
    }
}

#[test]
fn no_registry_or_machine_is_named() {
    for folder in ["src", "crates", "tests", "benches", "examples"] {
        for (path, text) in sources(folder) {
            if path.ends_with("tests/tidy.rs") {
                continue;
            }
            for word in ["crates.io", "pypi.org", "npmjs", "/work/"] {
                assert!(!text.contains(word), "{} names {word}", path.display());
            }
        }
    }
}
