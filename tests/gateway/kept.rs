//! One credential does not fill the disk: bytes that are kept for a workspace are bounded.

use serde_json::json;

use crate::harness::{Agent, Answer, Builder, CALL, Gateway, Request, Seat, Step, Stores, ok_json};
use crate::on_both_pairs;

const KEPT: &str = "idempotent-kept";

/// An answer of about so many bytes.
fn large(bytes: usize) -> Vec<Step> {
    let text = "x".repeat(bytes);
    let body = format!(r#"{{"jsonrpc":"2.0","id":"c-1","result":{{"text":"{text}"}}}}"#);
    vec![Step::Write(ok_json(&body))]
}

fn keyed(caller: &Seat, target: &Seat, key: &str) -> Request {
    caller.calls(target).field("Idempotency-Key", key)
}

/// A delegation of so many bytes by a workspace with this token.
async fn delegated(gateway: &Gateway, id: &str, token: &str, bytes: usize) -> Answer {
    let body = json!({"target_id": "target", "task": "t".repeat(bytes)});
    let path = format!("/workspaces/{id}/delegate");
    let request = Request::post(path, body.to_string()).bearer(token);
    gateway.call(&request).await
}

async fn send(gateway: &Gateway, to: &str, token: &str, bytes: usize) -> Answer {
    let body = CALL.replace("\"hi\"", &format!("\"{}\"", "y".repeat(bytes)));
    let request = Request::post(format!("/workspaces/{to}/a2a"), body).bearer(token);
    gateway.call(&request).await
}

on_both_pairs! {
    async fn large_answers_of_calls_with_a_key_are_passed_on_and_not_kept_beyond_the_bound(pair: Pair) {
        let builder = Builder::new(pair).set("limits.kept_bytes", "400KiB");
        let mut gateway = builder.start().await;
        let (caller, target) = gateway.pair(Agent::scripted(|_| large(100_000)).await).await;
        let other = gateway.seat("other", "", Agent::json("{}").await).await;
        let mut unkept = Vec::new();
        for n in 0..6 {
            let answer = gateway.call(&keyed(&caller, &target, &format!("k-{n}"))).await;
            assert_eq!(answer.status, 200);
            assert!(answer.body.len() > 100_000, "it is passed on as a whole");
            if answer.field(KEPT) == Some("false") {
                unkept.push(n);
            }
        }
        // 400 KiB have room for three answers of 134 KB in the form in which they are kept.
        assert_eq!(unkept, [3, 4, 5]);
        let count = target.agent.count();
        for restarts in 0..2 {
            let again = gateway.call(&keyed(&caller, &target, "k-2")).await;
            assert_eq!(again.field("idempotent-replay"), Some("true"));
            let again = gateway.call(&keyed(&caller, &target, "k-4")).await;
            again.refuses(502, "agent_protocol_error");
            assert_eq!(again.fact("delivered").as_deref(), Some("true"));
            again.says("limits.kept_bytes");
            assert_eq!(target.agent.count(), count, "it is sent once");
            if restarts == 0 {
                gateway.restart().await;
            }
        }
        let still = gateway.call(&keyed(&caller, &target, "k-7")).await;
        assert_eq!((still.status, still.field(KEPT)), (200, Some("false")), "counted in the store");
        let theirs = gateway.call(&keyed(&other, &target, "k-0")).await;
        assert_eq!((theirs.status, theirs.field(KEPT)), (200, None), "another caller's bytes are its own");
        gateway.until_counted("a2a_gateway_kept_bytes", &[], 500_000.0).await;
        assert!(gateway.metric("a2a_gateway_kept_refused_total", &["answer"]).await >= 1.0);
    }

    async fn an_inbox_of_large_messages_is_busy_until_they_are_answered(pair: Pair) {
        let builder = Builder::new(pair).set("limits.kept_bytes", "1MiB");
        let mut gateway = builder.start().await;
        let dev = gateway.poller("dev").await;
        let pm = gateway.poller("pm").await;
        let mut entries = Vec::new();
        let refused = loop {
            let answer = send(&gateway, "dev", &dev, 200_000).await;
            if answer.status != 200 {
                break answer;
            }
            entries.push(answer.json()["activity_id"].as_str().unwrap().to_owned());
        };
        assert_eq!(entries.len(), 5);
        refused.refuses(503, "agent_busy");
        assert_eq!(refused.fact("limit").as_deref(), Some("1048576"));
        assert!(refused.field("retry-after").is_some());
        gateway.restart().await;
        assert_eq!(send(&gateway, "dev", &dev, 200_000).await.status, 503, "counted in the store");
        assert_eq!(send(&gateway, "pm", &dev, 200_000).await.status, 200, "another inbox has its own room");
        let shown = gateway.admin_get("/explain?caller=pm&target=dev").await.unwrap();
        shown.says("kept_bytes");

        // A long reply has no room; a short one that ends the task has, and what is answered makes room.
        let reply = async |entry: &str, text: String| {
            let body = json!({"result": {"kind": "message", "messageId": "r", "role": "agent",
                "parts": [{"kind": "text", "text": text}]}});
            let path = format!("/workspaces/dev/activity/{entry}/reply");
            gateway.call(&Request::post(path, body.to_string()).bearer(&dev)).await
        };
        let long = reply(&entries[0], "z".repeat(200_000)).await;
        long.refuses(503, "agent_busy");
        for entry in &entries[..2] {
            assert_eq!(reply(entry, "done".into()).await.status, 200);
        }
        assert_eq!(send(&gateway, "dev", &pm, 200_000).await.status, 200);
    }

    async fn delegations_are_bounded_by_their_bytes(pair: Pair) {
        let builder = Builder::new(pair).set("limits.kept_bytes", "500KiB");
        let gateway = builder.start().await;
        let (caller, _target) = gateway.pair(Agent::scripted(|_| large(10)).await).await;
        let mut statuses = Vec::new();
        for _ in 0..4 {
            let answer = delegated(&gateway, "caller", &caller.token, 200_000).await;
            statuses.push(answer.status);
            if answer.status != 202 {
                assert_eq!(answer.reason(), "agent_busy");
                answer.says("limits.kept_bytes");
            }
        }
        assert_eq!(statuses, [202, 202, 503, 503]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_inbox_stops_neither_delegations_nor_kept_answers_of_its_workspace() {
    let gateway = Gateway::with("limits.kept_bytes=1MiB").await;
    let (dev, pm) = (gateway.poller("dev").await, gateway.poller("pm").await);
    let agent = Agent::scripted(|_| large(100)).await;
    let target = gateway.seat("target", "", agent).await;
    while send(&gateway, "dev", &pm, 200_000).await.status == 200 {}
    let refused = send(&gateway, "dev", &pm, 200_000).await;
    refused.refuses(503, "agent_busy");
    delegated(&gateway, "dev", &dev, 250_000).await.has(202);
    let call = Request::post(target.path(), CALL).bearer(&dev);
    let call = call.field("Idempotency-Key", "k");
    for replay in [None, Some("true")] {
        let answer = gateway.call(&call).await.has(200);
        assert_eq!(answer.field(KEPT), None, "{}", answer.text());
        assert_eq!(answer.field("idempotent-replay"), replay);
    }
    // Nor does what the workspace keeps take room in its inbox.
    assert_eq!(send(&gateway, "pm", &pm, 900_000).await.status, 200);
    delegated(&gateway, "pm", &pm, 250_000).await.has(202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_together_have_a_bound() {
    let gateway = Gateway::with("limits.kept_bytes=1MiB limits.kept_bytes_total=1MiB").await;
    let dev = gateway.poller("dev").await;
    gateway.poller("pm").await;
    assert_eq!(send(&gateway, "dev", &dev, 600_000).await.status, 200);
    let kept = "a2a_gateway_kept_bytes";
    gateway.until_counted(kept, &[], 600_000.0).await;
    let refused = send(&gateway, "pm", &dev, 600_000).await;
    refused.refuses(503, "agent_busy");
    refused.says("limits.kept_bytes_total");
    assert_eq!(send(&gateway, "pm", &dev, 100_000).await.status, 200);
}

/// What one replica keeps counts for the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bound_is_one_for_all_replicas() {
    let stores = Stores::start();
    let gateways: [Gateway; 2] = stores.replicas("limits.kept_bytes=1MiB").await;
    let dev = gateways[0].poller("dev").await;
    let mut accepted = 0;
    for n in 0..10 {
        let answer = send(&gateways[n % 2], "dev", &dev, 200_000).await;
        accepted += usize::from(answer.status == 200);
    }
    assert_eq!(accepted, 5);
}
