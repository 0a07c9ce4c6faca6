//! `grafana/` on a real Prometheus: every expression of every dashboard has data under load, every rule can be
//! evaluated, and the metrics are as Prometheus' own tool wants them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::load::Stage;
use super::metrics;
use crate::harness::prometheus::{Prometheus, promtool};
use crate::harness::{Builder, Pair, until_holds};

/// How long a number may take to come: two scrapes, on a busy machine.
const DATA_MAX: Duration = Duration::from_secs(120);

/// Alerts that a load of all kinds of errors does not set off: it is no outage.
const OF_OUTAGES: &str = "GatewayDown StoreAway NotCoherent EventsNotFollowed KeysNotCurrent InternalErrors \
                          ConfigRefused";

async fn rules(prometheus: &Prometheus) -> Vec<Value> {
    let answer = prometheus.get("/api/v1/rules").await;
    let groups = answer["data"]["groups"].as_array().unwrap();
    let rules = groups
        .iter()
        .map(|group| group["rules"].as_array().unwrap());
    rules.flatten().cloned().collect()
}

/// No alert says that there is an outage. One scrape that takes too long makes one pending, for a moment.
async fn assert_no_outage(prometheus: &Prometheus) {
    until_holds("no alert of an outage is pending", async || {
        let rules = rules(prometheus).await;
        OF_OUTAGES.split(' ').fold(true, |inactive, name| {
            let alert = rules.iter().find(|rule| rule["name"] == name).unwrap();
            assert_ne!(alert["state"], "firing", "{alert}");
            inactive && alert["state"] == "inactive"
        })
    })
    .await;
}

fn dashboards() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("grafana/dashboards");
    let files = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "{files:?}");
    files
}

/// The expressions of a dashboard, each with its panel, as Grafana would send them.
fn expressions(dashboard: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let expression = expression.replace("$__rate_interval", "8s");
            let expression = expression.replace("$instance", ".*");
            assert!(!expression.contains('$'), "{expression}");
            found.push((panel["title"].as_str().unwrap().to_owned(), expression));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_of_every_dashboard_has_data_and_every_rule_can_be_evaluated() {
    let gateway = Builder::new(Pair::External).start().await;
    let stage = Arc::new(Stage::on(gateway).await);
    let targets = [stage.gateway.admin, stage.guarded.sidecar.admin];
    let prometheus = Prometheus::start(&targets).await;
    let load = stage.load();

    let deadline = Instant::now() + DATA_MAX;
    let both = prometheus.await_data("count(up == 1) == 2", deadline);
    both.await.unwrap();
    let mut wrong = Vec::new();
    let mut asked = 0;
    for file in dashboards() {
        let dashboard = std::fs::read_to_string(&file).unwrap();
        let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
        for (panel, expression) in expressions(&dashboard) {
            asked += 1;
            if let Err(error) = prometheus.await_data(&expression, deadline).await {
                let name = file.file_stem().unwrap().display();
                wrong.push(format!("{name}, {panel}: {expression}\n  {error}"));
            }
        }
    }
    let (count, wrong) = (wrong.len(), wrong.join("\n"));
    assert_eq!(count, 0, "of {asked} queries:\n{wrong}");
    assert!(asked > 100, "{asked}");

    let rules = rules(&prometheus).await;
    assert!(rules.len() > 30, "{}", rules.len());
    for rule in &rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    assert_no_outage(&prometheus).await;
    drop(load);
    assert!(stage.target.agent.count() > 10);
}

#[test]
fn dashboards_are_whole() {
    let mut uids = BTreeSet::new();
    for file in dashboards() {
        let dashboard: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let name = file.file_stem().unwrap().to_str().unwrap();
        assert_eq!(dashboard["uid"], format!("a2a-gateway-{name}"));
        assert!(uids.insert(dashboard["uid"].to_string()));
        let mut ids = BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{name}: {panel}");
            let has = |name: &str| panel[name].as_str().is_some_and(|text| !text.is_empty());
            assert!(has("title"), "{name}: {panel}");
            let asks = !["row", "text"].contains(&panel["type"].as_str().unwrap());
            let described = has("description");
            assert!(!asks || described, "{name}: {panel}");
            for target in panel["targets"].as_array().into_iter().flatten() {
                // No server's own id: the dashboard goes wherever it is imported.
                assert_eq!(target["datasource"]["uid"], "${datasource}");
            }
        }
    }
}

#[test]
fn promtool_finds_nothing_wrong_with_config_and_rules_and_every_alert_is_tested() {
    for arguments in [
        ["check", "config", "prometheus.yaml"],
        ["check", "rules", "alerts.yaml"],
        ["test", "rules", "alerts_test.yaml"],
    ] {
        let (good, said) = promtool(&arguments, "");
        assert!(good, "{arguments:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promtool_finds_nothing_wrong_with_the_metrics() {
    let stage = Stage::on(Builder::new(Pair::Embedded).start().await).await;
    for round in 0..3 {
        for request in stage.requests(round) {
            stage.gateway.call(&request).await;
        }
    }
    let sidecar = stage.guarded.sidecar.admin_get("/metrics").await.text();
    let gateway = metrics(&stage.gateway).await;
    for (whose, text) in [("gateway", gateway), ("sidecar", sidecar)] {
        let (good, said) = promtool(&["check", "metrics"], &text);
        assert!(good && said.is_empty(), "{whose}: {said}");
    }
}
