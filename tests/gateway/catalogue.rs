//! The catalogue of agents (contract §21): who sees what, in the forms of AI Catalog and ARD. The checks of ARD's own
//! program, M1 to R6 of `catalogue.md` §4, are cases here.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{ADMIN, Answer, Builder, Gateway, Pair, Request, card, until_holds};
use crate::operators;
use crate::tokens::token;
use crate::{on_both_pairs, on_embedded};

const PUBLISHER: &str = "gw.example.com";
const FILES: [(&str, &str); 2] = [
    ("/.well-known/ard.json", "application/json"),
    (
        "/.well-known/ai-catalog.json",
        "application/ai-catalog+json",
    ),
];

/// Id, parent, org.
const TREE: [(&str, &str, &str); 7] = [
    ("pm", "", "acme"),
    ("dev", "pm", "acme"),
    ("qa", "pm", "acme"),
    ("bot", "dev", "acme"),
    ("rival", "", "other"),
    ("spy", "rival", "other"),
    ("open", "", "shop"),
];

struct Stage {
    gateway: Gateway,
    tokens: Vec<(&'static str, String)>,
}

impl Stage {
    async fn new(pair: Pair) -> Self {
        let builder = Builder::new(pair).set("catalog.publisher", PUBLISHER);
        let gateway = builder.start().await;
        let mut tokens = Vec::new();
        for (at, (id, parent, org)) in TREE.into_iter().enumerate() {
            let mut workspace = json!({"id": id, "name": id, "org": org});
            if !parent.is_empty() {
                workspace["parent_id"] = parent.into();
            }
            if id == "open" {
                workspace["card_access"] = "public".into();
            }
            let enrolment = gateway.create(workspace).await;
            let mut card = card(id);
            card["description"] = format!("The {id} of {org}").into();
            card["skills"] = json!([{"id": format!("{id}-weather"), "name": "Forecast", "description": "Tells rain",
                "tags": ["weather", org], "examples": ["Will it rain?", "How warm is it?"]}]);
            let url = format!("http://127.0.0.1:{}/secret-place", 9100 + at);
            let body = json!({"id": id, "agent_card": card, "url": url});
            let answer =
                operators::call(&gateway, "POST", "/registry/register", &enrolment, body).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            tokens.push((id, answer.json()["token"].as_str().unwrap().to_owned()));
        }
        Self { gateway, tokens }
    }

    fn token(&self, id: &str) -> &str {
        let found = self.tokens.iter().find(|(one, _)| *one == id);
        &found.unwrap().1
    }

    async fn ask(&self, token: Option<&str>, request: Request) -> Answer {
        match token {
            Some(token) => self.gateway.call(&request.bearer(token)).await,
            None => self.gateway.call(&request).await,
        }
    }

    async fn get(&self, token: Option<&str>, path: &str) -> Answer {
        self.ask(token, Request::get(path)).await
    }

    async fn search(&self, token: Option<&str>, body: Value) -> Answer {
        self.ask(token, Request::post("/search", body.to_string()))
            .await
    }

    /// Ids in the catalogue, in its list and in a search that each agent fits: they must agree.
    async fn seen(&self, token: Option<&str>) -> BTreeSet<String> {
        let file = self.get(token, FILES[0].0).await.has(200).json();
        let mut entries = file["entries"].as_array().unwrap().clone();
        let registry = entries.pop().unwrap();
        assert_eq!(registry["type"], "application/ai-registry+json");
        let listed = self
            .get(token, "/agents?pageSize=100")
            .await
            .has(200)
            .json();
        let found = json!({"query": {"text": "weather"}, "pageSize": 100});
        let found = self.search(token, found).await.has(200).json();
        let (catalogue, list) = (ids(&json!(entries)), ids(&listed["items"]));
        assert_eq!(catalogue, list);
        assert_eq!(catalogue, ids(&found["results"]));
        assert_eq!(listed["total"], catalogue.len());
        catalogue
    }

