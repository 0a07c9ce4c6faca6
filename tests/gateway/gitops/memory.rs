//! A comparison of a policy takes memory in proportion to the document, and no two of them take it at once.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{apply, export};
use crate::harness::{Builder, Gateway, Pair, Request};

/// Entries of the document: the shorter each is, the more a tree of values takes for a byte.
const ENTRIES: usize = 8_000;

async fn reader(gateway: &Gateway) -> String {
    let request = Request::post("/operators/tokens", json!({"role": "read"}).to_string());
    let made = gateway.as_operator(request).await;
    made.json()["token"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dry_runs_of_readers_are_compared_one_at_a_time_within_a_bound() {
    let gateway = Builder::new(Pair::Embedded).process().start().await;
    let readers = [
        reader(&gateway).await,
        reader(&gateway).await,
        reader(&gateway).await,
    ];
    let workspaces: Vec<Value> = (0..ENTRIES)
        .map(|n| json!({"id": format!("w{n:05}")}))
        .collect();
    let document = json!({"version": 1, "workspaces": workspaces}).to_string();
    let peak = || gateway.memory_kib("VmHWM") / 1024;
    let before = peak();
    let dry_runs = (0..24).map(|n| {
        let request = Request::post("/policy?dry_run=true", document.clone());
        let request = request.bearer(&readers[n % readers.len()]);
        let gateway = &gateway;
        async move { gateway.call(&request).await }
    });
    let small = json!({"version": 1, "grants": []});
    // An operator who applies a policy meanwhile has a turn.
    let (answers, _) = tokio::join!(join_all(dry_runs), apply(&gateway, "", &small));
    let mut compared = 0;
    for answer in &answers {
        match answer.status {
            200 => compared += 1,
            503 => {
                assert_eq!(answer.reason(), "overloaded", "{}", answer.text());
                assert!(answer.field("retry-after").is_some());
            }
            _ => panic!("{}", answer.text()),
        }
    }
    assert!(compared >= 1, "none was compared");
    let grown = peak() - before;
    assert!(
        grown < 80,
        "{grown} MiB for {compared} comparisons of {} KiB",
        document.len() / 1024
    );
    assert_eq!(export(&gateway).await["workspaces"], json!([]));
}
