//! Policies that are refused: all that is wrong is told with its place, and nothing is changed.

use serde_json::{Value, json};

use super::{apply, changes, export, post, team};
use crate::harness::{Builder, Gateway, Pair, Request};
use crate::{on_both_pairs, on_embedded};

/// The errors of a refused policy, as `path: reason`.
fn errors(answer: &Value) -> Vec<String> {
    let errors = answer["errors"].as_array().unwrap().iter();
    let of = |error: &Value| {
        let text = |name: &str| error[name].as_str().unwrap().to_owned();
        format!("{}: {}", text("path"), text("reason"))
    };
    errors.map(of).collect()
}

on_both_pairs! {
    async fn a_change_made_meanwhile_is_told_and_not_overwritten(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        apply(&gateway, "", &team()).await;
        let mut policy = team();
        policy["workspaces"][0]["max_concurrent"] = 8.into();
        let planned = apply(&gateway, "?dry_run=true", &policy).await;
        assert_eq!(changes(&planned), ["change workspace pm"]);
        assert_eq!(gateway.patch("pm", json!({"role": "leads"})).await.status, 200);
        policy["revision"] = planned["revision"].clone();
        let answer = post(&gateway, "", &policy).await;
        assert_eq!((answer.status, answer.reason().as_str()), (409, "conflict"), "{}", answer.text());
        assert_eq!(answer.json()["changed"], json!([{"kind": "workspace", "name": "pm"}]));
        let seen = gateway.as_operator(Request::get("/workspaces/pm")).await.json();
        assert_eq!((&seen["role"], &seen["max_concurrent"]), (&json!("leads"), &json!(4)));
        let planned = apply(&gateway, "?dry_run=true", &policy).await;
        policy["revision"] = planned["revision"].clone();
        apply(&gateway, "", &policy).await;
        let seen = gateway.as_operator(Request::get("/workspaces/pm")).await.json();
        assert_eq!((&seen["role"], &seen["max_concurrent"]), (&json!("plans"), &json!(8)));
        // Reports of agents are no changes of a policy.
        let revision = export(&gateway).await["revision"].clone();
        assert_eq!(gateway.patch("other", json!({"status": "failed"})).await.status, 200);
        assert_eq!(export(&gateway).await["revision"], revision);
    }
}

