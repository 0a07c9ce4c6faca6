//! A workspace, as callers and targets of the cases.

use super::agent::Agent;

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
}
