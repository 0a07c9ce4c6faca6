//! What users rely on is in the code, and what the code answers is explained: words, routes, metrics and alerts.

use std::collections::BTreeSet;
use std::path::PathBuf;

use a2a::completion_steps::CompletionStep;
use a2a::method::Method;
use a2a_gateway::rejection::Reason;
use a2a_gateway::{admin, control, proxy};

use crate::tree::{has_extension, list_files, read_sources, read_text, split_words};

/// Fails for each of `words` that a document lacks.
fn assert_has_each(file: &str, words: impl IntoIterator<Item = String>) {
    let text = read_text(file);
    for word in words {
        assert!(text.contains(&word), "{file} does not explain {word}");
    }
}

/// The names of the metrics.
fn find_metrics() -> BTreeSet<String> {
    let sources = read_sources(&["crates/kernel/src/metrics"]);
    let strings = sources.iter().flat_map(|source| source.product.split('"'));
    let names = strings.filter(|word| !word.ends_with('_') && is_metric(word));
    names.map(str::to_owned).collect()
}

fn is_metric(word: &str) -> bool {
    word.starts_with("a2a_gateway_") || word.starts_with("process_")
}

#[test]
fn each_word_that_users_read_is_explained() {
    let reasons = Reason::ALL
        .iter()
        .map(|reason| format!("`{}`", reason.as_str()));
    assert_has_each("docs/reference/reasons.md", reasons);
    let entries = Reason::ALL
        .iter()
        .map(|reason| format!("        - {}\n", reason.as_str()));
    assert_has_each("docs/openapi.yaml", entries);
    let steps = CompletionStep::ALL.map(|step| format!("| `{}` |", step.as_str()));
    assert_has_each("docs/reference/a2a.md", steps);
    let methods = Method::ALL.map(|method| format!("`{}`", method.label()));
    assert_has_each("docs/reference/monitoring.md", methods);
    let metrics = find_metrics();
    assert!(metrics.len() > 100, "{metrics:?}");
    let metrics = metrics.iter().map(|name| format!("`{name}`"));
    assert_has_each("docs/reference/metrics.md", metrics);
}

#[test]
fn no_route_of_the_gateway_is_read_as_a_tenant() {
    for (_, path) in control::ROUTES {
        let first = path.split('/').nth(1).unwrap();
        assert!(proxy::OWN_SEGMENTS.contains(&first), "{path}");
    }
}

#[test]
fn openapi_has_exactly_the_routes_that_there_are() {
    let a2a = [&proxy::A2A_ROUTES[..], &proxy::REST_ROUTES];
    let console = [
        admin::CONSOLE_ROUTES,
        &admin::API_ROUTES[..],
        admin::SIGN_IN_ROUTES,
    ];
    let routes = [a2a.concat(), console.concat(), control::ROUTES.to_vec()].concat();
    let routes = routes
        .iter()
        .map(|(method, path)| format!("{method} {path}"));
    let mut routes: BTreeSet<String> = routes.collect();
    // The others of the admin listener: every one is read.
    for route in read_text("crates/control-plane/src/admin/mod.rs")
        .split(".route(")
        .skip(1)
    {
        routes.insert(format!("GET {}", route.split('"').nth(1).unwrap()));
    }
    let mut described = BTreeSet::new();
    let mut path = "";
    let document = read_text("docs/openapi.yaml");
    let paths = document.split("\npaths:\n").nth(1).unwrap();
    let lines = paths.lines().take_while(|line| line.starts_with(' '));
    for name in lines.filter_map(|line| line.strip_suffix(':')) {
        let method = name.trim().to_uppercase();
        if name.starts_with("  /") {
            path = name.trim();
        } else if ["GET", "POST", "PUT", "PATCH", "DELETE"].contains(&method.as_str()) {
            described.insert(format!("{method} {path}"));
        }
    }
    assert_eq!(described, routes);
}

/// Names in documents that begin as a metric's do: a package and a crate.
const OTHER_NAMES: [&str; 2] = ["a2a_gateway_agent", "a2a_gateway_data_plane"];

/// An alert on a metric that there is not never fires, and Prometheus finds nothing wrong with it.
/// A document that names one is stale.
#[test]
fn alerts_and_documents_name_only_metrics_that_there_are() {
    let metrics = find_metrics();
    let mut files = list_files("docs");
    files.retain(|path| has_extension(path, &["md"]));
    assert!(files.len() > 30, "{files:?}");
    files.extend(["grafana/alerts.yaml", "grafana/alerts_test.yaml"].map(PathBuf::from));
    for file in files {
        let file = file.to_str().unwrap();
        let text = read_text(file);
        let words =
            split_words(&text).filter(|word| is_metric(word) && !OTHER_NAMES.contains(word));
        for word in words {
            let mut suffixes = ["", "_bucket", "_count", "_sum"].iter();
            let is_there = suffixes.any(|suffix| {
                let family = word.strip_suffix(suffix);
                family.is_some_and(|family| metrics.contains(family))
            });
            assert!(is_there, "{file} names {word}");
        }
    }
}

#[test]
fn every_alert_has_a_runbook_and_a_test_of_firing_and_of_not() {
    let rules = read_text("grafana/alerts.yaml");
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 30);
    for alert in alerts {
        let name = alert.lines().next().unwrap();
        let anchor = format!("docs/reference/alerts.md#{}\n", name.to_lowercase());
        assert!(alert.contains(&anchor), "{name} lacks {anchor}");
        let heading = format!("\n### {name}\n");
        assert_has_each("docs/reference/alerts.md", [heading]);
        let cases = ["fires", "does not fire"].map(|what| format!("- name: {name} {what}\n"));
        assert_has_each("grafana/alerts_test.yaml", cases);
    }
}
