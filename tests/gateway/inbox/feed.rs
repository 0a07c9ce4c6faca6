//! An inbox as an event stream: where it begins, how it goes on, how it ends.

use std::time::{Duration, Instant};

use serde_json::json;

use super::http::{acknowledge, get, tell};
use crate::events::{seat, token};
use crate::harness::watcher::{Feed, Sse};
use crate::harness::{Builder, Gateway, Pair, Request};
use crate::on_both_pairs;

fn follow(token: &str) -> Request {
    Request::get("/workspaces/dev/activity")
        .field("Accept", "text/event-stream")
        .bearer(token)
}

async fn open(gateway: &Gateway, request: &Request) -> Feed {
    Feed::open(gateway.public, request).await
}

fn text(event: &Sse) -> &str {
    assert_eq!(event.event.as_deref(), Some("activity"));
    assert_eq!(event.id.as_deref(), event.data["id"].as_str());
    event.data["request_body"]["message"].as_str().unwrap()
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
        let again = Request { path: format!("/activity?since_id={first}"), ..follow(&dev) };
        let mut again = open(&gateway, &again.field("Last-Event-ID", two.id.clone().unwrap())).await;
        assert_eq!(text(&again.event().await), "3");
        assert_eq!(text(&again.event().await), "4");
        let by_query = Request { path: format!("/activity?since_id={first}"), ..follow(&dev) };
        assert_eq!(text(&open(&gateway, &by_query).await.event().await), "2");
        let filtered = Request { path: "/activity?source=canvas".into(), ..follow(&dev) };
        let mut filtered = open(&gateway, &filtered).await;
        assert!(filtered.is_silent(Duration::from_millis(300)).await);

        // A large one comes whole and in one line.
        let long = "\n\r x".repeat(16_000);
        tell(&gateway, "dev", &dev, &long).await;
        assert_eq!(text(&again.event().await), long);
        for id in ["no", "\u{e4}"] {
            let gone = gateway.call(&follow(&dev).field("Last-Event-ID", id)).await;
            assert_eq!((gone.status, &*gone.reason()), (410, "cursor_gone"));
        }
    }

    async fn a_feed_says_why_it_ends(pair: Pair) {
        let mut gateway = Builder::new(pair).set("inbox.connections_per_caller", "2").set("server.drain", "10min").start().await;
        let dev = seat(&gateway, "dev", None, None).await;
        let (goes, id) = token(&gateway, "/workspaces/dev/tokens", json!({})).await;
        let mut cut = open(&gateway, &follow(&goes)).await;
        let mut stays = open(&gateway, &follow(&dev)).await;
        let full = gateway.call(&follow(&goes)).await;
        assert_eq!((full.status, &*full.reason()), (429, "rate_limited"), "both tokens are one caller");
        let path = format!("/workspaces/dev/tokens/{id}");
        assert_eq!(gateway.as_operator(Request::new("DELETE", path)).await.status, 200);
        let end = cut.event().await;
        assert_eq!((end.event.as_deref(), &end.data["reason"]), (Some("end"), &json!("unauthenticated")));
        assert_eq!(cut.next().await, None);
        gateway.terminate();
        let end = stays.event().await;
        assert_eq!((end.event.as_deref(), &end.data["reason"]), (Some("end"), &json!("shutting_down")));
        assert_eq!(stays.next().await, None);
        assert!(gateway.wait(Duration::from_secs(60)).success());
    }

    async fn a_gap_is_said_and_what_a_filter_passed_over_is_none(pair: Pair) {
        sqlx::any::install_default_drivers();
        let gateway = Gateway::start(pair).await;
        let dev = seat(&gateway, "dev", None, None).await;
        tell(&gateway, "dev", &dev, "1").await;
        let first = get(&gateway, "/activity", &dev).await.json()[0]["id"].as_str().unwrap().to_owned();
        let mut feed = open(&gateway, &follow(&dev).field("Last-Event-ID", &*first)).await;
        let canvas = Request { path: "/activity?source=canvas".into(), ..follow(&dev) };
        let mut canvas = open(&gateway, &canvas.field("Last-Event-ID", &*first)).await;
        for n in 2..=4 {
            tell(&gateway, "dev", &dev, &n.to_string()).await;
            assert_eq!(text(&feed.event().await), n.to_string());
        }
        // It has passed over them, too, while they were still an agent's.
        assert!(canvas.is_silent(Duration::from_millis(300)).await);
        // As after a long absence: what they have seen, or were never to see, is pruned.
        let pool = sqlx::AnyPool::connect(&gateway.sql_url()).await.unwrap();
        let run = async |text: &'static str| { sqlx::query(text).execute(&pool).await.unwrap(); };
        run("DELETE FROM activity_logs WHERE seq < 4").await;
        run("UPDATE activity_logs SET source_kind = 'canvas'").await;
        tell(&gateway, "dev", &dev, "5").await;
        assert_eq!(text(&feed.event().await), "5");
        assert!(canvas.is_silent(Duration::from_millis(300)).await);
        // What they have not seen.
        run("UPDATE activity_logs SET seq = seq + 10").await;
        run("UPDATE inbox_heads SET last_seq = last_seq + 10").await;
        tell(&gateway, "dev", &dev, "16").await;
        let gap = feed.event().await;
        assert_eq!((gap.event.as_deref(), &gap.data["reason"]), (Some("gap"), &json!("cursor_gone")));
        assert_eq!(feed.next().await, None);
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
    assert!(
        began.elapsed() > Duration::from_secs(14),
        "{:?}",
        began.elapsed()
    );
}
