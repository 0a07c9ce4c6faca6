//! Statements of a policy: proven for the state that it leads to, and refused by `apply` where one does not hold; and
//! who reaches whom.

use serde_json::{Value, json};

use super::commands::run;
use super::{apply, export, post, team};
use crate::harness::{Gateway, Pair, Request};
use crate::on_both_pairs;

async fn prove(gateway: &Gateway, policy: &Value) -> Value {
    let request = Request::post("/policy/prove", policy.to_string());
    gateway.as_operator(request).await.has(200).json()
}

on_both_pairs! {
    async fn a_policy_in_which_a_statement_does_not_hold_is_not_applied(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let mut policy = team();
        policy["statements"] = json!(["always: pm -> subtree:pm", "never: org:beta -> pm"]);
        // `poller` is stopped.
        let proof = prove(&gateway, &policy).await;
        assert_eq!(proof["holds"], false);
        let broken = &proof["broken"][0];
        assert_eq!(proof["broken"].as_array().unwrap().len(), 1, "{proof}");
        assert_eq!((&broken["caller"], &broken["target"]), (&json!("pm"), &json!("poller")), "{proof}");
        assert_eq!(broken["denied"], "stopped: a loop");
        assert_eq!(export(&gateway).await["workspaces"], json!([]));

        policy["statements"] = json!(["never: org:beta -> pm", "never: org:beta -> org:acme"]);
        let refused = post(&gateway, "", &policy).await.has(400).json();
        let error = &refused["errors"][0];
        assert_eq!(error["path"], "statements[1]", "{refused}");
        assert_eq!(
            error["error"],
            "`never: org:beta -> org:acme` does not hold: other -[grant]-> dev"
        );
        assert_eq!(export(&gateway).await["workspaces"], json!([]), "nothing was changed");
        apply(&gateway, "?force=true", &policy).await;
        assert!(export(&gateway).await.get("statements").is_none(), "none is stored");

        // As it is, and as it would be.
        let now = json!({"version": 1, "statements": ["never: org:beta -> org:acme", "only: pm, pool -> dev"]});
        let proof = prove(&gateway, &now).await;
        let path = json!([{"caller": "other", "target": "dev", "rule": "grant"}]);
        for broken in proof["broken"].as_array().unwrap() {
            assert_eq!(broken["path"], path, "{proof}");
        }
        assert_eq!(proof["broken"].as_array().unwrap().len(), 2, "{proof}");
        let pruned = json!({"version": 1, "grants": [], "statements": now["statements"]});
        let request = Request::post("/policy/prove?prune=true", pruned.to_string());
        let proof = gateway.as_operator(request).await.has(200).json();
        assert_eq!(proof, json!({"holds": true}));
        // With `any`, a grandparent reaches it, too; and `apply` refuses what is no part of its state.
        let mut any = json!({"version": 1, "access": {"lineage": "any"}, "statements": ["never: pm -> other"]});
        assert_eq!(prove(&gateway, &any).await, json!({"holds": true}));
        post(&gateway, "", &any).await.has(400);
        any["statements"] = json!(["never: pn -> other"]);
        let request = Request::post("/policy/prove", any.to_string());
        let refused = gateway.as_operator(request).await.has(400).json();
        assert_eq!(refused["errors"][0]["error"], "there is no workspace `pn`");

        // An org token proves of its org alone, as it is.
        let token = gateway.token("/orgs/acme/tokens", "{}").await;
        let ask = async |policy: Value| {
            let request = Request::post("/policy/prove", policy.to_string());
            gateway.call(&request.bearer(&token)).await
        };
        let own = json!({"version": 1, "statements": ["only: pm, pool -> dev", "never: pm -> pool"]});
        let proof = ask(own).await.has(200).json();
        assert_eq!(proof["broken"].as_array().unwrap().len(), 1, "the grant is of another org: {proof}");
        assert_eq!(proof["broken"][0]["statement"], "never: pm -> pool");
        ask(json!({"version": 1, "statements": ["never: other -> dev"]})).await.has(400);
        ask(json!({"version": 1, "grants": [], "statements": []})).await.has(403);
    }

    async fn who_reaches_whom_is_told_in_groups_and_pairs(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        apply(&gateway, "", &team()).await;
        let read = async |query: &str| {
            let request = Request::get(format!("/access/matrix{query}"));
            gateway.as_operator(request).await.has(200)
        };
        let rows = read("").await.json();
        let expected = json!({"access": [
            {"group": ["dev", "pool"], "rule": "sibling"},
            {"caller": "dev", "target": "pm", "rule": "child"},
            {"caller": "other", "target": "dev", "rule": "grant"},
            {"caller": "pm", "target": "dev", "rule": "parent"},
            {"caller": "pm", "target": "pool", "rule": "parent"},
            {"caller": "pool", "target": "pm", "rule": "child"},
        ], "next_cursor": null});
        assert_eq!(rows, expected);
        let (mut paged, mut query) = (Vec::new(), "?limit=4".to_owned());
        loop {
            let page = read(&query).await.json();
            paged.extend(page["access"].as_array().unwrap().clone());
            let Some(cursor) = page["next_cursor"].as_str() else { break };
            query = format!("?limit=4&cursor={cursor}");
        }
        assert_eq!(json!(paged), expected["access"]);
        let file = read("?format=csv").await.text();
        let lines: Vec<_> = file.lines().take(4).collect();
        assert_eq!(lines, ["group,caller,target,rule", "1,dev,,sibling", "1,pool,,sibling", ",dev,pm,child"]);
        let wrong = Request::get("/access/matrix?format=xlsx");
        gateway.as_operator(wrong).await.has(400);
        // Pages go on after a pair of the longest ids.
        let [long, longer] = ["a", "b"].map(|letter| letter.repeat(128));
        let workspaces = json!([{"id": long, "name": "a", "org": "x"}, {"id": longer, "name": "b", "parent_id": long, "org": "x"}]);
        apply(&gateway, "", &json!({"version": 1, "workspaces": workspaces})).await;
        let page = read("?limit=2").await.json();
        assert_eq!(page["access"][1]["target"], longer);
        let next = format!("?limit=1&cursor={}", page["next_cursor"].as_str().unwrap());
        assert_eq!(read(&next).await.json()["access"][0]["caller"], longer);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_are_proven_from_the_command_line() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let policy = |statement: &str| {
        format!(
            "version: 1\nworkspaces:\n- id: pm\n  org: acme\n- id: dev\n  parent_id: pm\nstatements: ['{statement}']\n"
        )
    };
    let prove = ["policy", "prove", "-"];
    let (code, out, err) = run(&gateway, &prove, &policy("only: pm -> dev"));
    assert_eq!(
        (code, &*out),
        (Some(0), "All 1 statements hold.\n"),
        "{err}"
    );
    let (code, out, _) = run(&gateway, &prove, &policy("never: pm -> dev"));
    assert_eq!(
        (code, &*out),
        (
            Some(1),
            "does not hold: never: pm -> dev\n  pm -[parent]-> dev\n"
        )
    );
    let (code, _, err) = run(
        &gateway,
        &["apply", "-", "--yes"],
        &policy("never: pm -> dev"),
    );
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("pm -[parent]-> dev"), "{err}");
    let forced = ["apply", "-", "--yes", "--force"];
    let (code, _, err) = run(&gateway, &forced, &policy("never: pm -> dev"));
    assert_eq!(code, Some(0), "{err}");
    let (_, out, _) = run(&gateway, &["access", "matrix"], "");
    assert_eq!(out, "dev -> pm (child)\npm -> dev (parent)\n");
}
