//! Durable facts while PostgreSQL is down, silent, slow or unreachable.

use std::time::{Duration, Instant};

use a2a_gateway::db::Db;
use a2a_gateway::store::Unavailable;
use tokio::task::JoinHandle;

use super::{AT_ONCE, TIMEOUT, open_db, open_db_with};
use crate::harness::relay::Relay;
use crate::harness::servers::{self, Postgres};
use crate::harness::until_holds;

async fn sleep(db: &Db, seconds: f64) -> Result<(), Unavailable> {
    db.run("sleep", async {
        // `void` is a type the driver reads as null.
        sqlx::query("SELECT CAST(pg_sleep($1) AS TEXT)")
            .bind(seconds)
            .execute(db.pool())
            .await
    })
    .await
    .map(|_| ())
}

async fn recovers(db: &Db) {
    until_holds("it recovers", async || db.ping().await.is_ok()).await;
}

/// So many tasks that sleep in the database for so long, one connection each.
fn sleepers(db: &Db, seconds: f64) -> Vec<JoinHandle<Result<(), Unavailable>>> {
    let sleeper = |_| {
        let db = db.clone();
        tokio::spawn(async move { sleep(&db, seconds).await })
    };
    (0..4).map(sleeper).collect()
}

/// `stores.timeout` where a new connection is made within it: PostgreSQL starts a process for each,
/// for which a busy machine takes its time.
const FOR_ANOTHER: Duration = Duration::from_secs(12);

/// A database with its schema, and one connection.
async fn opened(url: &str, timeout: Duration) -> Db {
    open_db(url).migrate().await.unwrap();
    let db = open_db_with(url, timeout);
    until_holds("it finds its schema", async || db.migrate().await.is_ok()).await;
    recovers(&db).await;
    db
}

/// Makes as many connections as there may be, and waits until all are idle: a connection that is given back is probed
/// once more, for as long as `stores.timeout`, so one that dies at that moment is no idle one.
async fn warmed(db: &Db) {
    for sleeper in sleepers(db, 0.1) {
        sleeper.await.unwrap().unwrap();
    }
    let idle = async || db.pool().idle() == 4;
    until_holds("all connections are idle", idle).await;
}

/// More callers than connections, all of which must hear soon that they get no answer.
async fn all_refused(db: &Db) {
    let started = Instant::now();
    let callers = (0..80).map(|_| {
        let db = db.clone();
        tokio::spawn(async move { db.ping().await })
    });
    for caller in callers.collect::<Vec<_>>() {
        assert!(caller.await.unwrap().is_err());
    }
    let took = started.elapsed();
    assert!(took < TIMEOUT * AT_ONCE, "{took:?}");
}

#[tokio::test]
async fn a_database_that_comes_late_is_found() {
    let postgres = Postgres::start();
    let url = postgres.database();
    postgres.kill();
    let db = open_db_with(&url, TIMEOUT);
    assert!(db.migrate().await.is_err());
    postgres.restart();
    until_holds("it migrates", async || db.migrate().await.is_ok()).await;
    recovers(&db).await;
    postgres.kill();
    all_refused(&db).await;
    postgres.restart();
    recovers(&db).await;
}

#[tokio::test]
async fn a_silent_database_costs_each_caller_one_clock_and_is_used_again() {
    let postgres = Postgres::start();
    let db = opened(&postgres.database(), TIMEOUT).await;
    postgres.pause();
    all_refused(&db).await;
    postgres.resume();
    recovers(&db).await;
}

#[tokio::test]
async fn work_that_was_given_up_leaves_no_broken_connection() {
    let db = opened(&servers::postgres().database(), FOR_ANOTHER).await;
    for _ in 0..2 {
        for sleeper in sleepers(&db, 60.0) {
            assert!(sleeper.await.unwrap().is_err());
        }
        // The server has ended the statements too: the very next caller gets a connection.
        db.ping().await.unwrap();
        let one = sqlx::query_scalar("SELECT CAST(1 AS BIGINT)").fetch_one(db.pool());
        let one: i64 = db.run("one", one).await.unwrap();
        assert_eq!(one, 1);
    }
}

#[tokio::test]
async fn dead_connections_are_left_behind_although_nobody_closes_them() {
    let (relay, url) = servers::postgres().relayed();
    let db = opened(&url, FOR_ANOTHER).await;
    warmed(&db).await;
    // Every place in the pool is taken by a connection that is about to die.
    let sleepers = sleepers(&db, 60.0);
    until_holds("all are taken", async || db.pool().idle() == 0).await;
    relay.strand();
    for sleeper in sleepers {
        assert!(sleeper.await.unwrap().is_err());
    }
    recovers(&db).await;
}

#[tokio::test]
async fn idle_connections_that_died_unnoticed_fail_nothing() {
    let postgres = Postgres::start();
    let (relay, url) = postgres.relayed();
    // A dead one takes a quarter of the clock.
    let db = opened(&url, FOR_ANOTHER).await;
    warmed(&db).await;
    relay.strand();
    db.ping().await.unwrap();
    postgres.kill();
    postgres.restart();
    db.ping().await.unwrap();
}

#[tokio::test]
async fn an_unreachable_database_is_used_again_when_the_network_mends() {
    let (relay, url) = servers::postgres().relayed();
    let db = opened(&url, TIMEOUT).await;
    // An answer that is there at the end of its clock still counts.
    let slow: fn(&Relay) = |relay| relay.delay(TIMEOUT * 12);
    for happens in [Relay::black_hole, Relay::cut, slow] {
        happens(&relay);
        all_refused(&db).await;
        relay.resume();
        recovers(&db).await;
    }
}

#[tokio::test]
async fn a_migration_that_is_given_up_lets_the_next_through() {
    let (relay, url) = servers::postgres().relayed();
    let db = open_db(&url);
    relay.delay(Duration::from_millis(60));
    let given_up = tokio::time::timeout(Duration::from_millis(700), db.migrate());
    assert!(given_up.await.is_err());
    relay.resume();
    // One that waits for a lock runs out of time.
    db.migrate().await.unwrap();
}
