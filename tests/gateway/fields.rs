//! Which header fields pass to an agent: compared with the exact set, so that nothing slips through.

use crate::harness::{
    Agent, Builder, CALL, Gateway, Pair, Recorded, Request, Seat, Step, until_holds,
};
use std::collections::BTreeSet;

/// A gateway with a caller and a target.
pub(crate) struct Case {
    pub(crate) gateway: Gateway,
    pub(crate) caller: Seat,
    pub(crate) target: Seat,
}

impl Case {
    pub(crate) async fn with(builder: Builder, agent: Agent) -> Self {
        let gateway = builder.start().await;
        let (caller, target) = gateway.pair(agent).await;
        Self {
            gateway,
            caller,
            target,
        }
    }

    pub(crate) async fn new() -> Self {
        Self::with(Builder::new(Pair::Embedded), Agent::json("{}").await).await
    }

    /// An agent that answers with these bytes.
    pub(crate) async fn answering(answer: impl AsRef<[u8]>) -> Self {
        let answer = answer.as_ref().to_vec();
        let agent = Agent::scripted(move |_| vec![Step::Write(answer.clone())]).await;
        Self::with(Builder::new(Pair::Embedded), agent).await
    }

    pub(crate) fn request(&self) -> Request {
        Request::post(self.target.path(), CALL).bearer(&self.caller.token)
    }

    async fn arrives(&self, request: &Request) -> Recorded {
        self.gateway.call(request).await.has(200);
        self.target.agent.take()
    }

    /// The same; these fields arrive and no other, none twice.
    async fn arrives_with(&self, request: &Request, more: &[&str]) -> Recorded {
        let arrived = self.arrives(request).await;
        let expected: BTreeSet<_> = names(&SET).into_iter().chain(names(more)).collect();
        let names = arrived.names();
        assert_eq!(names.len(), expected.len(), "none twice: {names:?}");
        assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), expected);
        arrived
    }
}

pub(crate) fn names(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|name| (*name).to_owned()).collect()
}

/// What the gateway says of itself in every request to an agent.
const SET: [&str; 10] = [
    "authorization",
    "content-length",
    "host",
    "via",
    "x-a2a-hops",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-request-id",
    "x-workspace-id",
];

pub(crate) const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// What passes from the caller.
const PASSED: [(&str, &str); 11] = [
    ("content-type", "application/a2a+json"),
    ("accept", "application/json, text/event-stream;q=0.1"),
    ("accept-language", "de, en;q=0.5"),
    ("user-agent", "case/1.0"),
    ("a2a-version", "0.3"),
    ("a2a-extensions", "https://a.example/ext"),
    ("x-a2a-extensions", "https://b.example/ext"),
    ("traceparent", TRACEPARENT),
    ("tracestate", "a=1,b=2"),
    ("baggage", "k=v"),
    ("last-event-id", "e-7"),
];

#[tokio::test]
async fn a_bare_request_gets_what_the_gateway_sets_and_no_more() {
    let case = Case::new().await;
    let request = case.request().without("content-type");
    let arrived = case.arrives_with(&request, &["content-type"]).await;
    assert!(arrived.head.starts_with("POST / HTTP/1.1\r\n"));
    for (name, value) in [
        ("host", format!("127.0.0.1:{}", case.target.agent.port)),
        ("content-type", "application/json".into()),
        ("content-length", CALL.len().to_string()),
        ("x-workspace-id", "caller".into()),
        ("x-forwarded-for", "127.0.0.1".into()),
        ("x-forwarded-proto", "http".into()),
        ("x-forwarded-host", case.gateway.public.to_string()),
        ("via", "1.1 a2a-gateway".into()),
        ("x-a2a-hops", "1".into()),
    ] {
        assert_eq!(arrived.field(name), Some(&*value), "{name}");
    }
    let id = arrived.field("x-request-id").expect("an id");
    assert!(uuid::Uuid::parse_str(id).is_ok(), "{id}");
}

