//! Events: who hears of what, in which order, for how long, and what becomes of those who do not read.
//!
//! Events are put where every replica's rooms put them, into the log in the shared state; how rooms
//! come to tell of them is shown with the rooms.

mod audience;
mod crowd;
mod ends;
mod handshakes;
mod replicas;
mod tickets;

use serde_json::{Value, json};

use crate::harness::servers::{self, Redis};
use crate::harness::watcher::Feed;
use crate::harness::{ADMIN, Builder, Gateway, Pair, Request};

/// Waits until a gateway has heard of an event: who comes later hears nothing of it.
pub(crate) async fn until_heard(gateway: &Gateway, event: &str, workspace: &str) {
    // No event has this id: the answer is a gap, and all that is kept.
    let request = Request::get("/events").field("Last-Event-ID", "unknown");
    let request = request.bearer(ADMIN);
    let mut feed = Feed::open(gateway.public, &request).await;
    loop {
        let heard = feed.event().await.data;
        if heard["event"] == event && heard["workspace_id"] == workspace {
            return;
        }
    }
}

/// Replicas on one Redis and one PostgreSQL.
pub(crate) struct Replicas {
    pub(crate) all: Vec<Gateway>,
    pub(crate) redis: Redis,
    _keys: tempfile::TempDir,
}

impl Replicas {
    pub(crate) async fn start(count: usize, sets: &[(&str, &str)]) -> Self {
        Self::built(count, sets, |builder| builder).await
    }

    pub(crate) async fn built(
        count: usize,
        sets: &[(&str, &str)],
        build: impl Fn(Builder) -> Builder,
    ) -> Self {
        let redis = Redis::start();
        let keys = tempfile::tempdir().unwrap();
        let sql = servers::postgres().database();
        let mut all = Vec::new();
        for _ in 0..count {
            let mut builder = Builder::new(Pair::Embedded)
                .stores(&sql, &redis.url())
                .set("keys.dir", keys.path().to_str().unwrap())
                .set("tokens.issuer", "https://gateway.example");
            for (key, value) in sets {
                builder = builder.set(key, value);
            }
            let gateway = build(builder).start().await;
            gateway.until_coherent().await;
            all.push(gateway);
        }
        Self {
            all,
            redis,
            _keys: keys,
        }
    }

    /// Puts one event into the log, as a replica does: of a workspace that is at `now` and was at `was`.
    pub(crate) fn tell(
        &self,
        event: &str,
        workspace: &str,
        payload: Value,
        now: Value,
        was: Value,
    ) {
        self.tell_many(1, event, workspace, payload, now, was);
    }

    /// The same so often, at once; `@N` in the payload is the number of each.
    pub(crate) fn tell_many(
        &self,
        count: usize,
        event: &str,
        workspace: &str,
        payload: Value,
        now: Value,
        was: Value,
    ) {
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let record = json!({"nonce": format!("{number}-@N"), "event": event, "workspace_id": workspace,
            "timestamp": "2026-01-02T03:04:05.678Z", "payload": payload, "now": now, "was": was});
        let script = "for n = 0, ARGV[2] - 1 do local text = string.gsub(ARGV[1], '@N', tostring(n)) \
            redis.call('XADD', KEYS[1], '*', 'e', text) end";
        let (record, count) = (record.to_string(), count.to_string());
        self.redis
            .command(&["EVAL", script, "1", "gw:events", &record, &count]);
    }

    /// A numbered change of a root workspace without an org.
    pub(crate) fn change(&self, workspace: &str, n: usize) {
        let payload = json!({"status": "online", "n": n});
        let now = place(None, &[]);
        self.tell("WORKSPACE_ONLINE", workspace, payload, now, Value::Null);
    }
}

/// A place, as in the log.
pub(crate) fn place(org: Option<&str>, above: &[&str]) -> Value {
    json!({"org": org, "above": above})
}

/// Makes a workspace; answers a token of it.
pub(crate) async fn seat(
    gateway: &Gateway,
    id: &str,
    parent: Option<&str>,
    org: Option<&str>,
) -> String {
    let workspace = json!({"id": id, "name": id, "parent_id": parent, "org": org});
    gateway.create(workspace).await;
    let path = format!("/workspaces/{id}/tokens");
    gateway.token(&path, "{}").await
}

/// Makes a token; answers it and its id.
pub(crate) async fn token(gateway: &Gateway, path: &str, body: Value) -> (String, String) {
    let answer = gateway.post(path, body).await.has(201);
    let text = |name: &str| answer.json()[name].as_str().unwrap_or_default().to_owned();
    (text("token"), text("id"))
}

/// A ticket of the holder of `token`.
pub(crate) async fn ticket(gateway: &Gateway, token: &str) -> String {
    let request = Request::post("/ws/tickets", "").bearer(token);
    let json = gateway.call(&request).await.has(201).json();
    assert_eq!(json["expires_in"], 30);
    assert!(json["expires_at"].as_str().unwrap().ends_with('Z'));
    json["ticket"].as_str().unwrap().to_owned()
}
