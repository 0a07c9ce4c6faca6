//! Browsers: preflights, CORS fields on every answer, foreign pages, hosts that are not ours.

use std::collections::BTreeSet;

use crate::harness::{
    Agent, Answer, Builder, CALL, Connection, Gateway, LAST_CHUNK, Pair, Request, SSE_HEAD, Seat,
    Step, chunk, ok_json,
};

const PAGE: &str = "https://canvas.example";

struct Case {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
}

impl Case {
    async fn with(builder: Builder) -> Self {
        let gateway = builder.start().await;
        let agent = Agent::scripted(|request| {
            if request.text().contains("stream") {
                return vec![
                    Step::write(SSE_HEAD),
                    Step::Write(chunk("data: {}\n\n")),
                    Step::write(LAST_CHUNK),
                ];
            }
            if request.text().contains("liberal") {
                let fields = "Access-Control-Allow-Origin: *\r\nAccess-Control-Allow-Credentials: true\r\n\
                    Access-Control-Expose-Headers: X-Secret\r\nAccess-Control-Max-Age: 1\r\nVary: Accept\r\n";
                let answer = String::from_utf8(ok_json("{}")).unwrap();
                return vec![Step::write(answer.replacen("\r\n", &format!("\r\n{fields}"), 1))];
            }
            vec![Step::Write(ok_json("{}"))]
        })
        .await;
        let (caller, target) = gateway.pair(agent).await;
        Self {
            gateway,
            caller,
            target,
        }
    }

    async fn new() -> Self {
        Self::with(Builder::new(Pair::Embedded).set("cors.origins", PAGE)).await
    }

    fn request(&self) -> Request {
        Request::post(self.target.path(), CALL).bearer(&self.caller.token)
    }

    async fn refused(&self, request: &Request, status: u16, reason: &str) -> Answer {
        let answer = self.gateway.call(request).await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (status, reason),
            "{request:?}"
        );
        assert_eq!(answer.field("content-type"), Some("application/json"));
        assert!(answer.field("x-request-id").is_some(), "{request:?}");
        assert_eq!(self.target.agent.count(), 0, "{request:?}");
        answer
    }
}

/// The words of a comma list, in lower case.
fn list(answer: &Answer, name: &str) -> BTreeSet<String> {
    let value = answer.field(name).unwrap_or_else(|| panic!("no {name}"));
    value
        .split(',')
        .map(|word| word.trim().to_ascii_lowercase())
        .collect()
}

fn assert_exposed(answer: &Answer, origin: &str, what: &str) {
    let count = |name: &str| {
        let named = answer.fields.iter();
        named.filter(|(n, _)| n.eq_ignore_ascii_case(name)).count()
    };
    let allowed = answer.field("access-control-allow-origin");
    assert_eq!(allowed, Some(origin), "{what}: {:?}", answer.fields);
    assert_eq!(count("access-control-allow-origin"), 1, "{what}");
    assert_eq!(count("access-control-expose-headers"), 1, "{what}");
    assert_eq!(count("access-control-allow-credentials"), 0, "{what}");
    let exposed = list(answer, "access-control-expose-headers");
    for name in [
        "x-request-id",
        "retry-after",
        "etag",
        "www-authenticate",
        "a2a-version",
        "a2a-extensions",
        "x-a2a-extensions",
        "x-a2a-completed",
        "x-a2a-refused",
        "x-a2a-stream",
        "idempotent-replay",
        "ratelimit-limit",
        "ratelimit-remaining",
        "ratelimit-reset",
        "link",
    ] {
        assert!(exposed.contains(name), "{what}: {name} not in {exposed:?}");
    }
    assert!(!exposed.contains("x-secret"), "{what}");
    let vary: Vec<_> = answer
        .fields
        .iter()
        .filter(|(n, _)| n.eq_ignore_ascii_case("vary"))
        .map(|(_, v)| v.to_ascii_lowercase())
        .collect();
    assert!(
        vary.iter().any(|v| v.contains("origin")),
        "{what}: {vary:?}"
    );
}

