//! A task belongs to the caller that started it: two callers and one agent, in every dialect, unary and streamed;
//! who else may; and that nothing else changes.

mod owners;
mod push;
mod replicas;

use serde_json::{Value, json};

use crate::harness::{
    ADMIN, Agent, Answer, Builder, Connection, Gateway, LAST_CHUNK, Pair, Recorded, Request,
    SSE_HEAD, Seat, Step, assert_refusal, chunk, ok_json, until_holds,
};
use crate::on_both_pairs;
use crate::steady::ask_nothing;

/// An agent that answers a message with the result that its text spells, or with one event for each
/// line of it; and everything else with "served".
pub(crate) async fn echoing() -> Agent {
    Agent::scripted(answer).await
}

fn answer(request: &Recorded) -> Vec<Step> {
    let call: Value = serde_json::from_slice(&request.body).unwrap();
    let id = &call["id"];
    let envelope = |result: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
    let Some(text) = call["params"]["message"]["parts"][0]["text"].as_str() else {
        return vec![Step::Write(ok_json(&envelope(r#""served""#)))];
    };
    let text = text.replace("HUGE", &"\\\"x".repeat((5 << 20) / 3));
    let method = call["method"].as_str().unwrap();
    let streams = "message/stream SendStreamingMessage tasks/sendSubscribe";
    if !streams.split(' ').any(|stream| stream == method) {
        return vec![Step::Write(ok_json(&envelope(&text)))];
    }
    let mut steps = vec![Step::write(SSE_HEAD)];
    for line in text.lines() {
        let event = format!("data: {}\r\n\r\n", envelope(line));
        steps.push(Step::Write(chunk(event)));
    }
    steps.push(Step::write(LAST_CHUNK));
    steps
}

/// A team: two callers and an agent below one parent.
struct Team {
    boss: Seat,
    ann: Seat,
    bob: Seat,
    dev: Seat,
}

impl Team {
    async fn below(gateway: &Gateway, top: &str) -> Self {
        let idle = async || Agent::json("{}").await;
        Self {
            boss: gateway.seat("boss", top, idle().await).await,
            ann: gateway.seat("ann", "boss", idle().await).await,
            bob: gateway.seat("bob", "boss", idle().await).await,
            dev: gateway.seat("dev", "boss", echoing().await).await,
        }
    }
}

pub(crate) fn rpc(method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": "c-1", "method": method, "params": params}).to_string()
}

/// A message to which the agent answers with `result`.
pub(crate) fn send(method: &str, result: &str) -> String {
    let part = json!({"kind": "text", "text": result});
    let message = json!({"messageId": "m", "role": "user", "parts": [part]});
    rpc(method, &json!({"message": message}))
}

async fn call(connection: &mut Connection, token: &str, body: &str) -> Answer {
    let request = Request::post("/workspaces/dev/a2a", body).bearer(token);
    connection.call(&request).await
}

/// `token` is told that there is no such task, and the agent hears nothing.
async fn refused(connection: &mut Connection, token: &str, body: &str, agent: &Agent) {
    let before = agent.count();
    let request = Request::post("/workspaces/dev/a2a", body).bearer(token);
    let request = request.field("X-Request-Id", "r-1");
    let answer = connection.call(&request).await;
    assert_refusal(&answer, &request.path, "r-1", "task_not_found", body);
    assert_eq!(answer.json()["error"]["code"], -32_001);
    assert_eq!(answer.json()["id"], "c-1");
    assert_eq!(agent.count(), before, "{body}");
}

/// What `token` sends reaches the agent as it is.
async fn served(connection: &mut Connection, token: &str, body: &str, agent: &Agent) {
    let answer = call(connection, token, body).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    assert_eq!(agent.take().text(), body);
}

/// Every call that is about the task.
fn about(task: &str) -> Vec<String> {
    let push = json!({"url": "http://127.0.0.1:9/"});
    let message = json!({"messageId": "m", "role": "user", "parts": [], "taskId": task});
    let mut referring = json!({"messageId": "m", "role": "user", "parts": []});
    referring["referenceTaskIds"] = json!(["free", task]);
    let plain = "tasks/get tasks/cancel tasks/resubscribe tasks/pushNotification/get \
                 tasks/pushNotificationConfig/get tasks/pushNotificationConfig/list GetTask CancelTask \
                 SubscribeToTask tasks/getLater";
    let plain = plain.split(' ').map(|method| (method, json!({"id": task})));
    let set = |name: &str| json!({name: task, "pushNotificationConfig": push});
    let with = |name: &str| json!({"taskId": task, name: "c"});
    let others = [
        ("tasks/pushNotification/set", set("id")),
        ("tasks/pushNotificationConfig/set", set("taskId")),
        (
            "tasks/pushNotificationConfig/delete",
            json!({"id": task, "pushNotificationConfigId": "c"}),
        ),
        ("GetTask", json!({"name": format!("tasks/{task}")})),
        (
            "CreateTaskPushNotificationConfig",
            json!({"taskId": task, "url": push["url"]}),
        ),
        ("GetTaskPushNotificationConfig", with("id")),
        ("ListTaskPushNotificationConfigs", json!({"task_id": task})),
        ("DeleteTaskPushNotificationConfig", with("id")),
        ("message/send", json!({"message": message})),
        ("message/stream", json!({"message": message})),
        ("SendMessage", json!({"message": referring})),
        (
            "tasks/send",
            json!({"id": task, "message": {"role": "user", "parts": []}}),
        ),
    ];
    let all = plain.chain(others);
    let mut bodies: Vec<String> = all.map(|(method, params)| rpc(method, &params)).collect();
    let spelled = |params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":"c-1","method":"tasks/get","params":{params}}}"#)
    };
    let names = [r"\u0069d", "taskId", "task_id"];
    bodies.extend(names.map(|name| spelled(&format!(r#"{{"{name}":"{task}"}}"#))));
    bodies
}

on_both_pairs! {
    async fn without_a_task_and_for_its_owner_no_store_is_asked(pair: Pair) {
        // Copies of streams for other replicas are written in the background.
        let gateway = Builder::new(pair).set("stream.log_events", "0").start().await;
        let team = Team::below(&gateway, "").await;
        let mut connection = Connection::open(gateway.public).await;
        let plain = send("message/send", r#"{"kind":"message","messageId":"m","parts":[]}"#);
        let stream = send("message/stream", r#"{"kind":"message","messageId":"m","parts":[]}"#);
        let start = send("message/send", r#"{"id":"t-1"}"#);
        let ask = rpc("tasks/get", &json!({"id": "t-1"}));
        let bodies = [&plain, &stream, &start, &ask];
        let mut round = async || {
            for body in bodies {
                assert_eq!(call(&mut connection, &team.ann.token, body).await.status, 200);
            }
        };
        for _ in 0..5 {
            round().await;
        }
        // The claim is written in the background: who owns the task, and where it is.
        let is_written = async || {
            let claims = gateway.metric("a2a_gateway_store_seconds_count", &["operation=\"set_if_absent\""]);
            pair == Pair::Embedded || claims.await >= 2.0
        };
        until_holds("the claim is written", is_written).await;
        ask_nothing(&gateway, round, 50).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn further_up_the_line_only_where_lineages_count() {
    for (lineage, sees) in [("direct", false), ("any", true)] {
        let gateway = Gateway::with(&format!("access.lineage={lineage}")).await;
        let chief = gateway.seat("chief", "", Agent::json("{}").await).await;
        let team = Team::below(&gateway, "chief").await;
        // What its place does not give, a grant does: to reach the agent, not to see its tasks.
        let grant = json!({"caller_id": "chief", "target_id": "dev"}).to_string();
        let granted = gateway.as_operator(Request::post("/grants", grant));
        granted.await.has(201);
        let mut connection = Connection::open(gateway.public).await;
        let start = send("message/send", r#"{"id":"t-1"}"#);
        let started = call(&mut connection, &team.ann.token, &start);
        started.await.has(200);
        let ask = rpc("tasks/get", &json!({"id": "t-1"}));
        if sees {
            served(&mut connection, &chief.token, &ask, &team.dev.agent).await;
        } else {
            refused(&mut connection, &chief.token, &ask, &team.dev.agent).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canvas_users_of_one_name_are_two_in_two_orgs() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let team = Team::below(&gateway, "").await;
    let mut tokens = Vec::new();
    for org in [json!("a"), json!("b"), Value::Null] {
        let mut user = json!({"user": "ada", "workspaces": ["dev"]});
        if !org.is_null() {
            user["org"] = org;
        }
        tokens.push(gateway.token("/canvas/tokens", &user.to_string()).await);
    }
    let mut connection = Connection::open(gateway.public).await;
    let start = send("message/send", r#"{"id":"t-1"}"#);
    call(&mut connection, &tokens[0], &start).await.has(200);
    let ask = rpc("tasks/get", &json!({"id": "t-1"}));
    served(&mut connection, &tokens[0], &ask, &team.dev.agent).await;
    for token in [&tokens[1], &tokens[2], &team.ann.token, &team.boss.token] {
        refused(&mut connection, token, &ask, &team.dev.agent).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_much_to_check_is_refused() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let team = Team::below(&gateway, "").await;
    let mut connection = Connection::open(gateway.public).await;
    let many: Vec<String> = (0..101).map(|i| format!("t-{i}")).collect();
    let message = json!({"messageId": "m", "role": "user", "parts": [], "referenceTaskIds": many});
    for body in [
        rpc("tasks/get", &json!({"id": "x".repeat(257)})),
        rpc("message/send", &json!({"message": message})),
    ] {
        let answer = call(&mut connection, &team.ann.token, &body).await;
        answer.refuses(400, "invalid_request");
    }
    assert_eq!(team.dev.agent.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_about_a_task_is_its_owners() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let team = Team::below(&gateway, "").await;
    let mut connection = Connection::open(gateway.public).await;
    let task = r#"{"kind":"task","id":"t-1","status":{"state":"working"}}"#;
    let start = send("message/send", task);
    let answer = call(&mut connection, &team.ann.token, &start).await;
    assert_eq!(answer.json()["result"]["id"], "t-1");
    assert_eq!(team.dev.agent.take().text(), start);
    for body in about("t-1") {
        refused(&mut connection, &team.bob.token, &body, &team.dev.agent).await;
        // Also the agent's own workspace is another caller.
        refused(&mut connection, &team.dev.token, &body, &team.dev.agent).await;
        for token in [&team.ann.token, &team.boss.token, ADMIN] {
            served(&mut connection, token, &body, &team.dev.agent).await;
        }
    }
    // One that nobody was seen to start, one of another target: anybody's.
    for body in about("t-2") {
        served(&mut connection, &team.bob.token, &body, &team.dev.agent).await;
    }
    let ask = rpc("tasks/get", &json!({"id": "t-1"}));
    let elsewhere = team.bob.sends(&team.ann, ask);
    connection.call(&elsewhere).await.has(200);
    // What was refused is in the record like everything else.
    let labels = ["method=\"get_task\"", "outcome=\"task_not_found\""];
    assert!(gateway.metric("a2a_gateway_exchanges_total", &labels).await >= 2.0);
    let learnt = gateway.metric("a2a_gateway_tasks_learnt_total", &[]);
    assert_eq!(learnt.await, 1.0);
    gateway.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_is_named_ambiguously_is_nobodys() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let team = Team::below(&gateway, "").await;
    for params in [
        r#"{"id":"free","id":"t-1"}"#,
        r#"{"id":"free","Id":"t-1"}"#,
        r#"{"ID":"t-1"}"#,
        r#"{"\u0049d":"t-1"}"#,
        r#"{"TaskId":"t-1"}"#,
        r#"{"taſkId":"t-1"}"#,
    ] {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":"c-1","method":"tasks/get","params":{params}}}"#);
        let request = team.bob.sends(&team.dev, body);
        let request = request.field("X-Request-Id", "r-1");
        let answer = gateway.call(&request).await;
        assert_refusal(&answer, &request.path, "r-1", "invalid_request", params);
    }
    assert_eq!(team.dev.agent.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_is_learnt_from_every_shape_of_an_answer() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let team = Team::below(&gateway, "").await;
    let mut connection = Connection::open(gateway.public).await;
    let unary = [
        r#"{"kind":"task","id":"T","contextId":"c","status":{"state":"completed"}}"#,
        r#"{"artifacts":[{"id":"a","parts":[{"text":"HUGE"}]}],"history":[{"taskId":"h"}],"id":"T"}"#,
        r#"{"task":{"history":[{"taskId":"h"}],"id":"T"}}"#,
        r#"{"kind":"message","messageId":"m","parts":[],"taskId":"T"}"#,
        r#"{"message":{"messageId":"m","parts":[],"taskId":"T"}}"#,
        r#"{"id":"T","sessionId":"s","status":{"state":"submitted"}}"#,
    ];
    let streamed = [
        "{\"kind\":\"task\",\"id\":\"T\"}\n{\"kind\":\"status-update\",\"taskId\":\"T\",\"final\":true}",
        "{\"kind\":\"message\",\"messageId\":\"m\",\"parts\":[]}\n{\"kind\":\"status-update\",\"taskId\":\"T\",\"final\":true}",
        "{\"task\":{\"id\":\"T\"}}",
        "{\"statusUpdate\":{\"taskId\":\"T\"}}",
        "{\"artifactUpdate\":{\"artifact\":{\"parts\":[{\"text\":\"HUGE\"}]},\"taskId\":\"T\"}}",
    ];
    let unary = unary.iter();
    let unary = unary.flat_map(|result| ["message/send", "SendMessage"].map(|by| (by, result)));
    let methods = ["message/stream", "SendStreamingMessage"];
    let streamed = streamed.iter();
    let streamed = streamed.flat_map(|result| methods.map(|by| (by, result)));
    for (number, (method, result)) in unary.chain(streamed).enumerate() {
        let task = format!("task-{number}");
        let start = send(method, &result.replace('T', &task));
        let answer = call(&mut connection, &team.ann.token, &start).await;
        assert_eq!(answer.status, 200, "{method} {result}");
        assert!(answer.whole, "{method} {result}");
        assert!(answer.text().contains(&task), "{method} {result}");
        for ask in ["tasks/get", "GetTask"] {
            let ask = rpc(ask, &json!({"id": task}));
            refused(&mut connection, &team.bob.token, &ask, &team.dev.agent).await;
            served(&mut connection, &team.ann.token, &ask, &team.dev.agent).await;
        }
    }
    // Whoever comes second owns nothing by it.
    let again = send("message/send", r#"{"id":"task-0"}"#);
    let second = call(&mut connection, &team.bob.token, &again);
    second.await.has(200);
    let ask = rpc("tasks/get", &json!({"id": "task-0"}));
    refused(&mut connection, &team.bob.token, &ask, &team.dev.agent).await;
    served(&mut connection, &team.ann.token, &ask, &team.dev.agent).await;
    // Nor is anything learnt from an answer to a question.
    let ask = rpc("tasks/get", &json!({"id": "served"}));
    served(&mut connection, &team.bob.token, &ask, &team.dev.agent).await;
    served(&mut connection, &team.ann.token, &ask, &team.dev.agent).await;
}
