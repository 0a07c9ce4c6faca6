//! The clocks of a call. Time stands still until a test advances it, so that nothing waits and no stall matters.

use std::sync::mpsc;

use tokio::task::{spawn_blocking, yield_now};
use tokio::time::{advance, pause};

use super::calls::STREAMED;
use super::*;

/// The time of a runtime, which passes by [`StoppedTime::pass`] only.
struct StoppedTime(#[expect(dead_code, reason = "held")] mpsc::Sender<()>);

impl StoppedTime {
    /// Stops the time. While a blocking task runs, tokio does not advance a paused clock by itself: sockets and stores
    /// are waited for in real time.
    fn stop() -> Self {
        let (holds, held) = mpsc::channel();
        spawn_blocking(move || held.recv());
        pause();
        Self(holds)
    }

    async fn pass(&self, time: Duration) {
        advance(time).await;
        settle().await;
    }
}

/// Lets all tasks run that can.
async fn settle() {
    for _ in 0..1000 {
        yield_now().await;
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// Reads from a caller's connection until it has `text`.
async fn read_until(caller: &mut DuplexStream, text: &str) -> String {
    let mut read = Vec::new();
    loop {
        let found = String::from_utf8_lossy(&read).into_owned();
        if found.contains(text) {
            return found;
        }
        assert!(caller.read_buf(&mut read).await.unwrap() > 0, "{found}");
    }
}

/// Waits in real time, while the tasks run, until something holds that always comes.
async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < 60 * SECOND, "{what}: never");
        yield_now().await;
    }
}

async fn wait_for_request(gateway: &TestGateway) {
    let has_one = || !gateway.agent.requests().is_empty();
    wait_until("the agent has a request", has_one).await;
}

/// Asserts that `waiting` lasts until `limit` has passed, and ends then. What it waits for may begin late, if a socket
/// or a store takes real time: an hour passes before it is given up.
async fn pass_limit<T: Send + 'static>(
    time: &StoppedTime,
    waiting: impl Future<Output = T> + Send + 'static,
    limit: Duration,
) -> T {
    let waiting = tokio::spawn(waiting);
    settle().await;
    time.pass(limit - SECOND).await;
    assert!(!waiting.is_finished(), "a clock of {limit:?} is early");
    time.pass(2 * SECOND).await;
    for _ in 0..3600 {
        if waiting.is_finished() {
            break;
        }
        let real_pause = || std::thread::sleep(Duration::from_millis(5));
        spawn_blocking(real_pause).await.unwrap();
        time.pass(SECOND).await;
    }
    assert!(waiting.is_finished(), "a clock of {limit:?} does not ring");
    waiting.await.unwrap()
}

/// Returns a call as the operator sends it.
fn call_text(gateway: &TestGateway, body: &str) -> String {
    let fields = [&*gateway.admin_field()];
    TestGateway::request("POST /workspaces/target/a2a", &fields, body)
}

/// Sends a call as the operator. Returns the connection.
async fn send_call(gateway: &TestGateway, body: &str) -> DuplexStream {
    let (mut caller, _serving) = gateway.connect();
    let request = call_text(gateway, body);
    caller.write_all(request.as_bytes()).await.unwrap();
    caller
}

#[tokio::test]
async fn a_silent_agent_is_left_at_the_timeout_of_its_head() {
    let gateway = TestGateway::new(AgentAnswer::open(String::new()), |_| ()).await;
    let time = StoppedTime::stop();
    let mut caller = send_call(&gateway, CALL).await;
    wait_for_request(&gateway).await;
    let answer = async move { read_answer(&mut caller).await };
    let reply = Reply::parse(&pass_limit(&time, answer, 120 * SECOND).await);
    assert_eq!(
        (reply.status, reply.refusal()),
        (504, Some("agent_timeout"))
    );
    let facts = &reply.json()["error"]["data"][0]["metadata"];
    assert_eq!(
        (&facts["clock"], &facts["delivered"]),
        (&json!("head"), &json!("true"))
    );
}

#[tokio::test]
async fn a_silent_stream_is_kept_alive_and_ends_with_the_reason() {
    let answer = AgentAnswer::open(stream_answer(&STREAMED[..1], false));
    let gateway = TestGateway::new(answer, |_| ()).await;
    let time = StoppedTime::stop();
    let call = CALL.replace("message/send", "message/stream");
    let mut caller = send_call(&gateway, &call).await;
    read_until(&mut caller, "working").await;
    time.pass(16 * SECOND).await;
    read_until(&mut caller, "\n: ").await;
    let end = async move { read_until(&mut caller, "0\r\n\r\n").await };
    let end = pass_limit(&time, end, 104 * SECOND).await;
    assert!(end.contains("AGENT_SILENT"), "{end}");
}

