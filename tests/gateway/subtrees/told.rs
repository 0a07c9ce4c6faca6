//! Events of a subtree: they tell no more than the lists that its token reads, and nothing of an earlier life.

use std::time::Duration;

use serde_json::{Value, json};

use super::{ask, change, gives, grown, text, token_of};
use crate::harness::watcher::Feed;
use crate::harness::{ADMIN, Gateway, Pair, Request};
use crate::{on_both_pairs, on_embedded};

/// Longest wait for an event that comes.
const IN_TIME: Duration = Duration::from_secs(60);

/// A token of the workspace itself.
async fn own(gateway: &Gateway, id: &str) -> String {
    let path = format!("/workspaces/{id}/tokens");
    let made = gives(gateway, ADMIN, "POST", &path, json!({}), 201).await;
    text(&made.json())
}

async fn watch(gateway: &Gateway, token: &str, after: &str) -> Feed {
    let path = match after {
        "" => "/events".to_owned(),
        after => format!("/events?last_event_id={after}"),
    };
    Feed::open(gateway.public, &Request::get(path).bearer(token)).await
}

async fn notify(gateway: &Gateway, id: &str, said: &str) {
    let path = format!("/workspaces/{id}/notify");
    let token = own(gateway, id).await;
    let said = json!({ "message": said });
    gives(gateway, &token, "POST", &path, said, 200).await;
}

async fn pause(gateway: &Gateway, id: &str) {
    let path = format!("/workspaces/{id}/pause");
    assert_eq!(change(gateway, "POST", &path, json!({})).await, 200);
}

/// The next event that is wanted, and the text of those before it. Comments keep an idle stream alive, so the wait has
/// a clock of its own.
async fn next_of(feed: &mut Feed, wanted: impl Fn(&Value) -> bool) -> (Value, String) {
    let mut others = String::new();
    let wait = async {
        loop {
            let told = feed.event().await.data;
            if wanted(&told) {
                return told;
            }
            others.push_str(&told.to_string());
        }
    };
    let told = tokio::time::timeout(IN_TIME, wait).await;
    let told = told.unwrap_or_else(|_| panic!("not told in time, but: {others}"));
    (told, others)
}

/// The events up to the pause of `id`, as text.
async fn up_to_pause(feed: &mut Feed, id: &str) -> String {
    let paused = |told: &Value| told["workspace_id"] == id && told["payload"]["status"] == "paused";
    let (told, others) = next_of(feed, paused).await;
    others + &told.to_string()
}

/// The next event of one of these kinds about `id`.
async fn next(feed: &mut Feed, kinds: &[&str], id: &str) -> Value {
    let wanted = |told: &Value| {
        told["workspace_id"] == id && kinds.contains(&told["event"].as_str().unwrap())
    };
    next_of(feed, wanted).await.0
}

on_both_pairs! {
    async fn nothing_is_replayed_of_an_earlier_life(pair: Pair) {
        let (gateway, _agent, _) = grown(pair).await;
        let mut all = watch(&gateway, ADMIN, "").await;
        pause(&gateway, "deep").await;
        let first = all.event().await.id.unwrap();
        for (id, said) in [("dev", "SECRET"), ("stray", "SECRET"), ("peer", "KEPT")] {
            notify(&gateway, id, said).await;
            next(&mut all, &["AGENT_MESSAGE"], id).await;
        }
        assert_eq!(change(&gateway, "PATCH", "/workspaces/dev", json!({"parent_id": "boss"})).await, 200);
        for (id, place) in [("team", json!({"parent_id": "boss"})), ("stray", json!({"org": "acme"}))] {
            assert_eq!(change(&gateway, "DELETE", &format!("/workspaces/{id}"), Value::Null).await, 200);
            let mut again = json!({"id": id, "name": id, "recreate": true});
            again.as_object_mut().unwrap().extend(place.as_object().unwrap().clone());
            assert_eq!(change(&gateway, "POST", "/workspaces", again).await, 201);
        }
        let grant = json!({"caller_id": "peer", "target_id": "stray"});
        assert_eq!(change(&gateway, "POST", "/grants", grant).await, 201);
        // A new subtree, a new workspace, and one that was granted the new one.
        let tokens = [
            (text(&token_of(&gateway, "team").await), "team"),
            (own(&gateway, "stray").await, "stray"),
            (own(&gateway, "peer").await, "stray"),
            (ADMIN.to_owned(), "stray"),
        ];
        let mut feeds = Vec::new();
        for (token, last) in &tokens {
            feeds.push((watch(&gateway, token, &first).await, *last));
        }
        pause(&gateway, "team").await;
        pause(&gateway, "stray").await;
        let mut heard = Vec::new();
        for (feed, last) in &mut feeds {
            heard.push(up_to_pause(feed, last).await);
        }
        let operator = heard.pop().unwrap();
        assert_eq!(operator.matches("SECRET").count(), 2, "{operator}");
        for heard in &heard {
            assert!(!heard.contains("SECRET"), "{heard}");
        }
        assert!(heard[2].contains("KEPT"), "its own: {}", heard[2]);
    }
}

