//! Canvas tokens of foreign issuers: whom they let in, which are forged, and what becomes of them
//! when keys rotate or their host fails.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::harness::issuer::{Issuer, Key, tables, tls_door};
use crate::harness::ports::free_address;
use crate::harness::{
    Answer, Builder, CALL, Gateway, Pair, Request, Seat, Step, answering, card, ok_json,
    until_found, until_holds,
};
use crate::matrix::{Case, TABLE, Who};
use crate::on_embedded;

const NAME: &str = "https://login.example.com";

/// A gateway that believes these issuers, with a workspace `target` of the org `acme`.
async fn believing(issuers: &str) -> (Gateway, Seat) {
    let gateway = Builder::new(Pair::Embedded).set("auth.issuers", issuers);
    with_target(gateway.start().await).await
}

async fn with_target(gateway: Gateway) -> (Gateway, Seat) {
    let workspace = json!({"id": "target", "name": "target", "org": "acme"});
    let agent = answering().await;
    let target = gateway.settle(workspace, card("target"), agent).await;
    (gateway, target)
}

fn call(token: &str) -> Request {
    Request::post("/workspaces/target/a2a", CALL).bearer(token)
}

/// The answer to a call with this token.
async fn asked(gateway: &Gateway, token: &str) -> Answer {
    gateway.call(&call(token)).await
}

/// Waits until a call is let in.
async fn until_in(gateway: &Gateway, token: impl Fn() -> String) {
    let is_in = async || asked(gateway, &token()).await.status == 200;
    until_holds("the keys", is_in).await;
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
        // The whole table takes longer than a lease of 90 s where much else goes on.
        let builder = builder.set("registry.heartbeat_ttl", "10m");
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
        case.gateway.until_told("canvas:ada", 1).await;
        let log = case.gateway.log();
        assert!(shows_no_token(&log), "{log}");
    }
}

