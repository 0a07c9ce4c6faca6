//! Durable facts: one set of portable SQL texts on SQLite (one gateway) or PostgreSQL (replicas).
//!
//! Rooms own their tables and write the SQL; this room owns the pool, the clock over every
//! operation, and the schema. Texts use `$1` markers, `ON CONFLICT` and `RETURNING`; times are `i64`
//! milliseconds, ids and JSON are text. No booleans, no blobs: the `Any` driver maps those
//! differently on each side.

mod migrate;
mod open;
mod pooler;
mod statements;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use sqlx::Any;
use sqlx::any::{AnyArguments, AnyPoolOptions, AnyRow};
use sqlx::query::Query;
use tokio::time::Instant;

use self::open::{Backend, Location};
use self::pooler::Pooler;
pub use self::statements::{Connection, Pool, Transaction};
use crate::config;
use crate::metrics::Metrics;
use crate::store::{Answering, Cause, InvalidUrl, Refused, TooSlow, Unavailable};

/// Handle to the SQL store. Clones share one pool.
#[derive(Clone)]
pub struct Db(Arc<Inner>);

struct Inner {
    location: Location,
    connections: u32,
    timeout: Duration,
    metrics: Arc<Metrics>,
    /// Made on first use, since a pool belongs to the runtime that makes it.
    pool: OnceLock<Pool>,
    pooler: Arc<Pooler>,
    /// Whether the schema is known to be ours. Nothing is asked before.
    migrated: AtomicBool,
    answering: Answering,
    /// Held for as long as this process serves from an SQLite file.
    claimed: OnceLock<std::fs::File>,
}

impl Db {
    /// Checks the URL and, for SQLite, creates the folder and the file. Connects to nothing.
    ///
    /// # Errors
    /// When `stores.sql` has no known form, or the SQLite file cannot be created.
    pub fn open(settings: &config::Stores, metrics: Arc<Metrics>) -> Result<Self, InvalidUrl> {
        let location = Location::parse(&settings.sql)?;
        let connections = match location.backend {
            Backend::Sqlite => settings.sql_connections.min(SQLITE_CONNECTIONS_MAX),
            Backend::Postgres => settings.sql_connections,
        };
        let pooler = Pooler::new(location.backend, settings.timeout);
        Ok(Self(Arc::new(Inner {
            location,
            pooler: Arc::new(pooler),
            connections: connections.max(1),
            timeout: settings.timeout,
            metrics,
            pool: OnceLock::new(),
            migrated: AtomicBool::new(false),
            answering: Answering::default(),
            claimed: OnceLock::new(),
        })))
    }

    /// Whether the schema is known to be up to date.
    pub fn is_migrated(&self) -> bool {
        self.0.migrated.load(Ordering::Acquire)
    }

    /// Takes the schema as it is, for who only reads: what is missing fails there.
    pub fn take_as_it_is(&self) {
        self.0.migrated.store(true, Ordering::Release);
    }

    /// Makes sure that no other gateway serves from the same SQLite file: with nothing that carries
    /// invalidations between them, each would obey what the other has revoked. PostgreSQL is for
    /// several, so nothing is claimed there.
    ///
    /// # Errors
    /// `WouldBlock` when another process has claimed it; else what the system said.
    pub fn claim(&self) -> std::io::Result<()> {
        if let Some(file) = &self.0.location.file {
            let _ = self.0.claimed.set(open::claim(file)?);
        }
        Ok(())
    }

    /// Whether this is the SQLite file of a single gateway.
    pub fn is_embedded(&self) -> bool {
        self.0.location.backend == Backend::Sqlite
    }

    /// The pool, for queries inside [`Db::run`]. The first call must be inside a runtime.
    pub fn pool(&self) -> &Pool {
        self.0.pool.get_or_init(|| {
            let inner = &self.0;
            let options = AnyPoolOptions::new()
                .max_connections(inner.connections)
                .acquire_timeout(inner.timeout);
            let options = inner
                .location
                .backend
                .hooks(options, inner.timeout, &inner.pooler);
            Pool {
                connections: options.connect_lazy_with(inner.location.options.clone()),
                pooler: Arc::clone(&inner.pooler),
            }
        })
    }

    /// Begins a transaction; use it inside [`Db::run`]. Dropping it rolls back.
    ///
    /// SQLite takes the write lock at once: a transaction that reads first and writes later would
    /// otherwise fail, without waiting, as soon as another one has written in between.
    ///
    /// # Errors
    /// What the driver says; [`Db::run`] turns it into [`Unavailable`].
    pub async fn begin(&self) -> Result<Transaction, sqlx::Error> {
        match self.0.location.backend {
            Backend::Sqlite => self.pool().begin("BEGIN IMMEDIATE").await,
            Backend::Postgres => self.pool().begin("BEGIN").await,
        }
    }

    /// One connection for several statements that read; use it inside [`Db::run`].
    ///
    /// # Errors
    /// As [`Db::begin`].
    pub async fn begin_reading(&self) -> Result<Connection, sqlx::Error> {
        self.pool().begin_reading().await
    }