fn assert_not_exposed(answer: &Answer, what: &str) {
    let cors: Vec<_> = answer
        .fields
        .iter()
        .filter(|(n, _)| n.to_ascii_lowercase().starts_with("access-control-"))
        .collect();
    assert!(cors.is_empty(), "{what}: {cors:?}");
}

#[tokio::test]
async fn a_preflight_is_answered_on_every_route_before_any_credential() {
    let case = Case::new().await;
    let mut paths: BTreeSet<String> = a2a_gateway::control::ROUTES
        .iter()
        .map(|(_, path)| path.replace(['{', '}'], ""))
        .collect();
    assert!(paths.len() > 5);
    paths.extend(
        [
            "/workspaces/target/a2a",
            "/workspaces/target/a2a/",
            "/workspaces/nobody/a2a",
        ]
        .map(String::from),
    );
    let mut connection = Connection::open(case.gateway.public).await;
    for path in paths {
        let request = Request::new("OPTIONS", &path)
            .field("Origin", PAGE)
            .field("Access-Control-Request-Method", "POST")
            .field(
                "Access-Control-Request-Headers",
                "authorization,content-type",
            );
        let answer = connection.call(&request).await;
        assert_eq!(answer.status, 204, "{path}: {}", answer.text());
        assert_eq!(
            answer.field("access-control-max-age"),
            Some("7200"),
            "{path}"
        );
        let methods = list(&answer, "access-control-allow-methods");
        for method in ["get", "post", "patch", "delete"] {
            assert!(methods.contains(method), "{path}: {methods:?}");
        }
        let fields = list(&answer, "access-control-allow-headers");
        for field in [
            "authorization",
            "x-workspace-id",
            "content-type",
            "accept",
            "a2a-version",
            "a2a-extensions",
            "idempotency-key",
            "last-event-id",
            "prefer",
            "x-timeout",
            "traceparent",
            "tracestate",
            "x-request-id",
        ] {
            assert!(fields.contains(field), "{path}: {field} not in {fields:?}");
        }
        assert_exposed(&answer, PAGE, &path);
        assert!(answer.field("x-request-id").is_some(), "{path}");
        assert_eq!(answer.field("transfer-encoding"), None, "{path}");
        assert_eq!(answer.field("connection"), Some("keep-alive"), "{path}");
    }
    assert_eq!(case.target.agent.count(), 0);
    // A preflight is no exchange.
    assert_eq!(
        case.gateway
            .metric("a2a_gateway_exchanges_total", &[])
            .await,
        0.0
    );
}

#[tokio::test]
async fn a_foreign_page_gets_no_preflight() {
    let case = Case::new().await;
    for origin in [
        "https://evil.example",
        "null",
        "",
        "https://canvas.example.evil.example",
    ] {
        for path in [&*case.target.path(), "/workspaces", "/nowhere"] {
            let request = Request::new("OPTIONS", path)
                .field("Origin", origin)
                .field("Access-Control-Request-Method", "POST");
            let answer = case.refused(&request, 403, "origin_forbidden").await;
            assert_not_exposed(&answer, origin);
        }
    }
    // Nor one whose head two parsers could read differently.
    let request = Request::new("OPTIONS", case.target.path())
        .field("Origin", PAGE)
        .field("Access-Control-Request-Method", "POST")
        .field("Content-Length", "4")
        .field("Transfer-Encoding", "chunked");
    case.refused(&request, 400, "invalid_request").await;
}

