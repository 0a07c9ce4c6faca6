//! Logs and single takes, in process and on Redis; what becomes of a log over outages.

use std::time::Duration;

use a2a_gateway::shared::{EntryId, LogEvent, Shared, Tail};

use futures_util::future::join_all;

use super::open_shared;
use super::shared::each;
use crate::harness::servers::Redis;

fn texts(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

async fn append(shared: &Shared, log: &'static str, range: std::ops::Range<usize>) {
    shared.append(log, &texts(range), 5_000).await.unwrap();
}

/// The next news.
async fn next(tail: &mut Tail) -> LogEvent {
    let next = tokio::time::timeout(Duration::from_secs(60), tail.next());
    next.await.expect("news")
}

/// Whatever was appended, until `count` are there. Ids grow.
async fn entries(tail: &mut Tail, count: usize) -> Vec<String> {
    let (mut seen, mut last) = (Vec::new(), EntryId::START);
    while seen.len() < count {
        match next(tail).await {
            LogEvent::Entries(entries) => {
                for entry in entries {
                    assert!(last < entry.id);
                    last = entry.id;
                    seen.push(entry.text);
                }
            }
            LogEvent::Up | LogEvent::Down => {}
            other => panic!("{other:?} after {} entries", seen.len()),
        }
    }
    seen
}

async fn begun(tail: &mut Tail) -> Vec<String> {
    assert_eq!(next(tail).await, LogEvent::Up);
    match next(tail).await {
        LogEvent::Backlog(entries) => entries.into_iter().map(|entry| entry.text).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_log_is_followed_in_order_from_what_is_there() {
    for shared in each() {
        append(&shared, "case:log", 0..10).await;
        let mut tail = shared.follow_log("case:log", 3);
        assert_eq!(begun(&mut tail).await, texts(7..10));
        let mut second = shared.follow_log("case:log", 1);
        append(&shared, "case:log", 10..1_000).await;
        assert_eq!(entries(&mut tail, 990).await, texts(10..1_000));
        begun(&mut second).await;
        // Dropped while it waits: nothing is lost by that.
        let wait = Duration::from_millis(50);
        assert!(tokio::time::timeout(wait, tail.next()).await.is_err());
        append(&shared, "case:log", 1_000..1_002).await;
        assert_eq!(entries(&mut tail, 2).await, texts(1_000..1_002));
        shared.append("case:log", &[], 1).await.unwrap();
    }
}

#[tokio::test]
async fn of_many_takers_one_gets_it() {
    for shared in each() {
        shared.set("case:take", "it", None).await.unwrap();
        let takes = (0..20).map(|_| {
            let shared = shared.clone();
            tokio::spawn(async move { shared.take("case:take").await.unwrap() })
        });
        let taken = join_all(takes).await.into_iter();
        let taken: Vec<_> = taken.filter_map(Result::unwrap).collect();
        assert_eq!(taken, ["it"]);
        assert_eq!(shared.get("case:take").await.unwrap(), None);
    }
}

#[tokio::test]
async fn nothing_is_lost_over_a_dead_link_and_a_lost_log_is_told() {
    let redis = Redis::start();
    let direct = open_shared(&redis.url());
    let (relay, url) = redis.relayed();
    let shared = open_shared(&url);
    let mut tail = shared.follow_log("case:log", 10);
    assert!(begun(&mut tail).await.is_empty());
    append(&direct, "case:log", 0..5).await;
    assert_eq!(entries(&mut tail, 5).await, texts(0..5));
    relay.strand();
    append(&direct, "case:log", 5..300).await;
    assert_eq!(entries(&mut tail, 295).await, texts(5..300));
    relay.cut();
    assert_eq!(next(&mut tail).await, LogEvent::Down);
    append(&direct, "case:log", 300..310).await;
    relay.resume();
    assert_eq!(entries(&mut tail, 10).await, texts(300..310));
    // Cut further than was read.
    relay.cut();
    assert_eq!(next(&mut tail).await, LogEvent::Down);
    append(&direct, "case:log", 310..320).await;
    redis.command(&["XTRIM", "case:log", "MAXLEN", "2"]);
    relay.resume();
    assert_eq!(next(&mut tail).await, LogEvent::Up);
    assert_eq!(next(&mut tail).await, LogEvent::Lost);
    assert_eq!(entries(&mut tail, 2).await, texts(318..320));
    // Flushed, and begun again by a clock that is behind.
    redis.command(&["FLUSHALL"]);
    assert_eq!(next(&mut tail).await, LogEvent::Lost);
    redis.command(&["XADD", "case:log", "5-0", "e", "anew"]);
    assert_eq!(entries(&mut tail, 1).await, ["anew"]);
    redis.command(&["DEL", "case:log"]);
    redis.command(&["XADD", "case:log", "4-0", "e", "behind"]);
    assert_eq!(next(&mut tail).await, LogEvent::Lost);
    assert_eq!(entries(&mut tail, 1).await, ["behind"]);
}
