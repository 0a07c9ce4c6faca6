//! Records of verdicts: guard, phase, verdict and time; never content.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::*;
use crate::audit::{audit, end, recorded};
use crate::harness::until_holds;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verdicts_are_recorded_and_content_is_not() {
    let guard = guard().await;
    let guards = json!([table("judges", &guard, "reject", json!({}))]);
    let mut case = Case::on(builder(Pair::Embedded, &guards), agent("hello").await).await;
    for (id, text, outcome) in [
        ("passed", "hi", "answered"),
        ("rejected", SECRET, "guard_rejected"),
    ] {
        let request = case
            .request(Form::Rpc03, false, text)
            .field("X-Request-Id", id);
        case.gateway.call(&request).await;
        let record = recorded(&case.gateway, &format!("request_id={id}"), 1)
            .await
            .remove(0);
        assert_eq!(record["outcome"], outcome, "{record}");
        let given = record["detail"]["guards"].as_array().unwrap().clone();
        let verdicts: Vec<_> = given
            .iter()
            .map(|one| {
                (
                    one["guard"].clone(),
                    one["phase"].clone(),
                    one["verdict"].clone(),
                )
            })
            .collect();
        let expected: &[(&str, &str)] = match id {
            "passed" => &[("request", "pass"), ("response", "pass")],
            _ => &[("request", "reject")],
        };
        let expected: Vec<_> = expected
            .iter()
            .map(|(phase, verdict)| (json!("judges"), json!(phase), json!(verdict)))
            .collect();
        assert_eq!(verdicts, expected);
        assert!(given[0]["longest_ms"].is_u64());
        let line = &case.gateway.access_lines(id).await[0];
        let shown = line["guards"].as_str().unwrap();
        assert!(shown.starts_with("judges request "), "{shown}");
    }
    let labels = [
        "guard=\"judges\"",
        "phase=\"request\"",
        "verdict=\"reject\"",
    ];
    let counted = case
        .gateway
        .metric("a2a_gateway_guard_verdicts_total", &labels)
        .await;
    assert!((counted - 1.0).abs() < 0.1, "{counted}");
    end(&mut case.gateway);
    let (said, status) = audit(&case.gateway, &["verify"]);
    assert_eq!(status, Some(0), "{said}");
    let (exported, _) = audit(&case.gateway, &["export"]);
    assert!(
        exported.contains("judges") && !exported.contains(SECRET),
        "{exported}"
    );
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
    let case = Case::on(builder(Pair::Embedded, &guards), agent(SECRET).await).await;
    for streams in [false, true] {
        let id = if streams {
            "observed-stream"
        } else {
            "observed-unary"
        };
        let request = case
            .request(Form::Rpc03, streams, SECRET)
            .field("X-Request-Id", id);
        let answer = case.gateway.call(&request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.text().contains(SECRET) && !answer.text().contains(MASK));
        assert!(wire(&case.target.agent).contains(SECRET));
    }
    // Nobody waited for it.
    places.add_permits(100);
    let counted = async |guard: &str, verdict: &str| {
        let labels = [
            format!("guard=\"{guard}\""),
            format!("verdict=\"{verdict}\""),
        ];
        let labels: Vec<_> = labels.iter().map(String::as_str).collect();
        case.gateway
            .metric("a2a_gateway_guard_verdicts_total", &labels)
            .await
    };
    until_holds("what is told in the end", async || {
        counted("rejects", "reject").await >= 4.0
    })
    .await;
    until_holds("what is told in the end", async || {
        counted("replaces", "replace").await >= 4.0
    })
    .await;
    // Those that came after the record of the call are in another one.
    until_holds("each verdict is recorded", async || {
        let request = "request_id=observed-unary&limit=100";
        let path = format!("/audit?{request}");
        let records = case.gateway.admin_get(&path).await.unwrap().json();
        let records = records["records"].as_array().unwrap();
        let given = records
            .iter()
            .filter_map(|one| one["detail"]["guards"].as_array());
        let of = |guard: &str, verdict: &str| {
            let equal = |one: &&Value| one["guard"] == guard && one["verdict"] == verdict;
            given.clone().flatten().filter(equal).count()
        };
        let counts = [
            of("rejects", "reject"),
            of("replaces", "replace"),
            of("late", "pass"),
        ];
        // In the phases of the request and of the response.
        counts == [2, 2, 2]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patterns_that_observe_are_in_the_record_of_the_call() {
    let patterns = json!([{"name": "planted", "regex": "planted-for-the-guard[s]"}]);
    let guards =
        json!([{"name": "looks", "builtin": "patterns", "patterns": patterns, "mode": "observe"}]);
    planted::plant(SECRET);
    let case = Case::on(builder(Pair::Embedded, &guards), agent(SECRET).await).await;
    let request = case
        .request(Form::Rpc03, false, "hi")
        .field("X-Request-Id", "looked");
    assert_eq!(case.gateway.call(&request).await.status, 200);
    let record = recorded(&case.gateway, "request_id=looked", 1)
        .await
        .remove(0);
    let verdicts = record["detail"]["guards"].as_array().unwrap().iter();
    let verdicts: Vec<_> = verdicts
        .map(|one| [&one["phase"], &one["verdict"]])
        .collect();
    assert_eq!(verdicts, [["request", "pass"], ["response", "reject"]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explanation_names_the_guards_that_would_be_asked() {
    let guard = guard().await;
    let guards = json!([
        table("asked", &guard, "pass", json!({"targets": ["target"]})),
        table(
            "not-asked",
            &guard,
            "pass",
            json!({"targets": ["org:other"]})
        ),
        table(
            "of-tasks",
            &guard,
            "pass",
            json!({"methods": ["tasks/get"]})
        ),
    ]);
    let case = Case::on(builder(Pair::Embedded, &guards), agent("hello").await).await;
    let path = format!(
        "/explain?caller={}&target={}",
        case.caller.id, case.target.id
    );
    let explained = case.gateway.admin_get(&path).await.unwrap().json();
    let steps = explained["steps"].as_array().unwrap();
    let limits = steps.iter().find(|step| step["step"] == "limits").unwrap();
    let named = limits["fact"]["guards"].as_array().unwrap();
    assert_eq!(named.len(), 1, "{limits}");
    assert_eq!(
        (&named[0]["name"], &named[0]["mode"]),
        (&json!("asked"), &json!("enforce"))
    );
    assert_eq!(guard.count(), 0, "an explanation asks nobody");
}
