//! A workspace, as callers and targets of the cases.

use super::agent::Agent;
use super::client::Request;
use super::gateway::CALL;

/// A workspace with its token and its agent.
pub(crate) struct Seat {
    pub(crate) id: String,
    pub(crate) token: String,
    pub(crate) agent: Agent,
}

impl Seat {
    /// Its A2A endpoint.
    pub(crate) fn path(&self) -> String {
        format!("/workspaces/{}/a2a", self.id)
    }

    /// Its call of a target.
    pub(crate) fn calls(&self, target: &Self) -> Request {
        self.sends(target, CALL)
    }

    /// The same with another body.
    pub(crate) fn sends(&self, target: &Self, body: impl AsRef<[u8]>) -> Request {
        Request::post(target.path(), body).bearer(&self.token)
    }
}
