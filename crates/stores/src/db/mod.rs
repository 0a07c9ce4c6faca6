//! The SQL store: one set of portable SQL texts for SQLite (one gateway) and PostgreSQL (replicas).
//!
//! Modules own their tables and write their SQL. This module owns the pool, the timeout of every operation,
//! and the schema. SQL texts use `$1` markers, `ON CONFLICT` and `RETURNING`; times are `i64` milliseconds,
//! ids and JSON are text. There are no booleans and no blobs, since the `Any` driver maps those differently
//! on each database; only the audit's rows in SQLite have blobs, which are written through [`Db::write_to_file`].

mod file;
mod hosts;
mod migrate;
mod open;
mod pooler;
mod statements;
mod values;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use sqlx::any::{AnyArguments, AnyPoolOptions, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, FromRow};
use tokio::time::Instant;

use self::file::File;
use self::open::{Backend, Location};
use self::pooler::Pooler;
pub use self::statements::{Connection, Pool, Transaction};
pub use self::values::Values;
use crate::store::{Cause, DatabaseError, InvalidUrl, Run, StoreHealth, Unavailable, wait_within};
use kernel::config;
use kernel::metrics::Metrics;

/// A handle to the SQL store. Clones share one pool.
#[derive(Clone)]
pub struct Db(Arc<Inner>);

struct Inner {
    location: Location,
    connections: u32,
    timeout: Duration,
    metrics: Arc<Metrics>,
    /// Created on first use, since a pool belongs to the runtime that creates it.
    pool: OnceLock<Pool>,
    pooler: Arc<Pooler>,
    file: File,
    /// True if the schema is known to be up to date. No queries run before.
    migrated: AtomicBool,
    health: StoreHealth,
    /// The lock of the SQLite file, held while this process serves from it.
    claimed: Mutex<Option<std::fs::File>>,
}

impl Db {
    /// Checks the URL and, for SQLite, creates the folder and the file. Does not connect.
    ///
    /// # Errors
    /// When `stores.sql` has an unknown form, or the SQLite file cannot be created.
    pub fn open(settings: &config::Stores, metrics: Arc<Metrics>) -> Result<Self, InvalidUrl> {
        let location = Location::parse(&settings.sql)?;
        let connections = match location.backend {
            Backend::Sqlite => settings.sql_connections.min(SQLITE_CONNECTIONS_MAX),
            Backend::Postgres => settings.sql_connections,
        };
        let pooler = Arc::new(Pooler::new(location.backend, settings.timeout));
        Ok(Self(Arc::new(Inner {
            location,
            pooler,
            connections: connections.max(1),
            timeout: settings.timeout,
            metrics,
            pool: OnceLock::new(),
            file: File::default(),
            migrated: AtomicBool::new(false),
            health: StoreHealth::default(),
            claimed: Mutex::default(),
        })))
    }

    /// True if the schema is known to be up to date.
    pub fn is_migrated(&self) -> bool {
        self.0.migrated.load(Ordering::Acquire)
    }

    /// Accepts the schema as it is, for commands that only read. Queries of a missing table or column fail.
    pub fn accept_schema(&self) {
        self.0.migrated.store(true, Ordering::Release);
    }

    /// Locks the SQLite file, so that no other gateway serves from it. Without invalidations between them
    /// each would accept credentials that the other has revoked. PostgreSQL is shared by replicas and not
    /// locked.
    ///
    /// # Errors
    /// `WouldBlock` when another process holds the lock; otherwise the error of the system.
    pub fn claim(&self) -> std::io::Result<()> {
        if let Some(file) = &self.0.location.file {
            *self.0.claimed.lock() = Some(open::lock_file(file)?);
        }
        Ok(())
    }

    /// Closes all connections, at most after `stores.timeout`, and lets another gateway have the SQLite file. The end
    /// of a process does as much.
    pub async fn close(&self) {
        if let Some(pool) = self.0.pool.get() {
            let _ = tokio::time::timeout(self.0.timeout, pool.connections.close()).await;
        }
        self.0.claimed.lock().take();
    }

    /// True for the SQLite file of a single gateway.
    pub fn is_embedded(&self) -> bool {
        self.0.location.backend == Backend::Sqlite
    }

    /// Returns the pool, for queries inside [`Db::run`]. The first call must be inside a runtime.
    pub fn pool(&self) -> &Pool {
        self.0.pool.get_or_init(|| {
            let inner = &self.0;
            let options = AnyPoolOptions::new()
                .max_connections(inner.connections)
                .acquire_timeout(inner.timeout);
            let (backend, hosts) = (inner.location.backend, inner.location.hosts.as_ref());
            let options = backend.add_hooks(options, inner.timeout, &inner.pooler, hosts);
            let connections = options.connect_lazy_with(inner.location.options.clone());
            if let Some(hosts) = hosts {
                hosts.attach_pool(&connections);
            }
            Pool {
                connections,
                pooler: Arc::clone(&inner.pooler),
            }
        })
    }

