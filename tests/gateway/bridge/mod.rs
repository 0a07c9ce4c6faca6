//! Callers of one generation of A2A, or one binding, and agents that speak another: what the agent gets, and what the
//! caller gets back.

use serde_json::{Value, json};

use self::agents::{
    agent_0_3, agent_1_0, agent_http_json, call_in, card_http_json, events, message_0_3,
    message_1_0,
};
use crate::harness::{
    Agent, Answer, Builder, Gateway, Pair, Recorded, Request, Seat, card, card_1_0,
};

mod agents;
mod explained;
mod kept;
mod polled;
mod records;
mod refusals;
mod traps;

/// Names of a message, and of requests about its task, in one generation.
struct Words {
    send: &'static str,
    message: Value,
    stream: &'static str,
    get: &'static str,
    cancel: &'static str,
    subscribe: &'static str,
    done: &'static str,
}

fn words_0_3() -> Words {
    Words {
        send: "message/send",
        message: message_0_3(),
        stream: "message/stream",
        get: "tasks/get",
        cancel: "tasks/cancel",
        subscribe: "tasks/resubscribe",
        done: "completed",
    }
}

fn words_1_0() -> Words {
    Words {
        send: "SendMessage",
        message: message_1_0(),
        stream: "SendStreamingMessage",
        get: "GetTask",
        cancel: "CancelTask",
        subscribe: "SubscribeToTask",
        done: "TASK_STATE_COMPLETED",
    }
}

