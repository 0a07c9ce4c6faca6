//! An inbox as an event stream: where it begins, how it goes on, how it ends.

use std::time::{Duration, Instant};

use serde_json::json;

use super::http::{acknowledge, get, is_refused, tell};
use crate::events::{seat, token};
use crate::harness::watcher::{Feed, Sse};
use crate::harness::{Builder, CALL, Gateway, Pair, Request};
use crate::on_both_pairs;

/// Follows this path.
fn follow_at(path: &str, token: &str) -> Request {
    let request = Request::get(path).field("Accept", "text/event-stream");
    request.bearer(token)
}

fn follow(token: &str) -> Request {
    follow_at("/workspaces/dev/activity", token)
}

async fn open(gateway: &Gateway, request: &Request) -> Feed {
    Feed::open(gateway.public, request).await
}

fn text(event: &Sse) -> &str {
    assert_eq!(event.event.as_deref(), Some("activity"));
    assert_eq!(event.id.as_deref(), event.data["id"].as_str());
    event.data["request_body"]["message"].as_str().unwrap()
}

async fn ends(feed: &mut Feed, event: &str, reason: &str) {
    let end = feed.event().await;
    assert_eq!(end.event.as_deref(), Some(event));
    assert_eq!(end.data["reason"], reason);
    assert_eq!(feed.next().await, None);
}

on_both_pairs! {
    async fn a_feed_begins_after_what_is_acknowledged_and_goes_on_after_any_entry(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let dev = seat(&gateway, "dev", None, None).await;
        for n in 1..=3 {
            tell(&gateway, "dev", &dev, &n.to_string()).await;
        }
        let first = get(&gateway, "/activity", &dev).await.json()[2]["id"].as_str().unwrap().to_owned();
        assert_eq!(acknowledge(&gateway, &dev, &first).await.status, 200);
        let mut feed = open(&gateway, &follow(&dev)).await;
        assert_eq!(feed.head.field("cache-control"), Some("no-store"));
        assert_eq!(feed.head.field("x-accel-buffering"), Some("no"));
        assert_eq!(gateway.metric("a2a_gateway_inbox_readers", &["stream"]).await, 1.0);
        let (two, three) = (feed.event().await, feed.event().await);
        assert_eq!((text(&two), text(&three)), ("2", "3"));
        tell(&gateway, "dev", &dev, "4").await;
        assert_eq!(text(&feed.event().await), "4");

        // Cut at any place, it goes on there; the field counts more than the query.
        drop(feed);
        let since = follow_at(&format!("/activity?since_id={first}"), &dev);
        let again = since.clone().field("Last-Event-ID", two.id.clone().unwrap());
        let mut again = open(&gateway, &again).await;
        assert_eq!(text(&again.event().await), "3");
        assert_eq!(text(&again.event().await), "4");
        assert_eq!(text(&open(&gateway, &since).await.event().await), "2");
        let mut filtered = open(&gateway, &follow_at("/activity?source=canvas", &dev)).await;
        assert!(filtered.is_silent(Duration::from_millis(300)).await);

        // A large one comes whole and in one line.
        let long = "\n\r x".repeat(16_000);
        tell(&gateway, "dev", &dev, &long).await;
        assert_eq!(text(&again.event().await), long);
        for id in ["no", "\u{e4}"] {
            let gone = gateway.call(&follow(&dev).field("Last-Event-ID", id)).await;
            is_refused(&gone, 410, "cursor_gone", id);
        }
    }

    async fn a_feed_says_why_it_ends(pair: Pair) {
        let mut gateway = Builder::new(pair).set("inbox.connections_per_caller", "2").set("server.drain", "10min").start().await;
        let dev = seat(&gateway, "dev", None, None).await;
        let (goes, id) = token(&gateway, "/workspaces/dev/tokens", json!({})).await;
        let mut cut = open(&gateway, &follow(&goes)).await;
        let mut stays = open(&gateway, &follow(&dev)).await;
        let full = gateway.call(&follow(&goes)).await;
        is_refused(&full, 429, "rate_limited", "both tokens are one caller");
        let path = format!("/workspaces/dev/tokens/{id}");
        assert_eq!(gateway.as_operator(Request::new("DELETE", path)).await.status, 200);
        ends(&mut cut, "end", "unauthenticated").await;
        gateway.terminate();
        ends(&mut stays, "end", "shutting_down").await;
        assert!(gateway.wait(Duration::from_secs(60)).success());
    }

    async fn a_gap_is_said_and_what_a_filter_passed_over_is_none(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let dev = gateway.poller("dev").await;
        let ada = json!({"user": "ada", "workspaces": ["dev"]});
        let ada = token(&gateway, "/canvas/tokens", ada).await.0;
        tell(&gateway, "dev", &dev, "1").await;
        let first = get(&gateway, "/activity", &dev).await.json()[0]["id"].as_str().unwrap().to_owned();
        let mut feed = open(&gateway, &follow(&dev).field("Last-Event-ID", &*first)).await;
        let canvas = follow_at("/activity?source=canvas", &dev).field("Last-Event-ID", &*first);
        let mut canvas = open(&gateway, &canvas).await;
        for n in 2..=4 {
            tell(&gateway, "dev", &dev, &n.to_string()).await;
            assert_eq!(text(&feed.event().await), n.to_string());
        }
        // It has passed over them, too, while they were still an agent's.
        let call = Request::post("/workspaces/dev/a2a", CALL).bearer(&ada);
        assert_eq!(gateway.call(&call).await.status, 200);
        for feed in [&mut feed, &mut canvas] {
            assert_eq!(feed.event().await.data["seq"], 5);
        }
        // As after a long absence: what they have seen, or were never to see, is pruned.
        let db = crate::stores::open_db(&gateway.sql_url());
        let run = async |text: &'static str| { sqlx::query(text).execute(db.pool()).await.unwrap(); };
        run("DELETE FROM activity_logs WHERE seq < 4").await;
        run("UPDATE activity_logs SET source_kind = 'canvas'").await;
        tell(&gateway, "dev", &dev, "6").await;
        assert_eq!(text(&feed.event().await), "6");
        assert!(canvas.is_silent(Duration::from_millis(300)).await);
        // What they have not seen.
        run("UPDATE activity_logs SET seq = seq + 10").await;
        run("UPDATE inbox_heads SET last_seq = last_seq + 10").await;
        tell(&gateway, "dev", &dev, "17").await;
        ends(&mut feed, "gap", "cursor_gone").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_feed_is_kept_open_by_comments() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let dev = seat(&gateway, "dev", None, None).await;
    // The gateway counts from its first word on, and we hear that later.
    let began = Instant::now();
    let mut feed = open(&gateway, &follow(&dev)).await;
    let mut heard = String::new();
    while !heard.contains(": keepalive\n") {
        let chunk = feed.connection.next_chunk().await.expect("open");
        heard.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    let open_for = began.elapsed();
    assert!(open_for > Duration::from_secs(14), "{open_for:?}");
}
