//! Durable facts while PostgreSQL is down, silent, slow or unreachable.

use std::time::{Duration, Instant};

use a2a_gateway::db::Db;

use super::{SLACK, TIMEOUT, open_db_with};
use crate::harness::servers::{self, Postgres};
use crate::harness::{calmly, until_holds};

async fn sleep(db: &Db, seconds: f64) -> Result<(), a2a_gateway::store::Unavailable> {
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
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        if db.ping().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("no recovery within 10 s");
}

/// Makes as many connections as there may be, and waits until all are idle: a connection that is given back is probed once
/// more, for as long as `stores.timeout`, so one that dies at that moment is no idle one.
async fn warmed(db: &Db) {
    let sleepers = (0..4).map(|_| {
        let db = db.clone();
        tokio::spawn(async move { sleep(&db, 0.1).await })
    });
    for sleeper in sleepers.collect::<Vec<_>>() {
        sleeper.await.unwrap().unwrap();
    }
    let idle = async || db.pool().idle() == 4;
    until_holds("all connections are idle", idle).await;
}

/// More callers than connections, all of which must hear soon that they get no answer.
async fn all_refused(db: &Db) {
    let started = Instant::now();
    let callers = (0..20).map(|_| {
        let db = db.clone();
        tokio::spawn(async move { db.ping().await })
    });
    for caller in callers.collect::<Vec<_>>() {
        assert!(caller.await.unwrap().is_err());
    }
    assert!(
        started.elapsed() < TIMEOUT + SLACK,
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn a_database_that_comes_late_is_found() {
    calmly(async || {
        let postgres = Postgres::start();
        let url = postgres.database();
        postgres.kill();
        let db = open_db_with(&url, TIMEOUT);
        let started = Instant::now();
        assert!(db.migrate().await.is_err());
        assert!(started.elapsed() < TIMEOUT + SLACK);
        postgres.restart();
        db.migrate().await.unwrap();
        db.ping().await.unwrap();
        postgres.kill();
        all_refused(&db).await;
        postgres.restart();
        recovers(&db).await;
    })
    .await;
}

#[tokio::test]
async fn a_silent_database_costs_each_caller_one_clock_and_is_used_again() {
    calmly(async || {
        let postgres = Postgres::start();
        let db = open_db_with(&postgres.database(), TIMEOUT);
        db.migrate().await.unwrap();
        db.ping().await.unwrap();
        postgres.pause();
        all_refused(&db).await;
        postgres.resume();
        recovers(&db).await;
    })
    .await;
}

#[tokio::test]
async fn work_that_was_given_up_leaves_no_broken_connection() {
    calmly(async || {
        let db = open_db_with(&servers::postgres().database(), TIMEOUT);
        db.migrate().await.unwrap();
        for _ in 0..2 {
            let callers = (0..4).map(|_| {
                let db = db.clone();
                tokio::spawn(async move { sleep(&db, 30.0).await })
            });
            let callers = callers.collect::<Vec<_>>();
            for caller in callers {
                assert!(caller.await.unwrap().is_err());
            }
            // The server has ended the statements too: the very next caller gets a connection.
            db.ping().await.unwrap();
            let one: i64 = db
                .run("one", async {
                    sqlx::query_scalar("SELECT CAST(1 AS BIGINT)")
                        .fetch_one(db.pool())
                        .await
                })
                .await
                .unwrap();
            assert_eq!(one, 1);
        }
    })
    .await;
}

#[tokio::test]
async fn dead_connections_are_left_behind_although_nobody_closes_them() {
    calmly(async || {
        let (relay, url) = servers::postgres().relayed();
        let db = open_db_with(&url, TIMEOUT);
        db.migrate().await.unwrap();
        warmed(&db).await;
        // Every place in the pool is taken by a connection that is about to die.
        let sleepers = (0..4).map(|_| {
            let db = db.clone();
            tokio::spawn(async move { sleep(&db, 0.6).await })
        });
        let sleepers = sleepers.collect::<Vec<_>>();
        tokio::time::sleep(Duration::from_millis(200)).await;
        relay.strand();
        for sleeper in sleepers {
            assert!(sleeper.await.unwrap().is_err());
        }
        recovers(&db).await;
    })
    .await;
}

#[tokio::test]
async fn idle_connections_that_died_unnoticed_fail_nothing() {
    calmly(async || {
        let postgres = Postgres::start();
        let (relay, url) = postgres.relayed();
        // A dead one takes a quarter of the clock. The rest is for a connection in its place, which a busy machine may
        // be slow to make: PostgreSQL starts a process for it.
        let db = open_db_with(&url, Duration::from_secs(12));
        db.migrate().await.unwrap();
        warmed(&db).await;
        relay.strand();
        db.ping().await.unwrap();
        postgres.kill();
        postgres.restart();
        db.ping().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_unreachable_database_is_used_again_when_the_network_mends() {
    calmly(async || {
        let (relay, url) = servers::postgres().relayed();
        let db = open_db_with(&url, TIMEOUT);
        db.migrate().await.unwrap();
        relay.black_hole();
        all_refused(&db).await;
        relay.resume();
        recovers(&db).await;
        relay.cut();
        all_refused(&db).await;
        relay.resume();
        recovers(&db).await;
        relay.delay(TIMEOUT);
        all_refused(&db).await;
        relay.resume();
        recovers(&db).await;
    })
    .await;
}

#[tokio::test]
async fn a_migration_that_is_given_up_lets_the_next_through() {
    calmly(async || {
        let (relay, url) = servers::postgres().relayed();
        let db = open_db_with(&url, TIMEOUT);
        relay.delay(Duration::from_millis(60));
        let given_up = tokio::time::timeout(Duration::from_millis(700), db.migrate());
        assert!(given_up.await.is_err());
        relay.resume();
        let started = Instant::now();
        db.migrate().await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(5));
    })
    .await;
}
