//! Metric families of tasks.

use prometheus::{IntCounter, Registry};

use super::family::{register_counter, register_counters};
use crate::a2a::state::TaskState;

/// Metrics of tasks.
pub struct TaskMetrics {
    /// Tasks whose owner this replica learnt from a response.
    pub learnt: IntCounter,
    /// Owners and uses of tasks that were not written for other replicas.
    pub notes_dropped: IntCounter,
    states: [IntCounter; TaskState::ALL.len()],
}

impl TaskMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        let states = register_counters(
            r,
            "a2a_gateway_task_states_total",
            "States of tasks that passed: in answers to messages and to questions for a task, in events, and in what agents that poll say.",
            &["state"],
        );
        Self {
            learnt: register_counter(
                r,
                "a2a_gateway_tasks_learnt_total",
                "Tasks whose owner this replica learnt from an agent's answer.",
            ),
            notes_dropped: register_counter(
                r,
                "a2a_gateway_task_notes_dropped_total",
                "Owners and uses of tasks that were not written down for other replicas: the queue was full.",
            ),
            states: TaskState::ALL
                .map(|state| states.with_label_values(&[&state.as_str().replace('-', "_")])),
        }
    }

    /// Counts a reported state.
    pub fn count_state(&self, state: TaskState) {
        self.states[state as usize].inc();
    }
}
