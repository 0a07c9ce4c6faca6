//! Connections to the admin listener: nobody keeps a place for nothing.

use super::{ask, ticks};
use crate::harness::warm::NEVER;
use crate::harness::watcher::Feed;
use crate::harness::{Connection, Gateway, Pair, Request, until_holds};

/// As many as may be open at once.
const PLACES: usize = 256;

const CUT: &str = "a2a_gateway_connections_cut_total";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_have_a_clock_and_what_is_open_has_none() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let mut feed = Feed::open(gateway.admin, &super::feed()).await;
    let mut silent = Connection::open(gateway.admin).await;
    let mut slow = Connection::open(gateway.admin).await;
    slow.send(b"GET /healthz HTTP/1.1\r\nHost: ").await;
    let mut idle = Connection::open(gateway.admin).await;
    let healthz = Request::get("/healthz").field("Connection", "keep-alive");
    assert_eq!(idle.call(&healthz).await.status, 200);
    assert_eq!(idle.call(&healthz).await.status, 200, "the same connection");
    for connection in [&mut silent, &mut slow, &mut idle] {
        assert!(connection.closed_within(NEVER).await);
    }
    ticks(&mut feed, |_| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_so_many_places_and_they_come_free() {
    let gateway = Gateway::start(Pair::Embedded).await;
    until_holds("one too many is refused", async || {
        let mut open = Vec::new();
        for _ in 0..PLACES + 4 {
            open.push(Connection::open(gateway.admin).await);
        }
        // Whoever says nothing loses its place.
        until_holds("there is room again", async || {
            let mut connection = Connection::open(gateway.admin).await;
            let wire = Request::get("/healthz").wire(&gateway.admin.to_string());
            let sent = connection.try_send(&wire).await.is_ok();
            sent && connection.try_answer().await.is_some()
        })
        .await;
        drop(open);
        gateway.metric(CUT, &["admin_full"]).await >= 1.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_idle_makes_room_and_who_is_answered_does_not() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let mut feed = Feed::open(gateway.admin, &super::feed()).await;
    let healthz = Request::get("/healthz").field("Connection", "keep-alive");
    // A connection that is idle for as long as a head may take is closed anyway.
    until_holds("one too many makes one of them leave", async || {
        let mut idle = Vec::new();
        for _ in 1..PLACES {
            let mut connection = Connection::open(gateway.admin).await;
            assert_eq!(connection.call(&healthz).await.status, 200);
            idle.push(connection);
        }
        for _ in 0..PLACES + 8 {
            let ready = ask(gateway.admin, &Request::get("/readyz")).await;
            assert_eq!(ready.status, 200, "{}", ready.text());
        }
        gateway.metric(CUT, &["admin_full"]).await >= 1.0
    })
    .await;
    ticks(&mut feed, |_| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_is_cut() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let mut deaf = Connection::open(gateway.admin).await;
    let wire = Request::get("/metrics").field("Connection", "keep-alive");
    let wire = wire.wire(&gateway.admin.to_string());
    // More than the sockets of both sides hold, and then nothing is read.
    let asked = async {
        while deaf.try_send(&wire.repeat(50)).await.is_ok() {}
        std::future::pending().await
    };
    let cut = gateway.until_counted(CUT, &["admin_slow"], 1.0);
    tokio::select! {
        () = asked => {}
        () = cut => {}
    }
    let healthz = ask(gateway.admin, &Request::get("/healthz")).await;
    assert_eq!(healthz.status, 200);
}
