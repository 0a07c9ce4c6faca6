//! A task belongs to the caller that started it: two callers and one agent, in every dialect, unary and streamed;
//! who else may; and that nothing else changes.

mod owners;
mod push;
mod replicas;

use serde_json::{Value, json};

use crate::harness::{
    ADMIN, Agent, Answer, Connection, Gateway, LAST_CHUNK, Pair, Recorded, Request, SSE_HEAD, Seat,
    Step, assert_refusal, chunk, ok_json, until_holds,
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
    if ![
        "message/stream",
        "SendStreamingMessage",
        "tasks/sendSubscribe",
    ]
    .contains(&method)
    {
        return vec![Step::Write(ok_json(&envelope(&text)))];
    }
    let events = text
        .lines()
        .map(|line| Step::Write(chunk(format!("data: {}\r\n\r\n", envelope(line)))));
    let head = std::iter::once(Step::write(SSE_HEAD));
    head.chain(events)
        .chain([Step::write(LAST_CHUNK)])
        .collect()
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
    let message =
        json!({"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": result}]});
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
    let answer = connection.call(&request.field("X-Request-Id", "r-1")).await;
    assert_refusal(
        &answer,
        "/workspaces/dev/a2a",
        "r-1",
        "task_not_found",
        body,
    );
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
    let referring =
        json!({"messageId": "m", "role": "user", "parts": [], "referenceTaskIds": ["free", task]});
    let mut bodies: Vec<String> = [
        ("tasks/get", json!({"id": task})),
        ("tasks/cancel", json!({"id": task})),
        ("tasks/resubscribe", json!({"id": task})),
        (
            "tasks/pushNotification/set",
            json!({"id": task, "pushNotificationConfig": push}),
        ),
        ("tasks/pushNotification/get", json!({"id": task})),
        (
            "tasks/pushNotificationConfig/set",
            json!({"taskId": task, "pushNotificationConfig": push}),
        ),
        ("tasks/pushNotificationConfig/get", json!({"id": task})),
        ("tasks/pushNotificationConfig/list", json!({"id": task})),
        (
            "tasks/pushNotificationConfig/delete",
            json!({"id": task, "pushNotificationConfigId": "c"}),
        ),
        ("GetTask", json!({"id": task})),
        ("GetTask", json!({"name": format!("tasks/{task}")})),
        ("CancelTask", json!({"id": task})),
        ("SubscribeToTask", json!({"id": task})),
        (
            "CreateTaskPushNotificationConfig",
            json!({"taskId": task, "url": "http://127.0.0.1:9/"}),
        ),
        (
            "GetTaskPushNotificationConfig",
            json!({"taskId": task, "id": "c"}),
        ),
        ("ListTaskPushNotificationConfigs", json!({"task_id": task})),
        (
            "DeleteTaskPushNotificationConfig",
            json!({"taskId": task, "id": "c"}),
        ),
        ("tasks/getLater", json!({"id": task})),
        ("message/send", json!({"message": message})),
        ("message/stream", json!({"message": message})),
        ("SendMessage", json!({"message": referring})),
        (
            "tasks/send",
            json!({"id": task, "message": {"role": "user", "parts": []}}),
        ),
    ]
    .iter()
    .map(|(method, params)| rpc(method, params))
    .collect();
    let spelled = |params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":"c-1","method":"tasks/get","params":{params}}}"#)
    };
    bodies.extend([
        spelled(&format!(r#"{{"\u0069d":"{task}"}}"#)),
        spelled(&format!(r#"{{"taskId":"{task}"}}"#)),
        spelled(&format!(r#"{{"task_id":"{task}"}}"#)),
    ]);
    bodies
}

on_both_pairs! {
    async fn without_a_task_and_for_its_owner_no_store_is_asked(pair: Pair) {
        // Copies of streams for other replicas are written in the background.
        let builder = crate::harness::Builder::new(pair).set("stream.log_events", "0");
        let gateway = builder.start().await;
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
        let builder = crate::harness::Builder::new(Pair::Embedded);
        let gateway = builder.set("access.lineage", lineage).start().await;
        let chief = gateway.seat("chief", "", Agent::json("{}").await).await;
        let team = Team::below(&gateway, "chief").await;
        // What its place does not give, a grant does: to reach the agent, not to see its tasks.
        let grant = json!({"caller_id": "chief", "target_id": "dev"}).to_string();
        let granted = gateway.as_operator(Request::post("/grants", grant)).await;
        assert_eq!(granted.status, 201, "{}", granted.text());
        let mut connection = Connection::open(gateway.public).await;
        let start = send("message/send", r#"{"id":"t-1"}"#);
        let started = call(&mut connection, &team.ann.token, &start).await;
        assert_eq!(started.status, 200);
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
        let made = gateway.as_operator(Request::post("/canvas/tokens", user.to_string()));
        let made = made.await.json();
        tokens.push(made["token"].as_str().expect("a token").to_owned());
    }
    let mut connection = Connection::open(gateway.public).await;
    let start = send("message/send", r#"{"id":"t-1"}"#);
    let started = call(&mut connection, &tokens[0], &start).await;
    assert_eq!(started.status, 200, "{}", started.text());
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
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (400, "invalid_request")
        );
    }
    assert_eq!(team.dev.agent.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_about_a_task_is_its_owners() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let team = Team::below(&gateway, "").await;
    let mut connection = Connection::open(gateway.public).await;
    let start = send(
        "message/send",
        r#"{"kind":"task","id":"t-1","status":{"state":"working"}}"#,
    );
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
    let elsewhere = Request::post(
        "/workspaces/ann/a2a",
        rpc("tasks/get", &json!({"id": "t-1"})),
    );
    let answer = connection.call(&elsewhere.bearer(&team.bob.token)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    // What was refused is in the record like everything else.
    let labels = ["method=\"get_task\"", "outcome=\"task_not_found\""];
    assert!(gateway.metric("a2a_gateway_exchanges_total", &labels).await >= 2.0);
    assert_eq!(
        gateway.metric("a2a_gateway_tasks_learnt_total", &[]).await,
        1.0
    );
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
        let request = Request::post("/workspaces/dev/a2a", body).bearer(&team.bob.token);
        let answer = gateway.call(&request.field("X-Request-Id", "r-1")).await;
        assert_refusal(
            &answer,
            "/workspaces/dev/a2a",
            "r-1",
            "invalid_request",
            params,
        );
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
    let unary = unary
        .iter()
        .flat_map(|result| [("message/send", result), ("SendMessage", result)]);
    let streamed = streamed
        .iter()
        .flat_map(|result| [("message/stream", result), ("SendStreamingMessage", result)]);
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
    assert_eq!(
        call(&mut connection, &team.bob.token, &again).await.status,
        200
    );
    let ask = rpc("tasks/get", &json!({"id": "task-0"}));
    refused(&mut connection, &team.bob.token, &ask, &team.dev.agent).await;
    served(&mut connection, &team.ann.token, &ask, &team.dev.agent).await;
    // Nor is anything learnt from an answer to a question.
    served(
        &mut connection,
        &team.bob.token,
        &rpc("tasks/get", &json!({"id": "served"})),
        &team.dev.agent,
    )
    .await;
    served(
        &mut connection,
        &team.ann.token,
        &rpc("tasks/get", &json!({"id": "served"})),
        &team.dev.agent,
    )
    .await;
}
