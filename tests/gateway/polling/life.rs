//! An agent that polls is online while it reads, replies or acknowledges, also if it sends no heartbeat; and an inbox
//! whose agent is gone is counted.

use std::time::Duration;

use serde_json::{Value, json};

use super::Case;
use crate::harness::{Builder, Connection, Pair, Request, card, until_holds};
use crate::on_both_pairs;

impl Case {
    async fn shown(&self) -> Value {
        let request = Request::get("/workspaces/poller");
        self.gateway.as_operator(request).await.json()
    }

    async fn until_status(&self, status: &str) {
        let said = async || self.shown().await["status"] == status;
        until_holds(status, said).await;
    }

    /// Repeats the request, as an agent does: the record of a sign of life is best effort.
    async fn until_online_by(&self, request: &Request) {
        let online = async || {
            self.gateway.call(request).await.has(200);
            self.shown().await["status"] == "online"
        };
        until_holds("a request is a sign of life", online).await;
    }

    /// Waits for another sign of life, which `asks` may cause.
    async fn until_seen_again(&self, asks: impl AsyncFn()) {
        let before = self.shown().await["last_seen"].clone();
        let again = async || {
            asks().await;
            self.shown().await["last_seen"] != before
        };
        until_holds("another sign of life", again).await;
    }

    async fn until_unread(&self, count: f64) {
        let unread = async || self.gateway.metric("a2a_gateway_inbox_unread", &[]).await == count;
        until_holds(&format!("{count} unread"), unread).await;
    }
}

on_both_pairs! {
    async fn what_an_agent_asks_of_its_inbox_is_a_sign_of_life(pair: Pair) {
        let builder = Builder::new(pair).set("registry.heartbeat_ttl", "2s");
        let case = Case::with(builder, card("poller")).await;
        let own = |request: Request| request.bearer(&case.token);
        let task = case.sent().await;
        let reply = json!({"status": {"state": "working"}}).to_string();
        for request in [
            own(Request::get("/activity")),
            own(Request::post(format!("/workspaces/poller/activity/{task}/reply"), reply)),
            own(Request::post("/workspaces/poller/activity/ack", json!({"up_to": task}).to_string())),
        ] {
            case.until_status("offline").await;
            case.until_online_by(&request).await;
        }
        // An operator who reads is no sign of the agent.
        case.until_status("offline").await;
        let seen = case.shown().await["last_seen"].clone();
        let read = case.gateway.as_operator(Request::get("/workspaces/poller/activity")).await;
        assert_eq!((read.status, &case.shown().await["last_seen"]), (200, &seen));

        // An open feed is a sign again and again, and its inbox is not counted.
        case.sent().await;
        case.until_unread(1.0).await;
        let feed = own(Request::get("/activity")).field("Accept", "text/event-stream");
        let mut connection = Connection::open(case.gateway.public).await;
        connection.send(&feed.wire(&case.gateway.public.to_string())).await;
        case.until_status("online").await;
        for _ in 0..2 {
            case.until_seen_again(async || {}).await;
        }
        case.until_unread(0.0).await;
        drop(connection);
        case.until_status("offline").await;
    }
}

#[tokio::test]
async fn a_sign_of_life_leaves_a_degraded_agent_degraded_and_its_tasks_as_they_are() {
    // A sign is recorded every third of this.
    let builder = Builder::new(Pair::Embedded).set("registry.heartbeat_ttl", "18s");
    let case = Case::with(builder, card("poller")).await;
    let beat = json!({"workspace_id": "poller", "error_rate": 0.9, "active_tasks": 3, "current_task": "digging"});
    let beat = Request::post("/registry/heartbeat", beat.to_string()).bearer(&case.token);
    let read = Request::get("/activity").bearer(&case.token);
    let degraded = async || {
        assert_eq!(case.gateway.call(&beat).await.status, 200);
        let reads = async || {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(case.gateway.call(&read).await.status, 200);
        };
        case.until_seen_again(reads).await;
        // A machine that stalls for longer than the lease ends it.
        let shown = case.shown().await;
        assert_ne!(shown["status"], "online");
        assert_eq!(shown["active_tasks"], 3);
        assert_eq!(shown["current_task"], "digging");
        shown["status"] == "degraded"
    };
    until_holds("it stays degraded", degraded).await;
}
