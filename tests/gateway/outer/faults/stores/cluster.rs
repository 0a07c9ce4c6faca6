//! Shared state on Redis Cluster while its slots move, while no node owns any, and while links are lost.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use a2a_gateway::shared::{Notice, Shared};

use super::{message, next, open_shared};
use crate::harness::cluster::{Cluster, cluster};
use crate::harness::servers::{self, Redis};
use crate::harness::until_holds;

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
    let mut watch = shared.watch_keys(vec!["seen:".into()]);
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

/// Clients of a node whose commands wait until `CLIENT PAUSE` is over.
fn waiting(node: &Redis) -> usize {
    let clients = node.command(&["CLIENT", "LIST", "TYPE", "normal"]);
    let is_blocked = |word: &str| word.starts_with("flags=") && word[6..].contains('b');
    let clients = clients.lines();
    clients
        .filter(|client| client.split(' ').any(is_blocked))
        .count()
}

/// Operations that may be repeated are sent again to each master that lost its link, not to the first one only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_at_three_masters_outlives_the_loss_of_all_their_links_at_once() {
    let cluster = Cluster::start();
    let shared = open_shared(&cluster.url());
    shared.ping().await.unwrap();
    let masters = cluster.masters();
    assert_eq!(masters.len(), 3);
    for master in &masters {
        master.command(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    }
    let written = tokio::spawn(async move { shared.ping().await });
    let holds = async || masters.iter().all(|master| waiting(master) > 0);
    until_holds("each master has got its part", holds).await;
    for master in &masters {
        master.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        master.command(&["CLIENT", "UNPAUSE"]);
    }
    written.await.unwrap().unwrap();
}

/// A node of a cluster that says it is up, and owns no slots until it is given all.
struct Node {
    port: u16,
    has_slots: Arc<AtomicBool>,
    /// Number of times that it was asked for the owners of slots.
    asked: Arc<AtomicU32>,
}

impl Node {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (has_slots, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
        let (given, counted) = (Arc::clone(&has_slots), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (given, counted) = (Arc::clone(&given), Arc::clone(&counted));
                std::thread::spawn(move || answer(stream, port, &given, &counted));
            }
        });
        Self {
            port,
            has_slots,
            asked,
        }
    }
}

/// Answers the commands of a connection until it is closed.
fn answer(mut stream: TcpStream, port: u16, has_slots: &AtomicBool, asked: &AtomicU32) {
    let mut commands = BufReader::new(stream.try_clone().unwrap());
    while let Some(words) = command(&mut commands) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = match words[..] {
            ["HELLO", ..] => "%1\r\n$5\r\nproto\r\n:3\r\n".to_owned(),
            ["ROLE"] => "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_owned(),
            ["CLUSTER", "INFO"] => {
                let info = "cluster_state:ok\r\ncluster_current_epoch:1\r\n";
                format!("${}\r\n{info}\r\n", info.len())
            }
            ["CLUSTER", "SLOTS"] => {
                asked.fetch_add(1, Ordering::AcqRel);
                let all = "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n";
                match has_slots.load(Ordering::Acquire) {
                    true => format!("{all}:{port}\r\n$2\r\nid\r\n"),
                    false => "*0\r\n".to_owned(),
                }
            }
            _ => "+OK\r\n".to_owned(),
        };
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Reads a command: an array of strings.
fn command(from: &mut impl BufRead) -> Option<Vec<String>> {
    let words = number(from)?;
    let word = |_| {
        let mut word = vec![0; number(from)? + 2];
        from.read_exact(&mut word).ok()?;
        Some(String::from_utf8_lossy(&word).trim_end().to_owned())
    };
    (0..words).map(word).collect()
}

/// Reads the line `*NUMBER` or `$NUMBER`.
fn number(from: &mut impl BufRead) -> Option<usize> {
    let mut line = String::new();
    from.read_line(&mut line).ok()?;
    line.get(1..)?.trim_end().parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_whose_nodes_own_no_slots_is_asked_until_they_do() {
    let node = Node::start();
    let shared = open_shared(&format!("redis+cluster://127.0.0.1:{}", node.port));
    let mut watch = shared.watch_keys(vec!["slotless:".into()]);
    let up = tokio::spawn(async move { next(&mut watch).await });
    let holds = async || node.asked.load(Ordering::Acquire) > 2;
    until_holds("it is asked again", holds).await;
    let refused = shared.ping().await.unwrap_err();
    let refused = refused.source.to_string();
    assert!(refused.contains("no master that owns slots"), "{refused}");
    node.has_slots.store(true, Ordering::Release);
    assert_eq!(up.await.unwrap(), Notice::Up);
}
