//! Agents that keep their tasks to themselves: three instances behind one workspace, and one or two gateways.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::servers::{self, Redis};
use crate::harness::{
    ADMIN, Agent, Answer, Builder, Gateway, Pair, Recorded, Request, Seat, Step, card, chunk,
    ok_json, until_holds,
};

/// Tasks of one instance, by id, each with its context.
type Tasks = Mutex<HashMap<String, String>>;

/// An instance of an agent that finds only its own tasks.
pub(super) struct Instance {
    pub(super) id: String,
    pub(super) agent: Agent,
    /// True while it answers 503.
    pub(super) is_down: Arc<AtomicBool>,
}

static NUMBER: AtomicUsize = AtomicUsize::new(0);

impl Instance {
    async fn new(id: &str) -> Self {
        let (tasks, is_down) = (Arc::<Tasks>::default(), Arc::<AtomicBool>::default());
        let (down, name) = (Arc::clone(&is_down), id.to_owned());
        let agent = Agent::scripted(move |request| match down.load(Ordering::SeqCst) {
            true => vec![Step::write(
                "HTTP/1.1 503 Down\r\nContent-Length: 0\r\n\r\n",
            )],
            false => answer(&tasks, &name, request),
        });
        Self {
            id: id.to_owned(),
            agent: agent.await,
            is_down,
        }
    }
}

fn answer(tasks: &Tasks, instance: &str, request: &Recorded) -> Vec<Step> {
    let Ok(call) = serde_json::from_slice::<Value>(&request.body) else {
        return vec![Step::Write(ok_json("{}"))];
    };
    let mut tasks = tasks.lock().unwrap();
    let (id, params) = (&call["id"], &call["params"]);
    let result = |result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result});
    let unknown = || {
        let error = json!({"code": -32001, "message": "Task not found"});
        json!({"jsonrpc": "2.0", "id": id, "error": error})
    };
    let task = |task: &str, context: &str, state: &str| {
        json!({"kind": "task", "id": task, "contextId": context, "status": {"state": state},
            "metadata": {"instance": instance}})
    };
    let method = call["method"].as_str().unwrap_or_default();
    if let Some(named) = params["id"].as_str() {
        let found = tasks
            .get(named)
            .map(|context| task(named, context, "working"));
        return vec![Step::Write(ok_json(
            &found.map_or_else(unknown, result).to_string(),
        ))];
    }
    let message = &params["message"];
    let named = message["taskId"].as_str();
    if named.is_some_and(|named| !tasks.contains_key(named)) {
        return vec![Step::Write(ok_json(&unknown().to_string()))];
    }
    let number = NUMBER.fetch_add(1, Ordering::SeqCst);
    let context = message["contextId"].as_str().map(str::to_owned);
    let context = context.unwrap_or_else(|| format!("context-{number}"));
    if message["parts"][0]["text"] == "hello" {
        let said = json!({"kind": "message", "messageId": "m", "role": "agent", "contextId": context,
            "parts": [], "metadata": {"instance": instance}});
        return vec![Step::Write(ok_json(&result(said).to_string()))];
    }
    let named = named.map_or_else(|| format!("task-{number}"), str::to_owned);
    tasks.insert(named.clone(), context.clone());
    if method != "message/stream" {
        return vec![Step::Write(ok_json(
            &result(task(&named, &context, "working")).to_string(),
        ))];
    }
    let update = json!({"kind": "status-update", "taskId": named, "contextId": context, "final": true,
        "status": {"state": "completed"}});
    let events = [task(&named, &context, "working"), update];
    let events = events.map(|event| Step::Write(chunk(format!("data: {}\n\n", result(event)))));
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    [Step::write(head)]
        .into_iter()
        .chain(events)
        .chain([Step::write("0\r\n\r\n")])
        .collect()
}

/// Three instances `a`, `b` and `c` of the workspace `target`, and the gateways in front of them.
pub(super) struct Cluster {
    pub(super) gateways: Vec<Gateway>,
    pub(super) caller: Seat,
    pub(super) instances: Vec<Instance>,
    turn: AtomicUsize,
    /// The stores of two gateways.
    pub(super) redis: Option<Redis>,
}

