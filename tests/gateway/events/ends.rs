//! How watching ends: the credential goes, the process goes, or there are too many.

use std::time::Duration;

use serde_json::json;

use super::{Replicas, seat, ticket, token, until_heard};
use crate::harness::watcher::{Feed, Socket, handshake};
use crate::harness::{ADMIN, Agent, Builder, CALL, Gateway, Pair, Request, until_holds};

async fn revoke(gateway: &Gateway, path: &str) {
    let answer = gateway.as_operator(Request::new("DELETE", path)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_or_expired_credential_closes_what_it_opened_on_every_replica() {
    let replicas = Replicas::start(2, &[]).await;
    let (one, two) = (&replicas.all[0], &replicas.all[1]);
    seat(one, "w", None, Some("acme")).await;
    let (stays, _) = token(one, "/workspaces/w/tokens", json!({})).await;
    let (goes, id) = token(one, "/workspaces/w/tokens", json!({})).await;
    let (org, org_id) = token(one, "/orgs/acme/tokens", json!({})).await;
    let by_ticket = handshake(&format!("/ws?ticket={}", ticket(one, &goes).await));
    for gateway in &replicas.all {
        until_heard(gateway, "WORKSPACE_OFFLINE", "w").await;
    }
    let mut spared = Socket::open(two.public, &handshake("/ws").bearer(&stays)).await;
    let mut sockets = vec![
        Socket::open(one.public, &handshake("/ws").bearer(&goes)).await,
        Socket::open(two.public, &handshake("/ws").bearer(&goes)).await,
        Socket::open(two.public, &by_ticket).await,
        Socket::open(two.public, &handshake("/ws").bearer(&org)).await,
    ];
    let mut feed = Feed::open(two.public, &Request::get("/events").bearer(&goes)).await;
    let waiting = ticket(one, &goes).await;
    revoke(one, &format!("/workspaces/w/tokens/{id}")).await;
    revoke(one, &format!("/orgs/acme/tokens/{org_id}")).await;
    for socket in &mut sockets {
        let (code, reason) = socket.next().await.unwrap_err();
        assert_eq!(code, 4401, "{reason}");
    }
    let end = feed.event().await;
    assert_eq!(end.event.as_deref(), Some("end"));
    assert_eq!(end.data["reason"], "unauthenticated");
    assert_eq!(feed.next().await, None);
    // A ticket dies with the credential that made it.
    let answer = two.call(&handshake(&format!("/ws?ticket={waiting}"))).await;
    assert_eq!(answer.status, 401);
    // A store that is away takes nothing from those who are in.
    replicas.redis.kill();
    assert!(spared.is_silent(Duration::from_millis(2_000)).await);
    replicas.redis.restart();
    let brief = json!({"user": "ada", "org": "acme", "ttl_seconds": 10});
    let (brief, _) = token(one, "/canvas/tokens", brief).await;
    let mut socket = Socket::open(one.public, &handshake("/ws").bearer(&brief)).await;
    // The log was lost with Redis, which is said first.
    let end = loop {
        match socket.next().await {
            Ok(frame) => assert_eq!(frame["event"], "GAP"),
            Err(end) => break end,
        }
    };
    assert_eq!(end.0, 4401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_there_may_be_are_refused_and_one_that_leaves_makes_room() {
    let gateway = Builder::new(Pair::Embedded)
        .set("events.connections", "5")
        .set("events.connections_per_caller", "2")
        // As many as will watch: a request that is over gives its place back a moment after its answer.
        .set("server.max_exchanges", "3")
        .start()
        .await;
    let other = seat(&gateway, "w", None, None).await;
    let open = |token: &str| handshake("/ws").bearer(token);
    let first = Socket::open(gateway.public, &open(ADMIN)).await;
    let feed = Request::get("/events");
    let _feed = Feed::open(gateway.public, &feed.clone().bearer(ADMIN)).await;
    for request in [open(ADMIN), feed.clone().bearer(ADMIN)] {
        let answer = gateway.call(&request).await;
        answer.refuses(429, "rate_limited");
        assert!(answer.field("retry-after").is_some());
    }
    let _third = Socket::open(gateway.public, &open(&other)).await;
    let answer = gateway.call(&feed.bearer(&other)).await;
    answer.refuses(503, "overloaded");
    assert_eq!(answer.field("retry-after"), Some("1"));
    // Watching takes no place among the exchanges.
    let own = Request::get("/workspaces/w").bearer(&other);
    assert_eq!(gateway.call(&own).await.status, 200);
    drop(first);
    let is_gone = async || gateway.counts("event_readers", "socket").await == 1.0;
    until_holds("the reader that left is gone", is_gone).await;
    drop(Socket::open(gateway.public, &open(ADMIN)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_told_to_those_who_watch_its_target_and_costs_nothing_when_nobody_does() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
    let (caller, target) = gateway.pair(agent).await;
    let call = Request::post(target.path(), CALL).bearer(&caller.token);
    assert_eq!(gateway.call(&call).await.status, 200);
    let published = "a2a_gateway_events_published_total";
    assert_eq!(gateway.metric(published, &["passing"]).await, 0.0);
    let events = Request::get("/events").bearer(&caller.token);
    let mut feed = Feed::open(gateway.public, &events).await;
    assert_eq!(gateway.call(&call).await.status, 200);
    loop {
        let event = feed.event().await;
        if event.data["event"] != "A2A_RESPONSE" {
            continue;
        }
        assert_eq!(event.id, None, "what passes is not replayed");
        assert_eq!(event.data["workspace_id"], "target");
        let payload = event.data["payload"].as_object().unwrap();
        assert_eq!(payload["method"], "send_message");
        assert_eq!(payload["outcome"], "answered");
        assert!(payload["duration_ms"].is_u64());
        assert_eq!(payload.len(), 3);
        break;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_closes_them_at_once_and_ends_without_waiting() {
    let mut gateway = Gateway::with("server.drain=10min").await;
    let mut socket = Socket::open(gateway.public, &handshake("/ws").bearer(ADMIN)).await;
    let mut mute = Socket::open(gateway.public, &handshake("/ws").bearer(ADMIN)).await;
    let mut feed = Feed::open(gateway.public, &Request::get("/events").bearer(ADMIN)).await;
    assert_eq!(gateway.counts("event_readers", "socket").await, 2.0);
    assert_eq!(gateway.counts("event_readers", "stream").await, 1.0);
    gateway.terminate();
    let (code, reason) = socket.next().await.unwrap_err();
    assert_eq!(code, 1001, "{reason}");
    let end = feed.event().await;
    assert_eq!(end.event.as_deref(), Some("end"));
    assert_eq!(end.data["reason"], "shutting_down");
    assert_eq!(feed.next().await, None);
    // One that never answers the close does not hold it up either.
    assert!(gateway.wait(Duration::from_secs(60)).success());
    assert_eq!(mute.next().await.unwrap_err().0, 1001);
}