on_embedded! {
    async fn the_target_of_a_delegation_is_told_inside_only() {
        let (gateway, _agent, token) = grown(Pair::Embedded).await;
        let team = own(&gateway, "team").await;
        let (mut inside, mut whole) = (watch(&gateway, &token, "").await, watch(&gateway, &team, "").await);
        for (target, shown) in [("boss", Value::Null), ("dev", json!("dev"))] {
            let body = json!({"target_id": target, "task": "x"});
            let sent = gives(&gateway, &team, "POST", "/workspaces/team/delegate", body, 202).await;
            for (feed, shown) in [(&mut inside, &shown), (&mut whole, &json!(target))] {
                let ends = ["DELEGATION_COMPLETE", "DELEGATION_FAILED"];
                let kinds = ["DELEGATION_SENT", "DELEGATION_STATUS", ends[0], ends[1]];
                let mut last = String::new();
                while !ends.contains(&&*last) {
                    let told = next(feed, &kinds, "team").await;
                    assert_eq!(told["payload"]["delegation_id"], sent.json()["delegation_id"], "{told}");
                    assert_eq!(told["payload"]["target_id"], *shown, "{told}");
                    last = told["event"].as_str().unwrap().to_owned();
                }
            }
        }
    }

    async fn a_stop_is_told_in_full_to_those_over_all_that_it_names() {
        let (gateway, _agent, subtree) = grown(Pair::Embedded).await;
        let org = text(&ask(&gateway, ADMIN, "POST", "/orgs/acme/tokens", json!({})).await.json());
        let mut feeds = Vec::new();
        for token in [&*subtree, &org, ADMIN] {
            feeds.push(watch(&gateway, token, "").await);
        }
        // By the subtree, the org and an operator; `None`: not told at all.
        for (scope, at, told_to) in [
            (json!({"caller": "dev", "target": "peer"}), "dev", [Some(false), Some(true), Some(true)]),
            (json!({"caller": "dev", "target": "tool"}), "dev", [Some(true); 3]),
            (json!({"subtree": "team"}), "team", [Some(true); 3]),
            (json!({"org": "acme"}), "boss", [None, Some(true), Some(true)]),
            (json!({"all": true}), "boss", [None, Some(false), Some(true)]),
        ] {
            let stop = json!({"scope": scope, "mode": "new", "reason": "a loop"});
            let made = ask(&gateway, ADMIN, "POST", "/stops", stop).await.json();
            let path = format!("/stops/{}", made["id"].as_str().unwrap());
            assert_eq!(change(&gateway, "DELETE", &path, Value::Null).await, 200);
            for (feed, in_full) in feeds.iter_mut().zip(told_to) {
                let Some(in_full) = in_full else { continue };
                for kind in ["WORKSPACE_STOPPED", "WORKSPACE_RELEASED"] {
                    let told = next(feed, &[kind], at).await;
                    let payload = &told["payload"];
                    let expected = if in_full { (&made["id"], &made["reason"]) } else { (&Value::Null, &Value::Null) };
                    assert_eq!((&payload["stop"], &payload["reason"]), expected, "{scope}: {told}");
                    assert_eq!((&payload["mode"], &payload["by"]), (&json!("new"), &json!("request")), "{told}");
                }
            }
        }
    }

    async fn a_release_is_told_after_its_stop() {
        let (gateway, _agent, _) = grown(Pair::Embedded).await;
        let mut feed = watch(&gateway, ADMIN, "").await;
        let mut made = Vec::new();
        for _ in 0..25 {
            let stop = json!({"scope": {"all": true}, "mode": "new", "reason": "a loop"});
            let stop = ask(&gateway, ADMIN, "POST", "/stops", stop).await.json()["id"].clone();
            let path = format!("/stops/{}", stop.as_str().unwrap());
            assert_eq!(change(&gateway, "DELETE", &path, Value::Null).await, 200);
            made.push(stop);
        }
        for stop in made {
            for kind in ["WORKSPACE_STOPPED", "WORKSPACE_RELEASED"] {
                let told = next(&mut feed, &["WORKSPACE_STOPPED", "WORKSPACE_RELEASED"], "boss").await;
                assert_eq!((&told["event"], &told["payload"]["stop"]), (&json!(kind), &stop), "{told}");
            }
        }
    }
}
