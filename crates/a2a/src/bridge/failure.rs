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

    /// Returns the code of JSON-RPC.
    pub fn code(&self) -> i64 {
        match self {
            Self::Push { .. } => -32_003,
            Self::List => -32_004,
            // 0.3 does not know the code of 1.0.
            Self::Off {
                caller: Generation::V1,
                ..
            } => -32_009,
            Self::Method { .. } | Self::Off { .. } => -32_601,
            Self::Twice(_) | Self::Params("jsonrpc") | Self::TooDeep => -32_600,
            Self::Params(_) | Self::TooLong => -32_602,
            Self::FileBytes => -32_005,
            Self::NotJson(_) => -32_700,
            Self::Answer(_) => -32_006,
        }
    }

    /// Returns the label of a metric: from a closed set.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Push { .. } => "push",
            Self::List => "list",
            Self::Method { .. } => "method",
            Self::Off { .. } => "off",
            Self::Twice(_) => "twice",
            Self::Params(_) => "params",
            Self::FileBytes => "file_bytes",
            Self::NotJson(_) => "not_json",
            Self::TooDeep => "too_deep",
            Self::TooLong => "too_long",
            Self::Answer(_) => "answer",
        }
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
