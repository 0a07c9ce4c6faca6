//! Calls that are made later: each is made once, its caller learns how it ended, and nothing that was accepted is
//! lost, whoever is away and whatever crashes.

mod circles;
mod crashes;
mod deferred;
mod delegations;
mod odd;
mod polled;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use a2a_gateway::config::{self, Config, Live};
use a2a_gateway::db::Db;
use a2a_gateway::delivery::inbox::{Filter, Inbox, Item, Start};
use a2a_gateway::delivery::mailbox::Mailbox;
use a2a_gateway::events::Events;
use a2a_gateway::ids::WorkspaceId;
use a2a_gateway::metrics::Metrics;
use a2a_gateway::shared::Shared;
use serde_json::{Value, json};

use crate::harness::until_holds as until;
use crate::harness::warm::NEVER;
use crate::harness::{Agent, Answer, Gateway, Recorded, Request, Seat, Step, ok_json, until_found};

/// Answers a message with one that repeats its text, in the generation of the call.
pub(crate) fn echo(request: &Recorded) -> Vec<Step> {
    vec![Step::Write(ok_json(&answer(request).to_string()))]
}

pub(crate) fn answer(request: &Recorded) -> Value {
    let call: Value = serde_json::from_slice(&request.body).unwrap();
    let text = &call["params"]["message"]["parts"][0]["text"];
    let text = format!("echo: {}", text.as_str().unwrap());
    let result = match call["method"].as_str() {
        Some("SendMessage") => json!({"message": {"role": "ROLE_AGENT", "messageId": "a-1",
            "parts": [{"text": text}]}}),
        _ => json!({"kind": "message", "role": "agent", "messageId": "a-1",
            "parts": [{"kind": "text", "text": text}]}),
    };
    json!({"jsonrpc": "2.0", "id": call["id"], "result": result})
}

fn text_of(request: &Recorded) -> String {
    let call: Value = serde_json::from_slice(&request.body).unwrap();
    let text = &call["params"]["message"]["parts"][0]["text"];
    text.as_str().unwrap_or_default().to_owned()
}

/// The texts of the messages that an agent got, in their order.
pub(crate) fn texts(agent: &Agent) -> Vec<String> {
    agent.requests().iter().map(text_of).collect()
}

/// The id of a delegation that is accepted.
fn accepted(answer: &Answer) -> String {
    assert_eq!(answer.status, 202, "{}", answer.text());
    answer.json()["delegation_id"].as_str().unwrap().to_owned()
}

async fn delegate_with(gateway: &Gateway, from: &Seat, body: &Value) -> Answer {
    let path = format!("/workspaces/{}/delegate", from.id);
    let request = Request::post(path, body.to_string()).bearer(&from.token);
    gateway.call(&request).await
}

/// Delegates, which must work; answers the delegation's id.
async fn delegate(gateway: &Gateway, from: &Seat, to: &str, task: &str) -> String {
    let answer = delegate_with(gateway, from, &json!({"target_id": to, "task": task})).await;
    let json = answer.json();
    assert_eq!([&json["status"], &json["target_id"]], ["delegated", to]);
    assert!(json.get("idempotent_hit").is_none());
    accepted(&answer)
}

/// A delegation as its workspace reads it.
async fn delegation(gateway: &Gateway, of: &Seat, id: &str) -> Value {
    let path = format!("/workspaces/{}/delegations/{id}", of.id);
    let answer = gateway.call(&Request::get(path).bearer(&of.token)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// The same once it is in this state.
async fn delegation_in(gateway: &Gateway, of: &Seat, id: &str, status: &str) -> Value {
    let what = format!("{id} is {status}");
    until_found(&what, async || {
        let shown = delegation(gateway, of, id).await;
        (shown["status"] == status).then_some(shown)
    })
    .await
}

/// The inboxes of a gateway, read from its store.
struct Inboxes(Arc<Inbox>, Db);

impl Inboxes {
    async fn of(gateway: &Gateway) -> Self {
        let mut config: Config = toml::from_str(config::load::DEFAULT).unwrap();
        config.stores.sql = gateway.sql_url().into();
        config.stores.timeout = Duration::from_secs(10);
        let metrics = Arc::new(Metrics::new());
        let db = Db::open(&config.stores, Arc::clone(&metrics)).unwrap();
        let shared = Shared::open(&config.stores, Arc::clone(&metrics)).unwrap();
        db.migrate().await.unwrap();
        let live = Live::from(config);
        let events = Events::new(live.clone(), shared.clone(), Arc::clone(&metrics));
        let mailbox = Mailbox::new(live, (db.clone(), shared), metrics);
        let inbox = Inbox::new(mailbox, events);
        Self(inbox, db)
    }

    async fn items(&self, workspace: &str) -> Vec<Item> {
        let id = WorkspaceId::parse(workspace).unwrap();
        let page = self
            .0
            .read_page(&id, Filter::default(), Start::After(0), 500);
        page.await.unwrap().items
    }

    /// Does to the store what no gateway would.
    async fn sql(&self, text: &str) {
        let query = sqlx::query(sqlx::AssertSqlSafe(text.to_owned()));
        query.execute(self.1.pool()).await.unwrap();
    }

    /// Waits until its inbox has so many.
    async fn hold(&self, workspace: &str, count: usize) -> Vec<Item> {
        until_found("so many in the inbox", async || {
            let items = self.items(workspace).await;
            (items.len() == count).then_some(items)
        })
        .await
    }

    /// What the workspace was told of its delegations, once there are so many.
    async fn results(&self, workspace: &str, count: usize) -> Vec<Value> {
        let items = self.hold(workspace, count).await;
        let result = |item: &Item| {
            assert_eq!(item.activity_type, "delegate_result");
            let body = item.response_body.as_ref().unwrap().get();
            serde_json::from_str::<Value>(body).unwrap()
        };
        items.iter().map(result).collect()
    }
}

pub(crate) async fn pause(gateway: &Gateway, id: &str, verb: &str) {
    let request = Request::new("POST", format!("/workspaces/{id}/{verb}"));
    let answer = gateway.as_operator(request).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}
