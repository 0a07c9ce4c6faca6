//! What is sent waits in the inbox; what is replied reaches whoever waits for it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Case, data, hello, hello_1_0};
use crate::harness::{Builder, Pair, Request, card, card_1_0};
use crate::on_both_pairs;

fn said(text: &str) -> Value {
    json!({"kind": "message", "role": "agent", "messageId": "a-1", "parts": [{"kind": "text", "text": text}]})
}

on_both_pairs! {
    async fn what_is_sent_is_queued_and_said_to_be_in_the_words_of_both_kinds_of_client(pair: Pair) {
        let case = Case::new(pair).await;
        let body = json!({"jsonrpc": "2.0", "id": "x-1", "method": "message/send", "params": hello()});
        let answer = case.gateway.call(&case.request(&body)).await.has(200);
        assert_eq!(answer.field("content-type"), Some("application/json"));
        let said = answer.json();
        let task = &said["result"];
        assert_eq!((&said["id"], &said["jsonrpc"]), (&json!("x-1"), &json!("2.0")));
        assert_eq!((&task["kind"], &task["status"]["state"]), (&json!("task"), &json!("submitted")));
        assert!(task["contextId"].is_string() && task["status"]["timestamp"].is_string(), "{said}");
        assert_eq!(said["activity_id"], task["id"]);
        assert_eq!((&said["status"], &said["delivery_mode"]), (&json!("queued"), &json!("poll")));
        assert_eq!(said["method"], "message/send");
        let items = case.inbox().await;
        assert_eq!(items.len(), 1);
        let item = &items[0];
        assert_eq!((&item["id"], &item["seq"]), (&task["id"], &json!(1)));
        assert_eq!((&item["activity_type"], &item["method"]), (&json!("a2a_receive"), &json!("message/send")));
        assert_eq!((&item["source_id"], &item["target_id"]), (&json!("caller"), &json!("poller")));
        assert_eq!((&item["status"], &item["request_body"]), (&json!("submitted"), &body));
    }

    async fn a_reply_that_could_not_be_read_again_is_refused(pair: Pair) {
        let case = Case::new(pair).await;
        let activity = case.sent().await;
        let reply = async |data: &str| {
            let body = format!(r#"{{"status":{{"state":"working"}},"metadata":{{"a":{data}}}}}"#);
            let path = format!("/workspaces/poller/activity/{activity}/reply");
            case.gateway.call(&Request::post(path, body).bearer(&case.token)).await
        };
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        for (data, why) in [
            (nested(99), "levels"),
            (nested(124), "levels"),
            (nested(125), "levels"),
            (nested(300), "levels"),
            ("1e999".to_owned(), "number out of range"),
            (r#""\ud800""#.to_owned(), "hex escape"),
        ] {
            let refused = reply(&data).await;
            assert_eq!((refused.status, refused.reason().as_str()), (400, "invalid_params"), "{data}");
            refused.says(why);
        }
        reply(&nested(98)).await.has(200);
        assert_eq!(case.task(&activity).await["status"]["state"], "working");
        let list = case.call("tasks/list", json!({"includeArtifacts": true})).await;
        assert_eq!(list.json()["result"]["tasks"][0]["id"], *activity);
    }

    async fn a_reply_reaches_whoever_waits_for_it(pair: Pair) {
        let case = Case::new(pair).await;
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": "message/send", "params": hello()});
        let waiting = case.request(&body).field("Prefer", "wait=60");
        let replying = async {
            let activity = case.until_sent(1).await;
            let working = case.replied(&activity, json!({"status": {"state": "working"}})).await;
            assert_eq!(working.status, 200, "{}", working.text());
            let done = case.replied(&activity, json!({"jsonrpc": "2.0", "id": 7, "result": said("done")})).await;
            assert_eq!(done.status, 200, "{}", done.text());
            assert_eq!(done.json()["state"], "completed");
            activity
        };
        let (answer, activity) = tokio::join!(case.gateway.call(&waiting), replying);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.field("preference-applied"), Some("wait=60"));
        let result = &answer.json()["result"];
        assert_eq!((&answer.json()["id"], &result["kind"]), (&json!(7), &json!("message")));
        assert_eq!(result["parts"][0]["text"], "done");
        let task = case.task(&activity).await;
        assert_eq!(task["status"]["state"], "completed");
        assert_eq!(task["status"]["message"]["parts"][0]["text"], "done");
        assert_eq!(case.inbox().await[0]["status"], "completed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_begins_with_the_task_and_ends_with_its_last_update() {
    let case = Case::new(Pair::Embedded).await;
    let body = json!({"jsonrpc": "2.0", "id": 2, "method": "message/stream", "params": hello()});
    let request = case.request(&body);
    let piece = |text: &str, append: bool| {
        let parts = json!([{"kind": "text", "text": text}]);
        json!({"artifact": {"artifactId": "a", "parts": parts}, "append": append})
    };
    let replying = async {
        let activity = case.until_sent(1).await;
        for body in [
            json!({"status": {"state": "working"}}),
            piece("one ", false),
            piece("two", true),
            json!({"status": {"state": "completed"}}),
        ] {
            case.replied(&activity, body).await.has(200);
        }
        activity
    };
    let (answer, activity) = tokio::join!(case.gateway.call(&request), replying);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.field("content-type"), Some("text/event-stream"));
    let events = data(&answer);
    let kinds: Vec<_> = events
        .iter()
        .map(|event| &event["result"]["kind"])
        .collect();
    let (status, artifact) = ("status-update", "artifact-update");
    assert_eq!(kinds, ["task", status, artifact, artifact, status]);
    assert!(events.iter().all(|event| event["id"] == 2));
    assert_eq!(events[0]["result"]["id"], *activity);
    assert_eq!(events[4]["result"]["final"], true);
    assert_eq!(events[4]["result"]["taskId"], *activity);
    let task = case.task(&activity).await;
    let parts = task["artifacts"][0]["parts"].as_array().unwrap();
    assert_eq!((parts.len(), &parts[1]["text"]), (2, &json!("two")));
}

#[tokio::test]
async fn callers_of_1_0_read_and_are_answered_in_its_words() {
    let case = Case::with(Builder::new(Pair::Embedded), card_1_0("poller")).await;
    let mut params = hello_1_0();
    params["configuration"] = json!({"returnImmediately": true});
    let queued = case.call("SendMessage", params).await;
    let task = &queued.json()["result"]["task"];
    assert_eq!(task["status"]["state"], "TASK_STATE_SUBMITTED", "{task}");
    assert!(task.get("kind").is_none(), "{task}");
    let id = task["id"].as_str().unwrap();
    // The agent speaks the other version.
    let parts = json!([{"kind": "text", "text": "x"}]);
    let artifact = json!({"artifact": {"artifactId": "a", "parts": parts}});
    assert_eq!(case.replied(id, artifact).await.status, 200);
    let ask = json!({"kind": "status-update", "status": {"state": "input-required", "message": said("which?")}});
    assert_eq!(case.replied(id, ask).await.status, 200);
    let read = case.call("GetTask", json!({"id": id})).await.json();
    let task = &read["result"];
    let status = &task["status"];
    assert_eq!(status["state"], "TASK_STATE_INPUT_REQUIRED", "{read}");
    let message = json!({"role": "ROLE_AGENT", "messageId": "a-1", "parts": [{"text": "which?"}]});
    assert_eq!(task["status"]["message"]["role"], message["role"]);
    assert_eq!(task["status"]["message"]["parts"], message["parts"]);
    let artifacts = json!([{"artifactId": "a", "parts": [{"text": "x"}]}]);
    assert_eq!(task["artifacts"], artifacts);
    // A stream of it is over at once: it is the caller's turn.
    let stream = case.call("SubscribeToTask", json!({"id": id})).await;
    let events = data(&stream);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["result"]["task"]["id"], id);
    let wanted = json!({"status": "TASK_STATE_INPUT_REQUIRED"});
    let listed = case.call("ListTasks", wanted).await.json();
    let first = &listed["result"]["tasks"][0];
    assert_eq!(first["id"], id, "{listed}");
    assert!(first.get("artifacts").is_none(), "{listed}");
}

#[tokio::test]
async fn a_bare_message_and_a_method_of_nobody_wait_too() {
    let case = Case::new(Pair::Embedded).await;
    let bare = case.request(&json!({"text": "hello"}));
    let bare = case.gateway.call(&bare).await.has(200);
    assert_eq!(bare.json()["method"], "message/send");
    assert!(bare.field("x-a2a-completed").is_some());
    let params = json!({"id": 3, "message": "x"});
    let own = case.call("platform/wake", params.clone()).await;
    assert_eq!(own.status, 200);
    assert_eq!(own.json()["method"], "platform/wake");
    let items = case.inbox().await;
    let first = &items[0]["request_body"]["params"]["message"];
    assert_eq!(first["parts"][0]["text"], "hello");
    assert_eq!(items[1]["request_body"]["params"], params);
}

#[tokio::test]
async fn an_error_is_answered_as_one_and_a_wait_ends_in_its_time() {
    let case = Case::new(Pair::Embedded).await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": hello()});
    let began = Instant::now();
    let queued = case
        .gateway
        .call(&case.request(&body).field("Prefer", "wait=1"))
        .await;
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(queued.json()["status"], "queued");
    assert_eq!(queued.field("preference-applied"), None);
    let waiting = case.request(&body).field("Prefer", "wait=60");
    let replying = async {
        let activity = case.until_sent(2).await;
        let error = json!({"error": {"code": -32603, "message": "it broke", "data": {"x": 1}}});
        assert_eq!(case.replied(&activity, error).await.status, 200);
        activity
    };
    let (answer, activity) = tokio::join!(case.gateway.call(&waiting), replying);
    assert_eq!(answer.status, 200);
    let error = json!({"code": -32603, "message": "it broke", "data": {"x": 1}});
    assert_eq!(answer.json()["error"], error);
    assert_eq!(case.task(&activity).await["status"]["state"], "failed");
}

#[tokio::test]
async fn only_the_workspace_itself_replies_and_only_what_can_be_read() {
    let case = Case::new(Pair::Embedded).await;
    let id = case.sent().await;
    let path = format!("/workspaces/poller/activity/{id}/reply");
    let done = json!({"status": {"state": "completed"}});
    let foreign = Request::post(&*path, done.to_string()).bearer(&case.caller.token);
    assert_eq!(case.gateway.call(&foreign).await.status, 403);
    let other = super::poller(&case.gateway, "other", card("other")).await;
    let elsewhere = format!("/workspaces/other/activity/{id}/reply");
    let elsewhere = Request::post(elsewhere, done.to_string()).bearer(&other);
    let answer = case.gateway.call(&elsewhere).await;
    answer.refuses(404, "task_not_found");
    for wrong in [
        json!({}),
        json!({"result": "done"}),
        json!({"status": {"state": "unknown"}}),
        json!({"result": {"kind": "message", "parts": []}}),
        json!({"error": "no"}),
    ] {
        let answer = case.replied(&id, wrong.clone()).await;
        answer.refuses_for(&wrong, 400, "invalid_params");
    }
    assert_eq!(case.task(&id).await["status"]["state"], "submitted");
    assert_eq!(case.replied(&id, done.clone()).await.status, 200);
    let again = case.replied(&id, done).await;
    again.refuses(409, "conflict");
}
