//! Unit tests of keys: equality of calls, and concurrent claims.

use std::sync::Arc;

use super::{Answer, Calls, ClaimEnd, Key, KeyStatus, Outcome, Source, call_hash};
use crate::mailbox::Mailbox;
use kernel::config::{self, Config};
use kernel::metrics::Metrics;
use kernel::rejection::Delivery;
use stores::db::Db;
use stores::shared::Shared;

#[test]
fn a_key_is_of_a_caller_a_target_a_place_and_a_name_and_its_body_is_told_apart() {
    let whose = ("pm", "dev");
    let call = || call_hash("send_message", b"{}");
    let key = Key::new(whose, (Source::Field, "k"), call());
    assert_eq!(key, Key::new(whose, (Source::Field, "k"), call()));
    for other in [
        Key::new(("qa", "dev"), (Source::Field, "k"), call()),
        Key::new(("pm", "ops"), (Source::Field, "k"), call()),
        Key::new(("p", "mdev"), (Source::Field, "k"), call()),
        Key::new(whose, (Source::Task, "k"), call()),
        Key::new(whose, (Source::Field, "l"), call()),
    ] {
        assert_ne!(other.scope, key.scope);
    }
    for (method, body) in [("send_message", &b"{ }"[..]), ("other", b"{}")] {
        let other = Key::new(whose, (Source::Field, "k"), call_hash(method, body));
        assert_eq!(other.scope, key.scope);
        assert_ne!(other.body, key.body);
    }
    assert_eq!(key.scope.len(), 64);
}

fn calls() -> Arc<Calls> {
    calls_in(&tempfile::tempdir().unwrap())
}

fn calls_in(folder: &tempfile::TempDir) -> Arc<Calls> {
    let mut config: Config = toml::from_str(config::load::DEFAULT).unwrap();
    // The database is opened on first use, which does not happen here.
    let sql = format!("sqlite:{}", folder.path().join("gateway.db").display());
    config.stores.sql = sql.into();
    config.stores.shared = "memory".to_owned().into();
    config.stores.timeout = std::time::Duration::from_secs(60);
    let metrics = Arc::new(Metrics::new());
    let db = Db::open(&config.stores, Arc::clone(&metrics)).unwrap();
    let shared = Shared::open(&config.stores, Arc::clone(&metrics)).unwrap();
    Calls::new(Mailbox::new(config.into(), (db, shared), metrics))
}

#[tokio::test]
async fn a_call_that_runs_is_found_whoever_comes_with_another_body() {
    let calls = calls();
    let key = |body: &[u8]| {
        Key::new(
            ("pm", "dev"),
            (Source::Field, "k"),
            call_hash("send_message", body),
        )
    };
    let (running, other) = (key(b"1"), key(b"2"));
    let tell = calls.open_call(&running).ok().unwrap();
    let others = calls.open_call(&other).ok().unwrap();
    assert!(calls.open_call(&running).is_err(), "it is waited for");
    calls.close_call(&other);
    drop(others);
    let mut waiting = calls.find_watch(&running).expect("it runs still");
    assert!(calls.find_watch(&other).is_none());
    tell.send_replace(Some(Outcome::Nothing));
    assert!(matches!(waiting.wait_for_outcome().await, Outcome::Nothing));
    calls.close_call(&running);
    assert!(calls.open.lock().is_empty());
}

#[tokio::test]
async fn a_claim_that_is_over_leaves_the_key_to_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let calls = calls_in(&folder);
    calls.mailbox.db.migrate().await.unwrap();
    let key = Key::new(
        ("pm", "dev"),
        (Source::Field, "k"),
        call_hash("send_message", b"1"),
    );
    let claim = async || {
        let KeyStatus::Unclaimed(unclaimed) = calls.look_up(&key).await.unwrap() else {
            panic!("not unclaimed");
        };
        calls.claim(unclaimed).await.unwrap().unwrap().0
    };
    let mut first = claim().await;
    calls.settle_claim(first.lease(), ClaimEnd::Release).await;
    first.publish_outcome(Outcome::Nothing);
    // Another caller claims the key before the first one drops its finished claim.
    let second = claim().await;
    drop(first);
    assert!(calls.find_watch(&key).is_some(), "it runs, and is renewed");
    drop(second);
    assert!(calls.open.lock().is_empty());
}

#[tokio::test]
async fn a_stream_that_could_not_be_noted_is_unknown_and_one_that_was_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let calls = calls_in(&folder);
    calls.mailbox.db.migrate().await.unwrap();
    for noted in [false, true] {
        let name = if noted { "noted" } else { "not" };
        let key = Key::new(
            ("pm", "dev"),
            (Source::Field, name),
            call_hash("send_message", b"1"),
        );
        let KeyStatus::Unclaimed(unclaimed) = calls.look_up(&key).await.unwrap() else {
            panic!("not unclaimed");
        };
        let (claim, _) = calls.claim(unclaimed).await.unwrap().unwrap();
        if noted {
            let answer = Answer {
                status: 200,
                fields: http::HeaderMap::new(),
                body: bytes::Bytes::new(),
                kept: true,
            };
            claim.publish_stream(answer, "s-1".to_owned()).await;
        }
        let lease = key.lease(claim.fence);
        claim.record_stream_end(None).await;
        // As when its end could not be written at once.
        calls.settle_claim(lease, ClaimEnd::Unknown).await;
        let KeyStatus::Settled(outcome) = calls.look_up(&key).await.unwrap() else {
            panic!("{name} is not over");
        };
        match outcome {
            Outcome::Stream(answer, stream) => {
                assert_eq!((noted, answer.status, &*stream), (true, 200, "s-1"))
            }
            Outcome::Refused(why) => {
                assert!(!noted);
                assert_eq!(why.delivered, Some(Delivery::Unknown));
            }
            _ => panic!("{name}"),
        }
    }
}
