//! Several instances of one agent (contract §13): the registry's side.

use std::time::Duration;

use serde_json::{Value, json};

use crate::answers::merged;
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Gateway, Pair, Request, Seat, card, until_holds,
};

mod departure;
mod liveness;
mod registry;
mod resolved;
mod steady;
mod urls;

/// A workspace `target` without an agent yet, its token, and a caller.
struct Set {
    gateway: Gateway,
    caller: Seat,
}

impl Set {
    async fn on(builder: Builder) -> Self {
        let gateway = builder.start().await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        gateway.found("target").await;
        Self { gateway, caller }
    }

    async fn new(pair: Pair) -> Self {
        Self::on(Builder::new(pair)).await
    }

    /// One with the instances `one` and `two`, and the workspace's token.
    async fn of_two(pair: Pair) -> (Self, String, [Agent; 2]) {
        let set = Self::new(pair).await;
        let token = set.own_token().await;
        let agents = [answering().await, answering().await];
        set.register(&token, "one", &agents[0]).await;
        set.register(&token, "two", &agents[1]).await;
        (set, token, agents)
    }

    /// A token of the workspace itself.
    async fn own_token(&self) -> String {
        let path = "/workspaces/target/tokens";
        self.gateway.token(path, "{}").await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.sent(path, ADMIN, body).await
    }

    /// Registers an instance as the workspace itself; without an id if it is empty.
    async fn try_register(&self, token: &str, instance: &str, url: &str) -> Answer {
        let mut body = json!({"id": "target", "url": url, "agent_card": card("target")});
        if !instance.is_empty() {
            body["instance_id"] = instance.into();
        }
        self.sent("/registry/register", token, body).await
    }

    async fn sent(&self, path: &str, token: &str, body: Value) -> Answer {
        let request = Request::post(path, body.to_string()).bearer(token);
        let request = request.field("X-Request-Id", "seen");
        self.gateway.call(&request).await
    }

    async fn register(&self, token: &str, instance: &str, agent: &Agent) {
        let answer = self.try_register(token, instance, &agent.url()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    async fn beat(&self, instance: &str) -> Answer {
        let mut body = json!({"workspace_id": "target"});
        if !instance.is_empty() {
            body["instance_id"] = instance.into();
        }
        self.post("/registry/heartbeat", body).await
    }

    async fn drain(&self, instance: &str) {
        let body = json!({"workspace_id": "target", "instance_id": instance});
        let answer = self.post("/registry/drain", body).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.json(), json!({"status": "draining"}));
    }

    async fn deregister(&self, instance: &str) {
        let body = json!({"workspace_id": "target", "instance_id": instance});
        self.post("/registry/deregister", body).await.has(200);
    }

    async fn view(&self) -> Value {
        self.gateway.read("/workspaces/target").await
    }

    /// Id and status of each instance.
    async fn statuses(&self) -> Vec<(String, String)> {
        let view = self.view().await;
        let all = view["instances"].as_array().into_iter().flatten();
        let text = |one: &Value, member: &str| one[member].as_str().unwrap().to_owned();
        all.map(|one| (text(one, "instance_id"), text(one, "status")))
            .collect()
    }

    async fn has_statuses(&self, expected: &[(&str, &str)]) -> bool {
        let found = self.statuses().await;
        let found = found.iter().map(|(a, b)| (&**a, &**b));
        found.eq(expected.iter().copied())
    }

    async fn assert_statuses(&self, expected: &[(&str, &str)]) {
        let found = self.statuses().await;
        let found: Vec<_> = found.iter().map(|(a, b)| (&**a, &**b)).collect();
        assert_eq!(found, expected);
    }

    async fn call(&self) -> Answer {
        let request = Request::post("/workspaces/target/a2a", CALL).bearer(&self.caller.token);
        self.gateway.call(&request).await
    }

    /// Calls until `agent` gets one; none fails.
    async fn assert_calls_reach(&self, agent: &Agent) {
        let before = agent.count();
        until_holds("a call reaches the agent", async || {
            self.call().await.has(200);
            agent.count() > before
        })
        .await;
    }
}

async fn answering() -> Agent {
    Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await
}
