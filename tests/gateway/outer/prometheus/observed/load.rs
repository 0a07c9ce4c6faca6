//! A load that moves every family: calls of all kinds, well and wrong, over and over until it is dropped.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::sidecar::{Guarded, bound, call, claims};
use crate::harness::{
    ADMIN, Agent, CALL, Connection, Gateway, LAST_CHUNK, Recorded, Request, SSE_HEAD, Seat, Step,
    chunk, ok_json,
};

/// A gateway with agents of all kinds, a sidecar, and those who ask them.
pub(super) struct Stage {
    pub(super) gateway: Arc<Gateway>,
    pub(super) guarded: Arc<Guarded>,
    pub(super) caller: Arc<Seat>,
    pub(super) target: Arc<Seat>,
    /// The token of the workspace `poller`.
    pub(super) poller: String,
}

/// Answers a stream with three events, anything else with a task.
fn agent(request: &Recorded) -> Vec<Step> {
    if request.text().contains("message/stream") {
        let event = |state: &str| {
            let data = json!({"jsonrpc": "2.0", "id": "c-1", "result": {"kind": "status-update", "taskId": "t-1",
                "contextId": "c", "final": state == "completed", "status": {"state": state}}});
            Step::Write(chunk(format!("data: {data}\n\n")))
        };
        let mut steps = vec![Step::write(SSE_HEAD), event("submitted")];
        for state in ["working", "completed"] {
            steps.extend([Step::Wait(Duration::from_millis(20)), event(state)]);
        }
        steps.push(Step::write(LAST_CHUNK));
        return steps;
    }
    let id = request.text().contains("tasks/get");
    let state = if id { "input-required" } else { "completed" };
    let task = json!({"kind": "task", "id": "t-1", "contextId": "c", "status": {"state": state}});
    let answer = json!({"jsonrpc": "2.0", "id": "c-1", "result": task});
    vec![Step::Write(ok_json(&answer.to_string()))]
}

impl Stage {
    pub(super) async fn on(gateway: Gateway) -> Self {
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let target = Agent::scripted(agent).await;
        let target = gateway.seat("target", "", target).await;
        let poller = gateway.poller("poller").await;
        // Another org: only a grant would let anybody in.
        let stranger = json!({"id": "stranger", "name": "stranger", "org": "other"});
        gateway.create(stranger).await;
        Self {
            gateway: Arc::new(gateway),
            guarded: Arc::new(Guarded::start(&[]).await),
            caller: Arc::new(caller),
            target: Arc::new(target),
            poller,
        }
    }

    /// A call of the caller.
    pub(super) fn ask(&self, target: &str, body: &str) -> Request {
        Request::post(format!("/workspaces/{target}/a2a"), body).bearer(&self.caller.token)
    }

    /// Every kind once. What is answered is other cases' matter.
    pub(super) fn requests(&self, round: u64) -> Vec<Request> {
        let caller = &self.caller.token;
        let get = |path: &str| Request::get(path).bearer(caller);
        let post = |path: &str, body: Value| Request::post(path, body.to_string()).bearer(caller);
        let target = |body: &str| self.ask("target", body);
        let wrong = |token: &str| Request::post("/workspaces/target/a2a", CALL).bearer(token);
        let issuer = format!("http://{}", self.gateway.public);
        let forged = self.guarded.sign(&claims(json!({"iss": issuer})));
        let unknown = format!("a2aw_{}", "x".repeat(43));
        let keyed = target(CALL).field("Idempotency-Key", format!("k-{round}"));
        let task = json!({"target_id": "target", "task": "do"});
        let pair = json!({"caller_id": "caller", "target_id": "target"});
        let get_task = r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"t-1"}}"#;
        vec![
            target(CALL),
            target(&CALL.replace("message/send", "message/stream")),
            target(get_task),
            keyed.clone(),
            keyed,
            target("{"),
            target(r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#),
            self.ask("stranger", CALL),
            self.ask("nobody", CALL),
            self.ask("not%20an%20id", CALL),
            Request::post("/workspaces/target/a2a", CALL),
            wrong("rubbish"),
            wrong(&unknown),
            wrong(&forged),
            self.ask("poller", CALL),
            Request::get("/activity").bearer(&self.poller),
            post("/workspaces/caller/delegate", task),
            post("/registry/heartbeat", json!({"id": "caller"})),
            get("/workspaces/target/a2a/.well-known/agent-card.json"),
            get("/workspaces/caller"),
            get("/no/such"),
            get("/registry/caller/peers"),
            post("/registry/check-access", pair),
            Request::get("/.well-known/jwks.json"),
        ]
    }

    /// Goes through all of it, again and again.
    pub(super) fn load(self: &Arc<Self>) -> JoinSet<()> {
        let mut running = JoinSet::new();
        for worker in 0..2 {
            let stage = Arc::clone(self);
            running.spawn(async move {
                for round in 0.. {
                    for request in stage.requests(round * 2 + worker) {
                        stage.gateway.call(&request).await;
                    }
                    stage.at_sidecar().await;
                }
            });
        }
        let stage = Arc::clone(self);
        running.spawn(async move { stage.watch().await });
        running
    }

    /// A good call at the sidecar, a replay, and a stranger's.
    async fn at_sidecar(&self) {
        let token = self.guarded.sign(&bound(CALL, json!({})));
        for _ in 0..2 {
            self.guarded.call(&call(&token)).await;
        }
        self.guarded.call(&call("rubbish")).await;
    }

    /// Follows the events.
    async fn watch(&self) {
        let mut connection = Connection::open(self.gateway.public).await;
        connection.ask(&Request::get("/events").bearer(ADMIN)).await;
        connection.read_head().await;
        while connection.next_chunk().await.is_some() {}
    }
}
