//! A stream with a key goes on for as long as its caller may make it: each reader is cut by its own credential, and the
//! call itself by what happens to the caller or to the target.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{Case, REPLAY};
use crate::harness::{
    Agent, Answer, Builder, CALL, Connection, LAST_CHUNK, Recorded, Request, SSE_HEAD, Step, chunk,
    unnumbered, until_holds,
};
use crate::on_both_pairs;

/// Three events; the second and the third wait for a permit.
fn three(gate: &Arc<Semaphore>) -> Vec<Step> {
    let event = |n: u32| Step::Write(chunk(format!("data: {n}\n\n")));
    let held = || Step::Held(Arc::clone(gate));
    let (head, end) = (Step::write(SSE_HEAD), Step::write(LAST_CHUNK));
    vec![head, event(1), held(), event(2), held(), event(3), end]
}

/// A reader of a stream that has begun.
struct Reader {
    connection: Connection,
    head: Answer,
}

impl Reader {
    async fn new(case: &Case, token: &str) -> Self {
        let mut connection = case.begin(&keyed(case, token)).await;
        let head = connection.read_head().await.expect("a head");
        assert_eq!(head.status, 200);
        connection.next_chunk().await.expect("an event");
        Self { connection, head }
    }

    /// It is cut, with this reason in its last event.
    async fn assert_cut(mut self, reason: &str) {
        let mut text = String::new();
        while let Some(piece) = self.connection.next_chunk().await {
            text.push_str(std::str::from_utf8(&piece).expect("text"));
        }
        let last = text.lines().rfind(|line| line.starts_with("data: "));
        let last = last.unwrap_or_default();
        assert!(last.contains(reason), "{text}");
    }
}

fn keyed(case: &Case, token: &str) -> Request {
    let request = Request::post(case.target.path(), CALL).bearer(token);
    request.field("Idempotency-Key", "long")
}

async fn tell(case: &Case, method: &str, path: &str) -> serde_json::Value {
    let mut request = Request::post(path, "{}");
    request.method = method.into();
    let answer = case.gateway.as_operator(request).await;
    assert!(answer.status < 300, "{method} {path}: {}", answer.text());
    answer.json()
}

/// Another token of the caller, and the path that revokes it.
async fn token(case: &Case) -> (String, String) {
    let made = tell(case, "POST", "/workspaces/caller/tokens").await;
    let text = |name: &str| made[name].as_str().expect("a text").to_owned();
    let path = format!("/workspaces/caller/tokens/{}", text("id"));
    (text("token"), path)
}

on_both_pairs! {
    async fn a_revoked_token_ends_its_own_reader_alone_and_the_stream_goes_on(pair: Pair) {
        let gate = Arc::new(Semaphore::new(0));
        let held = Arc::clone(&gate);
        // No comment comes between the events.
        let builder = Builder::new(pair).set("stream.keepalive", "100s");
        let case = Case::new(builder, move |_| three(&held)).await;
        let ((one, revoke_one), (other, revoke_other)) = (token(&case).await, token(&case).await);
        let began = Reader::new(&case, &one).await;
        let follows = Reader::new(&case, &other).await;
        let mut stays = Reader::new(&case, &case.caller.token).await;
        assert_eq!(began.head.field(REPLAY), None);
        for follower in [&follows, &stays] {
            assert_eq!(follower.head.field(REPLAY), Some("true"));
        }
        tell(&case, "DELETE", &revoke_other).await;
        follows.assert_cut("\"UNAUTHENTICATED\"").await;
        tell(&case, "DELETE", &revoke_one).await;
        began.assert_cut("\"UNAUTHENTICATED\"").await;
        gate.add_permits(1);
        let second = stays.connection.next_chunk().await.expect("an event");
        assert!(second.starts_with(b"data: 2\n"), "{}", String::from_utf8_lossy(&second));
        // Without a reader the agent's stream runs on, and is kept whole for the tokens that the caller has then.
        drop(stays);
        let (new, _) = token(&case).await;
        gate.add_permits(1);
        let again = case.call(&keyed(&case, &new)).await;
        assert_eq!((again.status, again.field(REPLAY)), (200, Some("true")));
        assert_eq!(unnumbered(&again.text()).0, "data: 1\n\ndata: 2\n\ndata: 3\n\n");
        assert_eq!(case.call(&keyed(&case, &one)).await.status, 401);
        assert_eq!(case.target.agent.count(), 1);
        assert!(case.target.agent.closed_by_gateway().is_empty());
        case.gateway.assert_idle().await;
    }

    async fn a_stream_with_a_key_ends_with_its_caller_and_its_target(pair: Pair) {
        let gate = Arc::new(Semaphore::new(0));
        let held = move |_: &Recorded| three(&gate);
        let mut case = Case::new(Builder::new(pair), held.clone()).await;
        for (n, (method, path, reason)) in [
            ("POST", "caller-0/pause", "\"NOT_PERMITTED\""),
            ("POST", "target-1/pause", "\"NOT_PERMITTED\""),
            // Its token is gone with it: which of the two is noticed first is not fixed.
            ("DELETE", "caller-2", ""),
            ("DELETE", "target-3", "\"WORKSPACE_REMOVED\""),
        ].into_iter().enumerate() {
            case.caller = case.gateway.seat(&format!("caller-{n}"), "", Agent::json("{}").await).await;
            let agent = Agent::scripted(held.clone()).await;
            case.target = case.gateway.seat(&format!("target-{n}"), "", agent).await;
            let reader = Reader::new(&case, &case.caller.token).await;
            tell(&case, method, &format!("/workspaces/{path}")).await;
            reader.assert_cut(reason).await;
            let is_over = async || !case.target.agent.closed_by_gateway().is_empty();
            until_holds(&format!("the call to {path} ends"), is_over).await;
            case.gateway.assert_idle().await;
        }
    }
}
