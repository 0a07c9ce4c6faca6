//! Durable facts, on SQLite and on PostgreSQL.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use a2a_gateway::db::Db;
use a2a_gateway::metrics::Metrics;
use futures_util::future::join_all;
use sqlx::Row as _;

use super::{open_db, settings};
use crate::harness::servers;

/// An empty database of each kind. The folder lives as long as the case.
fn both(folder: &tempfile::TempDir) -> [String; 2] {
    [
        format!("sqlite:{}/deep/er/gate way?.db", folder.path().display()).replace('?', "%"),
        servers::postgres().database(),
    ]
}

async fn migrated(url: &str) -> Db {
    let db = open_db(url);
    db.migrate().await.unwrap();
    db
}

async fn count(db: &Db, query: &'static str) -> i64 {
    let count = sqlx::query_scalar::<_, i64>(query);
    let count = db.run("count", async { count.fetch_one(db.pool()).await });
    count.await.unwrap()
}

/// `INSERT` with every optional column as given.
async fn insert(
    db: &Db,
    id: &str,
    org: Option<&str>,
    last_seen: Option<i64>,
) -> Result<u64, a2a_gateway::store::Unavailable> {
    db.run("insert", async {
        let done = sqlx::query(
            "INSERT INTO workspaces (id, name, org, status, delivery_mode, liveness, agent_card, \
             last_seen, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9) \
             ON CONFLICT (id) DO NOTHING",
        )
        .bind(id)
        .bind("näme")
        .bind(org)
        .bind("online")
        .bind("push")
        .bind(String::from("heartbeat"))
        .bind(None::<String>)
        .bind(last_seen)
        .bind(1_i64 << 41)
        .execute(db.pool())
        .await?;
        Ok(done.rows_affected())
    })
    .await
}

#[tokio::test]
async fn values_and_nulls_come_back_as_they_went() {
    let folder = tempfile::tempdir().unwrap();
    for url in both(&folder) {
        let db = migrated(&url).await;
        assert_eq!(insert(&db, "a", None, None).await.unwrap(), 1);
        assert_eq!(insert(&db, "b", Some("org"), Some(-1)).await.unwrap(), 1);
        assert_eq!(insert(&db, "b", None, None).await.unwrap(), 0);
        let rows = db.run("select", async {
            sqlx::query("SELECT id, name, org, agent_card, last_seen, active_tasks, created_at FROM workspaces ORDER BY id")
                .fetch_all(db.pool())
                .await
        });
        let rows = rows.await.unwrap();
        let read = |row: usize| -> (String, String, Option<String>, Option<String>, Option<i64>) {
            let row = &rows[row];
            let (org, card) = (row.get("org"), row.get(3));
            (row.get(0), row.get("name"), org, card, row.get("last_seen"))
        };
        assert_eq!(read(0), ("a".into(), "näme".into(), None, None, None));
        let (id, org) = ("b".to_owned(), Some("org".to_owned()));
        assert_eq!(read(1), (id, "näme".into(), org, None, Some(-1)));
        assert_eq!(rows[0].get::<i64, _>("active_tasks"), 0);
        assert_eq!(rows[0].get::<i64, _>("created_at"), 1 << 41);
        let missing = db.run("missing", async {
            sqlx::query("SELECT id FROM workspaces WHERE org = $1")
                .bind("nobody")
                .fetch_optional(db.pool())
                .await
        });
        assert!(missing.await.unwrap().is_none());
    }
}

#[tokio::test]
async fn upserts_return_and_counts_and_recursion_work_on_both() {
    let folder = tempfile::tempdir().unwrap();
    for url in both(&folder) {
        let db = migrated(&url).await;
        for (id, parent) in [("top", None), ("mid", Some("top")), ("leaf", Some("mid"))] {
            insert(&db, id, Some("org"), None).await.unwrap();
            let update = db.run("update", async {
                sqlx::query_scalar::<_, i64>(
                    "UPDATE workspaces SET parent_id = $1, updated_at = updated_at + 1 WHERE id = $2 RETURNING updated_at",
                )
                .bind(parent)
                .bind(id)
                .fetch_one(db.pool())
                .await
            });
            assert_eq!(update.await.unwrap(), (1 << 41) + 1);
        }
        let line = db.run("line", async {
            sqlx::query_as::<_, (String, i64)>(
                "WITH RECURSIVE line (id, parent_id, depth) AS ( \
                   SELECT id, parent_id, CAST(0 AS BIGINT) FROM workspaces WHERE id = $1 \
                   UNION ALL \
                   SELECT w.id, w.parent_id, l.depth + 1 FROM workspaces w \
                   JOIN line l ON w.id = l.parent_id WHERE l.depth < $2) \
                 SELECT id, depth FROM line ORDER BY depth",
            )
            .bind("leaf")
            .bind(32_i64)
            .fetch_all(db.pool())
            .await
        });
        let expected = [("leaf", 0), ("mid", 1), ("top", 2)];
        let expected = expected.map(|(id, depth)| (id.to_owned(), depth));
        assert_eq!(line.await.unwrap(), expected);
        let count = count(&db, "SELECT COUNT(*) FROM workspaces WHERE org = 'org'");
        assert_eq!(count.await, 3);
    }
}

