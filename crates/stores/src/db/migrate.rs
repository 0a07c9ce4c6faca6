//! The schema, embedded as migrations in their order. From 0.1.0 on a migration only adds, so that a replica of the
//! previous release still works, and can even start, on the schema of the next.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Executor as _, SqlSafeStr as _};

use super::{Backend, Db, to_cause};
use crate::store::{Cause, Unavailable};

/// Timeout of the migration, including the wait for another replica's.
const MIGRATE_MAX: Duration = Duration::from_secs(60);

/// Version, name, and the SQL for SQLite and for PostgreSQL. Never edit a released migration: databases store its
/// checksum.
const MIGRATIONS: &[(i64, &str, [&str; 2])] = &[(
    1,
    "schema",
    [
        concat!(
            include_str!("migrations/0001_schema.sql"),
            include_str!("migrations/0001_schema.sqlite.sql"),
        ),
        concat!(
            include_str!("migrations/0001_schema.sql"),
            include_str!("migrations/0001_schema.postgres.sql"),
        ),
    ],
)];

/// A database of a build before 0.1.0.
#[derive(Debug, thiserror::Error)]
#[error(
    "the database has the schema of a build before 0.1.0, which this one cannot read: move it away, or name an empty one in \
     stores.sql"
)]
struct UnreleasedSchema;

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
        let detected = pool.pooler.detect_sessions(&pool.connections).await;
        detected.map_err(to_cause)?;
        // Detached, so that dropping it closes it, which also ends a migration that timed out.
        let mut connection = pool.connections.acquire().await.map_err(to_cause)?.detach();
        let applied = match self.0.location.backend {
            Backend::Postgres => run_alone(&mut connection).await,
            Backend::Sqlite => run_as_writer(&mut connection).await,
        };
        // The work is done; a failed close has no effect.
        let _ = tokio::time::timeout(self.0.timeout, connection.close()).await;
        applied
    }
}

/// Runs all migrations in one transaction that holds a lock. A pooler, too, keeps a transaction in one
/// session.
async fn run_alone(connection: &mut AnyConnection) -> Result<(), Cause> {
    let mut tx = connection.begin().await.map_err(to_cause)?;
    let milliseconds = MIGRATE_MAX.as_millis();
    let begin = format!(
        "SET LOCAL statement_timeout = {milliseconds}; \
         SET LOCAL idle_in_transaction_session_timeout = {milliseconds}; \
         SELECT CAST(pg_advisory_xact_lock({MIGRATION_LOCK}) AS TEXT)"
    );
    tx.execute(AssertSqlSafe(begin)).await.map_err(to_cause)?;
    // The migrator prepares named statements. They must not collide with those of another client behind a pooler, and
    // none may remain.
    tx.execute(FORGET_STATEMENTS).await.map_err(to_cause)?;
    run_migrations(&mut tx, MIGRATIONS, 1).await?;
    tx.execute(FORGET_STATEMENTS).await.map_err(to_cause)?;
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
    run_migrations(&mut tx, MIGRATIONS, 0).await?;
    tx.commit().await.map_err(to_cause)
}

/// Runs the migrations. `text` is the index of the SQL text of each.
async fn run_migrations(
    connection: &mut AnyConnection,
    migrations: &[(i64, &'static str, [&'static str; 2])],
    text: usize,
) -> Result<(), Cause> {
    let migrations = migrations.iter().map(|&(version, name, texts)| {
        Migration::new(
            version,
            name.into(),
            MigrationType::Simple,
            texts[text].into_sql_str(),
            false,
        )
    });
    let mut migrator = Migrator::with_migrations(migrations.collect());
    migrator.set_ignore_missing(true);
    migrator.set_locking(false);
    // Not `run`: its future cannot be spawned (the compiler finds `Acquire` not general enough).
    let done = migrator.run_direct(None, connection, false).await;
    done.map_err(|error| match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => to_cause(error),
        MigrateError::VersionMismatch(1) => Arc::new(UnreleasedSchema),
        other => Arc::new(other),
    })
}

#[cfg(test)]
#[path = "migrate_tests.rs"]
mod tests;
