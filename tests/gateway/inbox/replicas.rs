//! Two replicas on one pair of stores: many write, many follow, nobody misses anything.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use a2a_gateway::a2a::dialect::Update;
use a2a_gateway::delivery::inbox::{Filter, Start};
use a2a_gateway::rejection::Delivery;
use futures_util::future::join_all;
use serde_json::json;
use tokio::time::timeout;

use super::{Room, SOON, id, messages, text};
use crate::harness::{Pair, calmly};

const WRITERS: usize = 50;

const READERS: usize = 10;

/// Writers and readers, half of each on either replica; answers how long it took.
async fn crowd(messages: usize) -> Duration {
    let one = Room::open(Pair::External, |config| {
        config.inbox.max_messages = 1_000_000
    })
    .await;
    let two = one.beside().await;
    let rooms = [&one, &two];
    let began = Instant::now();
    let writers = (0..WRITERS).map(|writer| async move {
        for n in 0..messages / WRITERS {
            rooms[writer % 2].put("dev", &format!("{writer} {n}")).await;
        }
    });
    let readers = (0..READERS).map(|reader| async move {
        let inbox = &rooms[reader % 2].inbox;
        let (dev, mut watch) = (id("dev"), inbox.watch(&id("dev")));
        let (mut seen, mut after) = (Vec::with_capacity(messages), 0);
        while seen.len() < messages {
            let page = inbox
                .page(&dev, Filter::default(), Start::After(after), 500)
                .await
                .unwrap();
            for item in &page.items {
                assert_eq!(item.seq, after + 1, "in order, without a gap");
                after = item.seq;
                seen.push(text(item));
            }
            if !page.more && seen.len() < messages {
                timeout(SOON * 6, watch.changed())
                    .await
                    .expect("a word in time");
            }
        }
        seen
    });
    let ((), seen) = tokio::join!(
        async {
            join_all(writers).await;
        },
        join_all(readers)
    );
    let took = began.elapsed();
    let all: HashSet<&String> = seen[0].iter().collect();
    assert_eq!(all.len(), messages, "each once");
    for others in &seen[1..] {
        assert_eq!(others, &seen[0], "every reader reads the same");
    }
    // Who waits for the answer to one message before it sends the next is read in that order.
    let mut next = vec![0; WRITERS];
    for text in &seen[0] {
        let (writer, n) = text.split_once(' ').unwrap();
        let next = &mut next[writer.parse::<usize>().unwrap()];
        assert_eq!(n.parse::<usize>().unwrap(), *next);
        *next += 1;
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_write_and_ten_read_each_message_once_and_in_order() {
    let messages = messages(5_000);
    let took = crowd(messages).await;
    println!("{messages} messages to {READERS} readers: {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_by_the_word_of_another_replica_and_without_redis_by_a_look() {
    calmly(async || {
        let one = Room::open(Pair::External, |config| {
            config.stores.timeout = Duration::from_secs(2)
        })
        .await;
        let two = one.beside().await;
        let begun = one.put("dev", "1").await;
        let mut inbox = two.inbox.watch(&id("dev"));
        let mut task = two.inbox.watch_task(&begun.id);
        // The link comes up with a wake-up, since what was told before was missed.
        let quiet = async |watch: &mut a2a_gateway::delivery::inbox::Watch| {
            while timeout(Duration::from_secs(2), watch.changed())
                .await
                .is_ok()
            {}
        };
        tokio::join!(quiet(&mut inbox), quiet(&mut task));

        let heard = Instant::now();
        one.put("dev", "2").await;
        timeout(SOON, inbox.changed()).await.expect("told");
        assert!(
            heard.elapsed() < Duration::from_secs(1),
            "{:?}",
            heard.elapsed()
        );
        let pause = Duration::from_millis(300);
        assert!(
            timeout(pause, task.changed()).await.is_err(),
            "another task is nobody's business"
        );
        let working = || Update::StatusUpdate(json!({"status": {"state": "working"}}));
        one.inbox
            .reply(&id("dev"), &begun.id, working(), "{}")
            .await
            .unwrap();
        timeout(SOON, task.changed()).await.expect("told");

        one.redis.as_ref().unwrap().kill();
        // The first look wakes all, since nobody knows what was told before it.
        tokio::join!(
            async { timeout(SOON, inbox.changed()).await.expect("woken") },
            async { timeout(SOON, task.changed()).await.expect("woken") },
        );
        let began = Instant::now();
        one.put("dev", "3").await;
        assert!(began.elapsed() < SOON, "no message waits for Redis");
        timeout(SOON, inbox.changed()).await.expect("looked");
        one.inbox
            .reply(&id("dev"), &begun.id, working(), "{}")
            .await
            .unwrap();
        timeout(SOON, task.changed()).await.expect("looked");
        assert_eq!(two.after("dev", 1).await, ["2", "3"]);
        assert!(
            timeout(Duration::from_secs(3), inbox.changed())
                .await
                .is_err(),
            "no news, no wake-up"
        );

        one.redis.as_ref().unwrap().restart();
        timeout(SOON, inbox.changed())
            .await
            .expect("the link is back");
        one.put("dev", "4").await;
        timeout(SOON, inbox.changed()).await.expect("told");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn senders_are_told_whether_a_message_may_be_there() {
    let (relay, url) = crate::harness::servers::postgres().relayed();
    let room = Room::open(Pair::External, |config| {
        config.stores.sql = url.into();
        // Long enough for what is not slow; `slow` below is slower.
        config.stores.timeout = Duration::from_secs(2);
    })
    .await;
    room.put("dev", "1").await;
    relay.cut();
    let refused = room
        .inbox
        .put(super::message("dev", "2"))
        .await
        .unwrap_err();
    assert_eq!(refused.reason.as_str(), "store_unavailable");
    assert_eq!(refused.delivered, Some(Delivery::NotSent));
    relay.resume();
    let deadline = Instant::now() + SOON;
    while let Err(refused) = room.inbox.put(super::message("dev", "3")).await {
        assert!(Instant::now() < deadline, "{}", refused.message);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(room.after("dev", 0).await, ["1", "3"]);
    // Where it is the commit that does not end, nobody knows.
    let slow = [
        "CREATE FUNCTION slow() RETURNS trigger AS 'BEGIN PERFORM pg_sleep(5); RETURN NULL; END' LANGUAGE plpgsql",
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON activity_logs DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION slow()",
    ];
    for text in slow {
        sqlx::query(text).execute(room.db.pool()).await.unwrap();
    }
    let refused = room
        .inbox
        .put(super::message("dev", "4"))
        .await
        .unwrap_err();
    assert_eq!(refused.delivered, Some(Delivery::Unknown));
}
