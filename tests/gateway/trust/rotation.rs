//! Keys that rotate under load, on replicas that share them: no call is refused.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use a2a_gateway::time::Timestamp;
use a2a_gateway::trust::{Keys, PAIR_TYP, PairClaims, SigningAlgorithm, rotate};

use super::{Family, caller_token, claims, jwks};
use crate::harness::servers::{Redis, postgres};
use crate::harness::until_found;
use crate::harness::{
    Agent, Builder, CALL, Gateway, Pair, Recorded, Request, holds_for, until_holds,
};

/// How long the traffic lasts; `A2A_GATEWAY_ROTATION_SECONDS` sets it.
#[expect(
    clippy::disallowed_methods,
    reason = "a longer run is asked for by hand"
)]
fn traffic() -> Duration {
    let set = std::env::var("A2A_GATEWAY_ROTATION_SECONDS").ok();
    Duration::from_secs(set.and_then(|text| text.parse().ok()).unwrap_or(2))
}

/// Runs `keys` on the keys of a gateway; returns what it prints.
pub(super) fn keys(gateway: &Gateway, arguments: &[&str]) -> String {
    let folder = format!("keys.dir={}", gateway.dir.join("keys").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    let output = command
        .arg("keys")
        .args(arguments)
        .args(["--set", &folder])
        .env_remove("A2A_GATEWAY_ADMIN_TOKEN")
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    String::from_utf8(output.stdout).unwrap()
}

fn states(table: &str) -> Vec<(String, String, String)> {
    let word = |line: &str, at: usize| line.split_whitespace().nth(at).unwrap().to_owned();
    let lines = table.lines().skip(1);
    let row = |line: &str| (word(line, 0), word(line, 1), word(line, 2));
    lines.map(row).collect()
}

fn head(arrived: &Recorded) -> jsonwebtoken::Header {
    jsonwebtoken::decode_header(caller_token(arrived)).unwrap()
}

/// Waits until an agent has got a call with a token of this key.
async fn until_signed_by(agent: &Agent, kid: &str) {
    until_holds("a call arrives that it signed", async || {
        let mut arrived = agent.requests().into_iter();
        arrived.any(|one| head(&one).kid.as_deref() == Some(kid))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_is_refused_while_keys_rotate() {
    let family = Arc::new(Family::new(Pair::Embedded).await);
    let ended = Arc::new(AtomicBool::new(false));
    let calls = Arc::new(AtomicUsize::new(0));
    // Each asks for tokens, and calls with new ones and with those that it got earlier.
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (family, ended, calls) =
                (Arc::clone(&family), Arc::clone(&ended), Arc::clone(&calls));
            tokio::spawn(async move {
                let mut tokens = Vec::new();
                while !ended.load(Ordering::Relaxed) {
                    tokens.push(family.pair_token().await);
                    let (oldest, newest) = (&tokens[0], &tokens[tokens.len() - 1]);
                    for token in [oldest, newest, &family.one.token] {
                        assert_eq!(family.call(token).await, (200, String::new()));
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
        })
        .collect();
    let pause = traffic() / 4;
    let calls_go_on = async || !callers.iter().any(tokio::task::JoinHandle::is_finished);
    let agent = &family.two.agent;
    let mut before = states(&keys(&family.gateway, &["list"]));
    for algorithm in ["ES256", "EdDSA", "EdDSA"] {
        holds_for(pause, "each call is answered", &calls_go_on).await;
        until_signed_by(agent, &before[0].0).await;
        let rotate = ["rotate", "--algorithm", algorithm];
        let after = states(&keys(&family.gateway, &rotate));
        assert_eq!(after[0].0, before[1].0, "the next one signs");
        assert_eq!(after[0].2, "active");
        assert_eq!(after[1].2, "next");
        assert_eq!(after[2].2, "retired");
        assert_eq!(after[2].0, before[0].0, "the one that did retires");
        assert_eq!(after[1].1, algorithm);
        before = after;
        until_holds("the gateway follows", async || {
            let head = jsonwebtoken::decode_header(family.pair_token().await);
            head.unwrap().kid.as_ref() == Some(&before[0].0)
        })
        .await;
    }
    holds_for(pause, "each call is answered", &calls_go_on).await;
    until_signed_by(agent, &before[0].0).await;
    ended.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.expect("no call is refused");
    }
    // The gateway may have read the folder in the middle of the last rotation.
    until_holds("all five keys are published", async || {
        jwks(&family.gateway).await["keys"]
            .as_array()
            .unwrap()
            .len()
            == 5
    })
    .await;
    let made = calls.load(Ordering::Relaxed);
    assert_eq!(agent.count(), made);
    // What arrived was signed by each of the four keys, one of them on P-256.
    let arrived = agent.requests();
    let mut kids: Vec<_> = arrived.iter().map(|r| head(r).kid.unwrap()).collect();
    kids.dedup();
    kids.sort();
    kids.dedup();
    assert_eq!(kids.len(), 4);
    let mut algorithms = arrived.iter().map(|r| head(r).alg);
    assert!(algorithms.any(|one| one == jsonwebtoken::Algorithm::ES256));
    let span = traffic();
    println!("{made} calls in {span:?}, three rotations, none refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_share_keys_take_each_others_tokens_across_rotations() {
    let (sql, redis) = (postgres().database(), Redis::start());
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().display().to_string();
    let replica = || {
        let builder = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
        let builder = builder.set("keys.dir", &dir);
        builder.set("tokens.issuer", "https://gw.example.com")
    };
    let family = Family::on(replica()).await;
    let other = replica().start().await;
    for _ in 0..5 {
        // After two rotations the key that signs was in the folder of no replica that looked before.
        for _ in 0..2 {
            rotate(folder.path(), SigningAlgorithm::EdDsa).unwrap();
        }
        let ours = Keys::load_or_create(folder.path()).unwrap();
        let pair = trust::Pair {
            caller: "one",
            target: "two",
            rule: "sibling",
            org: None,
            generation: 0,
            chain_hash: None,
        };
        let (issuer, life) = ("https://gw.example.com".into(), Duration::from_secs(60));
        let claims = PairClaims::new(issuer, pair, Timestamp::now(), life);
        let token = ours.sign(PAIR_TYP, &claims).unwrap();
        for gateway in [&other, &family.gateway] {
            let request = Request::post(family.two.path(), CALL).bearer(&token);
            // A folder that is not read within 1 s is told of: the token itself is never refused.
            let counts = async || {
                let answer = gateway.call(&request).await;
                let is_slow = answer.status == 503 && answer.reason() == "store_unavailable";
                assert!(is_slow || answer.status == 200, "{}", answer.text());
                !is_slow
            };
            until_holds("the token counts", counts).await;
        }
    }
}

#[tokio::test]
async fn a_retired_key_ends_in_its_time_and_a_stolen_one_when_it_is_deleted() {
    let family = Family::new(Pair::Embedded).await;
    let folder = family.gateway.dir.join("keys");
    let kid = |token: &str| jsonwebtoken::decode_header(token).unwrap().kid.unwrap();
    for too_old in [true, false] {
        let token = family.pair_token().await;
        let old = kid(&token);
        keys(&family.gateway, &["rotate"]);
        let newer = until_found("it signs anew", async || {
            let newer = family.pair_token().await;
            (kid(&newer) != old).then_some(newer)
        })
        .await;
        assert_eq!(family.call(&token).await.0, 200, "retired, it verifies");
        let entries = std::fs::read_dir(&folder).unwrap();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        let retired = paths.find(|path| path.to_string_lossy().contains(&*old));
        let retired = retired.unwrap();
        if too_old {
            std::fs::rename(&retired, folder.join(format!("retired-1-{old}.pem"))).unwrap();
        } else {
            std::fs::remove_file(&retired).unwrap();
        }
        // Also where the token is known already.
        let refused = until_found("it verifies no more", async || {
            let answered = family.call(&token).await;
            (answered.0 != 200).then_some(answered)
        })
        .await;
        assert_eq!(refused, (401, "unauthenticated".to_owned()));
        assert_eq!(family.call(&newer).await.0, 200);
    }
    assert!(!keys(&family.gateway, &["list"]).contains("1970"));
}

#[tokio::test]
async fn keys_that_cannot_be_read_again_are_told_of_and_change_nothing() {
    let family = Family::new(Pair::Embedded).await;
    let gateway = &family.gateway;
    let token = family.pair_token().await;
    assert_eq!(gateway.counts("keys_current", "").await, 1.0);
    let next = gateway.dir.join("keys/next.pem");
    let good = std::fs::read(&next).unwrap();
    std::fs::write(&next, "rubbish\n-----END PRIVATE KEY-----\n").unwrap();
    let until = async |value: f64| {
        let current = async || gateway.counts("keys_current", "").await == value;
        until_holds("a look at the keys", current).await;
    };
    until(0.0).await;
    gateway.until_told("next.pem", 1).await;
    assert_eq!(family.call(&token).await.0, 200);
    claims(gateway, &family.pair_token().await, "two").await;
    std::fs::write(&next, good).unwrap();
    until(1.0).await;
}
