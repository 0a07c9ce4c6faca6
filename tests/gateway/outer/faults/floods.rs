//! Floods by a stranger and by one caller with a good credential: each is refused or bounded, and honest callers are
//! served beside it. The same with more of everything, measured: `scripts/bench floods`.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::events::seat;
use crate::harness::dns::{Dns, SILENCE};
use crate::harness::watcher::Feed;
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Connection, Gateway, Pair, Request, Seat, Step, card,
    ok_json, until_holds,
};
use crate::on_both_pairs;

/// The time after which an answer counts as missing.
const NEVER: Duration = Duration::from_secs(60);

/// A gateway with rooms for bodies. None is given up while a case runs.
async fn with_rooms(mib: u8) -> Gateway {
    Gateway::with(&format!(
        "limits.control_bodies_bytes={mib}MiB limits.bodies_bytes={mib}MiB limits.request_bytes=1MiB \
         timeouts.request_body=10min"
    ))
    .await
}

/// Two tokens of one caller.
async fn tokens(gateway: &Gateway) -> [String; 2] {
    let flooder = gateway.seat("flooder", "", agent().await).await;
    let second = gateway.token("/workspaces/flooder/tokens", "{}").await;
    [flooder.token, second]
}

fn watch(path: &str, token: &str) -> Request {
    let request = Request::get(path).field("Accept", "text/event-stream");
    request.bearer(token)
}

/// Sends a request that says it has 1 MB, and a part of it.
async fn unfinished(gateway: &Gateway, request: &Request, bytes: usize) -> Connection {
    let mut connection = Connection::open(gateway.public).await;
    let request = request.clone().field("Content-Length", "1000000");
    connection.ask(&request).await;
    let part = vec![b' '; bytes];
    let _ = timeout(NEVER, connection.try_send(&part)).await;
    connection
}

/// An agent that answers every call but those that say `hold`.
async fn agent() -> Agent {
    let answer = ok_json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#);
    Agent::scripted(move |request| match request.text().contains("hold") {
        true => vec![Step::Hang],
        false => vec![Step::Write(answer.clone())],
    })
    .await
}

/// Tokens of so many canvas users that one org token names.
async fn users(gateway: &Gateway, count: usize) -> Vec<String> {
    let org = gateway.token("/orgs/acme/tokens", "{}").await;
    let mut tokens = Vec::new();
    for n in 0..count {
        let body = json!({"user": format!("u-{n}")}).to_string();
        let request = Request::post("/canvas/tokens", body).bearer(&org);
        let made = gateway.call(&request).await.has(201);
        tokens.push(made.json()["token"].as_str().expect("a token").to_owned());
    }
    tokens
}

