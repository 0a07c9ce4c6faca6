//! Browsers: preflights, CORS fields on every answer, foreign pages, hosts that are not ours.

use std::collections::BTreeSet;

use crate::fields::Case;
use crate::harness::{
    Agent, Answer, Builder, CALL, Connection, LAST_CHUNK, Pair, Request, SSE_HEAD, Step, chunk,
    ok_json,
};

const PAGE: &str = "https://canvas.example";

/// Each with another setting.
async fn set_to(key: &str, value: &str) -> Case {
    with(Builder::new(Pair::Embedded).set(key, value)).await
}

async fn with(builder: Builder) -> Case {
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
    Case::with(builder, agent).await
}

async fn case() -> Case {
    set_to("cors.origins", PAGE).await
}

/// A preflight of a page.
fn preflight(path: &str, origin: &str) -> Request {
    let request = Request::new("OPTIONS", path).field("Origin", origin);
    request.field("Access-Control-Request-Method", "POST")
}

impl Case {
    async fn refused(&self, request: &Request, status: u16, reason: &str) -> Answer {
        let answer = self.gateway.call(request).await;
        answer.refuses_for(&request, status, reason);
        assert_eq!(answer.field("content-type"), Some("application/json"));
        assert!(answer.field("x-request-id").is_some(), "{request:?}");
        assert_eq!(self.target.agent.count(), 0, "{request:?}");
        answer
    }
}

/// The words of a comma list, in lower case.
fn list(answer: &Answer, name: &str) -> BTreeSet<String> {
    let value = answer.field(name).unwrap_or_else(|| panic!("no {name}"));
    let words = value.split(',').map(str::trim);
    words.map(str::to_ascii_lowercase).collect()
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
    for name in "x-request-id retry-after etag www-authenticate a2a-version a2a-extensions \
        x-a2a-extensions x-a2a-completed x-a2a-refused x-a2a-stream idempotent-replay \
        ratelimit-limit ratelimit-remaining ratelimit-reset link"
        .split(' ')
    {
        assert!(exposed.contains(name), "{what}: {name} not in {exposed:?}");
    }
    assert!(!exposed.contains("x-secret"), "{what}");
    let mut fields = answer.fields.iter();
    let varies = fields.any(|(name, value)| {
        name.eq_ignore_ascii_case("vary") && value.to_ascii_lowercase().contains("origin")
    });
    assert!(varies, "{what}: {:?}", answer.fields);
}

fn assert_not_exposed(answer: &Answer, what: &str) {
    let names = answer
        .fields
        .iter()
        .map(|(name, _)| name.to_ascii_lowercase());
    let cors: Vec<_> = names
        .filter(|name| name.starts_with("access-control-"))
        .collect();
    assert!(cors.is_empty(), "{what}: {cors:?}");
}

#[tokio::test]
async fn a_preflight_is_answered_on_every_route_before_any_credential() {
    let case = case().await;
    let routes = a2a_gateway::control::ROUTES.iter();
    let routes = routes.map(|(_, path)| path.replace(['{', '}'], ""));
    let mut paths: BTreeSet<String> = routes.collect();
    assert!(paths.len() > 5);
    let more = "/workspaces/target/a2a /workspaces/target/a2a/ /workspaces/nobody/a2a";
    paths.extend(more.split(' ').map(String::from));
    let mut connection = Connection::open(case.gateway.public).await;
    for path in paths {
        let asked = "authorization,content-type";
        let request = preflight(&path, PAGE).field("Access-Control-Request-Headers", asked);
        let answer = connection.call(&request).await;
        assert_eq!(answer.status, 204, "{path}: {}", answer.text());
        answer.has_field_for(&path, "access-control-max-age", "7200");
        let methods = list(&answer, "access-control-allow-methods");
        for method in ["get", "post", "patch", "delete"] {
            assert!(methods.contains(method), "{path}: {methods:?}");
        }
        let fields = list(&answer, "access-control-allow-headers");
        for field in "authorization x-workspace-id content-type accept a2a-version a2a-extensions \
            idempotency-key last-event-id prefer x-timeout traceparent tracestate x-request-id"
            .split(' ')
        {
            assert!(fields.contains(field), "{path}: {field} not in {fields:?}");
        }
        assert_exposed(&answer, PAGE, &path);
        assert!(answer.field("x-request-id").is_some(), "{path}");
        assert_eq!(answer.field("transfer-encoding"), None, "{path}");
        assert_eq!(answer.field("connection"), Some("keep-alive"), "{path}");
    }
    assert_eq!(case.target.agent.count(), 0);
    // A preflight is no exchange.
    assert_eq!(case.gateway.counts("exchanges_total", "").await, 0.0);
}

#[tokio::test]
async fn a_foreign_page_gets_no_preflight() {
    let case = case().await;
    for origin in "https://evil.example null  https://canvas.example.evil.example".split(' ') {
        for path in [&*case.target.path(), "/workspaces", "/nowhere"] {
            let request = preflight(path, origin);
            let answer = case.refused(&request, 403, "origin_forbidden").await;
            assert_not_exposed(&answer, origin);
        }
    }
    // Nor one whose head two parsers could read differently.
    let request = preflight(&case.target.path(), PAGE).field("Content-Length", "4");
    let request = request.field("Transfer-Encoding", "chunked");
    case.refused(&request, 400, "invalid_request").await;
}

