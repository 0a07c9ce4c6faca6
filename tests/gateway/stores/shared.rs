//! Shared state, in process, on Redis and on Redis Cluster.

use std::time::Duration;

use a2a_gateway::shared::{Notice, Shared};

use futures_util::future::join_all;

use super::{message, next, open_shared};
use crate::harness::cluster::cluster;
use crate::harness::servers::{self, Redis};
use crate::harness::until_holds;

const MINUTE: Duration = Duration::from_secs(60);

/// In process, on a server, on a cluster. On Redis the cases share them: each prefixes its keys.
pub(super) fn each() -> [Shared; 3] {
    [
        open_shared("memory"),
        open_shared(&servers::redis().url()),
        open_shared(&cluster().url()),
    ]
}

#[tokio::test]
async fn what_was_written_is_read_and_what_was_deleted_is_not() {
    for shared in each() {
        shared.set("rt:a", "1 ü \u{0}", None).await.unwrap();
        shared.set("rt:b", "", Some(MINUTE)).await.unwrap();
        assert_eq!(shared.get("rt:a").await.unwrap().unwrap(), "1 ü \u{0}");
        let keys = ["rt:missing", "rt:b", "rt:a"];
        let values = shared.get_many(&keys).await.unwrap();
        assert_eq!(values, [None, Some("".into()), Some("1 ü \u{0}".into())]);
        shared.delete(&["rt:a", "rt:missing"]).await.unwrap();
        assert_eq!(shared.get("rt:a").await.unwrap(), None);
        assert!(shared.get_many(&[]).await.unwrap().is_empty());
        shared.delete(&[]).await.unwrap();
        shared.ping().await.unwrap();
    }
}

#[tokio::test]
async fn a_time_to_live_is_told_replaced_and_forgotten() {
    for shared in each() {
        shared.set("ttl:a", "1", Some(MINUTE)).await.unwrap();
        let (_, ttl) = shared.get_with_ttl("ttl:a").await.unwrap().unwrap();
        assert!(ttl.is_some_and(|ttl| MINUTE / 2 < ttl && ttl <= MINUTE));
        shared.set("ttl:a", "2", Some(MINUTE * 9)).await.unwrap();
        let (_, ttl) = shared.get_with_ttl("ttl:a").await.unwrap().unwrap();
        assert!(ttl.is_some_and(|ttl| MINUTE < ttl));
        shared.set("ttl:a", "3", None).await.unwrap();
        let read = shared.get_with_ttl("ttl:a").await.unwrap();
        assert_eq!(read, Some(("3".into(), None)));
        assert_eq!(shared.get_with_ttl("ttl:missing").await.unwrap(), None);
    }
}

#[tokio::test]
async fn keys_lapse() {
    for shared in each() {
        let soon = Duration::from_millis(30);
        shared.set("lapse:a", "1", Some(soon)).await.unwrap();
        shared.set_if_absent("lapse:b", "1", soon).await.unwrap();
        shared.increment("lapse:c", soon).await.unwrap();
        // Less than the finest unit is not "for good".
        let least = Some(Duration::ZERO);
        shared.set("lapse:d", "1", least).await.unwrap();
        tokio::time::sleep(soon * 3).await;
        let keys = ["lapse:a", "lapse:b", "lapse:c", "lapse:d"];
        let values = shared.get_many(&keys).await.unwrap();
        assert_eq!(values, [None, None, None, None]);
        assert!(shared.set_if_absent("lapse:b", "2", soon).await.unwrap());
        assert_eq!(shared.increment("lapse:c", soon).await.unwrap(), 1);
    }
}

/// On Redis they go to the server in one message.
#[tokio::test]
async fn of_many_who_write_at_once_each_gets_its_own_answer() {
    for shared in each() {
        shared.set("at-once:there", "1", None).await.unwrap();
        let writes = (0..300).map(|n| {
            let shared = shared.clone();
            tokio::spawn(async move {
                let (key, missing) = (format!("at-once:{n}"), format!("at-once:missing:{n}"));
                let (keys, value) = (["at-once:there", missing.as_str()], n.to_string());
                let (written, renewed) = tokio::join!(
                    shared.set(&key, &value, Some(MINUTE)),
                    shared.refresh(&keys, MINUTE),
                );
                written.unwrap();
                assert_eq!(renewed.unwrap(), [true, false]);
            })
        });
        let writes: Vec<_> = writes.collect();
        // One that the server refuses: more time than it can count.
        let refused = shared.set("at-once:refused", "1", Some(Duration::MAX));
        assert_eq!(refused.await.is_err(), !shared.is_embedded());
        for write in writes {
            write.await.unwrap();
        }
        for n in [0, 150, 299] {
            let value = shared.get(&format!("at-once:{n}")).await.unwrap();
            assert_eq!(value, Some(n.to_string()));
        }
    }
}

