//! Canvas tokens of foreign issuers: whom they let in, which are forged, and what becomes of them
//! when keys rotate or their host fails.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::harness::builder::free_address;
use crate::harness::issuer::{Issuer, Key, tables, tls_door};
use crate::harness::{
    ADMIN, Agent, Builder, CALL, Gateway, Pair, Request, Step, card, until_holds,
};
use crate::matrix::{Case, TABLE, Who};
use crate::on_embedded;

const NAME: &str = "https://login.example.com";

/// A workspace `target` of the org `acme`.
async fn target(gateway: &Gateway, agent: &Agent) {
    let workspace = json!({"id": "target", "name": "target", "org": "acme"});
    let enrolment = gateway.create(workspace).await;
    gateway
        .register("target", &enrolment, &agent.url(), card("target"))
        .await;
}

fn call(token: &str) -> Request {
    Request::post("/workspaces/target/a2a", CALL).bearer(token)
}

async fn agent() -> Agent {
    Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await
}

/// The status of a call, once it is `expected`.
async fn until(gateway: &Gateway, token: impl Fn() -> String, expected: u16) {
    until_holds("the keys", async || {
        gateway.call(&call(&token())).await.status == expected
    })
    .await;
}

/// `sub` tells tokens apart, so that none is known already.
fn fresh(issuer: &Issuer, key: &Key) -> String {
    let sub = uuid::Uuid::now_v7().to_string();
    key.sign(&issuer.claims(json!({"org": "acme", "sub": sub})))
}

on_embedded! {
    async fn a_foreign_token_is_worth_as_much_as_our_own_on_every_route() {
        let key = Key::new("k-1");
        let issuer = Issuer::start(NAME, &[&key]).await;
        let builder = Builder::new(Pair::Embedded).set("auth.issuers", &tables(&[&issuer]));
        let case = Case::on(builder.start().await).await;
        let scopes = [
            (Who::CanvasOrg, json!({"org": "acme"})),
            (Who::CanvasOtherOrg, json!({"org": "other"})),
            (Who::CanvasListed, json!({"workspaces": ["target"]})),
            (Who::CanvasUnlisted, json!({"workspaces": ["sibling"]})),
            (Who::CanvasNoOrg, json!({})),
        ];
        for row in TABLE {
            for (who, scope) in &scopes {
                let token = key.sign(&issuer.claims(scope.clone()));
                let request = case.request(row.0, row.1, *who).bearer(&token);
                let answer = case.answer(&request).await;
                let expected = if row.3.contains(who) { row.2 } else { 403 };
                let what = format!("{} {} as foreign {who:?}", row.0, row.1);
                assert_eq!(answer.status, expected, "{what}: {}", answer.text());
            }
        }
        let log = case.gateway.log();
        assert!(log.contains("canvas:ada"), "{log}");
        assert!(shows_no_token(&log), "{log}");
    }
}

/// No more than the 8 characters that may be shown.
fn shows_no_token(log: &str) -> bool {
    let length = |rest: &str| rest.find(|c: char| !c.is_ascii_alphanumeric());
    log.match_indices("eyJ")
        .all(|(at, _)| length(&log[at..]).is_some_and(|length| length <= 8))
}

