//! HTTP/2, frame by frame: pseudo-header fields, fields that belong to HTTP/1, lengths that are not
//! kept, line ends in values, and floods.

use std::sync::Arc;

use super::frames::*;
use super::*;
use crate::harness::tls::{Certificate, Secure};

/// One attack: its name, and the fields of its head. `*AUTH`, `*HOST`, `*PATH` and `*LEN` stand for
/// the honest values.
struct Attack(&'static str, &'static [(&'static str, &'static str)]);

const POST: (&str, &str) = (":method", "POST");
const SCHEME: (&str, &str) = (":scheme", "https");
const PATH: (&str, &str) = (":path", "*PATH");
const AUTHORITY: (&str, &str) = (":authority", "*HOST");
const TOKEN: (&str, &str) = ("authorization", "*AUTH");
const TYPE: (&str, &str) = ("content-type", "application/json");

/// An honest head and one more field.
macro_rules! with {
    ($name:literal, $value:literal) => {
        &[POST, SCHEME, PATH, AUTHORITY, TOKEN, TYPE, ($name, $value)]
    };
}

/// An honest head with another `:path`.
macro_rules! path {
    ($path:literal) => {
        &[POST, SCHEME, (":path", $path), AUTHORITY, TOKEN, TYPE]
    };
}

#[rustfmt::skip]
const ATTACKS: &[Attack] = &[
    Attack("a pseudo-header behind a field", &[POST, SCHEME, PATH, TOKEN, AUTHORITY, TYPE]),
    Attack("two paths", &[POST, SCHEME, PATH, (":path", "/"), AUTHORITY, TOKEN, TYPE]),
    Attack("two methods", &[POST, POST, SCHEME, PATH, AUTHORITY, TOKEN, TYPE]),
    Attack("two authorities", &[POST, SCHEME, PATH, AUTHORITY, (":authority", "evil.example"), TOKEN, TYPE]),
    Attack("no method", &[SCHEME, PATH, AUTHORITY, TOKEN, TYPE]),
    Attack("no path", &[POST, SCHEME, AUTHORITY, TOKEN, TYPE]),
    Attack("no scheme", &[POST, PATH, AUTHORITY, TOKEN, TYPE]),
    Attack("an unknown pseudo-header", &[POST, SCHEME, PATH, AUTHORITY, (":x", "y"), TOKEN, TYPE]),
    Attack("a status in a request", &[POST, SCHEME, PATH, AUTHORITY, (":status", "200"), TOKEN, TYPE]),
    Attack("a tunnel", &[(":method", "CONNECT"), AUTHORITY, TOKEN]),
    Attack("an extended tunnel", &[(":method", "CONNECT"), (":protocol", "websocket"), SCHEME, PATH, AUTHORITY, TOKEN]),
    Attack("a request line in the method", &[(":method", "POST / HTTP/1.1\r\nX:"), SCHEME, PATH, AUTHORITY, TOKEN, TYPE]),
    Attack("another scheme", &[POST, (":scheme", "http://x/?"), PATH, AUTHORITY, TOKEN, TYPE]),
    Attack("no authority, and a Host of somebody else", &[POST, SCHEME, PATH, ("host", "evil.example"), TOKEN, TYPE]),
    Attack("neither authority nor Host", &[POST, SCHEME, PATH, TOKEN, TYPE]),
    Attack("authority and Host differ", with!("host", "evil.example")),
    Attack("authority with userinfo", &[POST, SCHEME, PATH, (":authority", "a@127.0.0.1"), TOKEN, TYPE]),
    Attack("an empty authority", &[POST, SCHEME, PATH, (":authority", ""), TOKEN, TYPE]),
    Attack("authority with a path", &[POST, SCHEME, PATH, (":authority", "127.0.0.1/x"), TOKEN, TYPE]),
    Attack("two Hosts", &[POST, SCHEME, PATH, ("host", "*HOST"), ("host", "*HOST"), TOKEN, TYPE]),
    Attack("a name in upper case", with!("X-Upper", "1")),
    Attack("Connection", with!("connection", "close")),
    Attack("Transfer-Encoding", with!("transfer-encoding", "chunked")),
    Attack("Keep-Alive", with!("keep-alive", "timeout=5")),
    Attack("Proxy-Connection", with!("proxy-connection", "keep-alive")),
    Attack("Upgrade", with!("upgrade", "h2c")),
    Attack("TE that is not trailers", with!("te", "gzip")),
    Attack("a length that is too long", with!("content-length", "100000")),
    Attack("a length that is too short", with!("content-length", "5")),
    Attack("a length of nothing", with!("content-length", "0")),
    Attack("a list of lengths", with!("content-length", "5, 6")),
    Attack("a length with a sign", with!("content-length", "+5")),
    Attack("two lengths", &[POST, SCHEME, PATH, AUTHORITY, TOKEN, TYPE, ("content-length", "*LEN"), ("content-length", "5")]),
    Attack("a line end in a value", with!("x", "a\r\nhost: evil.example")),
    Attack("a line feed in a value", with!("x", "a\nb")),
    Attack("a return in a value", with!("x", "a\rb")),
    Attack("a NUL in a value", with!("x", "a\0b")),
    Attack("a line end in a name", with!("x\r\ny", "a")),
    Attack("a colon in a name", with!("x:y", "a")),
    Attack("a space in a name", with!("x y", "a")),
    Attack("an empty name", with!("", "a")),
    Attack("a path without a slash", path!("workspaces/target/a2a")),
    Attack("an empty path", path!("")),
    Attack("an absolute path", path!("http://127.0.0.1/workspaces/target/a2a")),
    Attack("a path with an authority", path!("//evil.example/workspaces/target/a2a")),
    Attack("a line end in the path", path!("/workspaces/target/a2a HTTP/1.1\r\nX: y")),
    Attack("a space in the path", path!("/workspaces/target/a2a x")),
    Attack("a dotted path", path!("/workspaces/x/../target/a2a")),
    Attack("an encoded slash in the path", path!("/workspaces/target%2fa2a")),
    Attack("a NUL in the path", path!("/workspaces/target\0/a2a")),
    Attack("an expectation that nobody knows", with!("expect", "200-ok")),
];

