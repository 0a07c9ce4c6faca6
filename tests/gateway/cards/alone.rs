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
    let paths = requests.iter().map(|request| asked_for(request).to_owned());
    paths.filter(|path| path != CARD).collect()
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
    vec![
        (
            "0.2",
            json!({"name": "A", "url": "http://{agent}/"}),
            ["/", "/"],
            None,
        ),
        ("0.3", old, ["/rpc/", "/rpc/"], Some("/rest/v1/tasks/t-1")),
        (
            "1.0",
            json!({"name": "A", "supportedInterfaces": new}),
            ["/v1/rpc", "/v1/rpc"],
            None,
        ),
        (
            "both",
            hybrid,
            ["/rpc/", "/v1/rpc"],
            Some("/rest/v1/tasks/t-1"),
        ),
        (
            "PocketPaw",
            json!({"name": "A", "url": "http://{agent}/a2a", "protocol_version": "0.2.5", "preferred_transport": "JSONRPC"}),
            ["/a2a", "/a2a"],
            None,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_tells_where_calls_go() {
    let gateway = Gateway::start(Pair::Embedded).await;
    for (at, (what, card, [old, new], rest)) in cards().into_iter().enumerate() {
        let (id, agent) = (format!("target{at}"), known_by(card).await);
        add(
            &gateway,
            &id,
            json!({"card_url": card_url(&agent), "upstream_auth": "s3cret-of-the-agent"}),
        )
        .await;
        let path = |tail: &str| format!("/workspaces/{id}{tail}");
        let seen = gateway.as_operator(Request::get(path(""))).await.json();
        assert_eq!(
            (&seen["status"], &seen["url"]),
            (&json!("online"), &Value::Null),
            "{what}"
        );
        // Calls of either generation, as they come.
        let modern = CALL.replace("message/send", "SendMessage");
        for (call, expected) in [(CALL, old), (&modern, new)] {
            let answer = send(&gateway, &id, call).await;
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
            let taken = agent.take();
            assert_eq!(asked_for(&taken), expected, "{what}");
            assert_eq!(
                taken.fields("authorization"),
                ["Bearer s3cret-of-the-agent"]
            );
            assert_eq!(taken.fields("host"), [format!("127.0.0.1:{}", agent.port)]);
        }
        // Calls that are put together, in the words of its generation.
        let (method, expected) = if what == "1.0" {
            ("SendMessage", new)
        } else {
            ("message/send", old)
        };
        assert_eq!(
            send(&gateway, &id, r#"{"message":{"text":"hi"}}"#)
                .await
                .status,
            200,
            "{what}"
        );
        let taken = agent.take();
        let call: Value = serde_json::from_slice(&taken.body).unwrap();
        assert_eq!(
            (asked_for(&taken), call["method"].as_str()),
            (expected, Some(method)),
            "{what}"
        );
        // Routes below the base: translated, or where it speaks HTTP+JSON itself.
        let (tail, expected) = match rest {
            Some(raw) => ("/a2a/v1/tasks/t-1", raw),
            None => ("/a2a/tasks/t-1", expected),
        };
        let answer = gateway.as_operator(Request::get(path(tail))).await;
        assert_eq!(answer.status, 200, "{what}: {}", answer.text());
        assert_eq!(asked_for(&agent.take()), expected, "{what}");
        // One fetch for all of it, and the card is where cards are.
        for location in locations(&id)
            .iter()
            .filter(|at| at.starts_with("/workspaces/"))
        {
            let answer = gateway.as_operator(Request::get(location)).await;
            assert_eq!(
                answer.status,
                200,
                "{what} at {location}: {}",
                answer.text()
            );
            assert!(
                !answer.text().contains(&agent.port.to_string()),
                "{what} at {location}"
            );
        }
        let cards = agent
            .requests()
            .into_iter()
            .filter(|request| asked_for(request) == CARD);
        let cards: Vec<_> = cards.collect();
        assert_eq!(cards.len(), 1, "{what}");
        assert_eq!(
            cards[0].fields("authorization"),
            ["Bearer s3cret-of-the-agent"],
            "{what}"
        );
        // Whoever asks for its place is sent to the gateway.
        let found = gateway
            .as_operator(Request::get(format!("/registry/discover/{id}")))
            .await
            .json();
        assert_eq!(found["url"], Value::Null, "{what}");
        assert!(
            found["proxy_url"]
                .as_str()
                .unwrap()
                .ends_with(&path("/a2a")),
            "{what}"
        );
    }
    gateway.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_card_nothing_is_sent_and_the_caller_learns_why() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let hasty = Builder::new(Pair::Embedded).set("timeouts.total", "1s");
    let hasty = hasty.start().await;
    let ok = |body: Value| vec![Step::Write(ok_json(&body.to_string()))];
    let rows = [
        (
            "no card",
            vec![Step::write("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")],
            (502, "agent_protocol_error"),
        ),
        (
            "no JSON",
            vec![Step::Write(ok_json("<html>"))],
            (502, "agent_protocol_error"),
        ),
        (
            "no interface",
            ok(json!({"name": "A"})),
            (502, "agent_protocol_error"),
        ),
        (
            "no JSON-RPC",
            ok(
                json!({"name": "A", "supportedInterfaces": [{"url": "127.0.0.1:50051", "protocolBinding": "GRPC", "protocolVersion": "1.0"}]}),
            ),
            (502, "agent_protocol_error"),
        ),
        (
            "no URL",
            ok(json!({"name": "A", "url": "here"})),
            (502, "agent_protocol_error"),
        ),
        ("silence", vec![Step::Hang], (504, "agent_timeout")),
    ];
    for (at, (what, steps, expected)) in rows.into_iter().enumerate() {
        let gateway = if what == "silence" { &hasty } else { &gateway };
        let agent = Agent::scripted(move |_| steps.clone()).await;
        let id = format!("t{at}");
        add(gateway, &id, json!({"card_url": card_url(&agent)})).await;
        let get = Request::get(format!("/workspaces/{id}/a2a/tasks/t-1"));
        for answer in [
            send(gateway, &id, CALL).await,
            send(gateway, &id, r#"{"message":{"text":"hi"}}"#).await,
            gateway.as_operator(get).await,
        ] {
            assert_eq!(
                (answer.status, answer.reason().as_str()),
                expected,
                "{what}"
            );
            assert_eq!(answer.fact("delivered").as_deref(), Some("false"), "{what}");
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
    let mute = Agent::scripted(|request| match request.head.starts_with("GET ") {
        true => vec![Step::write("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")],
        false => vec![Step::Write(ok_json(
            r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#,
        ))],
    })
    .await;
    add(&gateway, "mute", json!({"card_url": card_url(&mute)})).await;
    let mut handed = card("mute");
    handed["url"] = "http://nowhere.test/handed/in".into();
    let body = json!({"workspace_id": "mute", "agent_card": handed});
    let update = Request::post("/registry/update-card", body.to_string());
    assert_eq!(gateway.as_operator(update).await.status, 200);
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
        let answer = send(&gateway, "target", CALL).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
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
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (400, "invalid_params"),
            "{body}"
        );
    }
    goes_to(&two, "/two").await;
    patch(&gateway, "target", json!({"card_url": null, "url": url})).await;
    goes_to(&one, "/own/path").await;
    // Out and back, like any other.
    patch(
        &gateway,
        "target",
        json!({"card_url": card_url(&two), "url": null}),
    )
    .await;
    let post = |path: &str| gateway.as_operator(Request::post(path, "{}"));
    assert_eq!(post("/workspaces/target/pause").await.status, 200);
    assert_eq!(
        send(&gateway, "target", CALL).await.reason(),
        "workspace_offline"
    );
    assert_eq!(
        post("/workspaces/target/resume").await.json()["status"],
        "online"
    );
    goes_to(&two, "/two").await;
    // One that is to register waits for that, whatever its card says.
    gateway
        .create(json!({"id": "late", "name": "late", "card_url": card_url(&one)}))
        .await;
    assert_eq!(
        send(&gateway, "late", CALL).await.reason(),
        "workspace_restarting"
    );
    patch(&gateway, "late", json!({"liveness": "assumed"})).await;
    assert_eq!(send(&gateway, "late", CALL).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_card_sends_a_call_where_the_policy_would_not_go() {
    let agent = known_by(json!({"name": "A", "url": "http://{agent}/rpc"})).await;
    let start = |trusted: &str| {
        Builder::new(Pair::Embedded)
            .set("address.profile", "strict")
            .set("trusted_agents", trusted)
            .start()
    };
    // Trusted at the card's path only: another path is another agent.
    let gateway = start(&format!("{}cards", agent.url())).await;
    add(&gateway, "target", json!({"card_url": card_url(&agent)})).await;
    assert_eq!(card_of(&gateway, "target").await.status, 200);
    let answer = send(&gateway, "target", CALL).await;
    answer.refuses(502, "address_forbidden");
    assert_eq!(called(&agent), [""; 0]);
    let other = json!({"id": "other", "name": "other", "liveness": "assumed", "card_url": "http://127.0.0.1:9/"});
    let refused = gateway
        .as_operator(Request::post("/workspaces", other.to_string()))
        .await;
    assert_eq!(refused.reason(), "address_forbidden");
    drop(gateway);
    let gateway = start(&agent.url()).await;
    add(&gateway, "target", json!({"card_url": card_url(&agent)})).await;
    assert_eq!(send(&gateway, "target", CALL).await.status, 200);
    assert_eq!(called(&agent), ["/rpc"]);
}
