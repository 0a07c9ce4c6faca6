//! The rooms, assembled: what both planes share.

use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::coherence::Coherence;
use crate::config::Config;
use crate::db::Db;
use crate::directory::Directory;
use crate::hierarchy::Hierarchy;
use crate::identity::{Identity, Rates, is_admin_token};
use crate::metrics::Metrics;
use crate::shared::Shared;
use crate::store::{InvalidUrl, Unavailable};
use crate::trust::{KeyError, Keys};
use crate::workspace::Workspaces;

/// Pause between two tries to bring the schema up to date.
const PREPARE_PAUSE: Duration = Duration::from_secs(1);

/// How often what heartbeats said is written down, in one statement for all workspaces.
const FLUSH_EVERY: Duration = Duration::from_secs(5);

/// How often lapses are looked for, so that one that nobody noticed is told within 2 s.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Every room, once a process.
pub struct Gateway {
    /// What the operator said.
    pub config: Arc<Config>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Durable facts.
    pub db: Db,
    /// Shared state.
    pub shared: Shared,
    /// What keeps the caches true.
    pub coherence: Arc<Coherence>,
    /// The keys that sign.
    pub keys: Arc<Keys>,
    /// Who asks.
    pub identity: Identity,
    /// How often they may.
    pub rates: Rates,
    /// Who exists.
    pub workspaces: Workspaces,
    /// May they.
    pub hierarchy: Hierarchy,
    /// Where is the agent.
    pub directory: Directory,
}

/// The gateway cannot be assembled. The start ends with it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// `stores.sql` or `stores.shared` has no known form.
    #[error("stores: the URL is not one that the gateway knows")]
    Stores(#[from] InvalidUrl),
    /// The signing key cannot be had.
    #[error("keys: the signing key cannot be had")]
    Keys(#[from] KeyError),
    /// The admin token from the environment could never be sent.
    #[error(
        "A2A_GATEWAY_ADMIN_TOKEN: an admin token is `a2aa_` and 43 base64url characters; make one with: \
         echo \"a2aa_$(head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=')\""
    )]
    AdminToken,
}

impl Gateway {
    /// Assembles the rooms. Asks no store and connects to nothing; reads, or at first start makes,
    /// the signing key. `admin_token` is what the environment says.
    ///
    /// # Errors
    /// [`OpenError`] says which setting is wrong.
    pub fn open(
        config: Arc<Config>,
        admin_token: Option<&SecretString>,
        metrics: Arc<Metrics>,
    ) -> Result<Arc<Self>, OpenError> {
        if admin_token.is_some_and(|token| !is_admin_token(token.expose_secret())) {
            return Err(OpenError::AdminToken);
        }
        let db = Db::open(&config.stores, Arc::clone(&metrics))?;
        let shared = Shared::open(&config.stores, Arc::clone(&metrics))?;
        let keys = Arc::new(Keys::load_or_create(&config.keys.dir)?);
        let coherence = Coherence::new(shared.clone(), db.is_embedded(), Arc::clone(&metrics));
        let workspaces = Workspaces::new(db.clone());
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
                Arc::clone(&metrics),
            ),
            config,
            metrics,
            db,
            shared,
            coherence,
            keys,
            workspaces,
        }))
    }

    /// Brings the schema up to date, as soon as the database answers, and makes an admin token if
    /// there is none: to be shown once. Until then every fact in SQL is `store_unavailable`.
    pub async fn prepare(&self) -> Option<SecretString> {
        let mut told = false;
        loop {
            match self.try_prepare().await {
                Ok(admin_token) => return admin_token,
                Err(error) if told => tracing::debug!(%error, "still waiting for the SQL store"),
                Err(error) => {
                    told = true;
                    let error: &(dyn std::error::Error + 'static) = &error;
                    tracing::warn!(
                        error,
                        "The SQL store is not ready; requests that need it are refused until it is"
                    );
                }
            }
            sleep(PREPARE_PAUSE).await;
        }
    }

    async fn try_prepare(&self) -> Result<Option<SecretString>, Unavailable> {
        self.db.migrate().await?;
        self.identity.ensure_admin_token().await
    }

    /// What goes on behind the requests, until it is dropped: invalidations, notes of use, lapses.
    pub async fn run(&self) {
        tokio::join!(
            self.coherence.run(),
            self.identity.run(),
            self.directory.follow(),
            self.flush_regularly(),
            self.sweep_regularly(),
        );
    }

    async fn flush_regularly(&self) {
        let mut ticks = interval(FLUSH_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.flush().await;
        }
    }

    async fn sweep_regularly(&self) {
        let mut ticks = interval(SWEEP_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.directory.sweep().await {
                tracing::debug!(%error, "no sweep: no lapse can be proven now");
            }
        }
    }

    /// Writes down what is only in memory. Also the last thing before the process ends.
    pub async fn flush(&self) {
        if let Err(error) = self.directory.flush_last_seen().await {
            tracing::debug!(%error, "what heartbeats said waits for the SQL store");
        }
    }
}
