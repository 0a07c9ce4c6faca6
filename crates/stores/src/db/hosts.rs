//! The hosts of `stores.sql`, of which one takes writes, and the file of its password.
//!
//! With several hosts each connection is asked whether its server takes writes, when it is opened and each time it
//! leaves the pool. Where one does not, or cannot be reached, all hosts are asked at once, and the pool connects to the
//! first that does.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use sqlx::any::AnyConnectOptions;
use sqlx::{AnyConnection, AnyPool, ConnectOptions as _, Connection as _, Executor as _, Row as _};
use tokio::time::{sleep, timeout};

use kernel::config::store_url::PostgresUrl;

/// Limit for the answer of one host.
const ASK_MAX: Duration = Duration::from_secs(1);

/// Pause between two searches, and the longest time of searching before another failure begins a new one.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const LOOK_MAX: Duration = Duration::from_secs(60);

/// Interval of readings of the file of the password.
const READ_EVERY: Duration = Duration::from_secs(2);

/// 1 if the server takes writes: it is no standby, and no administrator has made it read-only.
const TAKES_WRITES: &str = "SELECT CASE WHEN pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' \
                            THEN 0 ELSE 1 END";

/// The hosts.
pub(super) struct Hosts {
    urls: PostgresUrl,
    /// The host that the pool connects to.
    current: AtomicUsize,
    is_searching: AtomicBool,
    /// The time of the last change of the host: older connections lead to another one.
    changed: Mutex<Option<Instant>>,
    pool: OnceLock<AnyPool>,
}

impl Hosts {
    pub(super) fn new(urls: PostgresUrl) -> Arc<Self> {
        Arc::new(Self {
            urls,
            current: AtomicUsize::new(0),
            is_searching: AtomicBool::new(false),
            changed: Mutex::new(None),
            pool: OnceLock::new(),
        })
    }

    /// Returns the options of the current host.
    ///
    /// # Errors
    /// When the URL is no PostgreSQL URL.
    pub(super) fn options(&self) -> Result<AnyConnectOptions, sqlx::Error> {
        self.options_of(self.current.load(Ordering::Acquire))
    }

    fn options_of(&self, index: usize) -> Result<AnyConnectOptions, sqlx::Error> {
        let mut url = self.urls.hosts[index].clone();
        if let Some(file) = &self.urls.password_file {
            // Percent-encodes what a URL cannot hold.
            let _ = url.set_password(Some(&read_password(file)?));
        }
        AnyConnectOptions::from_url(&url)
    }

    /// True if there are several.
    pub(super) fn are_several(&self) -> bool {
        self.urls.hosts.len() > 1
    }

    /// Serves this pool from now on. Must be called inside a runtime.
    pub(super) fn attach_pool(self: &Arc<Self>, pool: &AnyPool) {
        let _ = self.pool.set(pool.clone());
        self.search_in_background();
        if self.urls.password_file.is_some() {
            tokio::spawn(Arc::clone(self).follow_password());
        }
    }

    /// True if a connection of this age leads to an earlier host.
    pub(super) fn is_outdated(&self, age: Duration) -> bool {
        self.changed
            .lock()
            .is_some_and(|changed| changed.elapsed() < age)
    }

    /// Looks for the host that takes writes, in the background, since a connection or a statement failed. One search at
    /// a time; none if there is one host.
    pub(super) fn search_in_background(self: &Arc<Self>) {
        if !self.are_several() || self.pool.get().is_none() {
            return;
        }
        if self.is_searching.swap(true, Ordering::AcqRel) {
            return;
        }
        tokio::spawn(Arc::clone(self).find_writable());
    }

    async fn find_writable(self: Arc<Self>) {
        let began = Instant::now();
        let mut logged = false;
        while began.elapsed() < LOOK_MAX && self.pool.get().is_some_and(|pool| !pool.is_closed()) {
            let asked = (0..self.urls.hosts.len()).map(|index| self.asks_yes(index));
            let answers = join_all(asked).await;
            let current = self.current.load(Ordering::Acquire);
            let found = match answers.get(current) {
                Some(true) => Some(current),
                _ => answers.iter().position(|takes_writes| *takes_writes),
            };
            if let Some(index) = found {
                self.choose_host(index);
                break;
            }
            if !logged {
                tracing::warn!("no host of stores.sql takes writes; asking them until one does");
                logged = true;
            }
            sleep(LOOK_EVERY).await;
        }
        // A failure that is met while the search ends begins the next one at once; not more often than this.
        sleep(LOOK_EVERY).await;
        self.is_searching.store(false, Ordering::Release);
    }

    /// True if the host takes writes.
    async fn asks_yes(&self, index: usize) -> bool {
        let asked = async {
            let mut connection = self.options_of(index)?.connect().await?;
            let takes_writes = takes_writes(&mut connection).await;
            let _ = connection.close().await;
            takes_writes
        };
        matches!(timeout(ASK_MAX, asked).await, Ok(Ok(true)))
    }

    fn choose_host(&self, index: usize) {
        let (Some(pool), Ok(options)) = (self.pool.get(), self.options_of(index)) else {
            return;
        };
        if self.current.swap(index, Ordering::AcqRel) == index {
            return;
        }
        pool.set_connect_options(options);
        *self.changed.lock() = Some(Instant::now());
        let url = &self.urls.hosts[index];
        let (host, port) = (
            url.host_str().unwrap_or_default(),
            url.port().unwrap_or(5432),
        );
        tracing::info!(
            server.address = format!("{host}:{port}"),
            "stores.sql: another host takes the writes; connecting to it"
        );
    }

    /// Gives the pool a password that the file has since.
    async fn follow_password(self: Arc<Self>) {
        let (Some(file), Some(pool)) = (&self.urls.password_file, self.pool.get()) else {
            return;
        };
        let mut known = read_password(file).ok();
        while !pool.is_closed() {
            sleep(READ_EVERY).await;
            let now = match tokio::fs::read_to_string(file).await {
                Ok(text) => text.trim_end().to_owned(),
                // Files are replaced; the next reading finds the new one.
                Err(_) => continue,
            };
            if known.as_ref() != Some(&now)
                && let Ok(options) = self.options()
            {
                pool.set_connect_options(options);
                known = Some(now);
                tracing::info!(
                    "stores.sql: password_file has another password; new connections use it"
                );
            }
        }
    }
}

/// True if the server of a connection takes writes.
///
/// # Errors
/// When it does not answer.
pub(super) async fn takes_writes(connection: &mut AnyConnection) -> Result<bool, sqlx::Error> {
    // A simple query: nothing is prepared.
    let row = connection.fetch_one(TAKES_WRITES).await?;
    Ok(row.try_get::<i32, _>(0)? == 1)
}

fn read_password(file: &Path) -> Result<String, sqlx::Error> {
    let text = std::fs::read_to_string(file)?;
    Ok(text.trim_end().to_owned())
}