    /// Begins a transaction that reads the hierarchy before it writes to it: one at a time over all
    /// replicas, so that what it read still holds when it commits.
    ///
    /// # Errors
    /// As [`Db::begin`].
    pub async fn begin_alone(&self) -> Result<Transaction, sqlx::Error> {
        match self.0.location.backend {
            Backend::Sqlite => self.begin().await,
            Backend::Postgres => {
                // Each statement must see what was committed before it, whatever the server's
                // default: the transaction begins before it holds the lock.
                let begin = "BEGIN ISOLATION LEVEL READ COMMITTED";
                let mut tx = self.pool().begin(begin).await?;
                let hold = sqlx::query(HOLD_HIERARCHY).bind(HIERARCHY_LOCK);
                hold.execute(&mut *tx).await?;
                Ok(tx)
            }
        }
    }

    /// The store's clock: `stores.timeout`.
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// Runs `work` under the store's clock and counts it as `operation` (a metric label: one of a
    /// closed set of short words).
    ///
    /// Everything but a value is [`Unavailable`], so ask with `fetch_optional` for what may be
    /// missing, and with `ON CONFLICT` for what may exist. Work that ran out of time may still have
    /// been done: a write that is not idempotent needs a key of its own.
    ///
    /// # Errors
    /// When the store fails, is too slow, or its schema has not been brought up to date yet.
    pub async fn run<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, Unavailable> {
        if !self.is_migrated() {
            return Err(unavailable(operation, NotMigrated));
        }
        let work = async {
            work.await.map_err(|error| {
                self.0.pooler.learn(&error);
                cause(error)
            })
        };
        self.clocked(operation, self.0.timeout, work).await
    }

    /// Runs, outside of any transaction, a change that returns the row that it changed, and answers with it. For use
    /// inside [`Db::run`], where `fetch_optional` would stop at the row: SQLite commits behind it, so what was
    /// answered as done could still fail, and nobody would hear of it.
    ///
    /// # Errors
    /// What the driver says, also of the commit.
    pub async fn changed(
        &self,
        change: Query<'_, Any, AnyArguments>,
    ) -> Result<Option<AnyRow>, sqlx::Error> {
        Ok(change.fetch_all(self.pool()).await?.into_iter().next())
    }

    /// Asks for nothing, to learn whether the store answers and is migrated.
    ///
    /// # Errors
    /// When it is not.
    pub async fn ping(&self) -> Result<(), Unavailable> {
        let work = async { sqlx::query("SELECT 1").execute(self.pool()).await };
        self.run("ping", work).await.map(|_| ())
    }

    /// Whether the store answers, as far as is known. Asks nothing.
    pub fn is_well(&self) -> bool {
        self.is_migrated() && self.0.answering.is_well()
    }

    /// The server's clock; `None` of a file.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn clock(&self) -> Result<Option<SystemTime>, Unavailable> {
        if self.is_embedded() {
            return Ok(None);
        }
        let work = async { sqlx::query_scalar(CLOCK).fetch_one(self.pool()).await };
        let micros: i64 = self.run("ping", work).await?;
        let since = Duration::from_micros(u64::try_from(micros).unwrap_or(0));
        Ok(Some(SystemTime::UNIX_EPOCH + since))
    }

    async fn clocked<T>(
        &self,
        operation: &'static str,
        limit: Duration,
        work: impl Future<Output = Result<T, Cause>>,
    ) -> Result<T, Unavailable> {
        let started = Instant::now();
        let result = match tokio::time::timeout(limit, work).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(source)) => Err(Unavailable {
                store: STORE,
                operation,
                source,
            }),
            Err(_) => Err(unavailable(operation, TooSlow(limit))),
        };
        let elapsed = started.elapsed();
        self.0
            .metrics
            .store(STORE, operation, elapsed, result.is_ok());
        self.0.answering.note(STORE, &result);
        result
    }
}

/// The metric label of this store.
const STORE: &str = "sql";

const CLOCK: &str = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)";

/// Let go at the end of the transaction.
const HOLD_HIERARCHY: &str = "SELECT CAST(pg_advisory_xact_lock($1) AS TEXT)";
/// `a2a-gate`, as PostgreSQL's number: the lock is known by nothing else.
const HIERARCHY_LOCK: i64 = i64::from_be_bytes(*b"a2a-gate");

/// Each SQLite connection is a thread, and only one of them writes at a time.
const SQLITE_CONNECTIONS_MAX: u32 = 8;

/// The schema was not brought up to date yet, so no answer could be trusted.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the schema is not up to date yet")]
struct NotMigrated;

/// How PgBouncer refuses what the driver asks each session for.
const PARAMETER_REFUSED: &str = "unsupported startup parameter: extra_float_digits";

/// The driver tries to connect until the clock is over, and keeps to itself what it met.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "no connection in time: the database at stores.sql does not answer, or all stores.sql_connections are in use"
)]
struct NoConnection;

fn cause(error: sqlx::Error) -> Cause {
    match error {
        sqlx::Error::Database(refused) => Arc::new(Refused {
            code: refused.code().unwrap_or_default().into_owned(),
            message: match refused.message() {
                message if message.contains(PARAMETER_REFUSED) => {
                    format!(
                        "{message}; in pgbouncer.ini: ignore_startup_parameters = extra_float_digits"
                    )
                }
                message => message.to_owned(),
            },
        }),
        sqlx::Error::PoolTimedOut => Arc::new(NoConnection),
        other => Arc::new(other),
    }
}

fn unavailable(
    operation: &'static str,
    source: impl std::error::Error + Send + Sync + 'static,
) -> Unavailable {
    Unavailable {
        store: STORE,
        operation,
        source: Arc::new(source),
    }
}
