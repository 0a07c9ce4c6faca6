//! The rooms, assembled, and what they do besides answering.

use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::coherence::Coherence;
use crate::config::Config;
use crate::db::Db;
use crate::directory::Directory;
use crate::drain::{Cut, Drain};
use crate::events::Events;
use crate::hierarchy::Hierarchy;
use crate::identity::{Identity, Rates};
use crate::metrics::Metrics;
use crate::shared::Shared;
use crate::store::{InvalidUrl, Unavailable};
use crate::telemetry::Chain;
use crate::trust::{KeyError, Keys};
use crate::workspace::Workspaces;

/// How often lapsed leases are looked for: `offline` is promised within 2 s of the lapse.
const SWEEP: Duration = Duration::from_secs(1);

/// How often `last_seen` and tasks of heartbeats are written to SQL, in one batch.
const FLUSH: Duration = Duration::from_secs(5);

/// How often a database that is away is tried again.
const PREPARE_PAUSE: Duration = Duration::from_millis(500);

/// Everything that both planes share.
pub struct Gateway {
    /// As it was loaded.
    pub config: Arc<Config>,
    /// Of this process.
    pub metrics: Arc<Metrics>,
    /// Durable facts.
    pub db: Db,
    /// Shared state.
    pub shared: Shared,
    /// Who is told when a fact changes.
    pub coherence: Arc<Coherence>,
    /// What this gateway signs with.
    pub keys: Arc<Keys>,
    /// Who asks.
    pub identity: Identity,
    /// How often each may.
    pub rates: Rates,
    /// Who exists.
    pub workspaces: Workspaces,
    /// May they.
    pub hierarchy: Hierarchy,
    /// What happened.
    pub events: Arc<Events>,
    /// Where is the agent.
    pub directory: Directory,
    /// How the process ends.
    pub drain: Drain,
}

/// Why the rooms cannot be assembled. No store is asked for it: one that is away can come back.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// `stores.sql` or `stores.shared` is no URL of a store.
    #[error("a store's address cannot be used")]
    Store(#[from] InvalidUrl),
    /// The signing key cannot be read or made.
    #[error("the keys in keys.dir cannot be used")]
    Keys(#[from] KeyError),
}

impl Gateway {
    /// Assembles the rooms. Connects to nothing; reads, or makes, the key in `keys.dir`.
    ///
    /// # Errors
    /// When a store's address or the key cannot be used.
    pub fn open(
        config: Arc<Config>,
        admin_token: Option<&SecretString>,
        metrics: Arc<Metrics>,
    ) -> Result<Arc<Self>, OpenError> {
        let db = Db::open(&config.stores, Arc::clone(&metrics))?;
        let shared = Shared::open(&config.stores, Arc::clone(&metrics))?;
        let keys = Arc::new(Keys::load_or_create(&config.keys.dir)?);
        let coherence = Coherence::new(shared.clone(), db.is_embedded(), Arc::clone(&metrics));
        coherence.note_gaps_in(&db);
        let workspaces = Workspaces::new(db.clone());
        let events = Events::new(shared.clone(), Arc::clone(&metrics));
        Ok(Arc::new(Self {
            identity: Identity::new(
                Arc::clone(&config),
                db.clone(),
                Arc::clone(&keys),
                Arc::clone(&coherence),
                Arc::clone(&metrics),
                admin_token,
            ),
            rates: Rates::new(&config.rate),
            hierarchy: Hierarchy::new(
                workspaces.clone(),
                &coherence,
                Arc::clone(&metrics),
                config.access.lineage,
                config.directory.cache_entries,
            ),
            directory: Directory::new(
                &config,
                workspaces.clone(),
                shared.clone(),
                Arc::clone(&coherence),
                Arc::clone(&events),
                Arc::clone(&metrics),
            ),
            events,
            drain: Drain::default(),
            workspaces,
            coherence,
            keys,
            shared,
            db,
            metrics,
            config,
        }))
    }

    /// Brings the database up to date, trying until it answers, and makes an admin token where there
    /// is none at all: to be shown once. Until then what needs SQL is `store_unavailable`.
    pub async fn prepare(&self) -> Option<SecretString> {
        let mut told = false;
        loop {
            match self.try_prepare().await {
                Ok(admin_token) => return admin_token,
                Err(error) if !told => {
                    told = true;
                    let error = Chain(&error);
                    tracing::error!(%error, "The database cannot be prepared; trying again until it can");
                }
                Err(_) => {}
            }
            sleep(PREPARE_PAUSE).await;
        }
    }

    async fn try_prepare(&self) -> Result<Option<SecretString>, Unavailable> {
        self.db.migrate().await?;
        self.identity.ensure_admin_token().await
    }

    /// Everything that goes on beside requests, until it is dropped.
    pub async fn run(&self) {
        tokio::join!(
            self.coherence.run(),
            self.identity.run(),
            self.rates.share(&self.shared, &self.metrics),
            self.directory.follow(),
            self.sweep(),
            self.flush_regularly(),
        );
    }

    async fn sweep(&self) {
        let mut tick = interval(SWEEP);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            match self.directory.sweep().await {
                Ok(lapsed) if lapsed.is_empty() => {}
                Ok(lapsed) => tracing::info!(count = lapsed.len(), "Workspaces went offline"),
                Err(error) => tracing::debug!(error = %Chain(&error), "No sweep this time"),
            }
        }
    }

    async fn flush_regularly(&self) {
        let mut tick = interval(FLUSH);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.flush().await;
        }
    }

    /// Writes down what heartbeats said since the last time.
    pub async fn flush(&self) {
        if let Err(error) = self.directory.flush_last_seen().await {
            tracing::debug!(error = %Chain(&error), "Heartbeats are not written down this time");
        }
    }

    /// Whether the process is on its way out.
    pub fn draining(&self) -> bool {
        self.drain.begun()
    }

    /// One exchange's view of the end of a drain.
    pub fn cut(&self) -> Cut {
        self.drain.watch()
    }
}
