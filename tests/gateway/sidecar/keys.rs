//! The gateway's keys at a sidecar: fetched, kept, fetched again, and missed.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::issuer::{Issuer, Key};
use crate::harness::sidecar::{Guarded, ISSUER, Sidecar, arguments, bound, call};
use crate::harness::{Agent, CALL, Request, Step, ok_json, until_holds};

/// Fetches for unknown keys are 10 s apart.
const PAUSE: Duration = Duration::from_secs(10);

/// A call whose token is signed by this key.
fn signed_by(key: &Key, kid: &str) -> Request {
    call(&key.sign_as("a2a-pair+jwt", kid, &bound(CALL, json!({}))))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_key_is_fetched_and_an_unknown_one_asked_for_once_in_ten_seconds() {
    let started = Instant::now();
    let guarded = Guarded::start(&[]).await;
    let fetched = guarded.issuer.host.count();
    let next = Key::new("k-2");
    guarded.issuer.publish(&[&guarded.key, &next]);
    // A crowd of strangers makes nobody fetch more.
    for _ in 0..20 {
        let stranger = Key::new("k-9");
        let answer = guarded.call(&signed_by(&stranger, "k-9")).await;
        assert_eq!(answer.reason(), "unauthenticated");
    }
    let most = || fetched + usize::try_from(started.elapsed().as_secs() / PAUSE.as_secs()).unwrap();
    assert!(guarded.issuer.host.count() <= most());
    let is_known = async || guarded.call(&signed_by(&next, "k-2")).await.status == 200;
    until_holds("the new key is fetched", is_known).await;
    assert!((fetched + 1..=most()).contains(&guarded.issuer.host.count()));
    // With the host away the last good keys go on.
    guarded.issuer.answers(vec![Step::Reset]);
    for (key, kid) in [(&guarded.key, "k-1"), (&next, "k-2")] {
        assert_eq!(guarded.call(&signed_by(key, kid)).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_keys_nobody_is_admitted_and_it_says_so() {
    let key = Key::new("k-1");
    let issuer = Issuer::start(ISSUER, &[]).await;
    let away = "HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n";
    issuer.answers(vec![Step::write(away)]);
    let agent = Agent::json("{}").await;
    let sidecar = Sidecar::spawn(&agent, &arguments(&issuer, &[]));
    for path in ["/auth/ready", "/auth/verify"] {
        let token = key.sign_as("a2a-pair+jwt", "k-1", &bound(CALL, json!({})));
        let request = Request::get(path).bearer(&token);
        let answer = sidecar.call(&request).await;
        assert_eq!(answer.status, 503, "{path}: {}", answer.text());
        assert_eq!(answer.reason(), "store_unavailable", "{path}");
    }
    assert_eq!(sidecar.admin_get("/readyz").await.status, 503);
    assert_eq!(sidecar.admin_get("/healthz").await.status, 200);
    let answer = sidecar.call(&signed_by(&key, "k-1")).await;
    assert_eq!(answer.reason(), "store_unavailable");
    assert!(answer.field("retry-after").is_some());
    assert_eq!(agent.count(), 0);
    issuer.publish(&[&key]);
    sidecar.await_ready().await;
    let answer = sidecar.call(&signed_by(&key, "k-1")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_publishes_no_key_makes_nothing_ready() {
    let key = Key::new("k-1");
    let issuer = Issuer::start(ISSUER, &[]).await;
    let agent = Agent::json("{}").await;
    let sidecar = Sidecar::spawn(&agent, &arguments(&issuer, &[]));
    sidecar.until_told("publishes no usable key", 1).await;
    let answer = sidecar.call(&Request::get("/auth/ready")).await;
    assert_eq!(answer.reason(), "store_unavailable");
    assert_eq!(sidecar.admin_get("/readyz").await.status, 503);
    let known = async || sidecar.call(&signed_by(&key, "k-1")).await;
    assert_eq!(known().await.reason(), "store_unavailable");
    assert_eq!(agent.count(), 0);
    // The first token after the pause has them fetched again.
    issuer.publish(&[&key]);
    let is_known = async || known().await.status == 200;
    until_holds("the keys are fetched again", is_known).await;
    assert_eq!(sidecar.admin_get("/readyz").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_is_asked_who_it_is() {
    let key = Key::new("k-1");
    let jwks = json!({"keys": [key.jwk()]}).to_string();
    let gateway = Agent::scripted(move |request| {
        let says = if request.head.starts_with("GET /.well-known/a2a-gateway ") {
            json!({"issuer": "https://named.test", "jwks_uri": "http://127.0.0.1:9/"}).to_string()
        } else {
            jwks.clone()
        };
        vec![Step::Write(ok_json(&says))]
    })
    .await;
    let agent = Agent::json("{}").await;
    let sidecar = Sidecar::spawn(&agent, &["--gateway", &gateway.url()]);
    sidecar.await_ready().await;
    let token = |iss: &str| key.sign_as("a2a-pair+jwt", "k-1", &bound(CALL, json!({"iss": iss})));
    let answer = sidecar.call(&call(&token("https://named.test"))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = sidecar.call(&call(&token(ISSUER))).await;
    assert_eq!(answer.reason(), "unauthenticated");
    let mut asked = gateway.requests().into_iter();
    assert!(asked.any(|r| r.head.starts_with("GET /.well-known/jwks.json ")));
    assert_eq!(agent.take().field("x-a2a-caller"), Some("caller"));
}
