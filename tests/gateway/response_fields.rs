//! An agent speaks for itself and not for the gateway's origin, nor to a proxy in front of it. With a real nginx:
//! `outer/balancers/response_fields.rs`.

use crate::answers::words;
use crate::fields::{Case, TRACEPARENT};
use crate::harness::sidecar::{Guarded, call};
use crate::harness::{
    Agent, Answer, Builder, CALL, Connection, LAST_CHUNK, Pair, Request, SSE_HEAD, Step, chunk,
};

const REPORT_ONLY: &str = "Content-Security-Policy-Report-Only";

/// What an agent would say for the gateway, or to a proxy in front.
const HOSTILE: [(&str, &str); 26] = [
    ("Clear-Site-Data", "\"*\""),
    ("Strict-Transport-Security", "max-age=31536000"),
    ("Alt-Svc", "h2=\"evil.example:443\""),
    ("Content-Security-Policy", "script-src *"),
    (REPORT_ONLY, "report-uri https://evil.example"),
    ("Service-Worker-Allowed", "/"),
    ("Link", "<https://evil.example>; rel=preload"),
    ("Refresh", "0;url=https://evil.example"),
    ("Location", "https://evil.example"),
    ("Set-Cookie", "a=b"),
    ("NEL", "{}"),
    ("Report-To", "{}"),
    ("Reporting-Endpoints", "x=\"https://evil.example\""),
    ("X-Accel-Redirect", "/internal/secret"),
    ("X-Accel-Expires", "1000"),
    ("X-Accel-Buffering", "yes"),
    ("X-Sendfile", "/etc/passwd"),
    ("X-Reproxy-URL", "http://127.0.0.1:1/"),
    ("X-Content-Type-Options", "sniff"),
    ("X-Frame-Options", "ALLOWALL"),
    ("Access-Control-Allow-Origin", "*"),
    ("Preference-Applied", "respond-async"),
    ("RateLimit-Limit", "1"),
    ("WWW-Authenticate", "Basic"),
    ("Server", "agent"),
    ("X-Own", "x"),
];

const LISTED: [(&str, &str); 12] = [
    ("Content-Language", "de"),
    ("ETag", "\"e\""),
    ("Last-Modified", "Thu, 01 Jan 1970 00:00:00 GMT"),
    ("Cache-Control", "private"),
    ("Vary", "Accept"),
    ("Retry-After", "7"),
    ("A2A-Version", "0.3"),
    ("A2A-Extensions", "https://a.example/1"),
    ("X-A2A-Extensions", "https://a.example/2"),
    ("Traceparent", TRACEPARENT),
    ("Tracestate", "a=1"),
    ("Content-Encoding", "identity"),
];

fn lines() -> String {
    let all = HOSTILE.iter().chain(&LISTED);
    all.map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect()
}

/// Answers as the text of the message asks: as JSON, as a stream, as HTML or without a type.
pub(crate) async fn hostile() -> Agent {
    Agent::scripted(|request| {
        if request.text().contains("\"stream\"") {
            let head = SSE_HEAD.replacen("\r\n", &format!("\r\n{}", lines()), 1);
            let event = Step::Write(chunk("data: {}\n\n"));
            return vec![Step::write(head), event, Step::write(LAST_CHUNK)];
        }
        let media_type = [
            "text/html",
            "image/svg+xml",
            "application/json",
            "none",
            "text/html,/+json",
            "application/json; a=1, text/html",
            "text/event-stream, text/html",
        ]
        .into_iter()
        .find(|media_type| request.text().contains(&format!("\"{media_type}\"")));
        let media_type = match media_type {
            Some("none") => String::new(),
            Some(media_type) => format!("Content-Type: {media_type}\r\n"),
            None => "Content-Type: application/json\r\n".to_owned(),
        };
        let fields = lines();
        vec![Step::write(format!(
            "HTTP/1.1 200 OK\r\n{media_type}{fields}Content-Length: 2\r\n\r\n{{}}"
        ))]
    })
    .await
}

