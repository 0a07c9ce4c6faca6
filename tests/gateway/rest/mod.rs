//! Below `/workspaces/{id}/a2a`: the HTTP+JSON binding, and what stands in for it.

use serde_json::{Value, json};

use crate::harness::{Agent, Answer, Gateway, Recorded, Request, Seat, Step};

mod closed;
mod errors;
mod owners;
mod raw;
mod tenants;
mod translated;

struct Case {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
}

impl Case {
    /// Two siblings, the target with this card.
    async fn new(card: Value, agent: Agent) -> Self {
        Self::with("", card, agent).await
    }

    async fn with(settings: &str, card: Value, agent: Agent) -> Self {
        let gateway = Gateway::with(settings).await;
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

    /// Asserts that nothing reached the target.
    fn reached_nobody(&self) {
        assert_eq!(self.reached(), Vec::<String>::new());
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

/// An agent that has no card, and answers everything else by this script.
async fn cardless(behaviour: impl Fn(&Recorded) -> Vec<Step> + Send + Sync + 'static) -> Agent {
    Agent::scripted(
        move |request| match request.head.contains("/.well-known/") {
            true => vec![Step::write("HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n")],
            false => behaviour(request),
        },
    )
    .await
}

/// A request with the id `r-1`, and with a body if there is one.
fn asking(verb: &str, path: &str, token: &str, body: &str) -> Request {
    let request = Request::new(verb, path).bearer(token);
    let mut request = request.field("X-Request-Id", "r-1");
    if !body.is_empty() {
        request = request.field("Content-Type", "application/json");
        request.body = body.into();
    }
    request
}

/// Creates the workspace `made`, and registers an agent with this card in it.
async fn seat(gateway: &Gateway, made: Value, card: Value, agent: Agent) -> Seat {
    let id = made["id"].as_str().unwrap().to_owned();
    let enrolment = gateway.create(made).await;
    let token = gateway.register(&id, &enrolment, &agent.url(), card).await;
    Seat { id, token, agent }
}
