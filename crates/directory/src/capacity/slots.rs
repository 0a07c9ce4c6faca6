//! Slots of all targets of this replica: workspaces, or their instances. Each target is held weakly: it lives as long as a
//! cached entry, a slot, or its open breaker holds it. Those with a breaker that is not closed are kept, announced, and
//! looked at for signs of life.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::target::Terms;
use super::{CapacityView, Target, TargetSlots};
use crate::announcer::Announcer;
use crate::liveness::Presence;
use access::workspace::Status;
use kernel::config::Config;
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::metrics::Metrics;
use kernel::time::Timestamp;

/// Number of workspaces after which unused ones are first removed.
const SWEEP_LEN_MIN: usize = 1024;

/// Pause between two looks at the lease of a target.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Time after which a target that nothing calls is forgotten: its breaker counts as closed.
const KEPT_MAX: Duration = Duration::from_secs(600);

/// The same for a target that is in no cached entry: its instance or its workspace has left.
const KEPT_ALONE: Duration = Duration::from_secs(60);

/// Pause between two looks for targets to forget, while there are any.
const FORGET_PAUSE: Duration = Duration::from_secs(15);

/// Name of a target: a workspace, and its instance if it has named ones.
pub(super) type TargetName = (WorkspaceId, Option<InstanceId>);

/// Slots of all targets.
pub struct Slots {
    pub(super) metrics: Arc<Metrics>,
    announcer: Arc<Announcer>,
    presence: Arc<Presence>,
    targets: Mutex<Targets>,
    open: Mutex<HashMap<TargetName, OpenBreaker>>,
    /// Length of `open`, read without its lock.
    len: AtomicUsize,
    /// True while a task looks for targets to forget.
    is_forgetting: AtomicBool,
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slots")
            .field("open", &self.len)
            .finish_non_exhaustive()
    }
}

/// Targets by workspace.
#[derive(Default)]
struct Targets {
    by_workspace: HashMap<WorkspaceId, Vec<Weak<Target>>>,
    sweep_len: usize,
}

impl Targets {
    fn find_all(&self, id: &WorkspaceId) -> impl Iterator<Item = Arc<Target>> {
        let targets = self.by_workspace.get(id).into_iter().flatten();
        targets.filter_map(Weak::upgrade)
    }

    /// Removes workspaces without targets in use, each time their number has doubled.
    fn sweep(&mut self) {
        if self.by_workspace.len() < self.sweep_len.max(SWEEP_LEN_MIN) {
            return;
        }
        let used = |targets: &mut Vec<Weak<Target>>| targets.iter().any(|t| t.strong_count() > 0);
        self.by_workspace.retain(|_, targets| used(targets));
        self.sweep_len = 2 * self.by_workspace.len();
    }
}

/// A breaker that is not closed.
struct OpenBreaker {
    /// Keeps the target.
    target: Arc<Target>,
    /// Time at which it was first opened, by the clock of leases.
    since: Timestamp,
    /// The last look at the lease, or call.
    looked_at: Instant,
    /// False: it is open to callers that fail alone, which is no news of the agent.
    is_shown: bool,
}

impl Slots {
    pub(crate) fn new(
        metrics: &Arc<Metrics>,
        announcer: &Arc<Announcer>,
        presence: &Arc<Presence>,
    ) -> Arc<Self> {
        Arc::new(Self {
            metrics: Arc::clone(metrics),
            announcer: Arc::clone(announcer),
            presence: Arc::clone(presence),
            targets: Mutex::default(),
            open: Mutex::default(),
            len: AtomicUsize::new(0),
            is_forgetting: AtomicBool::new(false),
        })
    }

    fn find_all(&self, id: &WorkspaceId) -> Vec<Arc<Target>> {
        self.targets.lock().find_all(id).collect()
    }

    /// Returns a target that is in use.
    fn find(&self, id: &WorkspaceId, instance: Option<&InstanceId>) -> Option<Arc<Target>> {
        let targets = self.targets.lock();
        let mut all = targets.find_all(id);
        all.find(|target| target.name.1.as_ref() == instance)
    }

