//! The record of changes to a call, for the response field `X-A2A-Completed` ([`CompletionSteps`]).

use std::fmt;

/// One kind of change, in the order in which they are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionStep {
    /// `envelope`: `jsonrpc` inserted, a missing `id` generated, members moved to their position.
    Envelope,
    /// `method`: inferred, or respelled for the target's generation.
    Method,
    /// `alias`: `message/sendSubscribe`, which no version defines, replaced by the real name.
    Alias,
    /// `message-id`: generated, renamed from `message_id`, or the extra `message_id` dropped.
    MessageId,
    /// `task-id`: moved to `message.metadata.task_id`.
    TaskId,
    /// `parts`: made of `content` or `text`, or the shape of a part corrected.
    Parts,
    /// `role`: inserted, or respelled for the target's generation.
    Role,
    /// `target`: `target_agent_id` dropped.
    Target,
    /// `source`: `source_workspace_id` replaced by the proven caller, or dropped if there is none.
    Source,
}

impl CompletionStep {
    /// All of them, in order.
    pub const ALL: [Self; 9] = [
        Self::Envelope,
        Self::Method,
        Self::Alias,
        Self::MessageId,
        Self::TaskId,
        Self::Parts,
        Self::Role,
        Self::Target,
        Self::Source,
    ];

    /// Returns the value on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Envelope => "envelope",
            Self::Method => "method",
            Self::Alias => "alias",
            Self::MessageId => "message-id",
            Self::TaskId => "task-id",
            Self::Parts => "parts",
            Self::Role => "role",
            Self::Target => "target",
            Self::Source => "source",
        }
    }
}

/// The set of changes. Displays as the value of `X-A2A-Completed`: `envelope, message-id, parts`;
/// empty if the body is unchanged.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
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

impl fmt::Debug for CompletionSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Done({self})")
    }
}