#[tokio::test]
async fn every_answer_to_a_page_of_ours_says_so() {
    let case = Case::new().await;
    let path = case.target.path();
    let token = &*case.caller.token;
    let rows = [
        (case.request(), 200),
        (Request::post(&path, CALL), 401),
        (Request::post(&path, CALL).bearer("a2aw_wrong"), 401),
        (case.request().field("X-Workspace-ID", "target"), 403),
        (
            Request::post("/workspaces/nobody/a2a", CALL).bearer(token),
            403,
        ),
        (
            Request::post("/workspaces/a:b/a2a", CALL).bearer(token),
            400,
        ),
        (Request::post(format!("{path}/x"), CALL).bearer(token), 404),
        (Request::get(&path).bearer(token), 200),
        (Request::new("PUT", &path).bearer(token), 405),
        (case.request().field("Content-Encoding", "gzip"), 415),
        (Request::post(&path, "nonsense").bearer(token), 400),
        (case.request().field("Content-Length", "99999999999"), 413),
        (Request::get("/nowhere"), 404),
        (Request::get("/workspaces/caller"), 401),
        (Request::get("/workspaces/caller").bearer(token), 200),
        (Request::new("DELETE", "/registry/register"), 405),
        (
            Request::post("/registry/heartbeat", "nonsense").bearer(token),
            400,
        ),
        (
            Request::post(&path, CALL.replace("hi", "liberal")).bearer(token),
            200,
        ),
        (
            Request::post(&path, CALL.replace("hi", "stream")).bearer(token),
            200,
        ),
    ];
    for (request, status) in rows {
        let shown = format!("{} {} {status}", request.method, request.path);
        let answer = case
            .gateway
            .call(&request.clone().field("Origin", PAGE))
            .await;
        assert_eq!(answer.status, status, "{shown}: {}", answer.text());
        assert_exposed(&answer, PAGE, &shown);
        // And nobody else is told anything, the agent's own word included.
        let answer = case.gateway.call(&request).await;
        assert_eq!(answer.status, status, "{shown}: {}", answer.text());
        assert_not_exposed(&answer, &shown);
    }
}

#[tokio::test]
async fn pages_from_elsewhere_are_refused_before_their_credential_is_read() {
    let case = Case::new().await;
    for origin in [
        "https://evil.example",
        "null",
        "http://canvas.example",
        "https://canvas.example:8443",
        "https://sub.canvas.example",
        "https://canvas.example/",
        "HTTPS://CANVAS.EXAMPLE.",
        "",
        "file://",
        "https://canvas.example, https://evil.example",
    ] {
        let answer = case
            .refused(
                &case.request().field("Origin", origin),
                403,
                "origin_forbidden",
            )
            .await;
        assert_not_exposed(&answer, origin);
        // Before authentication: no hint whether the token is good.
        let request = Request::post(case.target.path(), CALL).field("Origin", origin);
        case.refused(&request, 403, "origin_forbidden").await;
        let request = Request::get("/workspaces/caller").field("Origin", origin);
        case.refused(&request, 403, "origin_forbidden").await;
    }
    let two = case
        .request()
        .field("Origin", PAGE)
        .field("Origin", "https://evil.example");
    case.refused(&two, 403, "origin_forbidden").await;
    // A page that hides its origin.
    let hidden = case.request().field("Sec-Fetch-Site", "cross-site");
    case.refused(&hidden, 403, "origin_forbidden").await;
    let hidden = Request::get("/workspaces/caller").field("Sec-Fetch-Site", "cross-site");
    case.refused(&hidden, 403, "origin_forbidden").await;
    // A page of ours, or a listed one, that is across sites, is no stranger.
    for site in ["same-origin", "same-site", "none"] {
        let answer = case
            .gateway
            .call(&case.request().field("Sec-Fetch-Site", site))
            .await;
        assert_eq!(answer.status, 200, "{site}");
    }
    let listed = case
        .request()
        .field("Sec-Fetch-Site", "cross-site")
        .field("Origin", PAGE);
    assert_eq!(case.gateway.call(&listed).await.status, 200);
}

#[tokio::test]
async fn the_canvas_may_be_visited_from_any_site_and_framed_by_none() {
    let case = Case::with(Builder::new(Pair::Embedded).set("canvas.enabled", "true")).await;
    let visit = |method: &str, path: &str, dest: &str| {
        Request::new(method, path)
            .field("Sec-Fetch-Site", "cross-site")
            .field("Sec-Fetch-Mode", "navigate")
            .field("Sec-Fetch-Dest", dest)
    };
    let page = case
        .gateway
        .call(&visit("GET", "/canvas/", "document"))
        .await;
    assert_eq!(page.status, 200, "{}", page.text());
    assert_eq!(page.field("x-frame-options"), Some("DENY"));
    let door = visit("GET", "/canvas", "document");
    assert_eq!(case.gateway.call(&door).await.status, 308);
    for refused in [
        visit("GET", "/canvas/", "iframe"),
        visit("GET", "/canvas/canvas.js", "script"),
        visit("GET", "/workspaces", "document"),
        visit("POST", "/canvas/", "document"),
        visit("GET", "/canvas/", "document").field("Origin", PAGE),
    ] {
        case.refused(&refused, 403, "origin_forbidden").await;
    }
}

