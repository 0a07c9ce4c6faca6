//! What goes on while Redis dies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Client, KNOWN_WITHIN};
use crate::harness::watcher::Feed;
use crate::harness::{Answer, Request};

/// How far each of the two readers is.
type Read = Arc<[AtomicUsize; 2]>;

/// Between two pieces of work of one client: the machine is not what is asked about.
const PAUSE: Duration = Duration::from_millis(10);

/// A call of `method` with a message.
pub(super) fn call(target: &str, method: &str, text: &str) -> Request {
    let message = json!({"kind": "message", "messageId": text, "role": "user",
        "parts": [{"kind": "text", "text": text}]});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}});
    Request::post(format!("/workspaces/{target}/a2a"), call.to_string())
}

pub(super) fn name(answer: &Answer, field: &str) -> String {
    answer.json()[field].as_str().unwrap().to_owned()
}

impl Client {
    pub(super) async fn send_messages(self) {
        while self.goes_on() {
            let text = self.text("message");
            if let Some(answer) = self.call(call("poller", "message/send", &text)).await {
                let id = name(&answer.has(200), "activity_id");
                self.told.messages.lock().unwrap().push((id, text));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Each call to both gateways at once: they must agree.
    pub(super) async fn call_with_keys(self) {
        while self.goes_on() {
            let text = self.text("keyed");
            let (one, two) = tokio::join!(self.known(0, &text), self.known(1, &text));
            assert_eq!(one, two, "{text}: the gateways do not say the same");
            self.told.keyed.lock().unwrap().insert(text, one);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Asks one gateway until it is known what came of a call.
    async fn known(&self, gateway: usize, text: &str) -> bool {
        let deadline = Instant::now() + KNOWN_WITHIN;
        loop {
            let request = call("target", "message/send", text).field("Idempotency-Key", text);
            if let Some(answer) = self.call_at(gateway, request).await {
                let unknown = answer.fact_of("delivered").as_deref() == Some("unknown");
                match answer.status {
                    200 => return true,
                    502 if unknown => return false,
                    _ => panic!("{text}: {} {}", answer.status, answer.text()),
                }
            }
            assert!(Instant::now() < deadline, "nobody knows {text}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Each with a key, until it is accepted.
    pub(super) async fn delegate(self) {
        while self.goes_on() {
            let text = self.text("delegation");
            let body = json!({"target_id": "target", "task": text, "idempotency_key": text});
            let request = Request::post("/workspaces/caller/delegate", body.to_string());
            while self.goes_on() {
                if let Some(answer) = self.call(request.clone()).await {
                    assert!(matches!(answer.status, 200 | 202), "{}", answer.text());
                    let id = name(&answer, "delegation_id");
                    self.told.delegations.lock().unwrap().push((id, text));
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Leaves calls for a target that is away.
    pub(super) async fn defer(self) {
        while self.goes_on() {
            let text = self.text("deferred");
            let request = call("away", "message/send", &text).field("Prefer", "respond-async");
            if let Some(answer) = self.call(request).await {
                let id = name(&answer.has(202), "activity_id");
                self.told.deferred.lock().unwrap().push((id, text));
            }
            tokio::time::sleep(4 * PAUSE).await;
        }
    }
}

impl Answer {
    /// A fact of a refusal; `None` also where there is no refusal.
    pub(super) fn fact_of(&self, name: &str) -> Option<String> {
        let json: Value = serde_json::from_slice(&self.body).ok()?;
        let fact = json["error"]["data"][0]["metadata"][name].as_str();
        fact.map(str::to_owned)
    }
}

/// Follows the inbox of `poller` for ever, beginning at gateway `n`, and says how far it is. What it gets
/// follows on what it has; where it is cut it goes on at the other gateway.
pub(super) async fn follow(client: Client, token: String, n: usize, read: Read) -> ! {
    let (mut at, mut last) = (n, None::<String>);
    loop {
        let gateway: SocketAddr = client.gateways[at % 2];
        at += 1;
        let mut request = Request::get("/workspaces/poller/activity")
            .field("Accept", "text/event-stream")
            .bearer(&token);
        if let Some(id) = &last {
            request = request.field("Last-Event-ID", id);
        }
        let feed = Feed::try_open(gateway, &request).await;
        let mut feed = feed.expect("the gateways live");
        if feed.head.status == 503 {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        assert_eq!(feed.head.status, 200, "{:?}", feed.head);
        // By itself it goes over to the other one now and then.
        for _ in 0..40 {
            let Some(event) = feed.next().await else {
                break;
            };
            assert_eq!(event.event.as_deref(), Some("activity"), "{}", event.data);
            let next = read[n].load(Ordering::Relaxed) + 1;
            assert_eq!(event.data["seq"], next, "in order, each once");
            read[n].store(next, Ordering::Relaxed);
            last = event.id;
        }
    }
}
