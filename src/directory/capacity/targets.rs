//! Targets of this replica: workspaces, or their instances. Each is held weakly: it lives as long as a cached entry, a
//! slot, or its open breaker holds it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{CapacityWatch, Target};
use crate::ids::{InstanceId, WorkspaceId};

/// Number of workspaces after which unused ones are first removed.
const SWEEP_LEN_MIN: usize = 1024;

/// Name of a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TargetName {
    pub(super) workspace: WorkspaceId,
    /// `None`: the workspace has no named instances.
    pub(super) instance: Option<InstanceId>,
}

#[derive(Debug, Default)]
pub(super) struct Targets(Mutex<ByWorkspace>);

#[derive(Debug, Default)]
struct ByWorkspace {
    targets: HashMap<WorkspaceId, Vec<Weak<Target>>>,
    sweep_len: usize,
}

impl Targets {
    /// Returns the targets of a workspace.
    pub(super) fn find_all(&self, id: &WorkspaceId) -> Vec<Arc<Target>> {
        let all = self.lock();
        let targets = all.targets.get(id).into_iter().flatten();
        targets.filter_map(Weak::upgrade).collect()
    }

    /// Returns a target that is in use.
    pub(super) fn find(
        &self,
        id: &WorkspaceId,
        instance: Option<&InstanceId>,
    ) -> Option<Arc<Target>> {
        let all = self.lock();
        let mut targets = all.targets.get(id)?.iter().filter_map(Weak::upgrade);
        targets.find(|target| target.name.instance.as_ref() == instance)
    }

    /// Returns a target, which is made if it is not in use.
    pub(super) fn get_or_create(
        &self,
        name: TargetName,
        watch: &Arc<CapacityWatch>,
    ) -> Arc<Target> {
        let mut all = self.lock();
        if !all.targets.contains_key(&name.workspace) {
            all.sweep();
        }
        let targets = all.targets.entry(name.workspace.clone()).or_default();
        let mut known = targets.iter().filter_map(Weak::upgrade);
        if let Some(target) = known.find(|target| target.name == name) {
            return target;
        }
        targets.retain(|target| target.strong_count() > 0);
        let target = Arc::new(Target::new(name, Arc::clone(watch)));
        targets.push(Arc::downgrade(&target));
        target
    }

    fn lock(&self) -> MutexGuard<'_, ByWorkspace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ByWorkspace {
    /// Removes workspaces without targets in use, each time their number has doubled.
    fn sweep(&mut self) {
        if self.targets.len() < self.sweep_len.max(SWEEP_LEN_MIN) {
            return;
        }
        let used = |targets: &mut Vec<Weak<Target>>| targets.iter().any(|t| t.strong_count() > 0);
        self.targets.retain(|_, targets| used(targets));
        self.sweep_len = 2 * self.targets.len();
    }
}
