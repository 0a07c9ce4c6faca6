//! Records of verdicts: guard, phase, verdict and time; never content.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::*;
use crate::audit::{audit, end, recorded};
use crate::explain::{explain, step};
use crate::harness::until_holds;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verdicts_are_recorded_and_content_is_not() {
    let guard = guard().await;
    let guards = json!([table("judges", &guard, "reject", json!({}))]);
    let mut case = Case::guarded(&guards, "hello").await;
    for (id, text, outcome) in [
        ("passed", "hi", "answered"),
        ("rejected", SECRET, "guard_rejected"),
    ] {
        let request = case
            .request(Form::Rpc03, false, text)
            .field("X-Request-Id", id);
        case.gateway.call(&request).await;
        let record = recorded(&case.gateway, &format!("request_id={id}"), 1).await;
        let record = &record[0];
        assert_eq!(record["outcome"], outcome, "{record}");
        let given = record["detail"]["guards"].as_array().unwrap();
        let verdicts = given.iter();
        let verdicts = verdicts.map(|one| [&one["guard"], &one["phase"], &one["verdict"]]);
        let expected: &[[&str; 3]] = match id {
            "passed" => &[
                ["judges", "request", "pass"],
                ["judges", "response", "pass"],
            ],
            _ => &[["judges", "request", "reject"]],
        };
        assert_eq!(verdicts.collect::<Vec<_>>(), expected);
        assert!(given[0]["longest_ms"].is_u64());
        let line = &case.gateway.access_lines(id).await[0];
        let shown = line["guards"].as_str().unwrap();
        assert!(shown.starts_with("judges request "), "{shown}");
    }
    let labels = r#"guard="judges" phase="request" verdict="reject""#.split(' ');
    let (name, labels) = (
        "a2a_gateway_guard_verdicts_total",
        labels.collect::<Vec<_>>(),
    );
    let counted = case.gateway.metric(name, &labels).await;
    assert!((counted - 1.0).abs() < 0.1, "{counted}");
    end(&mut case.gateway);
    let (said, status) = audit(&case.gateway, &["verify"]);
    assert_eq!(status, Some(0), "{said}");
    let (exported, _) = audit(&case.gateway, &["export"]);
    assert!(exported.contains("judges"), "{exported}");
    assert!(!exported.contains(SECRET), "{exported}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_observes_holds_up_nothing_and_is_recorded() {
    let guard = guard().await;
    let observes = json!({"mode": "observe"});
    let places = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&places);
    let late = Agent::scripted(move |_| {
        let mut steps = vec![Step::Held(Arc::clone(&held))];
        steps.extend(verdict(&json!({"action": "pass"})));
        steps
    })
    .await;
    let guards = json!([
        table("rejects", &guard, "reject", observes.clone()),
        table("replaces", &guard, "replace", observes.clone()),
        table("late", &late, "", observes),
    ]);
    let case = Case::guarded(&guards, SECRET).await;
    for streams in [false, true] {
        let id = ["observed-unary", "observed-stream"][usize::from(streams)];
        let request = case
            .request(Form::Rpc03, streams, SECRET)
            .field("X-Request-Id", id);
        let answer = case.gateway.call(&request).await.has(200);
        assert!(answer.text().contains(SECRET) && !answer.text().contains(MASK));
        assert!(wire(&case.target.agent).contains(SECRET));
    }
    // Nobody waited for it.
    places.add_permits(100);
    for (guard, verdict) in [("rejects", "reject"), ("replaces", "replace")] {
        let counted = async || case.verdicts(guard, verdict).await >= 4.0;
        until_holds(guard, counted).await;
    }
    // Those that came after the record of the call are in another one.
    until_holds("each verdict is recorded", async || {
        let path = "/audit?request_id=observed-unary&limit=100";
        let records = case.gateway.admin_get(path).await.unwrap().json();
        let records = records["records"].as_array().unwrap().iter();
        let given = records.filter_map(|one| one["detail"]["guards"].as_array());
        let of = |guard: &str, verdict: &str| {
            let equal = |one: &&Value| one["guard"] == guard && one["verdict"] == verdict;
            given.clone().flatten().filter(equal).count()
        };
        // In the phases of the request and of the response.
        (of("rejects", "reject"), of("replaces", "replace")) == (2, 2) && of("late", "pass") == 2
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patterns_that_observe_are_in_the_record_of_the_call() {
    let patterns = json!([{"name": "planted", "regex": "planted-for-the-guard[s]"}]);
    let guards =
        json!([{"name": "looks", "builtin": "patterns", "patterns": patterns, "mode": "observe"}]);
    planted::plant(SECRET);
    let case = Case::guarded(&guards, SECRET).await;
    let request = case
        .request(Form::Rpc03, false, "hi")
        .field("X-Request-Id", "looked");
    assert_eq!(case.gateway.call(&request).await.status, 200);
    let record = &recorded(&case.gateway, "request_id=looked", 1).await[0];
    let verdicts = record["detail"]["guards"].as_array().unwrap().iter();
    let verdicts = verdicts.map(|one| [&one["phase"], &one["verdict"]]);
    let expected = [["request", "pass"], ["response", "reject"]];
    assert_eq!(verdicts.collect::<Vec<_>>(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explanation_names_the_guards_that_would_be_asked() {
    let guard = guard().await;
    let guards = [
        ("asked", json!({"targets": ["target"]})),
        ("not-asked", json!({"targets": ["org:other"]})),
        ("of-tasks", json!({"methods": ["tasks/get"]})),
    ];
    let guards = json!(guards.map(|(name, more)| table(name, &guard, "pass", more)));
    let case = Case::guarded(&guards, "hello").await;
    let explained = explain(&case.gateway, &case.caller.id, &case.target.id).await;
    let limits = step(&explained, "limits");
    let named = limits["fact"]["guards"].as_array().unwrap();
    assert_eq!(named.len(), 1, "{limits}");
    assert_eq!(named[0]["name"], "asked");
    assert_eq!(named[0]["mode"], "enforce");
    assert_eq!(guard.count(), 0, "an explanation asks nobody");
}
