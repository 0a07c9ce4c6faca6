//! What operators see: the metrics, and Prometheus, the dashboards and the alerts on top of them.

mod dashboards;
mod families;
mod load;
mod series;

use std::collections::BTreeSet;

use crate::harness::Gateway;

/// The series of a process: names and labels, without values.
async fn series(gateway: &Gateway) -> BTreeSet<String> {
    series_of(&metrics(gateway).await)
}

fn series_of(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let names = lines.map(|line| line.rsplit_once(' ').unwrap().0);
    names.map(str::to_owned).collect()
}

async fn metrics(gateway: &Gateway) -> String {
    gateway.admin_get("/metrics").await.unwrap().text()
}
