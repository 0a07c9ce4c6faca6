//! The tasks of an agent that polls: whose they are, how they go on, how they are given up.

use serde_json::{Value, json};

use super::{Case, hello, poller_below};
use crate::harness::{Agent, Pair, Request, card};
use crate::on_both_pairs;

on_both_pairs! {
    async fn a_task_is_its_callers_and_of_those_above_also_after_a_restart(pair: Pair) {
        let mut case = Case::new(pair).await;
        let boss = case.gateway.seat("boss", "", Agent::json("{}").await).await;
        let ann = case.gateway.seat("ann", "boss", Agent::json("{}").await).await;
        let bob = case.gateway.seat("bob", "boss", Agent::json("{}").await).await;
        let dev = poller_below(&case.gateway, "boss", "dev", card("dev")).await;
        let ask = |token: &str, method: &str, params: Value| {
            let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
            Request::post("/workspaces/dev/a2a", body.to_string()).bearer(token)
        };
        let queued = case.gateway.call(&ask(&ann.token, "message/send", hello())).await;
        assert_eq!(queued.status, 200, "{}", queued.text());
        let id = queued.json()["activity_id"].as_str().unwrap().to_owned();
        let context = queued.json()["result"]["contextId"].clone();
        let mut next = hello();
        next["message"]["contextId"] = context.clone();
        let later = case.gateway.call(&ask(&bob.token, "message/send", next)).await.json();
        for restarted in [false, true] {
            if restarted {
                case.gateway.restart().await;
            }
            for method in ["tasks/get", "tasks/cancel", "tasks/resubscribe", "GetTask", "CancelTask", "SubscribeToTask"] {
                let refused = case.gateway.call(&ask(&bob.token, method, json!({"id": id}))).await;
                assert_eq!((refused.status, &*refused.reason()), (200, "task_not_found"), "{method} {restarted}");
            }
            for (token, own) in [(&ann.token, json!(id)), (&bob.token, later["activity_id"].clone())] {
                for wanted in [json!({}), json!({"contextId": context, "pageSize": 1})] {
                    let listed = case.gateway.call(&ask(token, "tasks/list", wanted.clone())).await.json();
                    let tasks = listed["result"]["tasks"].as_array().unwrap();
                    assert!(tasks.len() == 1 && tasks[0]["id"] == own, "{wanted}: {listed}");
                }
            }
            let mut follow_up = hello();
            follow_up["message"]["taskId"] = json!(id);
            let refused = case.gateway.call(&ask(&bob.token, "message/send", follow_up)).await;
            assert_eq!(refused.reason(), "task_not_found");
            for token in [&ann.token, &boss.token] {
                let read = case.gateway.call(&ask(token, "tasks/get", json!({"id": id}))).await;
                assert_eq!(read.json()["result"]["id"], *id, "{}", read.text());
            }
            let plain = Request::get(format!("/tasks/{id}")).bearer(&ann.token);
            assert_eq!(case.gateway.call(&plain).await.json()["id"], *id);
            let plain = Request::get(format!("/tasks/{id}")).bearer(&bob.token);
            assert_eq!(case.gateway.call(&plain).await.reason(), "task_not_found");
            let unknown = case.gateway.call(&ask(&ann.token, "tasks/get", json!({"id": "no-such"}))).await;
            assert_eq!(unknown.reason(), "task_not_found");
        }
        let reply = Request::post(format!("/workspaces/dev/activity/{id}/reply"), r#"{"status":{"state":"completed"}}"#);
        assert_eq!(case.gateway.call(&reply.bearer(&dev)).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_goes_on_with_another_message_until_it_is_over() {
    let case = Case::new(Pair::Embedded).await;
    let id = case.sent().await;
    let ask = json!({"status": {"state": "input-required"}});
    assert_eq!(case.replied(&id, ask).await.status, 200);
    let mut more = hello();
    more["message"]["taskId"] = json!(id);
    more["message"]["messageId"] = json!("m-2");
    let queued = case.call("message/send", more.clone()).await.json();
    assert_eq!(queued["result"]["id"], *id, "{queued}");
    let second = queued["activity_id"].as_str().unwrap().to_owned();
    assert_ne!(second, id);
    assert_eq!(case.task(&id).await["status"]["state"], "submitted");
    let items = case.inbox().await;
    assert_eq!((items.len(), &items[1]["task_id"]), (2, &json!(id)));
    // It may answer by the name of either entry.
    let done = json!({"status": {"state": "completed"}});
    assert_eq!(case.replied(&second, done).await.json()["task_id"], *id);
    assert_eq!(case.task(&id).await["status"]["state"], "completed");
    let late = case.call("message/send", more).await;
    late.errs(400, -32602);
    assert_eq!(case.inbox().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_is_given_up_is_over_and_its_agent_hears_of_it() {
    let case = Case::new(Pair::Embedded).await;
    let id = case.sent().await;
    let canceled = case.call("tasks/cancel", json!({"id": id})).await.json();
    let state = &canceled["result"]["status"]["state"];
    assert_eq!(state, "canceled", "{canceled}");
    let items = case.inbox().await;
    assert_eq!(items.len(), 2);
    assert_eq!(items[1]["method"], "tasks/cancel");
    assert_eq!(items[1]["request_body"]["params"]["id"], *id);
    let done = json!({"status": {"state": "completed"}});
    let late = case.replied(&id, done).await;
    late.refuses(409, "conflict");
    let again = case.call("tasks/cancel", json!({"id": id})).await;
    again.errs(200, -32002);
}

#[tokio::test]
async fn nobody_is_pushed_to_and_there_is_no_extended_card() {
    let case = Case::new(Pair::Embedded).await;
    let id = case.sent().await;
    let config = json!({"taskId": id, "pushNotificationConfig": {"url": "https://example.com/"}});
    let set = case.call("tasks/pushNotificationConfig/set", config).await;
    set.errs(200, -32003);
    let method = "agent/getAuthenticatedExtendedCard";
    let card = case.call(method, json!({})).await;
    card.errs(200, -32007);
    let wrong = case.call("tasks/get", json!({"id": 5})).await;
    wrong.errs(400, -32602);
    assert_eq!(case.inbox().await.len(), 1);
}

#[tokio::test]
async fn a_history_is_as_long_as_it_is_wanted() {
    let case = Case::new(Pair::Embedded).await;
    let id = case.sent().await;
    for text in ["one", "two", "three"] {
        let parts = json!([{"kind": "text", "text": text}]);
        let message = json!({"role": "agent", "messageId": text, "parts": parts});
        let update = json!({"status": {"state": "working", "message": message}});
        assert_eq!(case.replied(&id, update).await.status, 200);
    }
    let whole = case.task(&id).await;
    assert_eq!(whole["history"].as_array().unwrap().len(), 2);
    let read = async |length: i64| {
        let wanted = json!({"id": id, "historyLength": length});
        case.call("tasks/get", wanted).await.json()
    };
    let last = read(1).await;
    assert_eq!(last["result"]["history"][0]["messageId"], "two", "{last}");
    let none = read(0).await;
    assert!(none["result"].get("history").is_none(), "{none}");
}
