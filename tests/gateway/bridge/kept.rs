//! Answers that are made later, kept or followed, of agents that speak only the other generation.

use std::time::Duration;

use serde_json::{Value, json};

use super::agents::{call_in, events, task_0_3, task_1_0};
use super::{Agent, Answer, Case, Request, Words, card, card_1_0, ways, words_0_3, words_1_0};
use crate::audit::recorded;
use crate::harness::{Connection, LAST_CHUNK, SSE_HEAD, Step, chunk, unnumbered, until_found};

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
    for (case, caller, agent, label) in ways().await {
        case.operate("pause").await;
        let asked = case.request(caller.send, caller.message);
        let asked = asked.field("Prefer", "respond-async");
        let kept = case.gateway.call(&asked).await.has(202);
        let id = kept.json()["activity_id"].as_str().unwrap().to_owned();
        assert_eq!(case.target.agent.count(), 0);
        case.operate("resume").await;
        let task = until_found("the call was made", async || {
            let task = case.call(caller.get, json!({"id": id})).await.json()["result"].take();
            (task["status"]["state"] == caller.done).then_some(task)
        })
        .await;
        assert_eq!(case.at_agent().0, agent.send);
        let part = &task["artifacts"][0]["parts"][0];
        assert_eq!(part["text"], "made");
        assert_eq!(part.get("kind").is_some(), caller.get == "tasks/get");
        assert_eq!(task["metadata"]["agent_task_id"], "t-1", "{task}");
        let records = recorded(&case.gateway, &format!("request_id={id}"), 1).await;
        assert_eq!(records[0]["bridged"], label, "{records:?}");
        assert_eq!(case.target.agent.count(), 1, "it is made once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delegation_is_in_its_agents_generation() {
    for (case, _, agent, _) in ways().await {
        let body = json!({"target_id": "target", "task": "count to three"});
        let request = Request::post("/workspaces/caller/delegate", body.to_string());
        let accepted = case.gateway.call(&request.bearer(&case.caller.token)).await;
        let accepted = accepted.has(202).json();
        let id = accepted["delegation_id"].as_str().unwrap();
        let path = format!("/workspaces/caller/delegations/{id}");
        let shown = until_found("it is completed", async || {
            let shown = case.get(path.clone(), &case.caller.token).await.json();
            (shown["status"] == "completed").then_some(shown)
        })
        .await;
        assert_eq!(case.at_agent().0, agent.send);
        let result = &shown["result"];
        let task = result.get("task").unwrap_or(result);
        // As the agent said it.
        assert_eq!(task["status"]["state"], agent.done, "{shown}");
    }
}

/// An agent that streams two events of its generation with a pause between them.
async fn slow(first: Value, second: Value) -> Agent {
    Agent::scripted(move |request| {
        let id = call_in(request)["id"].clone();
        let event = |result: &Value| {
            let reply = json!({"jsonrpc": "2.0", "id": id, "result": result});
            chunk(format!("data: {reply}\n\n"))
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
    let first_1_0 = json!({"task": task_1_0("TASK_STATE_WORKING")});
    let up = (
        card_1_0("target"),
        slow(first_1_0, update_1_0.clone()).await,
    );
    let down = (
        card("target"),
        slow(task_0_3("working"), update_0_3.clone()).await,
    );
    for ((card, agent), caller, other, expected) in [
        (up, words_0_3(), words_1_0(), update_0_3),
        (down, words_1_0(), words_0_3(), update_1_0),
    ] {
        let case = Case::new(card, agent).await;
        let mut connection = Connection::open(case.gateway.public).await;
        let wire = case.request(caller.stream, caller.message);
        let wire = wire.wire("127.0.0.1");
        connection.send(&wire).await;
        assert_eq!(connection.read_head().await.unwrap().status, 200);
        let first = connection.next_chunk().await.unwrap();
        let (_, name) = unnumbered(std::str::from_utf8(&first).unwrap());
        drop(connection);
        let resume = |token: &str| {
            let request = Request::get(format!("/workspaces/target/streams/{name}"));
            let request = request.field("Last-Event-ID", format!("{name}-1"));
            request.bearer(token)
        };
        let rest = case
            .gateway
            .call(&resume(&case.caller.token))
            .await
            .has(200);
        let said = events(&rest);
        assert_eq!(said.len(), 1, "{}", rest.text());
        assert_eq!((&said[0]["result"], &said[0]["id"]), (&expected, &json!(7)));
        assert_eq!(case.target.agent.count(), 1, "the agent is not asked again");
        let stranger = case.gateway.call(&resume(&case.other.token)).await;
        assert_ne!(stranger.status, 200, "{}", stranger.text());
        // Nor does the task's other name let a stranger follow it.
        let refused = case.strange(other.subscribe, json!({"id": "t-1"})).await;
        assert_eq!(refused.reason(), "task_not_found", "{}", refused.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_with_a_key_is_replayed_in_its_callers_generation() {
    for (case, caller, other, label) in ways().await {
        let asked = |words: &Words| {
            let request = case.request(words.stream, words.message.clone());
            request.field("Idempotency-Key", "k-1")
        };
        let first = case.gateway.call(&asked(&caller)).await;
        let again = case.gateway.call(&asked(&caller)).await;
        assert_eq!(again.field("idempotent-replay"), Some("true"));
        assert_eq!(again.field("x-a2a-bridged"), Some(label));
        assert!(events(&first).len() > 1, "{}", first.text());
        assert_eq!(events(&first), events(&again));
        assert_eq!(case.target.agent.count(), 1);
        // The same message in the other generation is another body.
        let refused = case.gateway.call(&asked(&other)).await;
        refused.gives("idempotency_conflict");
        assert_eq!(case.target.agent.count(), 1);
    }
}