#[tokio::test]
async fn each_runtime_writes_by_itself_and_none_waits_for_one_that_ended() {
    for shared in each() {
        let threads = (0..4).map(|thread| {
            let shared = shared.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    for n in 0..50 {
                        let key = format!("runtimes:{thread}:{n}");
                        shared.set(&key, "1", Some(MINUTE)).await.unwrap();
                    }
                    // Left in the middle: the runtime ends before it is written.
                    let last = shared.set("runtimes:last", "1", Some(MINUTE));
                    let _ = tokio::time::timeout(Duration::ZERO, last).await;
                });
            })
        });
        for thread in threads.collect::<Vec<_>>() {
            let joined = tokio::task::spawn_blocking(|| thread.join().unwrap());
            joined.await.unwrap();
        }
        let after = shared.set("runtimes:after", "1", Some(MINUTE));
        after.await.unwrap();
    }
}

#[tokio::test]
async fn of_many_claims_one_wins() {
    for shared in each() {
        let claims = (0..20).map(|number| {
            let shared = shared.clone();
            let claim = async move {
                let value = number.to_string();
                shared.set_if_absent("claim", &value, MINUTE).await.unwrap()
            };
            tokio::spawn(claim)
        });
        let claims = join_all(claims).await.into_iter();
        assert_eq!(claims.filter(|claim| *claim.as_ref().unwrap()).count(), 1);
        shared.delete(&["claim"]).await.unwrap();
        assert!(shared.set_if_absent("claim", "x", MINUTE).await.unwrap());
    }
}

#[tokio::test]
async fn a_counter_counts_each_and_lapses_from_its_first_increment() {
    for shared in each() {
        let counts = (0..20).map(|_| {
            let shared = shared.clone();
            tokio::spawn(async move { shared.increment("count", MINUTE).await.unwrap() })
        });
        let seen = join_all(counts).await.into_iter();
        let mut seen: Vec<_> = seen.map(Result::unwrap).collect();
        seen.sort_unstable();
        assert_eq!(seen, (1..=20).collect::<Vec<i64>>());
        shared.increment("count", MINUTE * 60).await.unwrap();
        let (value, ttl) = shared.get_with_ttl("count").await.unwrap().unwrap();
        assert_eq!(value, "21");
        assert!(ttl.is_some_and(|ttl| ttl <= MINUTE));
        shared.set("count", "many", None).await.unwrap();
        assert!(shared.increment("count", MINUTE).await.is_err());
    }
}

#[tokio::test]
async fn what_is_published_reaches_every_subscriber_of_the_channel() {
    for shared in each() {
        let mut first = shared.subscribe("case:news");
        let mut second = shared.clone().subscribe("case:news");
        let mut other = shared.subscribe("case:other");
        for subscription in [&mut first, &mut second, &mut other] {
            assert_eq!(next(subscription).await, Notice::Up);
        }
        shared.publish("case:news", "one").await.unwrap();
        shared.publish("case:news", "two ü").await.unwrap();
        shared.publish("case:other", "three").await.unwrap();
        for subscription in [&mut first, &mut second] {
            assert_eq!(next(subscription).await, message("one"));
            assert_eq!(next(subscription).await, message("two ü"));
        }
        assert_eq!(next(&mut other).await, message("three"));
        drop(first);
        shared.publish("case:news", "four").await.unwrap();
        assert_eq!(next(&mut second).await, message("four"));
    }
}

#[tokio::test]
async fn a_watch_tells_of_every_change_under_its_prefixes_and_of_no_other() {
    for shared in each() {
        let prefixes = ["watch:a:", "watch:", "watched:"].map(String::from);
        let mut watch = shared.watch_keys(prefixes.into());
        assert_eq!(next(&mut watch).await, Notice::Up);
        shared.set("unwatched", "1", None).await.unwrap();
        shared.set("watch:a:1", "1", None).await.unwrap();
        assert_eq!(next(&mut watch).await, message("watch:a:1"));
        let absent = shared.set_if_absent("watched:2", "1", MINUTE);
        absent.await.unwrap();
        assert_eq!(next(&mut watch).await, message("watched:2"));
        shared.increment("watch:3", MINUTE).await.unwrap();
        assert_eq!(next(&mut watch).await, message("watch:3"));
        shared.delete(&["watch:a:1"]).await.unwrap();
        assert_eq!(next(&mut watch).await, message("watch:a:1"));
    }
}

