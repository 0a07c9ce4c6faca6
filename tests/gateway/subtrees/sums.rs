//! Stops, caps, usage and events of a subtree: its token sees and stops what is in it.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::{ANSWER, ask, call, change, gives, grow, grown, text, token_of};
use crate::audit::recorded;
use crate::harness::watcher::Feed;
use crate::harness::{ADMIN, Agent, Answer, Builder, Gateway, Pair, Request};
use crate::{on_both_pairs, on_embedded};

async fn stop(gateway: &Gateway, token: &str, scope: Value) -> Answer {
    let body = json!({"scope": scope, "mode": "new", "reason": "a loop"});
    ask(gateway, token, "POST", "/stops", body).await
}

/// The scopes of the stops that a token sees, over pages of one.
async fn stops(gateway: &Gateway, token: &str) -> Vec<Value> {
    let (mut found, mut path) = (Vec::new(), "/stops?limit=1".to_owned());
    loop {
        let page = gives(gateway, token, "GET", &path, Value::Null, 200).await;
        let page = page.json();
        let stops = page["stops"].as_array().unwrap().iter();
        found.extend(stops.map(|one| one["scope"].clone()));
        let Some(next) = page["next_cursor"].as_str() else {
            return found;
        };
        path = format!("/stops?limit=1&cursor={next}");
    }
}

on_both_pairs! {
    async fn it_sees_the_usage_of_its_workspaces(pair: Pair) {
        let (gateway, _agent, token) = grown(pair).await;
        let mut own = Vec::new();
        for id in ["dev", "peer"] {
            let made = ask(&gateway, ADMIN, "POST", &format!("/workspaces/{id}/tokens"), json!({})).await;
            own.push(text(&made.json()));
        }
        for (token, target, times) in [(&own[0], "tool", 3), (&own[1], "deep", 2), (&token, "dev", 1)] {
            for _ in 0..times {
                assert_eq!(call(&gateway, token, target).await, 200);
            }
        }
        recorded(&gateway, "event_type=A2A_CALL", 6).await;
        let usage = async |query: &str| {
            let answer = gives(&gateway, &token, "GET", &format!("/usage?per=total{query}"), Value::Null, 200).await;
            let answer = answer.json();
            let lines = answer["usage"].as_array().unwrap().iter();
            let lines: Vec<_> = lines.map(|one| (one["workspace"].clone(), one["calls"].clone())).collect();
            (lines, answer["total"]["calls"].clone())
        };
        assert_eq!(usage("").await, (vec![(json!("dev"), json!(3))], json!(3)));
        let expected = vec![(json!("dev"), json!(1)), (json!("tool"), json!(3))];
        assert_eq!(usage("&side=target").await, (expected, json!(4)));
        for query in ["&workspace=peer", "&workspace=org:", "&workspace=deep&side=target", "&workspace=boss"] {
            assert_eq!(usage(query).await, (Vec::new(), json!(0)), "{query}");
        }
        for query in ["?by=org", "?by=org&per=total&format=csv", "?org=globex"] {
            gives(&gateway, &token, "GET", &format!("/usage{query}"), Value::Null, 403).await;
        }
        let file = ask(&gateway, &token, "GET", "/usage?side=target&format=csv", Value::Null).await.text();
        assert!(file.contains("tool") && !file.contains("deep"), "{file}");
        // As the hierarchy is now.
        assert_eq!(change(&gateway, "PATCH", "/workspaces/peer", json!({"parent_id": "team"})).await, 200);
        assert_eq!(usage("&workspace=peer").await.1, 2);
        assert_eq!(change(&gateway, "PATCH", "/workspaces/dev", json!({"parent_id": "boss"})).await, 200);
        assert_eq!(usage("&side=target").await, (vec![(json!("deep"), json!(2))], json!(2)));
    }
}

