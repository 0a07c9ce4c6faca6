//! HTTP/1.1: lengths, codings, chunks, lines, hosts and what is pipelined behind what was refused.

use super::*;

/// One attack: its name, the lines of its head with their ends, and what follows the empty line.
///
/// `@POST` is the start of an honest request line, `@HOST` and `@AUTH` the honest fields, `@LEN` the
/// length of the call `@CALL`, `@SIZE` the same in hexadecimal, `@NEXT` a whole second call.
struct Attack(&'static str, &'static str, &'static str);

const WHOLE: &str = "@SIZE\r\n@CALL\r\n0\r\n\r\n@NEXT";
const NEXT: &str = "@CALL@NEXT";

/// `HEAD` and more lines.
macro_rules! head {
    ($lines:literal) => {
        concat!("@POST HTTP/1.1\r\n@HOST\r\n@AUTH\r\n", $lines)
    };
}

#[rustfmt::skip]
const ATTACKS: &[Attack] = &[
    // Two lengths.
    Attack("CL.TE", head!("Content-Length: @LEN\r\nTransfer-Encoding: chunked\r\n"), "0\r\n\r\n@NEXT"),
    Attack("TE.CL", head!("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"), WHOLE),
    Attack("CL.0 and chunked", head!("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"), WHOLE),
    Attack("CL.CL, equal", head!("Content-Length: @LEN\r\nContent-Length: @LEN\r\n"), NEXT),
    Attack("CL.CL, different", head!("Content-Length: @LEN\r\nContent-Length: 0\r\n"), NEXT),
    Attack("a list of lengths", head!("Content-Length: @LEN, @LEN\r\n"), NEXT),
    Attack("a length with a sign", head!("Content-Length: +@LEN\r\n"), NEXT),
    Attack("a negative length", head!("Content-Length: -1\r\n"), NEXT),
    Attack("a hexadecimal length", head!("Content-Length: 0x10\r\n"), NEXT),
    Attack("a length with a space inside", head!("Content-Length: 1 0\r\n"), NEXT),
    Attack("a length with an underscore", head!("Content-Length: 1_0\r\n"), NEXT),
    Attack("a quoted length", head!("Content-Length: \"5\"\r\n"), NEXT),
    Attack("an empty length", head!("Content-Length:\r\n"), NEXT),
    Attack("a length that overflows", head!("Content-Length: 18446744073709551621\r\n"), NEXT),
    Attack("a space before the colon of a length", head!("Content-Length : @LEN\r\n"), NEXT),
    Attack("a tab before the colon of a length", head!("Content-Length\t: @LEN\r\n"), NEXT),
    Attack("a length behind a bare return", head!("X: y\rContent-Length: @LEN\r\n"), NEXT),
    Attack("a folded length", head!("Content-Length:\r\n @LEN\r\n"), NEXT),
    // Codings that hide.
    Attack("a space before the colon of a coding", head!("Transfer-Encoding : chunked\r\nContent-Length: 4\r\n"), WHOLE),
    Attack("xchunked", head!("Transfer-Encoding: xchunked\r\n"), WHOLE),
    Attack("identity", head!("Transfer-Encoding: identity\r\nContent-Length: 4\r\n"), WHOLE),
    Attack("gzip, chunked", head!("Transfer-Encoding: gzip, chunked\r\n"), WHOLE),
    Attack("chunked, identity", head!("Transfer-Encoding: chunked, identity\r\n"), WHOLE),
    Attack("chunked twice", head!("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), WHOLE),
    Attack("chunked twice in a list", head!("Transfer-Encoding: chunked, chunked\r\n"), WHOLE),
    Attack("chunked and something else", head!("Transfer-Encoding: chunked\r\nTransfer-Encoding: cow\r\n"), WHOLE),
    Attack("a vertical tab before chunked", head!("Transfer-Encoding: \x0bchunked\r\n"), WHOLE),
    Attack("a quoted coding", head!("Transfer-Encoding: \"chunked\"\r\n"), WHOLE),
    Attack("an empty coding", head!("Transfer-Encoding:\r\nContent-Length: 4\r\n"), WHOLE),
    Attack("a folded coding", head!("Transfer-Encoding:\r\n chunked\r\nContent-Length: 4\r\n"), WHOLE),
    Attack("a coding behind a bare line feed", head!("X: y\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n"), WHOLE),
    Attack("a coding with a parameter", head!("Transfer-Encoding: chunked;q=1\r\n"), WHOLE),
    Attack("HTTP/1.0 in chunks", "@POST HTTP/1.0\r\n@HOST\r\n@AUTH\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n", WHOLE),
    // Chunks.
    Attack("an empty size line", head!("Transfer-Encoding: chunked\r\n"), "\r\n@NEXT"),
    Attack("an empty size line after a chunk", head!("Transfer-Encoding: chunked\r\n"), "@SIZE\r\n@CALL\r\n\r\n@NEXT"),
    Attack("a size with 0x", head!("Transfer-Encoding: chunked\r\n"), "0x@SIZE\r\n@CALL\r\n0\r\n\r\n@NEXT"),
    Attack("a size with a sign", head!("Transfer-Encoding: chunked\r\n"), "+@SIZE\r\n@CALL\r\n0\r\n\r\n@NEXT"),
    Attack("a negative size", head!("Transfer-Encoding: chunked\r\n"), "-1\r\n@CALL\r\n0\r\n\r\n@NEXT"),
    Attack("a size that overflows", head!("Transfer-Encoding: chunked\r\n"), "10000000000000000@SIZE\r\n@CALL\r\n0\r\n\r\n@NEXT"),
    Attack("a space before a size", head!("Transfer-Encoding: chunked\r\n"), " @SIZE\r\n@CALL\r\n0\r\n\r\n@NEXT"),
    Attack("a space after a size", head!("Transfer-Encoding: chunked\r\n"), "@SIZE \r\n@CALL\r\n0\r\n\r\n@NEXT"),
    Attack("a bare line feed after a size", head!("Transfer-Encoding: chunked\r\n"), "@SIZE\n@CALL\r\n0\r\n\r\n@NEXT"),
    Attack("a bare line feed in an extension", head!("Transfer-Encoding: chunked\r\n"), "@SIZE;a\nb\r\n@CALL\r\n0\r\n\r\n@NEXT"),
    Attack("a bare return in an extension", head!("Transfer-Encoding: chunked\r\n"), "@SIZE;a\rb\r\n@CALL\r\n0\r\n\r\n@NEXT"),
    Attack("an extension without end", head!("Transfer-Encoding: chunked\r\n"), "@SIZE;@CALL@CALL@CALL\r\n@CALL\r\n0\r\n\r\n@NEXT"),
    Attack("a bare line feed after a chunk", head!("Transfer-Encoding: chunked\r\n"), "@SIZE\r\n@CALL\n0\r\n\r\n@NEXT"),
    Attack("a chunk that is longer than its size", head!("Transfer-Encoding: chunked\r\n"), "5\r\n@CALL\r\n0\r\n\r\n@NEXT"),
    Attack("bare line feeds after the last chunk", head!("Transfer-Encoding: chunked\r\n"), "@SIZE\r\n@CALL\r\n0\n\n@NEXT"),
    Attack("a Content-Length in the trailers", head!("Transfer-Encoding: chunked\r\n"), "@SIZE\r\n@CALL\r\n0\r\nContent-Length: 5\r\n\r\n@NEXT"),
    Attack("a credential in the trailers", head!("Transfer-Encoding: chunked\r\n"), "@SIZE\r\n@CALL\r\n0\r\nAuthorization: Bearer x\r\n\r\n@NEXT"),
    // Lines and fields.
    Attack("a folded field", head!("X: a\r\n b\r\nContent-Length: @LEN\r\n"), NEXT),
    Attack("a first line that is folded", "@POST HTTP/1.1\r\n X: y\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("a NUL in a value", head!("X: a\0b\r\nContent-Length: @LEN\r\n"), NEXT),
    Attack("a bare return in a value", head!("X: a\rb\r\nContent-Length: @LEN\r\n"), NEXT),
    Attack("an escape in a value", head!("X: a\x1bb\r\nContent-Length: @LEN\r\n"), NEXT),
    Attack("a name with a space", head!("X Y: a\r\nContent-Length: @LEN\r\n"), NEXT),
    Attack("a name with a NUL", head!("X\0: a\r\nContent-Length: @LEN\r\n"), NEXT),
    Attack("a name in parentheses", head!("X(Y): a\r\nContent-Length: @LEN\r\n"), NEXT),
    Attack("a name beyond ASCII", head!("X-Ü: a\r\nContent-Length: @LEN\r\n"), NEXT),
    Attack("a field without a colon", head!("X\r\nContent-Length: @LEN\r\n"), NEXT),
    Attack("a field without a name", head!(": x\r\nContent-Length: @LEN\r\n"), NEXT),
    Attack("bare line feeds throughout", "@POST HTTP/1.1\n@HOST\n@AUTH\nContent-Length: @LEN\n\n", NEXT),
    Attack("a request line of another version", "@POST HTTP/1.2\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("HTTP/0.9", "@POST\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("a second version in the line", "@POST HTTP/1.1 HTTP/1.1\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("a tab in the request line", "@POST\tHTTP/1.1\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("two empty lines in front", "\r\n\r\n@POST HTTP/1.1\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    // Hosts.
    Attack("no Host", "@POST HTTP/1.1\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("an empty Host", "@POST HTTP/1.1\r\nHost:\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("an absolute target without Host", "POST http://@NAME@PATH HTTP/1.1\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("two Hosts", head!("@HOST\r\nContent-Length: @LEN\r\n"), NEXT),
    Attack("another Host behind ours", head!("Host: evil.example\r\nContent-Length: @LEN\r\n"), NEXT),
    Attack("a list of Hosts", "@POST HTTP/1.1\r\n@HOST, evil.example\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("userinfo in Host", "@POST HTTP/1.1\r\nHost: a@127.0.0.1\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("a path in Host", "@POST HTTP/1.1\r\nHost: 127.0.0.1/x\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("a target of another host", "POST http://evil.example@PATH HTTP/1.1\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("a target with userinfo", "POST http://a@127.0.0.1@PATH HTTP/1.1\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("a target without a host", "POST http://@PATH HTTP/1.1\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    // What is said of this hop.
    Attack("an expectation that nobody knows", head!("Expect: 200-ok\r\nContent-Length: @LEN\r\n"), NEXT),
    Attack("two expectations", head!("Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: @LEN\r\n"), NEXT),
    Attack("a tunnel", "CONNECT 127.0.0.1:1 HTTP/1.1\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("a broken preface of HTTP/2", "PRI * HTTP/2.0\r\n", "SX\r\n\r\n@NEXT"),
    // Paths.
    Attack("a dotted path", "POST /workspaces/x/../target/a2a HTTP/1.1\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("an encoded slash", "POST /workspaces/target%2fa2a HTTP/1.1\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("a backslash", "POST /workspaces\\target/a2a HTTP/1.1\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
    Attack("a fragment", "@POST#x HTTP/1.1\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", NEXT),
];

struct Case {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
}

impl Case {
    async fn new() -> Self {
        let gateway = builder().start().await;
        let (caller, target) = gateway.pair(agent().await).await;
        let case = Self {
            gateway,
            caller,
            target,
        };
        case.next("nothing").await;
        case
    }

    async fn next(&self, what: &str) {
        next_exchange(&self.gateway, &self.caller, &self.target, what).await;
    }

    fn filled(&self, text: &str) -> String {
        let host = self.gateway.public.to_string();
        let second = Request::post(self.target.path(), SMUGGLED).bearer(&self.caller.token);
        let second = String::from_utf8(second.wire(&host)).unwrap();
        text.replace("@NEXT", &second)
            .replace("@POST", &format!("POST {}", self.target.path()))
            .replace("@PATH", &self.target.path())
            .replace("@HOST", &format!("Host: {host}"))
            .replace("@NAME", &host)
            .replace(
                "@AUTH",
                &format!(
                    "Authorization: Bearer {}\r\nContent-Type: application/json",
                    self.caller.token
                ),
            )
            .replace("@LEN", &CALL.len().to_string())
            .replace("@SIZE", &format!("{:x}", CALL.len()))
            .replace("@CALL", CALL)
    }
}

#[tokio::test]
async fn no_attack_reaches_an_agent_or_the_next_exchange() {
    assert!(ATTACKS.len() >= 60, "{}", ATTACKS.len());
    let case = Case::new().await;
    for Attack(name, head, body) in ATTACKS {
        let wire = case.filled(&format!("{head}\r\n{body}"));
        let mut connection = Connection::open(case.gateway.public).await;
        let _ = timeout(PROMPT, connection.try_send(wire.as_bytes())).await;
        let answers = answers(&mut connection, name).await;
        let [answer] = &answers[..] else {
            panic!("{name}: {answers:?}");
        };
        assert!(
            (400..500).contains(&answer.status),
            "{name}: {} {}",
            answer.status,
            answer.text()
        );
        assert_eq!(answer.field("content-type"), Some("application/json"));
        let id = answer.field("x-request-id").expect("an id");
        answer.says(id);
        assert!(!answer.reason().is_empty(), "{name}");
        assert_eq!(case.target.agent.count(), 0, "{name} reached the agent");
        case.next(name).await;
    }
    assert_eq!(case.target.agent.connections(), 1, "one pooled connection");
}

/// The same attacks behind an honest request on one connection, and cut in two at an awkward place.
#[tokio::test]
async fn neither_do_they_behind_an_honest_request() {
    let case = Case::new().await;
    let host = case.gateway.public.to_string();
    let first = honest(&case.caller, &case.target).wire(&host);
    for Attack(name, head, body) in ATTACKS {
        let wire = case.filled(&format!("{head}\r\n{body}"));
        let mut connection = Connection::open(case.gateway.public).await;
        let mut both = first.clone();
        let cut = wire.len() / 3;
        both.extend_from_slice(&wire.as_bytes()[..cut]);
        let _ = timeout(PROMPT, connection.try_send(&both)).await;
        let answer = timeout(PROMPT, connection.answer()).await.expect(name);
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        arrived_alone(&case.target, name);
        let _ = timeout(PROMPT, connection.try_send(&wire.as_bytes()[cut..])).await;
        let answers = answers(&mut connection, name).await;
        assert!(answers.len() <= 1, "{name}: {answers:?}");
        assert!(answers.iter().all(|a| (400..500).contains(&a.status)));
        assert_eq!(case.target.agent.count(), 0, "{name} reached the agent");
    }
    case.next("all of them").await;
    assert_eq!(case.target.agent.connections(), 1, "one pooled connection");
}

/// What looks alike and is right is served, and the connection goes on behind it.
#[tokio::test]
async fn what_is_only_unusual_is_served_and_the_connection_stays() {
    let case = Case::new().await;
    #[rustfmt::skip]
    let rows = [
        ("one chunk", head!("Transfer-Encoding: chunked\r\n"), "@SIZE\r\n@CALL\r\n0\r\n\r\n"),
        ("an extension", head!("Transfer-Encoding: Chunked\r\n"), "@SIZE;a=\"b\"\r\n@CALL\r\n0;c\r\n\r\n"),
        ("zeros before a size", head!("transfer-encoding:chunked\r\n"), "000@SIZE\r\n@CALL\r\n000\r\n\r\n"),
        ("one empty line in front", "\r\n@POST HTTP/1.1\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", "@CALL"),
        ("no space behind a colon", head!("Content-Length:@LEN\r\n"), "@CALL"),
        ("space around a value", head!("Content-Length:\t @LEN \t\r\nX: \r\n"), "@CALL"),
        ("a value beyond ASCII", head!("X: äö\r\nContent-Length: @LEN\r\n"), "@CALL"),
        ("an absolute target", "POST http://@NAME@PATH HTTP/1.1\r\n@HOST\r\n@AUTH\r\nContent-Length: @LEN\r\n", "@CALL"),
        ("an upgrade to h2c", head!("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nContent-Length: @LEN\r\n"), "@CALL"),
        ("an upgrade to WebSocket", head!("Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: @LEN\r\n"), "@CALL"),
        ("Connection names what frames the body", head!("Connection: keep-alive, content-length\r\nContent-Length: @LEN\r\n"), "@CALL"),
        ("Connection names the coding", head!("Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n"), "@SIZE\r\n@CALL\r\n0\r\n\r\n"),
        ("Connection names who asks for whom", head!("Connection: keep-alive, authorization, host\r\nContent-Length: @LEN\r\n"), "@CALL"),
    ];
    for (name, head, body) in rows {
        let wire = case.filled(&format!("{head}\r\n{body}"));
        for pieces in [1, 3, 40] {
            let mut connection = Connection::open(case.gateway.public).await;
            for piece in wire.as_bytes().chunks(wire.len() / pieces + 1) {
                connection.send(piece).await;
                tokio::task::yield_now().await;
            }
            let answer = timeout(PROMPT, connection.answer()).await.expect(name);
            assert_eq!(answer.status, 200, "{name}: {}", answer.text());
            arrived_alone(&case.target, name);
            // The same connection again: nothing of the first request was left in it.
            let answer = connection.call(&honest(&case.caller, &case.target)).await;
            assert_eq!(answer.status, 200, "after {name}: {}", answer.text());
            arrived_alone(&case.target, name);
        }
    }
    assert_eq!(case.target.agent.connections(), 1, "one pooled connection");
}

/// Two credentials prove nothing, in either order, and the connection stays.
#[tokio::test]
async fn two_credentials_prove_nothing() {
    let case = Case::new().await;
    let mut connection = Connection::open(case.gateway.public).await;
    let twice = honest(&case.caller, &case.target);
    for extra in ["Bearer x", &format!("Bearer {}", case.caller.token)] {
        for fields_first in [true, false] {
            let mut request = twice.clone().field("Authorization", extra);
            if fields_first {
                request.fields.reverse();
            }
            connection.call(&request).await.has(401);
            assert_eq!(case.target.agent.count(), 0);
            connection.call(&twice).await.has(200);
            arrived_alone(&case.target, extra);
        }
    }
}
