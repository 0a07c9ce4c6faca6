//! The gateway: all modules, assembled, with their background tasks.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::console::Console;
use crate::health::HealthBoard;
use access::caps::Caps;
use access::hierarchy::Hierarchy;
use access::identity::{CredentialKind, Identity, Rates, new_admin_token};
use access::workspace::{Status, Workspaces};
use audit::change::{operator_token_hash, settings_as_json};
use audit::{Audit, Draft, EventType};
use directory::events::Events;
use directory::stops::Stops;
use directory::tasks::Tasks;
use directory::{Directory, Resolution};
use kernel::config::load::{ADMIN_TOKEN, Source};
use kernel::config::{Config, Live};
use kernel::deadline::ticks;
use kernel::drain::Drain;
use kernel::ids::ReplicaId;
use kernel::metrics::Metrics;
use kernel::telemetry::Chain;
use kernel::time::Timestamp;
use mailbox::Delivery;
use stores::coherence::Coherence;
use stores::db::Db;
use stores::shared::Shared;
use stores::store::skew::Skew;
use stores::store::{InvalidUrl, Unavailable};
use trust::{KeyError, Keys, Seal};

/// Interval of checks for lapsed leases: `offline` is promised within 2 s of the lapse.
const SWEEP: Duration = Duration::from_secs(1);

/// Interval at which changes by heartbeats are written to SQL, in batches.
const FLUSH: Duration = Duration::from_secs(1);

/// Interval at which the stores' clocks are compared with this machine's.
const COMPARE_CLOCKS: Duration = Duration::from_secs(30);

/// Interval at which the keys are read: a rotation is in force on all replicas within two of these.
const LOOK_AT_KEYS: Duration = Duration::from_secs(1);

/// Interval at which state of silent workspaces is dropped.
const FORGET: Duration = Duration::from_secs(60);

/// Pause between two attempts to prepare an unavailable database.
const PREPARE_PAUSE: Duration = Duration::from_millis(500);

/// State shared by the data plane and the control plane.
pub struct Gateway {
    /// The configuration in force; [`Gateway::config`] reads it.
    pub config: Live,
    /// Metrics of this process.
    pub metrics: Arc<Metrics>,
    /// The SQL database.
    pub db: Db,
    /// The shared state.
    pub shared: Shared,
    /// Cache invalidation.
    pub coherence: Arc<Coherence>,
    /// The keys of this gateway.
    pub keys: Arc<Keys>,
    /// Authentication.
    pub identity: Identity,
    /// Rate limits.
    pub rates: Rates,
    /// The id of this replica and of its run.
    pub replica: ReplicaId,
    /// The audit records of calls and changes.
    pub audit: Arc<Audit>,
    /// The table of workspaces.
    pub workspaces: Workspaces,
    /// Access control.
    pub hierarchy: Hierarchy,
    /// Calls that operators stopped.
    pub stops: Arc<Stops>,
    /// Caps.
    pub caps: Arc<Caps>,
    /// Ownership of tasks.
    pub tasks: Arc<Tasks>,
    /// Events for subscribers.
    pub events: Arc<Events>,
    /// Addresses and liveness of agents.
    pub directory: Directory,
    /// Destinations of permitted messages.
    pub resolution: Arc<Resolution>,
    /// Inboxes, jobs, calls with a key and stream logs.
    pub delivery: Arc<Delivery>,
    /// The feed of the operators' console.
    pub console: Arc<Console>,
    /// How workspaces are.
    pub health: HealthBoard,
    /// The shutdown of the process.
    pub drain: Arc<Drain>,
}

