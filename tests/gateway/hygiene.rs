//! Raw HTTP/1.1 that is no honest request: refused in JSON or cut, never a hang, and nothing of it reaches an agent.
//! What two parsers could read differently: `smuggling`.

use std::time::Duration;

use tokio::time::timeout;

use crate::harness::{Agent, Answer, Builder, CALL, Connection, Gateway, Pair, Request, Seat};

/// What takes longer hangs. The clocks of requests end later.
pub(crate) const PROMPT: Duration = Duration::from_secs(60);

/// A gateway with a caller and a target, and raw bytes towards it.
pub(crate) struct Case {
    pub(crate) gateway: Gateway,
    pub(crate) caller: Seat,
    pub(crate) target: Seat,
}

impl Case {
    pub(crate) async fn new() -> Self {
        let builder = Builder::new(Pair::Embedded).set("timeouts.request_head", "10m");
        Self::on(builder.set("timeouts.request_body", "10m")).await
    }

    pub(crate) async fn on(builder: Builder) -> Self {
        let gateway = builder.start().await;
        let agent = Agent::json(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
        let (caller, target) = gateway.pair(agent).await;
        Self {
            gateway,
            caller,
            target,
        }
    }

    /// The bytes of a call with this line and an exact length.
    fn call(&self, line: &str) -> Vec<u8> {
        let length = format!("Content-Length: {}", CALL.len());
        self.wire(line, &[&self.host(), &length], CALL)
    }

    pub(crate) fn request(&self) -> Request {
        Request::post(self.target.path(), CALL).bearer(&self.caller.token)
    }

    /// The bytes of an honest call, with `{line}` and the fields behind it replaced.
    fn wire(&self, line: &str, fields: &[&str], body: &str) -> Vec<u8> {
        let token = format!("Authorization: Bearer {}", self.caller.token);
        let own = [line, &token, "Content-Type: application/json"];
        let head = [&own[..], fields].concat().join("\r\n");
        format!("{head}\r\n\r\n{body}").into_bytes()
    }

    fn host(&self) -> String {
        format!("Host: {}", self.gateway.public)
    }

    pub(crate) fn line(&self) -> String {
        format!("POST {} HTTP/1.1", self.target.path())
    }

    /// Sends bytes on a connection of their own; answers everything that comes back until the
    /// gateway closes or has answered once.
    async fn raw(&self, bytes: &[u8]) -> Option<Answer> {
        let mut connection = Connection::open(self.gateway.public).await;
        let _ = timeout(PROMPT, connection.try_send(bytes)).await;
        timeout(PROMPT, connection.try_answer())
            .await
            .unwrap_or_else(|_| panic!("a hang after {}", shown(bytes)))
    }

    /// Sends bytes that must be refused in JSON, with a status of `statuses`.
    async fn refused(&self, bytes: &[u8], statuses: &[u16]) -> Answer {
        let answer = self.raw(bytes).await;
        let answer = answer.unwrap_or_else(|| panic!("no answer to {}", shown(bytes)));
        let (shown, status) = (shown(bytes), answer.status);
        assert!(
            statuses.contains(&status),
            "{shown}: {status} {}",
            answer.text()
        );
        assert_json(&answer, &shown);
        assert_eq!(self.target.agent.count(), 0, "{shown}");
        answer
    }

    /// Sends bytes of an honest call.
    async fn passes(&self, bytes: &[u8]) {
        let answer = self.raw(bytes).await.expect("an answer");
        assert_eq!(answer.status, 200, "{}: {}", shown(bytes), answer.text());
        let arrived = self.target.agent.take();
        assert!(arrived.head.starts_with("POST / HTTP/1.1\r\n"));
        assert_eq!(arrived.text(), CALL);
    }

    pub(crate) async fn still_works(&self) {
        self.gateway.call(&self.request()).await.has(200);
        assert_eq!(self.target.agent.take().text(), CALL);
        self.gateway.assert_idle().await;
    }
}

fn shown(bytes: &[u8]) -> String {
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(120)]);
    start.escape_debug().to_string()
}

fn assert_json(answer: &Answer, what: &str) {
    let media = answer.field("content-type");
    assert_eq!(media, Some("application/json"), "{what}: {}", answer.text());
    let id = answer.field("x-request-id").unwrap_or_default();
    assert!(!id.is_empty(), "{what}: no X-Request-Id");
    answer.says(id);
    assert!(!answer.reason().is_empty(), "{what}");
}

