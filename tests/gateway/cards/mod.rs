//! Agent cards through the gateway: where they stand, what is in them, who may read them.

mod alone;
mod asking;
mod called;
mod places;
mod public;
mod shown;
mod waiting;

use serde_json::{Value, json};

use crate::answers::merged;
use crate::harness::{ADMIN, Agent, Answer, Gateway, Recorded, Request, Step, ok_json};

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
    let below = below.iter().map(|path| format!("/workspaces/{id}{path}"));
    let mut paths: Vec<String> = below.collect();
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
    let new =
        json!({"id": id, "name": format!("The {id}"), "role": "does it", "liveness": "assumed"});
    gateway.create(merged(new, &more)).await;
}

pub(crate) async fn card_of(gateway: &Gateway, id: &str) -> Answer {
    let path = format!("/workspaces/{id}/a2a/.well-known/agent-card.json");
    gateway.as_operator(Request::get(path)).await
}

pub(crate) async fn patch(gateway: &Gateway, id: &str, body: Value) {
    gateway.patch(id, body).await.has(200);
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
    let with = |more: Value| merged(common.clone(), &more);
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
    let oldest = json!({"protocolVersion": "0.2.5", "url": "http://{agent}/"});
    vec![
        ("0.2.5", with(oldest)),
        ("0.3", with(old)),
        ("1.0", with(json!({"supportedInterfaces": new}))),
        ("hybrid", with(hybrid)),
        ("snake case", snake),
    ]
}

