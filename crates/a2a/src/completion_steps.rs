//! The record of changes to a call, for the response field `X-A2A-Completed` ([`CompletionSteps`]).

use std::fmt;

use super::words::words;

words! {
    /// One kind of change, in the order in which they are listed, with its word on the wire.
    CompletionStep {
        /// `envelope`: `jsonrpc` inserted, a missing `id` generated, members moved to their position.
        Envelope => "envelope",
        /// `method`: inferred, or respelled for the target's generation.
        Method => "method",
        /// `alias`: `message/sendSubscribe`, which no version defines, replaced by the real name.
        Alias => "alias",
        /// `message-id`: generated, renamed from `message_id`, or the extra `message_id` dropped.
        MessageId => "message-id",
        /// `task-id`: moved to `message.metadata.task_id`.
        TaskId => "task-id",
        /// `parts`: made of `content` or `text`, or the shape of a part corrected.
        Parts => "parts",
        /// `role`: inserted, or respelled for the target's generation.
        Role => "role",
        /// `target`: `target_agent_id` dropped.
        Target => "target",
        /// `source`: `source_workspace_id` replaced by the proven caller, or dropped if there is none.
        Source => "source",
    }
}

/// The set of changes. Displays as the value of `X-A2A-Completed`: `envelope, message-id, parts`;
/// empty if the body is unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletionSteps(u16);

impl CompletionSteps {
    /// Returns true if the body is unchanged.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if the set contains `step`.
    pub const fn has(self, step: CompletionStep) -> bool {
        self.0 & (1 << step as u16) != 0
    }

    /// Adds `step` to the set.
    pub fn add(&mut self, step: CompletionStep) {
        self.0 |= 1 << step as u16;
    }
}

impl fmt::Display for CompletionSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut steps = CompletionStep::ALL
            .into_iter()
            .filter(|step| self.has(*step));
        if let Some(first) = steps.next() {
            f.write_str(first.as_str())?;
        }
        steps.try_for_each(|step| write!(f, ", {}", step.as_str()))
    }
}
