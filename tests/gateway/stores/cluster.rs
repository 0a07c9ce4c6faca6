//! Shared state on Redis Cluster while its slots move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use a2a_gateway::shared::{Notice, Shared};

use super::{message, next, open_shared};
use crate::harness::cluster::{Cluster, cluster};
use crate::harness::servers;

/// Writes counters while slots move. Each increment that is acknowledged counts once: a command follows its key, and is
/// not sent twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_write_is_lost_or_doubled_while_slots_move() {
    let cluster = Cluster::start();
    let shared = open_shared(&cluster.url());
    let over = Arc::<AtomicBool>::default();
    let count = |name: usize| {
        let (shared, over) = (shared.clone(), Arc::clone(&over));
        tokio::spawn(async move {
            let key = format!("moved:{name}");
            let mut counted = 0;
            while !over.load(Ordering::Acquire) {
                let now = shared.increment(&key, Duration::from_mins(10)).await;
                counted += 1;
                assert_eq!(now.unwrap(), counted, "{key}");
            }
            counted
        })
    };
    let counting: Vec<_> = (0..40).map(count).collect();
    for _ in 0..2 {
        let from = cluster.owner("moved:news");
        let to = cluster.owner_besides(from);
        tokio::task::block_in_place(|| cluster.reshard(from, to, 3000));
    }
    over.store(true, Ordering::Release);
    let mut counted = 0;
    for count in counting {
        counted += count.await.unwrap();
    }
    println!("{counted} increments while 6000 slots moved");
    hears(&shared, "moved:news").await;
}

/// Asserts that a message, and a change of a key of each master, reach a subscriber again.
async fn hears(shared: &Shared, channel: &'static str) {
    let mut news = shared.subscribe(channel);
    let mut watch = shared.watch(vec!["seen:".into()]);
    assert_eq!(next(&mut news).await, Notice::Up);
    assert_eq!(next(&mut watch).await, Notice::Up);
    shared.publish(channel, "one").await.unwrap();
    assert_eq!(next(&mut news).await, message("one"));
    for n in 0..30 {
        let key = format!("seen:{n}");
        shared.set(&key, "1", None).await.unwrap();
        assert_eq!(next(&mut watch).await, message(&key));
    }
}

#[tokio::test]
async fn a_server_that_is_in_no_cluster_is_told() {
    let redis = servers::redis();
    let url = format!("redis+cluster://127.0.0.1:{}", redis.port());
    let error = open_shared(&url).ping().await.unwrap_err();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(next) = source {
        text.push_str(&format!(": {next}"));
        source = next.source();
    }
    assert!(text.contains("none of 1 nodes"), "{text}");
    assert!(text.contains("cluster support disabled"), "{text}");
    // And the other way round.
    let node = cluster().url().replace("+cluster", "");
    let (first, _) = node.split_once(',').unwrap();
    let shared = open_shared(first);
    let mut said = String::new();
    for n in 0..50 {
        if let Err(error) = shared.get(&format!("told:{n}")).await {
            said = format!("{error}: {}", error.source);
        }
    }
    assert!(said.contains("write `redis+cluster://`"), "{said}");
}