/// Calls and heartbeats of an honest caller all succeed.
async fn assert_served(gateway: &Gateway, honest: &Seat, target: &Seat) {
    let beat = json!({"workspace_id": honest.id}).to_string();
    let beat = Request::post("/registry/heartbeat", beat).bearer(&honest.token);
    for _ in 0..20 {
        for request in [&honest.calls(target), &beat] {
            let answer = gateway.call(request).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
}

fn assert_bounded(answer: &Answer, reason: &str, says: &str) {
    answer.refuses(503, reason);
    assert!(answer.text().contains(says), "{}", answer.text());
}

on_both_pairs! {
    async fn one_org_pushes_out_nobody_elses_events(pair: Pair) {
        let on_redis = matches!(pair, Pair::External);
        let mut gateway = Builder::new(pair).sets("rate.caller_per_second=0").start().await;
        let quiet = seat(&gateway, "quiet", None, Some("acme")).await;
        let loud = seat(&gateway, "loud", None, Some("globex")).await;
        let org = gateway.token("/orgs/acme/tokens", "{}").await;
        let others = gateway.token("/orgs/globex/tokens", "{}").await;
        let note = |id: &str, token: &str, text: &str| {
            let body = json!({"message": text}).to_string();
            Request::post(format!("/workspaces/{id}/notify"), body).bearer(token)
        };
        let after = |token: &str, id: &str| watch("/events", token).field("Last-Event-ID", id);
        let mut feed = Feed::open(gateway.public, &watch("/events", &org)).await;
        assert!(gateway.call(&note("quiet", &quiet, "first")).await.status < 300);
        let first = feed.event().await.id.expect("an id");
        drop(feed);
        assert!(gateway.call(&note("quiet", &quiet, "missed")).await.status < 300);
        let mut connection = Connection::open(gateway.public).await;
        for _ in 0..1_050 {
            let answer = connection.call(&note("loud", &loud, "x")).await;
            assert!(answer.status < 300, "{}", answer.text());
        }
        // The last of them has come through.
        assert!(gateway.call(&note("quiet", &quiet, "last")).await.status < 300);
        for restarted in [false, true] {
            if restarted {
                gateway.restart().await;
            }
            let mut feed = Feed::open(gateway.public, &after(&org, &first)).await;
            for text in ["missed", "last"] {
                let event = feed.event().await;
                assert_eq!(event.data["event"], "AGENT_MESSAGE", "{:?}", event.data);
                assert_eq!(event.data["payload"]["message"], text, "{:?}", event.data);
            }
            // Who may see what was dropped is told that something is missing.
            let mut feed = Feed::open(gateway.public, &after(&others, &first)).await;
            assert_eq!(feed.event().await.event.as_deref(), Some("gap"));
            if !on_redis {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_of_strangers_are_not_awaited_and_take_no_room() {
    let gateway = with_rooms(1).await;
    let (honest, target) = gateway.pair(agent().await).await;
    let wrong = format!("a2aw_{}", "x".repeat(43));
    let mut open = Vec::new();
    for _ in 0..2 {
        for (method, path, status) in [
            ("POST", "/registry/register", 401),
            ("POST", "/registry/heartbeat", 401),
            ("POST", "/workspaces", 401),
            ("PATCH", "/workspaces/target", 401),
            ("POST", "/workspaces/target/notify", 401),
            ("POST", "/canvas/tokens", 401),
            ("POST", "/workspaces/target/a2a", 401),
            ("POST", "/workspaces/target/a2a/v1/message:send", 401),
            ("POST", "/nowhere", 404),
            ("PUT", "/registry/register", 405),
        ] {
            let request = Request::new(method, path).field("Content-Type", "application/json");
            for request in [request.clone(), request.bearer(&wrong)] {
                let mut connection = unfinished(&gateway, &request, 100 << 10).await;
                let answer = timeout(NEVER, connection.read_head()).await;
                let answer = answer.expect("it is not awaited").expect("an answer");
                assert_eq!(answer.status, status, "{method} {path}");
                open.push(connection);
            }
        }
    }
    assert_served(&gateway, &honest, &target).await;
    let refused = "a2a_gateway_bodies_refused_total";
    assert_eq!(gateway.metric(refused, &[]).await, 0.0);
    drop(open);
    gateway.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_bodies_of_one_caller_leave_room_for_others() {
    let gateway = with_rooms(4).await;
    let (honest, target) = gateway.pair(agent().await).await;
    let tokens = tokens(&gateway).await;
    let mut open = Vec::new();
    for (path, says) in [
        ("/registry/heartbeat", "limits.control_bodies_bytes"),
        (&target.path(), "limits.bodies_bytes"),
    ] {
        let mut answers = FuturesUnordered::new();
        for n in 0..6 {
            let request = Request::post(path, "").bearer(&tokens[n % 2]);
            let mut connection = unfinished(&gateway, &request, 900 << 10).await;
            answers.push(async move {
                let head = connection.read_head().await.expect("an answer");
                connection.read_body(head).await
            });
        }
        // Half of 4 MiB is room for two such bodies.
        let refused = timeout(NEVER, answers.next()).await;
        let refused = refused.expect("one is refused").unwrap();
        assert_bounded(&refused, "overloaded", says);
        refused.says("half of what others leave");
        open.push(answers);
    }
    assert_served(&gateway, &honest, &target).await;
    drop(open);
    gateway.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_caller_cannot_hold_all_places_of_a_target() {
    let gateway = Gateway::with("limits.target_concurrency=8").await;
    let (honest, target) = gateway.pair(agent().await).await;
    let tokens = tokens(&gateway).await;
    let mut open = Vec::new();
    for n in 0..4 {
        let before = target.agent.count();
        let call = Request::post(target.path(), CALL.replace("hi", "hold")).bearer(&tokens[n % 2]);
        let mut connection = Connection::open(gateway.public).await;
        connection
            .send(&call.wire(&gateway.public.to_string()))
            .await;
        target.agent.until_count(before + 1).await;
        open.push(connection);
    }
    for token in &tokens {
        let call = Request::post(target.path(), CALL).bearer(token);
        assert_bounded(&gateway.call(&call).await, "agent_busy", "others leave");
    }
    assert_served(&gateway, &honest, &target).await;
    // Operators are callers, too.
    let call = Request::post(target.path(), CALL);
    gateway.as_operator(call).await.has(200);
    drop(open);
    gateway.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_caller_cannot_hold_all_event_streams() {
    let gateway = Gateway::with("events.connections=8 inbox.connections=8").await;
    let (honest, target) = gateway.pair(agent().await).await;
    let tokens = tokens(&gateway).await;
    let mut open = Vec::new();
    for (path, section) in [("/events", "events"), ("/activity", "inbox")] {
        for n in 0..4 {
            open.push(Feed::open(gateway.public, &watch(path, &tokens[n % 2])).await);
        }
        for token in &tokens {
            let says = format!("others leave of {section}.connections");
            let answer = gateway.call(&watch(path, token)).await;
            assert_bounded(&answer, "overloaded", &says);
        }
        open.push(Feed::open(gateway.public, &watch(path, &honest.token)).await);
    }
    assert_served(&gateway, &honest, &target).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_org_token_that_names_many_users_has_what_one_caller_may_have() {
    let gateway = Gateway::with("events.connections=8 limits.target_concurrency=8").await;
    let (honest, target) = gateway.pair(agent().await).await;
    for id in [&honest.id, &target.id] {
        gateway.patch(id, json!({"org": "acme"})).await.has(200);
    }
    let users = users(&gateway, 12).await;
    let mut open = Vec::new();
    let mut refused = Vec::new();
    for user in &users {
        let watch = watch("/events", user);
        let feed = Feed::try_open(gateway.public, &watch).await;
        let feed = feed.expect("a head");
        match feed.head.status {
            200 => open.push(feed),
            _ => refused.push(gateway.call(&watch).await),
        }
    }
    assert_eq!(open.len(), 4, "half of eight");
    for answer in &refused {
        assert_bounded(answer, "overloaded", "others leave of events.connections");
    }
    open.push(Feed::open(gateway.public, &watch("/events", &honest.token)).await);

    let hold = |user: &String| {
        let call = Request::post(target.path(), CALL.replace("hi", "hold")).bearer(user);
        let at = gateway.public;
        async move {
            let mut connection = Connection::open(at).await;
            connection.ask(&call).await;
            connection.read_head().await.expect("an answer").status
        }
    };
    let mut calls: FuturesUnordered<_> = users.iter().map(hold).collect();
    for _ in 0..8 {
        let refused = timeout(NEVER, calls.next()).await;
        assert_eq!(refused.expect("eight are refused"), Some(503));
    }
    target.agent.until_count(4).await;
    assert_eq!(calls.len(), 4, "half of eight places");
    assert_eq!(target.agent.count(), 4, "half of eight places");
    assert_served(&gateway, &honest, &target).await;
    drop((calls, open));
    gateway.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_org_token_that_names_many_users_has_one_rate_for_all_of_them() {
    let caller = "rate.caller_per_second=1 rate.caller_burst=20";
    let users = "rate.org_users_per_second=1 rate.org_users_burst=60";
    let gateway = Gateway::with(&format!("{caller} {users}")).await;
    let users = self::users(&gateway, 10).await;
    let list = |user: &str| Request::get("/workspaces?limit=1").bearer(user);
    // One user alone is bounded by its own rate, and takes nothing of the others' with what is refused.
    let mut passed = 0;
    for _ in 0..100 {
        passed += usize::from(gateway.call(&list(&users[0])).await.status == 200);
    }
    assert!(passed < 60, "{passed}");
    gateway.call(&list(&users[1])).await.has(200);
    let mut last = None;
    for user in &users[1..] {
        for _ in 0..15 {
            let answer = gateway.call(&list(user)).await;
            match answer.status {
                200 => passed += 1,
                _ => last = Some(answer),
            }
        }
    }
    let last = last.expect("a refusal");
    last.refuses(429, "rate_limited");
    last.says("rate.org_users_per_second");
    assert!(last.field("retry-after").is_some());
    assert!(passed < 120, "{passed} of 235");
    gateway.call(&list(ADMIN)).await.has(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_caller_cannot_hold_all_look_ups_of_names() {
    let here = || vec!["127.0.0.1".parse().unwrap()];
    let dns = Dns::start(move |name, number| match name {
        "good.test" => here(),
        // Answers once, and then no more.
        "fading.test" if number == 0 => here(),
        _ => vec![SILENCE],
    })
    .await;
    let settings = "a2a.push_notifications=true rate.caller_per_second=0";
    let gateway = Gateway::with(&format!("{settings} address.nameservers={}", dns.address)).await;
    let (honest, target) = gateway.pair(agent().await).await;
    let flooder = gateway.seat("flooder", "", agent().await).await;
    let mut named = Vec::new();
    for name in ["good.test", "fading.test"] {
        let agent = agent().await;
        let enrolment = gateway.create(json!({"id": name, "name": name})).await;
        let url = format!("http://{name}:{}/", agent.port);
        let token = gateway.register(name, &enrolment, &url, card(name)).await;
        let id = name.to_owned();
        named.push(Seat { id, token, agent });
    }
    let mut flood = JoinSet::new();
    for n in 0..100 {
        let (path, token, public) = (target.path(), flooder.token.clone(), gateway.public);
        flood.spawn(async move {
            for turn in 0.. {
                let url = format!("http://n{n}x{turn}.silent.test/");
                let body = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {
                    "message": {"kind": "message", "messageId": "m", "role": "user", "parts": []},
                    "configuration": {"pushNotificationConfig": {"url": url}}}});
                let request = Request::post(&path, body.to_string()).bearer(&token);
                let answer = Connection::open(public).await.call(&request).await;
                assert_eq!(&*answer.reason(), "address_forbidden", "{}", answer.text());
            }
        });
    }
    // Both names are asked for again, beside the flood.
    until_holds("the names are looked up again", async || {
        for seat in &named {
            let answer = gateway.call(&honest.calls(seat)).await;
            assert_eq!(answer.status, 200, "{}: {}", seat.id, answer.text());
        }
        named.iter().all(|seat| dns.lookups(&seat.id) >= 3)
    })
    .await;
    assert_served(&gateway, &honest, &target).await;
    flood.shutdown().await;
}
