//! Below `/workspaces/{id}/a2a`: the HTTP+JSON binding, and what stands in for it.

use serde_json::{Value, json};

use crate::harness::{Agent, Answer, Builder, Gateway, Pair, Request, Seat};

mod closed;
mod errors;
mod owners;
mod raw;
mod translated;

struct Case {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
}

impl Case {
    /// Two siblings, the target with this card.
    async fn new(card: Value, agent: Agent) -> Self {
        Self::with(&[], card, agent).await
    }

    async fn with(settings: &[(&str, &str)], card: Value, agent: Agent) -> Self {
        let mut builder = Builder::new(Pair::Embedded);
        for (key, value) in settings {
            builder = builder.set(key, value);
        }
        let gateway = builder.start().await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let made = json!({"id": "target", "name": "target"});
        let target = seat(&gateway, made, card, agent).await;
        Self {
            gateway,
            caller,
            target,
        }
    }

    /// The request lines that reached the target, but for questions after its card.
    fn reached(&self) -> Vec<String> {
        let requests = self.target.agent.requests();
        let lines = requests.iter().filter_map(|r| r.head.lines().next());
        let lines = lines.filter(|line| !line.contains("/.well-known/"));
        lines.map(str::to_owned).collect()
    }

    fn below(&self, tail: &str) -> String {
        format!("{}/{tail}", self.target.path())
    }

    async fn get(&self, tail: &str) -> Answer {
        let request = Request::get(self.below(tail)).bearer(&self.caller.token);
        self.gateway.call(&request).await
    }

    async fn post(&self, tail: &str, body: &str) -> Answer {
        let request = Request::post(self.below(tail), body).bearer(&self.caller.token);
        self.gateway.call(&request).await
    }
}

/// Creates the workspace `made`, and registers an agent with this card in it.
async fn seat(gateway: &Gateway, made: Value, card: Value, agent: Agent) -> Seat {
    let id = made["id"].as_str().unwrap().to_owned();
    let enrolment = gateway.create(made).await;
    let token = gateway.register(&id, &enrolment, &agent.url(), card).await;
    Seat { id, token, agent }
}
