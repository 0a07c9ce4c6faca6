//! Calls that are sent again reach their agent once (contract §6.2).

mod cut_off;
mod replicas;
mod streamed;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Connection, Gateway, Pair, Recorded, Request, Seat, Step,
    ok_json, until_holds,
};
use crate::on_both_pairs;

const REPLAY: &str = "idempotent-replay";

const ONCE: &str = r#"{"result":1}"#;

struct Case {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
}

impl Case {
    async fn new(
        builder: Builder,
        behaviour: impl Fn(&Recorded) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let gateway = builder.start().await;
        let (caller, target) = gateway.pair(Agent::scripted(behaviour).await).await;
        Self {
            gateway,
            caller,
            target,
        }
    }

    /// One with an agent that answers once the test adds a permit.
    async fn held(builder: Builder) -> (Self, Arc<Semaphore>) {
        let gate = Arc::new(Semaphore::new(0));
        let held = Arc::clone(&gate);
        let once = || Step::Write(ok_json(ONCE));
        let answer = move |_: &Recorded| vec![Step::Held(Arc::clone(&held)), once()];
        (Self::new(builder, answer).await, gate)
    }

    /// Sends a call without waiting for its answer.
    async fn begin(&self, request: &Request) -> Connection {
        let mut connection = Connection::open(self.gateway.public).await;
        connection.ask(request).await;
        connection
    }

    fn request(&self, body: &str) -> Request {
        self.caller.sends(&self.target, body)
    }

    fn keyed(&self, key: &str) -> Request {
        self.request(CALL).field("Idempotency-Key", key)
    }

    async fn call(&self, request: &Request) -> Answer {
        self.gateway.call(request).await
    }

    /// The second answer is the first one, and the agent heard of one call.
    async fn same_again(&self, request: &Request) -> Answer {
        let count = self.target.agent.count();
        let first = self.call(request).await.has(200);
        assert_eq!(first.field(REPLAY), None, "{}", first.text());
        let second = self.call(request).await;
        assert_eq!(second.field(REPLAY), Some("true"), "{}", second.text());
        assert_eq!(second.field("content-type"), first.field("content-type"));
        assert_eq!((second.status, second.text()), (first.status, first.text()));
        assert_eq!(self.target.agent.count(), count + 1);
        second
    }
}

/// Another answer each time.
fn counting() -> impl Fn(&Recorded) -> Vec<Step> + Send + Sync + 'static {
    let count = AtomicUsize::new(0);
    move |_| {
        let n = count.fetch_add(1, Ordering::SeqCst);
        let body = format!(r#"{{"jsonrpc":"2.0","id":"c-1","result":{{"n":{n}}}}}"#);
        vec![Step::Write(ok_json(&body))]
    }
}

/// A message of the client's own task.
fn of_task(task: &str, text: &str) -> String {
    let ids = format!("\"messageId\":\"m-{text}\",\"task_id\":\"{task}\"");
    let call = CALL.replace("\"messageId\":\"m-1\"", &ids);
    call.replace("\"hi\"", &format!("\"{text}\""))
}