/// The reason why the gateway cannot be assembled. Stores are not contacted: an unavailable one can come
/// back.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// `stores.sql` or `stores.shared` is not a URL of a store.
    #[error("a store's address cannot be used")]
    Store(#[from] InvalidUrl),
    /// A key cannot be read or created.
    #[error("the keys in keys.dir, or keys.seal_key, cannot be used")]
    Keys(#[from] KeyError),
}

impl Gateway {
    /// Assembles the modules. Connects to nothing; reads, or creates, the keys in `keys.dir`.
    ///
    /// # Errors
    /// When a store's address or a key cannot be used.
    pub fn open(config: Live, metrics: Arc<Metrics>) -> Result<Arc<Self>, OpenError> {
        let at_start = config.snapshot();
        metrics.record_config_loaded(0);
        let db = Db::open(&at_start.stores, Arc::clone(&metrics))?;
        let shared = Shared::open(&at_start.stores, Arc::clone(&metrics))?;
        let keys = Arc::new(Keys::load_or_create(&at_start.keys.dir)?);
        let seal = Seal::load_or_create(&at_start.keys.dir, at_start.keys.seal_key.as_deref())?;
        let seal = Arc::new(seal);
        Ok(Self::assemble(config, metrics, db, shared, keys, seal))
    }

    fn assemble(
        config: Live,
        metrics: Arc<Metrics>,
        db: Db,
        shared: Shared,
        keys: Arc<Keys>,
        seal: Arc<Seal>,
    ) -> Arc<Self> {
        let coherence = Coherence::new(shared.clone(), db.is_embedded(), Arc::clone(&metrics));
        coherence.note_gaps_in(&db);
        let workspaces = Workspaces::new(db.clone());
        let replica = ReplicaId::from_config(config.get().server.replica.as_deref());
        let drain = Arc::<Drain>::default();
        let audit = Audit::new(
            config.clone(),
            db.clone(),
            Arc::clone(&keys),
            Arc::clone(&metrics),
            replica.clone(),
            start_record(&config, &keys, &seal),
        );
        let events = Events::new(config.clone(), shared.clone(), Arc::clone(&metrics));
        events.set_audit(&audit);
        let facts = (db.clone(), shared.clone(), workspaces.clone());
        let stores = (db.clone(), shared.clone());
        let process = (Arc::clone(&drain), Arc::clone(&metrics), replica.clone());
        let console = Console::new(facts, &coherence, process);
        let identity = Identity::new(
            config.clone(),
            db.clone(),
            (Arc::clone(&keys), Arc::clone(&seal)),
            Arc::clone(&coherence),
            Arc::clone(&metrics),
        );
        let told = (&events, &audit);
        let stops = Stops::new(
            db.clone(),
            &coherence,
            told,
            workspaces.clone(),
            Arc::clone(&metrics),
        );
        let tasks = Tasks::new(config.clone(), stores.clone(), Arc::clone(&metrics));
        follow_stops(&stops, &drain, &tasks);
        follow_revocations(&identity, &drain);
        let hierarchy = Hierarchy::new(
            workspaces.clone(),
            db.clone(),
            &coherence,
            Arc::clone(&metrics),
            config.clone(),
        );
        let directory = Directory::new(
            &config,
            workspaces.clone(),
            shared.clone(),
            Arc::clone(&coherence),
            Arc::clone(&events),
            seal,
            Arc::clone(&metrics),
        );
        let facts = (audit.usage.clone(), workspaces.clone());
        let slots = Arc::clone(&directory.slots);
        Arc::new(Self {
            health: HealthBoard::new(facts.0, facts.1, Arc::clone(&stops), slots),
            rates: Rates::new(&config.get().rate),
            resolution: Arc::clone(&directory.resolution),
            identity,
            hierarchy,
            directory,
            stops,
            caps: Caps::new(&config, &shared, &replica, &metrics),
            tasks,
            delivery: Delivery::new(
                config.clone(),
                stores,
                Arc::clone(&events),
                &coherence,
                Arc::clone(&metrics),
            ),
            events,
            audit,
            replica,
            console,
            drain,
            workspaces,
            coherence,
            keys,
            shared,
            db,
            metrics,
            config,
        })
    }

    /// Returns the configuration in force, for a short read: two calls may return different ones.
    pub fn config(&self) -> Guard<Arc<Config>> {
        self.config.get()
    }

    /// Migrates the database, retrying until it answers, and creates an admin token if there is none, to be
    /// shown once. Until then requests that need SQL are `store_unavailable`.
    pub async fn prepare(&self) -> Option<SecretString> {
        let mut logged = false;
        let candidate = new_admin_token();
        loop {
            match self.try_prepare(&candidate).await {
                Ok(admin_token) => return admin_token,
                Err(error) if !logged => {
                    logged = true;
                    let error = Chain(&error);
                    tracing::error!(%error, "the database cannot be prepared; retrying");
                }
                Err(_) => {}
            }
            sleep(PREPARE_PAUSE).await;
        }
    }

    async fn try_prepare(
        &self,
        candidate: &SecretString,
    ) -> Result<Option<SecretString>, Unavailable> {
        self.db.migrate().await?;
        self.stops.read().await?;
        self.identity.revocations.read().await?;
        let made = self.identity.ensure_admin_token(candidate).await?;
        if made.is_some() {
            let detail = json!({"kind": CredentialKind::Admin.as_str()});
            self.audit
                .record(Draft::new(EventType::TokenIssued).with_detail(detail));
        }
        Ok(made)
    }

    /// Warns if the workspace of `a2a.default_workspace` does not exist: there is no card at the root until it does.
    pub async fn look_for_default_workspace(&self) {
        let Some(id) = self.config().a2a.default_workspace.clone() else {
            return;
        };
        match self.workspaces.find(&id).await {
            Ok(Some(workspace)) if workspace.status != Status::Removed => {}
            Ok(_) => {
                tracing::warn!(workspace.id = %id, "a2a.default_workspace names a workspace that does not exist, or not yet: no card is at the root until it does");
            }
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "failed to look up a2a.default_workspace");
            }
        }
    }

    /// Runs all background tasks, until it is dropped.
    pub async fn run(&self) {
        // Each is polled when it is woken itself. Boxed: together they would overflow a thread's stack, and Pingora's
        // runtime has no setting for its size.
        let work: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::from_iter([
            self.coherence.run().boxed(),
            self.identity.run().boxed(),
            self.tasks.run().boxed(),
            self.stops.run().boxed(),
            self.caps.run().boxed(),
            self.rates.run_gossip(&self.shared, &self.metrics).boxed(),
            self.directory.entries.follow_url_keys().boxed(),
            self.directory.lapses.follow_expired_leases().boxed(),
            self.events.run(&self.hierarchy).boxed(),
            self.delivery.run().boxed(),
            self.console.run().boxed(),
            self.shared.probe_regularly().boxed(),
            self.watch_clocks().boxed(),
            self.sweep_leases().boxed(),
            self.flush_regularly().boxed(),
            self.forget_regularly().boxed(),
            self.follow_keys().boxed(),
        ]);
        work.collect::<()>().await;
    }

    async fn sweep_leases(&self) {
        let mut tick = ticks(SWEEP);
        loop {
            tick.tick().await;
            let lapses = &self.directory.lapses;
            if !self.coherence.are_leases_known() && lapses.know_leases().await {
                self.coherence.set_leases_known();
            }
            match lapses.sweep().await {
                Ok(lapsed) if lapsed.is_empty() => {}
                Ok(lapsed) => tracing::info!(count = lapsed.len(), "workspaces went offline"),
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "sweep of lapsed leases failed")
                }
            }
        }
    }

    /// Warns while the clock of a store differs from this machine's: leases, tokens and records depend on both.
    async fn watch_clocks(&self) {
        let mut tick = ticks(COMPARE_CLOCKS);
        let (mut sql, mut shared) = (Skew::new("sql"), Skew::new("shared"));
        loop {
            tick.tick().await;
            sql.compare(async { self.db.read_clock().await }).await;
            shared.compare(self.shared.read_clock()).await;
        }
    }

    async fn flush_regularly(&self) {
        let mut tick = ticks(FLUSH);
        loop {
            tick.tick().await;
            if let Err(error) = self.directory.heartbeats.flush().await {
                tracing::debug!(error = %Chain(&error), "failed to write heartbeats; will retry");
            }
        }
    }

    /// Applies changes of the keys by `keys rotate`, or by another replica.
    async fn follow_keys(&self) {
        let mut tick = ticks(LOOK_AT_KEYS);
        self.metrics.keys.current.set(1);
        let mut known = KeySnapshot::from_keys(&self.keys);
        loop {
            tick.tick().await;
            let (keys, metrics) = (Arc::clone(&self.keys), Arc::clone(&self.metrics));
            // The disk may be a network file system.
            let read = spawn_blocking(move || {
                let changed = keys.refresh();
                if changed.is_ok() {
                    keys.record_ages(&metrics.keys);
                }
                changed
            });
            let read = read.await;
            let failed_before = self.metrics.keys.current.get() == 0;
            match read {
                Ok(Ok(changed)) => {
                    self.metrics.keys.current.set(1);
                    // A rotation touches the folder more than once, and requests with an unknown key read the
                    // keys as well.
                    if let Some(detail) = known.replace(&self.keys) {
                        self.audit
                            .record(Draft::new(EventType::KeysChanged).with_detail(detail));
                    }
                    if changed || failed_before {
                        tracing::info!(
                            active = self.keys.kid(),
                            "the trust keys in keys.dir are in force"
                        );
                    }
                }
                _ if failed_before => {}
                Ok(Err(error)) => {
                    self.metrics.keys.current.set(0);
                    tracing::error!(error = %Chain(&error), "The trust keys cannot be read again; those known before stay in force");
                }
                Err(error) => {
                    self.metrics.keys.current.set(0);
                    tracing::error!(%error, "failed to check the trust keys; the previous ones stay in force");
                }
            }
        }
    }

    async fn forget_regularly(&self) {
        let mut tick = ticks(FORGET);
        loop {
            tick.tick().await;
            self.directory.heartbeats.drop_silent();
            self.identity.signed.drop_stale(Timestamp::now());
        }
    }

    /// Rejects further changes, except by work that runs already: their audit records might not be written any more.
    pub fn close(&self) {
        self.directory.lapses.stop();
        self.delivery.jobs.close();
    }

    /// Writes pending heartbeats, task owners and ends of streams, during shutdown.
    pub async fn flush(&self) {
        self.tasks.flush().await;
        self.caps.close().await;
        self.delivery.streams.flush().await;
        if let Err(error) = self.directory.heartbeats.flush_all().await {
            tracing::warn!(error = %Chain(&error), "shutdown: the last heartbeats were not written");
        }
    }

    /// Closes the database and drops the callbacks by which modules hold one another, in a process that goes on.
    pub async fn dismantle(&self) {
        self.db.close().await;
        self.coherence.drop_caches();
        self.delivery.jobs.listeners.store(None);
    }

    /// Returns the reason why no other process may serve beside this one, if there is one.
    pub fn why_alone(&self) -> Option<&'static str> {
        if self.db.is_embedded() {
            Some("stores.sql is a SQLite file, which one process has for itself")
        } else if self.shared.is_embedded() {
            Some("with stores.shared = \"memory\" each process has its own heartbeats and rates")
        } else {
            None
        }
    }

    /// True if the process is shutting down.
    pub fn is_draining(&self) -> bool {
        self.drain.is_leaving()
    }
}

