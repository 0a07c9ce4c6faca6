//! Agents that an operator knows by their card alone: a `card_url` and no `url` (contract §8.1).

use serde_json::{Value, json};

use super::{add, asked_for, card_of, locations, patch, served};
use crate::harness::{Agent, Answer, Builder, CALL, Gateway, Pair, Request, Step, card, ok_json};

/// Where the card is, and nothing else.
const CARD: &str = "/cards/mine.json?v=1";

/// An agent that has its card there, and answers whatever else it is asked.
async fn known_by(card: Value) -> Agent {
    let card = card.to_string();
    Agent::scripted(move |request| {
        if request.head.starts_with("GET /cards/") {
            return vec![Step::Write(served(request, CARD, &card))];
        }
        let result = r#"{"jsonrpc":"2.0","id":"c-1","result":{"kind":"task","id":"t-1"}}"#;
        vec![Step::Write(ok_json(result))]
    })
    .await
}

fn card_url(agent: &Agent) -> String {
    format!("{}{}", agent.url(), &CARD[1..])
}

/// The paths at which the agent was called, its card left out.
fn called(agent: &Agent) -> Vec<String> {
    let requests = agent.requests();
    let calls = requests.iter().filter(|one| one.head.starts_with("POST "));
    calls.map(|call| asked_for(call).to_owned()).collect()
}

async fn send(gateway: &Gateway, id: &str, body: &str) -> Answer {
    let request = Request::post(format!("/workspaces/{id}/a2a"), body);
    gateway.as_operator(request).await
}

