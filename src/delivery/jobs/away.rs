//! Targets whose jobs were put off here, and which of them something has changed about since.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::ids::WorkspaceId;

/// Targets that are known to be away at most; of others their return is found out by trying.
const AWAY_MAX: usize = 10_000;

/// The room's knowledge of them.
#[derive(Default)]
pub(super) struct Away {
    targets: Mutex<Targets>,
    news: Notify,
}

#[derive(Default)]
struct Targets {
    away: HashSet<WorkspaceId>,
    /// Something about them has changed since.
    returned: HashSet<WorkspaceId>,
    /// Those that somebody tries to reach.
    tried: HashMap<WorkspaceId, Tried>,
}

#[derive(Default)]
struct Tried {
    attempts: usize,
    /// How often it came back while there were any.
    returns: u64,
}

/// An attempt to reach a target, from before it is asked about: what is found out may be over by the time at which that
/// is written down.
pub struct Try {
    away: Arc<Away>,
    target: WorkspaceId,
    /// The count at its begin.
    returns: u64,
}

impl Away {
    fn targets(&self) -> MutexGuard<'_, Targets> {
        // Each step leaves them whole, so a panic elsewhere cannot have broken them.
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn attempt(self: &Arc<Self>, target: &WorkspaceId) -> Try {
        let mut targets = self.targets();
        let tried = targets.tried.entry(target.clone()).or_default();
        tried.attempts += 1;
        Try {
            away: Arc::clone(self),
            target: target.clone(),
            returns: tried.returns,
        }
    }

    pub(super) fn leaves(&self, target: &WorkspaceId) {
        let mut targets = self.targets();
        if targets.away.len() < AWAY_MAX {
            targets.away.insert(target.clone());
        }
    }

    /// `None`: all of them may have.
    pub(super) fn returns(&self, target: Option<&WorkspaceId>) {
        let mut targets = self.targets();
        let returned: Vec<WorkspaceId> = match target {
            Some(target) => {
                if let Some(tried) = targets.tried.get_mut(target) {
                    tried.returns += 1;
                }
                targets.away.take(target).into_iter().collect()
            }
            None => {
                targets.tried.values_mut().for_each(|t| t.returns += 1);
                targets.away.drain().collect()
            }
        };
        let any = !returned.is_empty();
        targets.returned.extend(returned);
        drop(targets);
        if any {
            self.news.notify_one();
        }
    }

    /// Resolves when one of them has returned.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// Those that have, each once.
    pub(super) fn take(&self) -> HashSet<WorkspaceId> {
        std::mem::take(&mut self.targets().returned)
    }

    /// They could not be seen to.
    pub(super) fn put_back(&self, returned: HashSet<WorkspaceId>) {
        self.targets().returned.extend(returned);
    }
}

impl Try {
    /// Whom it is about.
    pub(super) fn target(&self) -> &WorkspaceId {
        &self.target
    }

    /// The target was put off. Where it came back since the attempt began nobody else would hear of that. Other attempts
    /// are told nothing: two that fail would have each other try for ever.
    pub(super) fn failed(self) {
        let mut targets = self.away.targets();
        let returns = targets.tried.get(&self.target).map(|tried| tried.returns);
        if returns == Some(self.returns) {
            return;
        }
        targets.away.remove(&self.target);
        targets.returned.insert(self.target.clone());
        drop(targets);
        self.away.news.notify_one();
    }
}

impl Drop for Try {
    fn drop(&mut self) {
        let mut targets = self.away.targets();
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
        let away = Arc::<Away>::default();
        let attempt = away.attempt(&id());
        // Before anybody knows that it was away.
        away.returns(Some(&id()));
        assert!(away.take().is_empty());
        away.leaves(&id());
        attempt.failed();
        assert_eq!(away.take(), HashSet::from([id()]));
        assert!(away.targets().tried.is_empty());
    }

    #[test]
    fn who_did_not_come_back_stays_away_until_it_does() {
        let away = Arc::<Away>::default();
        let (first, second) = (away.attempt(&id()), away.attempt(&id()));
        for attempt in [first, second] {
            away.leaves(&id());
            attempt.failed();
        }
        assert!(away.take().is_empty());
        away.returns(None);
        assert_eq!(away.take(), HashSet::from([id()]));
    }

    #[test]
    fn two_that_fail_do_not_have_each_other_try_again() {
        let away = Arc::<Away>::default();
        let (first, second) = (away.attempt(&id()), away.attempt(&id()));
        away.returns(Some(&id()));
        away.leaves(&id());
        first.failed();
        assert_eq!(away.take().len(), 1);
        let again = away.attempt(&id());
        away.leaves(&id());
        second.failed();
        assert_eq!(away.take().len(), 1, "its own begin is before the return");
        away.leaves(&id());
        again.failed();
        assert!(away.take().is_empty());
    }
}