fn with(mut claims: Value, name: &str, value: Value) -> Value {
    claims[name] = value;
    claims
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_tokens_are_refused() {
    let (key, stranger) = (Key::new("k-1"), Key::new("k-1"));
    let issuer = Issuer::start(NAME, &[&key]).await;
    let other_key = Key::new("o-1");
    let other = Issuer::start("https://other.example.com", &[&other_key]).await;
    let builder = Builder::new(Pair::Embedded).set("auth.issuers", &tables(&[&issuer, &other]));
    let gateway = builder.start().await;
    let agent = agent().await;
    target(&gateway, &agent).await;
    let good = issuer.claims(json!({"org": "acme"}));
    until(&gateway, || key.sign(&good), 200).await;
    until(&gateway, || fresh(&other, &other_key), 200).await;
    let now = jsonwebtoken::get_current_timestamp();
    let body = |claims: &Value| URL_SAFE_NO_PAD.encode(claims.to_string());
    let unsigned = |head: &str| format!("{}.{}.", URL_SAFE_NO_PAD.encode(head), body(&good));
    let signed = key.sign(&good);
    let signature = signed.rsplit('.').next().unwrap().to_owned();
    let confused = jsonwebtoken::encode(
        &jsonwebtoken::Header {
            kid: Some("k-1".to_owned()),
            ..jsonwebtoken::Header::default()
        },
        &good,
        // The public key as a shared secret.
        &jsonwebtoken::EncodingKey::from_secret(key.jwk()["x"].as_str().unwrap().as_bytes()),
    );
    let forged = [
        stranger.sign(&good),
        key.sign_as("JWT", "k-2", &good),
        key.sign_as("a2a-canvas+jwt", "k-1", &good),
        key.sign_as("a2a-pair+jwt", "k-1", &good),
        other_key.sign(&good),
        key.sign(&with(good.clone(), "iss", other.name.clone().into())),
        key.sign(&with(
            good.clone(),
            "iss",
            "https://login.example.com/".into(),
        )),
        key.sign(&with(
            good.clone(),
            "iss",
            format!("http://{}", gateway.public).into(),
        )),
        key.sign(&with(good.clone(), "aud", "another".into())),
        key.sign(&with(good.clone(), "exp", (now - 60).into())),
        key.sign(&with(good.clone(), "exp", json!(null))),
        key.sign(&with(good.clone(), "nbf", (now + 60).into())),
        key.sign(&with(good.clone(), "iat", (now + 60).into())),
        key.sign(&with(good.clone(), "sub", "".into())),
        key.sign(&with(good.clone(), "workspaces", json!(["system:x"]))),
        unsigned(r#"{"alg":"none","kid":"k-1"}"#),
        format!("{}{signature}", unsigned(r#"{"alg":"none","kid":"k-1"}"#)),
        format!(
            "{}{signature}",
            unsigned(r#"{"alg":"EdDSA","kid":"k-1","crit":["exp"]}"#)
        ),
        confused.unwrap(),
    ];
    let before = agent.count();
    for token in &forged {
        let answer = gateway.call(&call(token)).await;
        assert_eq!(answer.status, 401, "{token}: {}", answer.text());
        assert_eq!(answer.reason(), "unauthenticated");
    }
    assert_eq!(agent.count(), before);
    let log = gateway.log();
    assert!(forged.iter().all(|token| !log.contains(token.as_str())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_fails_is_named_and_holds_up_nobody_else() {
    let key = Key::new("k-1");
    let good = Issuer::start(NAME, &[&key]).await;
    let huge = format!(r#"{{"keys":[],"x":"{}"}}"#, "x".repeat(300 * 1024));
    let head = |status: &str| format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n");
    let closed = format!("http://{}/", free_address("127.0.0.1"));
    let many: Vec<_> = (0..101).map(|_| key.jwk()).collect();
    let faults = [
        ("hangs", "timed_out", vec![Step::Hang]),
        ("drips", "timed_out", {
            let mut steps = vec![Step::write("HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n")];
            for _ in 0..60 {
                steps.extend([Step::write(" "), Step::Wait(Duration::from_secs(1))]);
            }
            steps
        }),
        (
            "fails",
            "status",
            vec![Step::write(head("500 Oops") + "\r\n")],
        ),
        (
            "redirects",
            "redirected",
            vec![Step::write(
                head("302 Found") + &format!("Location: {}jwks.json\r\n\r\n", good.host.url()),
            )],
        ),
        (
            "huge",
            "too_large",
            vec![Step::Write(crate::harness::ok_json(&huge))],
        ),
        (
            "html",
            "invalid",
            vec![Step::Write(crate::harness::ok_json("<html>"))],
        ),
        (
            "many",
            "invalid",
            vec![Step::Write(crate::harness::ok_json(
                &json!({"keys": many}).to_string(),
            ))],
        ),
        ("resets", "unreachable", vec![Step::Reset]),
    ];
    let mut issuers = vec![good];
    for (name, _, steps) in &faults {
        let issuer = Issuer::start(&format!("https://{name}.example.com"), &[&key]).await;
        issuer.answers(steps.clone());
        issuers.push(issuer);
    }
    let mut settings: Vec<Value> = issuers.iter().map(Issuer::table).collect();
    settings.push(json!({"issuer": "https://away.example.com", "jwks_url": closed, "audience": "the-gateway"}));
    let builder =
        Builder::new(Pair::Embedded).set("auth.issuers", &Value::from(settings).to_string());
    let gateway = builder.start().await;
    let agent = agent().await;
    target(&gateway, &agent).await;
    until(&gateway, || fresh(&issuers[0], &key), 200).await;
    let served = issuers[0].host.count();

    let names = faults.iter().map(|(name, word, _)| (*name, *word));
    for ((name, word), issuer) in names.zip(&issuers[1..]) {
        let token = fresh(issuer, &key);
        let asked = call(&token);
        let began = Instant::now();
        let asked = async { (gateway.call(&asked).await, began.elapsed()) };
        // Meanwhile the others are let in, and hear who is not, before one that hangs is given up after 5 s.
        let meanwhile = async {
            for _ in 0..5 {
                let answer = gateway.call(&call(&fresh(&issuers[0], &key))).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
            assert_eq!(gateway.call(&call("a2aw_wrong")).await.status, 401);
            began.elapsed()
        };
        let ((answer, given_up), took) = tokio::join!(asked, meanwhile);
        assert!(
            took < given_up.max(Duration::from_secs(4)),
            "{name}: {took:?}"
        );
        assert_eq!(answer.status, 503, "{name}: {}", answer.text());
        assert_eq!(answer.reason(), "store_unavailable");
        assert!(answer.field("retry-after").is_some());
        let text = answer.text();
        assert!(text.contains(&issuer.name) && text.contains(word), "{text}");
        assert!(text.contains("auth.issuers"), "{text}");
        // The log is written behind the answer.
        gateway.until_told(&issuer.name, 1).await;
        let fetched = gateway
            .metric("a2a_gateway_jwks_fetches_total", &[word])
            .await;
        assert!(fetched >= 1.0, "{word}");
    }
    let away = key.sign(&with(
        issuers[0].claims(json!({"org": "acme"})),
        "iss",
        "https://away.example.com".into(),
    ));
    let answer = gateway.call(&call(&away)).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.text().contains("unreachable"), "{}", answer.text());
    assert_eq!(
        issuers[0].host.count(),
        served,
        "nobody followed the redirect"
    );
    assert!(shows_no_token(&gateway.log()), "a token is in the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_rotate_and_a_withdrawn_one_proves_nothing() {
    let (old, new) = (Key::new("old"), Key::new("new"));
    let issuer = Issuer::start(NAME, &[&old]).await;
    let builder = Builder::new(Pair::Embedded).set("auth.issuers", &tables(&[&issuer]));
    let gateway = builder.start().await;
    let agent = agent().await;
    target(&gateway, &agent).await;
    let began = Instant::now();
    let known = fresh(&issuer, &old);
    until(&gateway, || known.clone(), 200).await;
    let answer = gateway.call(&call(&fresh(&issuer, &new))).await;
    assert_eq!(answer.status, 401, "{}", answer.text());
    issuer.publish(&[&new]);
    // The first token of the new key that may ask again brings it in; a crowd asks no more often.
    until(&gateway, || fresh(&issuer, &new), 200).await;
    let most = began.elapsed().as_secs() / 10 + 2;
    let fetched = u64::try_from(issuer.host.count()).unwrap();
    assert!(
        fetched <= most,
        "{fetched} fetches in {:?}",
        began.elapsed()
    );
    // What was known by the old key is forgotten with it.
    assert_eq!(gateway.call(&call(&known)).await.status, 401);
    assert_eq!(gateway.call(&call(&fresh(&issuer, &old))).await.status, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_comes_back_is_believed_and_one_that_goes_is_remembered() {
    let (key, unknown) = (Key::new("k-1"), Key::new("k-2"));
    let issuer = Issuer::start(NAME, &[]).await;
    let fails = vec![Step::write(
        "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
    )];
    issuer.answers(fails.clone());
    let builder = Builder::new(Pair::Embedded).set("auth.issuers", &tables(&[&issuer]));
    let gateway = builder.start().await;
    let agent = agent().await;
    target(&gateway, &agent).await;
    assert_eq!(gateway.call(&call(&fresh(&issuer, &key))).await.status, 503);
    issuer.publish(&[&key]);
    until(&gateway, || fresh(&issuer, &key), 200).await;
    issuer.answers(fails);
    let failed = || gateway.metric("a2a_gateway_jwks_fetches_total", &["status"]);
    let before = failed().await;
    until_holds("the unknown key is asked for", async || {
        let answer = gateway.call(&call(&fresh(&issuer, &unknown))).await;
        assert_eq!(answer.status, 401, "{}", answer.text());
        failed().await > before
    })
    .await;
    let answer = gateway.call(&call(&fresh(&issuer, &key))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_authority_is_trusted_by_ssl_cert_file_only() {
    let key = Key::new("k-1");
    let issuer = Issuer::start(NAME, &[&key]).await;
    let (port, pem) = tls_door(&issuer.host).await;
    let mut table = issuer.table();
    table["jwks_url"] = format!("https://localhost:{port}/jwks.json").into();
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("roots.pem");
    std::fs::write(&roots, pem).unwrap();
    for (trusted, status) in [(true, 200), (false, 503)] {
        let mut builder =
            Builder::new(Pair::Embedded).set("auth.issuers", &json!([table]).to_string());
        if trusted {
            builder = builder.env("SSL_CERT_FILE", &roots.display().to_string());
        }
        let gateway = builder.start().await;
        let agent = agent().await;
        target(&gateway, &agent).await;
        let answer = gateway.call(&call(&fresh(&issuer, &key))).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        let operator = Request::get("/workspaces/target").bearer(ADMIN);
        assert_eq!(gateway.call(&operator).await.status, 200);
    }
}