    /// Begins a transaction; use it inside [`Db::run`]. Dropping it rolls back.
    ///
    /// SQLite takes the write lock at once: a transaction that reads first and writes later would otherwise
    /// fail without waiting as soon as another one has written in between.
    ///
    /// # Errors
    /// The error of the driver; [`Db::run`] converts it to [`Unavailable`].
    pub async fn begin(&self) -> Result<Transaction, sqlx::Error> {
        match self.0.location.backend {
            Backend::Sqlite => self.pool().begin("BEGIN IMMEDIATE").await,
            Backend::Postgres => self.pool().begin("BEGIN").await,
        }
    }

    /// Returns a connection for several statements that read; use it inside [`Db::run`].
    ///
    /// # Errors
    /// As [`Db::begin`].
    pub async fn begin_reading(&self) -> Result<Connection, sqlx::Error> {
        self.pool().begin_reading().await
    }

    /// Begins a transaction that reads the hierarchy before it writes to it. Only one runs at a time over
    /// all replicas, so its reads still hold when it commits.
    ///
    /// # Errors
    /// As [`Db::begin`].
    pub async fn begin_alone(&self) -> Result<Transaction, sqlx::Error> {
        match self.0.location.backend {
            Backend::Sqlite => self.begin().await,
            Backend::Postgres => {
                // READ COMMITTED whatever the server's default, so that each statement sees earlier
                // commits: the transaction begins before it holds the lock.
                let begin = "BEGIN ISOLATION LEVEL READ COMMITTED";
                let mut tx = self.pool().begin(begin).await?;
                let hold = sqlx::query(HOLD_HIERARCHY).bind(HIERARCHY_LOCK);
                hold.execute(&mut *tx).await?;
                Ok(tx)
            }
        }
    }

    /// Runs a statement that only PostgreSQL needs: a transaction of SQLite that writes is alone.
    ///
    /// # Errors
    /// The error of the driver.
    pub async fn execute_on_postgres(
        &self,
        tx: &mut Connection,
        statement: &'static str,
    ) -> Result<(), sqlx::Error> {
        if self.0.location.backend == Backend::Postgres {
            sqlx::query(statement).execute(tx).await?;
        }
        Ok(())
    }

    /// Returns the timeout of operations, `stores.timeout`.
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// Runs `work` with the timeout and counts it as `operation`, a metric label from a closed set.
    ///
    /// Every outcome without a value is [`Unavailable`]: use `fetch_optional` for rows that may be missing,
    /// and `ON CONFLICT` for rows that may exist. Work that timed out may still have been done, so a write
    /// that is not idempotent needs its own key.
    ///
    /// # Errors
    /// When the store fails, times out, or its schema is not up to date yet.
    pub async fn run<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, Unavailable> {
        self.run_within(operation, self.0.timeout, work).await
    }

    /// As [`Db::run`], for a transaction of many statements, each of which has the timeout: all of them have `limit`.
    ///
    /// # Errors
    /// As [`Db::run`].
    pub async fn run_within<T>(
        &self,
        operation: &'static str,
        limit: Duration,
        work: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, Unavailable> {
        self.require_schema(operation)?;
        let work = async {
            work.await.map_err(|error| {
                self.0.pooler.learn_from(&error);
                to_cause(error)
            })
        };
        self.run_timed(operation, limit, work).await
    }

    fn require_schema(&self, operation: &'static str) -> Result<(), Unavailable> {
        if self.is_migrated() {
            return Ok(());
        }
        Err(Unavailable::new(STORE, operation, NotMigrated))
    }

    /// Runs one change outside of any transaction, and returns the number of changed rows.
    ///
    /// # Errors
    /// As [`Db::run`].
    pub async fn execute(
        &self,
        operation: &'static str,
        change: Query<'_, Any, AnyArguments>,
    ) -> Result<u64, Unavailable> {
        let work = async { Ok(change.execute(self.pool()).await?.rows_affected()) };
        self.run(operation, work).await
    }

    /// Runs a change again and again until it changes less than [`BATCH_MAX`] rows, its bound. Returns the number of
    /// all.
    ///
    /// # Errors
    /// As [`Db::run`].
    pub async fn execute_in_batches<'q>(
        &self,
        operation: &'static str,
        change: impl Fn() -> Query<'q, Any, AnyArguments>,
    ) -> Result<u64, Unavailable> {
        let mut all = 0;
        loop {
            let rows = self.execute(operation, change()).await?;
            all += rows;
            if rows < BATCH_MAX.unsigned_abs() {
                return Ok(all);
            }
        }
    }

    /// Runs a query outside of any transaction, and returns its rows.
    ///
    /// # Errors
    /// As [`Db::run`].
    pub async fn fetch_all<T: for<'r> FromRow<'r, AnyRow>>(
        &self,
        operation: &'static str,
        query: Query<'_, Any, AnyArguments>,
    ) -> Result<Vec<T>, Unavailable> {
        let work = async {
            let rows = query.fetch_all(self.pool()).await?;
            rows.iter().map(T::from_row).collect()
        };
        self.run(operation, work).await
    }