on_both_pairs! {
    async fn a_call_that_is_sent_again_reaches_its_agent_once(pair: Pair) {
        let mut case = Case::new(Builder::new(pair), counting()).await;
        let first = case.same_again(&case.keyed("k-1")).await;
        assert!(first.text().contains("\"n\":0"));
        // The same key with something else.
        let other = case.request(&CALL.replace("hi", "ho")).field("Idempotency-Key", "k-1");
        case.call(&other).await.refuses(409, "idempotency_conflict");
        // Of somebody else, and another key: other calls.
        let theirs = case.keyed("k-1").without("authorization").bearer(ADMIN);
        case.same_again(&theirs).await;
        case.same_again(&case.keyed("k-2")).await;
        // Without a key each is its own.
        let count = case.target.agent.count();
        for _ in 0..2 {
            assert_eq!(case.call(&case.request(CALL)).await.field(REPLAY), None);
        }
        assert_eq!(case.target.agent.count(), count + 2);
        // It outlives the process.
        case.gateway.restart().await;
        let again = case.call(&case.keyed("k-1")).await;
        assert_eq!((again.text(), again.field(REPLAY)), (first.text(), Some("true")));
        case.gateway.assert_idle().await;
    }

    async fn equal_calls_at_once_are_one_and_need_one_place_at_the_target(pair: Pair) {
        let builder = Builder::new(pair).set("limits.target_concurrency", "1");
        let (case, gate) = Case::held(builder).await;
        let request = case.keyed("together");
        let calls = (0..20).map(|_| case.call(&request));
        let release = async {
            case.gateway.until_counted("a2a_gateway_open_exchanges", &[], 20.0).await;
            gate.add_permits(1);
        };
        let (answers, ()) = tokio::join!(futures_util::future::join_all(calls), release);
        let replays = answers.iter().filter(|a| a.field(REPLAY) == Some("true")).count();
        for answer in &answers {
            assert_eq!((answer.status, answer.text().as_str()), (200, ONCE));
        }
        assert_eq!((replays, case.target.agent.count()), (19, 1));
        case.gateway.assert_idle().await;
    }

    async fn what_failed_is_forgotten_or_unknown(pair: Pair) {
        let case = Case::new(Builder::new(pair), |request| {
            if request.text().contains("broken") {
                return vec![Step::Close];
            }
            vec![Step::write("HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}")]
        })
        .await;
        // An agent's 5xx is no answer to keep.
        for _ in 0..2 {
            let answer = case.call(&case.keyed("busy")).await;
            assert_eq!((answer.status, answer.field(REPLAY)), (503, None));
        }
        assert_eq!(case.target.agent.count(), 2);
        // What was delivered, and broke off, is never sent again.
        let broken = case.request(&CALL.replace("hi", "broken"));
        let broken = broken.field("Idempotency-Key", "broken");
        let first = case.call(&broken).await;
        assert_eq!(first.fact("delivered").as_deref(), Some("true"), "{}", first.text());
        let again = case.call(&broken).await;
        assert_unknown(&again);
        assert_eq!(case.target.agent.count(), 3);
        // What was not is sent again.
        let nowhere = crate::harness::ports::free_address("127.0.0.1");
        let moved = serde_json::json!({"url": format!("http://{nowhere}/")});
        assert_eq!(case.gateway.patch("target", moved).await.status, 200);
        for _ in 0..2 {
            let answer = case.call(&case.keyed("nowhere")).await;
            assert_eq!(answer.reason(), "agent_unreachable");
            assert_eq!(answer.fact("delivered").as_deref(), Some("false"));
        }
    }
}

#[tokio::test]
async fn a_caller_that_leaves_finds_the_answer_when_it_comes_back() {
    let (case, gate) = Case::held(Builder::new(Pair::Embedded)).await;
    let request = case.keyed("left");
    let left = case.begin(&request).await;
    case.target.agent.until_count(1).await;
    drop(left);
    let again = case.begin(&request).await;
    gate.add_permits(1);
    let answer = { again }.answer().await;
    assert_eq!((answer.status, answer.field(REPLAY)), (200, Some("true")));
    assert_eq!(answer.text(), ONCE);
    assert_eq!(case.target.agent.count(), 1);
    assert!(case.target.agent.closed_by_gateway().is_empty());
    case.gateway.assert_idle().await;
}

#[tokio::test]
async fn a_call_that_a_dead_process_had_sent_is_unknown_and_never_sent_again() {
    let mut case = Case::new(Builder::new(Pair::Embedded), |_| vec![Step::Hang]).await;
    let request = case.keyed("killed");
    let _sent = case.begin(&request).await;
    case.target.agent.until_count(1).await;
    case.gateway.restart().await;
    assert_unknown(&case.call(&request).await);
    assert_eq!(case.target.agent.count(), 1);
}

