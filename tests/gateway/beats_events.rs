//! The events of liveness on three replicas: each change is told once on each, whoever noted it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use crate::events::until_heard;
use crate::harness::servers::{self, Redis};
use crate::harness::{ADMIN, Agent, Builder, Connection, Gateway, Pair, Request, Seat, calmly};

const TTL: Duration = Duration::from_secs(2);
/// `offline` and its event are promised within this after the lapse.
const NOTED: Duration = Duration::from_secs(2);

/// An SSE reader, and what came so far.
struct Watch {
    connection: Connection,
    text: String,
}

impl Watch {
    async fn open(gateway: &Gateway) -> Self {
        let mut connection = Connection::open(gateway.public).await;
        let request = Request::get("/events").bearer(ADMIN);
        let wire = request.field("Accept", "text/event-stream");
        connection
            .send(&wire.wire(&gateway.public.to_string()))
            .await;
        let mut watch = Self {
            connection,
            text: String::new(),
        };
        let until = Instant::now() + NOTED;
        while !watch.text.contains("\r\n\r\n") {
            assert!(Instant::now() < until, "no head: {}", watch.text);
            watch.read(until).await;
        }
        assert!(watch.text.starts_with("HTTP/1.1 200"), "{}", watch.text);
        watch
    }

    async fn read(&mut self, until: Instant) {
        let mut piece = [0; 8192];
        let read = self.connection.stream.read(&mut piece);
        if let Ok(read) = tokio::time::timeout_at(until.into(), read).await {
            let read = read.expect("an open stream");
            self.text.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
    }

    /// The payloads of `event` for the target.
    fn told(&self, event: &str) -> Vec<Value> {
        let frames = self
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("data:"));
        let frames = frames.filter_map(|data| serde_json::from_str::<Value>(data.trim()).ok());
        frames
            .filter(|frame| frame["event"] == event && frame["workspace_id"] == "target")
            .map(|frame| frame["payload"].clone())
            .collect()
    }

    async fn until_told(&mut self, event: &str, times: usize, until: Instant) {
        while self.told(event).len() < times {
            assert!(Instant::now() < until, "{event}: {}", self.text);
            self.read(until).await;
        }
    }
}

async fn beat(gateway: &Gateway, seat: &Seat, more: Value) {
    let mut body = json!({"workspace_id": seat.id});
    let said = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(said);
    let request = Request::post("/registry/heartbeat", body.to_string()).bearer(&seat.token);
    assert_eq!(gateway.call(&request).await.status, 200);
}

async fn told_once_on_each(notices: &str) {
    let redis = Redis::start();
    redis.command(&["config", "set", "notify-keyspace-events", notices]);
    let sql = servers::postgres().database();
    let mut all = Vec::new();
    for _ in 0..3 {
        let builder = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
        all.push(builder.set("registry.heartbeat_ttl", "2s").start().await);
    }
    let target = all[0].seat("target", "", Agent::json("{}").await).await;
    for gateway in &all {
        until_heard(gateway, "AGENT_CARD_UPDATED", "target").await;
    }
    beat(&all[0], &target, json!({})).await;
    let mut watches = Vec::new();
    for gateway in &all {
        watches.push(Watch::open(gateway).await);
    }
    let trouble = json!({"error_rate": 0.75, "sample_error": "no\u{7} model"});
    for round in 0..3 {
        beat(&all[round], &target, json!({"active_tasks": round})).await;
        beat(&all[round], &target, trouble.clone()).await;
        beat(&all[round], &target, json!({"active_tasks": round})).await;
        let lapse = Instant::now() + TTL;
        let mut worst = Duration::ZERO;
        for watch in &mut watches {
            watch
                .until_told("WORKSPACE_OFFLINE", round + 1, lapse + NOTED)
                .await;
            worst = worst.max(Instant::now().saturating_duration_since(lapse));
        }
        eprintln!("{notices:?}, round {round}: told on all {worst:?} after the lapse");
        beat(&all[(round + 1) % 3], &target, json!({})).await;
    }
    for watch in &mut watches {
        let until = Instant::now() + NOTED;
        watch.until_told("WORKSPACE_ONLINE", 6, until).await;
    }
    // All at once: the next lapse is not far.
    let quiet = Instant::now() + Duration::from_millis(500);
    let reading = watches.iter_mut().map(|watch| async move {
        while Instant::now() < quiet {
            watch.read(quiet).await;
        }
    });
    futures_util::future::join_all(reading).await;
    for watch in &watches {
        let payload = json!({"status": "offline"});
        assert_eq!(watch.told("WORKSPACE_OFFLINE"), vec![payload; 3]);
        let payload = json!({"status": "degraded", "error_rate": 0.75, "sample_error": "no model"});
        assert_eq!(watch.told("WORKSPACE_DEGRADED"), vec![payload; 3]);
        // Out of trouble, and back from the lapse, in each round.
        assert_eq!(
            watch.told("WORKSPACE_ONLINE"),
            vec![json!({"status": "online"}); 6]
        );
        assert!(watch.told("TASK_UPDATED").len() >= 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_change_is_told_once_on_every_replica_by_redis_notice() {
    calmly(async || {
        told_once_on_each("Ex").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_change_is_told_once_on_every_replica_also_without_notices() {
    calmly(async || {
        told_once_on_each("").await;
    })
    .await;
}
