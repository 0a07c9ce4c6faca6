//! Follows one answer until it says which task it is about.

use std::sync::Arc;

use super::Tasks;
use crate::a2a::task::{Binding, TaskScan};
use crate::ids::WorkspaceId;

/// Looks at an answer as it passes. Drop it once it has learnt: the first task counts.
pub struct Learner {
    scan: TaskScan,
    tasks: Arc<Tasks>,
    owner: String,
    target: WorkspaceId,
}

impl Learner {
    pub(super) fn new(
        tasks: Arc<Tasks>,
        owner: String,
        target: WorkspaceId,
        binding: Binding,
    ) -> Self {
        Self {
            scan: TaskScan::new(binding),
            tasks,
            owner,
            target,
        }
    }

    /// Takes the next piece of an answer in one body. The id, when it is there.
    pub fn look_at(&mut self, piece: &[u8]) -> Option<String> {
        self.scan.push(piece)
    }

    /// Takes the next whole events of a stream.
    pub fn look_at_events(&mut self, events: &[u8]) -> Option<String> {
        self.scan.push_events(events)
    }

    /// The caller owns `task`, if nobody did before.
    pub async fn learn(self, task: String) {
        self.tasks.learn(&self.owner, &self.target, &task).await;
    }
}