#[tokio::test]
async fn a_stream_that_waits_for_a_person_has_no_idle_clock() {
    let waits = STREAMED[0].replace("working", "auth-required");
    let answer = AgentAnswer::open(stream_answer(&[&waits], false));
    let gateway = TestGateway::new(answer, |_| ()).await;
    let time = StoppedTime::stop();
    let call = CALL.replace("message/send", "message/stream");
    let mut caller = send_call(&gateway, &call).await;
    read_until(&mut caller, "auth-required").await;
    let end = async move { read_until(&mut caller, "0\r\n\r\n").await };
    let end = pass_limit(&time, end, 30 * 60 * SECOND).await;
    assert!(end.contains("AGENT_TIMEOUT"), "{end}");
    assert!(!end.contains("AGENT_SILENT"), "{end}");
}

#[tokio::test]
async fn a_message_or_an_error_that_is_left_open_is_closed() {
    for event in [
        r#"{"jsonrpc":"2.0","id":1,"result":{"kind":"message","parts":[]}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}"#,
    ] {
        let answer = AgentAnswer::open(stream_answer(&[event], false));
        let gateway = TestGateway::new(answer, |_| ()).await;
        let time = StoppedTime::stop();
        let call = CALL.replace("message/send", "message/stream");
        let mut caller = send_call(&gateway, &call).await;
        read_until(&mut caller, "\n\n").await;
        let end = async move { read_until(&mut caller, "0\r\n\r\n").await };
        let end = pass_limit(&time, end, 5 * SECOND).await;
        assert!(!end.contains("AGENT_"), "{end}");
        tokio::time::resume();
    }
}

#[tokio::test]
async fn a_slow_body_is_refused() {
    let gateway = TestGateway::new(unary_answer("{}"), |_| ()).await;
    let time = StoppedTime::stop();
    let (mut caller, _serving) = gateway.connect();
    let request = call_text(&gateway, CALL);
    let part = &request.as_bytes()[..request.len() - 1];
    caller.write_all(part).await.unwrap();
    let answer = async move { read_answer(&mut caller).await };
    let reply = Reply::parse(&pass_limit(&time, answer, 30 * SECOND).await);
    assert_eq!(
        (reply.status, reply.refusal()),
        (408, Some("request_timeout"))
    );
    assert_eq!(gateway.agent.requests().len(), 0);
}

#[tokio::test]
async fn a_connection_with_a_slow_head_is_closed() {
    let gateway = TestGateway::new(unary_answer("{}"), |_| ()).await;
    let time = StoppedTime::stop();
    let (mut caller, _serving) = gateway.connect();
    caller.write_all(b"POST / HTTP/1.1\r\n").await.unwrap();
    let answer = async move { read_answer(&mut caller).await };
    assert_eq!(pass_limit(&time, answer, 10 * SECOND).await, "");
}

#[tokio::test]
async fn a_caller_that_does_not_read_is_cut_off() {
    let large = unary_answer(&json!({"text": "x".repeat(1 << 20)}).to_string());
    let gateway = TestGateway::new(large, |_| ()).await;
    let time = StoppedTime::stop();
    let (mut caller, serving) = gateway.connect();
    let request = call_text(&gateway, CALL);
    caller.write_all(request.as_bytes()).await.unwrap();
    wait_for_request(&gateway).await;
    // The connection is full from here on.
    let mut first = [0; 1];
    caller.read_exact(&mut first).await.unwrap();
    pass_limit(&time, serving, 30 * SECOND).await.unwrap();
}

#[tokio::test]
async fn a_call_waits_for_its_agent_to_wake_as_long_as_configured() {
    let gateway = TestGateway::new(unary_answer("{}"), |config| {
        let url = json!("http://127.0.0.1:1/wake/{workspace_id}");
        config.wake.url = serde_json::from_value(url).unwrap();
    })
    .await;
    let fields = [&*gateway.admin_field()];
    let status = json!({"status": "hibernated"}).to_string();
    let line = "PATCH /workspaces/target";
    let asleep = gateway.send(line, &fields, &status).await;
    assert_eq!(asleep.status, 200, "{}", asleep.body);
    let time = StoppedTime::stop();
    let mut caller = send_call(&gateway, CALL).await;
    let parked = &gateway.listener.metrics.waking.parked;
    wait_until("the call is parked", || parked.get() > 0).await;
    let answer = async move { read_answer(&mut caller).await };
    let reply = Reply::parse(&pass_limit(&time, answer, 60 * SECOND).await);
    assert_eq!(reply.refusal(), Some("workspace_restarting"));
    let facts = &reply.json()["error"]["data"][0]["metadata"];
    assert_eq!(facts["delivered"], "false");
}
