//! The catalogue and the search of ARD: the checks of its conformance test (`M1` to `R6`), and that each reader sees
//! exactly what it may call.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{ADMIN, Answer, Builder, Gateway, Pair, Request, card};
use crate::on_both_pairs;

const CARD_TYPE: &str = "application/a2a-agent-card+json";

/// A gateway with two families, and an agent that knows the weather.
async fn families(pair: Pair, settings: &str) -> Gateway {
    let settings = format!("server.public_url=https://gw.example {settings}");
    let gateway = Builder::new(pair).sets(&settings).start().await;
    for (id, parent) in [
        ("pm", None),
        ("dev", Some("pm")),
        ("qa", Some("pm")),
        ("other", None),
        ("spy", Some("other")),
    ] {
        gateway
            .create(json!({"id": id, "name": id, "parent_id": parent}))
            .await;
    }
    let mut weather = card("Weather station");
    weather["description"] = "Forecasts for towns".into();
    weather["skills"] = json!([{"id": "forecast", "name": "Forecast", "description": "d", "tags": ["rain", "sun"],
        "examples": ["will it snow?", "how warm is it?"], "outputModes": ["image/png"]}]);
    let registration =
        json!({"id": "qa", "url": "http://127.0.0.1:9/", "agent_card": weather}).to_string();
    let token = token(&gateway, "qa").await;
    let registered = Request::post("/registry/register", registration).bearer(&token);
    gateway.call(&registered).await.has(200);
    gateway
}

async fn token(gateway: &Gateway, id: &str) -> String {
    let made = gateway
        .as_operator(Request::post(format!("/workspaces/{id}/tokens"), "{}"))
        .await;
    made.json()["token"].as_str().unwrap().to_owned()
}

fn names(list: &Value) -> BTreeSet<String> {
    let all = list.as_array().unwrap().iter();
    let all = all.filter(|entry| entry["type"] == CARD_TYPE);
    all.map(|entry| {
        entry["identifier"]
            .as_str()
            .unwrap()
            .rsplit(':')
            .next()
            .unwrap()
            .to_owned()
    })
    .collect()
}

async fn catalog(gateway: &Gateway, token: &str) -> Answer {
    gateway
        .call(&Request::get("/.well-known/ard.json").bearer(token))
        .await
}

on_both_pairs! {
async fn a_catalogue_has_exactly_the_agents_that_its_reader_may_call(pair: Pair) {
    let gateway = families(pair, "").await;
    let all = ["pm", "dev", "qa", "other", "spy"];
    for reader in all {
        let token = token(&gateway, reader).await;
        let check = |allowed: &'static str| {
            let body = json!({"caller_id": reader, "target_id": allowed}).to_string();
            gateway.as_operator(Request::post("/registry/check-access", &body))
        };
        let mut permitted = BTreeSet::new();
        for target in all {
            if check(target).await.json()["allowed"] == true {
                permitted.insert(target.to_owned());
            }
        }
        let answer = catalog(&gateway, &token).await;
        assert_eq!(names(&answer.json()["entries"]), permitted, "{reader}");
        let listed = gateway.call(&Request::get("/agents?pageSize=1").bearer(&token)).await.json();
        assert_eq!(listed["items"].as_array().unwrap().len(), 1);
        for target in all {
            let urn = format!("/agents/urn:air:gw.example:{target}");
            let answer = gateway.call(&Request::get(urn).bearer(&token)).await;
            assert_eq!(answer.status == 200, permitted.contains(target), "{reader} {target}");
        }
    }
    // A grant shows an agent, a stop hides it, and both are seen at once.
    let spy = token(&gateway, "spy").await;
    let grant = json!({"caller_id": "spy", "target_id": "dev"}).to_string();
    let grant = gateway.as_operator(Request::post("/grants", &grant)).await.json();
    assert!(names(&catalog(&gateway, &spy).await.json()["entries"]).contains("dev"));
    let stop = json!({"scope": {"workspace": "dev"}, "mode": "new", "reason": "r"}).to_string();
    let stop = gateway.as_operator(Request::post("/stops", &stop)).await;
    assert_eq!(stop.status, 201, "{}", stop.text());
    assert!(!names(&catalog(&gateway, &spy).await.json()["entries"]).contains("dev"));
    let hidden = gateway.call(&Request::get("/agents/urn:air:gw.example:dev").bearer(&spy)).await;
    assert_eq!(hidden.status, 404);
    let id = stop.json()["id"].as_str().unwrap().to_owned();
    gateway.as_operator(Request::new("DELETE", format!("/stops/{id}"))).await;
    assert!(names(&catalog(&gateway, &spy).await.json()["entries"]).contains("dev"));
    let id = grant["id"].as_str().unwrap().to_owned();
    gateway.as_operator(Request::new("DELETE", format!("/grants/{id}"))).await;
    assert!(!names(&catalog(&gateway, &spy).await.json()["entries"]).contains("dev"));
}

