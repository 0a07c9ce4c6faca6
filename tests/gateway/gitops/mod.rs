//! Workspaces, grants and stops as one document: exported, compared, applied at once or not at all; and ids that come
//! back.

mod commands;
mod large;
mod meanwhile;
mod memory;
mod proven;
mod recreated;
mod refused;
mod replayed;
mod unpublished;

use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, Pair, Request};
use crate::{on_both_pairs, on_embedded};

async fn post(gateway: &Gateway, query: &str, policy: &Value) -> Answer {
    let request = Request::post(format!("/policy{query}"), policy.to_string());
    gateway.as_operator(request).await
}

/// Applies a policy, which must be possible, and returns the difference.
async fn apply(gateway: &Gateway, query: &str, policy: &Value) -> Value {
    let answer = post(gateway, query, policy).await.has(200);
    answer.json()
}

async fn export(gateway: &Gateway) -> Value {
    let answer = gateway.as_operator(Request::get("/policy")).await.has(200);
    answer.json()
}

/// The changes of a difference, as `action kind name`.
fn changes(difference: &Value) -> Vec<String> {
    let text = |change: &Value, name: &str| change[name].as_str().unwrap_or_default().to_owned();
    let of = |change: &Value| {
        let [action, kind, name] = ["action", "kind", "name"].map(|name| text(change, name));
        format!("{action} {kind} {name}")
    };
    let mut changes: Vec<_> = difference["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(of)
        .collect();
    changes.sort();
    changes
}

/// A tree with a setting of each kind, a grant and a stop.
fn team() -> Value {
    json!({"version": 1, "workspaces": [
        {"id": "pm", "org": "acme", "role": "plans", "max_concurrent": 4},
        {"id": "dev", "name": "Developer", "parent_id": "pm", "liveness": "assumed", "url": "http://127.0.0.1:9/a2a",
            "card_access": "public", "probe": {"path": "/healthz"}},
        {"id": "poller", "parent_id": "pm", "delivery_mode": "poll", "complete": "bare", "push_notifications": false,
            "proof": "request", "bridge": "off"},
        {"id": "pool", "parent_id": "pm", "liveness": "assumed", "paused": true,
            "urls": ["http://127.0.0.1:9/b", "http://127.0.0.1:9/a"]},
        {"id": "other", "org": "beta"},
    ], "grants": [{"caller_id": "other", "target_id": "dev", "note": "ticket 7"}],
    "stops": [{"scope": {"workspace": "poller"}, "mode": "running", "reason": "a loop"}]})
}

on_both_pairs! {
    async fn a_policy_is_made_so_and_its_export_changes_nothing(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let before = export(&gateway).await;
        let planned = apply(&gateway, "?dry_run=true", &team()).await;
        assert_eq!(planned["dry_run"], true);
        assert_eq!(planned["changes"].as_array().unwrap().len(), 7);
        assert_eq!(export(&gateway).await, before, "a dry run changes nothing");
        let applied = apply(&gateway, "", &team()).await;
        assert_eq!(applied["changes"], planned["changes"]);
        let seen = gateway.as_operator(Request::get("/workspaces/dev")).await.json();
        for (member, value) in [("name", "Developer"), ("org", "acme"), ("status", "online"), ("parent_id", "pm")] {
            assert_eq!(seen[member], value, "{member}");
        }
        let paused = gateway.as_operator(Request::get("/workspaces/pool")).await.json();
        assert_eq!((&paused["status"], &paused["instances"].as_array().map(Vec::len)), (&json!("paused"), &Some(2)));
        assert!(apply(&gateway, "?prune=true", &team()).await["changes"].as_array().unwrap().is_empty());
        let mut silent = team();
        silent["workspaces"][3].as_object_mut().unwrap().remove("paused");
        let unpaused = apply(&gateway, "", &silent).await;
        assert_eq!(unpaused["changes"], json!([]), "a pause is undone only where the policy says so");
        let exported = export(&gateway).await;
        let again = apply(&gateway, "?prune=true", &exported).await;
        assert_eq!((&again["changes"], &again["unchanged"]), (&json!([]), &json!(7)), "{again}");
        assert_eq!(export(&gateway).await, exported);
        // On another gateway it makes the same.
        let other = Gateway::start(pair).await;
        let mut copied = exported.clone();
        copied.as_object_mut().unwrap().remove("revision");
        apply(&other, "", &copied).await;
        assert_eq!(export(&other).await["workspaces"], exported["workspaces"]);
    }
}

on_embedded! {
    async fn a_change_shows_both_values_and_a_subtree_moves_to_another_org_at_once() {
        let gateway = Gateway::start(Pair::Embedded).await;
        apply(&gateway, "", &team()).await;
        let mut policy = team();
        policy["workspaces"][0]["org"] = "beta".into();
        policy["workspaces"][0].as_object_mut().unwrap().remove("role");
        policy["workspaces"][3]["paused"] = false.into();
        policy["grants"][0]["note"] = "ticket 8".into();
        let difference = apply(&gateway, "", &policy).await;
        assert_eq!(changes(&difference), ["change grant other -> dev", "change workspace dev", "change workspace pm",
            "change workspace poller", "change workspace pool"]);
        let of = |name: &str| {
            let mut all = difference["changes"].as_array().unwrap().iter();
            all.find(|change| change["name"] == name).unwrap()["fields"].clone()
        };
        assert_eq!(of("pm"), json!([{"field": "org", "before": "acme", "after": "beta"},
            {"field": "role", "before": "plans", "after": null}]));
        assert_eq!(of("other -> dev"), json!([{"field": "note", "before": "ticket 7", "after": "ticket 8"}]));
        let seen = gateway.as_operator(Request::get("/workspaces/pool")).await.json();
        assert_eq!((&seen["org"], &seen["status"]), (&json!("beta"), &json!("online")));
    }

    async fn what_is_not_in_the_policy_is_named_and_removed_only_with_prune() {
        let gateway = Gateway::start(Pair::Embedded).await;
        apply(&gateway, "", &team()).await;
        let less = json!({"version": 1, "workspaces": [{"id": "pm", "org": "acme", "role": "plans", "max_concurrent": 4}],
            "stops": []});
        let difference = apply(&gateway, "", &less).await;
        assert_eq!(changes(&difference), [] as [&str; 0]);
        let names: Vec<_> = difference["unmanaged"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
        assert_eq!(names, ["dev", "other", "poller", "pool", "workspace poller (running)"]);
        let planned = apply(&gateway, "?dry_run=true&prune=true", &less).await;
        let all = ["remove stop workspace poller (running)", "remove workspace dev", "remove workspace other",
            "remove workspace poller", "remove workspace pool"];
        assert_eq!(changes(&planned), all);
        assert_eq!(export(&gateway).await["workspaces"].as_array().unwrap().len(), 5);
        assert_eq!(changes(&apply(&gateway, "?prune=true", &less).await), all);
        let left = export(&gateway).await;
        assert_eq!(left["workspaces"].as_array().unwrap().len(), 1);
        assert_eq!(left["stops"], json!([]));
        // The document had no grants, and the one there was names workspaces that are gone.
        assert_eq!(gateway.as_operator(Request::get("/workspaces/dev")).await.status, 410);
        let empty = json!({"version": 1});
        let difference = apply(&gateway, "?prune=true", &empty).await;
        assert_eq!((&difference["changes"], &difference["unmanaged"]), (&json!([]), &json!([])));
    }

    async fn an_apply_is_recorded_with_its_operator_and_each_change() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let of = |n: usize| json!({"id": format!("w{n}"), "org": "acme"});
        let policy = json!({"version": 1, "workspaces": (0..150).map(of).collect::<Vec<_>>()});
        apply(&gateway, "", &policy).await;
        // A dry run leaves no record, unless it is refused.
        apply(&gateway, "?dry_run=true", &json!({"version": 1})).await;
        let refused = Request::post("/policy?dry_run=true", r#"{"version": 2}"#);
        assert_eq!(gateway.as_operator(refused).await.status, 400);
        let records = crate::audit::recorded(&gateway, "event_type=POLICY_APPLIED", 3).await;
        let mut names = Vec::new();
        for record in &records {
            assert_eq!((&record["caller"], &record["credential_kind"]), (&json!("operator:"), &json!("admin")), "{record}");
            for change in record["detail"]["changes"].as_array().into_iter().flatten() {
                assert_eq!((&change["action"], &change["kind"]), (&json!("create"), &json!("workspace")));
                names.push(change["name"].as_str().unwrap().to_owned());
            }
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 150);
        let dry: Vec<_> = records.iter().filter(|record| record["detail"]["dry_run"] == true).collect();
        assert_eq!(dry.len(), 1);
        assert_eq!(dry[0]["outcome"], "invalid_params");
    }
}