struct Case {
    secure: Secure,
    caller: Seat,
    target: Seat,
}

impl Case {
    async fn new() -> Self {
        Self::with(builder()).await
    }

    async fn with(builder: Builder) -> Self {
        let secure = Secure::start(builder).await;
        let (caller, target) = secure.gateway.pair(agent().await).await;
        let case = Self {
            secure,
            caller,
            target,
        };
        case.next("nothing").await;
        case
    }

    async fn next(&self, what: &str) {
        next_exchange(&self.secure.gateway, &self.caller, &self.target, what).await;
    }

    async fn wire(&self) -> Wire {
        Wire::open(&self.secure.certificate, self.secure.address).await
    }

    /// HEADERS with the fields, `*…` filled in.
    fn head(&self, stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
        let host = self.secure.address.to_string();
        let path = self.target.path();
        let token = format!("Bearer {}", self.caller.token);
        let length = CALL.len().to_string();
        let filled: Vec<(&str, &str)> = fields
            .iter()
            .map(|(name, value)| {
                let value = match *value {
                    "*HOST" => &*host,
                    "*PATH" => &*path,
                    "*AUTH" => &*token,
                    "*LEN" => &*length,
                    value => value,
                };
                (*name, value)
            })
            .collect();
        frame(HEADERS, flags | END_HEADERS, stream, &block(&filled))
    }

    fn honest(&self, stream: u32) -> Vec<u8> {
        let mut bytes = self.head(stream, 0, &[POST, SCHEME, PATH, AUTHORITY, TOKEN, TYPE]);
        bytes.extend(frame(DATA, END_STREAM, stream, CALL.as_bytes()));
        bytes
    }
}

#[tokio::test]
async fn no_attack_reaches_an_agent_or_the_next_exchange() {
    assert!(ATTACKS.len() >= 15, "{}", ATTACKS.len());
    let case = Case::new().await;
    for Attack(name, fields) in ATTACKS {
        let mut wire = case.wire().await;
        let mut bytes = case.head(1, 0, fields);
        bytes.extend(frame(DATA, END_STREAM, 1, CALL.as_bytes()));
        wire.send(&bytes).await;
        let fate = wire.fate(1, PROMPT).await;
        assert_ne!(fate, Fate::Answered200, "{name}");
        assert_eq!(case.target.agent.count(), 0, "{name} reached the agent");
        if fate != Fate::ConnectionOver {
            // The same connection serves its next stream.
            let honest = case.honest(3);
            wire.send(&honest).await;
            assert_eq!(
                wire.fate(3, PROMPT).await,
                Fate::Answered200,
                "after {name}"
            );
            arrived_alone(&case.target, name);
        }
        case.next(name).await;
    }
    assert_eq!(case.target.agent.connections(), 1, "one pooled connection");
}

