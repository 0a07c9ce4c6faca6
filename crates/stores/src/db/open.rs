//! Parses `stores.sql` into connection options, creates the SQLite file, and configures new connections.

use std::future::ready;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Executor as _};

use super::hosts::{Hosts, takes_writes};
use super::pooler::Pooler;
use crate::store::InvalidUrl;
use kernel::config::store_url::{PostgresUrl, sqlite_path};

/// The database behind the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    Postgres,
    Sqlite,
}

/// The location of the database. No `Debug`: the options contain the password.
pub(super) struct Location {
    pub(super) backend: Backend,
    pub(super) options: AnyConnectOptions,
    /// The hosts of PostgreSQL.
    pub(super) hosts: Option<Arc<Hosts>>,
    /// The path of the SQLite file.
    pub(super) file: Option<PathBuf>,
}

impl Location {
    /// Parses `stores.sql`. Creates the folder and the file of SQLite, since their permissions must be
    /// right before anything is written.
    pub(super) fn parse(url: &SecretString) -> Result<Self, InvalidUrl> {
        sqlx::any::install_default_drivers();
        let text = url.expose_secret();
        match sqlite_path(text).map_err(invalid_url)? {
            Some(path) => parse_sqlite(path),
            None => parse_postgres(text),
        }
    }
}

fn parse_postgres(text: &str) -> Result<Location, InvalidUrl> {
    let hosts = Hosts::new(PostgresUrl::parse(text).map_err(invalid_url)?);
    let options = hosts.options().map_err(|error| InvalidUrl {
        source: Some(Arc::new(error)),
        ..invalid_url("not a PostgreSQL URL, or `password_file` cannot be read")
    })?;
    Ok(Location {
        backend: Backend::Postgres,
        options,
        hosts: Some(hosts),
        file: None,
    })
}

fn parse_sqlite(path: &str) -> Result<Location, InvalidUrl> {
    let path = create_file(Path::new(path)).map_err(|error| InvalidUrl {
        source: Some(Arc::new(error)),
        ..invalid_url(format!(
            "the SQLite file `{path}` cannot be created or opened"
        ))
    })?;
    // Percent-encodes the path.
    let options = url::Url::from_file_path(&path)
        .ok()
        .and_then(|file| format!("sqlite://{}?mode=rwc", file.path()).parse().ok())
        .ok_or_else(|| invalid_url("the path of the SQLite file cannot be written as a URL"))?;
    Ok(Location {
        backend: Backend::Sqlite,
        options,
        hosts: None,
        file: Some(path),
    })
}