    /// Returns the number of calls of `id` in progress at this replica.
    pub fn in_progress(&self, id: &WorkspaceId) -> usize {
        let targets = self.find_all(id);
        targets.iter().map(|target| target.calls.total()).sum()
    }

    /// Returns the capacity of `id`, or of each of its instances, at this replica. Empty: no call of it is remembered.
    pub fn capacity_views(&self, id: &WorkspaceId) -> Vec<CapacityView> {
        let targets = self.find_all(id);
        let views = targets.iter().map(|target| target.capacity_view(None));
        views.collect()
    }

    /// Returns the slots of `id`, or of its instance, of which `limit` is the ceiling, with those of the calls in progress
    /// taken.
    pub(crate) fn for_target(
        self: &Arc<Self>,
        (id, instance): (&WorkspaceId, Option<&InstanceId>),
        limit: usize,
        config: &Config,
    ) -> TargetSlots {
        let mut all = self.targets.lock();
        if !all.by_workspace.contains_key(id) {
            all.sweep();
        }
        let known = all
            .find_all(id)
            .find(|target| target.name.1.as_ref() == instance);
        let target = known.unwrap_or_else(|| {
            let name = (id.clone(), instance.cloned());
            let target = Arc::new(Target::new(name, Arc::clone(self)));
            let targets = all.by_workspace.entry(id.clone()).or_default();
            targets.retain(|target| target.strong_count() > 0);
            targets.push(Arc::downgrade(&target));
            target
        });
        TargetSlots {
            target,
            terms: Arc::new(Terms {
                limit,
                adaptive: config.concurrency.adaptive,
                breaker: config.breaker.clone(),
                queue: config.limits.target_queue,
                queue_wait: config.limits.target_queue_wait,
            }),
        }
    }

    /// Forgets the learned limits of an agent that registers, and lets the next call to it try.
    pub(crate) fn reset_target(
        &self,
        id: &WorkspaceId,
        instance: Option<&InstanceId>,
        began: Instant,
    ) {
        if let Some(target) = self.find(id, instance) {
            target.forget_limits();
            target.let_try(began);
        }
    }

    /// Lets the next call try, after a sign of life that began at `began`.
    pub(crate) fn let_try(&self, id: &WorkspaceId, instance: Option<&InstanceId>, began: Instant) {
        if self.is_any_open()
            && let Some(target) = self.find(id, instance)
        {
            target.let_try(began);
        }
    }

    fn is_any_open(&self) -> bool {
        self.len.load(Ordering::Acquire) > 0
    }

    /// True while the breakers of all targets of `id` are not closed.
    pub fn is_open(&self, id: &WorkspaceId) -> bool {
        if !self.is_any_open() {
            return false;
        }
        let targets = self.find_all(id);
        !targets.is_empty() && targets.iter().all(|target| target.is_open())
    }

    /// Keeps a target with a breaker that has opened, and announces it.
    pub(super) fn record_open(self: &Arc<Self>, target: &Arc<Target>) {
        let (view, is_shown) = (target.capacity_view(None), target.is_open());
        let cause = view.failure.map_or("unknown", |cause| cause.as_str());
        if let Some(cause) = view.failure.filter(|_| is_shown) {
            self.metrics.capacity.opened[cause].inc();
        }
        let open = OpenBreaker {
            target: Arc::clone(target),
            since: Timestamp::now(),
            looked_at: Instant::now(),
            is_shown,
        };
        let mut all = self.open.lock();
        let before = all.insert(target.name.clone(), open);
        if !target.is_open_to_any() {
            // It closed meanwhile.
            all.remove(&target.name);
        }
        self.note_len(&all);
        drop(all);
        self.forget_later();
        if before.is_some_and(|before| before.is_shown || !is_shown) {
            return;
        }
        let seconds = view.retry_after.unwrap_or_default().as_secs();
        let (workspace, instance) = &target.name;
        let instance = instance.as_ref().map(InstanceId::as_str);
        if !is_shown {
            tracing::info!(workspace.id = %workspace, instance.id = instance, "the breaker of an agent opened for one \
                caller, others go on: see GET /explain of it");
            return;
        }
        tracing::warn!(workspace.id = %workspace, instance.id = instance, cause, seconds, "the breaker of an agent \
            opened: no call is sent to it; see GET /explain");
        // Other instances take the calls.
        if self.is_open(workspace) {
            let payload = json!({"breaker": "open", "cause": cause});
            self.announcer
                .announce_status_with(workspace, Status::Degraded, payload);
        }
    }

