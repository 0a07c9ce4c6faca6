//! Targets with jobs that were put off on this replica, and those of them that have changed since.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use kernel::ids::WorkspaceId;

/// Unreachable targets that are remembered at most; the return of any further one is found by retrying.
const AWAY_MAX: usize = 10_000;

/// The unreachable targets.
#[derive(Default)]
pub(super) struct UnavailableTargets {
    targets: Mutex<Targets>,
    /// Notified when there may be something to send.
    pub(super) news: Notify,
}

#[derive(Default)]
struct Targets {
    away: HashSet<WorkspaceId>,
    /// Targets that were in `away` and have changed since.
    changed: HashSet<WorkspaceId>,
    /// Targets with attempts under way.
    tried: HashMap<WorkspaceId, AttemptCounts>,
}

/// Attempts under way at one target.
#[derive(Default)]
struct AttemptCounts {
    attempts: usize,
    /// Changes of the target while there were attempts.
    changes: u64,
}

/// An attempt to reach a target, created before the target is looked up: the target may have changed by the
/// time its failure is written.
pub struct Attempt {
    away: Arc<UnavailableTargets>,
    pub(super) target: WorkspaceId,
    /// `AttemptCounts::changes` when the attempt began.
    changes: u64,
}

impl UnavailableTargets {
    pub(super) fn begin_attempt(self: &Arc<Self>, target: &WorkspaceId) -> Attempt {
        let mut targets = self.targets.lock();
        let tried = targets.tried.entry(target.clone()).or_default();
        tried.attempts += 1;
        Attempt {
            away: Arc::clone(self),
            target: target.clone(),
            changes: tried.changes,
        }
    }

    pub(super) fn mark_unavailable(&self, target: &WorkspaceId) {
        let mut targets = self.targets.lock();
        if targets.away.len() < AWAY_MAX {
            targets.away.insert(target.clone());
        }
    }

    /// Marks the target as changed. `None`: all targets may have.
    pub(super) fn mark_changed(&self, target: Option<&WorkspaceId>) {
        let mut targets = self.targets.lock();
        let changed: Vec<WorkspaceId> = match target {
            Some(target) => {
                if let Some(tried) = targets.tried.get_mut(target) {
                    tried.changes += 1;
                }
                targets.away.take(target).into_iter().collect()
            }
            None => {
                targets.tried.values_mut().for_each(|t| t.changes += 1);
                targets.away.drain().collect()
            }
        };
        let any = !changed.is_empty();
        targets.changed.extend(changed);
        drop(targets);
        if any {
            self.news.notify_one();
        }
    }

    /// Takes the targets that have changed since they were put off, each once.
    pub(super) fn take(&self) -> HashSet<WorkspaceId> {
        std::mem::take(&mut self.targets.lock().changed)
    }

    /// Puts targets back after a failure to make their jobs due.
    pub(super) fn put_back(&self, changed: HashSet<WorkspaceId>) {
        self.targets.lock().changed.extend(changed);
    }
}

impl Attempt {
    /// Records that the target was put off. If it changed since the attempt began, it is marked as changed
    /// again, since no other notification follows. Other attempts are not notified: two that fail would make
    /// each other retry for ever.
    pub(super) fn record_failure(self) {
        let mut targets = self.away.targets.lock();
        let changes = targets.tried.get(&self.target).map(|tried| tried.changes);
        if changes == Some(self.changes) {
            return;
        }
        targets.away.remove(&self.target);
        targets.changed.insert(self.target.clone());
        drop(targets);
        self.away.news.notify_one();
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut targets = self.away.targets.lock();
        if let Some(tried) = targets.tried.get_mut(&self.target) {
            tried.attempts -= 1;
            if tried.attempts == 0 {
                targets.tried.remove(&self.target);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> WorkspaceId {
        WorkspaceId::parse("target").unwrap()
    }

    #[test]
    fn who_comes_back_while_it_is_tried_is_not_missed() {
        let targets = Arc::<UnavailableTargets>::default();
        let attempt = targets.begin_attempt(&id());
        // Before it is known that the target was away.
        targets.mark_changed(Some(&id()));
        assert!(targets.take().is_empty());
        targets.mark_unavailable(&id());
        attempt.record_failure();
        assert_eq!(targets.take(), HashSet::from([id()]));
        assert!(targets.targets.lock().tried.is_empty());
    }

    #[test]
    fn who_did_not_come_back_stays_away_until_it_does() {
        let targets = Arc::<UnavailableTargets>::default();
        let (first, second) = (targets.begin_attempt(&id()), targets.begin_attempt(&id()));
        for attempt in [first, second] {
            targets.mark_unavailable(&id());
            attempt.record_failure();
        }
        assert!(targets.take().is_empty());
        targets.mark_changed(None);
        assert_eq!(targets.take(), HashSet::from([id()]));
    }

    #[test]
    fn two_that_fail_do_not_have_each_other_try_again() {
        let targets = Arc::<UnavailableTargets>::default();
        let (first, second) = (targets.begin_attempt(&id()), targets.begin_attempt(&id()));
        targets.mark_changed(Some(&id()));
        targets.mark_unavailable(&id());
        first.record_failure();
        assert_eq!(targets.take().len(), 1);
        let again = targets.begin_attempt(&id());
        targets.mark_unavailable(&id());
        second.record_failure();
        assert_eq!(
            targets.take().len(),
            1,
            "its own begin is before the return"
        );
        targets.mark_unavailable(&id());
        again.record_failure();
        assert!(targets.take().is_empty());
    }
}