#[tokio::test]
async fn frames_out_of_place_end_the_connection_and_nothing_else() {
    let case = Case::new().await;
    let head = case.head(1, 0, &[POST, SCHEME, PATH, AUTHORITY, TOKEN, TYPE]);
    let data = |stream, flags, body: &str| frame(DATA, flags, stream, body.as_bytes());
    let joined = |parts: &[Vec<u8>]| parts.concat();
    let rows = [
        ("data on no stream", data(0, END_STREAM, CALL)),
        ("data before its head", data(1, END_STREAM, CALL)),
        (
            "a stream of the server's",
            case.head(2, END_STREAM, &[POST, SCHEME, PATH, AUTHORITY]),
        ),
        (
            "a window of nothing",
            joined(&[head.clone(), frame(WINDOW_UPDATE, 0, 1, &[0; 4])]),
        ),
        (
            "a window that overflows",
            joined(&[
                head.clone(),
                frame(WINDOW_UPDATE, 0, 1, &0x7fff_ffff_u32.to_be_bytes()),
            ]),
        ),
        (
            "a window that overflows the connection",
            frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes()),
        ),
        ("settings on a stream", frame(SETTINGS, 0, 1, &[])),
        ("settings of half a size", frame(SETTINGS, 0, 0, &[0; 5])),
        (
            "a window setting that overflows",
            frame(SETTINGS, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff]),
        ),
        (
            "a continuation of nothing",
            frame(CONTINUATION, END_HEADERS, 1, &[]),
        ),
        (
            "another frame within a head",
            joined(&[
                frame(HEADERS, 0, 1, &block(&[POST, SCHEME])),
                frame(PING, 0, 0, &[0; 8]),
            ]),
        ),
        (
            "a table index that is not there",
            frame(HEADERS, END_HEADERS, 1, &[0xff, 0xff, 0x7f]),
        ),
        ("a frame that is too long", frame(DATA, 0, 1, &[0; 20_000])),
        ("a reset of nothing", frame(RST_STREAM, 0, 1, &[0; 4])),
        (
            "a head in the middle of a body",
            joined(&[
                head.clone(),
                data(1, 0, CALL),
                frame(HEADERS, END_HEADERS, 1, &block(&[("x", "y")])),
            ]),
        ),
        (
            "data behind the end",
            joined(&[
                head.clone(),
                data(1, END_STREAM, "nonsense"),
                data(1, END_STREAM, CALL),
            ]),
        ),
    ];
    for (name, bytes) in rows {
        let mut wire = case.wire().await;
        wire.send(&bytes).await;
        let fate = wire.fate(1, PROMPT).await;
        assert_ne!(fate, Fate::Answered200, "{name}");
        assert_eq!(case.target.agent.count(), 0, "{name} reached the agent");
        case.next(name).await;
    }
    assert_eq!(case.target.agent.connections(), 1, "one pooled connection");
    case.secure.gateway.assert_idle().await;
}

/// Each flood is cut or outlasted, and honest callers are served beside it and after it.
#[tokio::test]
async fn floods_are_cut() {
    let case = Case::new().await;
    let honest = [POST, SCHEME, PATH, AUTHORITY, TOKEN, TYPE];
    let resets: Vec<u8> = (0..3000_u32)
        .flat_map(|n| {
            let stream = 2 * n + 1;
            let mut bytes = case.head(stream, 0, &honest);
            bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
            bytes
        })
        .collect();
    // Resets that the gateway is made to send: each stream is broken after its head.
    let forced: Vec<u8> = (0..3000_u32)
        .flat_map(|n| {
            let stream = 2 * n + 1;
            let mut bytes = case.head(stream, 0, &honest);
            bytes.extend(frame(WINDOW_UPDATE, 0, stream, &[0; 4]));
            bytes
        })
        .collect();
    let mut endless = frame(HEADERS, 0, 1, &block(&[POST, SCHEME]));
    let more = block(&[("x", &"y".repeat(1000))]);
    for _ in 0..2000 {
        endless.extend(frame(CONTINUATION, 0, 1, &more));
    }
    let mut empty = frame(HEADERS, 0, 1, &block(&[POST, SCHEME]));
    for _ in 0..50_000 {
        empty.extend(frame(CONTINUATION, 0, 1, &[]));
    }
    let mut nothing = case.head(1, 0, &honest);
    for _ in 0..200_000 {
        nothing.extend(frame(DATA, 0, 1, &[]));
    }
    let rows = [
        ("rapid resets", resets),
        ("forced resets", forced),
        ("a head without end", endless),
        ("a head of empty frames", empty),
        ("a body of empty frames", nothing),
    ];
    for (name, bytes) in rows {
        let mut wire = case.wire().await;
        let flood = async {
            wire.send(&bytes).await;
            wire.closed_within(PROMPT).await
        };
        let beside = case.next(name);
        let (cut, ()) = tokio::join!(flood, beside);
        assert!(cut, "{name}: not cut");
        case.next(name).await;
    }
    // What costs both sides the same is answered, one by one.
    let mut pings = Vec::new();
    for _ in 0..20_000 {
        pings.extend(frame(PING, 0, 0, &[7; 8]));
        pings.extend(frame(SETTINGS, 0, 0, &[]));
    }
    let mut wire = case.wire().await;
    let _ = timeout(Duration::from_secs(3), wire.send(&pings)).await;
    case.next("pings").await;
    case.secure.gateway.assert_idle().await;
}

