//! Writes to the SQLite file on a connection without the driver's layers, for the one room that writes for
//! each call. The driver copies each value several times, which costs more than SQLite itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, Error, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use super::open::Backend;
use super::{Db, STORE};
use crate::store::{Cause, DatabaseError, Unavailable};

/// The connection, opened at its first use. `None` also after an error.
pub(super) type File = Arc<Mutex<Option<Connection>>>;

/// Copies pages from the log to the file when so many are there, instead of 1000: these took 5 ms in one piece, on a
/// core that the threads of callers may share.
const CHECKPOINTS: &str = "PRAGMA wal_autocheckpoint = 64";

/// There is no file: the store is PostgreSQL.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("stores.sql is no SQLite file")]
struct NoFile;

impl Db {
    /// Runs `work` in a transaction of the SQLite file that commits if it succeeds, with the timeout and the
    /// metrics of [`Db::run`]. Work that timed out may still be done.
    ///
    /// # Errors
    /// When the store fails, times out, is no file, or its schema is not up to date yet.
    pub async fn write_to_file<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let Some(path) = self.0.location.file.clone() else {
            return Err(Unavailable::new(STORE, operation, NoFile));
        };
        self.require_schema(operation)?;
        let (file, timeout) = (Arc::clone(&self.0.file), self.0.timeout);
        let written = async {
            // Taken here, where the wait has a clock: a blocking thread that waits cannot be stopped.
            let mut file = file.lock_owned().await;
            let written = spawn_blocking(move || {
                let written = write_in_transaction(&mut file, path, timeout, work);
                if written.is_err() {
                    *file = None;
                }
                written
            });
            let written = written.await.map_err(|panic| Arc::new(panic) as Cause)?;
            written.map_err(to_cause)
        };
        self.run_timed(operation, timeout, written).await
    }
}

fn write_in_transaction<T>(
    file: &mut Option<Connection>,
    path: PathBuf,
    timeout: Duration,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let connection = match file {
        Some(connection) => connection,
        None => {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let opened = Connection::open_with_flags(path, flags)?;
            opened.execute_batch(&Backend::Sqlite.session_settings(timeout))?;
            opened.execute_batch(CHECKPOINTS)?;
            file.insert(opened)
        }
    };
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let done = work(&transaction)?;
    transaction.commit()?;
    Ok(done)
}

fn to_cause(error: Error) -> Cause {
    match error {
        Error::SqliteFailure(failure, message) => Arc::new(DatabaseError {
            code: failure.extended_code.to_string(),
            message: message.unwrap_or_else(|| failure.to_string()),
        }),
        other => Arc::new(other),
    }
}
