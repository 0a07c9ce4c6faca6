//! Calls to agents that sleep: parked, one request to the waker, and each sent once when the agent is awake.

mod crowd;
mod ends;
mod forms;
mod set_up;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::harness::{
    Agent, Answer, Builder, CALL, Connection, Gateway, Pair, Request, Seat, assert_refusal,
    until_holds,
};

const ANSWER: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{"ok":true}}"#;

/// A gateway with two siblings; `target` hibernates, and has a waker of its own.
struct Asleep {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
    waker: Agent,
}

impl Asleep {
    async fn on(builder: Builder) -> Self {
        Self::with(builder, Agent::json(ANSWER).await, Agent::json("{}").await).await
    }

    async fn with(builder: Builder, agent: Agent, waker: Agent) -> Self {
        let gateway = builder.start().await;
        let (caller, target) = gateway.pair(agent).await;
        let asleep = Self {
            gateway,
            caller,
            target,
            waker,
        };
        asleep.set(json!({"url": asleep.wake_url()})).await;
        asleep.hibernate().await;
        asleep
    }

    fn wake_url(&self) -> String {
        format!("{}wake?of=target", self.waker.url())
    }

    async fn set(&self, wake: Value) {
        self.patch(json!({"wake": wake})).await;
    }

    async fn hibernate(&self) {
        self.patch(json!({"status": "hibernated"})).await;
    }

    async fn patch(&self, change: Value) {
        self.gateway.patch(&self.target.id, change).await.has(200);
    }

    fn request(&self) -> Request {
        let request = self.caller.calls(&self.target);
        request.field("X-Request-Id", "seen")
    }

    /// A call by somebody else.
    fn by(&self, token: &str) -> Request {
        Request::post(self.target.path(), CALL).bearer(token)
    }

    /// A call in the background.
    fn call(&self, request: Request) -> JoinHandle<Answer> {
        let at = self.gateway.public;
        tokio::spawn(async move { Connection::open(at).await.call(&request).await })
    }

    /// A call that is parked.
    async fn parked(&self, request: Request) -> JoinHandle<Answer> {
        let before = parked(&self.gateway).await;
        let call = self.call(request);
        until(async || parked(&self.gateway).await > before).await;
        call
    }

    async fn heartbeat(&self) {
        beat(&self.gateway, &self.target).await;
    }

    async fn until_woken(&self, times: usize) {
        until(async || self.waker.count() >= times).await;
        assert_eq!(self.waker.count(), times);
    }
}

/// The answer to a call, which is a refusal and says so.
async fn refused(call: JoinHandle<Answer>, reason: &str, what: &str) -> Answer {
    let answer = call.await.unwrap();
    assert_refusal(&answer, "/a2a", "seen", reason, what);
    answer
}

async fn beat(gateway: &Gateway, seat: &Seat) {
    let body = json!({"workspace_id": seat.id}).to_string();
    let request = Request::post("/registry/heartbeat", body).bearer(&seat.token);
    gateway.call(&request).await.has(200);
}

async fn parked(gateway: &Gateway) -> u64 {
    let parked = gateway.metric("a2a_gateway_parked_calls", &[]).await;
    parked as u64
}

async fn until(holds: impl AsyncFn() -> bool) {
    until_holds("what the case waits for", holds).await;
}

/// The audit records of requests to wakers: outcome and detail.
async fn wakes(gateway: &Gateway, target: &str) -> Vec<(String, Value)> {
    let path = "/audit?event_type=WORKSPACE_WAKE&limit=100";
    let answer = gateway.admin_get(path).await.unwrap().json();
    let records = answer["records"].as_array().unwrap().iter();
    let told = records.filter(|record| record["target"] == target);
    let told = told.map(|record| {
        let outcome = record["outcome"].as_str().unwrap().to_owned();
        (outcome, record["detail"].clone())
    });
    told.collect()
}

/// With these settings no wait and no cool-down ends by itself.
const PATIENT: &str = "wake.cool_down=10min wake.max_wait=10min timeouts.total=10min";

fn patient(pair: Pair) -> Builder {
    Builder::new(pair).sets(PATIENT)
}