/// Takes the lock file of the SQLite file. The system releases it when the process exits.
///
/// # Errors
/// `WouldBlock` when another process holds the lock; otherwise the error of the system.
pub(super) fn lock_file(file: &Path) -> io::Result<std::fs::File> {
    let mut name = file.as_os_str().to_owned();
    name.push(".lock");
    let lock = open_private(Path::new(&name))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(std::fs::TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Creates the folder (0700) and the file (0600) if they are missing, and restricts an existing file to
/// 0600: it contains token hashes and agents' credentials. SQLite creates its `-wal` and `-shm` files with
/// the same mode. Returns the absolute path.
fn create_file(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let path = folder.canonicalize()?.join(name);
    let file = open_private(&path)?;
    let mut permissions = file.metadata()?.permissions();
    if permissions.mode() & 0o077 != 0 {
        permissions.set_mode(0o600);
        file.set_permissions(permissions)?;
    }
    Ok(path)
}

/// Opens a file, or creates it (0600).
fn open_private(path: &Path) -> io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(0o600).open(path)
}

impl Backend {
    /// Adds the hooks that configure new connections, and check them before they return to the pool.
    pub(super) fn add_hooks(
        self,
        options: AnyPoolOptions,
        timeout: Duration,
        pooler: &Arc<Pooler>,
        hosts: Option<&Arc<Hosts>>,
    ) -> AnyPoolOptions {
        let settings = self.session_settings(timeout);
        let known = Arc::clone(pooler);
        let hosts = hosts.filter(|hosts| hosts.are_several()).cloned();
        let several = hosts.clone();
        let options = options.after_connect(move |connection, _| {
            // A session lent by a pooler is not configured: its settings would stay for its next client.
            let settings = known.has_own_sessions().then(|| settings.clone());
            let hosts = several.clone();
            Box::pin(async move {
                if let Some(settings) = settings {
                    connection.execute(AssertSqlSafe(settings)).await?;
                }
                if let Some(hosts) = hosts
                    && !takes_writes(connection).await?
                {
                    hosts.search_in_background();
                    return Err(sqlx::Error::Protocol(
                        "the server takes no writes".to_owned(),
                    ));
                }
                Ok(())
            })
        });
        if self == Self::Sqlite {
            // SQLite ends a transaction by itself when the disk is full or fails. The driver's own ROLLBACK
            // then finds none, and it would reject each later transaction on this connection.
            return options.before_acquire(|connection, _| {
                Box::pin(ready(Ok(!connection.is_in_transaction())))
            });
        }
        // The pool's own probes have no timeout: on a network that drops packets they would block every
        // connection until the kernel gives up, after a quarter of an hour. So an idle connection is probed
        // with a short timeout, which leaves time to open a new one. A connection on which work timed out
        // gets the full timeout to finish reading the response.
        let known = Arc::clone(pooler);
        options
            .test_before_acquire(false)
            .before_acquire(move |connection, about| {
                if known.is_outdated(about.age) {
                    return Box::pin(ready(Ok(false)));
                }
                match &hosts {
                    None => Box::pin(is_alive(connection, timeout / 4)),
                    Some(hosts) if hosts.is_outdated(about.age) => Box::pin(ready(Ok(false))),
                    Some(hosts) => Box::pin(is_of_use(connection, timeout / 4, Arc::clone(hosts))),
                }
            })
            .after_release(move |connection, _| Box::pin(is_alive(connection, timeout)))
    }

    /// Returns the settings of a session, as SQL.
    ///
    /// SQLite: `busy_timeout` comes first, since even the switch to WAL may meet a writer. `FULL`, since a
    /// revoked token must stay revoked after a power cut, and commits are rare. PostgreSQL: work that the
    /// gateway gave up on must not keep its locks.
    pub(super) fn session_settings(self, timeout: Duration) -> String {
        let milliseconds = timeout.as_millis();
        match self {
            Self::Sqlite => format!(
                "PRAGMA busy_timeout = {milliseconds}; PRAGMA journal_mode = WAL; \
                 PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"
            ),
            Self::Postgres => format!(
                "SET statement_timeout = {milliseconds}; \
                 SET idle_in_transaction_session_timeout = {milliseconds};"
            ),
        }
    }
}

async fn is_alive(connection: &mut AnyConnection, limit: Duration) -> sqlx::Result<bool> {
    let answer = tokio::time::timeout(limit, connection.ping()).await;
    Ok(matches!(answer, Ok(Ok(()))))
}

/// True if the server answers and takes writes. Where it does not, looks for another host.
async fn is_of_use(
    connection: &mut AnyConnection,
    limit: Duration,
    hosts: Arc<Hosts>,
) -> sqlx::Result<bool> {
    let answer = tokio::time::timeout(limit, takes_writes(connection)).await;
    let is_of_use = matches!(answer, Ok(Ok(true)));
    if !is_of_use {
        hosts.search_in_background();
    }
    Ok(is_of_use)
}

fn invalid_url(problem: impl Into<String>) -> InvalidUrl {
    InvalidUrl {
        key: "stores.sql",
        problem: problem.into(),
        source: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Location, InvalidUrl> {
        Location::parse(&SecretString::from(text.to_owned()))
    }

    #[test]
    fn a_url_names_one_host_or_several() {
        for good in [
            "postgres://user:pa%2Css@one,two:5433/gateway?sslmode=require",
            "postgres://one,two/a?target_session_attrs=read-write",
        ] {
            let hosts = parse(good)
                .ok()
                .and_then(|location| location.hosts)
                .unwrap();
            assert!(hosts.are_several(), "{good}");
        }
        for bad in [
            "postgres://:secret@one,/a",
            "postgres://:secret@one,two/a?target_session_attrs=any",
            "postgres://:secret@one/a?password_file=/etc/hostname",
            "postgres://one/a?password_file=/does/not/exist",
        ] {
            let error = parse(bad).err().map(|error| format!("{error} {error:?}"));
            assert!(error.is_some_and(|e| !e.contains("secret@")), "{bad}");
        }
    }
}
