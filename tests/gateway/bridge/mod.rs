//! Callers of one generation of A2A, or one binding, and agents that speak another: what the agent gets, and what the
//! caller gets back.

use serde_json::{Value, json};

use self::agents::{
    agent_0_3, agent_1_0, agent_http_json, call_in, card_http_json, events, message_0_3,
    message_1_0,
};
use crate::harness::{Agent, Answer, Gateway, Pair, Recorded, Request, Seat, card, card_1_0};

mod agents;
mod explained;
mod kept;
mod polled;
mod records;
mod refusals;
mod traps;

struct Case {
    gateway: Gateway,
    caller: Seat,
    other: Seat,
    target: Seat,
}

impl Case {
    async fn new(card: Value, agent: Agent) -> Self {
        Self::at(Gateway::start(Pair::Embedded).await, card, agent).await
    }

    async fn at(gateway: Gateway, card: Value, agent: Agent) -> Self {
        let idle = async || Agent::json("{}").await;
        let caller = gateway.seat("caller", "", idle().await).await;
        let other = gateway.seat("other", "", idle().await).await;
        let enrolment = gateway
            .create(json!({"id": "target", "name": "target"}))
            .await;
        let token = gateway
            .register("target", &enrolment, &agent.url(), card)
            .await;
        let target = Seat {
            id: "target".into(),
            token,
            agent,
        };
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

    /// The last request at the agent.
    fn last(&self) -> Recorded {
        self.target
            .agent
            .requests()
            .pop()
            .expect("the agent was called")
    }

    fn at_agent(&self) -> (String, Value) {
        let call = call_in(&self.last());
        (
            call["method"].as_str().unwrap_or_default().to_owned(),
            call["params"].clone(),
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_of_0_3_reaches_an_agent_of_1_0() {
    let case = Case::new(card_1_0("target"), agent_1_0().await).await;
    let asked = case.request("message/send", message_0_3());
    let asked = asked.field("X-A2A-Extensions", "https://ext.example/1");
    let answer = case.gateway.call(&asked).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.field("x-a2a-bridged"), Some("0.3>1.0"));
    let (method, params) = case.at_agent();
    assert_eq!(method, "SendMessage");
    assert_eq!(params["message"]["role"], "ROLE_USER");
    assert_eq!(
        params["message"]["parts"],
        json!([{"text": "hi"}, {"url": "http://f/1", "mediaType": "a/b", "filename": "n"}])
    );
    assert_eq!(params["configuration"]["returnImmediately"], true);
    let sent = case.last();
    assert_eq!(sent.field("a2a-version"), Some("1.0"));
    assert_eq!(sent.field("a2a-extensions"), Some("https://ext.example/1"));
    assert_eq!(sent.field("x-a2a-extensions"), None);
    let result = answer.json()["result"].clone();
    assert_eq!(
        (&result["kind"], &result["status"]["state"]),
        (&json!("task"), &json!("completed"))
    );
    assert_eq!(
        result["artifacts"][0]["parts"][0],
        json!({"kind": "text", "text": "made"})
    );
    assert_eq!(answer.json()["id"], 7);

    let got = case.call("tasks/get", json!({"id": "t-1"})).await.json()["result"].clone();
    assert_eq!(
        (&got["kind"], &got["status"]["state"]),
        (&json!("task"), &json!("working"))
    );
    let canceled = case.call("tasks/cancel", json!({"id": "t-1"})).await;
    assert_eq!(
        (canceled.status, &canceled.json()["error"]["code"]),
        (200, &json!(-32002))
    );

    let streamed = case.call("message/stream", message_0_3()).await;
    let said = events(&streamed);
    let kinds: Vec<_> = said
        .iter()
        .map(|event| event["result"]["kind"].clone())
        .collect();
    assert_eq!(
        kinds,
        ["task", "status-update", "status-update"],
        "{}",
        streamed.text()
    );
    let last: Vec<_> = said
        .iter()
        .map(|event| event["result"]["final"].clone())
        .collect();
    assert_eq!(last[1..], [json!(false), json!(true)]);
    assert!(said.iter().all(|event| event["id"] == 7));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_of_1_0_reaches_an_agent_of_0_3() {
    let case = Case::new(card("target"), agent_0_3().await).await;
    let answer = case.call("SendMessage", message_1_0()).await;
    assert_eq!(
        answer.field("x-a2a-bridged"),
        Some("1.0>0.3"),
        "{}",
        answer.text()
    );
    let (method, params) = case.at_agent();
    assert_eq!(
        (method.as_str(), &params["message"]["role"]),
        ("message/send", &json!("user"))
    );
    assert_eq!(params["configuration"]["blocking"], false);
    let text = answer.text();
    assert!(
        text.contains("9007199254740993"),
        "a number keeps its digits: {text}"
    );
    let task = answer.json()["result"]["task"].clone();
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
    assert!(!text.contains("\"kind\""), "{text}");

    // A stream of 1.0 begins with a task.
    let streamed = case.call("SendStreamingMessage", message_1_0()).await;
    let said = events(&streamed);
    let first = &said[0]["result"]["task"];
    assert_eq!(
        (&first["id"], &first["status"]["state"]),
        (&json!("t-1"), &json!("TASK_STATE_WORKING"))
    );
    assert_eq!(
        said.last().unwrap()["result"]["statusUpdate"]["status"]["state"],
        "TASK_STATE_COMPLETED"
    );
    assert!(!streamed.text().contains("\"final\""));

    // A subscription begins with the task, though the agent sends only what follows.
    let followed = case.call("SubscribeToTask", json!({"id": "t-1"})).await;
    let said = events(&followed);
    assert_eq!(said.len(), 2, "{}", followed.text());
    assert_eq!(
        said[0]["result"]["task"]["status"]["state"],
        "TASK_STATE_WORKING"
    );
    assert_eq!(
        said[1]["result"]["statusUpdate"]["status"]["state"],
        "TASK_STATE_COMPLETED"
    );
    let asked: Vec<_> = case
        .target
        .agent
        .requests()
        .iter()
        .map(|r| call_in(r)["method"].clone())
        .collect();
    assert_eq!(
        asked[asked.len() - 2..],
        [json!("tasks/resubscribe"), json!("tasks/get")]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_one_in_both_generations() {
    let case = Case::new(card_1_0("target"), agent_1_0().await).await;
    let begun = case.call("message/send", message_0_3()).await;
    assert_eq!(begun.json()["result"]["id"], "t-1");
    for method in ["GetTask", "tasks/get"] {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": "t-1"}});
        let stranger =
            Request::post("/workspaces/target/a2a", body.to_string()).bearer(&case.other.token);
        assert_eq!(
            case.gateway.call(&stranger).await.reason(),
            "task_not_found",
            "{method}"
        );
        assert_eq!(
            case.call(method, json!({"id": "t-1"})).await.status,
            200,
            "{method}"
        );
    }
    // A key replays the answer in the caller's form, and the agent is called once.
    let calls = case.target.agent.count();
    for replay in [None, Some("true")] {
        let keyed = case
            .request("message/send", message_0_3())
            .field("Idempotency-Key", "k-1");
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
        let sent = case
            .rest("POST", "message:send", &message_1_0().to_string())
            .await;
        assert_eq!(
            sent.field("x-a2a-bridged"),
            Some(version),
            "{}",
            sent.text()
        );
        assert_eq!(
            sent.json()["task"]["status"]["state"],
            "TASK_STATE_COMPLETED"
        );
        let got = case.rest("GET", "tasks/t-1", "").await;
        assert_eq!(got.json()["id"], "t-1", "{}", got.text());
        let query = case.rest("GET", "tasks/t-1?A2A-Version=1.0", "").await;
        assert_eq!(query.field("x-a2a-bridged"), Some(version));
        assert_eq!(query.json()["status"]["state"], "TASK_STATE_WORKING");
        let canceled = case.rest("POST", "tasks/t-1:cancel", "{}").await;
        assert_eq!(canceled.status, 400, "{}", canceled.text());
        canceled.says("TASK_NOT_CANCELABLE");
        let streamed = case
            .rest("POST", "message:stream", &message_1_0().to_string())
            .await;
        let said = events(&streamed);
        assert!(said[0]["task"].is_object(), "{}", streamed.text());
        assert_eq!(
            said.last().unwrap()["statusUpdate"]["status"]["state"],
            "TASK_STATE_COMPLETED"
        );
        let followed = case.rest("GET", "tasks/t-1:subscribe", "").await;
        assert!(
            events(&followed)[0]["task"].is_object(),
            "{}",
            followed.text()
        );
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
    for (send, stream, message) in [
        ("SendMessage", "SendStreamingMessage", message_1_0()),
        ("message/send", "message/stream", message_0_3()),
    ] {
        let sent = case.call(send, message.clone()).await;
        assert_eq!(sent.status, 200, "{}", sent.text());
        let result = sent.json()["result"].clone();
        let task = result.get("task").unwrap_or(&result);
        assert_eq!(task["id"], "t-1", "{result}");
        assert_eq!(
            case.last().field("content-type"),
            Some("application/a2a+json")
        );
        let streamed = case.call(stream, message).await;
        assert_eq!(events(&streamed).len(), 2, "{}", streamed.text());
        assert!(events(&streamed).iter().all(|event| event["id"] == 7));
    }
    for (get, cancel) in [("GetTask", "CancelTask"), ("tasks/get", "tasks/cancel")] {
        assert_eq!(
            case.call(get, json!({"id": "t-1"})).await.json()["result"]["id"],
            "t-1"
        );
        let error = case.call(cancel, json!({"id": "t-1"})).await.json()["error"].clone();
        assert_eq!(error["code"], -32002, "{error}");
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
        assert_eq!(
            (answer.text().as_str(), answer.field("x-a2a-bridged")),
            (odd, None)
        );
        assert_eq!(case.at_agent().0, method);
    }
}
