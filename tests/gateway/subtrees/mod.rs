//! Org tokens that look after a subtree: they reach its workspaces and no others, whatever they try.

mod ends;
mod meanwhile;
mod places;
mod sums;
mod told;

use serde_json::{Value, json};

use crate::harness::{ADMIN, Agent, Answer, CALL, Gateway, Pair, Request};
use crate::{on_both_pairs, on_embedded, operators};

const ANSWER: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{"kind":"message"}}"#;

/// The hierarchy of acme, each with its parent; `stray` is in another org.
const TREE: [(&str, Option<&str>, &str); 7] = [
    ("boss", None, "acme"),
    ("team", Some("boss"), "acme"),
    ("dev", Some("team"), "acme"),
    ("tool", Some("dev"), "acme"),
    ("peer", Some("boss"), "acme"),
    ("deep", Some("peer"), "acme"),
    ("stray", None, "globex"),
];

/// Inside and outside of the subtree of `team`; the last never was.
const INSIDE: [&str; 3] = ["team", "dev", "tool"];
const OUTSIDE: [&str; 5] = ["boss", "peer", "deep", "stray", "ghost"];

/// Makes the tree, with an agent at each place.
async fn grow(gateway: &Gateway, agent: &Agent) {
    for (id, parent, org) in TREE {
        let mut workspace =
            json!({"id": id, "name": id, "url": agent.url(), "liveness": "assumed"});
        match parent {
            Some(parent) => workspace["parent_id"] = parent.into(),
            None => workspace["org"] = org.into(),
        }
        gateway.create(workspace).await;
    }
}

/// A gateway with the tree, its agent, and a token for the subtree of `team`.
async fn grown(pair: Pair) -> (Gateway, Agent, String) {
    let gateway = Gateway::start(pair).await;
    let agent = Agent::json(ANSWER).await;
    grow(&gateway, &agent).await;
    let token = text(&token_of(&gateway, "team").await);
    (gateway, agent, token)
}

/// Makes a token of acme for the subtree of `root`.
async fn token_of(gateway: &Gateway, root: &str) -> Value {
    let body = json!({"subtree": root, "note": "a team"});
    let made = gives(gateway, ADMIN, "POST", "/orgs/acme/tokens", body, 201).await;
    let made = made.json();
    assert_eq!(made["subtree"], root);
    made
}

fn text(made: &Value) -> String {
    made["token"].as_str().unwrap().to_owned()
}

async fn ask(gateway: &Gateway, token: &str, method: &str, path: &str, body: Value) -> Answer {
    operators::call(gateway, method, path, token, body).await
}

async fn call(gateway: &Gateway, token: &str, target: &str) -> u16 {
    let request = Request::post(format!("/workspaces/{target}/a2a"), CALL).bearer(token);
    gateway.call(&request).await.status
}

/// The same, which must have this status.
async fn gives(
    gateway: &Gateway,
    token: &str,
    method: &str,
    path: &str,
    body: Value,
    status: u16,
) -> Answer {
    let what = format!("{method} {path} {body}");
    let answer = ask(gateway, token, method, path, body).await;
    assert_eq!(answer.status, status, "{what}: {}", answer.text());
    answer
}

/// The status of a change that an operator makes.
async fn change(gateway: &Gateway, method: &str, path: &str, body: Value) -> u16 {
    ask(gateway, ADMIN, method, path, body).await.status
}

async fn status_of(gateway: &Gateway, token: &str, id: &str) -> u16 {
    let path = format!("/workspaces/{id}");
    ask(gateway, token, "GET", &path, Value::Null).await.status
}

/// The ids of all pages of `GET /workspaces`, each of so many.
async fn listed(gateway: &Gateway, token: &str, limit: usize) -> Vec<String> {
    let (mut found, mut query) = (Vec::new(), format!("?limit={limit}"));
    loop {
        let path = format!("/workspaces{query}");
        let page = gives(gateway, token, "GET", &path, Value::Null, 200).await;
        let ids = page.json();
        let ids = ids.as_array().unwrap().iter();
        found.extend(ids.map(|one| one["id"].as_str().unwrap().to_owned()));
        match next(&page) {
            Some(next) => query = next,
            None => return found,
        }
    }
}

/// The query of the next page.
fn next(page: &Answer) -> Option<String> {
    let link = page.field("link")?;
    let (begin, end) = (link.find('?').unwrap(), link.find('>').unwrap());
    Some(link[begin..end].to_owned())
}

/// Makes a canvas token with another token.
async fn canvas(gateway: &Gateway, maker: &str, body: Value) -> Answer {
    ask(gateway, maker, "POST", "/canvas/tokens", body).await
}

/// Asserts that all routes about a workspace answer alike for each outside of the subtree, those that never were too.
async fn learns_nothing(gateway: &Gateway, token: &str) {
    for (method, route, body) in [
        ("GET", "", Value::Null),
        ("PATCH", "", json!({"role": "taken"})),
        ("DELETE", "", Value::Null),
        ("POST", "/pause", json!({})),
        ("POST", "/resume", json!({})),
        ("POST", "/enrolment", json!({})),
        ("GET", "/tokens", Value::Null),
        ("POST", "/tokens", json!({})),
        ("GET", "/activity", Value::Null),
        ("GET", "/delegations", Value::Null),
        ("GET", "/.well-known/agent-card.json", Value::Null),
        ("POST", "/a2a", serde_json::from_str(CALL).unwrap()),
    ] {
        let mut seen = Vec::new();
        for id in OUTSIDE {
            let path = format!("/workspaces/{id}{route}");
            let answer = ask(gateway, token, method, &path, body.clone()).await;
            seen.push((answer.status, answer.json().to_string()));
        }
        assert_eq!(seen[0].0, 403, "{method} {route}: {}", seen[0].1);
        let are_alike = seen.iter().all(|one| *one == seen[0]);
        assert!(are_alike, "{method} {route}: {seen:?}");
    }
}

