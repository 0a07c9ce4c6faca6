//! Registration, heartbeats, drain and departure of instances.

use super::*;
use crate::harness::assert_refusal;
use crate::on_both_pairs;

on_both_pairs! {
    async fn each_instance_registers_at_its_own_url_and_takes_calls(pair: Pair) {
        let (set, _, [one, two]) = Set::of_two(pair).await;
        set.call().await.has(200);
        assert_eq!(one.count() + two.count(), 1);
        for instance in ["one", "two"] {
            set.beat(instance).await.has(200);
        }
        let answer = set.beat("three").await;
        assert_refusal(&answer, "", "seen", "workspace_not_found", "unknown");
        assert_eq!(answer.json()["reregister"], json!(true));
        for instance in ["", "a/b", "a:b", &"x".repeat(65)] {
            let body = json!({"workspace_id": "target", "instance_id": instance});
            for path in ["/registry/heartbeat", "/registry/drain", "/registry/deregister"] {
                let answer = set.post(path, body.clone()).await;
                assert_refusal(&answer, "", "seen", "invalid_params", instance);
            }
        }
    }

    async fn an_instance_that_deregisters_leaves_the_others_and_the_last_one_ends_it(pair: Pair) {
        let (set, _, [one, two]) = Set::of_two(pair).await;
        assert_eq!(set.view().await["url"], json!(two.url()), "the last that registered");
        set.deregister("two").await;
        set.assert_statuses(&[("one", "online")]).await;
        let view = set.view().await;
        assert_eq!((&view["status"], &view["url"]), (&json!("online"), &json!(one.url())));
        set.assert_calls_reach(&one).await;
        assert_eq!(set.beat("two").await.json()["reregister"], json!(true));
        // Its server is free for another workspace at once.
        let enrolment = set.gateway.create(json!({"id": "other", "name": "other"})).await;
        set.gateway.register("other", &enrolment, &two.url(), card("other")).await;
        set.deregister("one").await;
        let view = set.view().await;
        assert_eq!((&view["status"], &view["url"]), (&json!("offline"), &json!(null)));
        assert!(view.get("instances").is_none(), "{view}");
        assert_eq!(set.call().await.reason(), "workspace_offline");
        let body = json!({"workspace_id": "target", "instance_id": "one"});
        let answer = set.post("/registry/deregister", body).await;
        assert_eq!((answer.status, answer.json()), (200, json!({"status": "deregistered"})), "again");
    }

    async fn a_deregistration_without_an_id_ends_all_instances(pair: Pair) {
        let (set, token, [_one, two]) = Set::of_two(pair).await;
        let answer = set.post("/registry/deregister", json!({"workspace_id": "target"})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(set.call().await.reason(), "workspace_offline");
        for instance in ["one", "two"] {
            assert_eq!(set.beat(instance).await.reason(), "workspace_not_found");
        }
        assert!(set.view().await.get("instances").is_none());
        // It may come back as it was before instances.
        set.register(&token, "", &two).await;
        set.assert_calls_reach(&two).await;
        assert_eq!(set.beat("").await.status, 200);
        assert!(set.view().await.get("instances").is_none());
    }

    async fn the_servers_of_all_instances_stay_the_workspaces(pair: Pair) {
        let set = Set::new(pair).await;
        let token = set.own_token().await;
        let (one, two, three) = (answering().await, answering().await, answering().await);
        set.register(&token, "one", &one).await;
        set.register(&token, "two", &two).await;
        let enrolment = set.gateway.create(json!({"id": "other", "name": "other"})).await;
        let steal = async |agent: &Agent| {
            let body = json!({"id": "other", "url": agent.url(), "agent_card": card("other")});
            let request = Request::post("/registry/register", body.to_string()).bearer(&enrolment);
            set.gateway.call(&request).await
        };
        for agent in [&one, &two] {
            let answer = steal(agent).await;
            assert_eq!((answer.status, answer.reason()), (409, "conflict".to_owned()));
        }
        // An instance that moves gives up its former server, and no other.
        set.register(&token, "one", &three).await;
        for agent in [&two, &three] {
            assert_eq!(steal(agent).await.status, 409);
        }
        assert_eq!(steal(&one).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_has_sixty_four_instances_and_no_more_while_they_live() {
    let set = Set::on(Builder::new(Pair::Embedded).set("rate.caller_burst", "1000")).await;
    let token = set.own_token().await;
    let agent = answering().await;
    for n in 0..64 {
        set.register(&token, &format!("i-{n}"), &agent).await;
    }
    let answer = set.try_register(&token, "one-more", &agent.url()).await;
    assert_refusal(&answer, "", "seen", "conflict", "65");
    assert_eq!(answer.json()["limit"], json!("64"), "{}", answer.text());
    assert!(answer.text().contains("deregister"), "{}", answer.text());
    // One that it has may register again.
    set.register(&token, "i-7", &agent).await;
    set.deregister("i-63").await;
    set.register(&token, "one-more", &agent).await;
    assert_eq!(set.statuses().await.len(), 64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_instances_are_listed_to_the_workspace_and_operators_only() {
    let set = Set::new(Pair::Embedded).await;
    assert!(
        set.view().await.get("instances").is_none(),
        "there are none"
    );
    let token = set.own_token().await;
    let (one, two) = (answering().await, answering().await);
    set.register(&token, "one", &one).await;
    set.register(&token, "two", &two).await;
    let own = Request::get("/workspaces/target").bearer(&token);
    for view in [set.view().await, set.gateway.call(&own).await.json()] {
        let all = view["instances"].as_array().unwrap();
        assert_eq!(all.len(), 2, "{view}");
        let first = &all[0];
        assert_eq!(first["instance_id"], "one");
        assert_eq!(first["url"], json!(one.url()));
        assert_eq!(first["status"], "online");
        assert_eq!(first["in_flight"], 0);
        assert_eq!(first["breaker"], "closed");
        assert!(first["last_seen"].is_string(), "{first}");
        assert_eq!(first.as_object().unwrap().len(), 6, "{first}");
    }
    let other = Request::get("/workspaces/target").bearer(&set.caller.token);
    let view = set.gateway.call(&other).await.json();
    assert_eq!(view["id"], "target", "{view}");
    assert_eq!(view.get("instances"), None, "{view}");
    let list = set.gateway.as_operator(Request::get("/workspaces")).await;
    assert!(!list.text().contains("\"instances\""), "{}", list.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_card_shows_the_url_of_any_instance() {
    let (set, _, [one, two]) = Set::of_two(Pair::Embedded).await;
    let mut told = card("target");
    told["description"] = format!("reach {} or {} here", one.url(), two.url()).into();
    let body = json!({"workspace_id": "target", "agent_card": told});
    set.post("/registry/update-card", body).await.has(200);
    let paths = [
        "/workspaces/target/.well-known/agent-card.json",
        "/workspaces/target",
        "/registry/discover/target",
        "/registry/caller/peers",
    ];
    for path in paths {
        let request = Request::get(path).bearer(&set.caller.token);
        let answer = set.gateway.call(&request).await;
        let mut shown = answer.json();
        // The one URL that discovery is for.
        for one in shown.as_array_mut().into_iter().flatten() {
            one.as_object_mut().unwrap().remove("url");
        }
        if let Some(one) = shown.as_object_mut() {
            one.remove("url");
        }
        let shown = shown.to_string();
        assert!(answer.status == 200, "{path}: {shown}");
        assert!(shown.contains("here"), "{path}: {shown}");
        for agent in [&one, &two] {
            assert!(!shown.contains(&agent.port.to_string()), "{path}: {shown}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_drains_takes_no_new_calls_until_it_registers_again() {
    let (set, token, [one, two]) = Set::of_two(Pair::Embedded).await;
    set.drain("one").await;
    set.assert_statuses(&[("one", "draining"), ("two", "online")])
        .await;
    let before = one.count();
    for _ in 0..20 {
        assert_eq!(set.call().await.status, 200);
    }
    assert_eq!((one.count(), two.count() >= 20), (before, true));
    assert_eq!(set.beat("one").await.status, 200, "it still lives");
    set.assert_statuses(&[("one", "draining"), ("two", "online")])
        .await;
    set.register(&token, "one", &one).await;
    set.assert_statuses(&[("one", "online"), ("two", "online")])
        .await;
    let unknown = json!({"workspace_id": "target", "instance_id": "three"});
    let answer = set.post("/registry/drain", unknown).await;
    assert_refusal(
        &answer,
        "",
        "seen",
        "workspace_not_found",
        "no such instance",
    );
    // Its own and operators, as for the other routes.
    let body = json!({"workspace_id": "target", "instance_id": "one"}).to_string();
    let request = Request::post("/registry/drain", body).bearer(&set.caller.token);
    let answer = set
        .gateway
        .call(&request.field("X-Request-Id", "seen"))
        .await;
    assert_refusal(&answer, "", "seen", "not_permitted", "another's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_without_an_id_counts_as_the_instance_default() {
    let set = Set::new(Pair::Embedded).await;
    let token = set.own_token().await;
    let (old, new) = (answering().await, answering().await);
    set.register(&token, "", &old).await;
    assert_eq!(set.beat("").await.status, 200);
    set.register(&token, "new", &new).await;
    set.assert_statuses(&[("default", "online"), ("new", "online")])
        .await;
    assert_eq!(set.beat("").await.status, 200, "of the instance default");
    // A rolling change: the old one drains, and leaves.
    set.drain("default").await;
    set.assert_calls_reach(&new).await;
    set.deregister("default").await;
    set.assert_statuses(&[("new", "online")]).await;
    assert_eq!(set.beat("").await.json()["reregister"], json!(true));
    // The way back.
    set.register(&token, "", &old).await;
    set.assert_statuses(&[("default", "online"), ("new", "online")])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_names_itself_at_its_old_url_is_one_instance() {
    let set = Set::new(Pair::Embedded).await;
    let token = set.own_token().await;
    let agent = answering().await;
    set.register(&token, "", &agent).await;
    set.register(&token, "one", &agent).await;
    set.assert_statuses(&[("one", "online")]).await;
    set.assert_calls_reach(&agent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_has_no_instances() {
    let set = Set::new(Pair::Embedded).await;
    let token = set.own_token().await;
    let body = json!({"id": "target", "instance_id": "one", "delivery_mode": "poll", "agent_card": card("target")});
    let request = Request::post("/registry/register", body.to_string()).bearer(&token);
    let answer = set
        .gateway
        .call(&request.field("X-Request-Id", "seen"))
        .await;
    assert_refusal(&answer, "", "seen", "invalid_params", "an inbox");
    let agent = answering().await;
    set.register(&token, "one", &agent).await;
    let body = json!({"id": "target", "delivery_mode": "poll", "agent_card": card("target")});
    let request = Request::post("/registry/register", body.to_string()).bearer(&token);
    assert_eq!(set.gateway.call(&request).await.status, 200);
    assert!(set.view().await.get("instances").is_none());
    assert_eq!(set.beat("").await.status, 200);
}