/// The process that made the call is gone.
fn assert_unknown(answer: &Answer) {
    answer.refuses(502, "agent_protocol_error");
    assert_eq!(answer.fact("delivered").as_deref(), Some("unknown"));
}

#[tokio::test]
async fn the_clients_own_task_is_a_key_until_the_agent_asks_back() {
    let case = Case::new(Builder::new(Pair::Embedded), |request| {
        let state = if request.text().contains("\"first\"") { "input-required" } else { "completed" };
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":"c-1","result":{{"kind":"task","id":"t","contextId":"c","status":{{"state":"{state}"}}}}}}"#
        );
        vec![Step::Write(ok_json(&body))]
    })
    .await;
    let own = |text: &str| case.request(&of_task("own-1", text));
    case.same_again(&own("first")).await;
    // The agent waits for more: another body goes on with it.
    case.same_again(&own("second")).await;
    // Now it is done.
    let third = case.call(&own("third")).await;
    third.refuses(409, "idempotency_conflict");
    assert_eq!(case.target.agent.count(), 2);
    // A field comes first, and has no such exception.
    let by_field = |text: &str| {
        let request = case.request(&of_task("own-2", text));
        request.field("Idempotency-Key", "f-1")
    };
    case.same_again(&by_field("first")).await;
    assert_eq!(case.call(&by_field("second")).await.status, 409);
}

#[tokio::test]
async fn a_message_id_is_a_key_only_where_it_is_wanted_and_was_given() {
    for wanted in [false, true] {
        let setting = format!("idempotency.message_id={wanted}");
        let builder = Builder::new(Pair::Embedded).sets(&setting);
        let case = Case::new(builder, counting()).await;
        let is_one = async |body: &str| {
            let first = case.call(&case.request(body)).await.text();
            first == case.call(&case.request(body)).await.text()
        };
        let spelled = CALL.replace("messageId", "message_id");
        for body in [CALL, &spelled.replace("m-1", "m-2")] {
            assert_eq!(is_one(body).await, wanted, "{body}");
        }
        // One that the gateway made is none.
        let without = CALL.replace("\"messageId\":\"m-1\",", "");
        assert!(!is_one(&without).await);
    }
}

#[tokio::test]
async fn keys_are_visible_text_stand_once_and_count_for_calls_that_send() {
    let case = Case::new(Builder::new(Pair::Embedded), counting()).await;
    for bad in ["", "a b", "ü", &"x".repeat(256)] {
        let answer = case.call(&case.keyed(bad)).await;
        let told = (answer.status, answer.reason());
        assert_eq!(told, (400, "invalid_request".to_owned()), "{bad:?}");
    }
    let twice = case.keyed("a").field("Idempotency-Key", "b");
    assert_eq!(case.call(&twice).await.status, 400);
    assert_eq!(case.target.agent.count(), 0);
    case.same_again(&case.keyed(&"x".repeat(255))).await;
    // A method of no version may send; a question does not.
    let own = case.request(&CALL.replace("message/send", "own/method"));
    case.same_again(&own.field("Idempotency-Key", "own")).await;
    let ask = r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"t"}}"#;
    let ask = case.request(ask).field("Idempotency-Key", "ask");
    let count = case.target.agent.count();
    for _ in 0..2 {
        assert_eq!(case.call(&ask).await.field(REPLAY), None);
    }
    assert_eq!(case.target.agent.count(), count + 2);
}

#[tokio::test]
async fn an_answer_is_forgotten_after_its_time() {
    let builder = Builder::new(Pair::Embedded).set("idempotency.ttl", "1s");
    let case = Case::new(builder, counting()).await;
    let request = case.keyed("short");
    let first = case.call(&request).await.text();
    let is_new = async || {
        let again = case.call(&request).await;
        assert_eq!(again.field(REPLAY).is_none(), again.text() != first);
        again.field(REPLAY).is_none()
    };
    until_holds("it is forgotten", is_new).await;
}
