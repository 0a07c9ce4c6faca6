//! Cards that anyone may read (`card_access`): without a credential, and without a word about the others.

use serde_json::json;

use super::{add, card_of, locations, patch, served};
use crate::harness::{ADMIN, Agent, Answer, Gateway, Request, Step, card, until_found};
use crate::on_both_pairs;

const WELL_KNOWN: &str = "/.well-known/agent-card.json";

async fn agent() -> Agent {
    let card = card("A").to_string();
    Agent::scripted(move |request| vec![Step::Write(served(request, WELL_KNOWN, &card))]).await
}

fn place(id: &str) -> String {
    format!("/workspaces/{id}/a2a/.well-known/agent-card.json")
}

async fn anonymous(gateway: &Gateway, path: &str) -> Answer {
    gateway.call(&Request::get(path)).await
}

/// What a caller can tell one refusal from another by.
fn seen(answer: &Answer) -> (u16, Vec<(String, String)>, String) {
    let id = answer.field("x-request-id").unwrap().to_owned();
    let mut fields = answer.fields.clone();
    fields.retain(|(name, _)| !["x-request-id", "date"].contains(&name.to_lowercase().as_str()));
    (answer.status, fields, answer.text().replace(&id, "ID"))
}

/// How often SQL was asked for what decides about a card.
async fn store_trips(gateway: &Gateway) -> f64 {
    let mut trips = 0.0;
    for operation in ["find", "line", "public_card"] {
        let label = format!("operation=\"workspace_{operation}\"");
        trips += gateway.counts("store_seconds_count", &label).await;
    }
    trips
}

on_both_pairs! {
    /// Which ids there are shows in the number of store trips no more than in the words.
    async fn a_private_card_costs_as_many_store_trips_as_an_unknown_one(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let agent = agent().await;
        add(&gateway, "closed", json!({"url": agent.url()})).await;
        // In memory, as of a workspace in use, and of one that nobody asked for.
        add(&gateway, "fresh", json!({"url": agent.url()})).await;
        // Both cards are read as their agents are added.
        agent.until_count(2).await;
        assert_eq!(card_of(&gateway, "closed").await.status, 200);
        for id in ["closed", "fresh", "nobody", "closed", "nobody"] {
            let before = store_trips(&gateway).await;
            assert_eq!(anonymous(&gateway, &place(id)).await.status, 401);
            assert_eq!(store_trips(&gateway).await - before, 1.0, "{id}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_public_card_needs_no_credential_and_the_others_stay_as_unknown_as_none() {
    let gateway = Gateway::with("a2a.default_workspace=open").await;
    let agent = agent().await;
    for id in ["open", "closed", "gone"] {
        add(&gateway, id, json!({"url": agent.url()})).await;
    }
    for path in locations("open") {
        let answer = anonymous(&gateway, &path).await;
        answer.refuses_for(&path, 401, "unauthenticated");
    }
    for id in ["open", "gone"] {
        patch(&gateway, id, json!({"card_access": "public"})).await;
    }
    let removed = Request::new("DELETE", "/workspaces/gone");
    assert_eq!(gateway.as_operator(removed).await.status, 200);
    let with_credential = card_of(&gateway, "open").await;
    for path in locations("open") {
        let answer = anonymous(&gateway, &path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        // The path of 0.3 has that form.
        let is_old = path.ends_with("/agent.json");
        assert_eq!(answer.body == with_credential.body, !is_old, "{path}");
        let tag = answer.field("etag").unwrap();
        let known = Request::get(&path).field("if-none-match", tag);
        assert_eq!(gateway.call(&known).await.status, 304, "{path}");
    }
    // Whatever is asked for at the same places of a private, removed or unknown one is the same refusal.
    for (index, path) in locations("closed").iter().enumerate().take(6) {
        let closed = anonymous(&gateway, path).await;
        closed.refuses(401, "unauthenticated");
        for other in ["gone", "nobody", "closed.x"] {
            let answer = anonymous(&gateway, &locations(other)[index]).await;
            assert_eq!(seen(&answer), seen(&closed), "{path} {other}");
        }
    }
    // A credential is looked at where there is one, and calls need one.
    let wrong =
        Request::get(place("open")).bearer("a2aw_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG");
    assert_eq!(gateway.call(&wrong).await.status, 401);
    let call = Request::post("/workspaces/open/a2a", crate::harness::CALL);
    assert_eq!(gateway.call(&call).await.status, 401);
    assert_eq!(anonymous(&gateway, "/workspaces/open").await.status, 401);

    let read = async || gateway.read("/workspaces/open").await;
    assert_eq!(read().await["card_access"], "public");
    patch(&gateway, "open", json!({"card_access": null})).await;
    assert_eq!(anonymous(&gateway, &place("open")).await.status, 401);
    assert_eq!(read().await.get("card_access"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_say_whose_card_is_public() {
    let gateway = Gateway::with("card.access=public").await;
    let agent = agent().await;
    let open = json!({"url": agent.url(), "org": "acme"});
    let closed = json!({"url": agent.url(), "card_access": "private"});
    for (id, more) in [("open", open), ("closed", closed)] {
        add(&gateway, id, more).await;
    }
    anonymous(&gateway, &place("open")).await.has(200);
    let closed = anonymous(&gateway, &place("closed")).await.has(401);
    let nobody = anonymous(&gateway, &place("nobody")).await;
    assert_eq!(seen(&nobody), seen(&closed));

    let org = gateway.token("/orgs/acme/tokens", "{}").await;
    let private = Request::patch("/workspaces/open", r#"{"card_access":"private"}"#);
    let public = Request::post("/workspaces", r#"{"name":"n","card_access":"public"}"#);
    for asked in [private, public] {
        let refused = gateway.call(&asked.bearer(&org)).await;
        refused.refuses(403, "not_permitted");
    }
    let wrong = gateway.patch("open", json!({"card_access": "open"})).await;
    wrong.refuses(400, "invalid_params");
}

#[tokio::test]
async fn cards_read_without_a_credential_are_limited_by_address() {
    let settings = "rate.cards_per_second=3 server.trusted_proxies=127.0.0.1/32";
    let gateway = Gateway::with(settings).await;
    let agent = agent().await;
    let open = json!({"url": agent.url(), "card_access": "public"});
    add(&gateway, "open", open).await;
    let from = |client: &str| Request::get(place("open")).field("x-forwarded-for", client);
    let limited = until_found("a limit", async || {
        let answer = gateway.call(&from("192.0.2.1")).await;
        (answer.status != 200).then_some(answer)
    });
    let limited = limited.await;
    limited.refuses(429, "rate_limited");
    assert_eq!(limited.field("retry-after"), Some("1"));
    // Others, and those who send a credential, read on.
    assert_eq!(gateway.call(&from("192.0.2.2")).await.status, 200);
    gateway
        .call(&from("192.0.2.1").bearer(ADMIN))
        .await
        .has(200);
}
