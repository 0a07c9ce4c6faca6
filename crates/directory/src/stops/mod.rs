//! Stops of operators (`docs/reference/http-api.md`, "Stops"): calls from and to a workspace, a subtree, an org, a pair
//! or all are refused until the stop is released or expires.
//!
//! Owns the tables `stops`, `stop_changes` and `stop_tasks`. Every replica holds all stops in memory ([`ActiveStops`]),
//! so a call asks no store; without a stop the check is one atomic load. A change is announced to all replicas, and a
//! number that grows with it is compared several times a second: a replica that made a change and ended before it
//! announced it, or a link that is down, delays nothing beyond a second.
//!
//! Invariant: a replica that does not know the stops refuses calls with `store_unavailable`.

mod active;
mod stop;
mod table;

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::json;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

pub use self::active::ActiveStops;
use self::stop::call_ends;
pub use self::stop::{
    Cancel, End, Mode, NewStop, Scope, Stop, TaskOutcome, read_expiry, read_mode, read_reason,
    read_scope,
};
pub use self::table::{Counts, TASKS_MAX};
use crate::events::{Event, Events, Kind, PayloadSubject};
use access::hierarchy::Permit;
use access::identity::Principal;
use access::workspace::Workspaces;
use audit::{Audit, Draft, EventType};
use kernel::ids::WorkspaceId;
use kernel::metrics::Metrics;
use kernel::rejection::{Reason, Rejection};
use kernel::telemetry::Chain;
use kernel::time::Timestamp;
use stores::coherence::{Coherence, Invalidation};
use stores::db::Db;
use stores::store::{Run, Unavailable};

/// Stops that may be in force at once.
pub const STOPS_MAX: i64 = 10_000;

/// Stops that the tokens of one org may have in force, those of one subtree, and those of all orgs: an operator can
/// always stop something.
pub const ORG_STOPS_MAX: i64 = 500;
const SUBTREE_STOPS_MAX: i64 = 100;
const ALL_ORGS_STOPS_MAX: i64 = 9_000;

/// Interval of comparisons of the number of changes: a third of the second within which a stop is in force.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// Interval of attempts after a failed one.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Time for which the stops may be older than a change that was announced, or, while changes may be missed, than the
/// last look. After it they are not known.
const STALE_MAX: Duration = Duration::from_millis(700);

/// Interval of attempts to remove expired stops.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);

/// State of the cache of stops, for the check of each call.
mod cache_state {
    /// No stop is in force.
    pub(super) const NONE: u8 = 0;
    /// There are stops.
    pub(super) const SOME: u8 = 1;
    /// The stops are not known.
    pub(super) const UNKNOWN: u8 = 2;
}

