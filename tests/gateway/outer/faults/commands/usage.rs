//! `a2a-gateway usage`: a table, CSV and JSON of the same sums.

use serde_json::json;

use super::{done, ended, json_of, operating, refused};
use crate::harness::{Gateway, Pair, answering, until_holds};

#[tokio::test]
async fn usage_is_a_table_a_file_and_json() {
    let gateway = Gateway::start(Pair::Embedded).await;
    assert!(done(&gateway, "usage").await.starts_with("no call from "));
    let (caller, target) = gateway.pair(answering().await).await;
    for id in ["caller", "target"] {
        gateway.patch(id, json!({"org": "acme"})).await.has(200);
    }
    for _ in 0..2 {
        gateway.call(&caller.calls(&target)).await.has(200);
    }
    until_holds("both calls are counted", async || {
        let total = json_of(&gateway, "usage --per total --json").await;
        total["total"]["calls"] == 2
    })
    .await;
    let words = |text: &str| -> Vec<Vec<String>> {
        let lines = text.lines();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        lines.map(words).collect()
    };
    let by_day = words(&done(&gateway, "usage").await);
    let head = ["DAY", "ORG", "WORKSPACE", "CALLS", "STREAMS"];
    assert_eq!(by_day[0][..5], head);
    assert_eq!(by_day[1][1..4], ["acme", "caller", "2"]);
    assert_eq!(by_day[2][..4], ["TOTAL", "-", "-", "2"]);
    let by_org = words(&done(&gateway, "usage --by org --per total --side target").await);
    assert_eq!(by_org[0][..2], ["ORG", "CALLS"]);
    assert_eq!(by_org[1][..2], ["acme", "2"]);
    let file = done(&gateway, "usage --by org --per total --csv").await;
    let lines: Vec<&str> = file.split("\r\n").collect();
    let head = "from,to,side,org,workspace,calls";
    assert!(lines[0].starts_with(head), "{file}");
    assert!(lines[1].contains(",caller,acme,,2,0,0,0,"), "{file}");
    let none = json_of(&gateway, "usage --org elsewhere --workspace caller --json").await;
    assert_eq!(none["usage"], json!([]));
    refused(&gateway, "usage --from 2026-13-01", 1, "`from`").await;
    refused(&gateway, "usage --csv --from 2026-13-01", 1, "`from`").await;
    refused(&gateway, "usage --by day", 64, "workspace").await;
    let mut by_agent = operating(&gateway);
    let by_agent = by_agent.env("A2A_GATEWAY_TOKEN", &caller.token);
    ended(by_agent.arg("usage"))
        .await
        .refused(1, "not_permitted");
}
