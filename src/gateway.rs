//! The rooms, assembled, and what they do besides answering.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::audit::change::{operator_token, settings};
use crate::audit::{Audit, Draft, EventType};
use crate::coherence::Coherence;
use crate::config::load::{ADMIN_TOKEN, Source};
use crate::config::{Config, Live};
use crate::console::Console;
use crate::db::Db;
use crate::delivery::Delivery;
use crate::directory::Directory;
use crate::drain::Drain;
use crate::events::Events;
use crate::hierarchy::Hierarchy;
use crate::identity::{CredentialKind, FirstAdmin, Identity, Rates};
use crate::ids::ReplicaId;
use crate::metrics::Metrics;
use crate::shared::Shared;
use crate::store::skew::Skew;
use crate::store::{InvalidUrl, Unavailable};
use crate::tasks::Tasks;
use crate::telemetry::Chain;
use crate::trust::{KeyError, Keys, Seal};
use crate::workspace::{Status, Workspaces};

/// How often lapsed leases are looked for: `offline` is promised within 2 s of the lapse.
const SWEEP: Duration = Duration::from_secs(1);

/// How often what changed by heartbeats is written to SQL, in batches.
const FLUSH: Duration = Duration::from_secs(1);

/// How often the stores' clocks are compared with this machine's.
const COMPARE_CLOCKS: Duration = Duration::from_secs(30);

/// How often the keys are looked at: a rotation is in force everywhere within two of these.
const LOOK_AT_KEYS: Duration = Duration::from_secs(1);

/// How often what was heard of workspaces that fell silent is forgotten.
const FORGET: Duration = Duration::from_secs(60);

/// How often a database that is away is tried again.
const PREPARE_PAUSE: Duration = Duration::from_millis(500);

/// Everything that both planes share.
pub struct Gateway {
    /// In force; [`Gateway::config`] is a look at it.
    pub config: Live,
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
    /// Which run of which gateway this is.
    pub replica: ReplicaId,
    /// Who called whom, and who changed what.
    pub audit: Arc<Audit>,
    /// Who exists.
    pub workspaces: Workspaces,
    /// May they.
    pub hierarchy: Hierarchy,
    /// Whose task is it.
    pub tasks: Arc<Tasks>,
    /// What happened.
    pub events: Arc<Events>,
    /// Where is the agent.
    pub directory: Directory,
    /// What outlives a connection.
    pub delivery: Arc<Delivery>,
    /// What operators look at.
    pub console: Arc<Console>,
    /// How the process ends.
    pub drain: Arc<Drain>,
}

