//! Follows one response until the task id and the task's state are known, and the context id where it is bound.

use std::sync::Arc;

use super::{Binder, Tasks};
use crate::a2a::state::TaskState;
use crate::a2a::task::{Binding, TaskScan};
use crate::identity::Proof;
use crate::ids::{InstanceId, WorkspaceId, WorkspaceIncarnation};

/// Scans a response as it passes. The first task counts.
pub struct Learner {
    scan: TaskScan,
    /// `None`: the owner is known already, or does not matter here.
    recorder: Option<OwnerRecorder>,
    /// `None`: the target has no instances.
    binder: Option<Box<Binder>>,
    /// Records the end of the task that the response is about. `None`: a response to a message, or it does not matter.
    ender: Option<Box<EndRecorder>>,
}

/// Records the end of one task.
pub struct EndRecorder {
    tasks: Arc<Tasks>,
    target: WorkspaceId,
    by: String,
    task: Option<String>,
}

impl EndRecorder {
    /// Returns one for a task of `target` that is not known yet. `by`: the caller.
    pub fn new(tasks: &Arc<Tasks>, proof: &Proof, target: &WorkspaceId) -> Box<Self> {
        Box::new(Self {
            tasks: Arc::clone(tasks),
            target: target.clone(),
            by: proof.owner(),
            task: None,
        })
    }

    /// Records that the task has ended.
    pub fn record_end(&self) {
        if let Some(task) = &self.task {
            self.tasks.note_end(&self.target, task, &self.by);
        }
    }
}

/// The owner and target to record for the task.
struct OwnerRecorder {
    tasks: Arc<Tasks>,
    /// The proven caller.
    proof: Arc<Proof>,
    target: WorkspaceIncarnation,
}

impl Learner {
    pub(super) fn new(
        tasks: Arc<Tasks>,
        proof: Arc<Proof>,
        target: WorkspaceIncarnation,
        binding: Binding,
    ) -> Self {
        let recorder = OwnerRecorder {
            tasks,
            proof,
            target,
        };
        Self {
            scan: TaskScan::new(binding),
            recorder: Some(recorder),
            binder: None,
            ender: None,
        }
    }

    /// Returns a learner that records no owner and only reports the state of the task.
    pub fn for_state(binding: Binding) -> Self {
        Self {
            scan: TaskScan::new(binding),
            recorder: None,
            binder: None,
            ender: None,
        }
    }

    /// Sets the protocol binding of the response, where it is not the one the learner was made for.
    pub fn set_binding(&mut self, binding: Binding) {
        self.scan = TaskScan::new(binding);
        if self.binder.is_some() {
            self.scan.want_context();
        }
    }

    /// Sets what binds the task and the context of the response to an instance.
    pub fn set_binder(&mut self, binder: Binder) {
        self.binder = Some(Box::new(binder));
        self.scan.want_context();
    }

    /// Sets the instance to bind to: another one answers instead.
    pub fn set_instance(&mut self, instance: &InstanceId) {
        if let Some(binder) = &mut self.binder {
            binder.set_instance(instance);
        }
    }

    /// Sets what records the end of the task that the response is about.
    pub fn set_end_recorder(&mut self, ender: Box<EndRecorder>) {
        self.ender = Some(ender);
    }

    /// Returns what records the end of `task`, if the response may have begun it.
    pub fn end_recorder_for(&self, task: &str) -> Option<Box<EndRecorder>> {
        let recorder = self.recorder.as_ref()?;
        let mut ender = EndRecorder::new(&recorder.tasks, &recorder.proof, &recorder.target.id);
        ender.task = Some(task.to_owned());
        Some(ender)
    }

    /// Returns what binds the task of a stream, whose end is seen by others.
    pub fn into_binder(self) -> Option<Box<Binder>> {
        self.binder
    }

    /// Reads the next piece of a unary response. Returns the task id once, when it is complete.
    pub fn push(&mut self, piece: &[u8]) -> Option<String> {
        self.scan.push(piece)
    }

    /// Reads the next whole events of a stream.
    pub fn push_events(&mut self, events: &[u8]) -> Option<String> {
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

    /// True if a context was found that is to be bound, or `state` ends a binding.
    pub fn has_more_to_learn(&self, state: Option<TaskState>) -> bool {
        let binds = self.binder.is_some() && (state.is_some() || self.scan.has_context());
        binds || (self.ender.is_some() && state.is_some_and(TaskState::is_terminal))
    }

    /// Records the caller as the owner of `task`, if the task has none, and binds the task and the context that were
    /// found.
    pub async fn record_task(&mut self, task: Option<&str>, state: Option<TaskState>) {
        if let (Some(recorder), Some(task)) = (&self.recorder, task) {
            let (owner, target) = (recorder.proof.owner(), &recorder.target);
            let over = state.is_some_and(TaskState::is_terminal);
            let owner = (owner.as_str(), recorder.proof.principal.org());
            recorder
                .tasks
                .record_owner(owner, target, task, Some(over))
                .await;
        }
        if let Some(ender) = &mut self.ender {
            if let Some(task) = task {
                ender.task = Some(task.to_owned());
            }
            if state.is_some_and(TaskState::is_terminal) {
                ender.record_end();
            }
        }
        let context = self.scan.take_context();
        if let Some(binder) = &mut self.binder {
            let has_ended = state.is_some_and(TaskState::is_terminal);
            binder.bind(context.as_deref(), task, has_ended).await;
        }
    }
}
