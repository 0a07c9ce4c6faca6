//! What must be true when Redis is back.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::streams::Taken;
use super::work::{call, name};
use super::{Client, KNOWN_WITHIN, RECOVERY, Site};
use crate::harness::{Agent, Request};
use crate::jobs;

/// How often the instances of an agent were sent each call together, by its text.
fn runs(instances: &[Agent]) -> HashMap<String, usize> {
    let mut runs = HashMap::new();
    for text in instances.iter().flat_map(jobs::texts) {
        *runs.entry(text).or_default() += 1;
    }
    runs
}

impl Site {
    /// Everything that was acknowledged is in the inbox, without a gap, and all readers get to its end.
    pub(super) async fn check_messages(&self, read: &[AtomicUsize; 2]) -> String {
        let messages = std::mem::take(&mut *self.client.told.messages.lock().unwrap());
        let inbox = self.inbox().await;
        for (at, item) in inbox.iter().enumerate() {
            assert_eq!(item["seq"], at + 1, "the numbers have no gaps");
        }
        let there: HashSet<&str> = inbox
            .iter()
            .filter_map(|item| item["id"].as_str())
            .collect();
        assert_eq!(there.len(), inbox.len(), "each once");
        for (id, text) in &messages {
            assert!(there.contains(&**id), "{text} is lost");
        }
        let deadline = Instant::now() + RECOVERY;
        for read in read {
            while read.load(Ordering::Relaxed) < inbox.len() {
                assert!(Instant::now() < deadline, "a reader is not told");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        assert!(!messages.is_empty());
        let (acknowledged, all) = (messages.len(), inbox.len());
        format!("{acknowledged} messages acknowledged, {all} read by each reader")
    }

    /// The inbox of `poller`, oldest first.
    async fn inbox(&self) -> Vec<Value> {
        let client = Client {
            token: self.poller.clone(),
            ..self.client.clone()
        };
        let (mut found, mut path) = (Vec::new(), "/activity?limit=500".to_owned());
        loop {
            let answer = client.call(Request::get(&*path)).await;
            let answer = answer.expect("no refusal any more");
            let items: Vec<Value> = serde_json::from_slice(&answer.body).unwrap();
            found.extend(items);
            let Some(link) = answer.field("link") else {
                found.reverse();
                return found;
            };
            path = link[1..link.find('>').unwrap()].to_owned();
        }
    }

    pub(super) fn check_keyed(&self) -> String {
        let keyed = std::mem::take(&mut *self.client.told.keyed.lock().unwrap());
        let runs = runs(&self.target);
        for (text, count) in &runs {
            assert!(*count <= 1, "{text} ran {count} times");
        }
        for (text, answered) in &keyed {
            let ran = runs.get(text).copied().unwrap_or_default();
            assert!(ran == 1 || !answered, "{text} was answered and did not run");
        }
        assert!(!keyed.is_empty());
        let unknown = keyed.values().filter(|answered| !**answered).count();
        let all = keyed.len();
        format!("{all} calls with a key at both gateways, {unknown} said to be unknown")
    }

    /// No gateway died and the agent always answers, so all are completed.
    pub(super) async fn check_delegations(&self) -> String {
        let delegations = std::mem::take(&mut *self.client.told.delegations.lock().unwrap());
        for (id, text) in &delegations {
            let path = format!("/workspaces/caller/delegations/{id}");
            let state = |json: &Value| json["status"].as_str().unwrap().to_owned();
            self.ends(Request::get(path), text, state).await;
        }
        let runs = runs(&self.target);
        for (_, text) in &delegations {
            assert_eq!(runs.get(text), Some(&1), "{text}");
        }
        assert!(!delegations.is_empty());
        format!("{} delegations completed", delegations.len())
    }

    /// What was left for a target that was away is sent when it is back, once.
    pub(super) async fn check_deferred(&self) -> String {
        let deferred = std::mem::take(&mut *self.client.told.deferred.lock().unwrap());
        let reached: usize = self.away.iter().map(Agent::count).sum();
        assert_eq!(reached, 0, "it is away");
        jobs::pause(&self.gateways[1], "away", "resume").await;
        for (id, text) in &deferred {
            let ask =
                json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": id}});
            let request = Request::post("/workspaces/away/a2a", ask.to_string());
            let state = |json: &Value| {
                let state = json["result"]["status"]["state"].as_str();
                state.unwrap_or_else(|| panic!("{json}")).to_owned()
            };
            self.ends(request, text, state).await;
        }
        let runs = runs(&self.away);
        for (text, count) in &runs {
            assert_eq!(*count, 1, "{text}");
        }
        for (_, text) in &deferred {
            assert!(runs.contains_key(text), "{text} is lost");
        }
        assert!(!deferred.is_empty());
        format!("{} deferred calls completed", deferred.len())
    }

    /// Waits until what is asked about is completed.
    async fn ends(&self, request: Request, text: &str, state: impl Fn(&Value) -> String) {
        let deadline = Instant::now() + KNOWN_WITHIN;
        loop {
            let answer = self.client.call(request.clone()).await;
            let answer = answer.expect("no refusal any more");
            assert_eq!(answer.status, 200, "{text} is lost: {}", answer.text());
            let json = answer.json();
            match &*state(&json) {
                "completed" => return,
                "pending" | "dispatched" | "submitted" | "working" => {}
                other => panic!("{text} is {other}: {json}"),
            }
            assert!(Instant::now() < deadline, "{text} never ends: {json}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(super) fn check_streams(&self) -> String {
        let streams = std::mem::take(&mut *self.client.told.streams.lock().unwrap());
        let of = |what: Taken| streams.iter().filter(|taken| **taken == what).count();
        assert!(!streams.is_empty());
        format!(
            "{} streams broken off: {} taken up whole at the other gateway, {} with a gap, {} said to be broken \
             off, {} known only where they ran",
            streams.len(),
            of(Taken::Whole),
            of(Taken::Gap),
            of(Taken::Lost),
            of(Taken::Unknown),
        )
    }

    /// After it all: at the first try.
    pub(super) async fn check_that_all_works(&self) {
        let client = &self.client;
        for gateway in 0..2 {
            let text = client.text("after");
            let sent = client.call_at(gateway, call("poller", "message/send", &text));
            assert_eq!(sent.await.expect("no refusal").status, 200);
            let keyed = call("target", "message/send", &text).field("Idempotency-Key", &*text);
            for at in [gateway, 1 - gateway] {
                let answer = client.call_at(at, keyed.clone()).await;
                assert_eq!(answer.expect("no refusal").status, 200);
            }
            let body = json!({"target_id": "target", "task": format!("{text} delegated")});
            let request = Request::post("/workspaces/caller/delegate", body.to_string());
            let accepted = client.call_at(gateway, request).await.expect("no refusal");
            assert_eq!(accepted.status, 202, "{}", accepted.text());
            let path = format!(
                "/workspaces/caller/delegations/{}",
                name(&accepted, "delegation_id")
            );
            let state = |json: &Value| json["status"].as_str().unwrap().to_owned();
            self.ends(Request::get(path), &text, state).await;
            let taken = client.taken_up_elsewhere(gateway, 5).await;
            assert_eq!(taken, Some(Taken::Whole));
            assert_eq!(runs(&self.target)[&text], 1);
        }
    }
}
