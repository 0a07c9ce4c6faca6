//! What must be true when Redis is back.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::streams::Taken;
use super::work::{call, name};
use super::{Client, Site};
use crate::harness::{Agent, Request, until_holds};
use crate::jobs;
use crate::outer::faults::{inbox, runs};

impl Site {
    /// Everything that was acknowledged is in the inbox, without a gap, and all readers get to its end.
    pub(super) async fn check_messages(&self, read: &[AtomicUsize; 2]) -> String {
        let messages = std::mem::take(&mut *self.client.told.messages.lock().unwrap());
        let poller = Client {
            token: self.poller.clone(),
            ..self.client.clone()
        };
        let ask = async |request| poller.call(request).await.expect("no refusal any more");
        let inbox = inbox(ask).await;
        let there = inbox.iter().filter_map(|item| item["id"].as_str());
        let there: HashSet<&str> = there.collect();
        assert_eq!(there.len(), inbox.len(), "each once");
        for (id, text) in &messages {
            assert!(there.contains(&**id), "{text} is lost");
        }
        let all_read = async || {
            read.iter()
                .all(|read| read.load(Ordering::Relaxed) >= inbox.len())
        };
        until_holds("all readers are told", all_read).await;
        assert!(!messages.is_empty());
        let (acknowledged, all) = (messages.len(), inbox.len());
        format!("{acknowledged} messages acknowledged, {all} read by each reader")
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
            self.delegation_ends(id, text).await;
        }
        let runs = runs(&self.target);
        for (_, text) in &delegations {
            assert_eq!(runs.get(text), Some(&1), "{text}");
        }
        assert!(!delegations.is_empty());
        format!("{} delegations completed", delegations.len())
    }

    async fn delegation_ends(&self, id: &str, text: &str) {
        let path = format!("/workspaces/caller/delegations/{id}");
        let state = |json: &Value| json["status"].as_str().unwrap().to_owned();
        self.ends(Request::get(path), text, state).await;
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
        until_holds(&format!("{text} ends"), async || {
            let answer = self.client.call(request.clone()).await;
            let answer = answer.expect("no refusal any more");
            assert_eq!(answer.status, 200, "{text} is lost: {}", answer.text());
            let json = answer.json();
            match &*state(&json) {
                "completed" => true,
                "pending" | "dispatched" | "submitted" | "working" => false,
                other => panic!("{text} is {other}: {json}"),
            }
        })
        .await;
    }

    pub(super) fn check_streams(&self) -> String {
        let streams = std::mem::take(&mut *self.client.told.streams.lock().unwrap());
        let of = |what: Taken| streams.iter().filter(|taken| **taken == what).count();
        assert!(!streams.is_empty());
        let [whole, gap] = [Taken::Whole, Taken::Gap].map(of);
        let [lost, unknown] = [Taken::Lost, Taken::Unknown].map(of);
        let all = streams.len();
        format!(
            "{all} streams broken off: {whole} taken up whole at the other gateway, {gap} with a gap, {lost} said to \
             be broken off, {unknown} known only where they ran"
        )
    }

    /// After it all: at the first try.
    pub(super) async fn check_that_all_works(&self) {
        let client = &self.client;
        for gateway in 0..2 {
            let text = client.text("after");
            let ask = async |at: usize, request: Request| {
                client.call_at(at, request).await.expect("no refusal")
            };
            ask(gateway, call("poller", "message/send", &text))
                .await
                .has(200);
            let keyed = call("target", "message/send", &text).field("Idempotency-Key", &*text);
            for at in [gateway, 1 - gateway] {
                ask(at, keyed.clone()).await.has(200);
            }
            let body = json!({"target_id": "target", "task": format!("{text} delegated")});
            let request = Request::post("/workspaces/caller/delegate", body.to_string());
            let accepted = ask(gateway, request).await.has(202);
            let id = name(&accepted, "delegation_id");
            self.delegation_ends(&id, &text).await;
            let taken = client.taken_up_elsewhere(gateway, 5).await;
            assert_eq!(taken, Some(Taken::Whole));
            assert_eq!(runs(&self.target)[&text], 1);
        }
    }
}
