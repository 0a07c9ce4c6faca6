//! At the target: which requests a sidecar lets through to its agent, and what the agent sees.

pub(crate) mod flaws;
pub(crate) mod gateway;
mod keys;
mod strangers;

use std::time::Duration;

use serde_json::{Value, json};

use self::flaws::Forger;
use crate::harness::sidecar::{GUARDED, Guarded, ISSUER, bound, call, claims, ended};
use crate::harness::{
    Agent, Answer, CALL, Connection, LAST_CHUNK, Request, SSE_HEAD, Step, assert_refusal, chunk,
    ok_json,
};

/// Refused, since nobody is proven to call.
async fn is_refused(guarded: &Guarded, request: &Request) -> Answer {
    let answer = guarded.call(request).await;
    assert_eq!(answer.reason(), "unauthenticated", "{request:?}");
    answer
}

/// A call with this body and a good token for it.
fn good(guarded: &Guarded, body: &str) -> Request {
    Request::post("/", body).bearer(&guarded.token(body))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_sees_the_call_who_proved_to_call_and_its_own_credential() {
    let guarded = Guarded::start(&[]).await;
    let request = call(&guarded.token(CALL))
        .field("X-Workspace-ID", "boss")
        .field("X_Workspace_ID", "boss")
        .field("X-A2A-Caller", "boss")
        .field("X-Request-Id", "r-1")
        .field("X-A2A-Hops", "3")
        .field("X-Forwarded-For", "192.0.2.7")
        .field("Via", "1.1 a2a-gateway")
        .field("Connection", "x-named");
    let answer = guarded.call(&request).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.field("x-request-id"), Some("r-1"));
    let seen = guarded.agent.take();
    assert!(
        seen.head.starts_with("POST / HTTP/1.1\r\n"),
        "{}",
        seen.head
    );
    assert_eq!(seen.text(), CALL);
    for (name, values) in [
        ("x-workspace-id", &["caller"][..]),
        ("x-a2a-caller", &["caller"]),
        ("x_workspace_id", &[]),
        ("authorization", &[]),
        ("x-a2a-caller-token", &[]),
        ("connection", &[]),
        ("x-request-id", &["r-1"]),
        ("x-a2a-hops", &["3"]),
        ("x-forwarded-for", &["192.0.2.7"]),
        ("via", &["1.1 a2a-gateway", "1.1 a2a-gateway-sidecar"]),
        ("content-type", &["application/json"]),
    ] {
        assert_eq!(seen.fields(name), values, "{name}: {}", seen.head);
    }
    let host = format!("127.0.0.1:{}", guarded.agent.port);
    assert_eq!(seen.field("host"), Some(host.as_str()));
    // With a credential of its own it gets that.
    let request = Request::post("/", CALL)
        .field("X-A2A-Caller-Token", guarded.token(CALL))
        .bearer("the-agents-own");
    assert_eq!(guarded.call(&request).await.status, 200);
    let seen = guarded.agent.take();
    assert_eq!(seen.field("authorization"), Some("Bearer the-agents-own"));
    assert_eq!(seen.field("x-workspace-id"), Some("caller"));
    assert!(seen.field("x-a2a-caller-token").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_no_workspace_never_passes_for_one() {
    let guarded = Guarded::start(&[]).await;
    for (sub, said) in [
        ("canvas:mia", "canvas:mia"),
        ("canvas:Zoë K", "canvas:Zo%C3%AB%20K"),
        ("org:acme", "org:acme"),
        ("operator:", "operator:"),
    ] {
        let token = guarded.sign(&bound(CALL, json!({"sub": sub})));
        let request = call(&token).field("X-Workspace-ID", "boss");
        let answer = guarded.call(&request).await;
        assert_eq!(answer.status, 200, "{sub}: {}", answer.text());
        let seen = guarded.agent.take();
        assert_eq!(seen.fields("x-a2a-caller"), [said], "{sub}");
        assert!(seen.field("x-workspace-id").is_none(), "{sub}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_with_any_flaw_proves_nothing() {
    let guarded = Guarded::start(&[]).await;
    let jwks = json!({"keys": [guarded.key.jwk()]}).to_string();
    let forger = Forger {
        key: &guarded.key,
        issuer: ISSUER,
        jwks: jwks.as_bytes(),
    };
    // Made the same way, and without a flaw.
    let flawless = guarded.call(&call(&forger.saying(json!({})))).await;
    assert_eq!(flawless.status, 200, "{}", flawless.text());
    guarded.agent.take();
    let mut others = Vec::new();
    for flaw in forger.flaws() {
        let request = call(&flaw.token).field("X-Request-Id", "r-1");
        let answer = guarded.call(&request).await;
        let (what, said) = (&flaw.what, answer.text());
        if answer.status != 401 || !said.contains(flaw.sidecar) {
            others.push(format!("{what}: {said}"));
            continue;
        }
        // The dialect of a POST is JSON-RPC, as on the gateway's A2A routes.
        assert_refusal(&answer, "/a2a", "r-1", "unauthenticated", what);
    }
    assert!(
        others.is_empty(),
        "admitted, or for another reason: {others:#?}"
    );
    for (what, token) in [
        ("no token at all", "nothing".to_owned()),
        ("a workspace's token", format!("a2aw_{}", "a".repeat(43))),
    ] {
        let answer = is_refused(&guarded, &call(&token)).await;
        assert!(answer.text().contains("is no pair token"), "{what}");
    }
    let without = Request::post("/", CALL).field("X-Request-Id", "r-1");
    let answer = guarded.call(&without).await;
    assert_refusal(&answer, "/a2a", "r-1", "unauthenticated", "no field");
    let twice = good(&guarded, CALL).bearer(&guarded.token(CALL));
    is_refused(&guarded, &twice).await;
    let both = good(&guarded, CALL).field("X-A2A-Caller-Token", "nothing");
    is_refused(&guarded, &both).await;
    assert_eq!(guarded.agent.count(), 0, "the agent saw one of them");
    assert_eq!(guarded.call(&good(&guarded, CALL)).await.status, 200);
    let log = guarded.sidecar.log();
    let shown = log.contains(&guarded.token(CALL)[..40]);
    assert!(!shown, "a token in the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_flipped_byte_of_the_body_is_noticed() {
    let guarded = Guarded::start(&[]).await;
    for at in [0, 20, CALL.len() / 2, CALL.len() - 1] {
        let mut request = good(&guarded, CALL);
        request.body[at] ^= 1;
        is_refused(&guarded, &request).await;
    }
    let mut longer = good(&guarded, CALL);
    longer.body.push(b' ');
    is_refused(&guarded, &longer).await;
    let shorter = Request::new("POST", "/").bearer(&guarded.token(CALL));
    is_refused(&guarded, &shorter).await;
    assert_eq!(guarded.agent.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bound_token_counts_once_and_an_unbound_one_as_long_as_it_is_good() {
    let guarded = Guarded::start(&[]).await;
    let token = guarded.token(CALL);
    // Whoever does not know the body cannot use it up.
    let other = Request::post("/", "{}").bearer(&token);
    assert_eq!(guarded.call(&other).await.status, 401);
    assert_eq!(guarded.call(&call(&token)).await.status, 200);
    for _ in 0..3 {
        let answer = is_refused(&guarded, &call(&token)).await;
        assert!(answer.text().contains("used before"), "{}", answer.text());
    }
    // Nor under another signature: it is the name that counts once.
    let name = json!({"jti": "j-1"});
    let first = guarded.sign(&bound(CALL, name.clone()));
    assert_eq!(guarded.call(&call(&first)).await.status, 200);
    let other = CALL.replace("hi", "ho");
    let second = guarded.sign(&bound(&other, name));
    let second = Request::post("/", &other).bearer(&second);
    let answer = guarded.call(&second).await;
    assert!(answer.text().contains("used before"), "{}", answer.text());
    assert_eq!(guarded.agent.count(), 2);
    let unbound = guarded.sign(&claims(json!({})));
    for body in [CALL, CALL, "{}"] {
        let request = Request::post("/", body).bearer(&unbound);
        assert_eq!(guarded.call(&request).await.status, 200);
    }
    let metrics = guarded.sidecar.admin_get("/metrics").await.text();
    for line in [
        r#"a2a_gateway_token_uses_total{use="first"} 2"#,
        r#"a2a_gateway_token_uses_total{use="again"} 4"#,
        "a2a_gateway_tokens_kept 2",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
    // An earlier name of the same.
    for strict in ["--require-bound", "--bound-only"] {
        let strict = Guarded::start(&[strict]).await;
        // Of discovery, and of a workspace that does not ask for more.
        for kind in [json!({}), json!({"token_use": "caller"})] {
            let unbound = strict.sign(&claims(kind));
            let verify = Request::get("/auth/verify").bearer(&unbound);
            for request in [call(&unbound), verify] {
                let answer = is_refused(&strict, &request).await;
                let said = answer.json().to_string();
                let helps = said.contains(r#"proof: \"request\""#) && said.contains("PATCH");
                assert!(helps, "{said}");
            }
        }
        assert_eq!(strict.call(&good(&strict, CALL)).await.status, 200);
        assert_eq!(strict.agent.count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_path_and_method_passes_and_only_the_card_is_public() {
    let guarded = Guarded::start(&[]).await;
    let token = guarded.sign(&claims(json!({})));
    for (method, path) in [
        ("GET", "/tasks/7?history_length=2"),
        ("DELETE", "/v1/tasks/7"),
        ("PUT", "/anything"),
        ("POST", "/message:send"),
        ("OPTIONS", "/"),
        ("HEAD", "/tasks/7"),
    ] {
        let request = Request::new(method, path);
        let refused = guarded.call(&head_read_as_none(&request)).await;
        assert_eq!(refused.status, 401, "{method} {path}");
        let proven = head_read_as_none(&request.bearer(&token));
        let answer = guarded.call(&proven).await;
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text());
        let seen = guarded.agent.take();
        let line = format!("{method} {path} HTTP/1.1\r\n");
        assert!(seen.head.starts_with(&line), "{}", seen.head);
        assert_eq!(guarded.agent.count(), 0, "{method} {path}");
    }
    for path in ["/.well-known/agent-card.json", "/.well-known/agent.json"] {
        let request = Request::get(path).field("X-Workspace-ID", "boss");
        assert_eq!(guarded.call(&request).await.status, 200, "{path}");
        let seen = guarded.agent.take();
        assert!(seen.field("x-workspace-id").is_none(), "{path}");
        let post = Request::post(path, CALL);
        assert_eq!(guarded.call(&post).await.status, 401, "{path}");
    }
    for path in [
        "/.well-known/agent-card.json/",
        "/x/../.well-known/agent-card.json",
        "/.well-known/agent-card.json/../../",
        "/.well-known/%61gent.json",
        "/.well-known/jwks.json",
    ] {
        let status = guarded.call(&Request::get(path)).await.status;
        // Without a proof, or no path at all.
        assert!(matches!(status, 400 | 401 | 404), "{path}: {status}");
        assert_eq!(guarded.agent.count(), 0, "{path}");
    }
    let private = Guarded::start(&["--private-card"]).await;
    let request = Request::get("/.well-known/agent-card.json");
    is_refused(&private, &request).await;
    let token = private.sign(&claims(json!({})));
    assert_eq!(private.call(&request.bearer(&token)).await.status, 200);
}

/// The client reads bodies by their length, and an answer to HEAD has none.
fn head_read_as_none(request: &Request) -> Request {
    let mut request = request.clone();
    if request.method == "HEAD" {
        request = request.field("Connection", "close");
    }
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_passes_event_by_event_and_what_breaks_is_told() {
    let agent = Agent::scripted(|request| {
        if request.text().contains("moved") {
            let found = "HTTP/1.1 302 Found\r\nLocation: /x\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n";
            return vec![Step::write(found)];
        }
        if request.head.starts_with("GET") {
            let same = "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n";
            return vec![Step::write(same)];
        }
        if request.text().contains("broken") {
            let part = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc";
            return vec![Step::write(part), Step::Close];
        }
        vec![
            Step::write(SSE_HEAD),
            Step::Write(chunk("data: {\"n\":1}\n\n")),
            Step::Wait(Duration::from_millis(100)),
            Step::Write(chunk("data: {\"n\":2}\n\n")),
            Step::write(LAST_CHUNK),
        ]
    });
    let guarded = Guarded::start_with(agent.await, &[]).await;
    let answer = guarded.call(&good(&guarded, CALL)).await;
    assert_eq!(answer.field("content-type"), Some("text/event-stream"));
    assert_eq!(answer.text(), "data: {\"n\":1}\n\ndata: {\"n\":2}\n\n");
    assert!(answer.whole && answer.pieces.len() >= 2, "{answer:?}");
    // What an agent answers besides is between it and its callers.
    let moved = CALL.replace("hi", "moved");
    let answer = guarded.call(&good(&guarded, &moved)).await;
    assert_eq!((answer.status, answer.field("location")), (302, Some("/x")));
    assert_eq!(answer.field("set-cookie"), Some("a=b"));
    let card = Request::get("/.well-known/agent-card.json").field("If-None-Match", "\"1\"");
    let answer = guarded.call(&card).await;
    assert_eq!((answer.status, answer.field("etag")), (304, Some("\"1\"")));
    assert!(answer.field("content-length").is_none(), "{answer:?}");
    let broken = CALL.replace("hi", "broken");
    let answer = guarded.call(&good(&guarded, &broken)).await;
    assert_eq!(answer.reason(), "agent_protocol_error");
    assert_eq!(answer.json()["id"], "c-1");
    assert_eq!(answer.fact("delivered").as_deref(), Some("true"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_are_bounded_and_read_before_the_agent_sees_a_byte() {
    let guarded = Guarded::start(&["--set", "limits.request_bytes=1MiB"]).await;
    let big = "x".repeat(900 * 1024);
    let big = format!("{{\"method\":\"message/send\",\"x\":\"{big}\"}}");
    assert_eq!(guarded.call(&good(&guarded, &big)).await.status, 200);
    assert_eq!(guarded.agent.take().body, big.as_bytes());
    let bigger = good(&guarded, &"x".repeat(2 * 1024 * 1024));
    assert_eq!(guarded.call(&bigger).await.reason(), "body_too_large");
    assert_eq!(guarded.agent.count(), 0);
    // One of its own, so that no whole body is too slow for the clock.
    let hasty = Guarded::start(&["--set", "timeouts.request_body=1s"]).await;
    let mut dripping = call(&hasty.token(CALL)).field("Content-Length", "5000");
    dripping.body.truncate(10);
    assert_eq!(hasty.call(&dripping).await.reason(), "request_timeout");
    assert_eq!(hasty.agent.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_says_what_it_does_and_ends_in_order() {
    let slow = Agent::scripted(|_| {
        let wait = Step::Wait(Duration::from_millis(500));
        vec![wait, Step::Write(ok_json("{}"))]
    });
    let mut guarded = Guarded::start_with(slow.await, &[]).await;
    let ready = guarded.sidecar.admin_get("/readyz").await;
    assert_eq!((ready.status, &ready.json()["keys"]), (200, &json!("ok")));
    let config = guarded.sidecar.admin_get("/config").await.json();
    assert!(config.to_string().contains("timeouts.idle"), "{config}");
    let mut connection = Connection::open(guarded.sidecar.address).await;
    let request = call(&guarded.token(CALL)).wire(GUARDED);
    connection.send(&request).await;
    guarded.agent.until_count(1).await;
    let sidecar = &mut guarded.sidecar;
    let ended = tokio::task::block_in_place(|| sidecar.terminate());
    assert!(ended.success(), "{ended}");
    assert_eq!(connection.answer().await.status, 200);
    let log = guarded.sidecar.log();
    let mut lines = log.lines();
    let line = lines.find(|line| line.contains(r#""target":"access""#));
    let line: Value = serde_json::from_str(line.unwrap()).unwrap();
    for (name, value) in [
        ("caller", "caller"),
        ("callee", GUARDED),
        ("outcome", "answered"),
    ] {
        assert_eq!(line[name], value, "{line}");
    }
}

#[test]
fn wrong_arguments_end_it_before_a_port_is_bound() {
    let agent = "--workspace pm --upstream http://127.0.0.1:8000";
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    for (arguments, status, word) in [
        ("--help", 0, "--require-bound"),
        ("", 64, "--workspace"),
        ("--workspace pm", 64, "--upstream"),
        (
            "--workspace p:m --upstream http://127.0.0.1:1",
            64,
            "workspace id",
        ),
        (
            "--workspace pm --upstream http://127.0.0.1:1/a2a",
            64,
            "scheme, host and port",
        ),
        (
            &format!("{agent} --gateway http://10.0.0.7"),
            64,
            "--plain-http",
        ),
        (
            &format!("{agent} --set timeouts.idle=soon"),
            64,
            "timeouts.idle",
        ),
        (&format!("{agent} --set sidecar.x=1"), 64, "sidecar"),
        (&format!("{agent} --listen {taken}"), 1, "cannot listen"),
    ] {
        let (code, said) = ended(&arguments.split_whitespace().collect::<Vec<_>>());
        assert_eq!(code, Some(status), "{arguments}: {said}");
        assert!(said.contains(word), "{arguments}: {said}");
    }
}