    /// Ids of the peers that fit, from pages of one.
    async fn peers(&self, token: &str, id: &str, query: &str) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let mut next = format!("/registry/{id}/peers?limit=1&{query}");
        loop {
            let answer = self.get(Some(token), &next).await.has(200);
            let page = answer.json();
            let page = page.as_array().unwrap().iter();
            seen.extend(page.map(|peer| peer["id"].as_str().unwrap().to_owned()));
            let Some(link) = answer.field("link") else {
                return seen;
            };
            let target = link.strip_prefix('<').unwrap();
            next = target.strip_suffix(">; rel=\"next\"").unwrap().to_owned();
        }
    }

    /// The ids that `check-access` allows the workspace.
    async fn permitted(&self, id: &str) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for (other, ..) in TREE {
            let body = json!({"caller_id": id, "target_id": other});
            let said =
                operators::call(&self.gateway, "POST", "/registry/check-access", ADMIN, body).await;
            if said.json()["allowed"] == true {
                all.insert(other.to_owned());
            }
        }
        all
    }
}

fn ids(entries: &Value) -> BTreeSet<String> {
    let entries = entries.as_array().unwrap().iter();
    let names = entries.map(|entry| entry["identifier"].as_str().unwrap());
    let own = format!("urn:air:{PUBLISHER}:");
    names
        .map(|name| name.strip_prefix(&own).unwrap().to_owned())
        .collect()
}

fn set(names: &str) -> BTreeSet<String> {
    names.split_whitespace().map(str::to_owned).collect()
}

/// M1 to M10 of ARD's program.
fn assert_manifest(document: &Value) {
    assert_eq!(document["specVersion"], "0.9");
    assert!(document.get("collections").is_none(), "M10");
    for entry in document["entries"].as_array().expect("M3") {
        let name = entry["identifier"].as_str().unwrap();
        let parts: Vec<_> = name.split(':').collect();
        let is_good = |part: &&str| {
            !part.is_empty()
                && part
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c))
        };
        assert!(
            parts.len() >= 4 && parts[..2] == ["urn", "air"] && parts[2..].iter().all(is_good),
            "M4 {name}"
        );
        assert!(
            entry["displayName"].is_string() && entry["type"].is_string(),
            "M5 {entry}"
        );
        let known = [
            "application/a2a-agent-card+json",
            "application/ai-registry+json",
            "application/ai-catalog+json",
        ];
        assert!(
            known.contains(&entry["type"].as_str().unwrap()),
            "M6 {entry}"
        );
        assert!(
            entry["url"].is_string() && entry.get("data").is_none(),
            "M7 {entry}"
        );
        let queries = entry["representativeQueries"].as_array().expect("M8");
        assert!(
            (2..=5).contains(&queries.len()) && queries.iter().all(Value::is_string),
            "M8"
        );
        assert!(entry.get("trustManifest").is_none(), "M9");
    }
}

fn assert_ard_error(answer: &Answer, status: u16, code: &str) {
    let body = answer.json();
    assert_eq!(
        (answer.status, &body["errorCode"]),
        (status, &json!(code)),
        "{body}"
    );
    assert!(
        body["message"].is_string() && body["reason"].is_string() && body["error"].is_string(),
        "{body}"
    );
}

