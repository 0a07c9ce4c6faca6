//! Follows one answer until it says which task it is about, and where that stands.

use std::sync::Arc;

use super::Tasks;
use crate::a2a::state::TaskState;
use crate::a2a::task::{Binding, TaskScan};
use crate::ids::WorkspaceId;

/// Looks at an answer as it passes: the first task counts.
pub struct Learner {
    scan: TaskScan,
    /// `None`: whose the task is, is known, or nobody's matter here.
    learns: Option<Learns>,
}

/// Who learns whose the task is.
struct Learns {
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
        let learns = Learns {
            tasks,
            owner,
            target,
        };
        Self {
            scan: TaskScan::new(binding),
            learns: Some(learns),
        }
    }

    /// One that learns of no owner: it only sees where the task stands.
    pub fn of_state(binding: Binding) -> Self {
        Self {
            scan: TaskScan::new(binding),
            learns: None,
        }
    }

    /// Takes the next piece of an answer in one body. The id, when it is there, is told once.
    pub fn look_at(&mut self, piece: &[u8]) -> Option<String> {
        self.scan.push(piece)
    }

    /// Takes the next whole events of a stream.
    pub fn look_at_events(&mut self, events: &[u8]) -> Option<String> {
        self.scan.push_events(events)
    }

    /// Where the task stands, told once, as soon as the answer has said it.
    pub fn take_state(&mut self) -> Option<TaskState> {
        self.scan.take_state()
    }

    /// There is nothing more to find. The rest of the answer need not be looked at.
    pub fn is_over(&self) -> bool {
        self.scan.is_over()
    }

    /// The caller owns `task`, if nobody did before.
    pub async fn learn(&self, task: String) {
        if let Some(learns) = &self.learns {
            let (owner, target) = (&learns.owner, &learns.target);
            learns.tasks.learn(owner, target, &task).await;
        }
    }
}