on_embedded! {
    async fn each_error_is_told_with_its_place_and_nothing_is_changed() {
        let gateway = Gateway::start(Pair::Embedded).await;
        for (id, org) in [("a", "acme"), ("b", "beta")] {
            gateway.create(json!({"id": id, "name": id, "org": org})).await;
        }
        for id in ["gone", "gone2"] {
            gateway.create(json!({"id": id, "name": id})).await;
            let request = Request::new("DELETE", format!("/workspaces/{id}"));
            assert_eq!(gateway.as_operator(request).await.status, 200);
        }
        let before = export(&gateway).await;
        let policy = json!({"version": 1, "workspaces": [
            {"id": "new", "parent_id": "nowhere"},
            {"id": "a", "org": "acme"},
            {"id": "a"},
            {"id": "x y"},
            {"id": "wrong", "max_concurrent": "four"},
            {"id": "unknown", "max_concurent": 4},
            {"name": "no id"},
            {"id": "zero", "max_concurrent": 0},
            {"id": "foreign", "parent_id": "b", "org": "acme"},
            {"id": "loop1", "parent_id": "loop2"},
            {"id": "loop2", "parent_id": "loop1"},
            {"id": "gone"},
            {"id": "urls", "url": "http://127.0.0.1:9/"},
            {"id": "nourl", "liveness": "assumed"},
            {"id": "forbidden", "liveness": "assumed", "url": "http://169.254.169.254/"},
            {"id": "probed", "probe": {"path": "no slash"}},
            {"id": "below", "parent_id": "gone2"},
        ], "grants": [
            {"caller_id": "a", "target_id": "a"},
            {"caller_id": "a", "target_id": "nothing"},
            {"caller_id": "a", "target_id": "gone2"},
            {"caller_id": "a", "target_id": "b", "expires_at": "tomorrow"},
        ], "stops": [
            {"scope": {}, "mode": "new", "reason": "x"},
            {"scope": {"workspace": "nothing"}, "mode": "new", "reason": "x"},
            {"scope": {"all": true}, "mode": "hard", "reason": "x"},
            {"scope": {"all": true}, "mode": "new", "reason": " "},
        ]});
        let answer = post(&gateway, "", &policy).await;
        assert_eq!((answer.status, answer.reason().as_str()), (400, "invalid_params"), "{}", answer.text());
        let mut told = errors(&answer.json());
        told.sort();
        let mut all = vec![
            "workspaces[0]: conflict", "workspaces[2]: invalid_params", "workspaces[3]: invalid_workspace_id",
            "workspaces[4].max_concurrent: invalid_params", "workspaces[5].max_concurent: invalid_params",
            "workspaces[6]: invalid_params", "workspaces[7]: invalid_params", "workspaces[8]: conflict",
            "workspaces[9]: conflict", "workspaces[10]: conflict", "workspaces[11]: workspace_removed",
            "workspaces[12]: invalid_params", "workspaces[13]: invalid_params", "workspaces[14]: address_forbidden",
            "workspaces[15]: invalid_params", "workspaces[16]: conflict", "grants[0]: invalid_params",
            "grants[1]: workspace_not_found", "grants[2]: workspace_removed", "grants[3]: invalid_params",
            "stops[0]: invalid_params", "stops[1]: workspace_not_found", "stops[2]: invalid_params",
            "stops[3]: invalid_params",
        ];
        all.sort_unstable();
        assert_eq!(told, all, "{}", answer.text());
        assert_eq!(export(&gateway).await, before);
        // Many errors are counted, and a hundred of them told.
        let many: Vec<_> = (0..150).map(|n| json!({"id": format!("w{n}"), "parent_id": "nowhere"})).collect();
        let answer = post(&gateway, "", &json!({"version": 1, "workspaces": many})).await;
        assert_eq!(errors(&answer.json()).len(), 100);
        assert!(answer.text().contains("150 errors"), "{}", answer.text());
        for (body, says) in [
            (json!({"version": 2}), "`version` is 1"),
            (json!({"workspaces": []}), "`version` is missing"),
            (json!({"version": 1, "workspace": []}), "`workspace` is not known"),
        ] {
            let answer = post(&gateway, "", &body).await;
            assert_eq!(answer.status, 400, "{body}");
            assert!(answer.text().contains(says), "{}", answer.text());
        }
        for (body, says) in [
            (r#"{"version":1,"version":1}"#, "`version` stands twice in the body"),
            (r#"{"version":1,"workspaces":[{"id":"x"},{"id":"a","org":"x","org":"acme"}]}"#, "`org` stands twice in `workspaces[1]`"),
            (r#"{"version":1,"stops":[{"scope":{"workspace":"a","workspace":"b"},"mode":"new","reason":"x"}]}"#,
                "`workspace` stands twice in `stops[0].scope`"),
        ] {
            let answer = gateway.as_operator(Request::post("/policy", body)).await;
            assert_eq!((answer.status, &*answer.reason()), (400, "invalid_request"), "{}", answer.text());
            assert!(answer.text().contains(says), "{}", answer.text());
        }
        for query in ["?dry_run=1", "?dry-run=true", "?prune=true&prune=true"] {
            assert_eq!(post(&gateway, query, &json!({"version": 1})).await.status, 400, "{query}");
        }
        assert_eq!(export(&gateway).await, before);
    }

    async fn a_circle_of_moves_and_a_parent_that_prune_removes_are_refused() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let tree = |a: Value, b: Value, c: Value| json!({"version": 1, "workspaces": [
            {"id": "a", "parent_id": a}, {"id": "b", "parent_id": b}, {"id": "c", "parent_id": c}]});
        apply(&gateway, "", &tree(Value::Null, json!("a"), json!("b"))).await;
        let answer = post(&gateway, "", &tree(json!("c"), json!("a"), json!("b"))).await;
        assert_eq!(errors(&answer.json()), ["workspaces[0]: conflict"], "{}", answer.text());
        // The tree turned around is no circle.
        let turned = tree(json!("b"), json!("c"), Value::Null);
        assert_eq!(apply(&gateway, "", &turned).await["changes"].as_array().unwrap().len(), 3);
        let less = json!({"version": 1, "workspaces": [{"id": "a", "parent_id": "b"}]});
        let answer = post(&gateway, "?prune=true", &less).await;
        assert_eq!(errors(&answer.json()), ["workspaces[0]: conflict"], "{}", answer.text());
        assert_eq!(export(&gateway).await["workspaces"].as_array().unwrap().len(), 3);
    }

    async fn more_stops_than_may_be_are_refused_by_a_dry_run_too() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let of = |count: usize| {
            let stop = |n: usize| json!({"scope": {"all": true}, "mode": "new", "reason": n.to_string()});
            json!({"version": 1, "stops": (0..count).map(stop).collect::<Vec<_>>()})
        };
        for query in ["?dry_run=true", ""] {
            let answer = post(&gateway, query, &of(10_001)).await;
            let told = (answer.status, answer.reason(), answer.json()["limit"].take());
            assert_eq!(told, (409, "conflict".to_owned(), json!("10000")), "{query}: {}", answer.text());
        }
        // Those of org tokens count, too, and those that are released do not.
        let org = gateway.as_operator(Request::post("/orgs/acme/tokens", "{}")).await.json();
        let stop = json!({"scope": {"org": "acme"}, "mode": "new", "reason": "x"});
        let stop = Request::post("/stops", stop.to_string()).bearer(org["token"].as_str().unwrap());
        assert_eq!(gateway.call(&stop).await.status, 201);
        apply(&gateway, "?dry_run=true", &of(9_999)).await;
        assert_eq!(post(&gateway, "?dry_run=true", &of(10_000)).await.status, 409);
        let old = json!({"scope": {"all": true}, "mode": "new", "reason": "old"});
        apply(&gateway, "", &json!({"version": 1, "stops": [old]})).await;
        assert_eq!(post(&gateway, "?dry_run=true", &of(9_999)).await.status, 409);
        apply(&gateway, "?dry_run=true&prune=true", &of(9_999)).await;
    }

    async fn a_policy_has_bounds_of_its_own() {
        let builder = Builder::new(Pair::Embedded).set("limits.policy_workspaces", "3");
        let gateway = builder.set("limits.policy_bytes", "2000B").start().await;
        let of = |count: usize| {
            let workspaces: Vec<_> = (0..count).map(|n| json!({"id": format!("w{n}")})).collect();
            json!({"version": 1, "workspaces": workspaces})
        };
        let answer = post(&gateway, "", &of(4)).await;
        assert_eq!((answer.status, answer.reason().as_str()), (409, "conflict"));
        assert!(answer.text().contains("limits.policy_workspaces"), "{}", answer.text());
        let answer = post(&gateway, "", &of(400)).await;
        assert_eq!((answer.status, answer.reason().as_str()), (413, "body_too_large"));
        assert!(answer.text().contains("limits.policy_bytes"), "{}", answer.text());
        apply(&gateway, "", &of(3)).await;
        gateway.create(json!({"id": "one", "name": "more"})).await;
        let answer = gateway.as_operator(Request::get("/policy")).await;
        assert_eq!((answer.status, &answer.json()["limit"]), (409, &json!("3")), "{}", answer.text());
    }
}
