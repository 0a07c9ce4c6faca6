//! Events in a real browser: a WebSocket by ticket, server-sent events by `fetch`, and neither for a
//! page from elsewhere.

use serde_json::{Value, json};

use super::chromium::Site;
use super::{Stage, assert_kept, visit};
use crate::harness::{Connection, Request};

/// Heartbeats of the target until dropped, so that there is always an event to come.
struct Heart(tokio::task::JoinHandle<()>);

impl Heart {
    fn of(stage: &Stage) -> Self {
        let (address, token) = (stage.gateway.public, stage.target.token.clone());
        Self(tokio::spawn(async move {
            loop {
                let body = json!({"workspace_id": "target", "active_tasks": 1}).to_string();
                let beat = Request::post("/registry/heartbeat", body).bearer(&token);
                Connection::open(address).await.call(&beat).await.has(200);
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        }))
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Asserts the form of one event.
fn assert_frame(frame: &Value) {
    for member in ["id", "event", "workspace_id", "timestamp", "payload"] {
        assert!(frame.get(member).is_some(), "{member}: {frame}");
    }
    assert_eq!(frame["workspace_id"], "target", "{frame}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_canvas_on_a_listed_origin_hears_events() {
    let site = Site::start();
    let stage = Stage::for_origin(&site.origin("localhost")).await;
    let heart = Heart::of(&stage);
    let task = stage.task(json!({}));
    let (_, found) = visit(site, "localhost", "/socket.html", task).await;
    drop(heart);

    let made = &found["made"];
    assert!(made["ticket"].is_string(), "{found}");
    let socket = &found["byTicket"];
    assert_eq!(socket["opened"], true, "{found}");
    assert_frame(&socket["frames"][0]);
    assert_frame(&found["events"]);
    // A ticket is good for one socket.
    for step in ["again", "withoutTicket"] {
        assert_eq!(found[step]["opened"], false, "{step}: {found}");
        assert_eq!(found[step]["code"], 1006, "{step}: {found}");
    }
    let log = stage.gateway.log();
    let ticket = made["ticket"].as_str().unwrap();
    assert!(!log.contains(ticket), "a ticket in the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_from_elsewhere_hears_nothing_even_with_a_ticket() {
    let stage = Stage::for_origin("https://canvas.example").await;
    let heart = Heart::of(&stage);
    let ask = Request::post("/ws/tickets", "{}").bearer(&stage.token);
    let answer = stage.gateway.call(&ask).await;
    assert!((200..300).contains(&answer.status), "{}", answer.text());
    let task = stage.task(json!({"ticket": answer.json()["ticket"]}));
    let (_, found) = visit(Site::start(), "localhost", "/socket.html", task).await;
    drop(heart);

    for step in ["byTicket", "again", "withoutTicket"] {
        assert_eq!(found[step]["opened"], false, "{step}: {found}");
        assert_eq!(found[step]["frames"], json!([]), "{step}: {found}");
    }
    assert_kept(&found, "events");
}