fn assert_clean(answer: &Answer, what: &str) {
    let own: [_; 3] = words("content-security-policy x-content-type-options x-accel-buffering");
    for (name, value) in HOSTILE {
        let lower = name.to_ascii_lowercase();
        let said = answer.field(name).filter(|_| lower != "server");
        if own.contains(&&*lower) || lower.starts_with("ratelimit") {
            assert_ne!(said, Some(value), "{what}: {name}");
        } else {
            assert_eq!(said, None, "{what}: {name}");
        }
    }
    // With what is kept of a call only those fields that say how to read it.
    let replayed = answer.field("idempotent-replay").is_some();
    let reads: [_; 4] = words("A2A-Version A2A-Extensions X-A2A-Extensions Content-Encoding");
    let listed = LISTED.iter();
    for &(name, value) in listed.filter(|(name, _)| !replayed || reads.contains(name)) {
        assert_eq!(answer.field(name), Some(value), "{what}: {name}");
    }
    let nosniff = answer.fields.iter();
    let nosniff = nosniff.filter(|(name, _)| name.eq_ignore_ascii_case("x-content-type-options"));
    let nosniff: Vec<_> = nosniff.map(|(_, value)| value.as_str()).collect();
    assert_eq!(nosniff, ["nosniff"], "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hostile_field_passes_whole_streamed_kept_or_replayed() {
    let case = Case::with(Builder::new(Pair::Embedded), hostile().await).await;
    for (kind, sandboxed) in [
        ("application/json", false),
        ("stream", false),
        ("text/html", true),
        ("image/svg+xml", true),
        ("none", true),
        ("text/html,/+json", true),
        ("application/json; a=1, text/html", true),
        ("text/event-stream, text/html", true),
    ] {
        let body = CALL.replace("\"hi\"", &format!("\"{kind}\""));
        let request = Request::post(case.target.path(), &body).bearer(&case.caller.token);
        let key = format!("k-{}", kind.replace(' ', ""));
        let keyed = request.clone().field("Idempotency-Key", key);
        for (what, request) in [("plain", &request), ("kept", &keyed), ("replayed", &keyed)] {
            let answer = case.gateway.call(request).await.has(200);
            assert_clean(&answer, &format!("{kind}, {what}"));
            let replayed = answer.field("idempotent-replay") == Some("true");
            assert_eq!(replayed, what == "replayed", "{kind}, {what}");
            let policy = answer.field("content-security-policy");
            assert_eq!(policy, sandboxed.then_some("sandbox"), "{kind}, {what}");
        }
    }
}

#[tokio::test]
async fn a_challenge_passes_with_a_401_alone() {
    let case = Case::answering(
        "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"agent\"\r\nContent-Length: 0\r\n\r\n",
    )
    .await;
    let answer = case.gateway.call(&case.request()).await;
    assert_eq!(answer.status, 401);
    answer.has_field("www-authenticate", "Bearer realm=\"agent\"");
}

#[tokio::test]
async fn the_configuration_adds_fields_of_answers() {
    let builder = Builder::new(Pair::Embedded).set("forward.response_headers", "X-Own, x-model");
    let case = Case::with(builder, hostile().await).await;
    let answer = case.gateway.call(&case.request()).await;
    assert_eq!(answer.field("x-own"), Some("x"));
    assert_eq!(answer.field("set-cookie"), None);
}

#[tokio::test]
async fn a_head_of_an_answer_is_bounded() {
    let agent = Agent::scripted(|request| {
        let text = request.text().rsplit_once("head-").unwrap().1;
        let (fields, size) = text.split_once('"').unwrap().0.split_once('-').unwrap();
        let (fields, size): (usize, usize) = (fields.parse().unwrap(), size.parse().unwrap());
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n";
        let value = "v".repeat(size / fields);
        let more: String = (2..fields).map(|n| format!("X-{n}: {value}\r\n")).collect();
        vec![Step::write(format!("{head}{more}\r\n{{}}"))]
    });
    let case = Case::with(Builder::new(Pair::Embedded), agent.await).await;
    for (shape, passes) in [
        ("100-0", true),
        ("101-0", false),
        ("250-0", false),
        ("40-60000", true),
        ("40-80000", false),
        ("90-800000", false),
    ] {
        let body = CALL.replace("\"hi\"", &format!("\"head-{shape}\""));
        let plain = Request::post(case.target.path(), &body).bearer(&case.caller.token);
        let keyed = plain.clone().field("Idempotency-Key", shape);
        for request in [plain, keyed] {
            let answer = case.gateway.call(&request).await;
            if passes {
                assert_eq!(answer.status, 200, "{shape}");
                assert_eq!(answer.text(), "{}", "{shape}");
            } else {
                answer.refuses_for(&shape, 502, "agent_protocol_error");
                answer.tells("delivered", "true");
            }
        }
    }
    case.gateway.assert_idle().await;
}

#[tokio::test]
async fn every_answer_forbids_to_guess_its_type() {
    let page = "https://canvas.example";
    let builder = Builder::new(Pair::Embedded).set("cors.origins", page);
    let builder = builder.set("canvas.enabled", "true");
    let case = Case::with(builder, Agent::json("{}").await).await;
    let nosniff = |answer: &Answer, what: &str| {
        let fields = answer.fields.iter();
        let count = fields.filter(|(name, value)| {
            name.eq_ignore_ascii_case("x-content-type-options") && value == "nosniff"
        });
        assert_eq!(count.count(), 1, "{what}: {:?}", answer.fields);
    };
    let card = format!("{}/.well-known/agent-card.json", case.target.path());
    for request in [
        case.request(),
        Request::post(case.target.path(), CALL),
        Request::get(&card).bearer(&case.caller.token),
        Request::get("/nowhere"),
        Request::get("/workspaces/caller").bearer(&case.caller.token),
        Request::get("/.well-known/jwks.json"),
        Request::get("/canvas/"),
        Request::new("OPTIONS", case.target.path())
            .field("Origin", page)
            .field("Access-Control-Request-Method", "POST"),
        case.request().field("Prefer", "respond-async"),
    ] {
        nosniff(&case.gateway.call(&request).await, &format!("{request:?}"));
    }
    for broken in [
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "nonsense\r\n\r\n",
        "GET / HTTP/1.1\r\n x\r\n\r\n",
    ] {
        let mut connection = Connection::open(case.gateway.public).await;
        connection.send(broken.as_bytes()).await;
        nosniff(&connection.answer().await, broken);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_passes_its_agents_fields_but_no_order_to_a_proxy() {
    let guarded = Guarded::start_with(hostile().await, &[]).await;
    let answer = guarded.call(&call(&guarded.token(CALL))).await.has(200);
    for name in "x-accel-redirect x-accel-expires x-sendfile x-reproxy-url".split(' ') {
        assert_eq!(answer.field(name), None, "{name}");
    }
    assert_eq!(answer.field("x-content-type-options"), Some("nosniff"));
    // It answers from its agent's origin.
    answer.has_field("set-cookie", "a=b");
    let verified = guarded.call(&Request::get("/auth/verify")).await;
    assert_eq!(verified.field("x-content-type-options"), Some("nosniff"));
}