#[tokio::test]
async fn one_time_tokens_are_redeemed_once() {
    let folder = tempfile::tempdir().unwrap();
    for url in both(&folder) {
        let db = migrated(&url).await;
        let insert = "INSERT INTO enrolment_tokens (token_hash, workspace_id, created_at, expires_at) VALUES ($1, $2, 1, 100)";
        let insert = sqlx::query(insert).bind("hash").bind("w");
        let inserted = db.run("insert", async { insert.execute(db.pool()).await });
        inserted.await.unwrap();
        let redeem = (0..8).map(|_| {
            let db = db.clone();
            tokio::spawn(async move {
                let update = "UPDATE enrolment_tokens SET redeemed_at = $1 WHERE token_hash = $2 AND redeemed_at IS NULL AND expires_at > $1 RETURNING workspace_id";
                let redeem = sqlx::query_scalar::<_, String>(update);
                let redeem = redeem.bind(50_i64).bind("hash");
                let redeem = async { redeem.fetch_optional(db.pool()).await };
                db.run("redeem", redeem).await.unwrap()
            })
        });
        let winners = join_all(redeem).await.into_iter();
        let winners: Vec<_> = winners.filter_map(Result::unwrap).collect();
        assert_eq!(winners, ["w"]);
    }
}

#[tokio::test]
async fn a_transaction_counts_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    for url in both(&folder) {
        let db = migrated(&url).await;
        let insert = "INSERT INTO admin_tokens (token_hash, created_at) VALUES ($1, 1)";
        // More at once than there are connections: SQLite's writers wait for each other.
        let writers = (0..12).map(|number| {
            let db = db.clone();
            tokio::spawn(async move {
                let work = async {
                    let mut transaction = db.begin().await?;
                    let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM admin_tokens")
                        .fetch_one(&mut *transaction)
                        .await?;
                    sqlx::query(insert)
                        .bind(format!("{number}-{count}"))
                        .execute(&mut *transaction)
                        .await?;
                    if number % 2 == 0 {
                        transaction.commit().await?;
                    }
                    Ok(())
                };
                db.run("write", work).await
            })
        });
        for writer in join_all(writers).await {
            writer.unwrap().unwrap();
        }
        assert_eq!(count(&db, "SELECT COUNT(*) FROM admin_tokens").await, 6);
    }
}

#[tokio::test]
async fn replicas_may_migrate_at_the_same_time_and_again() {
    let folder = tempfile::tempdir().unwrap();
    for url in both(&folder) {
        let replicas = (0..8).map(|_| {
            let db = open_db(&url);
            tokio::spawn(async move { db.migrate().await.map(|()| db) })
        });
        for replica in join_all(replicas).await {
            let db = replica.unwrap().unwrap();
            db.migrate().await.unwrap();
            db.ping().await.unwrap();
        }
    }
}

#[tokio::test]
async fn nothing_is_asked_before_the_schema_is_ours() {
    let folder = tempfile::tempdir().unwrap();
    for url in both(&folder) {
        let db = open_db(&url);
        let refused = db.ping().await.unwrap_err();
        assert_eq!((refused.store, refused.operation), ("sql", "ping"));
    }
}

