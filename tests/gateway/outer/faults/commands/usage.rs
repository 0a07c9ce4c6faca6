//! `a2a-gateway usage`: a table, CSV and JSON of the same sums.

use serde_json::json;

use super::{ended, operating, run};
use crate::harness::{Agent, CALL, Gateway, Pair, Request, until_holds};

#[tokio::test]
async fn usage_is_a_table_a_file_and_json() {
    let gateway = Gateway::start(Pair::Embedded).await;
    assert!(
        run(&gateway, "usage")
            .await
            .done()
            .starts_with("no call from ")
    );
    let answers = Agent::json(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    let (caller, _target) = gateway.pair(answers).await;
    assert_eq!(
        gateway.patch("caller", json!({"org": "acme"})).await.status,
        200
    );
    assert_eq!(
        gateway.patch("target", json!({"org": "acme"})).await.status,
        200
    );
    let call = Request::post("/workspaces/target/a2a", CALL).bearer(&caller.token);
    for _ in 0..2 {
        assert_eq!(gateway.call(&call).await.status, 200);
    }
    until_holds("both calls are counted", async || {
        let total = run(&gateway, "usage --per total --json").await.json();
        total["total"]["calls"] == 2
    })
    .await;
    let words = |text: &str| -> Vec<Vec<String>> {
        let lines = text.lines();
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        lines.map(words).collect()
    };
    let by_day = words(&run(&gateway, "usage").await.done());
    assert_eq!(
        by_day[0][..5],
        ["DAY", "ORG", "WORKSPACE", "CALLS", "STREAMS"]
    );
    assert_eq!(by_day[1][1..4], ["acme", "caller", "2"]);
    assert_eq!(by_day[2][..4], ["TOTAL", "-", "-", "2"]);
    let by_org = words(
        &run(&gateway, "usage --by org --per total --side target")
            .await
            .done(),
    );
    assert_eq!(by_org[0][..2], ["ORG", "CALLS"]);
    assert_eq!(by_org[1][..2], ["acme", "2"]);
    let file = run(&gateway, "usage --by org --per total --csv")
        .await
        .done();
    let lines: Vec<&str> = file.split("\r\n").collect();
    assert!(
        lines[0].starts_with("from,to,side,org,workspace,calls"),
        "{file}"
    );
    assert!(lines[1].contains(",caller,acme,,2,0,0,0,"), "{file}");
    let none = run(&gateway, "usage --org elsewhere --workspace caller --json")
        .await
        .json();
    assert_eq!(none["usage"], json!([]));
    run(&gateway, "usage --from 2026-13-01")
        .await
        .refused(1, "`from`");
    run(&gateway, "usage --csv --from 2026-13-01")
        .await
        .refused(1, "`from`");
    run(&gateway, "usage --by day")
        .await
        .refused(64, "workspace");
    let mut by_agent = operating(&gateway);
    by_agent
        .env("A2A_GATEWAY_TOKEN", &caller.token)
        .arg("usage");
    ended(&mut by_agent).await.refused(1, "not_permitted");
}
