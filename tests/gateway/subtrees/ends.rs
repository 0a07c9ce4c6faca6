//! The end of a token of a subtree: with its root, with its place in the org, by its revocation. What it made, and what
//! it began, is its own, and ends with it.

use serde_json::{Value, json};

use super::{ask, canvas, change, gives, grow, grown, listed, status_of, text, token_of};
use crate::audit::recorded;
use crate::events::Replicas;
use crate::explain::explain;
use crate::harness::{ADMIN, Agent, CALL, Gateway, Pair, Request, until_holds};
use crate::on_embedded;
use crate::tasks::{echoing, rpc, send};

async fn until_refused(gateway: &Gateway, token: &str, id: &str) {
    let is_refused = async || status_of(gateway, token, id).await == 401;
    until_holds("it is refused", is_refused).await;
}

/// Removes the root at `by`, and looks at `at`.
async fn removal(by: &Gateway, at: &Gateway) {
    let agent = Agent::json("{}").await;
    grow(by, &agent).await;
    let made = token_of(by, "team").await;
    let token = text(&made);
    let user = text(&canvas(by, &token, json!({"user": "ada"})).await.json());
    let inner = text(&token_of(by, "dev").await);
    for token in [&token, &user, &inner] {
        assert_eq!(status_of(at, token, "dev").await, 200);
    }
    let ticket = ask(at, &token, "POST", "/ws/tickets", json!({})).await;
    let ticket = ticket.json()["ticket"].as_str().unwrap().to_owned();
    let scope = json!({"caller": "dev", "target": "tool"});
    let stop = json!({"scope": scope, "mode": "new", "reason": "a loop"});
    let stop = ask(by, &token, "POST", "/stops", stop).await.json();
    let stop = format!("/stops/{}", stop["id"].as_str().unwrap());
    let removed = change(by, "DELETE", "/workspaces/team", Value::Null).await;
    assert_eq!(removed, 200);
    for token in [&token, &user] {
        until_refused(at, token, "dev").await;
        until_refused(at, token, "team").await;
    }
    let events = Request::get(format!("/events?ticket={ticket}"));
    assert_eq!(at.call(&events).await.status, 401, "its tickets end, too");
    let list = ask(by, ADMIN, "GET", "/orgs/acme/tokens", Value::Null).await;
    let list = list.json();
    assert_eq!(list["tokens"].as_array().unwrap().len(), 1, "{list}");
    let others = status_of(at, &inner, "tool").await;
    assert_eq!(others, 200, "another subtree's goes on");
    // A later life of the id is another workspace.
    let again = json!({"id": "team", "name": "team", "parent_id": "boss", "recreate": true});
    assert_eq!(change(by, "POST", "/workspaces", again).await, 201);
    for token in [&token, &user] {
        assert_eq!(status_of(at, token, "team").await, 401);
    }
    let token = text(&token_of(by, "team").await);
    assert_eq!(status_of(by, &token, "team").await, 200);
    // Its children are below the new one again, and so is their stop, but another one made it.
    gives(by, &token, "DELETE", &stop, Value::Null, 403).await;
    assert_eq!(change(by, "DELETE", &stop, Value::Null).await, 200);
}

