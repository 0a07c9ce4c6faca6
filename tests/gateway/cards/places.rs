//! Where a card is fetched, what is done when it is not there, and what an agent cannot do by its card.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{add, asked_for, card_of, patch, served, serving};
use crate::harness::{Agent, Builder, CALL, Gateway, Pair, Request, Step, card, ok_json};

const AGENT_CARD: &str = "/.well-known/agent-card.json";
const AGENT: &str = "/.well-known/agent.json";

/// Paths that were asked for, in their order.
fn asked(agent: &Agent) -> Vec<String> {
    let requests = agent.requests();
    let gets = requests
        .iter()
        .filter(|request| request.head.starts_with("GET "));
    gets.map(|request| asked_for(request).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_are_tried_in_turn() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let body = json!({"name": "A", "url": "http://{agent}/"});
    let below = [
        "/team/a/.well-known/agent-card.json",
        "/team/a/.well-known/agent.json",
    ];
    let turns = [AGENT_CARD, AGENT, below[0], below[1]];
    for (at, place) in turns.into_iter().enumerate() {
        let agent = serving(place, &body).await;
        let id = format!("t{at}");
        let url = format!("{}team/a/?x=1", agent.url());
        add(
            &gateway,
            &id,
            json!({"url": url, "upstream_auth": "s3cret-of-the-agent"}),
        )
        .await;
        assert_eq!(card_of(&gateway, &id).await.json()["name"], "A", "{place}");
        assert_eq!(asked(&agent), turns[..=at]);
        let seen = agent.take();
        assert_eq!(seen.fields("authorization"), ["Bearer s3cret-of-the-agent"]);
        assert_eq!(seen.fields("host"), [format!("127.0.0.1:{}", agent.port)]);
        assert_eq!(seen.fields("x-a2a-hops"), ["1"]);
    }
    // Where a place is registered, it is the only one; another server gets no credential.
    let agent = serving(AGENT_CARD, &body).await;
    let cards = serving(
        "/c?a=1",
        &json!({"name": "C", "url": "http://{agent}/c", "x": "http://{agent}"}),
    )
    .await;
    let card_url = format!("{}c?a=1", cards.url());
    add(
        &gateway,
        "elsewhere",
        json!({"url": agent.url(), "card_url": card_url, "upstream_auth": "s3cret-of-the-agent"}),
    )
    .await;
    let answer = card_of(&gateway, "elsewhere").await;
    assert_eq!(answer.json()["name"], "C");
    assert!(!answer.text().contains(&cards.port.to_string()));
    assert_eq!(
        (agent.count(), cards.take().field("authorization")),
        (0, None)
    );
    patch(
        &gateway,
        "elsewhere",
        json!({"card_url": format!("{}nothing", cards.url())}),
    )
    .await;
    let answer = card_of(&gateway, "elsewhere").await;
    answer.refuses(502, "agent_protocol_error");
    assert_eq!(agent.count(), 0);
    // The same server does.
    patch(
        &gateway,
        "elsewhere",
        json!({"card_url": format!("{}.well-known/agent-card.json", agent.url())}),
    )
    .await;
    assert_eq!(card_of(&gateway, "elsewhere").await.status, 200);
    assert_eq!(
        agent.take().fields("authorization"),
        ["Bearer s3cret-of-the-agent"]
    );
}

/// An agent that answers every GET with `answer`, and calls with a result.
async fn failing(answer: Vec<Step>) -> Agent {
    Agent::scripted(move |request| {
        if request.head.starts_with("GET ") {
            answer.clone()
        } else {
            vec![Step::Write(ok_json(
                r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#,
            ))]
        }
    })
    .await
}

fn failures() -> Vec<(&'static str, Vec<Step>, &'static str)> {
    let with = |status: &str, fields: &str, body: &str| {
        let length = body.len();
        vec![Step::write(format!(
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{fields}\r\n{body}"
        ))]
    };
    let raw = r#"{"name":"raw","url":"http://raw-upstream/"}"#;
    vec![
        (
            "not found",
            with("404 Not Found", "", "raw-upstream"),
            "agent_protocol_error",
        ),
        (
            "unauthorized",
            with("401 Unauthorized", "WWW-Authenticate: Basic\r\n", raw),
            "agent_protocol_error",
        ),
        (
            "redirected",
            with(
                "302 Found",
                "Location: http://169.254.169.254/raw-upstream\r\n",
                raw,
            ),
            "agent_redirected",
        ),
        (
            "no JSON",
            with("200 OK", "", "<html>raw-upstream</html>"),
            "agent_protocol_error",
        ),
        (
            "no object",
            with("200 OK", "", r#"["raw-upstream"]"#),
            "agent_protocol_error",
        ),
        (
            "no card",
            with(
                "200 OK",
                "",
                r#"{"jsonrpc":"2.0","id":null,"error":{"message":"raw-upstream"}}"#,
            ),
            "agent_protocol_error",
        ),
        (
            "twice",
            with(
                "200 OK",
                "",
                r#"{"name":"a","url":"http://raw-upstream/","url":"x"}"#,
            ),
            "agent_protocol_error",
        ),
        (
            "deep",
            with(
                "200 OK",
                "",
                &format!("{{\"name\":\"raw-upstream\",\"x\":{}", "[".repeat(10_000)),
            ),
            "agent_protocol_error",
        ),
        (
            "too large with our URLs in it",
            with(
                "200 OK",
                "",
                &json!({"name": "raw-upstream", "url": "http://h:1/", "x": "h:1 ".repeat(60_000)})
                    .to_string(),
            ),
            "agent_protocol_error",
        ),
        (
            "compressed",
            with("200 OK", "Content-Encoding: gzip\r\n", raw),
            "agent_protocol_error",
        ),
        (
            "too large",
            with(
                "200 OK",
                "",
                &format!(
                    "{{\"name\":\"raw-upstream\",\"x\":\"{}\"}}",
                    "y".repeat(300_000)
                ),
            ),
            "response_too_large",
        ),
        (
            "too large by its word",
            vec![
                Step::write("HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n{"),
                Step::Hang,
            ],
            "response_too_large",
        ),
        (
            "endless",
            vec![
                Step::write("HTTP/1.1 200 OK\r\n\r\n"),
                Step::write("x".repeat(400_000)),
                Step::Hang,
            ],
            "response_too_large",
        ),
        (
            "cut",
            vec![
                Step::write(
                    "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"name\":\"raw-upstream\"",
                ),
                Step::Close,
            ],
            "agent_protocol_error",
        ),
        (
            "no HTTP",
            vec![Step::write("raw-upstream\r\n\r\n"), Step::Close],
            "agent_protocol_error",
        ),
        ("closed", vec![Step::Close], "agent_protocol_error"),
        ("silent", vec![Step::Hang], "agent_timeout"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_gives_the_registered_card_or_an_error_and_never_the_raw_answer() {
    // The clock of a fetch is at most timeouts.total, which ends the silent one alone.
    let gateway = Gateway::start(Pair::Embedded).await;
    let hasty = Builder::new(Pair::Embedded).set("timeouts.total", "1s");
    let hasty = hasty.start().await;
    for (at, (what, steps, reason)) in failures().into_iter().enumerate() {
        let gateway = if what == "silent" { &hasty } else { &gateway };
        let agent = failing(steps).await;
        let id = format!("f{at}");
        let enrolment = gateway
            .create(json!({"id": id, "name": id, "liveness": "assumed", "url": agent.url()}))
            .await;
        let asked = Instant::now();
        let answer = card_of(gateway, &id).await;
        assert_eq!(answer.reason(), reason, "{what}: {}", answer.text());
        assert!(answer.status == 502 || answer.status == 504, "{what}");
        let text = answer.text();
        assert!(!text.contains("raw-upstream"), "{what}: {text}");
        assert_eq!(answer.field("cache-control"), Some("no-store"));
        let outcome = format!("outcome=\"{reason}\"");
        let fetches = "a2a_gateway_card_fetches_total";
        let fetched = gateway.metric(fetches, &[&outcome]).await;
        assert!(fetched >= 1.0, "{what}");
        // A failure is remembered for three seconds.
        let before = agent.count();
        assert_eq!(card_of(gateway, &id).await.reason(), reason, "{what}");
        let is_forgotten = asked.elapsed() >= Duration::from_secs(3);
        assert!(agent.count() == before || is_forgotten, "{what}");
        gateway
            .register(&id, &enrolment, &agent.url(), card("registered"))
            .await;
        let answer = card_of(gateway, &id).await;
        assert_eq!(
            (answer.status, &answer.json()["name"]),
            (200, &json!("registered")),
            "{what}"
        );
        let text = answer.text();
        assert!(!text.contains("127.0.0.1/"), "{what}: {text}");
    }
    gateway.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_has_its_registered_card_in_every_state() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let agent = serving(
        AGENT_CARD,
        &json!({"name": "fetched", "url": "http://{agent}/"}),
    )
    .await;
    let seat = gateway.seat("target", "", agent).await;
    assert_eq!(card_of(&gateway, "target").await.json()["name"], "fetched");
    let name = |answer: crate::harness::Answer| answer.json()["name"].clone();
    let post = |path: &str| gateway.as_operator(Request::post(path, "{}"));
    assert_eq!(post("/workspaces/target/pause").await.status, 200);
    assert_eq!(
        name(card_of(&gateway, "target").await),
        "target",
        "paused: the registered one"
    );
    assert_eq!(post("/workspaces/target/resume").await.status, 200);
    let body = json!({"workspace_id": "target"}).to_string();
    gateway
        .as_operator(Request::post("/registry/deregister", body))
        .await;
    assert_eq!(name(card_of(&gateway, "target").await), "target", "offline");
    // A new card counts at once, and hides the address that is registered.
    let mut new = card("new");
    new["description"] = format!("see http://127.0.0.1:{}/x", seat.agent.port).into();
    gateway.call(&Request::post("/registry/register", json!({"id": "target", "url": seat.agent.url(), "agent_card": new, "delivery_mode": "poll"}).to_string()).bearer(&seat.token)).await;
    let answer = card_of(&gateway, "target").await;
    assert_eq!(name(answer.clone()), "new", "{}", answer.text());
    assert!(
        !answer.text().contains(&seat.agent.port.to_string()),
        "{}",
        answer.text()
    );
    // Nobody registered a card, and nobody can be asked.
    gateway
        .create(json!({"id": "waiting", "name": "waiting"}))
        .await;
    assert_eq!(
        card_of(&gateway, "waiting").await.reason(),
        "workspace_restarting"
    );
    let mut remove = Request::get("/workspaces/target");
    remove.method = "DELETE".into();
    gateway.as_operator(remove).await;
    let gone = card_of(&gateway, "target").await;
    gone.refuses(410, "workspace_removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_outside_is_reached_if_it_is_trusted_and_so_is_its_card() {
    let agent = Agent::scripted(|request| {
        if request.head.starts_with("POST ") {
            return vec![Step::Write(ok_json(
                r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#,
            ))];
        }
        vec![Step::Write(served(
            request,
            AGENT_CARD,
            r#"{"name":"outside","url":"http://{agent}/a2a"}"#,
        ))]
    })
    .await;
    let url = format!("{}a2a", agent.url());
    let start = |trusted: String| {
        Builder::new(Pair::Embedded)
            .set("address.profile", "strict")
            .set("trusted_agents", &trusted)
            .start()
    };
    let gateway = start(url.clone()).await;
    let new = json!({"url": url, "upstream_auth": {"type": "header", "name": "X-API-Key", "value": "k-1"}});
    add(&gateway, "outside", new.clone()).await;
    let answer = card_of(&gateway, "outside").await;
    assert_eq!(answer.json()["name"], "outside", "{}", answer.text());
    assert!(!answer.text().contains(&agent.port.to_string()));
    assert_eq!(agent.take().fields("x-api-key"), ["k-1"]);
    let sent = gateway
        .as_operator(Request::post("/workspaces/outside/a2a", CALL))
        .await;
    assert_eq!(sent.status, 200, "{}", sent.text());
    assert_eq!(agent.take().fields("x-api-key"), ["k-1"]);
    // What is not trusted is not asked, wherever a card is said to be.
    let other = serving("/card", &json!({"name": "x"})).await;
    let body = json!({"card_url": format!("{}card", other.url())}).to_string();
    let mut refused = Request::post("/workspaces/outside", body);
    refused.method = "PATCH".into();
    assert_eq!(
        gateway.as_operator(refused).await.reason(),
        "address_forbidden"
    );
    assert_eq!(other.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_put_together_follows_the_card_that_was_fetched() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let new = json!({"name": "new", "supportedInterfaces": [{"url": "http://{agent}/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]});
    let agent = |card: Value| {
        let card = card.to_string();
        Agent::scripted(move |request| {
            if request.head.starts_with("POST ") {
                return vec![Step::Write(ok_json(
                    r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
                ))];
            }
            vec![Step::Write(served(request, AGENT_CARD, &card))]
        })
    };
    let send = |id: &str, body: &str| {
        let request = Request::post(format!("/workspaces/{id}/a2a"), body);
        gateway.as_operator(request)
    };
    let bare = r#"{"message":{"text":"hi"}}"#;
    let modern = agent(new).await;
    add(&gateway, "modern", json!({"url": modern.url()})).await;
    // An envelope is the agent's matter: nobody asks for a card.
    assert_eq!(send("modern", CALL).await.status, 200);
    assert_eq!(modern.count(), 1);
    for fetches in [1, 1] {
        assert_eq!(send("modern", bare).await.status, 200);
        let call: Value = serde_json::from_slice(&modern.take().body).unwrap();
        assert_eq!(call["method"], "SendMessage");
        assert_eq!(call["params"]["message"]["role"], "ROLE_USER");
        let asked = modern
            .requests()
            .iter()
            .filter(|r| r.head.starts_with("GET "))
            .count();
        assert_eq!(asked, fetches);
    }
    let old =
        agent(json!({"name": "old", "url": "http://{agent}/", "protocolVersion": "0.3.0"})).await;
    add(&gateway, "old", json!({"url": old.url()})).await;
    assert_eq!(send("old", bare).await.status, 200);
    let call: Value = serde_json::from_slice(&old.take().body).unwrap();
    assert_eq!(call["method"], "message/send");
    // One that gives no card gets the call all the same.
    let silent = failing(vec![Step::write(
        "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
    )])
    .await;
    add(&gateway, "silent", json!({"url": silent.url()})).await;
    assert_eq!(send("silent", bare).await.status, 200);
    let call: Value = serde_json::from_slice(&silent.take().body).unwrap();
    assert_eq!(call["method"], "message/send");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_extended_card_tells_no_more_of_the_agents_place() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let result = r#"{"jsonrpc":"2.0","id":7.0,"result":{"name":"extended","url":"http://{agent}/","description":"at {agent}","signatures":[{}]},"x":1}"#;
    let agent = |body: &'static str| {
        Agent::scripted(move |request| {
            vec![Step::Write(ok_json(
                &body.replace("{agent}", request.field("host").unwrap()),
            ))]
        })
    };
    let call = |id: &str, method: &str| {
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method}).to_string();
        gateway.as_operator(Request::post(format!("/workspaces/{id}/a2a"), body))
    };
    let extended = agent(result).await;
    let _target = gateway.seat("target", "", extended).await;
    let of_1_0 = "/securitySchemes/bearer/httpAuthSecurityScheme/scheme";
    for (method, url, scheme) in [
        (
            "agent/getAuthenticatedExtendedCard",
            "/url",
            "/securitySchemes/bearer/scheme",
        ),
        ("GetExtendedAgentCard", "/supportedInterfaces/0/url", of_1_0),
    ] {
        let answer = call("target", method).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let text = answer.text();
        let envelope = r#"{"jsonrpc":"2.0","id":7.0,"result":{"#;
        assert!(text.starts_with(envelope), "{text}");
        let card = &answer.json()["result"];
        let base = format!("http://{}/workspaces/target/a2a", gateway.public);
        assert_eq!(
            (card.pointer(url), &card["description"]),
            (Some(&json!(base)), &json!(format!("at {base}")))
        );
        assert_eq!(
            (&card["name"], card.get("signatures")),
            (&json!("extended"), None)
        );
        assert_eq!(card.pointer(scheme), Some(&json!("bearer")));
    }
    for (at, (body, status)) in [
        (r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32007,"message":"none"}}"#, 200),
        (r#"{"jsonrpc":"2.0","id":7,"result":{}}"#, 200),
        (r#"{"jsonrpc":"2.0","id":7,"result":{"name":"a","url":"http://{agent}/","url":"http://{agent}/"}}"#, 502),
        ("http://{agent}/", 502),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("other{at}");
        let _seat = gateway.seat(&id, "", agent(body).await).await;
        let answer = call(&id, "agent/getAuthenticatedExtendedCard").await;
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        if status == 200 {
            assert_eq!(answer.text(), body);
        } else {
            assert_eq!(answer.reason(), "agent_protocol_error");
        }
    }
    gateway.assert_idle().await;
}