impl Cluster {
    /// Starts one gateway on the embedded stores, or two that share PostgreSQL and Redis.
    pub(super) async fn start(pair: Pair, builder: impl Fn() -> Builder) -> Self {
        let mut gateways = Vec::new();
        let mut redis = None;
        match pair {
            Pair::Embedded => gateways.push(builder().start().await),
            Pair::External => {
                let (shared, sql) = (Redis::start(), servers::postgres().database());
                for _ in 0..2 {
                    let builder = builder().stores(&sql, &shared.url());
                    gateways.push(builder.start().await);
                }
                redis = Some(shared);
            }
        }
        for gateway in &gateways {
            gateway.until_coherent().await;
        }
        let caller = gateways[0]
            .seat("caller", "", Agent::json("{}").await)
            .await;
        let target = json!({"id": "target", "name": "target"});
        gateways[0].create(target).await;
        let mut cluster = Self {
            gateways,
            caller,
            instances: Vec::new(),
            turn: AtomicUsize::new(0),
            redis,
        };
        for id in ["a", "b", "c"] {
            cluster.add(id).await;
        }
        cluster
    }

    /// Starts an instance and registers it.
    pub(super) async fn add(&mut self, id: &str) {
        let instance = Instance::new(id).await;
        self.register(&instance).await;
        self.instances.push(instance);
    }

    pub(super) async fn register(&self, instance: &Instance) {
        let body = json!({"id": "target", "instance_id": instance.id, "url": instance.agent.url(),
            "agent_card": card("target")});
        let request = Request::post("/registry/register", body.to_string()).bearer(ADMIN);
        let answer = self.gateways[0].call(&request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    pub(super) async fn tell(&self, path: &str, instance: &str) {
        let body = json!({"workspace_id": "target", "instance_id": instance});
        let request = Request::post(path, body.to_string()).bearer(ADMIN);
        let answer = self.gateways[0].call(&request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// Calls at the gateways in turn.
    pub(super) async fn call(&self, method: &str, params: Value) -> Answer {
        let turn = self.turn.fetch_add(1, Ordering::SeqCst);
        self.call_at(turn, method, params).await
    }

    pub(super) async fn call_at(&self, turn: usize, method: &str, params: Value) -> Answer {
        let body = json!({"jsonrpc": "2.0", "id": "call", "method": method, "params": params});
        let request = Request::post("/workspaces/target/a2a", body.to_string());
        let request = request.bearer(&self.caller.token);
        self.gateways[turn % self.gateways.len()]
            .call(&request)
            .await
    }

    /// Sends a message that starts a task. Returns the task and the instance.
    pub(super) async fn task(&self, message: Value) -> (Value, String) {
        let answer = self
            .call("message/send", json!({"message": with_text(message)}))
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let task = answer.json()["result"].clone();
        let instance = task["metadata"]["instance"].as_str();
        let instance = instance
            .unwrap_or_else(|| panic!("{}", answer.text()))
            .to_owned();
        (task, instance)
    }

    /// Waits until what is bound is written down, for every replica: an answer waits for that only a moment.
    pub(super) async fn until_written(&self) {
        let written = async || {
            let labels = ["queue=\"task_notes\""];
            let queued = self.metric("a2a_gateway_queue_entries", &labels);
            queued.await == 0.0
        };
        until_holds("bindings are written", written).await;
    }

    /// Calls received by each instance, in order.
    pub(super) fn counts(&self) -> Vec<usize> {
        self.instances.iter().map(|one| one.agent.count()).collect()
    }

    pub(super) fn instance(&self, id: &str) -> &Instance {
        self.instances.iter().find(|one| one.id == id).unwrap()
    }

    /// Stops an instance. Its address refuses connections from now on.
    pub(super) fn kill(&mut self, id: &str) -> String {
        let at = self.instances.iter().position(|one| one.id == id).unwrap();
        self.instances.remove(at).agent.url()
    }

    /// The sum of a metric over the gateways.
    pub(super) async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let mut sum = 0.0;
        for gateway in &self.gateways {
            sum += gateway.metric(name, labels).await;
        }
        sum
    }
}

/// A message with these members.
pub(super) fn with_text(mut message: Value) -> Value {
    message["messageId"] = uuid::Uuid::new_v4().to_string().into();
    message["role"] = "user".into();
    if message["parts"].is_null() {
        message["parts"] = json!([{"kind": "text", "text": "work"}]);
    }
    message
}
