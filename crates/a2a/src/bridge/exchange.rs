//! The two requests of a call, and what is kept of it until it is answered ([`Exchange`]).

use super::failure::OmittedMembers;
use super::sides::Side;
use super::table::FileBytes;
use crate::method::Method;

/// A request as the caller sent it.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    /// The body of a JSON-RPC call.
    Rpc(&'a [u8]),
    /// An HTTP+JSON request, which [`crate::rest::parse_request`] accepted.
    Rest {
        /// Its path below the base, without the slash before it.
        tail: &'a str,
        /// Its query.
        query: Option<&'a str>,
        /// Its body.
        body: &'a [u8],
    },
}

/// The request for the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentRequest {
    /// The HTTP method.
    pub verb: &'static str,
    /// The path below the address of the agent's HTTP+JSON interface, with its query; `None`: the request
    /// goes to the address of its JSON-RPC interface.
    pub target: Option<String>,
    /// The body; empty: there is none.
    pub body: Vec<u8>,
    /// The value of `Content-Type`, if there is a body.
    pub content_type: &'static str,
    /// The value of `A2A-Version`.
    pub version: &'static str,
    /// The field that has the extensions; those of the other generation are renamed to it.
    pub extensions: &'static str,
    /// The name of the JSON-RPC method.
    pub method: Option<&'static str>,
    /// The members that were left out.
    pub left_out: OmittedMembers,
}

/// The translation of the agent's answer to one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    pub(super) caller: Side,
    pub(super) agent: Side,
    pub(super) method: Method,
    /// The caller's JSON-RPC id as it is spelled.
    pub(super) id: Option<String>,
    /// True if the caller asked for no history and the agent could not be told.
    pub(super) without_history: bool,
    /// The meaning of `fileWithBytes`, if one of the sides is HTTP+JSON of 0.3.
    pub(super) files: FileBytes,
    /// True if an error over HTTP+JSON has the member `error` only.
    pub(super) error_alone: bool,
}

impl Exchange {
    /// Creates the exchange of a call that was translated elsewhere, such as one that is answered later. `id` is
    /// the caller's JSON-RPC id as it is spelled.
    pub const fn new(caller: Side, agent: Side, method: Method, id: Option<String>) -> Self {
        Self {
            caller,
            agent,
            method,
            id,
            without_history: false,
            files: FileBytes::Unknown,
            error_alone: false,
        }
    }

    /// Leaves out of errors over HTTP+JSON the members that clients of 0.3 look for: the caller says that it reads 1.0.
    #[must_use]
    pub const fn with_error_alone(mut self, alone: bool) -> Self {
        self.error_alone = alone;
        self
    }

    /// Returns true if the method streams.
    pub const fn streams(&self) -> bool {
        self.method.streams()
    }
}
