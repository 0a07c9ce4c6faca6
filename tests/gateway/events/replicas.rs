//! Over replicas: one order, one id for each event, replay anywhere, gaps that are said, and who sees a
//! workspace that moved or went.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{Replicas, place, seat, token, until_heard};
use crate::harness::watcher::{Feed, Socket, handshake};
use crate::harness::{ADMIN, Request};

const A_WHILE: Duration = Duration::from_millis(500);

fn events() -> Request {
    Request::get("/events").bearer(ADMIN)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_tells_the_same_events_in_one_order_and_replays_what_another_told() {
    let replicas = Replicas::start(3, &[]).await;
    let [one, two, three] = &replicas.all[..] else {
        panic!("three");
    };
    let mut feeds = [
        Feed::open(one.public, &events()).await,
        Feed::open(two.public, &events()).await,
    ];
    let mut socket = Socket::open(three.public, &handshake("/ws").bearer(ADMIN)).await;
    for n in 0..20 {
        replicas.change("w", n);
    }
    let mut ids = Vec::new();
    for n in 0..20 {
        let frame = socket.event().await;
        assert_eq!(frame["payload"]["n"], n);
        assert_eq!(frame["event"], "WORKSPACE_ONLINE");
        assert_eq!(frame["workspace_id"], "w");
        assert_eq!(frame["timestamp"], "2026-01-02T03:04:05.678Z");
        assert_eq!(frame.as_object().unwrap().len(), 5);
        ids.push(frame["id"].as_str().unwrap().to_owned());
        for feed in &mut feeds {
            let event = feed.event().await;
            assert_eq!(event.data, frame);
            assert_eq!(event.id.as_deref(), frame["id"].as_str());
            assert_eq!(event.event, None, "`onmessage` of a browser hears it");
        }
    }
    assert_eq!(feeds[0].head.field("cache-control"), Some("no-store"));
    assert_eq!(feeds[0].head.field("x-accel-buffering"), Some("no"));
    // Left after the 8th on the first; goes on at the third, by the field or by the query.
    drop(feeds);
    replicas.change("w", 20);
    let by_field = events().field("Last-Event-ID", &ids[7]);
    let by_query = Request::get(format!("/events?last_event_id={}", ids[7])).bearer(ADMIN);
    for request in [by_field, by_query] {
        let mut feed = Feed::open(three.public, &request).await;
        for n in 8..21 {
            assert_eq!(feed.event().await.data["payload"]["n"], n);
        }
        assert!(feed.is_silent(A_WHILE).await);
    }
    // At once after it was told, on a replica that may not have it yet.
    socket.event().await;
    replicas.change("w", 21);
    let newest = socket.event().await["id"].as_str().unwrap().to_owned();
    let mut feed = Feed::open(one.public, &events().field("Last-Event-ID", &newest)).await;
    replicas.change("w", 22);
    assert_eq!(feed.event().await.data["payload"]["n"], 22);
    // Unknown: a gap, then what there is.
    for unknown in ["1-1", "99999999999999-0", "nonsense"] {
        let mut feed = Feed::open(two.public, &events().field("Last-Event-ID", unknown)).await;
        let gap = feed.event().await;
        assert_eq!(gap.event.as_deref(), Some("gap"), "{unknown}");
        assert_eq!((gap.id, &gap.data["event"]), (None, &json!("GAP")));
        for n in 0..23 {
            assert_eq!(feed.event().await.data["payload"]["n"], n);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_missed_over_an_outage_and_a_log_that_was_lost_is_a_gap() {
    let replicas = Replicas::start(1, &[]).await;
    let gateway = &replicas.all[0];
    let mut feed = Feed::open(gateway.public, &events()).await;
    replicas.change("w", 0);
    let first = feed.event().await;
    replicas.redis.pause();
    assert!(feed.is_silent(Duration::from_millis(1_500)).await);
    replicas.redis.resume();
    for n in 1..50 {
        replicas.change("w", n);
    }
    for n in 1..50 {
        assert_eq!(feed.event().await.data["payload"]["n"], n);
    }
    replicas.redis.command(&["FLUSHALL"]);
    assert_eq!(feed.event().await.event.as_deref(), Some("gap"));
    replicas.change("w", 50);
    assert_eq!(feed.event().await.data["payload"]["n"], 50);
    let again = events().field("Last-Event-ID", first.id.unwrap());
    let mut again = Feed::open(gateway.public, &again).await;
    assert_eq!(again.event().await.event.as_deref(), Some("gap"));
    assert_eq!(again.event().await.data["payload"]["n"], 50);
    replicas.redis.kill();
    tokio::time::sleep(Duration::from_millis(500)).await;
    replicas.redis.restart();
    assert_eq!(feed.event().await.event.as_deref(), Some("gap"));
    replicas.change("w", 51);
    assert_eq!(feed.event().await.data["payload"]["n"], 51);
    assert!(gateway.metric("a2a_gateway_events_lost_total", &[]).await >= 2.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_message_a_workspace_hears_of_it_and_of_a_move_only_what_they_may_know() {
    let replicas = Replicas::start(2, &[]).await;
    let (one, two) = (&replicas.all[0], &replicas.all[1]);
    let pm = seat(one, "pm", None, Some("acme")).await;
    let dev = seat(one, "dev", Some("pm"), Some("acme")).await;
    let ext = seat(one, "ext", None, Some("other")).await;
    let canvas = |org: &str| json!({"user": "ada", "org": org});
    let acme = token(one, "/canvas/tokens", canvas("acme")).await.0;
    let other = token(one, "/orgs/other/tokens", json!({})).await.0;
    until_heard(two, "WORKSPACE_OFFLINE", "ext").await;
    let mut watchers = Vec::new();
    for token in [&pm, &dev, &ext, &acme, &other] {
        watchers.push(Socket::open(two.public, &handshake("/ws").bearer(token)).await);
    }
    let below = place(Some("acme"), &["pm"]);
    let online = json!({"status": "online"});
    let tell = |event: &str, id: &str, payload: &Value, now: &Value, was: &Value| {
        replicas.tell(event, id, payload.clone(), now.clone(), was.clone());
    };
    tell("WORKSPACE_ONLINE", "dev", &online, &below, &Value::Null);
    for n in [0, 1, 3] {
        assert_eq!(watchers[n].event().await["payload"], online);
    }
    let moved = json!({"parent_id": "ext", "org": "other"});
    let there = place(Some("other"), &["ext"]);
    tell("WORKSPACE_MOVED", "dev", &moved, &there, &below);
    for n in [0, 3] {
        let frame = watchers[n].event().await;
        assert_eq!(frame["event"], "WORKSPACE_MOVED");
        assert_eq!(frame["payload"], json!({}), "no word of where it is");
    }
    for n in [1, 2, 4] {
        assert_eq!(watchers[n].event().await["payload"], moved);
    }
    let mut gone = below.clone();
    gone["removed"] = true.into();
    tell("WORKSPACE_REMOVED", "qa", &json!({}), &gone, &below);
    for n in [0, 1, 3] {
        assert_eq!(watchers[n].event().await["event"], "WORKSPACE_REMOVED");
    }
    let silent = watchers.iter_mut().map(|one| one.is_silent(A_WHILE));
    assert_eq!(join_all(silent).await, [true; 5]);
}