/// Has calls and streams under way looked at again when something is revoked.
fn follow_revocations(identity: &Identity, drain: &Arc<Drain>) {
    let exchanges = Arc::clone(drain);
    identity
        .revocations
        .on_change(move || exchanges.request_recheck());
}

/// Has exchanges looked at again, and tasks written, after each change of the stops.
fn follow_stops(stops: &Stops, drain: &Arc<Drain>, tasks: &Arc<Tasks>) {
    let (exchanges, tasks) = (Arc::clone(drain), Arc::clone(tasks));
    stops.on_change(move || {
        exchanges.request_recheck();
        tasks.open.write_now();
    });
}

/// Returns the contents of this run's first record: its keys, and the settings that were set explicitly. So
/// changes that were made while no gateway ran, or by a first start, are recorded as well.
fn start_record(config: &Live, keys: &Keys, seal: &Seal) -> Value {
    let view = config.view();
    let made = view.settings.iter();
    let made = made.filter(|setting| setting.source != Source::Default);
    let mut made = settings_as_json(made);
    // It comes from the environment only, and so is not among the shown settings.
    let token = operator_token_hash(&config.get());
    if !token.is_null() {
        made.insert(ADMIN_TOKEN.to_owned(), token);
    }
    let KeySnapshot { active, all } = KeySnapshot::from_keys(keys);
    json!({
        "keys": {"active": active, "all": all, "seal": seal.kid()},
        "settings": made,
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// The trust keys in force at the last check.
struct KeySnapshot {
    active: String,
    all: Vec<String>,
}

impl KeySnapshot {
    fn from_keys(keys: &Keys) -> Self {
        Self {
            active: keys.kid(),
            all: keys.list().into_iter().map(|key| key.kid).collect(),
        }
    }

    /// Returns the changes since the last check, for a record: the keys that came, and those that went.
    fn replace(&mut self, keys: &Keys) -> Option<Value> {
        let old = std::mem::replace(self, Self::from_keys(keys));
        let without = |these: &[String], those: &[String]| -> Vec<String> {
            let missing = these.iter().filter(|kid| !those.contains(kid));
            missing.cloned().collect()
        };
        let came = without(&self.all, &old.all);
        let went = without(&old.all, &self.all);
        let changed = self.active != old.active || !came.is_empty() || !went.is_empty();
        changed.then(|| json!({"active": self.active, "came": came, "went": went}))
    }
}