#[tokio::test]
async fn broken_chunks_end_the_connection() {
    let case = Case::new().await;
    let fields = [&*case.host(), "Transfer-Encoding: chunked"];
    let smuggled = format!("GET /nowhere HTTP/1.1\r\n{}\r\n\r\n", case.host());
    for body in [
        format!("zz\r\n{CALL}\r\n0\r\n\r\n{smuggled}"),
        format!("-5\r\n{CALL}\r\n0\r\n\r\n{smuggled}"),
        format!("0x5\r\n{CALL}\r\n0\r\n\r\n{smuggled}"),
        format!("fffffffffffffffff\r\n{CALL}\r\n0\r\n\r\n{smuggled}"),
        format!("5\r\n{CALL}\r\n0\r\n\r\n{smuggled}"),
        format!("{:x}\n{CALL}\n0\n\n{smuggled}", CALL.len()),
    ] {
        for path in [case.target.path(), "/workspaces".into()] {
            let shown = shown(body.as_bytes());
            let line = format!("POST {path} HTTP/1.1");
            let wire = case.wire(&line, &fields, &body);
            let mut connection = Connection::open(case.gateway.public).await;
            connection.send(&wire).await;
            let first = timeout(PROMPT, connection.try_answer()).await;
            if let Some(answer) = first.expect("no hang") {
                assert!((400..500).contains(&answer.status), "{shown}");
                assert_json(&answer, &body);
                let second = timeout(PROMPT, connection.try_answer()).await;
                let second = second.expect("no hang");
                assert!(second.is_none(), "{shown} was read on: {second:?}");
            }
            assert_eq!(case.target.agent.count(), 0, "{shown}");
        }
    }
    case.still_works().await;
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused() {
    let case = Case::new().await;
    let (line, host) = (case.line(), case.host());
    let length = format!("Content-Length: {}", CALL.len());
    let target = |n: usize| format!("POST {}?{} HTTP/1.1", case.target.path(), "x".repeat(n));
    let many: Vec<String> = (0..300).map(|i| format!("X-{i}: a")).collect();
    let with = |n: usize| {
        let mut fields = vec![&*host, &*length];
        fields.extend(many[..n].iter().map(String::as_str));
        case.wire(&line, &fields, CALL)
    };
    let long = |n: usize| {
        let field = format!("X-Long: {}", "x".repeat(n));
        case.wire(&line, &[&host, &length, &field], CALL)
    };
    for wire in [
        case.call(&target(8192)),
        case.call(&target(100_000)),
        with(100),
        with(300),
        long(33 << 10),
        long(900 << 10),
        long(3 << 20),
    ] {
        case.refused(&wire, &[400]).await;
    }
    // What is large, but within bounds, passes.
    for wire in [case.call(&target(7000)), with(90), long(20 << 10)] {
        case.passes(&wire).await;
    }
    case.still_works().await;
}

#[tokio::test]
async fn a_path_has_one_spelling() {
    let case = Case::new().await;
    for path in [
        "/workspaces/x/../target/a2a",
        "/workspaces/x/%2e%2e/target/a2a",
        "/workspaces/./target/a2a",
        "//workspaces/target/a2a",
        "/workspaces//target/a2a",
        "/workspaces/target//a2a",
        "/workspaces/target%2Fa2a",
        "/workspaces%2Ftarget/a2a",
        "/workspaces/target/%612a",
        "/workspaces/t%61rget/a2a",
        "/workspaces/target%00/a2a",
        "/workspaces/target;v=1/a2a",
        "/workspaces/target/a2a;v=1",
        "/workspaces/target/A2A",
        "/Workspaces/target/a2a",
        "/workspaces/target\\a2a",
        "/workspaces/target/a2a/../a2a",
        "/workspaces/target/a2a//",
        "/workspaces/target/a2a/x",
        "/workspaces/tar get/a2a",
        "/workspaces/target/a2a HTTP/1.1 x",
        "/workspaces/target\u{1}/a2a",
        "/workspaces/target\t/a2a",
        "/workspaces/tärget/a2a",
        "/workspaces/a:b/a2a",
        "/workspaces/ /a2a",
        "workspaces/target/a2a",
        "*",
        "http:/workspaces/target/a2a",
        "file:///workspaces/target/a2a",
        "",
    ] {
        let wire = case.call(&format!("POST {path} HTTP/1.1"));
        case.refused(&wire, &[400, 404, 405]).await;
    }
    // The query is the caller's business, and never the agent's.
    for query in ["?", "?a=%2e%2e", "?x=1&y=/workspaces/caller/a2a", "/?x"] {
        let line = format!("POST {}{query} HTTP/1.1", case.target.path());
        case.passes(&case.call(&line)).await;
    }
    case.still_works().await;
}

#[tokio::test]
async fn odd_methods_are_refused_by_name() {
    let case = Case::new().await;
    let host = case.host();
    for method in ["PUT", "PATCH", "DELETE", "TRACE", "FOO", "OPTIONS"] {
        let wire = case.call(&format!("{method} {} HTTP/1.1", case.target.path()));
        let answer = case.refused(&wire, &[405]).await;
        assert_eq!(answer.reason(), "method_not_allowed", "{method}");
        answer.has_field_for(&method, "allow", "GET, HEAD, POST, OPTIONS");
        let wire = case.call(&format!("{method} /registry/register HTTP/1.1"));
        let answer = case.refused(&wire, &[405]).await;
        assert_eq!(answer.field("allow"), Some("POST"), "{method}");
    }
    for line in [
        "CONNECT evil.example:443 HTTP/1.1",
        "CONNECT 127.0.0.1:1 HTTP/1.1",
        "CONNECT / HTTP/1.1",
        "post /workspaces/target/a2a HTTP/1.1",
        "PO(ST /workspaces/target/a2a HTTP/1.1",
        "POST /workspaces/target/a2a",
        "POST /workspaces/target/a2a HTTP/1.2",
        "POST /workspaces/target/a2a HTTP/2.0",
        "POST /workspaces/target/a2a HTTP/9",
        "POST  /workspaces/target/a2a HTTP/1.1",
        "POST /workspaces/target/a2a  HTTP/1.1",
        " POST /workspaces/target/a2a HTTP/1.1",
    ] {
        case.refused(&case.call(line), &[400, 405, 404]).await;
    }
    // A HEAD is told the same as a GET, without a body: here, that a card needs a credential.
    // Were there a body, it would stand between the two.
    let mut connection = Connection::open(case.gateway.public).await;
    let head = format!("HEAD {} HTTP/1.1\r\n{host}\r\n\r\n", case.target.path());
    for _ in 0..2 {
        connection.send(head.as_bytes()).await;
        let answer = timeout(PROMPT, connection.read_head()).await;
        assert_eq!(answer.unwrap().unwrap().status, 401);
    }
    case.still_works().await;
}

#[tokio::test]
async fn http_1_0_is_served_and_closed_unless_it_asks() {
    let case = Case::new().await;
    let host = case.host();
    let length = format!("Content-Length: {}", CALL.len());
    let line = format!("POST {} HTTP/1.0", case.target.path());
    let mut connection = Connection::open(case.gateway.public).await;
    connection.send(&case.call(&line)).await;
    let answer = connection.answer().await.has(200);
    assert_eq!(answer.field("transfer-encoding"), None);
    assert_eq!(answer.field("connection"), Some("close"));
    let next = timeout(PROMPT, connection.try_answer()).await;
    assert!(next.expect("closed").is_none());
    let _ = case.target.agent.take();

    let mut connection = Connection::open(case.gateway.public).await;
    for _ in 0..2 {
        let fields = [&*host, &*length, "Connection: keep-alive"];
        connection.send(&case.wire(&line, &fields, CALL)).await;
        let answer = connection.answer().await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.field("connection"), Some("keep-alive"));
        let _ = case.target.agent.take();
    }
    // Chunked framing does not exist there.
    let chunked = format!("{:x}\r\n{CALL}\r\n0\r\n\r\n", CALL.len());
    let fields = [&*host, "Transfer-Encoding: chunked"];
    let no_host = case.wire(&line, &[&length], CALL);
    for wire in [case.wire(&line, &fields, &chunked), no_host] {
        case.refused(&wire, &[400]).await;
    }
    case.still_works().await;
}

#[tokio::test]
async fn what_is_no_http_is_refused_or_cut() {
    let case = Case::new().await;
    let garbage: Vec<u8> = (0..=255_u8).cycle().take(4096).collect();
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\0\0\0\0",
        b"hello\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"GET\r\n\r\n",
        b"GET / \r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        &garbage,
    ] {
        let mut connection = Connection::open(case.gateway.public).await;
        connection.send(bytes).await;
        // Some of it could still become a head: the caller has said all that it will.
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut connection.stream).await;
        let answer = timeout(PROMPT, connection.try_answer()).await;
        if let Some(answer) = answer.unwrap_or_else(|_| panic!("a hang after {}", shown(bytes))) {
            assert_eq!(answer.status, 400, "{}", shown(bytes));
            assert_json(&answer, &shown(bytes));
        }
    }
    case.still_works().await;
}