#[tokio::test]
async fn listed_fields_pass_as_they_came() {
    let case = Case::new().await;
    let mut request = case.request().without("content-type");
    for (name, value) in PASSED {
        request = request.field(name, value);
    }
    let passed = PASSED.map(|(name, _)| name);
    let arrived = case.arrives_with(&request, &passed).await;
    for (name, value) in PASSED {
        assert_eq!(arrived.fields(name), [value], "{name}");
    }
    // Repeated ones stay repeated, in their order.
    let mut request = case.request();
    let (extensions, media) = (
        ["https://a.example/1", "https://a.example/2"],
        ["text/html", "application/json"],
    );
    for extension in extensions {
        request = request.field("A2A-Extensions", extension);
    }
    for media in media {
        request = request.field("Accept", media);
    }
    let arrived = case.arrives(&request).await;
    assert_eq!(arrived.fields("a2a-extensions"), extensions);
    assert_eq!(arrived.fields("accept"), media);
    assert_eq!(arrived.field("a2a-version"), None, "never added");
    // Nor judged: an agent knows its versions.
    for version in ["0.3", "1.0", "9.9", "nonsense"] {
        let request = case.request().field("A2A-Version", version);
        let arrived = case.arrives(&request).await;
        assert_eq!(arrived.field("a2a-version"), Some(version));
    }
}

#[tokio::test]
async fn the_name_of_a_stream_never_reaches_an_agent() {
    let builder = Builder::new(Pair::Embedded).set("forward.headers", "Last-Event-ID");
    for builder in [Builder::new(Pair::Embedded), builder] {
        let case = Case::with(builder, Agent::json("{}").await).await;
        let ours = "01a20410667173f9b0570ddf9405f3b5-17";
        for other in [None, Some("e-7"), Some(&ours[..32])] {
            let mut request = case.request().field("Last-Event-ID", ours);
            if let Some(id) = other {
                request = request.field("Last-Event-ID", id);
            }
            let arrived = case.arrives(&request).await;
            let passed: Vec<_> = other.into_iter().collect();
            assert_eq!(arrived.fields("last-event-id"), passed);
        }
    }
}

