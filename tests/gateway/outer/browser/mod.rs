//! A real browser: what a canvas can do from an origin of ours, and what a page from elsewhere cannot,
//! whatever it tries. `browsers.rs` has the same rules field by field; here nobody but chromium
//! decides what is sent, and what a page may read.

mod chromium;
mod sdk;
mod sockets;

use std::time::Duration;

use serde_json::{Value, json};

use self::chromium::{Site, base};
use crate::harness::{
    Agent, Gateway, LAST_CHUNK, Seat, Step, chunk, ok_json, sse, unnumbered, until_holds,
};

/// Between two events of the agent's stream: longer than a busy machine holds the first of them up.
const BETWEEN: Duration = Duration::from_secs(5);

/// Answers by what the page says: whole, event by event, or without end.
async fn agent() -> Agent {
    Agent::scripted(|request| {
        if request.text().contains("endless") {
            return sse("data: {}\n\n", Step::Hang);
        }
        if request.text().contains("message/stream") {
            let mut steps = sse("data: {\"n\":1}\n\n", Step::Wait(BETWEEN));
            steps.push(Step::Write(chunk("data: {\"n\":2}\n\n")));
            steps.push(Step::Wait(BETWEEN));
            steps.push(Step::Write(chunk("data: {\"n\":3}\n\n")));
            steps.push(Step::write(LAST_CHUNK));
            return steps;
        }
        let well = r#"{"jsonrpc":"2.0","id":1,"result":"well"}"#;
        vec![Step::Write(ok_json(well))]
    })
    .await
}

/// A gateway that lists `origin`, a target with an agent, and a browser user's token for it.
struct Stage {
    gateway: Gateway,
    target: Seat,
    token: String,
}