/// The stops, and the check of each call.
pub struct Stops {
    db: Db,
    coherence: Arc<Coherence>,
    metrics: Arc<Metrics>,
    events: Arc<Events>,
    audit: Arc<Audit>,
    workspaces: Workspaces,
    known: AtomicU8,
    in_force: ArcSwap<ActiveStops>,
    /// The number of changes that `in_force` includes. Locked while it is read.
    version: Mutex<Option<i64>>,
    /// Notified when the stops are to be read again.
    news: Notify,
    /// Notified when tasks are to be canceled.
    cancels: Notify,
    /// The last task that tells watchers of a stop of an org, or of all. The next one waits for it.
    telling: parking_lot::Mutex<Option<JoinHandle<()>>>,
    /// Called after each change of what is in force.
    changed: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Stops {
    /// Creates it; does not touch the stores.
    pub fn new(
        db: Db,
        coherence: &Arc<Coherence>,
        (events, audit): (&Arc<Events>, &Arc<Audit>),
        workspaces: Workspaces,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let stops = Arc::new(Self {
            db,
            coherence: Arc::clone(coherence),
            metrics,
            events: Arc::clone(events),
            audit: Arc::clone(audit),
            workspaces,
            known: AtomicU8::new(cache_state::UNKNOWN),
            in_force: ArcSwap::default(),
            version: Mutex::default(),
            news: Notify::new(),
            cancels: Notify::new(),
            telling: parking_lot::Mutex::default(),
            changed: OnceLock::new(),
        });
        let weak = Arc::downgrade(&stops);
        coherence.on_invalidation(move |what| {
            if matches!(what, Invalidation::Stops | Invalidation::Everything)
                && let Some(stops) = weak.upgrade()
            {
                stops.news.notify_one();
            }
            std::future::ready(())
        });
        stops
    }

    /// Sets what is called after each change of what is in force. Set once.
    pub fn on_change(&self, changed: impl Fn() + Send + Sync + 'static) {
        let _ = self.changed.set(Box::new(changed));
    }

    /// Refuses a call that a stop covers.
    ///
    /// # Errors
    /// `stopped`; `store_unavailable` while the stops are not known.
    pub fn check(&self, permit: &Permit) -> Result<(), Rejection> {
        if self.is_idle() {
            return Ok(());
        }
        self.require_known()?;
        self.find(permit)
            .map_or(Ok(()), |stop| Err(stop.as_rejection()))
    }

    /// Returns the stop that refuses a call.
    pub fn find(&self, permit: &Permit) -> Option<Arc<Stop>> {
        if self.is_idle() {
            return None;
        }
        self.in_force.load().find(&call_ends(permit), false)
    }

    /// Returns a stop that covers all calls from and to this end.
    pub fn find_over(&self, end: End<'_>) -> Option<Arc<Stop>> {
        if self.is_idle() {
            return None;
        }
        self.in_force.load().find(&[end, End::of_org(None)], false)
    }

    /// Returns the rejection of a call under way that a stop ends.
    pub fn find_cut(&self, permit: &Permit) -> Option<Rejection> {
        if self.is_idle() {
            return None;
        }
        let stop = self.in_force.load().find(&call_ends(permit), true)?;
        Some(stop.as_rejection())
    }

    /// As [`Stops::find_cut`], without a permit: finds only stops that name the caller, its org or the target, and
    /// those of all.
    pub fn find_cut_by_names(&self, caller: &Principal, target: &WorkspaceId) -> Option<Rejection> {
        if self.is_idle() {
            return None;
        }
        let caller = match caller {
            Principal::Workspace { id } => End::at_workspace(id, None),
            other => End::of_org(other.org()),
        };
        let ends = [caller, End::at_workspace(target, None)];
        let stop = self.in_force.load().find(&ends, true)?;
        Some(stop.as_rejection())
    }

    /// True if a message between these ends waits in an inbox. A stop that a token of the caller's org made keeps no
    /// message from a workspace of another org.
    pub fn holds_back(&self, ends: &[End<'_>; 2]) -> bool {
        !self.is_idle() && self.in_force.load().holds_back(ends)
    }

    /// Checks that the stops are known.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub fn require_known(&self) -> Result<(), Rejection> {
        if self.known.load(Ordering::Acquire) != cache_state::UNKNOWN {
            return Ok(());
        }
        let message = "the gateway cannot read which calls an operator stopped; try again shortly";
        let refusal = Rejection::new(Reason::StoreUnavailable, message);
        Err(refusal.with_retry_after(Duration::from_secs(1)))
    }

    /// True if no stop is known.
    pub fn is_idle(&self) -> bool {
        self.known.load(Ordering::Acquire) == cache_state::NONE
    }

    /// Makes a stop. It is in force here when this returns, and on every replica within 1 s.
    ///
    /// # Errors
    /// `conflict` if there are as many as may be; `store_unavailable`: it may have been made.
    pub async fn create_stop(self: &Arc<Self>, new: &NewStop, run: Run) -> Result<Stop, Rejection> {
        let (all, own) = match (&new.by_org, &new.by_subtree) {
            (Some(_), Some(_)) => (ALL_ORGS_STOPS_MAX, SUBTREE_STOPS_MAX),
            (Some(_), None) => (ALL_ORGS_STOPS_MAX, ORG_STOPS_MAX),
            (None, _) => (STOPS_MAX, STOPS_MAX),
        };
        let work = async {
            let mut tx = self.db.begin().await?;
            let inserted = table::insert(&mut tx, new, Timestamp::now(), (all, own)).await?;
            if inserted.is_some() {
                tx.end(run).await?;
            }
            Ok(inserted)
        };
        let made = self.db.run("stop_insert", work).await;
        if !run.is_dry() {
            self.announce_change(&made).await;
        }
        let Some(stop) = made? else {
            if new.by_org.is_none() {
                return Err(too_many());
            }
            let message = format!(
                "the tokens of an org may have {ORG_STOPS_MAX} stops in force, those of a subtree {SUBTREE_STOPS_MAX}, \
                 those of all orgs {ALL_ORGS_STOPS_MAX}: release some with DELETE /stops/{{id}}, or ask an operator"
            );
            return Err(Rejection::new(Reason::Conflict, message).with_fact("limit", own));
        };
        if run.is_dry() {
            return Ok(stop);
        } else if stop.cancel == Cancel::Wanted {
            self.cancels.notify_one();
        }
        notify_watchers(self, Kind::WorkspaceStopped, &stop, "request");
        Ok(stop)
    }

    /// Releases a stop, and returns it with its tasks; `None` if there is none of this id.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn release(
        self: &Arc<Self>,
        id: &str,
        run: Run,
    ) -> Result<Option<(Stop, Counts)>, Rejection> {
        let counts = self.count_tasks(id).await?;
        let work = async {
            let mut tx = self.db.begin().await?;
            let deleted = Self::release_in(&mut tx, id).await?;
            if deleted.is_some() {
                tx.end(run).await?;
            }
            Ok(deleted)
        };
        let released = self.db.run("stop_delete", work).await;
        if run.is_dry() {
            return Ok(released?.map(|stop| (stop, counts)));
        }
        self.announce_change(&released).await;
        let Some(stop) = released? else {
            return Ok(None);
        };
        notify_watchers(self, Kind::WorkspaceReleased, &stop, "request");
        Ok(Some((stop, counts)))
    }

