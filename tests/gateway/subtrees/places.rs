//! Creation, registration and moves: nothing leaves the subtree or enters it by its token, and a move by an operator
//! counts at once.

use serde_json::{Value, json};

use super::{INSIDE, ask, canvas, change, gives, grow, grown, listed, status_of, text, token_of};
use crate::events::Replicas;
use crate::harness::{ADMIN, Agent, Gateway, Pair, Request, card, until_holds};
use crate::on_embedded;
use crate::standing::{Open, ticking};

/// Waits until the token gets this status for a workspace.
async fn until(gateway: &Gateway, token: &str, id: &str, status: u16) {
    until_holds(id, async || status_of(gateway, token, id).await == status).await;
}

async fn move_below(gateway: &Gateway, id: &str, parent: &str) {
    let path = format!("/workspaces/{id}");
    let moved = change(gateway, "PATCH", &path, json!({"parent_id": parent})).await;
    assert_eq!(moved, 200, "{id} below {parent}");
}

/// Moves a workspace in and out at `by`, and looks at `at`: the token, its canvas token and their streams.
async fn moves(by: &Gateway, at: &Gateway) {
    let agent = ticking().await;
    grow(by, &agent).await;
    let token = text(&token_of(by, "team").await);
    let user = canvas(by, &token, json!({"user": "ada"})).await.json();
    let user = text(&user);
    for token in [&token, &user] {
        assert_eq!(status_of(at, token, "deep").await, 403);
        assert_eq!(status_of(at, token, "tool").await, 200);
    }
    // With all below it, and by any of its steps.
    move_below(by, "peer", "team").await;
    for id in ["peer", "deep"] {
        until(at, &token, id, 200).await;
        until(at, &user, id, 200).await;
    }
    let all = listed(at, &token, 2).await;
    assert_eq!(all, ["deep", "dev", "peer", "team", "tool"]);
    let listed_user = json!({"user": "bob", "workspaces": ["deep", "dev"]});
    let bob = text(&canvas(by, &token, listed_user).await.json());
    let mut streams = Vec::new();
    for token in [&token, &user, &bob] {
        streams.push(Open::new(at, "deep", token).await);
    }
    let mut calm = Open::new(at, "dev", &token).await;
    move_below(by, "peer", "boss").await;
    for stream in streams {
        assert_eq!(stream.last().await, "not_permitted");
    }
    for token in [&token, &user, &bob] {
        until(at, token, "deep", 403).await;
        assert_eq!(status_of(at, token, "dev").await, 200);
    }
    assert_eq!(listed(at, &bob, 10).await, ["dev"]);
    // The subtree goes with its root.
    move_below(by, "team", "peer").await;
    for id in INSIDE {
        until(at, &token, id, 200).await;
    }
    assert_eq!(status_of(at, &token, "peer").await, 403);
    calm.goes_on(3).await;
}

