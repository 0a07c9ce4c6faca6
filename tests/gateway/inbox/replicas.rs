//! Two replicas on one pair of stores: many write, many follow, nobody misses anything.

use std::time::{Duration, Instant};

use a2a_gateway::a2a::agent_reply::Update;
use a2a_gateway::delivery::inbox::{Filter, Start, Watch};
use a2a_gateway::rejection::Delivery;
use futures_util::future::join_all;
use serde_json::json;
use tokio::time::timeout;

use super::{NEVER, READERS, Room, WRITERS, assert_alike, id, message, messages, text, write};
use crate::harness::{Pair, servers, until_holds};

/// Writers and readers, half of each on either replica; answers how long it took.
async fn crowd(messages: usize) -> Duration {
    let one = Room::open(Pair::External, |config| {
        config.inbox.max_messages = 1_000_000;
    });
    let one = one.await;
    let two = one.beside().await;
    let rooms = [&one, &two];
    let began = Instant::now();
    let readers = (0..READERS).map(|reader| async move {
        let inbox = &rooms[reader % 2].inbox;
        let (dev, mut watch) = (id("dev"), inbox.watch_inbox(&id("dev")));
        let (mut seen, mut after) = (Vec::with_capacity(messages), 0);
        while seen.len() < messages {
            let (all, from) = (Filter::default(), Start::After(after));
            let page = inbox.read_page(&dev, all, from, 500).await.unwrap();
            for item in &page.items {
                assert_eq!(item.seq, after + 1, "in order, without a gap");
                after = item.seq;
                seen.push(text(item));
            }
            if !page.more && seen.len() < messages {
                let changed = timeout(NEVER, watch.changed()).await;
                changed.expect("a word in time");
            }
        }
        seen
    });
    let ((), seen) = tokio::join!(write(rooms, messages), join_all(readers));
    let took = began.elapsed();
    assert_alike(&seen, messages);
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
    let messages = messages(2_000);
    let took = crowd(messages).await;
    println!("{messages} messages to {READERS} readers: {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_by_the_word_of_another_replica_and_without_redis_by_a_look() {
    let one = Room::open(Pair::External, |_| {}).await;
    let two = one.beside().await;
    let begun = one.put("dev", "1").await;
    let mut inbox = two.inbox.watch_inbox(&id("dev"));
    let mut task = two.inbox.watch_task(&begun.id);
    let told = async |watch: &mut Watch| timeout(NEVER, watch.changed()).await.expect("told");
    let is_quiet = async |watch: &mut Watch, span| {
        let span = Duration::from_millis(span);
        timeout(span, watch.changed()).await.is_err()
    };
    let redis = one.redis.as_ref().unwrap();
    redis.until_subscribed("gw:inbox", 2).await;
    // The link comes up with a wake-up, since what was told before was missed.
    let settle = async |watch: &mut Watch| while !is_quiet(watch, 1_000).await {};
    tokio::join!(settle(&mut inbox), settle(&mut task));

    one.put("dev", "2").await;
    told(&mut inbox).await;
    let quiet = is_quiet(&mut task, 300).await;
    assert!(quiet, "another task is nobody's business");
    let reply = async || {
        let working = Update::StatusUpdate(json!({"status": {"state": "working"}}));
        let dev = id("dev");
        let replied = one.inbox.record_reply(&dev, &begun.id, working, "{}");
        replied.await.unwrap();
    };
    reply().await;
    told(&mut task).await;

    one.redis.as_ref().unwrap().kill();
    // The first look wakes all, since nobody knows what was told before it.
    tokio::join!(told(&mut inbox), told(&mut task));
    one.put("dev", "3").await;
    told(&mut inbox).await;
    reply().await;
    told(&mut task).await;
    assert_eq!(two.after("dev", 1).await, ["2", "3"]);
    let quiet = is_quiet(&mut inbox, 1_500).await;
    assert!(quiet, "no news, no wake-up");

    one.redis.as_ref().unwrap().restart();
    // The link is back.
    told(&mut inbox).await;
    one.put("dev", "4").await;
    told(&mut inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn senders_are_told_whether_a_message_may_be_there() {
    let (relay, url) = servers::postgres().relayed();
    let room = Room::open(Pair::External, |config| {
        // `slow` below is slower than the stores' timeout.
        config.stores.sql = url.into();
    })
    .await;
    room.put("dev", "1").await;
    relay.cut();
    let put = async |text: &str| room.inbox.put(message("dev", text)).await;
    let refused = put("2").await.unwrap_err();
    assert_eq!(refused.reason.as_str(), "store_unavailable");
    assert_eq!(refused.delivered, Some(Delivery::NotSent));
    relay.resume();
    let is_back = async || put("3").await.is_ok();
    until_holds("the store is back", is_back).await;
    assert_eq!(room.after("dev", 0).await, ["1", "3"]);
    // Where it is the commit that does not end, nobody knows.
    for text in [
        "CREATE FUNCTION slow() RETURNS trigger AS 'BEGIN PERFORM pg_sleep(30); RETURN NULL; END' LANGUAGE plpgsql",
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON activity_logs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()",
    ] {
        sqlx::query(text).execute(room.db.pool()).await.unwrap();
    }
    let refused = put("4").await.unwrap_err();
    assert_eq!(refused.delivered, Some(Delivery::Unknown));
}