impl Stage {
    async fn for_origin(origin: &str) -> Self {
        let gateway = Gateway::with(&format!("cors.origins={origin} stream.linger=0s")).await;
        let (_, target) = gateway.pair(agent().await).await;
        let token = gateway.token("/canvas/tokens", r#"{"user":"mia"}"#).await;
        Self {
            gateway,
            target,
            token,
        }
    }

    fn task(&self, more: Value) -> Value {
        let mut task = json!({"gateway": base(self.gateway.public), "token": self.token});
        let more = more.as_object().unwrap().clone();
        task.as_object_mut().unwrap().extend(more);
        task
    }
}

/// Opens `page` of the site under the loopback name `host`. The browser works in a thread of its own,
/// so that agents go on.
async fn visit(site: Site, host: &str, page: &str, task: Value) -> (Site, Value) {
    let url = format!("{}{page}", site.origin(host));
    let visiting = tokio::task::spawn_blocking(move || {
        let found = site.visit(&url, task);
        (site, found)
    });
    visiting.await.unwrap()
}

/// Asserts that the browser kept a step from the page: all that a page gets is "Failed to fetch".
fn assert_kept(found: &Value, step: &str) {
    let error = found[step]["error"].as_str();
    let kept = error.is_some_and(|error| error.starts_with("TypeError"));
    assert!(kept, "{step}: {}", found[step]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_canvas_on_a_listed_origin_sends_streams_and_reads_errors() {
    let site = Site::start();
    // By its name it is another site than the gateway on 127.0.0.1, as a canvas usually is.
    let stage = Stage::for_origin(&site.origin("localhost")).await;
    let task = stage.task(json!({}));
    let (_, found) = visit(site, "localhost", "/allowed.html", task).await;

    let unary = &found["unary"];
    assert_eq!(unary["status"], 200, "{unary}");
    assert_eq!(unary["type"], "cors");
    assert_eq!(unary["body"]["result"], "well");
    assert_eq!(unary["fields"]["x-request-id"], "from-the-page", "{unary}");
    let completed = unary["fields"]["x-a2a-completed"].as_str();
    assert!(completed.is_some_and(|c| c.contains("envelope")), "{unary}");

    let streamed = &found["streamed"];
    assert_eq!(streamed["status"], 200, "{streamed}");
    assert_eq!(streamed["fields"]["content-type"], "text/event-stream");
    assert_eq!(streamed["fields"]["x-request-id"], "from-the-page");
    let pieces = streamed["pieces"].as_array().unwrap();
    let text: String = pieces.iter().filter_map(|p| p["text"].as_str()).collect();
    let events = "data: {\"n\":1}\n\ndata: {\"n\":2}\n\ndata: {\"n\":3}\n\n";
    assert_eq!(unnumbered(&text).0, events, "{streamed}");
    let times: Vec<f64> = pieces.iter().filter_map(|p| p["at"].as_f64()).collect();
    let span = times.last().unwrap() - times.first().unwrap();
    assert!(
        pieces.len() >= 3 && span > BETWEEN.as_secs_f64() * 1000.0,
        "one after another: {streamed}"
    );

    assert_eq!(found["left"], "AbortError");
    let is_over = async || !stage.target.agent.closed_by_gateway().is_empty();
    until_holds("the agent does not go on for nobody", is_over).await;

    for (step, status, reason) in [
        ("refused", 403, "not_permitted"),
        ("unproven", 401, "unauthenticated"),
        ("unknown", 404, "not_found"),
    ] {
        let answer = &found[step];
        assert_eq!(answer["status"], status, "{step}: {answer}");
        let body = &answer["body"];
        let said = body["reason"].as_str();
        let said = said.or_else(|| body["error"]["data"][0]["reason"].as_str());
        let said = said.map(str::to_lowercase);
        assert_eq!(said.as_deref(), Some(reason), "{step}: {answer}");
        let id = &answer["fields"]["x-request-id"];
        assert_eq!(id, "from-the-page", "{step}: {answer}");
    }
    assert_eq!(found["unproven"]["fields"]["www-authenticate"], "Bearer");
    assert_eq!(found["control"]["status"], 200, "{}", found["control"]);
    assert_eq!(found["control"]["body"]["id"], "target");

    // That these are kept shows that the browser did ask before it sent the others.
    for step in ["otherField", "otherMethod", "withCookies"] {
        assert_kept(&found, step);
    }
    let sent = stage.target.agent.requests();
    assert_eq!(sent.len(), 3, "unary, streamed, left: {sent:?}");
    for request in &sent {
        assert_eq!(request.field("x-request-id"), Some("from-the-page"));
        assert_eq!(request.field("a2a-version"), Some("0.3"));
        let names = request.names();
        let of_a_browser = |name: &String| name.starts_with("sec-") || name == "origin";
        assert!(!names.iter().any(of_a_browser), "{names:?}");
    }
    stage.gateway.assert_idle().await;
}

/// Everything that a page of `host`, which is not listed, tries. `relation` is what the browser says
/// of it in `Sec-Fetch-Site`.
async fn nothing_gets_through(host: &str, relation: &str) {
    let stage = Stage::for_origin("https://canvas.example").await;
    let elsewhere = Site::start();
    let task = stage.task(json!({"elsewhere": elsewhere.origin("127.0.0.1")}));
    let (_, found) = visit(Site::start(), host, "/foreign.html", task).await;

    let says = found["says"].as_str().unwrap_or_default().to_lowercase();
    let site = format!("sec-fetch-site: {relation}");
    assert!(says.contains(&site), "{found}");
    // The browser keeps the answers from the page …
    for step in ["fetched", "simple", "control"] {
        assert_kept(&found, step);
    }
    for step in ["blind", "blindGet"] {
        assert_eq!(found[step]["type"], "opaque", "{step}: {found}");
        assert_eq!(found[step]["body"], "", "{step}: {found}");
    }
    // … and these were really sent, to be refused by the gateway.
    assert_eq!(found["textForm"], "answered", "{found}");
    assert_eq!(found["urlForm"], "answered", "{found}");
    assert_eq!(found["beacon"], true, "{found}");
    let name = "a2a_gateway_exchanges_total";
    let label = r#"outcome="origin_forbidden""#;
    // simple, blind, two forms, the beacon.
    stage.gateway.until_counted(name, &[label], 5.0).await;
    // What ends between the two looks is in the second alone: those that are equal prove it.
    let are_equal = async || {
        let refused = stage.gateway.metric(name, &[label]).await;
        stage.gateway.metric(name, &[]).await == refused
    };
    until_holds("every exchange ended with that reason", are_equal).await;
    assert_eq!(stage.target.agent.count(), 0);
    let log = stage.gateway.log();
    assert!(log.contains("origin_forbidden"), "{log}");
    assert!(!log.contains(&stage.token), "a token in the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_another_site_reaches_no_agent() {
    nothing_gets_through("localhost", "cross-site").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_on_another_port_of_this_machine_reaches_no_agent() {
    nothing_gets_through("127.0.0.1", "same-site").await;
}