#[tokio::test]
async fn every_answer_to_a_page_of_ours_says_so() {
    let case = case().await;
    let path = case.target.path();
    let own = |request: Request| request.bearer(&case.caller.token);
    let post = |path: &str, body: &str| own(Request::post(path, body));
    let said = |word: &str| post(&path, &CALL.replace("hi", word));
    let rows = [
        (case.request(), 200),
        (Request::post(&path, CALL), 401),
        (Request::post(&path, CALL).bearer("a2aw_wrong"), 401),
        (case.request().field("X-Workspace-ID", "target"), 403),
        (post("/workspaces/nobody/a2a", CALL), 403),
        (post("/workspaces/a:b/a2a", CALL), 400),
        (post(&format!("{path}/x"), CALL), 404),
        (own(Request::get(&path)), 200),
        (own(Request::new("PUT", &path)), 405),
        (case.request().field("Content-Encoding", "gzip"), 415),
        (post(&path, "nonsense"), 400),
        (case.request().field("Content-Length", "99999999999"), 413),
        (Request::get("/nowhere"), 404),
        (Request::get("/workspaces/caller"), 401),
        (own(Request::get("/workspaces/caller")), 200),
        (Request::new("DELETE", "/registry/register"), 405),
        (post("/registry/heartbeat", "nonsense"), 400),
        (said("liberal"), 200),
        (said("stream"), 200),
    ];
    for (request, status) in rows {
        let shown = format!("{} {} {status}", request.method, request.path);
        let of_page = request.clone().field("Origin", PAGE);
        let answer = case.gateway.call(&of_page).await;
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
    let case = case().await;
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
        // Before authentication: no hint whether the token is good.
        let anonymous = Request::post(case.target.path(), CALL);
        for request in [
            case.request(),
            anonymous,
            Request::get("/workspaces/caller"),
        ] {
            let request = request.field("Origin", origin);
            let answer = case.refused(&request, 403, "origin_forbidden").await;
            assert_not_exposed(&answer, origin);
        }
    }
    let two = case.request().field("Origin", PAGE);
    let two = two.field("Origin", "https://evil.example");
    case.refused(&two, 403, "origin_forbidden").await;
    // A page that hides its origin.
    for request in [case.request(), Request::get("/workspaces/caller")] {
        let hidden = request.field("Sec-Fetch-Site", "cross-site");
        case.refused(&hidden, 403, "origin_forbidden").await;
    }
    // A page of ours, or a listed one, that is across sites, is no stranger.
    for site in ["same-origin", "same-site", "none"] {
        let request = case.request().field("Sec-Fetch-Site", site);
        assert_eq!(case.gateway.call(&request).await.status, 200, "{site}");
    }
    let listed = case.request().field("Sec-Fetch-Site", "cross-site");
    case.gateway
        .call(&listed.field("Origin", PAGE))
        .await
        .has(200);
}

#[tokio::test]
async fn the_canvas_may_be_visited_from_any_site_and_framed_by_none() {
    let case = set_to("canvas.enabled", "true").await;
    let visit = |method: &str, path: &str, dest: &str| {
        Request::new(method, path)
            .field("Sec-Fetch-Site", "cross-site")
            .field("Sec-Fetch-Mode", "navigate")
            .field("Sec-Fetch-Dest", dest)
    };
    let page = visit("GET", "/canvas/", "document");
    let page = case.gateway.call(&page).await.has(200);
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
    let case = set_to("server.public_url", "https://gateway.example").await;
    let port = case.gateway.public.port();
    for origin in [
        format!("http://127.0.0.1:{port}"),
        format!("http://localhost:{port}"),
        format!("http://[::1]:{port}"),
        "https://gateway.example".to_owned(),
    ] {
        let request = case.request().field("Origin", &*origin);
        let answer = case.gateway.call(&request).await.has(200);
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
    let builder = Builder::new(Pair::Embedded).set("server.public_url", "https://gateway.example");
    let case = with(builder.set("server.hosts", "internal.example, other.example:8443")).await;
    let port = case.gateway.public.port();
    for host in "evil.example evil.example:80 127.0.0.1.evil.example 127.0.0.1:1 \
        localhost.evil.example gateway.example. gateway.example:1 internal.example:1 \
        other.example 0.0.0.0 169.254.169.254"
        .split(' ')
    {
        // Before the origin, before the credential, on every route.
        let path = case.target.path();
        let page = Request::post(&path, CALL).field("Origin", format!("http://{host}"));
        let preflight = preflight(&path, &format!("http://127.0.0.1:{port}"));
        let plain = Request::get("/workspaces/caller");
        for request in [case.request(), plain, page, preflight] {
            let request = request.field("Host", host);
            case.refused(&request, 421, "misdirected").await;
        }
    }
    let ours = format!(
        "127.0.0.1:{port} localhost:{port} [::1]:{port} localhost LocalHost gateway.example \
        gateway.example:443 Gateway.Example internal.example other.example:8443"
    );
    for host in ours.split(' ') {
        let request = case.request().field("Host", host);
        let answer = case.gateway.call(&request).await;
        assert_eq!(answer.status, 200, "{host}: {}", answer.text());
        let arrived = case.target.agent.take();
        assert_eq!(arrived.field("x-forwarded-host"), Some(host));
        let own = format!("127.0.0.1:{}", case.target.agent.port);
        assert_eq!(arrived.field("host"), Some(&*own));
    }
}

#[tokio::test]
async fn any_origin_means_any_page_but_no_credentials_of_the_browser() {
    let case = set_to("cors.origins", "*").await;
    for origin in ["https://anyone.example", "null"] {
        let request = case.request().field("Origin", origin);
        let preflight = preflight(&case.target.path(), origin);
        for (request, status) in [(request, 200), (preflight, 204)] {
            let answer = case.gateway.call(&request).await.has(status);
            assert_exposed(&answer, "*", origin);
        }
    }
}
