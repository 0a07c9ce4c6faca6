//! Agent cards through the gateway: where they stand, what is in them, who may read them.

mod alone;
mod asking;
mod called;
mod places;
mod public;
mod shown;
mod waiting;

use serde_json::{Value, json};

use crate::harness::{
    ADMIN, Agent, Answer, Builder, Gateway, Pair, Recorded, Request, Step, ok_json,
};

/// What callers use, wherever the gateway listens.
const PUBLIC: &str = "https://gw.example/agents";

/// Where a card of workspace `id` stands.
fn locations(id: &str) -> Vec<String> {
    let below = [
        "/a2a",
        "/a2a/",
        "/a2a/.well-known/agent-card.json",
        "/a2a/.well-known/agent.json",
        "/.well-known/agent-card.json",
        "/.well-known/agent.json",
    ];
    let mut paths: Vec<String> = below
        .iter()
        .map(|path| format!("/workspaces/{id}{path}"))
        .collect();
    paths.push("/.well-known/agent-card.json".into());
    paths
}

/// Answers a GET of `path` with `card`, in which `{agent}` is the agent's own address, and everything
/// else with 404.
pub(crate) async fn serving(path: &'static str, card: &Value) -> Agent {
    let card = card.to_string();
    Agent::scripted(move |request| vec![Step::Write(served(request, path, &card))]).await
}

fn served(request: &Recorded, path: &str, card: &str) -> Vec<u8> {
    if asked_for(request) != path {
        let body = r#"{"detail":"Not Found"}"#;
        let head = "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length";
        return format!("{head}: {}\r\n\r\n{body}", body.len()).into_bytes();
    }
    ok_json(&card.replace("{agent}", request.field("host").unwrap()))
}

/// The path that was asked for.
fn asked_for(request: &Recorded) -> &str {
    request.head.split(' ').nth(1).unwrap()
}

/// A workspace that an operator adds, of an agent that knows of no registry.
pub(crate) async fn add(gateway: &Gateway, id: &str, more: Value) {
    let mut workspace =
        json!({"id": id, "name": format!("The {id}"), "role": "does it", "liveness": "assumed"});
    workspace
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    gateway.create(workspace).await;
}

pub(crate) async fn card_of(gateway: &Gateway, id: &str) -> Answer {
    let path = format!("/workspaces/{id}/a2a/.well-known/agent-card.json");
    gateway.as_operator(Request::get(path)).await
}

