//! Unit tests of the pool: its bound, the choice of a connection, and what is closed.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::connector::build_peer;
use tokio::time::timeout;

const IDLE: Duration = Duration::from_secs(4);

/// A pool for two threads, of which each, and the others together, keep at most `max` connections.
fn pool(max: usize) -> Arc<Pool> {
    Arc::new(Pool::new(3 * max, 2, Arc::default()))
}

fn key(pool: &Pool, agent: &str) -> PoolKey {
    pool.key_of(&HttpPeer::new(agent, false, String::new()))
}

/// Puts a connection into the pool, and returns the agent's end.
fn put(pool: &Arc<Pool>, key: PoolKey) -> DuplexStream {
    let (ours, agents) = duplex(64);
    pool.put(key, Box::new(ours), IDLE);
    agents
}

/// Asserts that the taken connection is the one with this end.
async fn is_that_of(taken: Option<Stream>, agents: &mut DuplexStream) {
    taken.expect("a connection").write_all(b"x").await.unwrap();
    assert_eq!(agents.read_u8().await.unwrap(), b'x', "another one");
}

/// Awaits the close of the gateway's end.
async fn is_closed(agents: &mut DuplexStream) -> bool {
    let mut byte = [0];
    let read = agents.read(&mut byte);
    let read = timeout(Duration::from_millis(1), read).await;
    matches!(read, Ok(Ok(0)))
}

/// Returns the number of connections that are kept, of all threads.
fn kept(pool: &Pool) -> usize {
    let shards = (0..pool.shards.len()).map(|number| {
        let shard = pool.lock_shard(number);
        let held = shard.idle.values().map(Vec::len).sum::<usize>();
        assert_eq!(held, shard.count, "{number}");
        held
    });
    shards.sum()
}

#[tokio::test]
async fn the_connection_that_was_used_last_is_taken_first() {
    let pool = pool(8);
    let (one, other) = (key(&pool, "192.0.2.1:80"), key(&pool, "192.0.2.2:80"));
    let (mut first, mut second) = (put(&pool, one), put(&pool, one));
    assert!(pool.take(&other).is_none());
    is_that_of(pool.take(&one), &mut second).await;
    is_that_of(pool.take(&one), &mut first).await;
    assert!(pool.take(&one).is_none());
    assert_eq!(kept(&pool), 0);
}

#[tokio::test]
async fn peers_that_differ_share_no_connection() {
    let pool = pool(8);
    let peer = |tls, sni: &str, group| {
        let mut peer = HttpPeer::new("192.0.2.1:80", tls, sni.to_owned());
        peer.group_key = group;
        pool.key_of(&peer)
    };
    let plain = |name| {
        let address = "192.0.2.1:80".parse().unwrap();
        pool.key_of(&build_peer(address, false, name, IDLE))
    };
    let keys = [
        plain("a.example"),
        plain("b.example"),
        peer(true, "a.example", 0),
        peer(true, "b.example", 0),
        peer(true, "a.example", 1),
    ];
    let _agents = keys.map(|key| put(&pool, key));
    for key in keys {
        assert!(pool.take(&key).is_some() && pool.take(&key).is_none());
    }
    assert_eq!(peer(true, "a.example", 1), peer(true, "a.example", 1));
    assert_eq!(plain("a.example"), plain("a.example"));
}

#[tokio::test]
async fn a_full_pool_closes_a_connection_that_was_idle_for_long() {
    let pool = pool(8);
    let one = key(&pool, "192.0.2.1:80");
    let mut agents: Vec<_> = (0..11).map(|_| put(&pool, one)).collect();
    assert_eq!(kept(&pool), 8);
    for (at, agents) in agents.iter_mut().enumerate() {
        assert_eq!(is_closed(agents).await, at < 3, "{at}");
    }
    // Of other agents, too.
    let others = (0..100).map(|at| key(&pool, &format!("192.0.2.3:{}", 8000 + at)));
    let _others: Vec<_> = others.map(|other| put(&pool, other)).collect();
    assert_eq!(kept(&pool), 8);
    let keys: usize = pool
        .shards
        .iter()
        .map(|shard| shard.0.lock().idle.len())
        .sum();
    assert!(keys <= 9, "{keys} keys");
}

/// Does `work` on a thread that serves callers.
fn on_thread<T: Send + 'static>(number: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    let runtime = tokio::runtime::Handle::current();
    let worked = std::thread::spawn(move || {
        serve_on_this_thread(number);
        let _entered = runtime.enter();
        work()
    });
    worked.join().unwrap()
}