#[tokio::test]
async fn a_watch_on_redis_hears_other_programs_lapsing_keys_and_a_flush() {
    let redis = Redis::start();
    let mut watch = open_shared(&redis.url()).watch_keys(vec!["ws:".into()]);
    assert_eq!(next(&mut watch).await, Notice::Up);
    redis.command(&["SET", "ws:1:url", "http://other"]);
    assert_eq!(next(&mut watch).await, message("ws:1:url"));
    redis.command(&["PEXPIRE", "ws:1:url", "50"]);
    assert_eq!(next(&mut watch).await, message("ws:1:url"));
    assert_eq!(next(&mut watch).await, message("ws:1:url"));
    redis.command(&["FLUSHALL"]);
    assert_eq!(next(&mut watch).await, Notice::Down);
    assert_eq!(next(&mut watch).await, Notice::Up);
}

#[tokio::test]
async fn of_many_who_add_at_once_none_removes_one_of_the_newest() {
    let redis = Redis::start();
    let shared = open_shared(&redis.url());
    let adds = (0..64).map(|n| {
        let shared = shared.clone();
        async move {
            shared
                .add_newest("newest", &n.to_string(), 10, MINUTE)
                .await
        }
    });
    let removed: Vec<_> = join_all(adds.map(tokio::spawn)).await;
    let removed = removed.into_iter().flat_map(|add| add.unwrap().unwrap());
    let removed: std::collections::BTreeSet<String> = removed.collect();
    assert_eq!(redis.command(&["ZCARD", "newest"]).trim(), "10");
    assert_eq!(removed.len(), 54, "each of the others is reported");
}

#[tokio::test]
async fn watching_nothing_hears_nothing() {
    for shared in each() {
        let mut watch = shared.watch_keys(Vec::new());
        assert_eq!(next(&mut watch).await, Notice::Up);
        shared.set("nothing:1", "1", None).await.unwrap();
        let wait = tokio::time::timeout(Duration::from_millis(100), watch.next());
        assert!(wait.await.is_err());
    }
}

#[tokio::test]
async fn a_dropped_subscription_closes_its_connection() {
    let redis = Redis::start();
    let clients = || redis.command(&["CLIENT", "LIST"]).lines().count();
    // Who looks is one. Who looked before, and the harness, may be counted a moment longer.
    let until = async |count: usize| {
        until_holds(&format!("{count} are open"), async || clients() == count).await;
    };
    until(1).await;
    let mut news = open_shared(&redis.url()).subscribe("case:news");
    assert_eq!(next(&mut news).await, Notice::Up);
    until(2).await;
    drop(news);
    until(1).await;
}

#[tokio::test]
async fn redis_may_be_reached_by_tls_with_an_issuer_of_its_own() {
    let redis = Redis::start_tls();
    let shared = open_shared(&redis.url());
    shared.set("tls", "1", None).await.unwrap();
    assert_eq!(shared.get("tls").await.unwrap().as_deref(), Some("1"));
    let mut news = shared.subscribe("case:news");
    assert_eq!(next(&mut news).await, Notice::Up);
    let strangers = redis.url();
    let (unchecked, _) = strangers.split_once('?').unwrap();
    assert!(open_shared(unchecked).ping().await.is_err());
}

#[tokio::test]
async fn a_numbered_log_keeps_its_newest_and_takes_no_number_twice() {
    let entry = |n: u64| {
        let bytes = vec![b'e', 0xff, u8::try_from(n).unwrap()];
        (n, bytes::Bytes::from(bytes))
    };
    for shared in each() {
        let log = "numbered:a";
        // A try without an answer may have been heard.
        for (numbers, keep) in [([1, 2], 9), ([2, 3], 9), ([7, 8], 4)] {
            let entries = numbers.map(entry);
            let append = shared.append_numbered(log, &entries, keep, MINUTE);
            append.await.unwrap();
        }
        let read = async |after, max| shared.read_numbered(log, after, max).await.unwrap();
        assert_eq!(read(0, 9).await, [2, 3, 7, 8].map(entry));
        assert_eq!(read(3, 1).await, [entry(7)]);
        assert_eq!(read(8, 9).await, []);
        assert_eq!(read(u64::MAX, 9).await, []);
        shared.append_numbered(log, &[], 9, MINUTE).await.unwrap();
        let soon = Duration::from_millis(30);
        let entries = [entry(1)];
        let append = shared.append_numbered("numbered:b", &entries, 9, soon);
        append.await.unwrap();
        tokio::time::sleep(soon * 3).await;
        assert_eq!(shared.read_numbered("numbered:b", 0, 9).await.unwrap(), []);
    }
}
