//! To its callers an agent that polls is an agent like any other: what is sent to it, what it replies, and
//! who hears of it (contract §6.1).

mod circles;
mod documented;
mod keyed;
mod life;
mod replies;
mod routes;
mod tasks;
mod waits;

use serde_json::{Value, json};

use crate::harness::{
    Agent, Answer, Builder, Gateway, Pair, Request, Seat, card, until_found, until_holds,
};

/// A caller, and a workspace that polls.
pub(crate) struct Case {
    pub(crate) gateway: Gateway,
    pub(crate) caller: Seat,
    /// The token of the workspace `poller`.
    pub(crate) token: String,
}

impl Case {
    async fn new(pair: Pair) -> Self {
        Self::with(Builder::new(pair), card("poller")).await
    }

    pub(crate) async fn with(builder: Builder, card: Value) -> Self {
        let gateway = builder.start().await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let token = poller(&gateway, "poller", card).await;
        Self {
            gateway,
            caller,
            token,
        }
    }

    /// A call of the caller to the workspace that polls.
    fn request(&self, body: &Value) -> Request {
        Request::post("/workspaces/poller/a2a", body.to_string()).bearer(&self.caller.token)
    }

    async fn call(&self, method: &str, params: Value) -> Answer {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.gateway.call(&self.request(&body)).await
    }

    /// Sends a message, and answers with the name of the task that it began.
    async fn sent(&self) -> String {
        let answer = self.call("message/send", hello()).await.has(200);
        answer.json()["activity_id"].as_str().unwrap().to_owned()
    }

    async fn replied(&self, activity: &str, body: Value) -> Answer {
        let path = format!("/workspaces/poller/activity/{activity}/reply");
        let request = Request::post(path, body.to_string()).bearer(&self.token);
        self.gateway.call(&request).await
    }

    /// The task as its caller reads it.
    async fn task(&self, id: &str) -> Value {
        let answer = self.call("tasks/get", json!({"id": id})).await.has(200);
        answer.json()["result"].clone()
    }

    /// What is in the inbox, oldest first.
    async fn inbox(&self) -> Vec<Value> {
        let request = Request::get("/activity").bearer(&self.token);
        let answer = self.gateway.call(&request).await.has(200);
        let mut items: Vec<Value> = serde_json::from_slice(&answer.body).unwrap();
        items.reverse();
        items
    }

    /// Waits until so many entries are in the inbox; answers the name of the newest.
    async fn until_sent(&self, count: usize) -> String {
        until_found("it is in the inbox", async || {
            let inbox = self.inbox().await;
            let newest = inbox.last().filter(|_| inbox.len() == count);
            newest.map(|one| one["id"].as_str().unwrap().to_owned())
        })
        .await
    }

    /// Waits until so many callers wait for a reply.
    async fn until_waiting(&self, count: f64) {
        let name = "a2a_gateway_inbox_readers";
        let waiting = async || self.gateway.metric(name, &["kind=\"sender\""]).await == count;
        until_holds("callers wait", waiting).await;
    }
}

/// Creates a workspace that polls; answers with its token.
pub(crate) async fn poller(gateway: &Gateway, id: &str, card: Value) -> String {
    poller_below(gateway, "", id, card).await
}

/// The same below another workspace.
async fn poller_below(gateway: &Gateway, parent: &str, id: &str, card: Value) -> String {
    let mut workspace = json!({"id": id, "name": id});
    if !parent.is_empty() {
        workspace["parent_id"] = parent.into();
    }
    let enrolment = gateway.create(workspace).await;
    let body = json!({"id": id, "delivery_mode": "poll", "agent_card": card});
    let request = Request::post("/registry/register", body.to_string()).bearer(&enrolment);
    let answer = gateway.call(&request).await.has(200);
    answer.json()["token"].as_str().unwrap().to_owned()
}

fn hello() -> Value {
    json!({"message": {"kind": "message", "messageId": "m-1", "role": "user",
        "parts": [{"kind": "text", "text": "hello"}]}})
}

fn hello_1_0() -> Value {
    json!({"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}})
}

/// The `data` of each event, as JSON.
fn data(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    data.map(|data| serde_json::from_str(data).unwrap())
        .collect()
}
