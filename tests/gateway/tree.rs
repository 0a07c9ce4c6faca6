//! The hierarchy stays a tree, whoever moves what below whom, also at the same moment and at two
//! replicas; and the answers say why a move is not made.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::events::Replicas;
use crate::harness::{Answer, Gateway, Pair, Request, assert_refusal};
use crate::operators::view;
use crate::stores::open_db;
use crate::{on_both_pairs, on_embedded};

async fn remove(gateway: &Gateway, id: &str) -> Answer {
    let request = Request::new("DELETE", format!("/workspaces/{id}"));
    gateway.as_operator(request).await
}

async fn access_generation(gateway: &Gateway, id: &str) -> i64 {
    let db = open_db(&gateway.sql_url());
    let query = sqlx::query_scalar("SELECT access_generation FROM workspaces WHERE id = $1");
    query.bind(id).fetch_one(db.pool()).await.unwrap()
}

/// A refusal for `conflict` that says `why`.
fn refused(answer: &Answer, why: &str) {
    assert_refusal(answer, "/workspaces/x", "seen", "conflict", why);
    assert!(answer.text().contains(why), "{why}: {}", answer.text());
}

on_both_pairs! {
    async fn no_line_gets_longer_than_is_read(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        // 62 in one line, and three in another: together one too many.
        for level in 0..62 {
            let parent = if level == 0 { Value::Null } else { json!(format!("l-{}", level - 1)) };
            gateway.create(json!({"id": format!("l-{level}"), "name": "l", "parent_id": parent})).await;
        }
        for (id, parent) in [("a", Value::Null), ("b", json!("a")), ("c", json!("b"))] {
            gateway.create(json!({"id": id, "name": id, "parent_id": parent})).await;
        }
        refused(&gateway.patch("a", json!({"parent_id": "l-61"})).await, "64 levels");
        for (id, parent) in [("b", "l-61"), ("a", "l-60")] {
            let answer = gateway.patch(id, json!({"parent_id": parent})).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        // The deepest still reaches its parent.
        let asked = gateway.as_operator(Request::get("/registry/discover/c")).await;
        assert_eq!(asked.status, 503, "{}", asked.text());
        refused(&gateway.patch("a", json!({"parent_id": "c"})).await, "64 levels");
    }

    async fn two_operators_who_move_at_once_leave_a_tree(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        moves_at_once(&gateway, &gateway, 20).await;
        removals_at_once(&gateway, &gateway, 5).await;
    }
}

on_embedded! {
    async fn a_place_where_it_cannot_be_is_refused_and_says_why() {
        let gateway = Gateway::start(Pair::Embedded).await;
        for (id, parent, org) in [
            ("top", Value::Null, "acme"), ("mid", json!("top"), "acme"), ("leaf", json!("mid"), "acme"),
            ("gone", json!("top"), "acme"), ("orphan", json!("gone"), "acme"), ("free", Value::Null, "acme"),
            ("far", Value::Null, "other"),
        ] {
            gateway.create(json!({"id": id, "name": id, "parent_id": parent, "org": org})).await;
        }
        assert_eq!(remove(&gateway, "gone").await.status, 200);
        let all = ["top", "mid", "leaf", "orphan", "free", "far"];
        let mut before = Vec::new();
        for id in all {
            before.push(view(&gateway, id).await);
        }
        for (id, place, why) in [
            ("mid", json!({"parent_id": "mid"}), "cannot be its own parent"),
            ("mid", json!({"parent_id": "leaf"}), "would be its own ancestor"),
            ("top", json!({"parent_id": "leaf"}), "would be its own ancestor"),
            // Not through one that was removed, either.
            ("top", json!({"parent_id": "orphan"}), "would be its own ancestor"),
            ("leaf", json!({"parent_id": "nobody"}), "create it first"),
            ("leaf", json!({"parent_id": "gone"}), "was removed"),
            ("leaf", json!({"parent_id": "far"}), "say `org`, too"),
            ("far", json!({"parent_id": "top"}), "say `org`, too"),
            ("leaf", json!({"parent_id": "far", "org": "acme"}), "another org than `org` says"),
            ("leaf", json!({"org": "other"}), "say `parent_id`, too"),
            ("leaf", json!({"org": null}), "say `parent_id`, too"),
            ("orphan", json!({"org": "other"}), "was removed"),
            ("mid", json!({"parent_id": "far", "org": "other"}), "other workspaces are below it"),
            ("mid", json!({"parent_id": null, "org": "other"}), "other workspaces are below it"),
        ] {
            let mut body = place.clone();
            // Nothing of it is done: not the rest, either.
            body["name"] = "renamed".into();
            body["role"] = "renamed".into();
            refused(&gateway.patch(id, body).await, why);
        }
        for (id, before) in all.iter().zip(before) {
            assert_eq!(view(&gateway, id).await, before, "{id} was changed");
        }
    }

    async fn a_workspace_goes_where_it_is_put() {
        let gateway = Gateway::start(Pair::Embedded).await;
        for (id, parent, org) in [
            ("top", Value::Null, "acme"), ("mid", json!("top"), "acme"), ("leaf", json!("mid"), "acme"),
            ("far", Value::Null, "other"),
        ] {
            gateway.create(json!({"id": id, "name": id, "parent_id": parent, "org": org})).await;
        }
        let mut grew = Vec::new();
        for (id, body, parent, org) in [
            ("leaf", json!({"parent_id": "top"}), json!("top"), json!("acme")),
            ("leaf", json!({"parent_id": null}), Value::Null, json!("acme")),
            ("leaf", json!({"parent_id": "far", "org": "other", "name": "moved"}), json!("far"), json!("other")),
            ("mid", json!({"parent_id": null, "org": null}), Value::Null, Value::Null),
            ("mid", json!({"parent_id": "top", "org": "acme"}), json!("top"), json!("acme")),
            // Where it is.
            ("mid", json!({"parent_id": "top", "org": "acme"}), json!("top"), json!("acme")),
        ] {
            let before = access_generation(&gateway, id).await;
            let answer = gateway.patch(id, body.clone()).await;
            assert_eq!(answer.status, 200, "{id} {body}: {}", answer.text());
            let after = access_generation(&gateway, id).await;
            assert!(after >= before, "{id} {body}: {after} after {before}");
            grew.push(after > before);
            let moved = answer.json();
            assert_eq!((&moved["parent_id"], &moved["org"]), (&parent, &org), "{id} {body}");
            assert_eq!(view(&gateway, id).await, moved);
        }
        assert_eq!(view(&gateway, "leaf").await["name"], "moved");
        // With each move; not with what changed nothing.
        assert_eq!(grew, [true, true, true, true, true, false]);
        assert_eq!(access_generation(&gateway, "far").await, 0);
        assert_eq!(remove(&gateway, "far").await.status, 200);
        assert!(access_generation(&gateway, "far").await > 0);
        assert_eq!(access_generation(&gateway, "top").await, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_operators_at_two_replicas_leave_a_tree() {
    let replicas = Replicas::start(2, &[]).await;
    let (one, other) = (&replicas.all[0], &replicas.all[1]);
    moves_at_once(one, other, 20).await;
    removals_at_once(one, other, 10).await;
}

/// Rounds in which each of several workspaces is moved below another at the same moment.
async fn moves_at_once(one: &Gateway, other: &Gateway, rounds: usize) {
    let ids: Vec<String> = (0..6).map(|n| format!("m-{n}")).collect();
    for id in &ids {
        one.create(json!({"id": id, "name": id})).await;
    }
    let (mut made, mut refusals) = (0, BTreeMap::<String, usize>::new());
    for round in 0..rounds {
        // All differ, and each pair of neighbours is moved in opposite directions.
        let step = 1 + round % (ids.len() - 1);
        let to = |from: usize| json!({"parent_id": ids[(from + step) % ids.len()]});
        let at = |from: usize| if from.is_multiple_of(2) { one } else { other };
        let moves = (0..6).map(|from| at(from).patch(&ids[from], to(from)));
        for answer in futures_util::future::join_all(moves).await {
            if answer.status == 200 {
                made += 1;
            } else {
                assert_eq!(answer.status, 409, "{}", answer.text());
                let why = answer.json()["error"].as_str().unwrap().to_owned();
                *refusals.entry(why).or_default() += 1;
            }
        }
        is_a_tree(one, &ids).await;
    }
    assert!(made > rounds && !refusals.is_empty(), "{made} {refusals:?}");
    let all_are_circles = refusals.keys().all(|why| why.contains("own ancestor"));
    assert!(all_are_circles, "{refusals:?}");
}

/// Everybody's line ends.
async fn is_a_tree(gateway: &Gateway, ids: &[String]) {
    let mut parents = BTreeMap::new();
    for id in ids {
        let parent = view(gateway, id).await["parent_id"].clone();
        parents.insert(id.clone(), parent.as_str().map(str::to_owned));
    }
    for id in ids {
        let (mut at, mut steps) = (id, 0);
        while let Some(Some(parent)) = parents.get(at) {
            at = parent;
            steps += 1;
            assert!(steps < ids.len(), "a cycle above {id}: {parents:?}");
        }
    }
}

/// Rounds in which a parent is removed while somebody is moved, and somebody created, below it.
async fn removals_at_once(one: &Gateway, other: &Gateway, rounds: usize) {
    for round in 0..rounds {
        let [parent, child, new] = ["p", "c", "n"].map(|side| format!("{side}-{round}"));
        for id in [&parent, &child] {
            one.create(json!({"id": id, "name": id})).await;
        }
        let body = json!({"id": new, "name": new, "parent_id": parent});
        let (removed, moved, created) = tokio::join!(
            remove(one, &parent),
            other.patch(&child, json!({"parent_id": parent})),
            other.as_operator(Request::post("/workspaces", body.to_string()))
        );
        assert_eq!(removed.status, 200, "{}", removed.text());
        // Before the removal: it keeps its parent, and has lost the relation. After it: refused.
        let place = view(one, &child).await["parent_id"].clone();
        if moved.status == 200 {
            assert_eq!(place, json!(parent));
        } else {
            refused(&moved, "was removed");
            assert_eq!(place, Value::Null);
        }
        if created.status != 201 {
            assert_eq!(created.status, 409, "{}", created.text());
            let path = format!("/workspaces/{new}");
            assert_eq!(one.as_operator(Request::get(path)).await.status, 404);
        }
    }
}