/// Every member `url` in a list of interfaces, and the card's own; but of the gateway's interface of gRPC.
fn urls(card: &Value) -> Vec<String> {
    let lists = ["supportedInterfaces", "additionalInterfaces"].into_iter();
    let listed = lists.flat_map(|list| card[list].as_array().into_iter().flatten());
    let listed = listed.filter(|one| one["protocolBinding"] != "GRPC");
    let all = listed.map(|one| &one["url"]).chain(card.get("url"));
    all.map(|url| url.as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_location_has_the_card_and_none_names_the_agent() {
    let settings = format!("server.public_url={PUBLIC} a2a.default_workspace=target");
    let gateway = Gateway::with(&settings).await;
    let base = format!("{PUBLIC}/workspaces/target/a2a");
    add(&gateway, "target", json!({"url": "http://127.0.0.1:9/"})).await;
    for (generation, card) in generations() {
        let agent = serving("/.well-known/agent-card.json", &card).await;
        let (address, port) = (format!("127.0.0.1:{}", agent.port), agent.port.to_string());
        patch(&gateway, "target", json!({"url": agent.url()})).await;
        let whole = card_of(&gateway, "target").await;
        assert_eq!(whole.status, 200, "{generation}: {}", whole.text());
        let served = whole.json();
        let urls = urls(&served);
        assert!(!urls.is_empty(), "{generation}");
        assert!(
            urls.iter().all(|url| *url == base),
            "{generation}: {urls:?}"
        );
        assert_eq!(served["name"], card["name"]);
        assert_eq!(served.get("signatures"), None, "{generation}");
        let by_grpc = served["supportedInterfaces"]
            .as_array()
            .unwrap()
            .last()
            .unwrap();
        let expected = json!({"url": "gw.example:443", "protocolBinding": "GRPC", "protocolVersion": "1.0", "tenant": "target"});
        assert_eq!(*by_grpc, expected, "{generation}");
        assert!(!whole.text().contains("50051"), "{generation}");
        for location in locations("target") {
            let answer = gateway.as_operator(Request::get(&location)).await;
            assert_eq!(answer.status, 200, "{location}: {}", answer.text());
            // Only clients of 0.3 and before read that path.
            if location.ends_with("/agent.json") {
                let asked = Request::get(locations("target").remove(0)).field("A2A-Version", "0.3");
                let asked = gateway.as_operator(asked).await.text();
                assert_eq!(answer.text(), asked, "{generation}");
            } else {
                assert_eq!(answer.text(), whole.text(), "{generation} at {location}");
            }
            for hidden in [&address, &port, "127.0.0.1", "localhost"] {
                let text = answer.text();
                assert!(!text.contains(hidden), "{generation} at {location}: {text}");
            }
            for (name, value) in &answer.fields {
                assert!(!value.contains(&address), "{name}");
            }
            let head = Request::new("HEAD", &location).bearer(ADMIN);
            let mut connection = crate::harness::Connection::open(gateway.public).await;
            connection.send(&head.wire("127.0.0.1")).await;
            let head = connection.read_head().await.unwrap();
            assert_eq!(head.status, 200);
            head.has_field("content-length", &answer.body.len().to_string());
            assert_eq!(head.field("etag"), answer.field("etag"));
        }
        assert_eq!(agent.count(), 1, "{generation}: fetched once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_generation_is_served_in_its_own_words() {
    let settings = format!("a2a.bridge=off server.public_url={PUBLIC}");
    let gateway = Gateway::with(&settings).await;
    add(&gateway, "target", json!({"url": "http://127.0.0.1:9/"})).await;
    let base = format!("{PUBLIC}/workspaces/target/a2a");
    let old = json!({"type": "http", "scheme": "bearer"});
    let new = json!({"httpAuthSecurityScheme": {"scheme": "bearer"}});
    let both = merged(old.clone(), &new);
    for ((generation, card), (scheme, security, required)) in generations().into_iter().zip([
        (&old, true, false),
        (&old, true, false),
        (&new, false, true),
        (&both, true, true),
        (&old, true, false),
    ]) {
        let agent = serving("/.well-known/agent.json", &card).await;
        patch(&gateway, "target", json!({"url": agent.url()})).await;
        let served = card_of(&gateway, "target").await.json();
        let has = |list: &str| served[list].is_array();
        assert_eq!(served["securitySchemes"]["bearer"], *scheme, "{generation}");
        assert_eq!(served["securitySchemes"].as_object().unwrap().len(), 1);
        assert_eq!(has("security"), security, "{generation}");
        assert_eq!(has("securityRequirements"), required, "{generation}");
        if required {
            let expected = json!([
                {"url": base, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0", "tenant": "t"},
                {"url": base, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]);
            assert_eq!(served["supportedInterfaces"], expected, "{generation}");
        }
        if ["0.3", "hybrid"].contains(&generation) {
            let expected = json!([{"url": base, "transport": "JSONRPC"}, {"url": base, "transport": "HTTP+JSON"}]);
            assert_eq!(served["additionalInterfaces"], expected);
        }
        if generation == "snake case" {
            // Completed from the registry, and nothing of it is left in snake case.
            assert_eq!(served["description"], "does it");
            assert_eq!(served["protocolVersion"], "0.3.0");
            let capabilities = json!({"streaming": true, "pushNotifications": false});
            assert_eq!(served["capabilities"], capabilities);
            assert_eq!(served["skills"][0]["tags"], json!([]));
            assert!(served["version"].is_string() && has("defaultInputModes"));
            let mut names = served.as_object().unwrap().keys();
            assert!(names.all(|name| !name.contains('_')), "{served}");
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
    let settings = "card.declare_security=false a2a.push_notifications=false";
    let gateway = Gateway::with(settings).await;
    let card = json!({"name": "A", "url": "http://{agent}/", "capabilities": {"pushNotifications": true},
        "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X"}}, "security": [{"key": []}]});
    let agent = serving("/.well-known/agent-card.json", &card).await;
    add(&gateway, "target", json!({"url": agent.url()})).await;
    let served = card_of(&gateway, "target").await.json();
    let mut schemes = card["securitySchemes"].clone();
    schemes["key"]["apiKeySecurityScheme"] = json!({"location": "header", "name": "X"});
    assert_eq!(served["securitySchemes"], schemes);
    assert_eq!(served["security"], card["security"]);
    let said = |served: Value| served["capabilities"]["pushNotifications"].clone();
    assert_eq!(said(served), false);
    for set in [json!(true), json!(false), json!(null)] {
        patch(&gateway, "target", json!({"push_notifications": set})).await;
        let served = card_of(&gateway, "target").await.json();
        assert_eq!(said(served), set == true, "{set}");
    }
    let wrong = json!({"push_notifications": "no"});
    gateway.patch("target", wrong).await.has(400);
}
