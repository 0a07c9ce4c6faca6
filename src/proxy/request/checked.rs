//! A call as its destination gets it.

use bytes::Bytes;
use http::Method;

use crate::a2a::Generation;
use crate::a2a::done::Done;
use crate::a2a::envelope::Completed;
use crate::a2a::refs::Refs;
use crate::delivery::calls::Key;
use crate::directory::Agent;
use crate::proxy::relay::rewrite::Rewrite;
use crate::shares::Share;

/// A call after the checks of its body.
pub(in crate::proxy) struct CheckedCall {
    /// The HTTP method.
    pub(in crate::proxy) verb: Method,
    /// The path and query at the agent; `None` for its JSON-RPC path.
    pub(in crate::proxy) path: Option<String>,
    /// The body.
    pub(in crate::proxy) body: Bytes,
    /// The share of the body memory that the body takes.
    pub(in crate::proxy) share: Share,
    /// The JSON-RPC method, for the caller token.
    pub(in crate::proxy) method_name: Option<String>,
    /// True if the gateway wrapped the call for a 1.0 target, so that it must declare the version.
    pub(in crate::proxy) version_1_0: bool,
    /// The completions made, for `X-A2A-Completed`.
    pub(in crate::proxy) done: Done,
    /// The rewrite of the answer.
    pub(in crate::proxy) rewrite: Option<Rewrite>,
    /// The idempotency key.
    pub(in crate::proxy) key: Option<Key>,
}

impl CheckedCall {
    /// Returns a call of JSON-RPC with this body.
    pub(in crate::proxy) fn json_rpc(body: Bytes, share: Share) -> Self {
        Self {
            verb: Method::POST,
            path: None,
            body,
            share,
            method_name: None,
            version_1_0: false,
            done: Done::default(),
            rewrite: None,
            key: None,
        }
    }

    /// Returns a completed call, with its references, which are still to be checked.
    pub(in crate::proxy) fn completed(
        completed: Completed,
        generation: Generation,
        share: Share,
    ) -> (Self, Refs) {
        let call = Self {
            method_name: completed.method_name,
            version_1_0: completed.wrapped && generation == Generation::V1,
            done: completed.done,
            ..Self::json_rpc(completed.body, share)
        };
        (call, completed.refs)
    }

    /// Sets the path of a JSON-RPC call from the agent's registered card, if it differs from the registered URL's.
    pub(in crate::proxy) fn take_path_of(&mut self, agent: &Agent) {
        if self.path.is_none() {
            let method = self.method_name.as_deref();
            self.path = agent.json_rpc.path_of_method(method).map(str::to_owned);
        }
    }
}