#[tokio::test]
async fn nothing_else_passes() {
    let case = Case::new().await;
    let mut request = case.request();
    for (name, value) in [
        ("Cookie", "session=1"),
        ("Proxy-Authorization", "Basic eDp5"),
        ("X-Forwarded-For", "6.6.6.6"),
        ("X-Forwarded-Proto", "gopher"),
        ("X-Forwarded-Host", "evil.example"),
        ("X-Forwarded-Port", "1"),
        ("X-Real-IP", "6.6.6.6"),
        ("Forwarded", "for=6.6.6.6"),
        ("Via", "1.0 elsewhere"),
        ("Accept-Encoding", "gzip, br"),
        ("Expect", "100-continue"),
        ("TE", "trailers"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", "AAMAAABkAAQAAP__"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Connection", "keep-alive"),
        ("Origin", &format!("http://{}", case.gateway.public)),
        ("Referer", "https://canvas.example/secret"),
        ("Sec-Fetch-Site", "same-origin"),
        ("Prefer", "respond-async"),
        ("X-Timeout", "30"),
        ("X-Workspace-ID", "caller"),
        ("X-Api-Key", "k"),
        ("X-Internal", "1"),
        ("X-HTTP-Method-Override", "DELETE"),
        ("If-None-Match", "*"),
        ("Range", "bytes=0-1"),
        ("DNT", "1"),
    ] {
        request = request.field(name, value);
    }
    let arrived = case.arrives_with(&request, &["content-type"]).await;
    assert_eq!(arrived.field("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(arrived.field("x-forwarded-proto"), Some("http"));
    let own = case.gateway.public.to_string();
    assert_eq!(arrived.field("x-forwarded-host"), Some(&*own));
    assert_eq!(arrived.field("via"), Some("1.1 a2a-gateway"));
    assert!(!arrived.head.contains(&case.caller.token), "no credential");
    // A forged identity is refused, not corrected.
    let forged = case.request().field("X-Workspace-ID", "target");
    assert_eq!(case.gateway.call(&forged).await.reason(), "caller_mismatch");
    let twice = case.request().field("X-Workspace-ID", "caller");
    let twice = twice.field("X-Workspace-ID", "target");
    let answer = case.gateway.call(&twice).await;
    assert!(matches!(answer.status, 400 | 403), "{}", answer.text());
    assert_eq!(case.target.agent.count(), 0);
}

#[tokio::test]
async fn what_connection_names_ends_here() {
    let case = Case::new().await;
    let mut request = case.request();
    for (name, value) in [
        ("Connection", "keep-alive, User-Agent, traceparent"),
        ("Connection", "content-type"),
        ("User-Agent", "case/1.0"),
        ("Traceparent", TRACEPARENT),
        ("Accept", "application/json"),
    ] {
        request = request.field(name, value);
    }
    // A body always has a type.
    let more = ["accept", "content-type"];
    let arrived = case.arrives_with(&request, &more).await;
    assert_eq!(arrived.field("content-type"), Some("application/json"));
    // What is the gateway's own cannot be nominated away.
    let request = case.request().field(
        "Connection",
        "close, x-workspace-id, x-request-id, x-forwarded-for, content-length, host, authorization",
    );
    let arrived = case.arrives(&request).await;
    for name in SET {
        assert_eq!(arrived.fields(name).len(), 1, "{name}");
    }
}

#[tokio::test]
async fn the_configuration_adds_fields() {
    let builder = Builder::new(Pair::Embedded).set("forward.headers", "X-Tenant, x-experiment");
    let case = Case::with(builder, Agent::json("{}").await).await;
    let request = case.request().field("x-tenant", "t-1");
    let request = request
        .field("X-Experiment", "a")
        .field("X-Experiment", "b");
    let request = request.field("X-Other", "c");
    let arrived = case.arrives(&request).await;
    assert_eq!(arrived.fields("x-tenant"), ["t-1"]);
    assert_eq!(arrived.fields("x-experiment"), ["a", "b"]);
    assert_eq!(arrived.field("x-other"), None);
}

#[tokio::test]
async fn a_trusted_proxy_says_who_the_client_is() {
    let builder =
        Builder::new(Pair::Embedded).set("server.trusted_proxies", "127.0.0.0/8,10.0.0.0/8");
    let case = Case::with(builder, Agent::json("{}").await).await;
    for (said, client) in [
        ("203.0.113.9", "203.0.113.9"),
        // The caller can write what it likes to the left of what the proxy added.
        ("1.2.3.4, 203.0.113.9", "203.0.113.9"),
        ("1.2.3.4, 203.0.113.9, 10.1.1.1", "203.0.113.9"),
        ("2001:db8::1", "2001:db8::1"),
        ("nonsense", "127.0.0.1"),
        ("203.0.113.9, nonsense", "127.0.0.1"),
    ] {
        let request = case.request().field("X-Forwarded-For", said);
        let arrived = case.arrives(&request).await;
        assert_eq!(arrived.fields("x-forwarded-for"), [client], "{said}");
    }
}

#[tokio::test]
async fn the_request_id_is_one_thing_everywhere() {
    let case = Case::new().await;
    // A usable one is taken over: to the agent, to the caller, into errors, into the record.
    let longest = "x".repeat(128);
    for id in ["mine-1", "a/b:c{d}\"e\\", &longest] {
        let request = case.request().field("X-Request-Id", id);
        let answer = case.gateway.call(&request).await;
        assert_eq!(answer.field("x-request-id"), Some(id));
        assert_eq!(case.target.agent.take().fields("x-request-id"), [id]);
        let refused = Request::post(case.target.path(), CALL).field("X-Request-Id", id);
        let answer = case.gateway.call(&refused).await;
        assert_eq!(answer.field("x-request-id"), Some(id));
        assert_eq!(answer.fact("requestId").as_deref(), Some(id));
        let plain = Request::get("/nowhere").field("X-Request-Id", id);
        let answer = case.gateway.call(&plain).await;
        assert_eq!(answer.field("x-request-id"), Some(id));
        assert_eq!(answer.json()["request_id"], id);
    }
    let recorded = async || case.gateway.access_lines("mine-1").await.len() == 2;
    until_holds("one record each", recorded).await;
    // An unusable one is replaced.
    let too_long = "x".repeat(129);
    for bad in ["", "a b", "ä", &too_long] {
        let request = case.request().field("X-Request-Id", bad);
        let answer = case.gateway.call(&request).await;
        let id = answer.field("x-request-id").expect("an id").to_owned();
        let parsed = uuid::Uuid::parse_str(&id).expect("a UUID");
        assert_eq!(parsed.get_version_num(), 7, "{bad:?} became {id}");
        assert_eq!(case.target.agent.take().fields("x-request-id"), [&*id]);
        let lines = case.gateway.access_lines(&id).await;
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(lines[0]["outcome"], "answered", "{lines:?}");
    }
}