/// No more than the 8 characters that may be shown.
fn shows_no_token(log: &str) -> bool {
    let length = |rest: &str| rest.find(|c: char| !c.is_ascii_alphanumeric());
    log.match_indices("eyJ")
        .all(|(at, _)| length(&log[at..]).is_some_and(|length| length <= 8))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_tokens_are_refused() {
    let (key, stranger) = (Key::new("k-1"), Key::new("k-1"));
    let issuer = Issuer::start(NAME, &[&key]).await;
    let other_key = Key::new("o-1");
    let other = Issuer::start("https://other.example.com", &[&other_key]).await;
    let (gateway, target) = believing(&tables(&[&issuer, &other])).await;
    let good = issuer.claims(json!({"org": "acme"}));
    until_in(&gateway, || key.sign(&good)).await;
    until_in(&gateway, || fresh(&other, &other_key)).await;
    let now = jsonwebtoken::get_current_timestamp();
    let body = |claims: &Value| URL_SAFE_NO_PAD.encode(claims.to_string());
    let unsigned = |head: &str| format!("{}.{}.", URL_SAFE_NO_PAD.encode(head), body(&good));
    let signed = key.sign(&good);
    let signature = signed.rsplit('.').next().unwrap().to_owned();
    let head = jsonwebtoken::Header {
        kid: Some("k-1".to_owned()),
        ..jsonwebtoken::Header::default()
    };
    // The public key as a shared secret.
    let secret = key.jwk()["x"].as_str().unwrap().to_owned();
    let secret = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
    let confused = jsonwebtoken::encode(&head, &good, &secret);
    let but = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        key.sign(&claims)
    };
    let forged = [
        stranger.sign(&good),
        key.sign_as("JWT", "k-2", &good),
        key.sign_as("a2a-canvas+jwt", "k-1", &good),
        key.sign_as("a2a-pair+jwt", "k-1", &good),
        other_key.sign(&good),
        but("iss", other.name.clone().into()),
        but("iss", "https://login.example.com/".into()),
        but("iss", format!("http://{}", gateway.public).into()),
        but("aud", "another".into()),
        but("exp", (now - 60).into()),
        but("exp", json!(null)),
        but("nbf", (now + 60).into()),
        but("iat", (now + 60).into()),
        but("sub", "".into()),
        but("workspaces", json!(["system:x"])),
        unsigned(r#"{"alg":"none","kid":"k-1"}"#),
        unsigned(r#"{"alg":"none","kid":"k-1"}"#) + &signature,
        unsigned(r#"{"alg":"EdDSA","kid":"k-1","crit":["exp"]}"#) + &signature,
        confused.unwrap(),
    ];
    let before = target.agent.count();
    for token in &forged {
        let answer = asked(&gateway, token).await;
        assert_eq!(answer.status, 401, "{token}: {}", answer.text());
        assert_eq!(answer.reason(), "unauthenticated");
    }
    assert_eq!(target.agent.count(), before);
    let log = gateway.log();
    assert!(forged.iter().all(|token| !log.contains(token.as_str())));
}

/// The time at which others were let in, or refused: before one that hangs is given up after 5 s. Where those
/// were nearly over, or the machine stalls for as long, that is so the next time.
async fn others_ask(gateway: &Gateway, issuer: &Issuer, key: &Key) -> Instant {
    for _ in 0..5 {
        asked(gateway, &fresh(issuer, key)).await.has(200);
    }
    asked(gateway, "a2aw_wrong").await.has(401);
    Instant::now()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_fails_is_named_and_holds_up_nobody_else() {
    let key = Key::new("k-1");
    let good = Issuer::start(NAME, &[&key]).await;
    let huge = format!(r#"{{"keys":[],"x":"{}"}}"#, "x".repeat(300 * 1024));
    let head = |status: &str| format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n");
    let closed = format!("http://{}/", free_address("127.0.0.1"));
    let many: Vec<_> = (0..101).map(|_| key.jwk()).collect();
    let says = |body: &str| vec![Step::Write(ok_json(body))];
    let mut drips = vec![Step::write("HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n")];
    for _ in 0..60 {
        drips.extend([Step::write(" "), Step::Wait(Duration::from_secs(1))]);
    }
    let fails = head("500 Oops") + "\r\n";
    let redirects = format!("Location: {}jwks.json\r\n\r\n", good.host.url());
    let redirects = head("302 Found") + &redirects;
    let faults = [
        ("hangs", "timed_out", vec![Step::Hang]),
        ("drips", "timed_out", drips),
        ("fails", "status", vec![Step::write(fails)]),
        ("redirects", "redirected", vec![Step::write(redirects)]),
        ("huge", "too_large", says(&huge)),
        ("html", "invalid", says("<html>")),
        ("many", "invalid", says(&json!({"keys": many}).to_string())),
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
    let (gateway, _target) = believing(&Value::from(settings).to_string()).await;
    until_in(&gateway, || fresh(&issuers[0], &key)).await;
    let served = issuers[0].host.count();

    let names = faults.iter().map(|(name, word, _)| (*name, *word));
    for ((name, word), issuer) in names.zip(&issuers[1..]) {
        let token = fresh(issuer, &key);
        let answer = until_found(name, async || {
            let waits = async { (asked(&gateway, &token).await, Instant::now()) };
            let ((answer, given_up), over) =
                tokio::join!(waits, others_ask(&gateway, &issuers[0], &key));
            let is_before = over < given_up || word != "timed_out";
            (is_before && answer.text().contains(word)).then_some(answer)
        })
        .await;
        assert_eq!(answer.status, 503, "{name}: {}", answer.text());
        assert_eq!(answer.reason(), "store_unavailable");
        assert!(answer.field("retry-after").is_some());
        let text = answer.text();
        assert!(text.contains(&issuer.name) && text.contains(word), "{text}");
        assert!(text.contains("auth.issuers"), "{text}");
        // The log is written behind the answer.
        gateway.until_told(&issuer.name, 1).await;
        let fetched = "a2a_gateway_jwks_fetches_total";
        assert!(gateway.metric(fetched, &[word]).await >= 1.0, "{word}");
    }
    let claims = json!({"org": "acme", "iss": "https://away.example.com"});
    let away = key.sign(&issuers[0].claims(claims));
    asked(&gateway, &away).await.has(503).says("unreachable");
    let followed = issuers[0].host.count() - served;
    assert_eq!(followed, 0, "nobody followed the redirect");
    assert!(shows_no_token(&gateway.log()), "a token is in the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_rotate_and_a_withdrawn_one_proves_nothing() {
    let (old, new) = (Key::new("old"), Key::new("new"));
    let issuer = Issuer::start(NAME, &[&old]).await;
    let (gateway, _target) = believing(&tables(&[&issuer])).await;
    let began = Instant::now();
    let known = fresh(&issuer, &old);
    until_in(&gateway, || known.clone()).await;
    asked(&gateway, &fresh(&issuer, &new)).await.has(401);
    issuer.publish(&[&new]);
    // The first token of the new key that may ask again brings it in; a crowd asks no more often.
    until_in(&gateway, || fresh(&issuer, &new)).await;
    let took = began.elapsed();
    let fetched = u64::try_from(issuer.host.count()).unwrap();
    let told = format!("{fetched} fetches in {took:?}");
    assert!(fetched <= took.as_secs() / 10 + 2, "{told}");
    // What was known by the old key is forgotten with it.
    asked(&gateway, &known).await.has(401);
    asked(&gateway, &fresh(&issuer, &old)).await.has(401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_comes_back_is_believed_and_one_that_goes_is_remembered() {
    let (key, unknown) = (Key::new("k-1"), Key::new("k-2"));
    let issuer = Issuer::start(NAME, &[]).await;
    let fails = "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n";
    issuer.answers(vec![Step::write(fails)]);
    let (gateway, _target) = believing(&tables(&[&issuer])).await;
    asked(&gateway, &fresh(&issuer, &key)).await.has(503);
    issuer.publish(&[&key]);
    until_in(&gateway, || fresh(&issuer, &key)).await;
    issuer.answers(vec![Step::write(fails)]);
    let failed = || gateway.metric("a2a_gateway_jwks_fetches_total", &["status"]);
    let before = failed().await;
    until_holds("the unknown key is asked for", async || {
        asked(&gateway, &fresh(&issuer, &unknown)).await.has(401);
        failed().await > before
    })
    .await;
    asked(&gateway, &fresh(&issuer, &key)).await.has(200);
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
        let table = json!([table]).to_string();
        let mut builder = Builder::new(Pair::Embedded).set("auth.issuers", &table);
        if trusted {
            builder = builder.env("SSL_CERT_FILE", &roots.display().to_string());
        }
        let (gateway, _target) = with_target(builder.start().await).await;
        let is_answered = async || {
            let answer = asked(&gateway, &fresh(&issuer, &key)).await;
            answer.status == status
        };
        until_holds("the keys, or the lack of them", is_answered).await;
        let read = Request::get("/workspaces/target");
        gateway.as_operator(read).await.has(200);
    }
}
