//! Authentication as the hot path sees it: a good credential from the warm cache, a wrong one from
//! the small cache beside it, and what a signed token costs when it is seen for the first time, or made for a target.

#![expect(missing_docs, reason = "criterion_group! makes a function without")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use a2a_gateway::config::Config;
use a2a_gateway::gateway::Gateway;
use a2a_gateway::identity::{NewCanvas, SignedTokens};
use a2a_gateway::metrics::Metrics;
use a2a_gateway::trust::{Pair, body_hash};
use criterion::{Criterion, criterion_group, criterion_main};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

const WHY: &str = "the bench builds its own stores in a fresh folder";

#[derive(Deserialize, Serialize)]
struct Claims {
    iss: String,
    aud: String,
    exp: u64,
}

fn token(c: &mut Criterion) {
    let runtime = Runtime::new().expect(WHY);
    let folder = tempfile::tempdir().expect(WHY);
    let mut config: Config = toml::from_str(include_str!("../config/default.toml")).expect(WHY);
    config.stores.sql = format!("sqlite:{}", folder.path().join("gw.db").display()).into();
    config.keys.dir = folder.path().join("keys");
    let metrics = Arc::new(Metrics::new());
    let gateway = Gateway::open(config.into(), metrics).expect(WHY);
    let admin = runtime.block_on(gateway.prepare()).expect(WHY);
    let identity = &gateway.identity;
    let canvas = identity
        .signed
        .issue_canvas(&NewCanvas {
            user: "ada",
            org: Some("acme"),
            workspaces: None,
            groups: &[],
            ttl: Duration::from_secs(3600),
            maker: None,
        })
        .expect(WHY);

    let opaque = format!("Bearer {}", admin.expose_secret());
    c.bench_function("token/opaque, warm", |b| {
        b.to_async(&runtime).iter(async || {
            let proof = identity.authenticate(Some(black_box(opaque.as_bytes())));
            proof.await.expect(WHY)
        });
    });
    let signed = format!("Bearer {}", canvas.token.expose_secret());
    c.bench_function("token/signed, warm", |b| {
        b.to_async(&runtime).iter(async || {
            let proof = identity.authenticate(Some(black_box(signed.as_bytes())));
            proof.await.expect(WHY)
        });
    });
    let wrong = format!("Bearer a2aw_{}", "x".repeat(43));
    c.bench_function("token/unknown", |b| {
        b.to_async(&runtime).iter(async || {
            identity
                .authenticate(Some(black_box(wrong.as_bytes())))
                .await
        });
    });
    let claims = Claims {
        iss: "http://gw".into(),
        aud: "http://gw".into(),
        exp: 4_102_444_800,
    };
    let fresh = gateway.keys.sign("bench+jwt", &claims).expect(WHY);
    c.bench_function("token/signature", |b| {
        b.iter(|| {
            let keys = &gateway.keys;
            keys.verify::<Claims>(black_box(&fresh), "bench+jwt", "http://gw", "http://gw")
        });
    });
    caller_tokens(c, &gateway.identity.signed);
    let proof = runtime.block_on(identity.authenticate(Some(opaque.as_bytes())));
    let proof = proof.expect(WHY);
    c.bench_function("token/rate", |b| {
        b.iter(|| gateway.rates.admit(black_box(&proof)).is_ok());
    });
}

/// The token that a forwarded call carries, of either proof.
fn caller_tokens(c: &mut Criterion, signed: &SignedTokens) {
    let pair = Pair {
        caller: "0199c7a2-5b1e-7cc3-98c4-dc0c0c07398f",
        target: "0199c7a2-5b1e-7cc3-98c4-dc0c0c073990",
        rule: "sibling",
        org: Some("acme"),
        generation: 0,
        chain_hash: None,
    };
    c.bench_function("token/caller of a pair", |b| {
        b.iter(|| signed.caller_token_for_pair(black_box(pair)).expect(WHY));
    });
    let body = vec![b'x'; 512];
    c.bench_function("token/caller of a request", |b| {
        b.iter(|| {
            let method = Some("message/send");
            let token = signed.caller_token_for_request(black_box(pair), method, body_hash(&body));
            token.expect(WHY)
        });
    });
}

criterion_group!(benches, token);
criterion_main!(benches);
