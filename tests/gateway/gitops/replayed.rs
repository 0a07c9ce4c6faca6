//! Calls of the audit, judged by a policy that is not applied: right to the call against the decisions once it is.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{apply, export, post};
use crate::audit::of_request;
use crate::harness::{CALL, Gateway, Request};
use crate::on_both_pairs;

const NAMES: [&str; 7] = ["top", "left", "right", "low", "beta", "beta-low", "gone"];

fn tree(change: &str) -> Value {
    let mut workspaces = json!([
        {"id": "top", "org": "acme"}, {"id": "left", "parent_id": "top"}, {"id": "right", "parent_id": "top"},
        {"id": "low", "parent_id": "left"}, {"id": "beta", "org": "beta"}, {"id": "beta-low", "parent_id": "beta"},
        {"id": "gone", "parent_id": "right"},
    ]);
    let mut grants = json!([{"caller_id": "beta", "target_id": "low"}]);
    match change {
        "move" => workspaces[3]["parent_id"] = "right".into(),
        "grant" => grants
            .as_array_mut()
            .unwrap()
            .push(json!({"caller_id": "top", "target_id": "beta-low"})),
        "revoke" => grants = json!([]),
        "remove" => drop(workspaces.as_array_mut().unwrap().pop()),
        _ => {}
    }
    json!({"version": 1, "workspaces": workspaces, "grants": grants})
}

/// Replays the last hour, and returns the result, which is the last line.
async fn replay(gateway: &Gateway, policy: &Value) -> Value {
    let answer = post(gateway, "?replay=1h&prune=true", policy)
        .await
        .has(200);
    let text = answer.text();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// The calls of a replay: how many of each pair pass now, or do not any more.
fn told(result: &Value) -> BTreeMap<(String, String, bool), u64> {
    let of = |change: &Value| {
        let text = |name: &str| change[name].as_str().unwrap_or_default().to_owned();
        assert_ne!(
            change["rule_before"].is_null(),
            change["rule_after"].is_null(),
            "{change}"
        );
        let key = (
            text("caller"),
            text("target"),
            !change["rule_after"].is_null(),
        );
        (key, change["calls"].as_u64().unwrap())
    };
    result["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(of)
        .collect()
}

on_both_pairs! {
    async fn calls_are_judged_as_they_are_once_the_policy_is_applied(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        apply(&gateway, "", &tree("")).await;
        let mut tokens = BTreeMap::new();
        for name in NAMES {
            let path = format!("/workspaces/{name}/tokens");
            tokens.insert(name, gateway.token(&path, "{}").await);
        }
        // Every pair once, and some again: nothing answers there, which is no matter of permission.
        let mut calls: BTreeMap<(&str, &str), (bool, u64)> = BTreeMap::new();
        let pairs = NAMES.iter().flat_map(|from| NAMES.iter().map(move |to| (*from, *to)));
        for (n, (from, to)) in pairs.enumerate() {
            let times = 1 + n as u64 % 3 / 2;
            for time in 0..times {
                let id = format!("call-{n}-{time}");
                let request = Request::post(format!("/workspaces/{to}/a2a"), CALL).bearer(&tokens[from]);
                let answer = gateway.call(&request.field("X-Request-Id", &id)).await;
                calls.insert((from, to), (answer.status != 403, times));
                of_request(&gateway, &id).await;
            }
        }
        let total: u64 = calls.values().map(|(_, times)| times).sum();
        assert_eq!(told(&replay(&gateway, &tree("")).await), BTreeMap::new());
        let before = export(&gateway).await;
        let stopped = json!({"version": 1, "stops": [{"scope": {"subtree": "left"}, "mode": "new", "reason": "a test"}]});
        let found = told(&replay(&gateway, &stopped).await);
        for ((from, to), (passed, times)) in &calls {
            let covered = ["left", "low"].iter().any(|name| name == from || name == to);
            let key = ((*from).to_owned(), (*to).to_owned(), false);
            assert_eq!(found.get(&key), (*passed && covered).then_some(times), "{from} -> {to}");
        }
        for change in ["move", "grant", "revoke", "remove"] {
            let result = replay(&gateway, &tree(change)).await;
            assert_eq!(result["records"], total, "{change}: {result}");
            assert_eq!(export(&gateway).await["revision"], before["revision"], "nothing is changed");
            // The oracle: the policy is applied, every call is judged by itself, and the policy is taken back.
            apply(&gateway, "?prune=true", &tree(change)).await;
            let mut expected = BTreeMap::new();
            for ((from, to), (passed, times)) in &calls {
                let body = json!({"caller_id": from, "target_id": to}).to_string();
                let request = Request::post("/registry/check-access", body);
                let allowed = gateway.as_operator(request).await.json()["allowed"] == true;
                if allowed != *passed {
                    expected.insert(((*from).to_owned(), (*to).to_owned(), allowed), *times);
                }
            }
            assert_eq!(told(&result), expected, "{change}");
            assert!(!expected.is_empty(), "{change}");
            if change != "remove" {
                apply(&gateway, "?prune=true", &tree("")).await;
            }
        }
        for query in ["?replay=7", "?replay=7d&replay=1d", "?replay=", "?replay=99999d"] {
            post(&gateway, query, &tree("")).await.has(400);
        }
    }
}
