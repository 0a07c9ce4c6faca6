//! Targets with a breaker that is not closed: they are kept, announced, and looked at for signs of life.

use std::collections::HashMap;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::{Target, TargetName, Targets};
use crate::directory::announcer::Announcer;
use crate::directory::liveness::Presence;
use crate::ids::{InstanceId, WorkspaceId};
use crate::metrics::Metrics;
use crate::time::Timestamp;
use crate::workspace::Status;

/// Pause between two looks at the lease of a target.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Time after which a target that nothing calls is forgotten: its breaker counts as closed.
const KEPT_MAX: Duration = Duration::from_secs(600);
/// The same for a target that is in no cached entry: its instance or its workspace has left.
const KEPT_ALONE: Duration = Duration::from_secs(60);
/// Pause between two looks for targets to forget, while there are any.
const FORGET_PAUSE: Duration = Duration::from_secs(15);

/// Watches open breakers.
pub(in crate::directory) struct CapacityWatch {
    pub(super) metrics: Arc<Metrics>,
    announcer: Arc<Announcer>,
    presence: Arc<Presence>,
    targets: Arc<Targets>,
    open: Mutex<HashMap<TargetName, OpenBreaker>>,
    /// Length of `open`, read without its lock.
    len: AtomicUsize,
    /// True while a task looks for targets to forget.
    is_forgetting: AtomicBool,
}

impl std::fmt::Debug for CapacityWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CapacityWatch")
            .field("open", &self.len)
            .finish_non_exhaustive()
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

impl CapacityWatch {
    pub(super) fn new(
        targets: Arc<Targets>,
        metrics: &Arc<Metrics>,
        announcer: &Arc<Announcer>,
        presence: &Arc<Presence>,
    ) -> Arc<Self> {
        Arc::new(Self {
            targets,
            metrics: Arc::clone(metrics),
            announcer: Arc::clone(announcer),
            presence: Arc::clone(presence),
            open: Mutex::default(),
            len: AtomicUsize::new(0),
            is_forgetting: AtomicBool::new(false),
        })
    }

    pub(super) fn is_any_open(&self) -> bool {
        self.len.load(Ordering::Acquire) > 0
    }

    /// True while the breakers of all targets of a workspace are not closed.
    pub(super) fn is_open(&self, id: &WorkspaceId) -> bool {
        if !self.is_any_open() {
            return false;
        }
        let targets = self.targets.find_all(id);
        !targets.is_empty() && targets.iter().all(|target| target.is_open())
    }

    /// Keeps a target with a breaker that has opened, and announces it.
    pub(super) fn record_open(self: &Arc<Self>, target: &Arc<Target>) {
        let (view, is_shown) = (target.capacity_view(None), target.is_open());
        let cause = view.failure.map_or("unknown", |cause| cause.as_str());
        if let Some(cause) = view.failure.filter(|_| is_shown) {
            self.metrics.capacity.count_opened(cause);
        }
        let open = OpenBreaker {
            target: Arc::clone(target),
            since: Timestamp::now(),
            looked_at: Instant::now(),
            is_shown,
        };
        let mut all = self.lock();
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
        let TargetName {
            workspace,
            instance,
        } = &target.name;
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
        let TargetName {
            workspace,
            instance,
        } = &target.name;
        let others = self.targets.find_all(workspace);
        let others_open = others
            .iter()
            .all(|other| Arc::ptr_eq(other, target) || other.is_open());
        let mut all = self.lock();
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
        let mut all = self.lock();
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
            let leases = &watch.presence.leases;
            let TargetName {
                workspace,
                instance,
            } = &target.name;
            let renewed = match instance {
                Some(instance) => {
                    leases
                        .instance_renewal_times(workspace, &[instance], since)
                        .await
                }
                None => {
                    leases
                        .renewal_times(slice::from_ref(workspace), since)
                        .await
                }
            };
            if let Ok([Some(at)]) = renewed.as_deref()
                && *at > since
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
                let mut all = watch.lock();
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

    fn lock(&self) -> MutexGuard<'_, HashMap<TargetName, OpenBreaker>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