pub(crate) async fn patch(gateway: &Gateway, id: &str, body: Value) {
    let mut request = Request::post(format!("/workspaces/{id}"), body.to_string());
    request.method = "PATCH".into();
    let answer = gateway.as_operator(request).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Cards as agents of each generation have them.
pub(crate) fn generations() -> Vec<(&'static str, Value)> {
    let common = json!({"name": "A", "description": "Runs at http://{agent}/ in room 1", "version": "1",
        "capabilities": {"streaming": true, "pushNotifications": true,
            "extensions": [{"uri": "https://ext.example/1", "params": {"at": "{agent}", "http://{agent}/x": 1.10}}]},
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        "documentationUrl": "http://{agent}/docs", "iconUrl": "https://cdn.example/i.png",
        "provider": {"organization": "O", "url": "http://{agent}"},
        "signatures": [{"protected": "e30", "signature": "AA"}],
        "skills": [{"id": "s", "name": "S", "description": "d", "tags": [], "examples": ["curl {agent}"]}]});
    let with = |more: Value| {
        let mut card = common.clone();
        card.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        card
    };
    let new = json!([{"url": "http://{agent}/a2a/rest", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0", "tenant": "t"},
        {"url": "{agent}", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
        {"url": "http://{agent}/a2a/jsonrpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]);
    let old = json!({"protocolVersion": "0.3.0", "url": "http://{agent}/", "preferredTransport": "JSONRPC",
        "additionalInterfaces": [{"url": "http://{agent}/", "transport": "JSONRPC"}, {"url": "http://{agent}/v1", "transport": "HTTP+JSON"},
            {"url": "127.0.0.1:50051", "transport": "GRPC"}]});
    let mut hybrid = old.clone();
    hybrid["supportedInterfaces"] = new.clone();
    let snake = json!({"name": "PocketPaw", "url": "http://{agent}/a2a", "protocol_version": "0.2.5", "preferred_transport": "JSONRPC",
        "default_input_modes": ["text"], "default_output_modes": ["text"], "documentation_url": "http://{agent}/docs",
        "capabilities": {"streaming": true, "push_notifications": false},
        "skills": [{"id": "chat", "name": "Chat", "description": "at http://{agent}"}]});
    vec![
        (
            "0.2.5",
            with(json!({"protocolVersion": "0.2.5", "url": "http://{agent}/"})),
        ),
        ("0.3", with(old)),
        ("1.0", with(json!({"supportedInterfaces": new}))),
        ("hybrid", with(hybrid)),
        ("snake case", snake),
    ]
}

/// Every member `url` in a list of interfaces, and the card's own.
fn urls(card: &Value) -> Vec<String> {
    let lists = ["supportedInterfaces", "additionalInterfaces"];
    let listed = lists
        .iter()
        .flat_map(|list| card[list].as_array().into_iter().flatten());
    let all = listed.map(|one| &one["url"]).chain(card.get("url"));
    all.map(|url| url.as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_location_has_the_card_and_none_names_the_agent() {
    let gateway = Builder::new(Pair::Embedded)
        .set("server.public_url", PUBLIC)
        .set("a2a.default_workspace", "target")
        .start()
        .await;
    let base = format!("{PUBLIC}/workspaces/target/a2a");
    let mut first = true;
    for (generation, card) in generations() {
        let agent = serving("/.well-known/agent-card.json", &card).await;
        let address = format!("127.0.0.1:{}", agent.port);
        if first {
            add(&gateway, "target", json!({"url": agent.url()})).await;
        } else {
            patch(&gateway, "target", json!({"url": agent.url()})).await;
        }
        first = false;
        let whole = card_of(&gateway, "target").await;
        assert_eq!(whole.status, 200, "{generation}: {}", whole.text());
        let served = whole.json();
        assert!(!urls(&served).is_empty(), "{generation}");
        assert!(
            urls(&served).iter().all(|url| *url == base),
            "{generation}: {served}"
        );
        assert_eq!(served["name"], card["name"]);
        assert_eq!(served.get("signatures"), None, "{generation}");
        assert!(
            !whole.text().contains("GRPC") && !whole.text().contains("50051"),
            "{generation}"
        );
        for location in locations("target") {
            let answer = gateway.as_operator(Request::get(&location)).await;
            assert_eq!(answer.status, 200, "{location}: {}", answer.text());
            // Only clients of 0.3 and before read that path.
            if location.ends_with("/agent.json") {
                let asked = Request::get(locations("target").remove(0)).field("A2A-Version", "0.3");
                assert_eq!(
                    answer.text(),
                    gateway.as_operator(asked).await.text(),
                    "{generation}"
                );
            } else {
                assert_eq!(answer.text(), whole.text(), "{generation} at {location}");
            }
            for hidden in [&address, &agent.port.to_string(), "127.0.0.1", "localhost"] {
                assert!(
                    !answer.text().contains(hidden),
                    "{generation} at {location}: {}",
                    answer.text()
                );
            }
            for (name, value) in &answer.fields {
                assert!(!value.contains(&address), "{name}");
            }
            let mut head = Request::get(&location);
            head.method = "HEAD".into();
            let mut connection = crate::harness::Connection::open(gateway.public).await;
            connection
                .send(&head.bearer(ADMIN).wire(&gateway.public.to_string()))
                .await;
            let head = connection.read_head().await.unwrap();
            assert_eq!(head.status, 200);
            assert_eq!(
                head.field("content-length"),
                Some(answer.body.len().to_string().as_str())
            );
            assert_eq!(head.field("etag"), answer.field("etag"));
        }
        assert_eq!(agent.count(), 1, "{generation}: fetched once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_generation_is_served_in_its_own_words() {
    let gateway = Builder::new(Pair::Embedded)
        .set("a2a.bridge", "off")
        .set("server.public_url", PUBLIC)
        .start()
        .await;
    let base = format!("{PUBLIC}/workspaces/target/a2a");
    let old = json!({"type": "http", "scheme": "bearer"});
    let new = json!({"httpAuthSecurityScheme": {"scheme": "bearer"}});
    let both =
        json!({"type": "http", "scheme": "bearer", "httpAuthSecurityScheme": {"scheme": "bearer"}});
    for ((generation, card), (scheme, security, required)) in generations().into_iter().zip([
        (&old, true, false),
        (&old, true, false),
        (&new, false, true),
        (&both, true, true),
        (&old, true, false),
    ]) {
        let agent = serving("/.well-known/agent.json", &card).await;
        if generation == "0.2.5" {
            add(&gateway, "target", json!({"url": agent.url()})).await;
        } else {
            patch(&gateway, "target", json!({"url": agent.url()})).await;
        }
        let served = card_of(&gateway, "target").await.json();
        assert_eq!(
            served["securitySchemes"],
            json!({"bearer": scheme}),
            "{generation}"
        );
        assert_eq!(served["security"].is_array(), security, "{generation}");
        assert_eq!(
            served["securityRequirements"].is_array(),
            required,
            "{generation}"
        );
        if required {
            assert_eq!(
                served["supportedInterfaces"],
                json!([
                {"url": base, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0", "tenant": "t"},
                {"url": base, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]),
                "{generation}"
            );
        }
        if ["0.3", "hybrid"].contains(&generation) {
            assert_eq!(
                served["additionalInterfaces"],
                json!([{"url": base, "transport": "JSONRPC"}, {"url": base, "transport": "HTTP+JSON"}])
            );
        }
        if generation == "snake case" {
            // Completed from the registry, and nothing of it is left in snake case.
            assert_eq!(served["description"], "does it");
            assert_eq!(served["protocolVersion"], "0.3.0");
            assert_eq!(
                served["capabilities"],
                json!({"streaming": true, "pushNotifications": false})
            );
            assert_eq!(served["skills"][0]["tags"], json!([]));
            assert!(served["version"].is_string() && served["defaultInputModes"].is_array());
            assert!(
                served
                    .as_object()
                    .unwrap()
                    .keys()
                    .all(|name| !name.contains('_')),
                "{served}"
            );
        } else {
            assert_eq!(served["iconUrl"], "https://cdn.example/i.png");
            assert_eq!(served.get("documentationUrl"), None);
            assert_eq!(served["capabilities"]["pushNotifications"], true);
        }
        drop(agent);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switches_show_in_the_card() {
    let gateway = Builder::new(Pair::Embedded)
        .set("card.declare_security", "false")
        .set("a2a.push_notifications", "false")
        .start()
        .await;
    let card = json!({"name": "A", "url": "http://{agent}/", "capabilities": {"pushNotifications": true},
        "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X"}}, "security": [{"key": []}]});
    let agent = serving("/.well-known/agent-card.json", &card).await;
    add(&gateway, "target", json!({"url": agent.url()})).await;
    let served = card_of(&gateway, "target").await.json();
    assert_eq!(
        (&served["securitySchemes"], &served["security"]),
        (&card["securitySchemes"], &card["security"])
    );
    let said = |served: Value| served["capabilities"]["pushNotifications"].clone();
    assert_eq!(said(served), false);
    for (set, expected) in [
        (json!(true), true),
        (json!(false), false),
        (json!(null), false),
    ] {
        patch(&gateway, "target", json!({"push_notifications": set})).await;
        assert_eq!(
            said(card_of(&gateway, "target").await.json()),
            expected,
            "{set}"
        );
    }
    let mut wrong = Request::post("/workspaces/target", r#"{"push_notifications":"no"}"#);
    wrong.method = "PATCH".into();
    assert_eq!(gateway.as_operator(wrong).await.status, 400);
}