on_embedded! {
    async fn it_stops_and_releases_what_is_in_its_subtree() {
        let (gateway, _agent, team) = grown(Pair::Embedded).await;
        let dev = text(&token_of(&gateway, "dev").await);
        let org = ask(&gateway, ADMIN, "POST", "/orgs/acme/tokens", json!({})).await.json();
        for scope in [
            json!({"all": true}),
            json!({"org": "acme"}),
            json!({"org": "globex"}),
            json!({"workspace": "peer"}),
            json!({"workspace": "ghost"}),
            json!({"subtree": "boss"}),
            json!({"caller": "dev", "target": "peer"}),
            json!({"caller": "peer", "target": "dev"}),
        ] {
            let refused = stop(&gateway, &team, scope.clone()).await;
            assert_eq!(refused.status, 403, "{scope}: {}", refused.text());
        }
        let (one, pair) = (json!({"workspace": "tool"}), json!({"caller": "dev", "target": "tool"}));
        let made = stop(&gateway, &team, one.clone()).await;
        assert_eq!(made.status, 201, "{}", made.text());
        assert_eq!(made.json()["created_by"], "subtree:team:acme");
        assert_eq!(stop(&gateway, &dev, pair.clone()).await.status, 201);
        // Those of others: in it, outside, and of both.
        let mut operators = Vec::new();
        for scope in [
            json!({"workspace": "dev"}),
            json!({"workspace": "peer"}),
            json!({"org": "acme"}),
            json!({"subtree": "boss"}),
            json!({"caller": "dev", "target": "peer"}),
        ] {
            let made = stop(&gateway, ADMIN, scope).await.json();
            operators.push(made["id"].as_str().unwrap().to_owned());
        }
        let inside = json!({"workspace": "dev"});
        assert_eq!(stops(&gateway, &team).await, [one.clone(), pair.clone(), inside.clone()]);
        assert_eq!(stops(&gateway, &dev).await, [one, pair, inside]);
        let ours = format!("/stops/{}", made.json()["id"].as_str().unwrap());
        let theirs = format!("/stops/{}", operators[0]);
        for (token, path) in [(&dev, &ours), (&team, &theirs), (&dev, &theirs)] {
            assert_eq!(ask(&gateway, token, "DELETE", path, Value::Null).await.status, 403, "{path}");
        }
        for id in &operators {
            assert_eq!(change(&gateway, "DELETE", &format!("/stops/{id}"), Value::Null).await, 200);
        }
        // It covers nothing outside of the subtree, also after a move.
        assert_eq!(call(&gateway, ADMIN, "tool").await, 403);
        assert_eq!(change(&gateway, "PATCH", "/workspaces/tool", json!({"parent_id": "peer"})).await, 200);
        assert_eq!(call(&gateway, ADMIN, "tool").await, 200);
        assert_eq!(change(&gateway, "PATCH", "/workspaces/tool", json!({"parent_id": "team"})).await, 200);
        assert_eq!(call(&gateway, ADMIN, "tool").await, 403);
        // A token of the whole org is over its subtrees.
        assert_eq!(ask(&gateway, &text(&org), "DELETE", &ours, Value::Null).await.status, 200);
        assert_eq!(call(&gateway, ADMIN, "tool").await, 200);
    }

    async fn it_sees_what_its_workspaces_use_of_caps() {
        let cap = |name: &str| json!({"name": name, "per": name, "count": "messages", "limit": 100, "window": "1h"});
        let caps = ["caller", "target", "pair", "org", "context"].map(cap);
        let gateway = Builder::new(Pair::Embedded).set("cap", &json!(caps).to_string()).start().await;
        let agent = Agent::json(ANSWER).await;
        grow(&gateway, &agent).await;
        let token = text(&token_of(&gateway, "team").await);
        for (by, target) in [(&*token, "tool"), (ADMIN, "peer"), (ADMIN, "dev")] {
            assert_eq!(call(&gateway, by, target).await, 200);
        }
        let shown = gives(&gateway, &token, "GET", "/caps", Value::Null, 200).await;
        let shown = shown.json();
        let mut seen = BTreeSet::new();
        for cap in shown["caps"].as_array().unwrap() {
            let subjects = cap["subjects"].as_array().unwrap();
            assert_eq!(cap["subjects_total"], subjects.len());
            seen.extend(subjects.iter().map(|one| one["subject"].as_str().unwrap().to_owned()));
        }
        let expected = ["dev", "subtree:team:acme", "subtree:team:acme>tool", "tool"];
        assert_eq!(Vec::from_iter(seen), expected);
        let one = ask(&gateway, &token, "GET", "/caps?cap=target&subject=peer", Value::Null).await.json();
        assert_eq!(one["caps"][0]["subjects"], json!([]));
    }

    async fn it_hears_of_its_workspaces() {
        let (gateway, _agent, token) = grown(Pair::Embedded).await;
        let mut feed = Feed::open(gateway.public, &Request::get("/events").bearer(&token)).await;
        for id in ["peer", "boss", "dev", "deep", "tool"] {
            assert_eq!(change(&gateway, "POST", &format!("/workspaces/{id}/pause"), json!({})).await, 200);
        }
        // Into the subtree, and out of it again.
        assert_eq!(change(&gateway, "PATCH", "/workspaces/peer", json!({"parent_id": "dev"})).await, 200);
        assert_eq!(change(&gateway, "POST", "/workspaces/deep/resume", json!({})).await, 200);
        assert_eq!(change(&gateway, "PATCH", "/workspaces/peer", json!({"parent_id": "boss"})).await, 200);
        assert_eq!(change(&gateway, "POST", "/workspaces/deep/pause", json!({})).await, 200);
        // Its root's new parent is outside.
        assert_eq!(change(&gateway, "PATCH", "/workspaces/team", json!({"parent_id": "peer"})).await, 200);
        assert_eq!(change(&gateway, "POST", "/workspaces/dev/resume", json!({})).await, 200);
        let mut heard = Vec::new();
        while heard.last() != Some(&("dev".to_owned(), 2)) {
            let event = feed.event().await;
            let id = event.data["workspace_id"].as_str().unwrap().to_owned();
            let outside = ["boss", "peer"].contains(&event.data["payload"]["parent_id"].as_str().unwrap_or_default());
            assert!(!outside, "{}", event.data);
            let count = heard.iter().filter(|(one, _)| *one == id).count() + 1;
            heard.push((id, count));
        }
        let names: Vec<_> = heard.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(names, ["dev", "tool", "peer", "deep", "peer", "team", "dev"]);
        assert!(feed.is_silent(Duration::from_millis(300)).await);
    }
}