#[tokio::test]
async fn a_thread_takes_only_what_it_kept_and_all_together_keep_no_more_than_they_may() {
    const THREADS: usize = 4;
    let pool = Arc::new(Pool::new(20, THREADS, Arc::default()));
    let one = key(&pool, "192.0.2.1:80");
    let mut agents: Vec<Vec<_>> = (0..THREADS)
        .map(|number| {
            let pool = Arc::clone(&pool);
            on_thread(number, move || (0..9).map(|_| put(&pool, one)).collect())
        })
        .collect();
    agents.push((0..9).map(|_| put(&pool, one)).collect());
    assert_eq!(kept(&pool), 20, "of 45");
    for (number, agents) in agents.iter_mut().enumerate() {
        let (pool, on) = (Arc::clone(&pool), Arc::clone(&pool));
        let take = move || pool.take(&one);
        let taken = match number {
            THREADS => take(),
            number => on_thread(number, take),
        };
        is_that_of(taken, &mut agents[8]).await;
        assert_eq!(kept(&on), 19 - number);
    }
}

#[tokio::test]
async fn a_thread_that_is_not_counted_is_one_of_the_others() {
    let pool = pool(8);
    let one = key(&pool, "192.0.2.1:80");
    let mut agents = {
        let pool = Arc::clone(&pool);
        on_thread(7, move || put(&pool, one))
    };
    is_that_of(pool.take(&one), &mut agents).await;
}

#[tokio::test]
async fn a_pool_without_places_keeps_nothing() {
    let pool = pool(0);
    let one = key(&pool, "192.0.2.1:80");
    let mut agents = put(&pool, one);
    assert!(is_closed(&mut agents).await);
    assert!(pool.take(&one).is_none());
    assert_eq!(kept(&pool), 0);
}

#[tokio::test(start_paused = true)]
async fn an_expired_connection_is_not_taken_and_is_closed_within_a_second() {
    let pool = pool(8);
    let (one, other) = (key(&pool, "192.0.2.1:80"), key(&pool, "192.0.2.2:80"));
    let mut agents = [put(&pool, one), put(&pool, other)];
    sleep(IDLE - Duration::from_millis(1)).await;
    let taken = pool.take(&one).expect("a connection");
    pool.put(one, taken, IDLE);
    sleep(Duration::from_millis(1)).await;
    assert!(pool.take(&other).is_none());
    sleep(SWEEP_INTERVAL).await;
    assert!(is_closed(&mut agents[1]).await);
    assert!(!is_closed(&mut agents[0]).await, "it was used since");
    sleep(IDLE + SWEEP_INTERVAL).await;
    assert!(is_closed(&mut agents[0]).await);
    assert_eq!(kept(&pool), 0);
    // The task has ended, and begins again with the next connection.
    assert!(!pool.lock_shard(pool.shard_of_thread()).watched);
    let mut agents = put(&pool, one);
    sleep(IDLE + 2 * SWEEP_INTERVAL).await;
    assert!(is_closed(&mut agents).await);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_the_agent_closed_or_wrote_to_is_dropped() {
    let pool = pool(64);
    let one = key(&pool, "192.0.2.1:80");
    let mut alive = put(&pool, one);
    drop(put(&pool, one));
    let mut wrote = put(&pool, one);
    wrote.write_all(b"HTTP/1.1 408\r\n").await.unwrap();
    is_that_of(pool.take(&one), &mut alive).await;
    assert_eq!(kept(&pool), 0);
    // And without a call: the task finds more of them than it looks at at once.
    let mut agents: Vec<_> = (0..64).map(|_| put(&pool, one)).collect();
    let mut rest = agents.split_off(60);
    drop(agents);
    sleep(SWEEP_INTERVAL + Duration::from_millis(1)).await;
    assert_eq!(kept(&pool), 4);
    for agents in &mut rest {
        assert!(!is_closed(agents).await);
    }
}

#[tokio::test]
async fn a_connection_with_bytes_in_it_is_not_put_in() {
    let pool = pool(8);
    let one = key(&pool, "192.0.2.1:80");
    let (ours, mut agents) = duplex(64);
    agents.write_all(b"x").await.unwrap();
    pool.put(one, Box::new(ours), IDLE);
    assert!(pool.take(&one).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_drain_closes_what_is_idle() {
    let draining = Arc::new(AtomicBool::default());
    let pool = Arc::new(Pool::new(8, 1, Arc::clone(&draining)));
    let one = key(&pool, "192.0.2.1:80");
    let mut before = put(&pool, one);
    draining.store(true, Ordering::Release);
    let mut after = put(&pool, one);
    assert!(is_closed(&mut after).await);
    sleep(2 * SWEEP_INTERVAL).await;
    assert!(is_closed(&mut before).await);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_pool_closes_its_connections() {
    let pool = pool(8);
    let one = key(&pool, "192.0.2.1:80");
    let mut agents = put(&pool, one);
    drop(pool);
    assert!(is_closed(&mut agents).await);
}
