//! Runs statements on connections of the pool, with their own sessions or behind a pooler.
//!
//! A pooler in transaction mode lends a server session for one transaction. Prepared statements and
//! settings stay in that session, where the next client meets them. There each statement is unnamed, and
//! runs in a transaction with its own settings.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _, TryFutureExt as _, TryStreamExt as _};
use sqlx::any::{AnyArguments, AnyQueryResult, AnyRow, AnyStatement, AnyTypeInfo};
use sqlx::pool::PoolConnection;
use sqlx::{Any, AnyConnection, AnyPool, Either, Error, Execute, Executor, SqlStr};

use super::pooler::Pooler;
use crate::store::Run;

/// The pool of the SQL store. As an executor it runs one statement, which commits by itself.
pub struct Pool {
    pub(super) connections: AnyPool,
    pub(super) pooler: Arc<Pooler>,
}

/// One connection for several statements.
pub struct Connection {
    state: ConnectionState,
    /// True if its statements may be prepared by name and cached.
    named: bool,
}

enum ConnectionState {
    Plain(PoolConnection<Any>),
    Begun(sqlx::Transaction<'static, Any>),
}

/// A connection in a transaction. Dropping it rolls back.
pub struct Transaction(Connection);

impl Pool {
    /// Returns the number of connections that are not in use.
    pub fn idle(&self) -> usize {
        self.connections.num_idle()
    }

    /// Closes every connection.
    pub async fn close(&self) {
        self.connections.close().await;
    }

    /// Begins a transaction with the SQL text `begin`.
    pub(super) async fn begin(&self, begin: &str) -> Result<Transaction, Error> {
        let begun = self.pooler.begin_statement(begin);
        let begun = self.connections.begin_with(begun).await?;
        Ok(Transaction(Connection {
            state: ConnectionState::Begun(begun),
            named: self.pooler.has_own_sessions(),
        }))
    }

    /// Returns a connection for statements that read. Behind a pooler writes are rolled back, unless it is ended.
    pub(super) async fn begin_reading(&self) -> Result<Connection, Error> {
        if !self.pooler.has_own_sessions() {
            return Ok(self.begin("BEGIN").await?.0);
        }
        Ok(Connection {
            state: ConnectionState::Plain(self.connections.acquire().await?),
            named: true,
        })
    }
}

impl Connection {
    fn get(&mut self) -> &mut AnyConnection {
        match &mut self.state {
            ConnectionState::Plain(connection) => connection,
            ConnectionState::Begun(transaction) => transaction,
        }
    }

    async fn end(self, run: Run) -> Result<(), Error> {
        match (self.state, run) {
            (ConnectionState::Plain(_), _) => Ok(()),
            (ConnectionState::Begun(transaction), Run::Real) => transaction.commit().await,
            (ConnectionState::Begun(transaction), Run::Dry) => transaction.rollback().await,
        }
    }
}

impl Transaction {
    /// Commits.
    ///
    /// # Errors
    /// The error of the driver; the transaction may be committed nevertheless.
    pub async fn commit(self) -> Result<(), Error> {
        self.0.end(Run::Real).await
    }

    /// Commits, or rolls back if it was a dry run.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub async fn end(self, run: Run) -> Result<(), Error> {
        self.0.end(run).await
    }
}

impl Deref for Transaction {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.0
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.0
    }
}

/// A query that is cached as a prepared statement only on connections that allow names.
struct Statement<E> {
    query: E,
    named: bool,
}

impl<'q, E: Execute<'q, Any>> Execute<'q, Any> for Statement<E> {
    fn sql(self) -> SqlStr {
        self.query.sql()
    }

    fn statement(&self) -> Option<&AnyStatement> {
        self.query.statement()
    }

    fn take_arguments(&mut self) -> Result<Option<AnyArguments>, sqlx::error::BoxDynError> {
        self.query.take_arguments()
    }

    fn persistent(&self) -> bool {
        self.named && self.query.persistent()
    }
}

impl<'c> Executor<'c> for &'c mut Connection {
    type Database = Any;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<AnyQueryResult, AnyRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let named = self.named;
        self.get().fetch_many(Statement { query, named })
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<AnyRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let named = self.named;
        self.get().fetch_optional(Statement { query, named })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [AnyTypeInfo],
    ) -> BoxFuture<'e, Result<AnyStatement, Error>>
    where
        'c: 'e,
    {
        self.get().prepare_with(sql, parameters)
    }
}

impl<'p> Executor<'p> for &'p Pool {
    type Database = Any;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<AnyQueryResult, AnyRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Any>,
    {
        // To its end: SQLite commits after the last row, so a change could still fail after its row.
        let committed = async move {
            let mut connection = self.begin_reading().await?;
            let found = (&mut connection).fetch_many(query);
            let found = found.try_collect::<Vec<_>>().await?;
            connection.end(Run::Real).await?;
            Ok(stream::iter(found.into_iter().map(Ok)))
        };
        committed.try_flatten_stream().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<AnyRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let rows = self.fetch_all(query);
        rows.map_ok(|rows| rows.into_iter().next()).boxed()
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [AnyTypeInfo],
    ) -> BoxFuture<'e, Result<AnyStatement, Error>>
    where
        'p: 'e,
    {
        (&self.connections).prepare_with(sql, parameters)
    }
}

// The options of a pool contain the password.
impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}