on_both_pairs! {
    async fn it_reaches_the_workspaces_of_its_subtree_and_learns_of_no_others(pair: Pair) {
        let (gateway, agent, token) = grown(pair).await;
        for id in INSIDE {
            let path = format!("/workspaces/{id}");
            assert_eq!(status_of(&gateway, &token, id).await, 200);
            assert_eq!(call(&gateway, &token, id).await, 200);
            gives(&gateway, &token, "GET", &format!("/registry/discover/{id}"), Value::Null, 200).await;
            gives(&gateway, &token, "PATCH", &path, json!({"role": "a member"}), 200).await;
        }
        assert_eq!(agent.calls(), INSIDE.len());
        let page = ask(&gateway, &token, "GET", "/workspaces", Value::Null).await;
        for outside in ["boss", "peer", "deep"] {
            assert!(!page.text().contains(outside), "the list names {outside}: {}", page.text());
        }
        learns_nothing(&gateway, &token).await;
        assert_eq!(agent.calls(), INSIDE.len(), "a refused call arrived");
        for limit in [1, 2, 100] {
            assert_eq!(listed(&gateway, &token, limit).await, ["dev", "team", "tool"]);
        }
        // A cursor of another caller leads to nothing else, and a search finds nothing else.
        let page = ask(&gateway, ADMIN, "GET", "/workspaces?limit=2", Value::Null).await;
        let path = format!("/workspaces{}", next(&page).unwrap());
        let page = ask(&gateway, &token, "GET", &path, Value::Null).await.json();
        assert!(page.as_array().unwrap().iter().all(|one| INSIDE.contains(&one["id"].as_str().unwrap())));
        let page = ask(&gateway, &token, "GET", "/workspaces?q=pee", Value::Null).await;
        assert!(!page.text().contains("peer"), "{}", page.text());
        assert_eq!(ask(&gateway, &token, "GET", "/workspaces?status=removed", Value::Null).await.status, 403);
        // What is for operators, and for workspaces themselves.
        for (method, path, body) in [
            ("GET", "/orgs/acme/tokens", Value::Null),
            ("POST", "/orgs/acme/tokens", json!({})),
            ("POST", "/orgs/acme/tokens", json!({"subtree": "dev"})),
            ("GET", "/grants", Value::Null),
            ("POST", "/grants", json!({"caller_id": "dev", "target_id": "peer"})),
            ("GET", "/policy", Value::Null),
            ("GET", "/operators/tokens", Value::Null),
            ("POST", "/workspaces/dev/tokens", json!({})),
            ("GET", "/registry/dev/peers", Value::Null),
            ("POST", "/registry/check-access", json!({"caller_id": "dev", "target_id": "peer"})),
        ] {
            gives(&gateway, &token, method, path, body, 403).await;
        }
    }
}

on_embedded! {
    async fn it_is_made_for_a_workspace_of_the_org_and_listed_with_it() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let agent = Agent::json("{}").await;
        grow(&gateway, &agent).await;
        let make = async |body: Value| {
            let answer = ask(&gateway, ADMIN, "POST", "/orgs/acme/tokens", body).await;
            let reason = answer.json()["reason"].as_str().unwrap_or_default().to_owned();
            (answer.status, reason)
        };
        assert_eq!(change(&gateway, "DELETE", "/workspaces/deep", Value::Null).await, 200);
        for (body, status, reason) in [
            (json!({"subtree": "ghost"}), 404, "workspace_not_found"),
            (json!({"subtree": "deep"}), 410, "workspace_removed"),
            (json!({"subtree": "stray"}), 409, "conflict"),
            (json!({"subtree": "a b"}), 400, "invalid_workspace_id"),
            (json!({"subtree": ""}), 400, "invalid_workspace_id"),
            (json!({"subtree": ["dev"]}), 400, "invalid_params"),
            // A misspelt one would make a token of the whole org.
            (json!({"sub_tree": "dev"}), 400, "invalid_params"),
        ] {
            assert_eq!(make(body.clone()).await, (status, reason.to_owned()), "{body}");
        }
        let whole = ask(&gateway, ADMIN, "POST", "/orgs/acme/tokens", json!({"note": "all"})).await;
        assert!(whole.json().get("subtree").is_none());
        let team = token_of(&gateway, "team").await;
        let list = ask(&gateway, ADMIN, "GET", "/orgs/acme/tokens?limit=2", Value::Null).await.json();
        let shown: Vec<_> = list["tokens"].as_array().unwrap().iter()
            .map(|one| (one["note"].clone(), one["subtree"].clone())).collect();
        assert_eq!(shown, [(json!("all"), Value::Null), (json!("a team"), json!("team"))]);
        // The org's limit counts both.
        for _ in 2..50 {
            token_of(&gateway, "dev").await;
        }
        assert_eq!(make(json!({})).await.0, 409);
        assert_eq!(make(json!({"subtree": "dev"})).await.0, 409);
        let path = format!("/orgs/acme/tokens/{}", team["id"].as_str().unwrap());
        assert_eq!(change(&gateway, "DELETE", &path.replace("acme", "globex"), Value::Null).await, 404);
        assert_eq!(status_of(&gateway, &text(&team), "team").await, 200);
        for _ in 0..2 {
            assert_eq!(change(&gateway, "DELETE", &path, Value::Null).await, 200);
            assert_eq!(status_of(&gateway, &text(&team), "team").await, 401);
        }
    }
}
