//! Tickets: once, within 30 s, on any replica, for whom the maker is.

use std::time::Duration;

use serde_json::json;

use super::{Replicas, place, seat, ticket, token};
use crate::harness::watcher::{Feed, Socket, handshake};
use crate::harness::{ADMIN, Gateway, Request, assert_refusal};
use crate::on_both_pairs;

async fn refused(gateway: &Gateway, path: &str) {
    let request = handshake(path).field("X-Request-Id", "seen");
    let answer = gateway.call(&request).await.has(401);
    assert_refusal(&answer, "/ws", "seen", "unauthenticated", path);
}

on_both_pairs! {
    async fn a_ticket_opens_one_socket_or_one_stream_and_is_never_logged(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        seat(&gateway, "w", None, Some("acme")).await;
        let canvas = token(&gateway, "/canvas/tokens", json!({"user": "ada", "org": "acme"})).await.0;
        let own = token(&gateway, "/workspaces/w/tokens", json!({})).await.0;
        let org = token(&gateway, "/orgs/acme/tokens", json!({})).await.0;
        for maker in [ADMIN, &canvas, &own, &org] {
            let ticket = ticket(&gateway, maker).await;
            assert!(ticket.starts_with("a2at_"));
            let path = format!("/ws?ticket={ticket}");
            let socket = Socket::open(gateway.public, &handshake(&path)).await;
            refused(&gateway, &path).await;
            drop(socket);
            let ticket = super::ticket(&gateway, maker).await;
            let path = format!("/events?ticket={ticket}");
            drop(Feed::open(gateway.public, &Request::get(&path)).await);
            assert_eq!(gateway.call(&Request::get(&path)).await.status, 401);
            assert!(!gateway.log().contains(&ticket[5..]), "a ticket is in the log");
        }
        for bad in ["", "x", "a2at_", ADMIN, &own] {
            refused(&gateway, &format!("/ws?ticket={bad}")).await;
        }
        // It is no credential, and not one of two.
        let spare = ticket(&gateway, ADMIN).await;
        let request = Request::get("/workspaces/w").bearer(&spare);
        assert_eq!(gateway.call(&request).await.status, 401);
        let both = handshake(&format!("/ws?ticket={spare}")).bearer(ADMIN);
        assert_eq!(gateway.call(&both).await.status, 401);
        let twice = format!("/ws?ticket={spare}&ticket={spare}");
        assert_eq!(gateway.call(&handshake(&twice)).await.status, 400);
        assert!(!gateway.log().contains(&spare[5..]), "a ticket is in the log");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_is_good_on_another_replica_for_its_maker_until_it_lapses() {
    let replicas = Replicas::start(2, &[]).await;
    let (one, two) = (&replicas.all[0], &replicas.all[1]);
    let canvas = |org: &str| json!({"user": "ada", "org": org});
    let acme = token(one, "/canvas/tokens", canvas("acme")).await.0;
    let path = format!("/ws?ticket={}", ticket(one, &acme).await);
    let mut socket = Socket::open(two.public, &handshake(&path)).await;
    refused(one, &path).await;
    let status = json!({"status": "offline"});
    for org in ["other", "acme"] {
        let at = place(Some(org), &[]);
        replicas.tell("WORKSPACE_OFFLINE", org, status.clone(), at, json!(null));
    }
    assert_eq!(socket.event().await["workspace_id"], "acme");
    // Of many at once, one.
    let path = format!("/events?ticket={}", ticket(one, &acme).await);
    let mut crowd = tokio::task::JoinSet::new();
    for n in 0..20 {
        let (at, path) = (replicas.all[n % 2].public, path.clone());
        crowd.spawn(async move {
            let mut connection = crate::harness::Connection::open(at).await;
            let wire = Request::get(path).wire(&at.to_string());
            connection.send(&wire).await;
            connection.read_head().await.unwrap().status
        });
    }
    let mut won = 0;
    while let Some(status) = crowd.join_next().await {
        won += usize::from(status.unwrap() == 200);
    }
    assert_eq!(won, 1);
    // The store forgets one after 30 s: looked at there, not waited for.
    let lapsing = ticket(one, &acme).await;
    let keys = replicas.redis.command(&["KEYS", "gw:ticket:*"]);
    assert!(!keys.contains(&lapsing[5..]), "kept as its hash only");
    let ttl: u64 = replicas
        .redis
        .command(&["PTTL", keys.trim()])
        .parse()
        .unwrap();
    assert!((1..=30_000).contains(&ttl), "{ttl}");
    replicas.redis.command(&["PEXPIRE", keys.trim(), "1"]);
    tokio::time::sleep(Duration::from_millis(20)).await;
    refused(two, &format!("/ws?ticket={lapsing}")).await;
}
