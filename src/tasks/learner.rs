//! Follows one response until the task id and the task's state are known.

use std::sync::Arc;

use super::Tasks;
use crate::a2a::state::TaskState;
use crate::a2a::task::{Binding, TaskScan};
use crate::identity::Proof;
use crate::ids::WorkspaceId;

/// Scans a response as it passes. The first task counts.
pub struct Learner {
    scan: TaskScan,
    /// `None`: the owner is known already, or does not matter here.
    learns: Option<Learns>,
}

/// The owner and target to record for the task.
struct Learns {
    tasks: Arc<Tasks>,
    /// The proven caller.
    proof: Arc<Proof>,
    target: WorkspaceId,
}

impl Learner {
    pub(super) fn new(
        tasks: Arc<Tasks>,
        proof: Arc<Proof>,
        target: WorkspaceId,
        binding: Binding,
    ) -> Self {
        let learns = Learns {
            tasks,
            proof,
            target,
        };
        Self {
            scan: TaskScan::new(binding),
            learns: Some(learns),
        }
    }

    /// Returns a learner that records no owner and only reports the state of the task.
    pub fn of_state(binding: Binding) -> Self {
        Self {
            scan: TaskScan::new(binding),
            learns: None,
        }
    }

    /// Reads a response of another binding than the one it was made for.
    pub fn reads(&mut self, binding: Binding) {
        self.scan = TaskScan::new(binding);
    }

    /// Reads the next piece of a unary response. Returns the task id once, when it is complete.
    pub fn look_at(&mut self, piece: &[u8]) -> Option<String> {
        self.scan.push(piece)
    }

    /// Reads the next whole events of a stream.
    pub fn look_at_events(&mut self, events: &[u8]) -> Option<String> {
        self.scan.push_events(events)
    }

    /// Returns the state of the task once, as soon as the response contains it.
    pub fn take_state(&mut self) -> Option<TaskState> {
        self.scan.take_state()
    }

    /// True if there is nothing more to find. The rest of the response need not be scanned.
    pub fn is_over(&self) -> bool {
        self.scan.is_over()
    }

    /// Records the caller as the owner of `task`, if the task has none.
    pub async fn learn(&self, task: String) {
        if let Some(learns) = &self.learns {
            let (owner, target) = (learns.proof.owner(), &learns.target);
            learns.tasks.learn(&owner, target, &task).await;
        }
    }
}
