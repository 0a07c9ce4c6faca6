//! Detects a pooler between the gateway and PostgreSQL.
//!
//! In transaction mode (PgBouncer's `pool_mode = transaction`) a connection may get another server session
//! in each transaction, which `pg_backend_pid()` reveals. Until each connection is known to have its own
//! session, statements run in a way that works with both (`statements.rs`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::pool::PoolConnection;
use sqlx::{AnyConnection, AnyPool, AssertSqlSafe, Connection as _, Executor as _, Row as _};

use super::open::Backend;

/// Number of comparisons of both connections: other clients of the pooler may hide a change once.
const ROUNDS: usize = 4;

const BACKEND: &str = "SELECT CAST(pg_backend_pid() AS BIGINT)";

/// The knowledge about a pooler.
pub(super) struct Pooler {
    backend: Backend,
    /// The settings of a session, as `SET LOCAL`.
    local: String,
    /// True if each connection has its own session.
    own_sessions: AtomicBool,
    /// True if the pooler was logged.
    logged: AtomicBool,
    /// The time at which a prepared statement of another client was last met.
    noticed: Mutex<Option<Instant>>,
}

impl Pooler {
    pub(super) fn new(backend: Backend, timeout: Duration) -> Self {
        let milliseconds = timeout.as_millis();
        Self {
            backend,
            local: format!(
                "; SET LOCAL statement_timeout = {milliseconds}; \
                 SET LOCAL idle_in_transaction_session_timeout = {milliseconds}"
            ),
            own_sessions: AtomicBool::new(backend == Backend::Sqlite),
            logged: AtomicBool::new(false),
            noticed: Mutex::new(None),
        }
    }

    /// True if each connection has its own session, which keeps prepared statements and settings.
    pub(super) fn has_own_sessions(&self) -> bool {
        self.own_sessions.load(Ordering::Acquire)
    }

    /// Returns `begin`, followed by the settings of the transaction if it needs them.
    pub(super) fn begin_statement(&self, begin: &str) -> AssertSqlSafe<String> {
        let local = if self.has_own_sessions() {
            ""
        } else {
            &self.local
        };
        AssertSqlSafe(format!("{begin}{local}"))
    }

    /// Checks whether two connections keep their own sessions. If that cannot be determined, statements
    /// still run as behind a pooler, which is slower and always correct.
    ///
    /// # Errors
    /// When the database cannot be queried.
    pub(super) async fn detect_sessions(&self, connections: &AnyPool) -> Result<(), sqlx::Error> {
        if self.backend == Backend::Sqlite || self.has_own_sessions() {
            return Ok(());
        }
        // Detached, so that neither takes a place in the pool from the other.
        let mut one = connections.acquire().await?.detach();
        // A database or pooler with space for one connection only allows no check, so the slower way stays.
        let other = connections.acquire().await.ok();
        let Some(mut other) = other.map(PoolConnection::detach) else {
            tracing::warn!(
                "stores.sql has room for one connection only: statements run as behind a pooler in transaction mode"
            );
            return Ok(());
        };
        if keep_their_sessions(&mut one, &mut other).await? {
            self.own_sessions.store(true, Ordering::Release);
        } else if !self.logged.swap(true, Ordering::AcqRel) {
            tracing::info!(
                "stores.sql is behind a pooler in transaction mode: each statement is unnamed and has a transaction"
            );
        }
        // The result is known; a failed close has no effect.
        let _ = tokio::join!(one.close(), other.close());
        Ok(())
    }

    /// Inspects an error of the database, which may reveal a pooler that was added later.
    pub(super) fn learn_from(&self, error: &sqlx::Error) {
        let sqlx::Error::Database(refused) = error else {
            return;
        };
        let code = refused.code().unwrap_or_default();
        let foreign = match code.as_ref() {
            // A prepared statement of another client, or on another session.
            "26000" | "42P05" => true,
            "08P01" => refused.message().starts_with("bind message supplies"),
            _ => false,
        };
        if !foreign || self.backend != Backend::Postgres {
            return;
        }
        // Set each time: work that waited for a connection may have prepared a named statement on a newer
        // one.
        *self.noticed.lock() = Some(Instant::now());
        if self.own_sessions.swap(false, Ordering::AcqRel) {
            tracing::warn!(
                code = code.as_ref(),
                "stores.sql came to be behind a pooler in transaction mode: from now on each statement is unnamed and \
                 has a transaction"
            );
        }
    }

    /// True if a connection of this age may hold named statements of another client.
    pub(super) fn is_outdated(&self, age: Duration) -> bool {
        self.noticed
            .lock()
            .is_some_and(|noticed| noticed.elapsed() < age)
    }
}

/// True if each of two connections keeps one server session, and they have different ones.
async fn keep_their_sessions(
    one: &mut AnyConnection,
    other: &mut AnyConnection,
) -> Result<bool, sqlx::Error> {
    let first = backend_pid(one).await?;
    for _ in 0..ROUNDS {
        // A pooler that rotates to the least recently used session is detected here, others below.
        if backend_pid(one).await? != first {
            return Ok(false);
        }
        let mut held = other.begin().await?;
        if backend_pid(&mut held).await? == first || backend_pid(one).await? != first {
            return Ok(false);
        }
        held.rollback().await?;
    }
    Ok(true)
}

/// Returns the server process behind `connection`. A simple query: nothing is prepared.
async fn backend_pid(connection: &mut AnyConnection) -> Result<i64, sqlx::Error> {
    let row = connection.fetch_one(BACKEND).await?;
    row.try_get(0)
}