#[tokio::test]
async fn what_the_database_refuses_does_not_repeat_the_row() {
    let folder = tempfile::tempdir().unwrap();
    for url in both(&folder) {
        let db = migrated(&url).await;
        let refused = db.run("insert", async {
            sqlx::query("INSERT INTO workspaces (id, name, status, delivery_mode, liveness, upstream_auth, created_at, updated_at) VALUES ($1, NULL, 'a', 'b', 'c', $2, 1, 1)")
                .bind("id")
                .bind("very-secret")
                .execute(db.pool())
                .await
        });
        let refused = refused.await.unwrap_err();
        let shown = format!("{refused:?}");
        assert!(!shown.contains("very-secret"), "{shown}");
        assert!(format!("{:?}", refused.source).contains("name"));
    }
}

#[tokio::test]
async fn the_sqlite_file_is_for_its_owner_alone_and_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data/gateway.db");
    let url = format!("sqlite:{}", path.display());
    let db = migrated(&url).await;
    assert!(db.is_embedded());
    insert(&db, "a", None, None).await.unwrap();
    for name in ["gateway.db", "gateway.db-wal", "gateway.db-shm"] {
        let metadata = std::fs::metadata(path.with_file_name(name)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{name}");
    }
    let mode = db.run("mode", async {
        sqlx::query_scalar::<_, String>("PRAGMA journal_mode")
            .fetch_one(db.pool())
            .await
    });
    assert_eq!(mode.await.unwrap(), "wal");
    drop(db);
    let db = migrated(&url).await;
    assert_eq!(insert(&db, "a", None, None).await.unwrap(), 0);
}

#[test]
fn urls_are_checked_and_never_repeated() {
    let open = |url: &str| Db::open(&settings(url, "memory"), Arc::new(Metrics::new()));
    assert!(open("postgres://u:p%40@host/db?sslmode=require").is_ok());
    assert!(open("postgresql://host").is_ok());
    for url in [
        "mysql://u:secret@host/db",
        "postgres://u:secret@host:port/db",
        "postgres://u:secret@host/db?sslmode=perhaps",
        "sqlite:",
        "sqlite::memory:",
        "sqlite:a.db?mode=memory&secret@",
        "sqlite:/proc/none/a.db",
    ] {
        let error = open(url).err().map(|error| format!("{error} {error:?}"));
        let is_silent = error.is_some_and(|error| !error.contains("secret"));
        assert!(is_silent, "{url}");
    }
}

#[tokio::test]
async fn a_full_disk_under_sqlite_is_over_when_there_is_room_again() {
    let folder = tempfile::tempdir().unwrap();
    let db = migrated(&format!("sqlite:{}/gateway.db", folder.path().display())).await;
    // More often than there are connections: SQLite ends each of these transactions by itself.
    for _ in 0..40 {
        let full = db.run("fill", async {
            let mut transaction = db.begin().await?;
            sqlx::raw_sql("PRAGMA max_page_count = 1")
                .execute(&mut *transaction)
                .await?;
            let insert = "INSERT INTO admin_tokens (token_hash, created_at) VALUES ($1, 1)";
            let insert = sqlx::query(insert).bind("x".repeat(1 << 20));
            let done = insert.execute(&mut *transaction).await;
            Ok(done.expect_err("there is no room").to_string())
        });
        let said = full.await.expect("each transaction begins");
        assert!(said.contains("disk is full"), "{said}");
    }
    assert_eq!(insert(&db, "room", None, None).await.unwrap(), 1);
}

#[tokio::test]
async fn a_change_whose_commit_fails_is_not_done() {
    let folder = tempfile::tempdir().unwrap();
    let db = migrated(&format!("sqlite:{}/gateway.db", folder.path().display())).await;
    // What is deferred is judged by the commit, behind the row that the change returns: as a disk is that is full.
    let tables = "CREATE TABLE ends (id TEXT PRIMARY KEY); CREATE TABLE pairs (id TEXT PRIMARY KEY, \
                  one TEXT REFERENCES ends (id) DEFERRABLE INITIALLY DEFERRED)";
    let made = db.run("tables", async {
        sqlx::raw_sql(tables).execute(db.pool()).await
    });
    made.await.unwrap();
    let put = async || {
        let put = "INSERT INTO pairs (id, one) VALUES ($1, 'nobody') RETURNING id";
        sqlx::query(put).bind("p").fetch_optional(db.pool()).await
    };
    let error = db.run("put", put()).await.map(|row| row.is_some());
    let error = error.expect_err("its commit fails");
    assert!(format!("{error:?}").contains("FOREIGN KEY"), "{error:?}");
}
