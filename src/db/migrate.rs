//! The embedded migrations of the schema, in order. Migrations only add, so that a replica of the previous
//! release still works, and can even start, on the schema of the next. One does more: `audit_rows` renames a
//! table, but only in SQLite, which has no replicas.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Executor as _, SqlSafeStr as _};

use super::{Backend, Db, to_cause};
use crate::store::{Cause, Unavailable};

/// Timeout of the migration, including the wait for another replica's.
const MIGRATE_MAX: Duration = Duration::from_secs(60);

/// Version, name, and the SQL for SQLite and for PostgreSQL, which differ only where PostgreSQL has
/// partitions. Never edit a released migration: databases store its checksum.
const MIGRATIONS: [(i64, &str, [&str; 2]); 43] = [
    same_for_both(
        1,
        "workspaces",
        include_str!("migrations/0001_workspaces.sql"),
    ),
    same_for_both(
        2,
        "coherence",
        include_str!("migrations/0002_coherence.sql"),
    ),
    same_for_both(3, "moves", include_str!("migrations/0003_moves.sql")),
    same_for_both(4, "grants", include_str!("migrations/0004_grants.sql")),
    same_for_both(5, "overdue", include_str!("migrations/0005_overdue.sql")),
    same_for_both(
        6,
        "upstream_tls",
        include_str!("migrations/0006_upstream_tls.sql"),
    ),
    same_for_both(
        7,
        "push_notifications",
        include_str!("migrations/0007_push_notifications.sql"),
    ),
    same_for_both(8, "inbox", include_str!("migrations/0008_inbox.sql")),
    same_for_both(
        9,
        "idempotent_calls",
        include_str!("migrations/0009_idempotent_calls.sql"),
    ),
    same_for_both(
        10,
        "delegations",
        include_str!("migrations/0010_delegations.sql"),
    ),
    (
        11,
        "audit",
        [
            include_str!("migrations/0011_audit.sqlite.sql"),
            include_str!("migrations/0011_audit.postgres.sql"),
        ],
    ),
    same_for_both(12, "seen", include_str!("migrations/0012_seen.sql")),
    same_for_both(
        13,
        "seen_before",
        include_str!("migrations/0013_seen_before.sql"),
    ),
    same_for_both(
        14,
        "card_access",
        include_str!("migrations/0014_card_access.sql"),
    ),
    same_for_both(
        15,
        "enrolment",
        include_str!("migrations/0015_enrolment.sql"),
    ),
    (
        17,
        "kept",
        [
            include_str!("migrations/0017_kept.sqlite.sql"),
            include_str!("migrations/0017_kept.postgres.sql"),
        ],
    ),
    same_for_both(
        18,
        "client_address",
        include_str!("migrations/0018_client_address.sql"),
    ),
    same_for_both(
        19,
        "task_owners",
        include_str!("migrations/0019_task_owners.sql"),
    ),
    same_for_both(
        21,
        "agent_origins",
        include_str!("migrations/0021_agent_origins.sql"),
    ),
    same_for_both(
        23,
        "delegation_origin",
        include_str!("migrations/0023_delegation_origin.sql"),
    ),
    (
        26,
        "inbox_bytes",
        [
            include_str!("migrations/0026_inbox_bytes.sqlite.sql"),
            include_str!("migrations/0026_inbox_bytes.postgres.sql"),
        ],
    ),
    same_for_both(
        27,
        "inbox_hops",
        include_str!("migrations/0027_inbox_hops.sql"),
    ),
    same_for_both(28, "proof", include_str!("migrations/0028_proof.sql")),
    (
        29,
        "audit_rows",
        [
            include_str!("migrations/0029_audit_rows.sqlite.sql"),
            include_str!("migrations/0029_audit_rows.postgres.sql"),
        ],
    ),
    same_for_both(30, "bridge", include_str!("migrations/0030_bridge.sql")),
    (
        31,
        "bridged",
        [
            include_str!("migrations/0031_bridged.sqlite.sql"),
            include_str!("migrations/0031_bridged.postgres.sql"),
        ],
    ),
    same_for_both(32, "wake", include_str!("migrations/0032_wake.sql")),
    same_for_both(
        33,
        "instances",
        include_str!("migrations/0033_instances.sql"),
    ),
    same_for_both(
        34,
        "task bindings",
        include_str!("migrations/0034_task_bindings.sql"),
    ),
    same_for_both(35, "probe", include_str!("migrations/0035_probe.sql")),
    same_for_both(36, "stops", include_str!("migrations/0036_stops.sql")),
    same_for_both(
        37,
        "delegation runs",
        include_str!("migrations/0037_delegation_runs.sql"),
    ),
    same_for_both(38, "resolve", include_str!("migrations/0038_resolve.sql")),
    same_for_both(
        39,
        "token ends",
        include_str!("migrations/0039_token_ends.sql"),
    ),
    same_for_both(
        40,
        "operator tokens",
        include_str!("migrations/0040_operator_tokens.sql"),
    ),
    same_for_both(41, "born", include_str!("migrations/0041_born.sql")),
    same_for_both(42, "usage", include_str!("migrations/0042_usage.sql")),
    same_for_both(43, "subtrees", include_str!("migrations/0043_subtrees.sql")),
    same_for_both(
        44,
        "stop operators",
        include_str!("migrations/0044_stop_operators.sql"),
    ),
    same_for_both(
        45,
        "enrolment makers",
        include_str!("migrations/0045_enrolment_makers.sql"),
    ),
    same_for_both(
        46,
        "enrolment places",
        include_str!("migrations/0046_enrolment_places.sql"),
    ),
    (
        47,
        "senders",
        [
            include_str!("migrations/0047_senders.sqlite.sql"),
            include_str!("migrations/0047_senders.postgres.sql"),
        ],
    ),
    same_for_both(
        48,
        "refusal status",
        include_str!("migrations/0048_refusal_status.sql"),
    ),
];

