//! Where a card is fetched, what is done when it is not there, and what an agent cannot do by its card.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{add, asked_for, card_of, patch, served, serving};
use crate::harness::{Agent, Builder, CALL, Gateway, Pair, Request, Step, card, ok_json};

const AGENT_CARD: &str = "/.well-known/agent-card.json";
const AGENT: &str = "/.well-known/agent.json";
const RESULT: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#;

/// Paths that were asked for, in their order.
fn asked(agent: &Agent) -> Vec<String> {
    let requests = agent.requests();
    let gets = requests.iter().filter(|one| one.head.starts_with("GET "));
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
        let new = json!({"url": url, "upstream_auth": "s3cret-of-the-agent"});
        add(&gateway, &id, new).await;
        assert_eq!(card_of(&gateway, &id).await.json()["name"], "A", "{place}");
        assert_eq!(asked(&agent), turns[..=at]);
        let seen = agent.take();
        assert_eq!(seen.fields("authorization"), ["Bearer s3cret-of-the-agent"]);
        assert_eq!(seen.fields("host"), [format!("127.0.0.1:{}", agent.port)]);
        assert_eq!(seen.fields("x-a2a-hops"), ["1"]);
    }
    // Where a place is registered, it is the only one; another server gets no credential.
    let agent = serving(AGENT_CARD, &body).await;
    let card = json!({"name": "C", "url": "http://{agent}/c", "x": "http://{agent}"});
    let cards = serving("/c?a=1", &card).await;
    let card_url = format!("{}c?a=1", cards.url());
    let new =
        json!({"url": agent.url(), "card_url": card_url, "upstream_auth": "s3cret-of-the-agent"});
    add(&gateway, "elsewhere", new).await;
    let answer = card_of(&gateway, "elsewhere").await;
    assert_eq!(answer.json()["name"], "C");
    assert!(!answer.text().contains(&cards.port.to_string()));
    assert_eq!(agent.count(), 0);
    assert_eq!(cards.take().field("authorization"), None);
    let card_at = async |url: String| patch(&gateway, "elsewhere", json!({"card_url": url})).await;
    card_at(format!("{}nothing", cards.url())).await;
    let answer = card_of(&gateway, "elsewhere").await;
    answer.refuses(502, "agent_protocol_error");
    assert_eq!(agent.count(), 0);
    // The same server does.
    card_at(format!("{}.well-known/agent-card.json", agent.url())).await;
    assert_eq!(card_of(&gateway, "elsewhere").await.status, 200);
    let seen = agent.take();
    assert_eq!(seen.fields("authorization"), ["Bearer s3cret-of-the-agent"]);
}

/// An agent that answers every GET with `answer`, and calls with a result.
pub(super) async fn failing(answer: Vec<Step>) -> Agent {
    Agent::scripted(move |request| match request.head.starts_with("GET ") {
        true => answer.clone(),
        false => vec![Step::Write(ok_json(RESULT))],
    })
    .await
}

/// An agent that answers with its card where that is, and calls with a result.
async fn carded(card: &Value) -> Agent {
    let card = card.to_string();
    Agent::scripted(move |request| match request.head.starts_with("POST ") {
        true => vec![Step::Write(ok_json(RESULT))],
        false => vec![Step::Write(served(request, AGENT_CARD, &card))],
    })
    .await
}

