//! A pooler between the gateway and PostgreSQL: how it is noticed, and what it changes.
//!
//! In transaction mode (PgBouncer's `pool_mode = transaction`) one connection meets another session of the server in
//! each transaction. `pg_backend_pid()` shows it. Until sessions are known to be the gateway's own, statements run so
//! that it does not matter (`statements.rs`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{AnyConnection, AnyPool, AssertSqlSafe, Connection as _, Executor as _, Row as _};

use super::open::Backend;

/// How often both connections are looked at: other clients of the pooler may hide a change once.
const ROUNDS: usize = 4;

const BACKEND: &str = "SELECT CAST(pg_backend_pid() AS BIGINT)";

/// Whether a pooler lends the sessions of the server.
pub(super) struct Pooler {
    backend: Backend,
    /// `SET LOCAL` of what a session is told else.
    local: String,
    /// Whether each connection has a session of its own.
    own_sessions: AtomicBool,
    /// That there is one was told.
    told: AtomicBool,
    /// When statements that were prepared by name were last seen to be another's.
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
            told: AtomicBool::new(false),
            noticed: Mutex::new(None),
        }
    }

    /// Whether each connection has a session of its own, in which names and settings stay.
    pub(super) fn has_own_sessions(&self) -> bool {
        self.own_sessions.load(Ordering::Acquire)
    }

    /// `begin`, with what the transaction has to bring itself.
    pub(super) fn begin(&self, begin: &str) -> AssertSqlSafe<String> {
        let local = if self.has_own_sessions() {
            ""
        } else {
            &self.local
        };
        AssertSqlSafe(format!("{begin}{local}"))
    }

    /// Looks whether two connections keep their own sessions. Where that cannot be seen, statements go on running as
    /// behind a pooler, which is slower and always right.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub(super) async fn look(&self, connections: &AnyPool) -> Result<(), sqlx::Error> {
        if self.backend == Backend::Sqlite || self.has_own_sessions() {
            return Ok(());
        }
        // Detached, so that neither takes a place of the pool from the other.
        let mut one = connections.acquire().await?.detach();
        // A database or pooler with room for one connection only: nothing is seen, so the slower way it is.
        let other = connections.acquire().await.ok();
        let Some(mut other) = other.map(PoolConnection::detach) else {
            tracing::warn!(
                "stores.sql has room for one connection only: statements run as behind a pooler in transaction mode"
            );
            return Ok(());
        };
        if keep_their_sessions(&mut one, &mut other).await? {
            self.own_sessions.store(true, Ordering::Release);
        } else if !self.told.swap(true, Ordering::AcqRel) {
            tracing::info!(
                "stores.sql is behind a pooler in transaction mode: each statement is unnamed and has a transaction"
            );
        }
        // The question is answered; a failing farewell changes nothing.
        let _ = tokio::join!(one.close(), other.close());
        Ok(())
    }

    /// Learns from an error of the database: it may tell of a pooler that came later.
    pub(super) fn learn(&self, error: &sqlx::Error) {
        let sqlx::Error::Database(refused) = error else {
            return;
        };
        let code = refused.code().unwrap_or_default();
        let foreign = match code.as_ref() {
            // A prepared statement that another client made, or that is elsewhere.
            "26000" | "42P05" => true,
            "08P01" => refused.message().starts_with("bind message supplies"),
            _ => false,
        };
        if !foreign || self.backend != Backend::Postgres {
            return;
        }
        // Each time: what waited for a connection before may have prepared by name on one that was made since.
        *self.noticed() = Some(Instant::now());
        if self.own_sessions.swap(false, Ordering::AcqRel) {
            tracing::warn!(
                code = code.as_ref(),
                "stores.sql came to be behind a pooler in transaction mode: from now on each statement is unnamed and \
                 has a transaction"
            );
        }
    }

    /// Whether a connection of this age may have statements by name that are not its own.
    pub(super) fn is_outdated(&self, age: Duration) -> bool {
        self.noticed()
            .is_some_and(|noticed| noticed.elapsed() < age)
    }

    fn noticed(&self) -> MutexGuard<'_, Option<Instant>> {
        self.noticed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether each of two connections has one session of the server, and another one than its neighbour.
async fn keep_their_sessions(
    one: &mut AnyConnection,
    other: &mut AnyConnection,
) -> Result<bool, sqlx::Error> {
    let first = backend(one).await?;
    for _ in 0..ROUNDS {
        // A pooler that gives away the session of longest ago shows it here, any other one below.
        if backend(one).await? != first {
            return Ok(false);
        }
        let mut held = other.begin().await?;
        if backend(&mut held).await? == first || backend(one).await? != first {
            return Ok(false);
        }
        held.rollback().await?;
    }
    Ok(true)
}

/// The process of the server that serves `connection`. As a simple query: nothing is prepared.
async fn backend(connection: &mut AnyConnection) -> Result<i64, sqlx::Error> {
    let row = connection.fetch_one(BACKEND).await?;
    row.try_get(0)
}