const fn same_for_both(
    version: i64,
    name: &'static str,
    text: &'static str,
) -> (i64, &'static str, [&'static str; 2]) {
    (version, name, [text, text])
}

impl Db {
    /// Brings the schema up to date; [`Db::run`] works after that. It can be repeated, and called by
    /// several replicas at once: a lock of the database admits one at a time.
    ///
    /// # Errors
    /// When the database cannot be queried, or holds an unknown schema. The caller retries.
    pub async fn migrate(&self) -> Result<(), Unavailable> {
        let done = self
            .run_timed("migrate", MIGRATE_MAX, self.apply_migrations())
            .await;
        if done.is_ok() {
            self.0.migrated.store(true, Ordering::Release);
        }
        done
    }

    async fn apply_migrations(&self) -> Result<(), Cause> {
        let pool = self.pool();
        pool.pooler
            .detect_sessions(&pool.connections)
            .await
            .map_err(to_cause)?;
        // Detached, so that dropping it closes it, which also ends a migration that timed out.
        let mut connection = pool.connections.acquire().await.map_err(to_cause)?.detach();
        let applied = match self.0.location.backend {
            Backend::Postgres => run_alone(&mut connection, pool.pooler.has_own_sessions()).await,
            Backend::Sqlite => run_as_writer(&mut connection).await,
        };
        // The work is done; a failed close has no effect.
        let _ = tokio::time::timeout(self.0.timeout, connection.close()).await;
        applied
    }
}

/// Runs all migrations in one transaction that holds a lock. A pooler, too, keeps a transaction in one
/// session.
async fn run_alone(connection: &mut AnyConnection, own_session: bool) -> Result<(), Cause> {
    let mut tx = connection.begin().await.map_err(to_cause)?;
    let milliseconds = MIGRATE_MAX.as_millis();
    let begin = format!(
        "SET LOCAL statement_timeout = {milliseconds}; \
         SET LOCAL idle_in_transaction_session_timeout = {milliseconds}; \
         SELECT CAST(pg_advisory_xact_lock({MIGRATION_LOCK}) AS TEXT)"
    );
    tx.execute(AssertSqlSafe(begin)).await.map_err(to_cause)?;
    // The migrator prepares named statements. They must not collide with those of another client, and none
    // may remain.
    if !own_session {
        tx.execute(FORGET_STATEMENTS).await.map_err(to_cause)?;
    }
    run_migrations(&mut tx, 1).await?;
    if !own_session {
        tx.execute(FORGET_STATEMENTS).await.map_err(to_cause)?;
    }
    tx.commit().await.map_err(to_cause)
}

const FORGET_STATEMENTS: &str = "DEALLOCATE ALL";

/// `a2a-migr` as a PostgreSQL number.
const MIGRATION_LOCK: i64 = i64::from_be_bytes(*b"a2a-migr");

/// Runs all migrations in one transaction that writes from its beginning. Of two processes that start on one file
/// at once the second waits, and finds the migrations applied.
async fn run_as_writer(connection: &mut AnyConnection) -> Result<(), Cause> {
    let wait = format!("PRAGMA busy_timeout = {}", MIGRATE_MAX.as_millis());
    let waits = connection.execute(AssertSqlSafe(wait)).await;
    waits.map_err(to_cause)?;
    let begun = connection.begin_with("BEGIN IMMEDIATE").await;
    let mut tx = begun.map_err(to_cause)?;
    run_migrations(&mut tx, 0).await?;
    tx.commit().await.map_err(to_cause)
}

/// Runs the migrations. `text` is the index of the SQL text of each.
async fn run_migrations(connection: &mut AnyConnection, text: usize) -> Result<(), Cause> {
    let migrations = MIGRATIONS.map(|(version, name, texts)| {
        Migration::new(
            version,
            name.into(),
            MigrationType::Simple,
            texts[text].into_sql_str(),
            false,
        )
    });
    let mut migrator = Migrator::with_migrations(migrations.into());
    migrator.set_ignore_missing(true);
    migrator.set_locking(false);
    // Not `run`: its future cannot be spawned (the compiler finds `Acquire` not general enough).
    let done = migrator.run_direct(None, connection, false).await;
    done.map_err(|error| match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => to_cause(error),
        other => Arc::new(other),
    })
}