/// What comes instead of a card, with the reason of the refusal.
fn failures() -> Vec<(&'static str, Vec<Step>, &'static str)> {
    const RAW: &str = r#"{"name":"raw","url":"http://raw-upstream/"}"#;
    const HUGE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n{";
    const CUT: &str = "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"name\":\"raw-upstream\"";
    let answer = |head: &str, body: &str| {
        let length = body.len();
        let head = format!("HTTP/1.1 {head}\r\nContent-Length: {length}");
        vec![Step::write(format!("{head}\r\n\r\n{body}"))]
    };
    let ok = |body: &str| answer("200 OK", body);
    let written = |text: &str, end: Step| vec![Step::write(text), end];
    let deep = format!(r#"{{"name":"raw-upstream","x":{}"#, "[".repeat(10_000));
    let ours = json!({"name": "raw-upstream", "url": "http://h:1/", "x": "h:1 ".repeat(60_000)});
    let large = json!({"name": "raw-upstream", "x": "y".repeat(300_000)}).to_string();
    let error = r#"{"jsonrpc":"2.0","id":null,"error":{"message":"raw-upstream"}}"#;
    let twice = r#"{"name":"a","url":"http://raw-upstream/","url":"x"}"#;
    let basic = "401 Unauthorized\r\nWWW-Authenticate: Basic";
    let elsewhere = "302 Found\r\nLocation: http://169.254.169.254/raw-upstream";
    let mut endless = written("HTTP/1.1 200 OK\r\n\r\n", Step::Hang);
    endless.insert(1, Step::write("x".repeat(400_000)));
    let wrong = [
        ("not found", answer("404 Not Found", "raw-upstream")),
        ("unauthorized", answer(basic, RAW)),
        ("no JSON", ok("<html>raw-upstream</html>")),
        ("no object", ok(r#"["raw-upstream"]"#)),
        ("no card", ok(error)),
        ("twice", ok(twice)),
        ("deep", ok(&deep)),
        ("too large with our URLs in it", ok(&ours.to_string())),
        (
            "compressed",
            answer("200 OK\r\nContent-Encoding: gzip", RAW),
        ),
        ("cut", written(CUT, Step::Close)),
        ("no HTTP", written("raw-upstream\r\n\r\n", Step::Close)),
        ("closed", vec![Step::Close]),
    ];
    let wrong = wrong.map(|(what, steps)| (what, steps, "agent_protocol_error"));
    let others = [
        ("redirected", answer(elsewhere, RAW), "agent_redirected"),
        ("too large", ok(&large), "response_too_large"),
        (
            "by its word",
            written(HUGE, Step::Hang),
            "response_too_large",
        ),
        ("endless", endless, "response_too_large"),
        ("silent", vec![Step::Hang], "agent_timeout"),
    ];
    wrong.into_iter().chain(others).collect()
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
        let new = json!({"id": id, "name": id, "liveness": "assumed", "url": agent.url()});
        let enrolment = gateway.create(new).await;
        let asked = Instant::now();
        let answer = card_of(gateway, &id).await;
        assert_eq!(answer.reason(), reason, "{what}: {}", answer.text());
        assert!(answer.status == 502 || answer.status == 504, "{what}");
        let text = answer.text();
        assert!(!text.contains("raw-upstream"), "{what}: {text}");
        assert_eq!(answer.field("cache-control"), Some("no-store"));
        let outcome = format!("outcome=\"{reason}\"");
        let fetched = gateway.counts("card_fetches_total", &outcome).await;
        assert!(fetched >= 1.0, "{what}");
        // A failure is remembered for three seconds.
        let before = agent.count();
        assert_eq!(card_of(gateway, &id).await.reason(), reason, "{what}");
        let is_forgotten = asked.elapsed() >= Duration::from_secs(3);
        assert!(agent.count() == before || is_forgotten, "{what}");
        let card = card("registered");
        gateway.register(&id, &enrolment, &agent.url(), card).await;
        let answer = card_of(gateway, &id).await;
        assert_eq!(answer.status, 200, "{what}");
        assert_eq!(answer.json()["name"], "registered", "{what}");
        let text = answer.text();
        assert!(!text.contains("127.0.0.1/"), "{what}: {text}");
    }
    gateway.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_has_its_registered_card_in_every_state() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let agent = json!({"name": "fetched", "url": "http://{agent}/"});
    let agent = serving(AGENT_CARD, &agent).await;
    let seat = gateway.seat("target", "", agent).await;
    assert_eq!(card_of(&gateway, "target").await.json()["name"], "fetched");
    let name = async || card_of(&gateway, "target").await.json()["name"].clone();
    let post = async |path: &str, body: Value| gateway.post(path, body).await.has(200);
    post("/workspaces/target/pause", json!({})).await;
    assert_eq!(name().await, "target", "paused: the registered one");
    post("/workspaces/target/resume", json!({})).await;
    post("/registry/deregister", json!({"workspace_id": "target"})).await;
    assert_eq!(name().await, "target", "offline");
    // A new card counts at once, and hides the address that is registered.
    let mut new = card("new");
    new["description"] = format!("see http://127.0.0.1:{}/x", seat.agent.port).into();
    let again = json!({"id": "target", "url": seat.agent.url(), "agent_card": new, "delivery_mode": "poll"});
    let again = Request::post("/registry/register", again.to_string());
    gateway.call(&again.bearer(&seat.token)).await;
    let answer = card_of(&gateway, "target").await;
    assert_eq!(answer.json()["name"], "new", "{}", answer.text());
    let port = seat.agent.port.to_string();
    assert!(!answer.text().contains(&port), "{}", answer.text());
    // Nobody registered a card, and nobody can be asked.
    gateway.found("waiting").await;
    let waiting = card_of(&gateway, "waiting").await;
    waiting.gives("workspace_restarting");
    let remove = Request::new("DELETE", "/workspaces/target");
    gateway.as_operator(remove).await;
    let gone = card_of(&gateway, "target").await;
    gone.refuses(410, "workspace_removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_outside_is_reached_if_it_is_trusted_and_so_is_its_card() {
    let agent = carded(&json!({"name": "outside", "url": "http://{agent}/a2a"})).await;
    let url = format!("{}a2a", agent.url());
    let settings = format!("address.profile=strict trusted_agents={url}");
    let gateway = Gateway::with(&settings).await;
    let new = json!({"url": url, "upstream_auth": {"type": "header", "name": "X-API-Key", "value": "k-1"}});
    add(&gateway, "outside", new.clone()).await;
    let answer = card_of(&gateway, "outside").await;
    assert_eq!(answer.json()["name"], "outside", "{}", answer.text());
    assert!(!answer.text().contains(&agent.port.to_string()));
    assert_eq!(agent.take().fields("x-api-key"), ["k-1"]);
    let sent = Request::post("/workspaces/outside/a2a", CALL);
    gateway.as_operator(sent).await.has(200);
    assert_eq!(agent.take().fields("x-api-key"), ["k-1"]);
    // What is not trusted is not asked, wherever a card is said to be.
    let other = serving("/card", &json!({"name": "x"})).await;
    let refused = json!({"card_url": format!("{}card", other.url())});
    let refused = gateway.patch("outside", refused).await;
    refused.gives("address_forbidden");
    assert_eq!(other.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_put_together_follows_the_card_that_was_fetched() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let new = json!({"name": "new", "supportedInterfaces": [{"url": "http://{agent}/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]});
    let send = async |id: &str, body: &str, agent: &Agent| {
        let request = Request::post(format!("/workspaces/{id}/a2a"), body);
        gateway.as_operator(request).await.has(200);
        serde_json::from_slice::<Value>(&agent.take().body).unwrap()
    };
    let bare = r#"{"message":{"text":"hi"}}"#;
    let modern = carded(&new).await;
    add(&gateway, "modern", json!({"url": modern.url()})).await;
    for _ in 0..2 {
        let call = send("modern", bare, &modern).await;
        assert_eq!(call["method"], "SendMessage");
        assert_eq!(call["params"]["message"]["role"], "ROLE_USER");
        assert_eq!(asked(&modern).len(), 1);
    }
    // One that gives no card gets the call all the same.
    let old = json!({"name": "old", "url": "http://{agent}/", "protocolVersion": "0.3.0"});
    let none = "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n";
    let silent = failing(vec![Step::write(none)]).await;
    for (id, agent) in [("old", carded(&old).await), ("silent", silent)] {
        add(&gateway, id, json!({"url": agent.url()})).await;
        let call = send(id, bare, &agent).await;
        assert_eq!(call["method"], "message/send", "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_extended_card_tells_no_more_of_the_agents_place() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let result = r#"{"jsonrpc":"2.0","id":7.0,"result":{"name":"extended","url":"http://{agent}/","description":"at {agent}","signatures":[{}]},"x":1}"#;
    let agent = |body: &'static str| {
        Agent::scripted(move |request| {
            let body = body.replace("{agent}", request.field("host").unwrap());
            vec![Step::Write(ok_json(&body))]
        })
    };
    let call = |id: &str, method: &str| {
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method}).to_string();
        gateway.as_operator(Request::post(format!("/workspaces/{id}/a2a"), body))
    };
    let extended = agent(result).await;
    let _target = gateway.seat("target", "", extended).await;
    let of_1_0 = "/securitySchemes/bearer/httpAuthSecurityScheme/scheme";
    let (old, of_0_3) = (
        "agent/getAuthenticatedExtendedCard",
        "/securitySchemes/bearer/scheme",
    );
    for (method, url, scheme) in [
        (old, "/url", of_0_3),
        ("GetExtendedAgentCard", "/supportedInterfaces/0/url", of_1_0),
    ] {
        let answer = call("target", method).await.has(200);
        let text = answer.text();
        let envelope = r#"{"jsonrpc":"2.0","id":7.0,"result":{"#;
        assert!(text.starts_with(envelope), "{text}");
        let card = &answer.json()["result"];
        let base = format!("http://{}/workspaces/target/a2a", gateway.public);
        assert_eq!(card.pointer(url), Some(&json!(base)));
        assert_eq!(card["description"], json!(format!("at {base}")));
        assert_eq!(card["name"], "extended");
        assert_eq!(card.get("signatures"), None);
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
        let answer = call(&id, old).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        if status == 200 {
            assert_eq!(answer.text(), body);
        } else {
            assert_eq!(answer.reason(), "agent_protocol_error");
        }
    }
    gateway.assert_idle().await;
}
