//! Answers that are made later, kept or followed, of agents that speak only the other generation.

use std::time::Duration;

use serde_json::{Value, json};

use super::agents::{
    agent_0_3, agent_1_0, call_in, events, message_0_3, message_1_0, task_0_3, task_1_0,
};
use super::{Agent, Answer, Case, Request, card, card_1_0};
use crate::audit::recorded;
use crate::harness::{Connection, LAST_CHUNK, SSE_HEAD, Step, chunk, unnumbered, until_holds};

impl Case {
    async fn operate(&self, what: &str) {
        let request = Request::post(format!("/workspaces/target/{what}"), "");
        assert_eq!(self.gateway.as_operator(request).await.status, 200);
    }

    async fn get(&self, path: String, token: &str) -> Answer {
        self.gateway.call(&Request::get(path).bearer(token)).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deferred_call_is_translated_when_it_is_made() {
    for (card, agent, sends, gets, label) in [
        (
            card_1_0("target"),
            agent_1_0().await,
            ("message/send", message_0_3(), "SendMessage"),
            ("tasks/get", "completed"),
            "0.3>1.0",
        ),
        (
            card("target"),
            agent_0_3().await,
            ("SendMessage", message_1_0(), "message/send"),
            ("GetTask", "TASK_STATE_COMPLETED"),
            "1.0>0.3",
        ),
    ] {
        let case = Case::new(card, agent).await;
        case.operate("pause").await;
        let (method, params, at_agent) = sends;
        let asked = case.request(method, params);
        let kept = case
            .gateway
            .call(&asked.field("Prefer", "respond-async"))
            .await;
        assert_eq!(kept.status, 202, "{}", kept.text());
        let id = kept.json()["activity_id"].as_str().unwrap().to_owned();
        assert_eq!(case.target.agent.count(), 0);
        case.operate("resume").await;
        until_holds("the call was made", async || {
            let task = case.call(gets.0, json!({"id": id})).await.json();
            task["result"]["status"]["state"] == gets.1
        })
        .await;
        assert_eq!(case.at_agent().0, at_agent);
        let task = case.call(gets.0, json!({"id": id})).await.json()["result"].clone();
        let part = &task["artifacts"][0]["parts"][0];
        assert_eq!(
            (&part["text"], part.get("kind").is_some()),
            (&json!("made"), gets.0 == "tasks/get")
        );
        assert_eq!(task["metadata"]["agent_task_id"], "t-1", "{task}");
        let records = recorded(&case.gateway, &format!("request_id={id}"), 1).await;
        assert_eq!(records[0]["bridged"], label, "{records:?}");
        assert_eq!(case.target.agent.count(), 1, "it is made once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delegation_is_in_its_agents_generation() {
    for (card, agent, method, state) in [
        (
            card_1_0("target"),
            agent_1_0().await,
            "SendMessage",
            "TASK_STATE_COMPLETED",
        ),
        (
            card("target"),
            agent_0_3().await,
            "message/send",
            "completed",
        ),
    ] {
        let case = Case::new(card, agent).await;
        let body = json!({"target_id": "target", "task": "count to three"});
        let request = Request::post("/workspaces/caller/delegate", body.to_string());
        let accepted = case.gateway.call(&request.bearer(&case.caller.token)).await;
        assert_eq!(accepted.status, 202, "{}", accepted.text());
        let id = accepted.json()["delegation_id"]
            .as_str()
            .unwrap()
            .to_owned();
        let path = format!("/workspaces/caller/delegations/{id}");
        until_holds("it is completed", async || {
            let shown = case.get(path.clone(), &case.caller.token).await.json();
            shown["status"] == "completed"
        })
        .await;
        assert_eq!(case.at_agent().0, method);
        let shown = case.get(path, &case.caller.token).await.json();
        let result = &shown["result"];
        let task = result.get("task").unwrap_or(result);
        assert_eq!(
            task["status"]["state"], state,
            "as the agent said it: {shown}"
        );
    }
}

/// An agent that streams two events of its generation with a pause between them.
async fn slow(first: Value, second: Value) -> Agent {
    Agent::scripted(move |request| {
        let id = call_in(request)["id"].clone();
        let event = |result: &Value| {
            chunk(format!(
                "data: {}\n\n",
                json!({"jsonrpc": "2.0", "id": id, "result": result})
            ))
        };
        vec![
            Step::write(SSE_HEAD),
            Step::Write(event(&first)),
            Step::Wait(Duration::from_millis(300)),
            Step::Write(event(&second)),
            Step::write(LAST_CHUNK),
        ]
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_resumed_in_its_callers_generation_and_by_its_caller_alone() {
    let update_1_0 = json!({"statusUpdate": {"taskId": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_COMPLETED"}}});
    let update_0_3 = json!({"kind": "status-update", "taskId": "t-1", "contextId": "c-1", "status": {"state": "completed"}, "final": true});
    for (card, agent, call, expected) in [
        (
            card_1_0("target"),
            slow(
                json!({"task": task_1_0("TASK_STATE_WORKING")}),
                update_1_0.clone(),
            )
            .await,
            ("message/stream", message_0_3(), "SubscribeToTask"),
            update_0_3.clone(),
        ),
        (
            card("target"),
            slow(task_0_3("working"), update_0_3).await,
            ("SendStreamingMessage", message_1_0(), "tasks/resubscribe"),
            update_1_0,
        ),
    ] {
        let case = Case::new(card, agent).await;
        let mut connection = Connection::open(case.gateway.public).await;
        let (method, params, other_method) = call;
        let wire = case.request(method, params).wire("127.0.0.1");
        connection.send(&wire).await;
        assert_eq!(connection.read_head().await.unwrap().status, 200);
        let first = connection.next_chunk().await.unwrap();
        let (_, name) = unnumbered(std::str::from_utf8(&first).unwrap());
        drop(connection);
        let resume = |token: &str| {
            Request::get(format!("/workspaces/target/streams/{name}"))
                .bearer(token)
                .field("Last-Event-ID", format!("{name}-1"))
        };
        let rest = case.gateway.call(&resume(&case.caller.token)).await;
        assert_eq!(rest.status, 200, "{}", rest.text());
        let said = events(&rest);
        assert_eq!(said.len(), 1, "{}", rest.text());
        assert_eq!((&said[0]["result"], &said[0]["id"]), (&expected, &json!(7)));
        assert_eq!(case.target.agent.count(), 1, "the agent is not asked again");
        let stranger = case.gateway.call(&resume(&case.other.token)).await;
        assert_ne!(stranger.status, 200, "{}", stranger.text());
        // Nor does the task's other name let a stranger follow it.
        let body =
            json!({"jsonrpc": "2.0", "id": 1, "method": other_method, "params": {"id": "t-1"}});
        let asked = Request::post("/workspaces/target/a2a", body.to_string());
        let refused = case.gateway.call(&asked.bearer(&case.other.token)).await;
        assert_eq!(refused.reason(), "task_not_found", "{}", refused.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_with_a_key_is_replayed_in_its_callers_generation() {
    for (card, agent, method, params, label) in [
        (
            card_1_0("target"),
            agent_1_0().await,
            "message/stream",
            message_0_3(),
            "0.3>1.0",
        ),
        (
            card("target"),
            agent_0_3().await,
            "SendStreamingMessage",
            message_1_0(),
            "1.0>0.3",
        ),
    ] {
        let case = Case::new(card, agent).await;
        let asked = || {
            case.request(method, params.clone())
                .field("Idempotency-Key", "k-1")
        };
        let first = case.gateway.call(&asked()).await;
        let again = case.gateway.call(&asked()).await;
        assert_eq!(again.field("idempotent-replay"), Some("true"));
        assert_eq!(again.field("x-a2a-bridged"), Some(label));
        assert!(events(&first).len() > 1, "{}", first.text());
        assert_eq!(events(&first), events(&again));
        assert_eq!(case.target.agent.count(), 1);
        // The same message in the other generation is another body.
        let (other, params) = match method {
            "message/stream" => ("SendStreamingMessage", message_1_0()),
            _ => ("message/stream", message_0_3()),
        };
        let other = case.request(other, params).field("Idempotency-Key", "k-1");
        let refused = case.gateway.call(&other).await;
        assert_eq!(
            refused.reason(),
            "idempotency_conflict",
            "{}",
            refused.text()
        );
        assert_eq!(case.target.agent.count(), 1);
    }
}