    /// Puts changes in force that were committed in a transaction of the caller (`assembly::policy`), here and on the
    /// other replicas, and tells watchers.
    pub async fn publish(self: &Arc<Self>, made: &[Stop], released: &[Stop]) {
        if made.is_empty() && released.is_empty() {
            return;
        }
        self.announce_change(&Ok(())).await;
        for stop in made {
            notify_watchers(self, Kind::WorkspaceStopped, stop, "request");
        }
        for stop in released {
            notify_watchers(self, Kind::WorkspaceReleased, stop, "request");
        }
    }

    /// True if tasks of a stop may have to be canceled.
    pub fn may_cancel(&self) -> bool {
        !self.is_idle() && self.in_force.load().may_cancel
    }

    /// Resolves when tasks may have to be canceled.
    pub async fn wait_for_cancel(&self) {
        self.cancels.notified().await;
    }

    /// Puts a change in force here, and tells the other replicas.
    pub(super) async fn announce_change<T>(&self, changed: &Result<T, Unavailable>) {
        if self.read().await.is_err() {
            self.news.notify_one();
        }
        self.coherence
            .invalidate_after(changed, Invalidation::Stops)
            .await;
    }

    /// Reads the stops if they are not known, as after an outage of the store.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn ensure_known(&self) -> Result<(), Unavailable> {
        if self.known.load(Ordering::Acquire) == cache_state::UNKNOWN {
            self.read().await?;
        }
        Ok(())
    }

    /// Reads the stops.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn read(&self) -> Result<(), Unavailable> {
        let mut version = self.version.lock().await;
        let (read, stops) = table::read(&self.db).await?;
        *version = Some(read);
        let in_force = ActiveStops::new(stops, Timestamp::now());
        let count = in_force.count;
        let known = if count == 0 {
            cache_state::NONE
        } else {
            cache_state::SOME
        };
        self.in_force.store(Arc::new(in_force));
        let before = self.known.swap(known, Ordering::AcqRel);
        self.metrics
            .refusals
            .stops
            .set(i64::try_from(count).unwrap_or(i64::MAX));
        let is_news = (before, known) != (cache_state::NONE, cache_state::NONE);
        if let Some(changed) = self.changed.get().filter(|_| is_news) {
            changed();
        }
        Ok(())
    }

    fn mark_unknown(&self) {
        if self.known.swap(cache_state::UNKNOWN, Ordering::AcqRel) != cache_state::UNKNOWN {
            tracing::warn!(
                "the stops in force are not known; calls are refused until the store answers"
            );
        }
    }

    /// Keeps the stops current. A background task; runs until it is dropped.
    pub async fn run(self: &Arc<Self>) {
        tokio::join!(self.follow_changes(), self.expire_regularly());
    }

    async fn follow_changes(&self) {
        let mut since = Instant::now();
        let mut pause = Duration::ZERO;
        // The time of the first announcement that is not read yet.
        let mut announced: Option<Instant> = None;
        loop {
            tokio::select! {
                () = self.news.notified() => { announced.get_or_insert_with(Instant::now); }
                () = sleep(pause) => {}
            }
            match self.read_if_changed(announced.is_some()).await {
                Ok(()) => {
                    (since, announced) = (Instant::now(), None);
                    pause = LOOK_EVERY;
                }
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "failed to read the stops; will retry");
                    pause = RETRY_PAUSE;
                    let misses = self.coherence.max_age() <= Duration::from_secs(1);
                    let stale = announced.or(misses.then_some(since));
                    if stale.is_some_and(|since| since.elapsed() >= STALE_MAX) {
                        self.mark_unknown();
                    }
                }
            }
        }
    }

    /// Reads the stops if they have changed. `announced`: they have.
    async fn read_if_changed(&self, announced: bool) -> Result<(), Unavailable> {
        let known = self.known.load(Ordering::Acquire) != cache_state::UNKNOWN;
        if known && !announced {
            // Nothing else writes to a store that is in this process.
            if self.db.is_embedded() {
                return Ok(());
            }
            let version = table::read_version(&self.db).await?;
            if *self.version.lock().await == Some(version) {
                return Ok(());
            }
        }
        self.read().await
    }

    async fn expire_regularly(self: &Arc<Self>) {
        loop {
            let next = self.in_force.load().expires_at;
            let now = Timestamp::now();
            match next {
                Some(at) if at <= now => {}
                Some(at) => {
                    sleep(at.since(now).min(EXPIRE_EVERY)).await;
                    continue;
                }
                None => {
                    sleep(LOOK_EVERY).await;
                    continue;
                }
            }
            match table::delete_expired(&self.db, now).await {
                Ok(expired) => {
                    if self.read().await.is_err() {
                        self.news.notify_one();
                    }
                    if !expired.is_empty() {
                        self.coherence.invalidate(Invalidation::Stops).await;
                    }
                    for stop in &expired {
                        let draft = Draft::new(EventType::StopReleased);
                        self.audit.record(draft.with_detail(json!({
                            "by": "expiry", "scope": stop.scope.to_json(), "stop_id": stop.id,
                        })));
                        notify_watchers(self, Kind::WorkspaceReleased, stop, "expiry");
                    }
                }
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "failed to remove expired stops; they are not in force");
                }
            }
            sleep(RETRY_PAUSE).await;
        }
    }
}