async fn a_search_finds_words_and_nothing_that_is_hidden(pair: Pair) {
    let gateway = families(pair, "").await;
    let (dev, spy) = (token(&gateway, "dev").await, token(&gateway, "spy").await);
    let search = async |token: &str, body: Value| {
        gateway.call(&Request::post("/search", &body.to_string()).bearer(token)).await
    };
    for (text, score) in [("weather", 100), ("RAIN", 80), ("town", 60), ("snow", 40)] {
        let answer = search(&dev, json!({"query": {"text": text}})).await;
        let results = &answer.json()["results"];
        assert_eq!(results.as_array().unwrap().len(), 1, "{text}: {}", answer.text());
        assert_eq!((&results[0]["score"], &results[0]["source"]), (&json!(score), &json!("https://gw.example")));
        assert_eq!(results[0]["identifier"], "urn:air:gw.example:qa");
        assert!(results[0].get("representativeQueries").is_none());
    }
    // R2; an address in a card is no word of it; and what is hidden is not found.
    for (token, text) in [(&dev, "MCP tools"), (&dev, "127"), (&spy, "weather"), (&spy, "pm")] {
        let answer = search(token, json!({"query": {"text": text}, "federation": "none", "pageSize": 2})).await;
        assert_eq!((answer.status, &answer.json()["results"]), (200, &json!([])), "{text}");
    }
    // Filters, and pages that belong to their reader and request.
    let filtered = json!({"query": {"text": "weather", "filter": {"tags": ["sun", "x"], "publisher": "gw.example"}}});
    assert_eq!(search(&dev, filtered).await.json()["results"].as_array().unwrap().len(), 1);
    let filtered = json!({"query": {"text": "weather", "filter": {"outputModes": "text/html"}}});
    assert_eq!(search(&dev, filtered).await.json()["results"], json!([]));
    let everything = json!({"query": {"text": "weather pm dev"}, "pageSize": 1});
    let first = search(&dev, everything.clone()).await.json();
    let mut next = everything.clone();
    next["pageToken"] = first["pageToken"].clone();
    let second = search(&dev, next.clone()).await.json();
    assert_ne!(first["results"][0]["identifier"], second["results"][0]["identifier"]);
    for (token, mut body) in [(&spy, next.clone()), (&dev, next.clone()), (&dev, next.clone())] {
        if token == &dev {
            let other = if body["query"]["text"] == "weather pm dev" { "pageToken" } else { "query" };
            body[other] = "AAAA".into();
        }
        let answer = search(token, body).await;
        assert_eq!((answer.status, &answer.json()["errorCode"]), (400, &json!("INVALID_ARGUMENT")));
    }
    for wrong in [
        json!({}),
        json!({"query": {"text": " "}}),
        json!({"query": {"text": "a"}, "federation": "x"}),
        json!({"query": {"text": "a"}, "pageSize": 0}),
        json!({"query": {"text": "a", "filter": {"misspelt": "x"}}}),
    ] {
        let answer = search(&dev, wrong.clone()).await;
        let body = answer.json();
        assert_eq!((answer.status, &body["errorCode"]), (400, &json!("INVALID_ARGUMENT")), "{wrong}: {body}");
        assert!(body["message"].is_string() && body["reason"].is_string(), "{body}");
    }
}

}