    /// Forgets a target with a breaker that has closed, and announces it.
    pub(super) fn record_close(&self, target: &Arc<Target>) {
        self.metrics.capacity.breakers_closed.inc();
        let (workspace, instance) = &target.name;
        let others = self.find_all(workspace);
        let others_open = others
            .iter()
            .all(|other| Arc::ptr_eq(other, target) || other.is_open());
        let mut all = self.open.lock();
        match all.get_mut(&target.name) {
            Some(open) if target.is_open_to_any() => open.is_shown = false,
            _ => drop(all.remove(&target.name)),
        }
        self.note_len(&all);
        drop(all);
        let instance = instance.as_ref().map(InstanceId::as_str);
        tracing::info!(workspace.id = %workspace, instance.id = instance, "the breaker of an agent closed");
        if !others_open {
            return;
        }
        let payload = json!({"breaker": "closed"});
        self.announcer
            .announce_status_with(workspace, Status::Online, payload);
        // Its row may have another status by now.
        if let Ok(runtime) = Handle::try_current() {
            let (announcer, id) = (Arc::clone(&self.announcer), workspace.clone());
            runtime
                .spawn(async move { announcer.announce_if_overtaken(&id, Status::Online).await });
        }
    }

    /// Looks for a heartbeat or registration at another replica since the breaker opened, in the background, at most
    /// each second.
    pub(super) fn look_for_life(self: &Arc<Self>, target: &Arc<Target>) {
        let mut all = self.open.lock();
        let Some(open) = all.get_mut(&target.name) else {
            return;
        };
        if open.looked_at.elapsed() < LOOK_PAUSE {
            return;
        }
        open.looked_at = Instant::now();
        let since = open.since;
        drop(all);
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let (watch, target) = (Arc::clone(self), Arc::clone(target));
        runtime.spawn(async move {
            let (workspace, instance) = &target.name;
            let leases = &watch.presence.leases;
            let renewed = leases.renewal_time(workspace, instance.as_ref(), since);
            if let Ok(Some(at)) = renewed.await
                && at > since
            {
                target.let_try(Instant::now());
            }
        });
    }

    /// Forgets targets that nothing calls any more, in the background, until no breaker is open.
    fn forget_later(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if self.is_forgetting.swap(true, Ordering::AcqRel) {
            return;
        }
        let watch = Arc::downgrade(self);
        runtime.spawn(async move {
            loop {
                sleep(FORGET_PAUSE).await;
                let Some(watch) = watch.upgrade() else { return };
                let mut all = watch.open.lock();
                all.retain(|_, one| {
                    let is_alone = Arc::strong_count(&one.target) == 1;
                    let kept = if is_alone { KEPT_ALONE } else { KEPT_MAX };
                    one.looked_at.elapsed() < kept && one.target.is_open_to_any()
                });
                watch.note_len(&all);
                if all.is_empty() {
                    // Under the lock: an opening that comes now begins a task of its own.
                    watch.is_forgetting.store(false, Ordering::Release);
                    return;
                }
            }
        });
    }

    fn note_len(&self, all: &HashMap<TargetName, OpenBreaker>) {
        self.len.store(all.len(), Ordering::Release);
        let shown = all.values().filter(|one| one.is_shown).count();
        let len = i64::try_from(shown).unwrap_or(i64::MAX);
        self.metrics.capacity.breakers_open.set(len);
    }
}
