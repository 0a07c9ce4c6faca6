//! Many write and many follow over event streams of two gateways, and every connection is cut sooner or
//! later, anywhere: in a head, in an event, between two. Whoever goes on after the last whole event, at
//! either gateway, misses nothing and gets nothing twice.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{READERS, Room, assert_alike, messages, write};
use crate::events::seat;
use crate::harness::servers;
use crate::harness::watcher::Feed;
use crate::harness::{Builder, Pair, Request};

/// Connections that were cut, by what they were cut in.
#[derive(Default)]
struct Cuts {
    head: AtomicUsize,
    event: AtomicUsize,
    between: AtomicUsize,
}

impl Cuts {
    fn of(&self, passed: &[u8]) {
        let ends = |end: &[u8]| passed.ends_with(end);
        let head = passed.windows(4).any(|four| four == b"\r\n\r\n");
        let count = match head {
            false => &self.head,
            // An event is one chunk, unless it is a large one; the first of all is a comment.
            true if ends(b"\n\n\r\n") || ends(b"\r\n\r\n") => &self.between,
            true => &self.event,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn all(&self) -> [usize; 3] {
        [&self.head, &self.event, &self.between].map(|count| count.load(Ordering::Relaxed))
    }
}

/// A way to `gateway` for one connection, on which so many octets come back before it is cut.
async fn way(gateway: SocketAddr, octets: usize, cuts: &Arc<Cuts>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let cuts = Arc::clone(cuts);
    tokio::spawn(async move {
        let (reader, _) = listener.accept().await.unwrap();
        let gateway = TcpStream::connect(gateway).await.unwrap();
        let (mut from_reader, mut to_reader) = reader.into_split();
        let (mut from_gateway, mut to_gateway) = gateway.into_split();
        let back = async {
            let (mut left, mut passed) = (octets, Vec::new());
            let mut buffer = vec![0; 16 << 10];
            while left > 0 {
                let room = left.min(buffer.len());
                let got = from_gateway.read(&mut buffer[..room]).await.unwrap_or(0);
                if got == 0 || to_reader.write_all(&buffer[..got]).await.is_err() {
                    // Not cut here: the reader has all that it wanted.
                    return;
                }
                left -= got;
                passed.extend_from_slice(&buffer[..got]);
                // Enough to tell a head by.
                if passed.len() > (4 << 10) {
                    passed.drain(1 << 10..passed.len() - (1 << 10));
                }
            }
            cuts.of(&passed);
        };
        // Whichever ends first ends the other: both connections are dropped.
        tokio::select! {
            () = back => {}
            _ = tokio::io::copy(&mut from_reader, &mut to_gateway) => {}
        }
    });
    at
}

/// The texts of all messages, in the order in which one reader got them.
async fn follow(
    to: [SocketAddr; 2],
    token: &str,
    messages: usize,
    cuts: &Arc<Cuts>,
) -> Vec<String> {
    let request = Request::get("/workspaces/dev/activity")
        .field("Accept", "text/event-stream")
        .bearer(token);
    let octets_max = messages as u64 * 2 + 60_000;
    let (mut seen, mut last) = (Vec::with_capacity(messages), None::<String>);
    while seen.len() < messages {
        let (which, octets) = uuid::Uuid::new_v4().as_u64_pair();
        let gateway = to[usize::from(which % 2 == 0)];
        // Some are over before much was said.
        let max = if which % 5 < 2 { 2_000 } else { octets_max };
        let octets = usize::try_from(1 + octets % max).unwrap();
        let mut request = request.clone().field("Host", gateway.to_string());
        if let Some(id) = &last {
            request = request.field("Last-Event-ID", id);
        }
        let way = way(gateway, octets, cuts).await;
        let Some(mut feed) = Feed::try_open(way, &request).await else {
            continue;
        };
        assert_eq!(feed.head.status, 200, "{:?}", feed.head);
        while seen.len() < messages {
            let Some(event) = feed.next().await else {
                break;
            };
            assert_eq!(event.event.as_deref(), Some("activity"), "{}", event.data);
            let next = seen.len() + 1;
            assert_eq!(event.data["seq"], next, "in order, each once");
            let text = event.data["request_body"]["text"].as_str().unwrap();
            seen.push(text.to_owned());
            last = event.id;
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn feeds_that_are_cut_anywhere_go_on_at_either_gateway() {
    let messages = messages(500);
    let sql = servers::postgres().database();
    let room = Room::open(Pair::External, |config| {
        config.inbox.max_messages = 1_000_000;
        config.stores.sql = sql.clone().into();
    });
    let room = room.await;
    let shared = room.redis.as_ref().unwrap().url();
    let start = || {
        let builder = Builder::new(Pair::Embedded).stores(&sql, &shared);
        // What is cut is noticed when the next entry is written.
        let builder = builder.set("inbox.connections_per_caller", "5000");
        builder.set("inbox.max_messages", "1000000").start()
    };
    let (one, two) = (start().await, start().await);
    let dev = seat(&one, "dev", None, None).await;
    // The writers commit to the stores as replicas of their own: what is asked about is who reads.
    let other = room.beside().await;
    let rooms = [&room, &other];
    let cuts = Arc::<Cuts>::default();
    let began = Instant::now();
    let gateways = [one.public, two.public];
    let readers = (0..READERS).map(|_| {
        let (dev, cuts) = (dev.clone(), Arc::clone(&cuts));
        tokio::spawn(async move { follow(gateways, &dev, messages, &cuts).await })
    });
    let ((), seen) = tokio::join!(write(rooms, messages), join_all(readers));
    let took = began.elapsed();
    let seen: Vec<Vec<String>> = seen.into_iter().map(|one| one.expect("all read")).collect();
    assert_alike(&seen, messages);
    let [head, event, between] = cuts.all();
    println!(
        "{messages} messages to {READERS} readers: {took:?}; connections cut: {head} in the head, \
         {event} in the middle of an event, {between} between two"
    );
    assert!(event >= READERS, "cut in the middle of {event} events");
}