/// Why the rooms cannot be assembled. No store is asked for it: one that is away can come back.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// `stores.sql` or `stores.shared` is no URL of a store.
    #[error("a store's address cannot be used")]
    Store(#[from] InvalidUrl),
    /// A key cannot be read or made.
    #[error("the keys in keys.dir, or keys.seal_key, cannot be used")]
    Keys(#[from] KeyError),
}

impl Gateway {
    /// Assembles the rooms. Connects to nothing; reads, or makes, the keys in `keys.dir`.
    ///
    /// # Errors
    /// When a store's address or a key cannot be used.
    pub fn open(config: Live, metrics: Arc<Metrics>) -> Result<Arc<Self>, OpenError> {
        let at_start = config.hold();
        metrics.config_loaded(0);
        let db = Db::open(&at_start.stores, Arc::clone(&metrics))?;
        let shared = Shared::open(&at_start.stores, Arc::clone(&metrics))?;
        let keys = Arc::new(Keys::load_or_create(&at_start.keys.dir)?);
        let seal = Seal::load_or_create(&at_start.keys.dir, at_start.keys.seal_key.as_deref())?;
        let coherence = Coherence::new(shared.clone(), db.is_embedded(), Arc::clone(&metrics));
        coherence.note_gaps_in(&db);
        let workspaces = Workspaces::new(db.clone());
        let (replica, drain) = (replica_id(&at_start), Arc::<Drain>::default());
        let audit = Audit::new(
            config.clone(),
            db.clone(),
            Arc::clone(&keys),
            Arc::clone(&metrics),
            replica.clone(),
            beginning(&config, &keys, &seal),
        );
        let events = Events::new(config.clone(), shared.clone(), Arc::clone(&metrics));
        events.recorded_by(&audit);
        let facts = (db.clone(), shared.clone(), workspaces.clone());
        let stores = (db.clone(), shared.clone());
        let process = (Arc::clone(&drain), Arc::clone(&metrics), replica.clone());
        let console = Console::new(facts, &coherence, process);
        Ok(Arc::new(Self {
            identity: Identity::new(
                config.clone(),
                db.clone(),
                Arc::clone(&keys),
                Arc::clone(&coherence),
                Arc::clone(&metrics),
            ),
            rates: Rates::new(&config.get().rate),
            hierarchy: Hierarchy::new(
                workspaces.clone(),
                db.clone(),
                &coherence,
                Arc::clone(&metrics),
                config.clone(),
            ),
            directory: Directory::new(
                &config,
                workspaces.clone(),
                shared.clone(),
                Arc::clone(&coherence),
                Arc::clone(&events),
                Arc::new(seal),
                Arc::clone(&metrics),
            ),
            tasks: Tasks::new(config.clone(), stores.clone(), Arc::clone(&metrics)),
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
        }))
    }

    /// The configuration in force, for a look: of two looks the second may see another one.
    pub fn config(&self) -> Guard<Arc<Config>> {
        self.config.get()
    }

    /// Brings the database up to date, trying until it answers, and makes an admin token where there
    /// is none at all: to be shown once. Until then what needs SQL is `store_unavailable`.
    pub async fn prepare(&self) -> Option<SecretString> {
        let mut told = false;
        let candidate = FirstAdmin::default();
        loop {
            match self.try_prepare(&candidate).await {
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

    async fn try_prepare(
        &self,
        candidate: &FirstAdmin,
    ) -> Result<Option<SecretString>, Unavailable> {
        self.db.migrate().await?;
        self.directory.backfill_origins().await?;
        let made = self.identity.ensure_admin_token(candidate).await?;
        if made.is_some() {
            let detail = json!({"kind": CredentialKind::Admin.word()});
            self.audit
                .record(Draft::new(EventType::TokenIssued).with(detail));
        }
        Ok(made)
    }

    /// Warns if `a2a.default_workspace` names nobody: its card is nowhere until somebody is that.
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
                tracing::debug!(error = %Chain(&error), "a2a.default_workspace was not looked for");
            }
        }
    }

    /// Everything that goes on beside requests, until it is dropped.
    pub async fn run(&self) {
        tokio::join!(
            self.coherence.run(),
            self.identity.run(),
            self.tasks.run(),
            self.rates.share(&self.shared, &self.metrics),
            self.directory.follow(),
            self.directory.follow_lapses(),
            self.events.run(&self.hierarchy),
            // Boxed: together they would be too much for the stack of a thread, whose size Pingora's runtime takes
            // from nobody.
            Box::pin(self.delivery.run()),
            Box::pin(self.console.run()),
            self.shared.probe_regularly(),
            Box::pin(self.watch_clocks()),
            self.sweep(),
            self.flush_regularly(),
            self.forget_regularly(),
            self.follow_keys(),
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

    /// Warns while the clock of a store and this machine's differ: leases, tokens and records are judged by both.
    async fn watch_clocks(&self) {
        let mut tick = interval(COMPARE_CLOCKS);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut sql, mut shared) = (Skew::new("sql"), Skew::new("shared"));
        loop {
            tick.tick().await;
            sql.compare(async { self.db.clock().await }).await;
            shared.compare(async { self.shared.clock().await }).await;
        }
    }

    async fn flush_regularly(&self) {
        let mut tick = interval(FLUSH);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if let Err(error) = self.directory.flush_last_seen().await {
                tracing::debug!(error = %Chain(&error), "Heartbeats are not written down this time");
            }
        }
    }

    /// Takes over what `keys rotate`, or another replica, does to the keys.
    async fn follow_keys(&self) {
        let mut tick = interval(LOOK_AT_KEYS);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.metrics.keys.current.set(1);
        let mut known = KnownKeys::of(&self.keys);
        loop {
            tick.tick().await;
            let keys = Arc::clone(&self.keys);
            // The disk may be a network's.
            let read = spawn_blocking(move || keys.refresh().map(|changed| (changed, keys.ages())));
            let read = read.await;
            let failed_before = self.metrics.keys.current.get() == 0;
            match read {
                Ok(Ok((changed, ages))) => {
                    self.metrics.keys.set(ages);
                    self.metrics.keys.current.set(1);
                    // A rotation touches the folder more than once, and who meets an unknown key looks, too.
                    if let Some(detail) = known.renew(&self.keys) {
                        self.audit
                            .record(Draft::new(EventType::KeysChanged).with(detail));
                    }
                    if changed || failed_before {
                        tracing::info!(
                            active = self.keys.kid(),
                            "The trust keys in keys.dir are in force"
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
                    tracing::error!(%error, "The trust keys could not be looked at; those known before stay in force");
                }
            }
        }
    }

    async fn forget_regularly(&self) {
        let mut tick = interval(FORGET);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.directory.forget_silent();
        }
    }

    /// From here on nothing is changed but by what runs already: the record of it might not be written any more.
    pub fn close(&self) {
        self.directory.close();
        self.delivery.jobs.close();
    }

    /// Writes down all that heartbeats said, whose tasks are, and how streams ended: before the end.
    pub async fn flush(&self) {
        self.tasks.flush().await;
        self.delivery.streams.flush().await;
        if let Err(error) = self.directory.flush_all().await {
            tracing::warn!(error = %Chain(&error), "The last heartbeats are not written down");
        }
    }

    /// Why no other process may serve beside this one, if none may.
    pub fn alone(&self) -> Option<&'static str> {
        if self.db.is_embedded() {
            Some("stores.sql is a SQLite file, which one process has for itself")
        } else if self.shared.is_embedded() {
            Some("with stores.shared = \"memory\" each process has its own heartbeats and rates")
        } else {
            None
        }
    }

    /// Whether the process is on its way out.
    pub fn draining(&self) -> bool {
        self.drain.leaving()
    }
}

/// By the name that is configured, else by the machine's.
fn replica_id(config: &Config) -> ReplicaId {
    let named = config.server.replica.as_deref();
    named.map_or_else(ReplicaId::random, ReplicaId::named)
}

/// What this run begins with, for its first record: its keys, and the settings that somebody made. So that also what
/// was changed while no gateway ran, or was made by a first start, is written down.
fn beginning(config: &Live, keys: &Keys, seal: &Seal) -> Value {
    let told = config.told();
    let made = told.settings.iter();
    let made = made.filter(|setting| setting.source != Source::Default);
    let mut made = settings(made);
    // It comes by the environment alone, and so is no setting that is shown.
    let token = operator_token(&config.get());
    if !token.is_null() {
        made.insert(ADMIN_TOKEN.to_owned(), token);
    }
    let KnownKeys { active, all } = KnownKeys::of(keys);
    json!({
        "keys": {"active": active, "all": all, "seal": seal.kid()},
        "settings": made,
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// Which trust keys were in force when somebody last looked.
struct KnownKeys {
    active: String,
    all: Vec<String>,
}

impl KnownKeys {
    fn of(keys: &Keys) -> Self {
        Self {
            active: keys.kid(),
            all: keys.list().into_iter().map(|key| key.kid).collect(),
        }
    }

    /// What has changed since, for a record: which keys came, and which went.
    fn renew(&mut self, keys: &Keys) -> Option<Value> {
        let old = std::mem::replace(self, Self::of(keys));
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
