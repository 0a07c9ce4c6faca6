//! Agents that speak one side only, and their cards.

use serde_json::{Value, json};

use crate::harness::{
    Agent, Answer, LAST_CHUNK, Recorded, SSE_HEAD, Step, card_1_0, chunk, ok_json,
};

/// A stream of these events.
pub(super) fn stream(events: &str) -> Vec<Step> {
    let body = [SSE_HEAD.as_bytes(), &chunk(events), LAST_CHUNK.as_bytes()].concat();
    vec![Step::Write(body)]
}

/// The call in a request, of JSON-RPC.
pub(super) fn call_in(request: &Recorded) -> Value {
    serde_json::from_slice(&request.body).unwrap_or_default()
}

pub(super) fn line(request: &Recorded) -> &str {
    request.head.lines().next().unwrap()
}

pub(super) fn task_0_3(state: &str) -> Value {
    json!({"kind": "task", "id": "t-1", "contextId": "c-1", "status": {"state": state},
        "artifacts": [{"artifactId": "a-1", "parts": [{"kind": "text", "text": "made"},
            {"kind": "data", "data": {"n": 10, "big": 9_007_199_254_740_993_i64}}]}]})
}

pub(super) fn task_1_0(state: &str) -> Value {
    json!({"id": "t-1", "contextId": "c-1", "status": {"state": state},
        "artifacts": [{"artifactId": "a-1", "parts": [{"text": "made"}, {"data": {"n": 10}, "mediaType": "application/json"}]}]})
}

/// An agent of 0.3 that knows no name of 1.0.
pub(super) async fn agent_0_3() -> Agent {
    Agent::scripted(|request| {
        let call = call_in(request);
        let reply = |result: Value| json!({"jsonrpc": "2.0", "id": call["id"], "result": result});
        let event = |result: Value| format!("data: {}\n\n", reply(result));
        let update = |state: &str, last: bool| {
            event(json!({"kind": "status-update", "taskId": "t-1", "contextId": "c-1",
                "status": {"state": state}, "final": last}))
        };
        let body = match call["method"].as_str().unwrap_or_default() {
            "message/send" => reply(task_0_3("completed")),
            "tasks/get" => reply(task_0_3("working")),
            "tasks/cancel" => json!({"jsonrpc": "2.0", "id": call["id"],
                "error": {"code": -32002, "message": "it has ended", "data": "no"}}),
            "message/stream" => {
                let artifact = event(json!({"kind": "artifact-update", "taskId": "t-1", "contextId": "c-1",
                    "artifact": {"artifactId": "a-1", "parts": [{"kind": "text", "text": "piece"}]}, "append": false}));
                let all = [update("working", false), artifact, update("completed", true)].concat();
                return stream(&all);
            }
            "tasks/resubscribe" => {
                return stream(&update("completed", true));
            }
            _ => json!({"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32601, "message": "unknown"}}),
        };
        vec![Step::Write(ok_json(&body.to_string()))]
    })
    .await
}

/// An agent of 1.0 that refuses what is not of it, as a strict server does.
pub(super) async fn agent_1_0() -> Agent {
    Agent::scripted(|request| {
        let call = call_in(request);
        let reply = |result: Value| json!({"jsonrpc": "2.0", "id": call["id"], "result": result});
        let strict = call["params"].to_string();
        let foreign = ["\"kind\"", "\"blocking\"", "\"role\":\"user\""];
        let event = |result: Value| format!("data: {}\n\n", reply(result));
        let body = match call["method"].as_str().unwrap_or_default() {
            _ if request.field("a2a-version") != Some("1.0") => {
                json!({"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32009, "message": "version"}})
            }
            _ if foreign.iter().any(|word| strict.contains(word)) => {
                json!({"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32602, "message": "unknown member"}})
            }
            "SendMessage" => reply(json!({"task": task_1_0("TASK_STATE_COMPLETED")})),
            "GetTask" => reply(task_1_0("TASK_STATE_WORKING")),
            "CancelTask" => json!({"jsonrpc": "2.0", "id": call["id"],
                "error": {"code": -32002, "message": "it has ended", "data": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": "TASK_NOT_CANCELABLE", "domain": "a2a-protocol.org"}]}}),
            "ListTasks" => reply(json!({"tasks": [task_1_0("TASK_STATE_WORKING")], "nextPageToken": "", "pageSize": 50, "totalSize": 1})),
            "SendStreamingMessage" | "SubscribeToTask" => {
                let all = [
                    event(json!({"task": task_1_0("TASK_STATE_WORKING")})),
                    event(json!({"statusUpdate": {"taskId": "t-1", "contextId": "c-1",
                        "status": {"state": "TASK_STATE_INPUT_REQUIRED"}}})),
                    event(json!({"statusUpdate": {"taskId": "t-1", "contextId": "c-1",
                        "status": {"state": "TASK_STATE_COMPLETED"}}})),
                ];
                return stream(&all.concat());
            }
            _ => json!({"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32601, "message": "unknown"}}),
        };
        vec![Step::Write(ok_json(&body.to_string()))]
    })
    .await
}

/// An agent with HTTP+JSON of 1.0 alone.
pub(super) async fn agent_http_json() -> Agent {
    Agent::scripted(|request| {
        let body = match line(request) {
            line if line.starts_with("POST /rest/message:send ") => {
                json!({"task": task_1_0("TASK_STATE_COMPLETED")})
            }
            line if line.starts_with("GET /rest/tasks/t-1") => task_1_0("TASK_STATE_WORKING"),
            line if line.starts_with("POST /rest/tasks/t-1:cancel") => {
                let error = json!({"error": {"code": 400, "status": "FAILED_PRECONDITION", "message": "it has ended",
                    "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TASK_NOT_CANCELABLE",
                        "domain": "a2a-protocol.org"}]}})
                .to_string();
                let head = format!("HTTP/1.1 400 X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", error.len());
                return vec![Step::write(format!("{head}{error}"))];
            }
            line if line.starts_with("POST /rest/message:stream ") => {
                let event = json!({"statusUpdate": {"taskId": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_COMPLETED"}}});
                let task = json!({"task": task_1_0("TASK_STATE_WORKING")});
                return stream(&format!("data: {task}\n\ndata: {event}\n\n"));
            }
            _ => return vec![Step::write("HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n")],
        };
        vec![Step::Write(ok_json(&body.to_string()))]
    })
    .await
}

pub(super) fn card_http_json() -> Value {
    let mut card = card_1_0("target");
    card["supportedInterfaces"] = json!([{"url": "http://127.0.0.1/rest", "protocolBinding": "HTTP+JSON",
        "protocolVersion": "1.0"}]);
    card
}

pub(super) fn message_0_3() -> Value {
    json!({"message": {"kind": "message", "role": "user", "messageId": "m-1",
        "parts": [{"kind": "text", "text": "hi"}, {"kind": "file", "file": {"uri": "http://f/1", "mimeType": "a/b", "name": "n"}}]},
        "configuration": {"blocking": false, "acceptedOutputModes": ["text/plain"]}})
}

pub(super) fn message_1_0() -> Value {
    json!({"message": {"role": "ROLE_USER", "messageId": "m-1",
        "parts": [{"text": "hi"}, {"url": "http://f/1", "mediaType": "a/b", "filename": "n"}]},
        "configuration": {"returnImmediately": true}})
}

/// The data of the events of an answer.
pub(super) fn events(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap())
        .collect()
}