/// Returns the rejection of a stop beyond the bound.
pub fn too_many() -> Rejection {
    let message = format!(
        "as many stops as may be, {STOPS_MAX}, are in force: release some with DELETE /stops/{{id}}"
    );
    Rejection::new(Reason::Conflict, message).with_fact("limit", STOPS_MAX)
}

/// Maximum workspaces that get the event of a stop of an org, or of all; and those that are searched for them.
const WATCHED_MAX: usize = 256;
const SEARCHED_MAX: usize = 10_000;

/// Publishes the event of a stop for the workspaces that it names; if it is of an org, or of all, for those without a
/// parent.
fn notify_watchers(stops: &Arc<Stops>, kind: Kind, stop: &Stop, by: &'static str) {
    let [scope, ..] = stop.scope.to_columns();
    let payload = json!({"stop": stop.id, "scope": scope, "mode": stop.mode.as_str(),
        "reason": stop.reason, "expires_at": stop.expires_at, "by": by});
    let (org, of) = match &stop.scope {
        Scope::Org(org) => (Some(org.clone()), PayloadSubject::Org(org.clone())),
        Scope::All => (None, PayloadSubject::All),
        Scope::Workspace(_) | Scope::Subtree(_) | Scope::Pair(..) => (
            None,
            PayloadSubject::from_workspaces(stop.scope.named_workspaces()),
        ),
    };
    // Integrations and users that look after less of it do not read the stop itself either.
    let event = move |workspace: &WorkspaceId| {
        let event = Event::new(kind, workspace, payload.clone());
        event.restrict_members(of.clone(), &["stop", "reason"])
    };
    for workspace in stop.scope.named_workspaces() {
        stops.events.publish(event(workspace));
    }
    if stop.scope.named_workspaces().next().is_some() {
        return;
    }
    let mut last = stops.telling.lock();
    let (stops, before) = (Arc::clone(stops), last.take());
    *last = Some(tokio::spawn(async move {
        // Watchers hear of a release after the stop.
        if let Some(before) = before {
            let _ = before.await;
        }
        for workspace in find_roots(&stops, org.as_deref()).await {
            stops.events.publish(event(&workspace));
        }
    }));
}

async fn find_roots(stops: &Stops, org: Option<&str>) -> Vec<WorkspaceId> {
    let (mut roots, mut after, mut seen) = (Vec::new(), String::new(), 0);
    while seen < SEARCHED_MAX {
        let Ok(page) = stops.workspaces.load_outlines(&after, 500).await else {
            break;
        };
        let Some(last) = page.last() else { break };
        after = last.id.to_string();
        seen += page.len();
        let of_org = page.into_iter().filter(|one| {
            one.parent_id.is_none() && org.is_none_or(|org| one.org.as_deref() == Some(org))
        });
        roots.extend(of_org.map(|one| one.id));
        if roots.len() >= WATCHED_MAX {
            roots.truncate(WATCHED_MAX);
            break;
        }
    }
    roots
}
