//! Calls and streams that a stop with mode `running` ends, and one with mode `new` leaves.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::{REASON, assert_stopped, call, release, stop, until};
use crate::harness::{
    Agent, Answer, Builder, CALL, Connection, Gateway, Pair, Request, SSE_HEAD, Step, chunk,
    holds_for,
};
use crate::on_embedded;

/// A stream's event.
pub(super) fn event(n: usize) -> Vec<u8> {
    let event = json!({"jsonrpc": "2.0", "id": "c-1", "result": {"kind": "message", "n": n}});
    chunk(format!("data: {event}\n\n"))
}

/// An agent that begins each stream, and never answers another call.
pub(super) async fn endless() -> Agent {
    Agent::scripted(|request| {
        if request.text().contains("message/stream") {
            return vec![Step::write(SSE_HEAD), Step::Write(event(0)), Step::Hang];
        }
        vec![Step::Hang]
    })
    .await
}

/// A stream that has begun.
pub(super) struct Open(Connection);

impl Open {
    pub(super) async fn new(gateway: &Gateway, request: &Request) -> Self {
        let mut connection = Connection::open(gateway.public).await;
        connection.send(&request.wire("localhost")).await;
        let head = connection.read_head().await.unwrap();
        assert_eq!(head.status, 200);
        connection.next_chunk().await.unwrap();
        Self(connection)
    }

    /// Its last event.
    pub(super) async fn last(mut self) -> Value {
        let mut last = Vec::new();
        while let Some(piece) = self.0.next_chunk().await {
            last = piece;
        }
        let text = String::from_utf8(last).unwrap();
        let data = text.lines().find_map(|line| line.strip_prefix("data:"));
        serde_json::from_str(data.unwrap_or("null")).unwrap()
    }
}

pub(super) fn stream(token: &str, target: &str) -> Request {
    let body = CALL.replace("message/send", "message/stream");
    Request::post(format!("/workspaces/{target}/a2a"), body).bearer(token)
}

fn begin(gateway: &Gateway, request: Request) -> JoinHandle<Answer> {
    let at = gateway.public;
    tokio::spawn(async move { Connection::open(at).await.call(&request).await })
}

on_embedded! {
    async fn calls_and_streams_under_way_end_and_those_of_others_go_on() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let (caller, target) = gateway.pair(endless().await).await;
        let calm = gateway.seat("calm", "", endless().await).await;
        let unary = begin(&gateway, call(&caller.token, "target"));
        let keyed = begin(&gateway, call(&caller.token, "target").field("Idempotency-Key", "k"));
        let others = begin(&gateway, call(&caller.token, "calm"));
        let open = Open::new(&gateway, &stream(&caller.token, "target")).await;
        let keyed_stream = stream(&caller.token, "target").field("Idempotency-Key", "s");
        let keyed_open = Open::new(&gateway, &keyed_stream).await;
        let calm_open = Open::new(&gateway, &stream(&caller.token, "calm")).await;
        until("all are at their agents", async || {
            (target.agent.count(), calm.agent.count()) == (4, 2)
        }).await;
        let new = stop(&gateway, json!({"workspace": "target"}), "new").await;
        let goes_on = async || !unary.is_finished() && !keyed.is_finished();
        holds_for(Duration::from_millis(300), "`new` leaves them", goes_on).await;
        let id = stop(&gateway, json!({"workspace": "target"}), "running").await;
        for (what, open) in [("a stream", open), ("a stream with a key", keyed_open)] {
            let last = open.last().await;
            assert_eq!(last["error"]["message"], REASON, "{what}: {last}");
            let data = &last["error"]["data"][0];
            assert_eq!(data["reason"], "STOPPED", "{what}: {last}");
            assert_eq!(data["metadata"]["stop"], id.as_str(), "{what}: {last}");
        }
        for (what, ended) in [("a call", unary), ("a call with a key", keyed)] {
            let answer = ended.await.unwrap();
            assert_stopped(&answer, &id, what);
            assert_eq!(answer.fact("delivered").as_deref(), Some("true"), "{what}");
        }
        release(&gateway, &new).await;
        release(&gateway, &id).await;
        assert!(!others.is_finished());
        others.abort();
        drop(calm_open);
    }

    async fn a_resumed_stream_ends_too() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let (caller, _target) = gateway.pair(endless().await).await;
        let mut first = Connection::open(gateway.public).await;
        first.send(&stream(&caller.token, "target").wire("localhost")).await;
        let head = first.read_head().await.unwrap();
        let name = head.field("x-a2a-stream").unwrap().to_owned();
        first.next_chunk().await.unwrap();
        let resume = Request::get(format!("/workspaces/target/streams/{name}"));
        let resumed = Open::new(&gateway, &resume.bearer(&caller.token)).await;
        drop(first);
        let id = stop(&gateway, json!({"subtree": "caller"}), "running").await;
        let last = resumed.last().await;
        assert!(last.to_string().contains(&id) || last["reason"] == "stopped", "{last}");
        gateway.assert_idle().await;
    }

    async fn a_call_that_waits_for_a_place_is_not_sent_any_more() {
        let gateway = Builder::new(Pair::Embedded)
            .set("limits.target_queue", "4")
            .set("limits.target_queue_wait", "60s")
            .start()
            .await;
        let held = Arc::new(Semaphore::new(0));
        let (gate, answer) = (Arc::clone(&held), crate::harness::ok_json("{}"));
        let agent = Agent::scripted(move |_| {
            vec![Step::Held(Arc::clone(&gate)), Step::Write(answer.clone())]
        }).await;
        let (caller, target) = gateway.pair(agent).await;
        assert_eq!(gateway.patch("target", json!({"max_concurrent": 1})).await.status, 200);
        let first = begin(&gateway, call(&caller.token, "target"));
        until("the first is there", async || target.agent.count() == 1).await;
        let second = begin(&gateway, call(&caller.token, "target"));
        gateway.until_counted("a2a_gateway_target_queue_calls", &[], 1.0).await;
        let id = stop(&gateway, json!({"workspace": "target"}), "new").await;
        held.add_permits(1);
        assert_eq!(first.await.unwrap().status, 200, "it was under way");
        let answer = second.await.unwrap();
        assert_stopped(&answer, &id, "the second");
        assert_eq!(answer.fact("delivered").as_deref(), Some("false"));
        assert_eq!(target.agent.count(), 1);
    }
}