/// Cards of every generation, with where each takes calls: of 0.x, of 1.0, by HTTP+JSON.
fn cards() -> Vec<(&'static str, Value, [&'static str; 2], Option<&'static str>)> {
    let old = json!({"name": "A", "protocolVersion": "0.3.0", "url": "http://{agent}/rest/", "preferredTransport": "HTTP+JSON",
        "additionalInterfaces": [{"url": "http://{agent}/rest/", "transport": "HTTP+JSON"}, {"url": "http://elsewhere.test:1/rpc/", "transport": "JSONRPC"}]});
    let new = json!([{"url": "{agent}", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
        {"url": "http://{agent}/v1/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]);
    let mut hybrid = old.clone();
    hybrid["supportedInterfaces"] = new.clone();
    let oldest = json!({"name": "A", "url": "http://{agent}/"});
    let new = json!({"name": "A", "supportedInterfaces": new});
    let snake = json!({"name": "A", "url": "http://{agent}/a2a", "protocol_version": "0.2.5", "preferred_transport": "JSONRPC"});
    let rest = Some("/rest/v1/tasks/t-1");
    vec![
        ("0.2", oldest, ["/", "/"], None),
        ("0.3", old, ["/rpc/", "/rpc/"], rest),
        ("1.0", new, ["/v1/rpc", "/v1/rpc"], None),
        ("both", hybrid, ["/rpc/", "/v1/rpc"], rest),
        ("PocketPaw", snake, ["/a2a", "/a2a"], None),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_tells_where_calls_go() {
    let gateway = Gateway::start(Pair::Embedded).await;
    for (at, (what, card, [old, new], rest)) in cards().into_iter().enumerate() {
        let (id, agent) = (format!("target{at}"), known_by(card).await);
        let auth = ["Bearer s3cret-of-the-agent"];
        let known = json!({"card_url": card_url(&agent), "upstream_auth": "s3cret-of-the-agent"});
        add(&gateway, &id, known).await;
        let path = |tail: &str| format!("/workspaces/{id}{tail}");
        let seen = gateway.read(&path("")).await;
        assert_eq!(seen["status"], "online", "{what}");
        assert_eq!(seen["url"], Value::Null, "{what}");
        // Calls of either generation, as they come.
        let modern = CALL.replace("message/send", "SendMessage");
        for (call, expected) in [(CALL, old), (&modern, new)] {
            let answer = send(&gateway, &id, call).await;
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
            let taken = agent.take();
            assert_eq!(asked_for(&taken), expected, "{what}");
            assert_eq!(taken.fields("authorization"), auth);
            assert_eq!(taken.fields("host"), [format!("127.0.0.1:{}", agent.port)]);
        }
        // Calls that are put together, in the words of its generation.
        let (method, expected) = if what == "1.0" {
            ("SendMessage", new)
        } else {
            ("message/send", old)
        };
        let bare = send(&gateway, &id, r#"{"message":{"text":"hi"}}"#).await;
        assert_eq!(bare.status, 200, "{what}");
        let taken = agent.take();
        let call: Value = serde_json::from_slice(&taken.body).unwrap();
        assert_eq!(asked_for(&taken), expected, "{what}");
        assert_eq!(call["method"].as_str(), Some(method), "{what}");
        // Routes below the base: translated, or where it speaks HTTP+JSON itself.
        let (tail, expected) = match rest {
            Some(raw) => ("/a2a/v1/tasks/t-1", raw),
            None => ("/a2a/tasks/t-1", expected),
        };
        let answer = gateway.as_operator(Request::get(path(tail))).await;
        assert_eq!(answer.status, 200, "{what}: {}", answer.text());
        assert_eq!(asked_for(&agent.take()), expected, "{what}");
        // One fetch for all of it, and the card is where cards are.
        let port = agent.port.to_string();
        let own = locations(&id).into_iter();
        for location in own.filter(|at| at.starts_with("/workspaces/")) {
            let answer = gateway.as_operator(Request::get(&location)).await;
            let text = answer.text();
            assert_eq!(answer.status, 200, "{what} at {location}: {text}");
            assert!(!text.contains(&port), "{what} at {location}");
        }
        let cards = agent.requests().into_iter();
        let cards: Vec<_> = cards.filter(|one| asked_for(one) == CARD).collect();
        assert_eq!(cards.len(), 1, "{what}");
        assert_eq!(cards[0].fields("authorization"), auth, "{what}");
        // Whoever asks for its place is sent to the gateway.
        let found = gateway.read(&format!("/registry/discover/{id}")).await;
        assert_eq!(found["url"], Value::Null, "{what}");
        let proxy = found["proxy_url"].as_str().unwrap();
        assert!(proxy.ends_with(&path("/a2a")), "{what}");
    }
    gateway.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_card_nothing_is_sent_and_the_caller_learns_why() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let hasty = Builder::new(Pair::Embedded).set("timeouts.total", "1s");
    let hasty = hasty.start().await;
    let ok = |body: Value| vec![Step::Write(ok_json(&body.to_string()))];
    let none = "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n";
    let other = json!([{"url": "amqp://a", "protocolBinding": "AMQP", "protocolVersion": "1.0"}]);
    let rows = [
        ("no card", vec![Step::write(none)]),
        ("no JSON", vec![Step::Write(ok_json("<html>"))]),
        ("no interface", ok(json!({"name": "A"}))),
        (
            "no JSON-RPC",
            ok(json!({"name": "A", "supportedInterfaces": other})),
        ),
        ("no URL", ok(json!({"name": "A", "url": "here"}))),
        ("silence", vec![Step::Hang]),
    ];
    for (at, (what, steps)) in rows.into_iter().enumerate() {
        let (gateway, status, reason) = match what {
            "silence" => (&hasty, 504, "agent_timeout"),
            _ => (&gateway, 502, "agent_protocol_error"),
        };
        let agent = Agent::scripted(move |_| steps.clone()).await;
        let id = format!("t{at}");
        add(gateway, &id, json!({"card_url": card_url(&agent)})).await;
        let get = Request::get(format!("/workspaces/{id}/a2a/tasks/t-1"));
        for answer in [
            send(gateway, &id, CALL).await,
            send(gateway, &id, r#"{"message":{"text":"hi"}}"#).await,
            gateway.as_operator(get).await,
        ] {
            answer.refuses_for(&what, status, reason);
            answer.tells_for(&what, "delivered", "false");
        }
        let asked = agent.requests();
        assert!(asked.iter().all(|request| asked_for(request) == CARD));
    }
    // Nobody there.
    let gone = known_by(json!({"name": "A", "url": "http://{agent}/"})).await;
    add(&gateway, "gone", json!({"card_url": card_url(&gone)})).await;
    drop(gone);
    let answer = send(&gateway, "gone", CALL).await;
    answer.refuses(502, "agent_unreachable");
    // A card that an operator handed in stands in for the one that cannot be read.
    let none = "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n";
    let mute = super::places::failing(vec![Step::write(none)]).await;
    add(&gateway, "mute", json!({"card_url": card_url(&mute)})).await;
    let mut handed = card("mute");
    handed["url"] = "http://nowhere.test/handed/in".into();
    let body = json!({"workspace_id": "mute", "agent_card": handed});
    gateway.post("/registry/update-card", body).await.has(200);
    assert_eq!(send(&gateway, "mute", CALL).await.status, 200);
    assert_eq!(called(&mute), ["/handed/in"]);
    gateway.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_url_or_card_url_counts_at_once() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let one = known_by(json!({"name": "A", "url": "http://{agent}/one"})).await;
    let two = known_by(json!({"name": "B", "url": "http://{agent}/two"})).await;
    add(&gateway, "target", json!({"card_url": card_url(&one)})).await;
    let goes_to = async |agent: &Agent, path: &str| {
        let before = called(agent).len();
        send(&gateway, "target", CALL).await.has(200);
        assert_eq!(called(agent)[before..], [path]);
    };
    goes_to(&one, "/one").await;
    patch(&gateway, "target", json!({"card_url": card_url(&two)})).await;
    goes_to(&two, "/two").await;
    // A URL is the agent's own word, and comes first.
    let url = format!("{}own/path", one.url());
    patch(&gateway, "target", json!({"url": url})).await;
    goes_to(&one, "/own/path").await;
    assert_eq!(card_of(&gateway, "target").await.json()["name"], "B");
    patch(&gateway, "target", json!({"url": null})).await;
    goes_to(&two, "/two").await;
    // It cannot be left with neither, nor wait for heartbeats with a card alone.
    for body in [
        json!({"card_url": null}),
        json!({"card_url": null, "url": null}),
        json!({"liveness": "heartbeat"}),
    ] {
        let answer = gateway.patch("target", body.clone()).await;
        answer.refuses_for(&body, 400, "invalid_params");
    }
    goes_to(&two, "/two").await;
    patch(&gateway, "target", json!({"card_url": null, "url": url})).await;
    goes_to(&one, "/own/path").await;
    // Out and back, like any other.
    let back = json!({"card_url": card_url(&two), "url": null});
    patch(&gateway, "target", back).await;
    let post =
        |verb: &str| gateway.as_operator(Request::post(format!("/workspaces/target/{verb}"), "{}"));
    post("pause").await.has(200);
    let paused = send(&gateway, "target", CALL).await;
    paused.gives("workspace_offline");
    assert_eq!(post("resume").await.json()["status"], "online");
    goes_to(&two, "/two").await;
    // One that is to register waits for that, whatever its card says.
    let late = json!({"id": "late", "name": "late", "card_url": card_url(&one)});
    gateway.create(late).await;
    let late = send(&gateway, "late", CALL).await;
    late.gives("workspace_restarting");
    patch(&gateway, "late", json!({"liveness": "assumed"})).await;
    assert_eq!(send(&gateway, "late", CALL).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_card_sends_a_call_where_the_policy_would_not_go() {
    let agent = known_by(json!({"name": "A", "url": "http://{agent}/rpc"})).await;
    let start = async |trusted: &str| {
        let settings = format!("address.profile=strict trusted_agents={trusted}");
        Gateway::with(&settings).await
    };
    // Trusted at the card's path only: another path is another agent.
    let gateway = start(&format!("{}cards", agent.url())).await;
    add(&gateway, "target", json!({"card_url": card_url(&agent)})).await;
    assert_eq!(card_of(&gateway, "target").await.status, 200);
    let answer = send(&gateway, "target", CALL).await;
    answer.refuses(502, "address_forbidden");
    assert_eq!(called(&agent), [""; 0]);
    let other = json!({"id": "other", "name": "other", "liveness": "assumed", "card_url": "http://127.0.0.1:9/"});
    let refused = gateway.post("/workspaces", other).await;
    refused.gives("address_forbidden");
    drop(gateway);
    let gateway = start(&agent.url()).await;
    add(&gateway, "target", json!({"card_url": card_url(&agent)})).await;
    assert_eq!(send(&gateway, "target", CALL).await.status, 200);
    assert_eq!(called(&agent), ["/rpc"]);
}