on_embedded! {
    async fn a_move_counts_at_once() {
        let gateway = Gateway::start(Pair::Embedded).await;
        moves(&gateway, &gateway).await;
    }

    async fn what_it_makes_is_below_its_root_and_what_there_is_stays_where_it_is() {
        let (gateway, _agent, token) = grown(Pair::Embedded).await;
        let make = async |body: Value| ask(&gateway, &token, "POST", "/workspaces", body).await;
        for (place, parent) in [
            (json!({}), "team"),
            (json!({"parent_id": null}), "team"),
            (json!({"parent_id": "team"}), "team"),
            (json!({"parent_id": "tool", "org": "acme"}), "tool"),
        ] {
            let mut body = place.clone();
            body["name"] = "new".into();
            let made = make(body).await;
            assert_eq!(made.status, 201, "{place}: {}", made.text());
            let made = made.json();
            assert_eq!((&made["parent_id"], &made["org"]), (&json!(parent), &json!("acme")));
            let id = made["id"].as_str().unwrap();
            assert_eq!(ask(&gateway, &token, "DELETE", &format!("/workspaces/{id}"), Value::Null).await.status, 200);
        }
        for place in [
            json!({"parent_id": "boss"}),
            json!({"parent_id": "peer"}),
            json!({"parent_id": "stray"}),
            json!({"parent_id": "ghost"}),
            json!({"org": "globex"}),
            json!({"recreate": true}),
            json!({"urls": ["http://127.0.0.1:9/"]}),
        ] {
            let mut body = place.clone();
            body["name"] = "new".into();
            let refused = make(body).await;
            assert_eq!(refused.status, 403, "{place}: {}", refused.text());
        }
        // A taken id says nothing of its place.
        let mut taken = std::collections::BTreeSet::new();
        for id in ["boss", "peer", "stray"] {
            let refused = make(json!({"id": id, "name": "x"})).await;
            taken.insert((refused.status, refused.json()["error"].to_string()));
        }
        assert_eq!((taken.len(), taken.first().unwrap().0), (1, 409), "{taken:?}");
        // It moves nothing, and neither removes nor enrols its root, whose relations lead out.
        for (method, path, body) in [
            ("PATCH", "/workspaces/dev", json!({"parent_id": "boss"})),
            ("PATCH", "/workspaces/tool", json!({"parent_id": "team"})),
            ("PATCH", "/workspaces/team", json!({"parent_id": null})),
            ("PATCH", "/workspaces/team", json!({"parent_id": "peer"})),
            ("PATCH", "/workspaces/team", json!({"parent_id": "boss"})),
            ("PATCH", "/workspaces/tool", json!({"org": "globex", "parent_id": null})),
            ("DELETE", "/workspaces/team", Value::Null),
            ("POST", "/workspaces/team/enrolment", json!({})),
        ] {
            gives(&gateway, &token, method, path, body, 403).await;
        }
        for path in ["/workspaces/team/pause", "/workspaces/team/resume"] {
            assert_eq!(ask(&gateway, &token, "POST", path, json!({})).await.status, 200, "{path}");
        }
        assert_eq!(ask(&gateway, &token, "POST", "/workspaces/dev/enrolment", json!({})).await.status, 201);
        assert_eq!(ask(&gateway, &token, "DELETE", "/workspaces/tool", Value::Null).await.status, 200);
        let twice = ask(&gateway, &token, "DELETE", "/workspaces/tool", Value::Null).await;
        assert_eq!(twice.json()["reason"], "workspace_removed");
        // A token of the whole org is over its subtrees.
        let org = ask(&gateway, ADMIN, "POST", "/orgs/acme/tokens", json!({})).await;
        assert_eq!(ask(&gateway, &text(&org.json()), "DELETE", "/workspaces/dev", Value::Null).await.status, 200);
    }

    async fn what_it_registers_is_in_its_subtree() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let (agent, mine) = (Agent::json("{}").await, Agent::json("{}").await);
        grow(&gateway, &agent).await;
        let token = text(&token_of(&gateway, "team").await);
        let register = async |id: &str, more: Value| {
            let mut body = json!({"id": id, "url": mine.url(), "agent_card": card(id)});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let request = Request::post("/registry/register", body.to_string()).bearer(&token);
            gateway.call(&request).await
        };
        for (id, more) in [
            ("peer", json!({})),
            ("boss", json!({})),
            ("deep", json!({"parent_id": "team"})),
            ("stray", json!({})),
            ("fresh", json!({"parent_id": "peer"})),
            ("fresh", json!({"parent_id": "ghost"})),
            ("fresh", json!({"org": "globex"})),
            ("dev", json!({"parent_id": "boss"})),
            ("dev", json!({"parent_id": "tool"})),
        ] {
            let refused = register(id, more.clone()).await;
            assert_eq!(refused.status, 403, "{id} {more}: {}", refused.text());
        }
        for id in ["boss", "peer", "deep", "stray", "dev"] {
            let seen = ask(&gateway, ADMIN, "GET", &format!("/workspaces/{id}"), Value::Null).await;
            assert_eq!(seen.json()["url"], agent.url(), "{id}");
        }
        assert_eq!(status_of(&gateway, ADMIN, "fresh").await, 404);
        let made = register("fresh", json!({})).await;
        assert_eq!(made.status, 200, "{}", made.text());
        assert!(made.json()["token"].is_string());
        let seen = ask(&gateway, &token, "GET", "/workspaces/fresh", Value::Null).await.json();
        assert_eq!(seen["parent_id"], "team");
        // A token of the root would reach what is beside it and above.
        assert_eq!(change(&gateway, "PATCH", "/workspaces/fresh", json!({"url": null, "delivery_mode": "poll"})).await, 200);
        let root = register("team", json!({})).await;
        assert_eq!(root.status, 200, "{}", root.text());
        assert!(root.json().get("token").is_none(), "{}", root.text());
    }

    async fn what_it_enrols_joins_at_that_place_only() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let (agent, mine, theirs) = (Agent::json("{}").await, Agent::json("{}").await, Agent::json("{}").await);
        grow(&gateway, &agent).await;
        let token = text(&token_of(&gateway, "team").await);
        let mut kept = Vec::new();
        for (id, parent) in [
            ("away", "team"), ("below", "dev"), ("up", "team"), ("lost", "up"), ("policy", "team"), ("stays", "team"),
            ("of-operator", "team"),
        ] {
            let body = json!({"id": id, "name": id, "parent_id": parent});
            let maker = if id == "of-operator" { ADMIN } else { &token };
            let made = gives(&gateway, maker, "POST", "/workspaces", body, 201).await;
            kept.push((id, made.json()["enrolment_token"].as_str().unwrap().to_owned()));
        }
        let listed = async |id: &str| {
            let path = format!("/workspaces/{id}/tokens");
            let list = ask(&gateway, ADMIN, "GET", &path, Value::Null).await.json();
            list["tokens"].as_array().map_or(0, Vec::len)
        };
        let elsewhere = json!({"org": "globex", "parent_id": "stray"});
        let practice = change(&gateway, "PATCH", "/workspaces/away?dry_run=true", elsewhere.clone()).await;
        assert_eq!((practice, listed("away").await), (200, 1));
        // Into another org, with a workspace above it, by the removal of one above it, by a policy; or not at all.
        let policy = json!({"version": 1, "workspaces": [
            {"id": "policy", "name": "policy", "org": "acme", "parent_id": "boss"},
        ]});
        for (method, path, body) in [
            ("PATCH", "/workspaces/away", elsewhere),
            ("PATCH", "/workspaces/dev", json!({"parent_id": "boss"})),
            ("DELETE", "/workspaces/up", Value::Null),
            ("POST", "/policy", policy),
            ("PATCH", "/workspaces/stays", json!({"role": "a new one", "parent_id": "team"})),
            ("PATCH", "/workspaces/of-operator", json!({"parent_id": "boss"})),
        ] {
            gives(&gateway, ADMIN, method, path, body, 200).await;
        }
        for (id, enrolment) in kept {
            let good = ["stays", "of-operator"].contains(&id);
            let url = if id == "of-operator" { theirs.url() } else { mine.url() };
            let body = json!({"id": id, "url": url, "agent_card": card(id)}).to_string();
            let joined = gateway.call(&Request::post("/registry/register", body).bearer(&enrolment)).await;
            let expected = if good { 200 } else { 401 };
            assert_eq!(joined.status, expected, "{id}: {}", joined.text());
            assert_eq!(listed(id).await, usize::from(good), "{id}");
        }
        // The new place's enrolment is good.
        let again = ask(&gateway, ADMIN, "POST", "/workspaces/away/enrolment", json!({})).await.json();
        let other = Agent::json("{}").await;
        gateway.register("away", again["enrolment_token"].as_str().unwrap(), &other.url(), card("away")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_counts_at_another_replica() {
    let replicas = Replicas::start(2, &[]).await;
    moves(&replicas.all[0], &replicas.all[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enrolment_of_the_moment_of_a_move_is_good_at_the_old_place_only() {
    let replicas = Replicas::start(2, &[]).await;
    let [here, there] = &replicas.all[..] else {
        unreachable!("two replicas");
    };
    let agent = Agent::json("{}").await;
    grow(here, &agent).await;
    let token = text(&token_of(here, "team").await);
    let mut made = 0;
    for round in 0..40 {
        let id = format!("moved-{round}");
        let body = json!({"id": id, "name": id, "parent_id": "dev", "delivery_mode": "poll"});
        assert_eq!(change(here, "POST", "/workspaces", body).await, 201);
        let path = format!("/workspaces/{id}");
        let elsewhere = json!({"org": "globex", "parent_id": "stray"});
        let enrolment = format!("{path}/enrolment");
        let (asked, moved) = tokio::join!(
            ask(here, &token, "POST", &enrolment, json!({})),
            change(there, "PATCH", &path, elsewhere)
        );
        assert_eq!(moved, 200);
        if asked.status != 201 {
            continue;
        }
        made += 1;
        if made > 8 {
            break;
        }
        let enrolment = asked.json()["enrolment_token"].as_str().unwrap().to_owned();
        let body = json!({"id": id, "delivery_mode": "poll", "agent_card": card(&id)}).to_string();
        let joins = Request::post("/registry/register", body).bearer(&enrolment);
        let joined = there.call(&joins).await;
        assert_eq!(joined.status, 401, "round {round}: {}", joined.text());
    }
    assert!(made > 0, "no enrolment was asked for in time");
}
