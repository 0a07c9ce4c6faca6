//! The reasons for which a call, an answer or an event has no translation ([`Failure`]).

use crate::generation::Generation;
use crate::method::Method;
use crate::rest::ID_RULE;
use crate::walker::{DEPTH_MAX, WalkError};

/// A call, an answer or an event that cannot be translated. Displays as the message of the error;
/// contains nothing of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A push configuration, across generations: the agent would post events of its own generation to
    /// the caller's webhook, past the gateway.
    #[error(
        "push notifications are not supported across generations: this agent speaks A2A {}; subscribe to the task, or poll it",
        .agent.version()
    )]
    Push {
        /// The generation that the agent speaks.
        agent: Generation,
    },
    /// `ListTasks` to an agent of 0.3, which has no such method.
    #[error("this agent speaks A2A 0.3, which cannot list tasks; get each task by its id")]
    List,
    /// A method that the other generation does not have.
    #[error("this agent speaks A2A {} only, which has no such method", .agent.version())]
    Method {
        /// The generation that the agent speaks.
        agent: Generation,
    },
    /// The bridge is off, and the agent does not speak the caller's generation.
    #[error(
        "this agent speaks A2A {} only, and translation is off for it: call {}, or have an operator set bridge of the workspace, or a2a.bridge, to \"auto\"",
        .agent.version(), send_in(*.agent)
    )]
    Off {
        /// The generation of the call.
        caller: Generation,
        /// The generation that the agent speaks.
        agent: Generation,
    },
    /// All that its agent speaks is gRPC of 0.3.
    #[error("agent speaks gRPC of A2A 0.3 only")]
    GrpcV0,
    /// A number of a request has no place in protobuf.
    #[error("it has a number that cannot be sent by gRPC without rounding; send it as a string")]
    Number,
    /// A request has a member twice, which parsers resolve differently.
    #[error("\"{0}\" stands twice; send it once")]
    Twice(&'static str),
    /// A member of a request cannot be translated.
    #[error(
        "\"{0}\" cannot be translated for this agent: it is not what A2A defines for it, or an id that {ID_RULE}; correct it"
    )]
    Params(&'static str),
    /// The bytes of a file over HTTP+JSON of 0.3 have two meanings.
    #[error(
        "the bytes of a file over HTTP+JSON of A2A 0.3 are base64 by its proto, base64 of base64 in its SDK for Python, and nothing shows which is meant here: send the file by its uri, or use JSON-RPC"
    )]
    FileBytes,
    /// A request is not JSON, at this offset.
    #[error("the body is not JSON at byte {0}")]
    NotJson(usize),
    /// A request grows too much in the other generation.
    #[error(
        "the body is more than four times as long in the generation of this agent; send fewer parts"
    )]
    TooLong,
    /// A request is nested too deep.
    #[error("nested deeper than {DEPTH_MAX}")]
    TooDeep,
    /// The agent's answer or event cannot be translated.
    #[error("the agent's answer cannot be translated: {0}")]
    Answer(&'static str),
}

/// Returns the name of the method that sends a message.
fn send_in(generation: Generation) -> &'static str {
    Method::SendMessage.name_in(generation).unwrap_or_default()
}

impl Failure {
    /// The result is none of those that its method has.
    pub(super) const NO_RESULT: Self = Self::Answer(
        "it is no result of this method; an agent that speaks another version than its card says needs a new card",
    );
    /// A text of the agent is not UTF-8.
    pub(super) const NOT_UTF8: Self = Self::Answer("it is not UTF-8");

    /// Returns the failure of an answer for what stopped the pass over it.
    pub(super) const fn of_answer(self) -> Self {
        Self::Answer(match self {
            Self::NotJson(_) => "it is not JSON",
            Self::TooDeep => "it is nested too deep",
            Self::Twice(_) => "a member stands in it twice",
            Self::Params(_) => "a member has another type than A2A defines",
            Self::TooLong => "it is too long in the other generation",
            other => return other,
        })
    }

    /// Returns the code of JSON-RPC, and the label of a metric: from a closed set.
    const fn code_and_label(&self) -> (i64, &'static str) {
        match self {
            Self::Push { .. } => (-32_003, "push"),
            Self::List => (-32_004, "list"),
            Self::GrpcV0 => (-32_004, "grpc"),
            Self::Number => (-32_005, "number"),
            Self::Method { .. } => (-32_601, "method"),
            // 0.3 does not know the code of 1.0.
            Self::Off {
                caller: Generation::V1,
                ..
            } => (-32_009, "off"),
            Self::Off { .. } => (-32_601, "off"),
            Self::Twice(_) => (-32_600, "twice"),
            Self::Params(_) => (-32_602, "params"),
            Self::FileBytes => (-32_005, "file_bytes"),
            Self::NotJson(_) => (-32_700, "not_json"),
            Self::TooDeep => (-32_600, "too_deep"),
            Self::TooLong => (-32_602, "too_long"),
            Self::Answer(_) => (-32_006, "answer"),
        }
    }

    /// Returns the code of JSON-RPC.
    pub fn code(&self) -> i64 {
        match self {
            Self::Params("jsonrpc") => -32_600,
            other => other.code_and_label().0,
        }
    }

    /// Returns the label of a metric.
    pub const fn label(&self) -> &'static str {
        self.code_and_label().1
    }

    /// Returns true if the agent is at fault.
    pub const fn is_of_agent(&self) -> bool {
        matches!(self, Self::Answer(_))
    }
}

impl From<WalkError> for Failure {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::Syntax(at) => Self::NotJson(at),
            WalkError::TooDeep => Self::TooDeep,
        }
    }
}

/// Counts of members that have no place in the other generation. Names come from the tables alone, so
/// that they can be labels of a metric: one that no table has is counted as `other` of its object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OmittedMembers(Vec<(&'static str, &'static str, u32)>);

impl OmittedMembers {
    pub(super) fn add(&mut self, node: &'static str, member: &'static str) {
        let mut counted = self.0.iter_mut();
        match counted.find(|(of, name, _)| *of == node && *name == member) {
            Some((_, _, count)) => *count = count.saturating_add(1),
            None => self.0.push((node, member, 1)),
        }
    }

    /// Returns each object, its member and the number of times that it was left out.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u32)> + '_ {
        self.0.iter().copied()
    }

    /// Returns true if nothing was left out.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of members.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(_, _, count)| u64::from(*count)).sum()
    }
}