#[tokio::test]
async fn the_file_passes_the_checks_of_ard() {
    let gateway = families(Pair::Embedded, "card.access=public").await;
    let ard = gateway.call(&Request::get("/.well-known/ard.json")).await;
    let catalog = gateway
        .call(&Request::get("/.well-known/ai-catalog.json"))
        .await;
    assert_eq!(ard.body, catalog.body);
    ard.has_field("content-type", "application/json");
    catalog.has_field("content-type", "application/ai-catalog+json");
    ard.has_field("cache-control", "public, max-age=60");
    let document = ard.json();
    assert_eq!(document["specVersion"], "0.9");
    assert!(document["host"]["displayName"].is_string());
    let entries = document["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 6);
    for entry in entries {
        let urn: Vec<&str> = entry["identifier"].as_str().unwrap().split(':').collect();
        assert_eq!(urn[..3], ["urn", "air", "gw.example"]);
        assert!(entry["displayName"].is_string() && entry["type"].is_string());
        assert!(entry["url"].is_string() != entry.get("data").is_some());
        let queries = entry["representativeQueries"].as_array();
        assert!(queries.is_none_or(|all| (2..=5).contains(&all.len())));
    }
    let last = entries.last().unwrap();
    assert_eq!(
        (&last["type"], &last["url"]),
        (
            &json!("application/ai-registry+json"),
            &json!("https://gw.example")
        )
    );
    let weather = entries
        .iter()
        .find(|entry| entry["displayName"] == "Weather station")
        .unwrap();
    assert_eq!(weather["tags"], json!(["rain", "sun"]));
    assert_eq!(weather["capabilities"], json!(["forecast"]));
    // 304, and what a proven reader gets is kept by nobody else.
    let again =
        Request::get("/.well-known/ard.json").field("If-None-Match", ard.field("etag").unwrap());
    assert_eq!(gateway.call(&again).await.status, 304);
    let proven = gateway
        .call(&Request::get("/.well-known/ard.json").bearer(ADMIN))
        .await;
    proven.has_field("cache-control", "private, no-cache");
    assert!(proven.field("vary").unwrap().contains("Authorization"));
    // R1, R3 to R6.
    assert!(gateway.call(&Request::get("/agents")).await.json()["items"].is_array());
    for (urn, status, code) in [
        ("urn:air:gw.example:qa", 200, None),
        ("urn%3Aair%3Agw.example%3Aqa", 200, None),
        ("urn:air:gw.example:nobody", 404, Some("NOT_FOUND")),
        ("urn:air:else.example:qa", 404, Some("NOT_FOUND")),
        ("nothing", 400, Some("INVALID_ARGUMENT")),
        ("urn:air:a:b%20c", 400, Some("INVALID_ARGUMENT")),
    ] {
        let answer = gateway.call(&Request::get(format!("/agents/{urn}"))).await;
        assert_eq!(answer.status, status, "{urn}: {}", answer.text());
        assert_eq!(answer.json()["errorCode"].as_str(), code, "{urn}");
    }
    assert_eq!(
        gateway.call(&Request::post("/explore", "{}")).await.status,
        501
    );
    // A wrong credential is none.
    let refused = gateway
        .call(&Request::get("/agents").bearer("a2aw_wrong"))
        .await;
    assert_eq!(
        (refused.status, &refused.json()["errorCode"]),
        (401, &json!("UNAUTHENTICATED"))
    );
}

#[tokio::test]
async fn private_cards_are_in_no_public_catalogue() {
    let gateway = families(Pair::Embedded, "card.access=private").await;
    let set = Request::patch("/workspaces/qa", r#"{"card_access":"public"}"#);
    assert_eq!(gateway.as_operator(set).await.status, 200);
    let document = gateway
        .call(&Request::get("/.well-known/ard.json"))
        .await
        .json();
    assert_eq!(
        names(&document["entries"]),
        BTreeSet::from(["qa".to_owned()])
    );
    let found = gateway
        .call(&Request::get("/agents/urn:air:gw.example:dev"))
        .await;
    assert_eq!(found.status, 404);
}