    /// Runs a query outside of any transaction, and returns its row, if there is one.
    ///
    /// # Errors
    /// As [`Db::run`].
    pub async fn fetch_optional<T: for<'r> FromRow<'r, AnyRow>>(
        &self,
        operation: &'static str,
        query: Query<'_, Any, AnyArguments>,
    ) -> Result<Option<T>, Unavailable> {
        let work = async {
            let row = query.fetch_optional(self.pool()).await?;
            row.as_ref().map(T::from_row).transpose()
        };
        self.run(operation, work).await
    }

    /// Runs a change that returns the changed row, inside [`Db::run`]. A dry run is rolled back.
    ///
    /// # Errors
    /// The error of the driver, also of the commit.
    pub async fn fetch_changed_in(
        &self,
        run: Run,
        change: Query<'_, Any, AnyArguments>,
    ) -> Result<Option<AnyRow>, sqlx::Error> {
        match run {
            Run::Real => change.fetch_optional(self.pool()).await,
            Run::Dry => fetch_and_end(self.begin().await?, run, change).await,
        }
    }

    /// As [`Db::fetch_changed_in`], in a transaction as [`Db::begin_alone`] begins.
    ///
    /// # Errors
    /// As [`Db::fetch_changed_in`].
    pub async fn fetch_changed_alone(
        &self,
        run: Run,
        change: Query<'_, Any, AnyArguments>,
    ) -> Result<Option<AnyRow>, sqlx::Error> {
        fetch_and_end(self.begin_alone().await?, run, change).await
    }

    /// Runs a trivial query, to check that the store responds and is migrated.
    ///
    /// # Errors
    /// When the store does not respond, or is not migrated.
    pub async fn ping(&self) -> Result<(), Unavailable> {
        self.execute("ping", sqlx::query("SELECT 1"))
            .await
            .map(drop)
    }

    /// True if the store responds, as far as is known. Runs no query.
    pub fn is_well(&self) -> bool {
        self.is_migrated() && self.0.health.is_well()
    }

    /// Returns the server's clock, or `None` for a file.
    ///
    /// # Errors
    /// When the store does not respond.
    pub async fn read_clock(&self) -> Result<Option<SystemTime>, Unavailable> {
        if self.is_embedded() {
            return Ok(None);
        }
        let work = async { sqlx::query_scalar(CLOCK).fetch_one(self.pool()).await };
        let micros: i64 = self.run("ping", work).await?;
        let since = Duration::from_micros(u64::try_from(micros).unwrap_or(0));
        Ok(Some(SystemTime::UNIX_EPOCH + since))
    }

    async fn run_timed<T>(
        &self,
        operation: &'static str,
        limit: Duration,
        work: impl Future<Output = Result<T, Cause>>,
    ) -> Result<T, Unavailable> {
        let started = Instant::now();
        let result = wait_within(limit, work)
            .await
            .map_err(|source| Unavailable {
                store: STORE,
                operation,
                source,
            });
        let elapsed = started.elapsed();
        self.0
            .metrics
            .record_operation(STORE, operation, elapsed, result.is_ok());
        self.0.health.record_result(STORE, &result);
        if result.is_err()
            && let Some(hosts) = &self.0.location.hosts
        {
            hosts.search_in_background();
        }
        result
    }
}

/// Runs a change that returns the changed row, and ends the transaction.
async fn fetch_and_end(
    mut tx: Transaction,
    run: Run,
    change: Query<'_, Any, AnyArguments>,
) -> Result<Option<AnyRow>, sqlx::Error> {
    let rows = change.fetch_all(&mut *tx).await?;
    tx.end(run).await?;
    Ok(rows.into_iter().next())
}

/// Maximum number of rows of one change of [`Db::execute_in_batches`].
pub const BATCH_MAX: i64 = 5000;

/// The metric label of this store.
const STORE: &str = "sql";

const CLOCK: &str = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)";

/// Released at the end of the transaction.
const HOLD_HIERARCHY: &str = "SELECT CAST(pg_advisory_xact_lock($1) AS TEXT)";

/// `a2a-gate` as a PostgreSQL number. No other lock has this key.
const HIERARCHY_LOCK: i64 = i64::from_be_bytes(*b"a2a-gate");

/// Maximum number of SQLite connections. Each is a thread, and only one writes at a time.
const SQLITE_CONNECTIONS_MAX: u32 = 8;

/// The schema is not up to date yet, so results cannot be trusted.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the schema is not up to date yet")]
struct NotMigrated;

/// PgBouncer's rejection of a parameter that the driver sets in each session.
const PARAMETER_REFUSED: &str = "unsupported startup parameter: extra_float_digits";

/// The driver retries to connect until the timeout, and does not return the errors.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "no connection in time: the database at stores.sql does not answer, or all stores.sql_connections are in use"
)]
struct NoConnection;

fn to_cause(error: sqlx::Error) -> Cause {
    match error {
        sqlx::Error::Database(refused) => Arc::new(DatabaseError {
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