/// Sends a head and a PING, and waits for its answer, which goes out in the turn in which the stream is
/// accepted. `false`: the connection was closed.
async fn seen(wire: &mut Wire, mut bytes: Vec<u8>) -> bool {
    bytes.extend(frame(PING, 0, 0, &[0; 8]));
    wire.send(&bytes).await;
    let answered = async {
        while let Some((kind, flags, ..)) = wire.next().await {
            if (kind, flags) == (PING, 1) {
                return true;
            }
        }
        false
    };
    timeout(PROMPT, answered).await.expect("no hang")
}

/// Streams that are seen, served, and given up at once, again and again.
#[tokio::test]
async fn streams_given_up_one_by_one_are_cut_too() {
    let case = Case::new().await;
    let mut wire = case.wire().await;
    let mut cut = false;
    for n in 0..2000_u32 {
        let stream = 2 * n + 1;
        let head = case.head(stream, 0, &[POST, SCHEME, PATH, AUTHORITY, TOKEN, TYPE]);
        if !seen(&mut wire, head).await {
            cut = true;
            break;
        }
        let reset = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        wire.send(&reset).await;
        if n % 100 == 99 && wire.closed_within(Duration::from_millis(100)).await {
            cut = true;
            break;
        }
    }
    assert!(cut, "2,000 streams were given up on one connection");
    assert_eq!(case.target.agent.count(), 0);
    let why = [r#"why="resets""#];
    let counted = case
        .secure
        .gateway
        .metric("a2a_gateway_connections_cut_total", &why);
    assert!(counted.await >= 1.0);
    case.next("all of that").await;
    case.secure.gateway.assert_idle().await;
}

/// Waits on HTTP/2 have clocks: before the preface, before a stream, in a head, between streams.
#[tokio::test]
async fn a_connection_on_which_nothing_happens_is_closed() {
    let builder = builder()
        // Long enough for each handshake.
        .set("timeouts.request_head", "12s")
        .set("server.keepalive", "2s");
    let secure = Secure::start(builder).await;
    let certificate = Arc::clone(&secure.certificate);
    let no_preface = async {
        let mut tls = certificate.connect(secure.address, &["h2"]).await.unwrap();
        let _ = tokio::io::AsyncWriteExt::write_all(&mut tls, b"PRI * HT").await;
        let mut rest = Vec::new();
        let read = tokio::io::AsyncReadExt::read_to_end(&mut tls, &mut rest);
        timeout(PROMPT, read).await.is_ok()
    };
    let open = |certificate: Arc<Certificate>, bytes: Vec<u8>| async move {
        let mut wire = Wire::open(&certificate, secure.address).await;
        wire.send(&bytes).await;
        wire.closed_within(PROMPT).await
    };
    let half_a_head = frame(HEADERS, 0, 1, &block(&[POST, SCHEME]));
    let fields = [
        (":method", "GET"),
        SCHEME,
        (":path", "/x"),
        (":authority", "a"),
    ];
    let served = frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&fields));
    let closed = tokio::join!(
        no_preface,
        open(Arc::clone(&certificate), Vec::new()),
        open(Arc::clone(&certificate), half_a_head),
        open(Arc::clone(&certificate), served),
    );
    assert_eq!(closed, (true, true, true, true));
}

/// A window that never opens holds an answer only until the clock of the exchange.
#[tokio::test]
async fn an_answer_that_may_not_be_sent_is_given_up() {
    let builder = builder()
        // Long enough for the head of the answer.
        .set("timeouts.total", "15s")
        .set("server.keepalive", "2s");
    let secure = Secure::start(builder).await;
    let (caller, target) = secure.gateway.pair(agent().await).await;
    let case = Case {
        secure,
        caller,
        target,
    };
    // SETTINGS_INITIAL_WINDOW_SIZE: nothing.
    let settings = [0, 4, 0, 0, 0, 0];
    let mut wire = Wire::open_with(&case.secure.certificate, case.secure.address, &settings).await;
    let honest = case.honest(1);
    wire.send(&honest).await;
    assert_eq!(wire.fate(1, PROMPT).await, Fate::Answered200);
    assert_eq!(case.target.agent.take().text(), CALL);
    let reset = async {
        while let Some((kind, _, stream, _)) = wire.next().await {
            assert!(kind != DATA, "there was no room for it");
            if (kind, stream) == (RST_STREAM, 1) {
                return true;
            }
        }
        false
    };
    assert!(timeout(PROMPT, reset).await.expect("given up"), "no reset");
    assert!(wire.closed_within(PROMPT).await, "idle");
    case.secure.gateway.assert_idle().await;
}