/// Both ways of a translation: the case, the words of its caller and of its agent, and its name.
async fn ways() -> [(Case, Words, Words, &'static str); 2] {
    let up = Case::new(card_1_0("target"), agent_1_0().await).await;
    let down = Case::new(card("target"), agent_0_3().await).await;
    [
        (up, words_0_3(), words_1_0(), "0.3>1.0"),
        (down, words_1_0(), words_0_3(), "1.0>0.3"),
    ]
}

/// The kind of each event.
fn kinds(said: &[Value]) -> Vec<&Value> {
    said.iter().map(|event| &event["result"]["kind"]).collect()
}

struct Case {
    gateway: Gateway,
    caller: Seat,
    other: Seat,
    target: Seat,
}

impl Case {
    async fn new(card: Value, agent: Agent) -> Self {
        // Nothing beats for its agents.
        let builder = Builder::new(Pair::Embedded).set("registry.heartbeat_ttl", "1h");
        Self::at(builder.start().await, card, agent).await
    }

    async fn at(gateway: Gateway, card: Value, agent: Agent) -> Self {
        let idle = async || Agent::json("{}").await;
        let caller = gateway.seat("caller", "", idle().await).await;
        let other = gateway.seat("other", "", idle().await).await;
        let enrolment = gateway.found("target").await;
        let url = agent.url();
        let token = gateway.register("target", &enrolment, &url, card).await;
        let id = "target".into();
        let target = Seat { id, token, agent };
        Self {
            gateway,
            caller,
            other,
            target,
        }
    }

    fn request(&self, method: &str, params: Value) -> Request {
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        Request::post("/workspaces/target/a2a", body.to_string()).bearer(&self.caller.token)
    }

    async fn call(&self, method: &str, params: Value) -> Answer {
        self.gateway.call(&self.request(method, params)).await
    }

    async fn rest(&self, verb: &str, tail: &str, body: &str) -> Answer {
        let mut request = Request::post(format!("/workspaces/target/a2a/{tail}"), body);
        request.method = verb.to_owned();
        if verb == "GET" {
            request = request.without("content-type");
        }
        self.gateway.call(&request.bearer(&self.caller.token)).await
    }

    /// A call of `other`.
    async fn strange(&self, method: &str, params: Value) -> Answer {
        let request = self.request(method, params).without("authorization");
        self.gateway.call(&request.bearer(&self.other.token)).await
    }

    /// The last request at the agent.
    fn last(&self) -> Recorded {
        let last = self.target.agent.requests().pop();
        last.expect("the agent was called")
    }

    fn at_agent(&self) -> (String, Value) {
        let call = call_in(&self.last());
        let method = call["method"].as_str().unwrap_or_default();
        (method.to_owned(), call["params"].clone())
    }

    /// Sets whether calls are translated.
    async fn bridges(&self, mode: &str) {
        let mode = json!({"bridge": mode});
        self.gateway.patch("target", mode).await.has(200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_of_0_3_reaches_an_agent_of_1_0() {
    let case = Case::new(card_1_0("target"), agent_1_0().await).await;
    let asked = case.request("message/send", message_0_3());
    let asked = asked.field("X-A2A-Extensions", "https://ext.example/1");
    let answer = case.gateway.call(&asked).await.has(200);
    assert_eq!(answer.field("x-a2a-bridged"), Some("0.3>1.0"));
    let (method, params) = case.at_agent();
    assert_eq!(method, "SendMessage");
    assert_eq!(params["message"]["role"], "ROLE_USER");
    assert_eq!(
        params["message"]["parts"],
        message_1_0()["message"]["parts"]
    );
    assert_eq!(params["configuration"]["returnImmediately"], true);
    let sent = case.last();
    assert_eq!(sent.field("a2a-version"), Some("1.0"));
    assert_eq!(sent.field("a2a-extensions"), Some("https://ext.example/1"));
    assert_eq!(sent.field("x-a2a-extensions"), None);
    let result = answer.json()["result"].clone();
    assert_eq!(result["kind"], "task");
    assert_eq!(result["status"]["state"], "completed");
    let part = json!({"kind": "text", "text": "made"});
    assert_eq!(result["artifacts"][0]["parts"][0], part);
    assert_eq!(answer.json()["id"], 7);

    let got = case.call("tasks/get", json!({"id": "t-1"})).await.json()["result"].clone();
    assert_eq!(got["kind"], "task");
    assert_eq!(got["status"]["state"], "working");
    let canceled = case.call("tasks/cancel", json!({"id": "t-1"})).await;
    canceled.errs(200, -32002);

    let streamed = case.call("message/stream", message_0_3()).await;
    let said = events(&streamed);
    assert_eq!(kinds(&said), ["task", "status-update", "status-update"]);
    for (at, is_final) in [(1, false), (2, true)] {
        assert_eq!(said[at]["result"]["final"], is_final);
    }
    assert!(said.iter().all(|event| event["id"] == 7));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_of_1_0_reaches_an_agent_of_0_3() {
    let case = Case::new(card("target"), agent_0_3().await).await;
    let answer = case.call("SendMessage", message_1_0()).await;
    answer.has_field("x-a2a-bridged", "1.0>0.3");
    let (method, params) = case.at_agent();
    assert_eq!(method, "message/send");
    assert_eq!(params["message"]["role"], "user");
    assert_eq!(params["configuration"]["blocking"], false);
    let text = answer.text();
    // A number keeps its digits.
    answer.says("9007199254740993");
    let task = answer.json()["result"]["task"].clone();
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
    assert!(!text.contains("\"kind\""), "{text}");

    // A stream of 1.0 begins with a task.
    let streamed = case.call("SendStreamingMessage", message_1_0()).await;
    let said = events(&streamed);
    let first = &said[0]["result"]["task"];
    assert_eq!(first["id"], "t-1");
    assert_eq!(first["status"]["state"], "TASK_STATE_WORKING");
    let last = &said.last().unwrap()["result"]["statusUpdate"];
    assert_eq!(last["status"]["state"], "TASK_STATE_COMPLETED");
    assert!(!streamed.text().contains("\"final\""));

    // A subscription begins with the task, though the agent sends only what follows.
    let followed = case.call("SubscribeToTask", json!({"id": "t-1"})).await;
    let said = events(&followed);
    assert_eq!(said.len(), 2, "{}", followed.text());
    let (first, last) = (
        &said[0]["result"]["task"],
        &said[1]["result"]["statusUpdate"],
    );
    assert_eq!(first["status"]["state"], "TASK_STATE_WORKING");
    assert_eq!(last["status"]["state"], "TASK_STATE_COMPLETED");
    let asked = case.target.agent.requests();
    let asked: Vec<_> = asked.iter().map(|r| call_in(r)["method"].clone()).collect();
    assert_eq!(asked[asked.len() - 2..], ["tasks/resubscribe", "tasks/get"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_one_in_both_generations() {
    let case = Case::new(card_1_0("target"), agent_1_0().await).await;
    let begun = case.call("message/send", message_0_3()).await;
    assert_eq!(begun.json()["result"]["id"], "t-1");
    for method in ["GetTask", "tasks/get"] {
        let stranger = case.strange(method, json!({"id": "t-1"})).await;
        assert_eq!(stranger.reason(), "task_not_found", "{method}");
        let own = case.call(method, json!({"id": "t-1"})).await;
        assert_eq!(own.status, 200, "{method}");
    }
    // A key replays the answer in the caller's form, and the agent is called once.
    let calls = case.target.agent.count();
    for replay in [None, Some("true")] {
        let keyed = case.request("message/send", message_0_3());
        let keyed = keyed.field("Idempotency-Key", "k-1");
        let answer = case.gateway.call(&keyed).await;
        assert_eq!(answer.json()["result"]["kind"], "task", "{}", answer.text());
        assert_eq!(answer.field("idempotent-replay"), replay);
        assert_eq!(answer.field("x-a2a-bridged"), Some("0.3>1.0"));
    }
    assert_eq!(case.target.agent.count(), calls + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_json_callers_reach_agents_of_json_rpc() {
    for (card, agent, version) in [
        (card("target"), agent_0_3().await, "1.0>0.3"),
        (card_1_0("target"), agent_1_0().await, "1.0>1.0"),
    ] {
        let case = Case::new(card, agent).await;
        let (message, done) = (message_1_0().to_string(), "TASK_STATE_COMPLETED");
        let sent = case.rest("POST", "message:send", &message).await;
        sent.has_field("x-a2a-bridged", version);
        assert_eq!(sent.json()["task"]["status"]["state"], done);
        let got = case.rest("GET", "tasks/t-1", "").await;
        assert_eq!(got.json()["id"], "t-1", "{}", got.text());
        let query = case.rest("GET", "tasks/t-1?A2A-Version=1.0", "").await;
        assert_eq!(query.field("x-a2a-bridged"), Some(version));
        assert_eq!(query.json()["status"]["state"], "TASK_STATE_WORKING");
        let canceled = case.rest("POST", "tasks/t-1:cancel", "{}").await.has(400);
        canceled.says("TASK_NOT_CANCELABLE");
        let streamed = case.rest("POST", "message:stream", &message).await;
        let said = events(&streamed);
        assert!(said[0]["task"].is_object(), "{}", streamed.text());
        let last = &said.last().unwrap()["statusUpdate"];
        assert_eq!(last["status"]["state"], done);
        let followed = case.rest("GET", "tasks/t-1:subscribe", "").await;
        let first = &events(&followed)[0];
        assert!(first["task"].is_object(), "{}", followed.text());
        let listed = case.rest("GET", "tasks?pageSize=5", "").await;
        if version == "1.0>1.0" {
            assert_eq!(listed.json()["tasks"][0]["id"], "t-1", "{}", listed.text());
        } else {
            listed.says("UNSUPPORTED_OPERATION");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_rpc_callers_reach_agents_of_http_json() {
    let case = Case::new(card_http_json(), agent_http_json().await).await;
    for words in [words_1_0(), words_0_3()] {
        let sent = case.call(words.send, words.message.clone()).await.has(200);
        let result = sent.json()["result"].clone();
        let task = result.get("task").unwrap_or(&result);
        assert_eq!(task["id"], "t-1", "{result}");
        let last = case.last();
        assert_eq!(last.field("content-type"), Some("application/a2a+json"));
        let streamed = case.call(words.stream, words.message).await;
        assert_eq!(events(&streamed).len(), 2, "{}", streamed.text());
        assert!(events(&streamed).iter().all(|event| event["id"] == 7));
        let got = case.call(words.get, json!({"id": "t-1"})).await.json();
        assert_eq!(got["result"]["id"], "t-1");
        let canceled = case.call(words.cancel, json!({"id": "t-1"})).await.json();
        assert_eq!(canceled["error"]["code"], -32002, "{canceled}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_answered_at_once_is_one_event() {
    let over = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32004,"message":"over"}}"#;
    let case = Case::new(card_1_0("target"), Agent::json(over).await).await;
    for (method, params) in [
        ("tasks/resubscribe", json!({"id": "t-1"})),
        ("message/stream", message_0_3()),
    ] {
        let answer = case.call(method, params).await;
        assert_eq!(answer.field("content-type"), Some("text/event-stream"));
        assert_eq!(events(&answer)[0]["error"]["code"], -32004, "{method}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_its_agent_speaks_passes_byte_for_byte() {
    let mut both = card_1_0("target");
    both["url"] = json!("http://127.0.0.1/");
    both["protocolVersion"] = json!("0.3.0");
    let odd = r#"{ "jsonrpc":"2.0", "id":7.0, "result":{"x": 1.50} }"#;
    let case = Case::new(both, Agent::json(odd).await).await;
    for (method, params) in [
        ("SendMessage", message_1_0()),
        ("message/send", message_0_3()),
    ] {
        let answer = case.call(method, params).await;
        assert_eq!(answer.text(), odd);
        assert_eq!(answer.field("x-a2a-bridged"), None);
        assert_eq!(case.at_agent().0, method);
    }
}
