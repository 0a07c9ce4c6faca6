//! An agent that polls is online while it reads, replies or acknowledges, also if it sends no heartbeat; and an inbox whose
//! agent is gone is counted.

use std::time::{Duration, Instant};

use serde_json::json;

use super::Case;
use crate::harness::{Builder, Connection, Pair, Request, card};
use crate::on_both_pairs;

const SOON: Duration = Duration::from_secs(30);

/// An open feed is a sign of life every third of this, on the second. A busy machine may hold up one.
const TTL: &str = "7s";

impl Case {
    async fn status(&self) -> String {
        let request = Request::get("/workspaces/poller");
        let workspace = self.gateway.as_operator(request).await.json();
        workspace["status"].as_str().unwrap().to_owned()
    }

    async fn until_status(&self, status: &str) {
        let deadline = Instant::now() + SOON;
        while self.status().await != status {
            assert!(Instant::now() < deadline, "not {status}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Repeats the request, as an agent does: the record of a sign of life is best effort.
    async fn until_online_by(&self, request: &Request) {
        let deadline = Instant::now() + SOON;
        loop {
            let answer = self.gateway.call(request).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            if self.status().await == "online" {
                return;
            }
            assert!(Instant::now() < deadline, "not online");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until it was online for longer than its heartbeats last. Two heartbeats that a store holds up in a row end
    /// a window, but not each of three.
    async fn until_stays_online(&self) {
        let mut lapses = 0;
        'window: loop {
            self.until_status("online").await;
            let followed = Instant::now() + Duration::from_secs(12);
            while Instant::now() < followed {
                if self.status().await != "online" {
                    lapses += 1;
                    assert!(lapses < 3, "offline {lapses} times with an open feed");
                    continue 'window;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            return;
        }
    }

    async fn until_unread(&self, count: f64) {
        let deadline = Instant::now() + SOON + SOON;
        while self.gateway.metric("a2a_gateway_inbox_unread", &[]).await != count {
            assert!(Instant::now() < deadline, "not {count} unread");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

on_both_pairs! {
    async fn what_an_agent_asks_of_its_inbox_is_a_sign_of_life(pair: Pair) {
        let builder = Builder::new(pair).set("registry.heartbeat_ttl", TTL);
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
        let read = case.gateway.as_operator(Request::get("/workspaces/poller/activity")).await;
        assert_eq!((read.status, case.status().await.as_str()), (200, "offline"));

        // An open feed keeps it online, and costs few writes.
        let feed = own(Request::get("/activity")).field("Accept", "text/event-stream");
        let mut connection = Connection::open(case.gateway.public).await;
        connection.send(&feed.wire(&case.gateway.public.to_string())).await;
        case.until_stays_online().await;
        drop(connection);
        case.until_status("offline").await;
    }

    async fn an_inbox_whose_agent_is_gone_is_counted(pair: Pair) {
        let builder = Builder::new(pair).set("registry.heartbeat_ttl", "3s");
        let case = Case::with(builder, card("poller")).await;
        case.sent().await;
        case.until_unread(1.0).await;
        let feed = Request::get("/activity").bearer(&case.token).field("Accept", "text/event-stream");
        let mut connection = Connection::open(case.gateway.public).await;
        connection.send(&feed.wire(&case.gateway.public.to_string())).await;
        case.until_unread(0.0).await;
        drop(connection);
        case.until_unread(1.0).await;
    }
}

#[tokio::test]
async fn a_sign_of_life_leaves_a_degraded_agent_degraded_and_its_tasks_as_they_are() {
    let case = Case::with(
        Builder::new(Pair::Embedded).set("registry.heartbeat_ttl", TTL),
        card("poller"),
    )
    .await;
    let beat = json!({"workspace_id": "poller", "error_rate": 0.9, "active_tasks": 3, "current_task": "digging"});
    let request = Request::post("/registry/heartbeat", beat.to_string()).bearer(&case.token);
    assert_eq!(case.gateway.call(&request).await.status, 200);
    assert_eq!(case.status().await, "degraded");
    let read = Instant::now() + Duration::from_secs(9);
    while Instant::now() < read {
        assert_eq!(
            case.gateway
                .call(&Request::get("/activity").bearer(&case.token))
                .await
                .status,
            200
        );
        assert_eq!(case.status().await, "degraded");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let workspace = case
        .gateway
        .as_operator(Request::get("/workspaces/poller"))
        .await
        .json();
    assert_eq!(
        (&workspace["active_tasks"], &workspace["current_task"]),
        (&json!(3), &json!("digging"))
    );
}