on_both_pairs! {
    async fn a_catalogue_has_those_whom_its_caller_may_call(pair: Pair) {
        let stage = Stage::new(pair).await;
        for (id, token) in &stage.tokens {
            assert_eq!(stage.seen(Some(token)).await, stage.permitted(id).await, "{id}");
        }
        assert_eq!(stage.seen(None).await, set("open"));
        assert_eq!(stage.seen(Some(ADMIN)).await.len(), TREE.len());
        let canvas = token(&stage.gateway, "/canvas/tokens", r#"{"user":"ada","org":"acme"}"#).await;
        assert_eq!(stage.seen(Some(&canvas)).await, set("bot dev pm qa"));
        let listed = token(&stage.gateway, "/canvas/tokens", r#"{"user":"bob","workspaces":["spy"]}"#).await;
        assert_eq!(stage.seen(Some(&listed)).await, set("spy"));

        // A grant adds an agent, and its end takes it away.
        let spy = stage.token("spy");
        let before = stage.seen(Some(spy)).await;
        let grant = json!({"caller_id": "spy", "target_id": "bot"});
        let grant = operators::call(&stage.gateway, "POST", "/grants", ADMIN, grant).await.has(201).json();
        until_holds("the grant", async || stage.seen(Some(spy)).await.contains("bot")).await;
        let path = format!("/grants/{}", grant["id"].as_str().unwrap());
        operators::call(&stage.gateway, "DELETE", &path, ADMIN, Value::Null).await.has(200);
        until_holds("its end", async || stage.seen(Some(spy)).await == before).await;

        // Peers fit by skill and mode, within what the caller may call.
        let pm = stage.token("pm");
        for (query, found) in [
            ("skill=dev-wea", "dev"),
            ("skill=RAIN+forecast", "dev qa"),
            ("skill=weather&q=qa", "qa"),
            ("skill=weather+nothing", ""),
            ("skill=spy-weather", ""),
            ("skill=%21", ""),
            ("skill=+&mode=", "dev qa"),
            ("mode=Text/Plain&skill=acme", "dev qa"),
            ("mode=text", ""),
        ] {
            assert_eq!(stage.peers(pm, "pm", query).await, set(found), "{query}");
        }
        assert_eq!(stage.peers(ADMIN, "pm", "skill=weather").await, set("dev qa"));
        stage.get(Some(pm), "/registry/pm/peers?skill=%07").await.has(400);
        stage.get(Some(pm), "/registry/pm/peers?mode=a&mode=b").await.has(400);
        stage.get(Some(pm), "/registry/dev/peers?skill=weather").await.has(403);

        // A stop hides what it refuses; a pause does not.
        let stop = json!({"scope": {"workspace": "qa"}, "mode": "new", "reason": "loops"});
        operators::call(&stage.gateway, "POST", "/stops", ADMIN, stop).await.has(201);
        let dev = stage.token("dev");
        until_holds("the stop", async || stage.seen(Some(dev)).await == set("bot dev pm")).await;
        operators::call(&stage.gateway, "POST", "/workspaces/pm/pause", ADMIN, Value::Null).await.has(200);
        assert_eq!(stage.seen(Some(dev)).await, set("bot dev pm"));
    }
}

on_embedded! {
    async fn the_two_files_pass_the_checks_of_manifests() {
        let stage = Stage::new(Pair::Embedded).await;
        let pm = stage.token("pm");
        for token in [None, Some(pm), Some(ADMIN)] {
            let mut bodies = Vec::new();
            for (path, media) in FILES {
                let answer = stage.get(token, path).await.has(200);
                assert_eq!(answer.field("content-type"), Some(media));
                let kept = if token.is_some() { "private, no-cache" } else { "public, max-age=60" };
                assert_eq!(answer.field("cache-control"), Some(kept));
                assert!(answer.field("vary").unwrap().contains("Authorization"));
                assert_manifest(&answer.json());
                let tag = answer.field("etag").unwrap();
                let again = Request::get(path).field("If-None-Match", tag);
                assert_eq!(stage.ask(token, again).await.status, 304);
                bodies.push(answer.body);
            }
            assert_eq!(bodies[0], bodies[1]);
            // What was left out is nowhere: no URL of an agent.
            assert!(!String::from_utf8_lossy(&bodies[0]).contains("secret-place"));
        }
        let entry = &stage.get(None, FILES[0].0).await.json()["entries"][0];
        assert_eq!(entry["identifier"], "urn:air:gw.example.com:open");
        assert_eq!(entry["capabilities"], json!(["open-weather"]));
        assert_eq!(entry["tags"], json!(["weather", "shop"]));
        assert!(entry["url"].as_str().unwrap().ends_with("/workspaces/open/a2a/.well-known/agent-card.json"));
        assert_eq!(stage.get(Some("a2aw_wrong"), FILES[0].0).await.status, 401);
        assert_eq!(stage.get(Some(pm), "/.well-known/ard.json?page=2").await.status, 400);
    }

    async fn over_a_thousand_agents_are_in_nested_catalogues() {
        let gateway = Builder::new(Pair::Embedded).set("catalog.publisher", PUBLISHER).start().await;
        let all: BTreeSet<String> = (0..2_100).map(|n| format!("agent-{n:04}")).collect();
        let workspaces: Vec<_> = all.iter().map(|id| json!({"id": id, "name": id, "org": "acme"})).collect();
        let policy = json!({"version": 1, "workspaces": workspaces});
        operators::call(&gateway, "POST", "/policy", ADMIN, policy).await.has(200);
        let org = token(&gateway, "/canvas/tokens", r#"{"user":"ada","org":"acme"}"#).await;
        let foreign = token(&gateway, "/canvas/tokens", r#"{"user":"eve","org":"other"}"#).await;
        for token in [ADMIN, &org] {
            let root = gateway.call(&Request::get(FILES[1].0).bearer(token)).await.has(200).json();
            let entries = root["entries"].as_array().unwrap();
            let (nested, own) = entries.split_at(entries.len() - 1);
            assert_eq!(own[0]["type"], "application/ai-registry+json");
            let mut seen = BTreeSet::new();
            for entry in nested {
                assert_eq!(entry["type"], "application/ai-catalog+json", "{entry}");
                let (_, path) = entry["url"].as_str().unwrap().split_once("/.well-known/").unwrap();
                let path = format!("/.well-known/{path}");
                let part = gateway.call(&Request::get(&path).bearer(token)).await.has(200).json();
                let found = ids(&part["entries"]);
                assert!((1..=1_000).contains(&found.len()), "{path}: {}", found.len());
                assert!(found.is_disjoint(&seen), "{path}");
                seen.extend(found);
                // A link gives a stranger nothing.
                let other = gateway.call(&Request::get(&path).bearer(&foreign)).await.has(200).json();
                assert_eq!(other["entries"], json!([]));
            }
            assert_eq!((nested.len(), &seen), (3, &all));
        }
    }

    async fn a_search_passes_the_checks_of_registries() {
        let stage = Stage::new(Pair::Embedded).await;
        let pm = Some(stage.token("pm"));
        for token in [None, pm, Some(ADMIN)] {
            // R1, R2
            assert!(stage.get(token, "/agents").await.has(200).json()["items"].is_array());
            let body = json!({"query": {"text": "MCP weather tools"}, "federation": "none", "pageSize": 2});
            let found = stage.search(token, body).await.has(200).json();
            let results = found["results"].as_array().unwrap();
            assert!(!results.is_empty() && results.len() <= 2);
            for result in results {
                assert!((1..=100).contains(&result["score"].as_i64().unwrap()));
                assert!(result["source"].as_str().unwrap().starts_with("http"));
                assert!(result["identifier"].is_string() && result.get("representativeQueries").is_none());
            }
            // R3, with the name encoded and as it is
            for name in ["urn:air:gw.example.com:open", "urn%3Aair%3Agw.example.com%3Aopen"] {
                let path = format!("/agents/{name}");
                let answer = stage.get(token, &path).await;
                let sees = token != pm;
                assert_eq!(answer.status, if sees { 200 } else { 404 }, "{}", answer.text());
                if sees {
                    assert_eq!(answer.json()["identifier"], "urn:air:gw.example.com:open");
                    assert!(answer.json().get("score").is_none());
                }
            }
            // R4: what is hidden is as what is not there.
            for name in ["urn:air:gw.example.com:nobody", "urn:air:elsewhere.example:open", "urn:air:gw.example.com:a:b"] {
                assert_ard_error(&stage.get(token, &format!("/agents/{name}")).await, 404, "NOT_FOUND");
            }
            // R5
            for name in ["nonsense", "urn:air:", "urn:air:gw.example.com"] {
                assert_ard_error(&stage.get(token, &format!("/agents/{name}")).await, 400, "INVALID_ARGUMENT");
            }
            // R6
            let explored = stage.ask(token, Request::post("/explore", "{}")).await;
            assert_eq!(explored.status, 501);
        }
        let hidden = stage.get(pm, "/agents/urn:air:gw.example.com:spy").await.json();
        let unknown = stage.get(pm, "/agents/urn:air:gw.example.com:nobody").await.json();
        assert_eq!(hidden["error"], unknown["error"]);
        assert_ard_error(&stage.get(Some("a2aw_wrong"), "/agents").await, 401, "UNAUTHENTICATED");
    }

    async fn a_search_ranks_filters_and_refuses_what_is_not_one() {
        let stage = Stage::new(Pair::Embedded).await;
        let pm = Some(stage.token("pm"));
        for (query, found) in [
            (json!({"text": "dev"}), "dev"),
            (json!({"text": "DEV-wea"}), "dev qa bot pm"),
            (json!({"text": "fore"}), "dev pm qa"),
            (json!({"text": "nothing!"}), ""),
            (json!({"text": "weather", "filter": {"capabilities": ["qa-weather", "spy-weather"]}}), "qa"),
            (json!({"text": "weather", "filter": {"tags": "other"}}), ""),
            (json!({"text": "rain", "filter": {"publisher": PUBLISHER, "displayName": "pm"}}), "pm"),
        ] {
            let answer = stage.search(pm, json!({"query": query})).await.has(200).json();
            let seen = ids(&answer["results"]);
            let wanted: BTreeSet<_> = set(found).into_iter().filter(|id| id != "bot").collect();
            assert_eq!(seen, wanted, "{query}");
        }
        let first = stage.search(pm, json!({"query": {"text": "qa"}})).await.json();
        assert_eq!(first["results"][0]["score"], 100);
        for body in [
            json!({}),
            json!({"query": {}}),
            json!({"query": {"text": "  "}}),
            json!({"query": {"text": "a"}, "federation": "all"}),
            json!({"query": {"text": "a"}, "pageSize": 0}),
            json!({"query": {"text": "a"}, "pageToken": "x"}),
            json!({"query": {"text": "a", "filter": {"skills": "x"}}}),
            json!({"query": {"text": "a", "filter": {"tags": 7}}}),
        ] {
            assert_ard_error(&stage.search(pm, body).await, 400, "INVALID_ARGUMENT");
        }
        for path in ["/agents?filter=skill=x", "/agents?orderBy=size", "/agents?pageSize=0", "/agents?q=x"] {
            assert_ard_error(&stage.get(pm, path).await, 400, "INVALID_ARGUMENT");
        }
        let path = "/agents?filter=type%3D%22application/a2a-agent-card%2Bjson%22%20AND%20publisherId%3D%22gw.example.com%22";
        assert_eq!(ids(&stage.get(pm, path).await.has(200).json()["items"]), set("dev pm qa"));
    }

    async fn pages_of_a_search_belong_to_their_caller_and_query() {
        let stage = Stage::new(Pair::Embedded).await;
        let pm = Some(stage.token("pm"));
        let ask = |text: &str, page: Option<&str>| {
            let mut body = json!({"query": {"text": text}, "pageSize": 2});
            if let Some(page) = page {
                body["pageToken"] = page.into();
            }
            body
        };
        let one = stage.search(pm, ask("weather", None)).await.has(200).json();
        let page = one["pageToken"].as_str().unwrap();
        let two = stage.search(pm, ask("weather", Some(page))).await.has(200).json();
        let mut all = ids(&one["results"]);
        all.extend(ids(&two["results"]));
        assert_eq!(all, set("dev pm qa"));
        assert!(two.get("pageToken").is_none());
        let bent = format!("1{page}");
        let dev = Some(stage.token("dev"));
        for (token, text, page) in [(dev, "weather", page), (None, "weather", page), (pm, "rain", page), (pm, "weather", &*bent)] {
            assert_ard_error(&stage.search(token, ask(text, Some(page))).await, 400, "INVALID_ARGUMENT");
        }
        let listed = stage.get(pm, "/agents?pageSize=2").await.has(200).json();
        assert_eq!((listed["total"].clone(), listed["items"].as_array().unwrap().len()), (json!(3), 2));
        let next = format!("/agents?pageSize=2&pageToken={}", listed["pageToken"].as_str().unwrap());
        assert_eq!(ids(&stage.get(pm, &next).await.has(200).json()["items"]).len(), 1);
        assert_ard_error(&stage.get(dev, &next).await, 400, "INVALID_ARGUMENT");
    }
}
