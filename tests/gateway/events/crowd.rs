//! Five hundred who watch, and two who never read: the others get every event, the two are cut, and the
//! gateway's memory stays bounded.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use super::{Replicas, place, token};
use crate::harness::watcher::{Feed, Socket, handshake};
use crate::harness::{ADMIN, Builder, Gateway, Request, until_holds};

/// Watchers of each kind.
const EACH: usize = 250;

/// Events that all of them see.
const EVENTS: usize = 60;

/// A connection with a small window that is never read from.
async fn deaf(gateway: &Gateway, request: Request) -> tokio::net::TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(gateway.public).await.unwrap();
    stream
        .write_all(&request.wire(&gateway.public.to_string()))
        .await
        .unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_hear_everything_while_two_that_never_read_are_cut() {
    let replicas = Replicas::built(1, &[], Builder::process).await;
    let gateway = &replicas.all[0];
    let canvas = json!({"user": "ada", "org": "acme"});
    let canvas = token(gateway, "/canvas/tokens", canvas).await.0;
    let at = gateway.public;
    let mut crowd = JoinSet::new();
    let mut sockets = Vec::new();
    let mut feeds = Vec::new();
    for _ in 0..EACH {
        sockets.push(Socket::open(at, &handshake("/ws").bearer(&canvas)).await);
        feeds.push(Feed::open(at, &Request::get("/events").bearer(&canvas)).await);
    }
    let deaf = [
        deaf(gateway, handshake("/ws").bearer(ADMIN)).await,
        deaf(gateway, Request::get("/events").bearer(ADMIN)).await,
    ];
    let before = gateway.memory_kib("VmRSS") * 1024;
    for mut socket in sockets {
        crowd.spawn(async move {
            for n in 0..EVENTS {
                assert_eq!(socket.event().await["payload"]["n"], n.to_string());
            }
        });
    }
    for mut feed in feeds {
        crowd.spawn(async move {
            for n in 0..EVENTS {
                assert_eq!(feed.event().await.data["payload"]["n"], n.to_string());
            }
        });
    }
    // What only operators see fills the windows of those who do not read.
    let (acme, other) = (place(Some("acme"), &[]), place(Some("other"), &[]));
    let card = json!({"agent_card": "x".repeat(16_000)});
    let numbered = json!({"n": "@N"});
    for _ in 0..2 {
        let (card, other) = (card.clone(), other.clone());
        replicas.tell_many(300, "AGENT_CARD_UPDATED", "x", card, other, Value::Null);
    }
    replicas.tell_many(EVENTS, "WORKSPACE_ONLINE", "w", numbered, acme, Value::Null);
    while let Some(done) = crowd.join_next().await {
        done.unwrap();
    }
    let are_cut = async || {
        let slow = gateway.metric("a2a_gateway_event_readers_cut_total", &["slow"]);
        slow.await >= 2.0 && gateway.metric("a2a_gateway_event_readers", &[]).await == 0.0
    };
    until_holds("those who do not read are cut", are_cut).await;
    let grown = (gateway.memory_kib("VmRSS") * 1024).saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    println!("resident before {before}, grown by {grown}");
    drop(deaf);
}