on_embedded! {
    async fn it_ends_with_its_root() {
        let gateway = Gateway::start(Pair::Embedded).await;
        removal(&gateway, &gateway).await;
    }

    async fn it_reaches_nothing_while_its_root_is_in_another_org() {
        let (gateway, _agent, _) = grown(Pair::Embedded).await;
        let token = text(&token_of(&gateway, "tool").await);
        let user = text(&canvas(&gateway, &token, json!({"user": "ada", "workspaces": ["tool"]})).await.json());
        let stop = json!({"scope": {"workspace": "tool"}, "mode": "new", "reason": "a loop"});
        let stop = ask(&gateway, &token, "POST", "/stops", stop).await.json();
        let stop = format!("/stops/{}", stop["id"].as_str().unwrap());
        let path = "/workspaces/tool";
        assert_eq!(change(&gateway, "PATCH", path, json!({"org": "globex", "parent_id": "stray"})).await, 200);
        for token in [&token, &user] {
            assert_eq!(status_of(&gateway, token, "tool").await, 403);
            assert!(listed(&gateway, token, 10).await.is_empty());
        }
        gives(&gateway, &token, "POST", "/workspaces", json!({"name": "new"}), 403).await;
        for path in ["/caps", "/usage"] {
            gives(&gateway, &token, "GET", path, Value::Null, 200).await;
        }
        for (method, path, body) in [
            ("GET", "/stops", Value::Null),
            ("DELETE", &stop, Value::Null),
            ("POST", "/canvas/tokens", json!({"user": "bob"})),
        ] {
            let refused = gives(&gateway, &token, method, path, body, 403).await;
            assert!(refused.text().contains("root"), "{}", refused.text());
        }
        assert_eq!(change(&gateway, "PATCH", path, json!({"org": "acme", "parent_id": "dev"})).await, 200);
        assert_eq!(status_of(&gateway, &token, "tool").await, 200);
        assert_eq!(ask(&gateway, &token, "DELETE", &stop, Value::Null).await.status, 200);
    }

    async fn its_users_are_in_its_subtree_and_own_what_they_begin() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let agent = echoing().await;
        grow(&gateway, &agent).await;
        let (team, dev) = (token_of(&gateway, "team").await, text(&token_of(&gateway, "dev").await));
        let token = text(&team);
        let refused = canvas(&gateway, &token, json!({"user": "ada", "workspaces": ["dev", "peer"]})).await;
        assert_eq!(refused.status, 403, "{}", refused.text());
        assert_eq!(canvas(&gateway, &token, json!({"user": "ada", "org": "globex"})).await.status, 403);
        let ada = text(&canvas(&gateway, &token, json!({"user": "ada"})).await.json());
        let devs = text(&canvas(&gateway, &dev, json!({"user": "ada"})).await.json());
        let orgs = text(&canvas(&gateway, ADMIN, json!({"user": "ada", "org": "acme"})).await.json());
        for id in ["boss", "peer", "deep", "stray", "ghost"] {
            assert_eq!(status_of(&gateway, &ada, id).await, 403, "{id}");
        }
        assert_eq!(listed(&gateway, &ada, 1).await, ["dev", "team", "tool"]);
        assert_eq!(listed(&gateway, &devs, 1).await, ["dev", "tool"]);
        // Each owns what it begins: the same name in another subtree, or in the org, is another user.
        let all = [("team", &token), ("dev", &dev), ("ada", &ada), ("devs", &devs), ("orgs", &orgs)];
        let at_tool = async |token: &str, body: String| {
            let request = Request::post("/workspaces/tool/a2a", body).bearer(token);
            gateway.call(&request.field("Idempotency-Key", "one")).await
        };
        for (own, token) in all {
            let begun = at_tool(token, send("message/send", &json!({"id": own}).to_string())).await;
            assert_eq!(begun.json()["result"]["id"], own, "{}", begun.text());
        }
        assert_eq!(agent.count(), all.len(), "one answered another's key");
        for (own, _) in all {
            for (who, token) in all {
                let asked = at_tool(token, rpc("tasks/get", &json!({"id": own}))).await;
                let is_unknown = asked.json()["error"]["data"][0]["reason"] == "TASK_NOT_FOUND";
                assert_eq!(is_unknown, who != own, "{who} asks for the task of {own}: {}", asked.text());
            }
        }
    }

    async fn records_and_explanations_name_its_subtree() {
        let (gateway, _agent, token) = grown(Pair::Embedded).await;
        let call = gateway.call(&Request::post("/workspaces/dev/a2a", CALL).bearer(&token)).await;
        assert_eq!(call.status, 200);
        let records = recorded(&gateway, "event_type=A2A_CALL&target=dev", 1).await;
        assert_eq!(records[0]["caller"], "subtree:team:acme");
        assert_eq!((&records[0]["org"], &records[0]["rule"]), (&json!("acme"), &json!("org")));
        let records = recorded(&gateway, "event_type=TOKEN_ISSUED", 1).await;
        assert!(records.iter().any(|record| record["detail"]["subtree"] == "team"), "{records:?}");
        for (target, allowed) in [("dev", true), ("team", true), ("peer", false), ("boss", false)] {
            let explained = explain(&gateway, "subtree:team:acme", target).await;
            let refused = explained.to_string().contains("not_permitted");
            assert_eq!(refused, !allowed, "{target}: {explained:#}");
        }
        let explained = explain(&gateway, "subtree:dev:acme", "dev").await;
        assert!(explained.to_string().contains("unauthenticated"), "it has no token: {explained:#}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_with_its_root_at_another_replica() {
    let replicas = Replicas::start(2, &[]).await;
    removal(&replicas.all[0], &replicas.all[1]).await;
}
