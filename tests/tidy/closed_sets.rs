//! The documents, the API description and the dashboards have each word of the code's closed sets, and no other.

use std::collections::BTreeSet;
use std::fs;

use crate::tree::{root, sources, text};

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
    let console = console.chain(a2a_gateway::admin::SIGN_IN_ROUTES);
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
    for step in a2a::completion_steps::CompletionStep::ALL {
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
        .flat_map(|source| source.product.split('"'))
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
        .flat_map(|source| source.product.split('"'))
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