#[tokio::test]
async fn our_own_origin_may_call() {
    let case = Case::with(
        Builder::new(Pair::Embedded).set("server.public_url", "https://gateway.example"),
    )
    .await;
    let port = case.gateway.public.port();
    for origin in [
        format!("http://127.0.0.1:{port}"),
        format!("http://localhost:{port}"),
        format!("http://[::1]:{port}"),
        "https://gateway.example".to_owned(),
    ] {
        let answer = case
            .gateway
            .call(&case.request().field("Origin", &*origin))
            .await;
        assert_eq!(answer.status, 200, "{origin}: {}", answer.text());
        assert_exposed(&answer, &origin, &origin);
        let _ = case.target.agent.take();
    }
    for origin in [
        format!("https://127.0.0.1:{}", port.wrapping_add(1)),
        "http://127.0.0.1:1".to_owned(),
        "http://gateway.example".to_owned(),
        "https://gateway.example:8443".to_owned(),
    ] {
        let request = case.request().field("Origin", origin);
        case.refused(&request, 403, "origin_forbidden").await;
    }
}

#[tokio::test]
async fn a_host_that_is_not_ours_is_misdirected() {
    let case = Case::with(
        Builder::new(Pair::Embedded)
            .set("server.public_url", "https://gateway.example")
            .set("server.hosts", "internal.example, other.example:8443"),
    )
    .await;
    let port = case.gateway.public.port();
    let ask = |host: &str| case.request().field("Host", host);
    for host in [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "127.0.0.1:1",
        "localhost.evil.example",
        "gateway.example.",
        "gateway.example:1",
        "internal.example:1",
        "other.example",
        "0.0.0.0",
        "169.254.169.254",
    ] {
        case.refused(&ask(host), 421, "misdirected").await;
        // Before the origin, before the credential, on every route.
        let plain = Request::get("/workspaces/caller").field("Host", host);
        case.refused(&plain, 421, "misdirected").await;
        let page = Request::post(case.target.path(), CALL)
            .field("Host", host)
            .field("Origin", format!("http://{host}"));
        case.refused(&page, 421, "misdirected").await;
        let preflight = Request::new("OPTIONS", case.target.path())
            .field("Host", host)
            .field("Origin", format!("http://127.0.0.1:{port}"))
            .field("Access-Control-Request-Method", "POST");
        case.refused(&preflight, 421, "misdirected").await;
    }
    for host in [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        format!("[::1]:{port}"),
        "localhost".to_owned(),
        "LocalHost".to_owned(),
        "gateway.example".to_owned(),
        "gateway.example:443".to_owned(),
        "Gateway.Example".to_owned(),
        "internal.example".to_owned(),
        "other.example:8443".to_owned(),
    ] {
        let answer = case.gateway.call(&ask(&host)).await;
        assert_eq!(answer.status, 200, "{host}: {}", answer.text());
        let arrived = case.target.agent.take();
        assert_eq!(arrived.field("x-forwarded-host"), Some(&*host));
        let own = format!("127.0.0.1:{}", case.target.agent.port);
        assert_eq!(arrived.field("host"), Some(&*own));
    }
}

#[tokio::test]
async fn any_origin_means_any_page_but_no_credentials_of_the_browser() {
    let case = Case::with(Builder::new(Pair::Embedded).set("cors.origins", "*")).await;
    for origin in ["https://anyone.example", "null"] {
        let answer = case
            .gateway
            .call(&case.request().field("Origin", origin))
            .await;
        assert_eq!(answer.status, 200);
        assert_exposed(&answer, "*", origin);
        let preflight = Request::new("OPTIONS", case.target.path())
            .field("Origin", origin)
            .field("Access-Control-Request-Method", "POST");
        let answer = case.gateway.call(&preflight).await;
        assert_eq!(answer.status, 204);
        assert_exposed(&answer, "*", origin);
    }
}
