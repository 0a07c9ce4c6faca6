//! What was done to a call, as the response field `X-A2A-Completed` names it.

use std::fmt;

/// One thing that was done. In the order in which they are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `envelope`: `jsonrpc` inserted, `id` made where there was none, members put in their place.
    Envelope,
    /// `method`: inferred, or spelled as the target's generation has it.
    Method,
    /// `alias`: `message/sendSubscribe`, which no version has, replaced by the real name.
    Alias,
    /// `message-id`: made, renamed from `message_id`, or `message_id` dropped beside it.
    MessageId,
    /// `task-id`: moved to `message.metadata.task_id`.
    TaskId,
    /// `parts`: made of `content` or `text`, or a part's shape put right.
    Parts,
    /// `role`: inserted, or spelled as the target's generation has it.
    Role,
    /// `target`: `target_agent_id` dropped.
    Target,
    /// `source`: `source_workspace_id` replaced by the proven caller, or dropped without one.
    Source,
}

impl Step {
    /// All of them, in their order.
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

    /// The word on the wire.
    pub const fn word(self) -> &'static str {
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

/// The set of what was done. Displays as the value of `X-A2A-Completed`:
/// `envelope, message-id, parts`; empty when the body was left alone.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Done(u16);

impl Done {
    /// Whether the body was left alone.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether `step` was done.
    pub const fn has(self, step: Step) -> bool {
        self.0 & (1 << step as u16) != 0
    }

    /// Notes that `step` was done.
    pub fn add(&mut self, step: Step) {
        self.0 |= 1 << step as u16;
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut steps = Step::ALL.into_iter().filter(|step| self.has(*step));
        if let Some(first) = steps.next() {
            f.write_str(first.word())?;
        }
        steps.try_for_each(|step| write!(f, ", {}", step.word()))
    }
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Done({self})")
    }
}
