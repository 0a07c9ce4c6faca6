//! A call as its destination gets it.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;

use crate::a2a::Generation;
use crate::a2a::completion_steps::CompletionSteps;
use crate::a2a::envelope::CompletedCall;
use crate::a2a::refs::Refs;
use crate::delivery::calls::Key;
use crate::directory::Agent;
use crate::proxy::guard::CallGuards;
use crate::proxy::relay::rewrite::Rewrite;
use crate::proxy::translation::TranslatedHeaders;
use crate::shares::Share;

/// A route of HTTP+JSON below the base.
#[derive(Clone)]
pub(in crate::proxy) struct RestRoute {
    /// The path below the base, without the slash before it.
    pub(in crate::proxy) tail: String,
    /// The query.
    pub(in crate::proxy) query: Option<String>,
    /// The generation of the path.
    pub(in crate::proxy) generation: Generation,
}

impl RestRoute {
    /// Returns path and query of the route below an agent's interface.
    pub(in crate::proxy) fn path_below(&self, interface: &str) -> String {
        let mut path = format!("{interface}/{}", self.tail);
        if let Some(query) = &self.query {
            path.push('?');
            path.push_str(query);
        }
        path
    }
}

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
    pub(in crate::proxy) method_name: Option<Cow<'static, str>>,
    /// True if the gateway wrapped the call for a 1.0 target, so that it must declare the version.
    pub(in crate::proxy) version_1_0: bool,
    /// The fields of a request that was translated for its agent; `None`: the caller's.
    pub(in crate::proxy) wire: Option<TranslatedHeaders>,
    /// The route of an HTTP+JSON call, as its caller sent it; `None`: it is one of JSON-RPC.
    pub(in crate::proxy) route: Option<RestRoute>,
    /// The request for the task with which the answer begins.
    pub(in crate::proxy) snapshot: Option<Box<Self>>,
    /// The body and the method before the translation, if the call is one that can be deferred.
    pub(in crate::proxy) original: Option<Box<(Bytes, Option<Cow<'static, str>>)>>,
    /// The completions made, for `X-A2A-Completed`.
    pub(in crate::proxy) done: CompletionSteps,
    /// The rewrite of the answer.
    pub(in crate::proxy) rewrite: Option<Rewrite>,
    /// The guards that are asked about it; `None`: none are.
    pub(in crate::proxy) guarded: Option<Arc<CallGuards>>,
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
            wire: None,
            route: None,
            snapshot: None,
            original: None,
            done: CompletionSteps::default(),
            rewrite: None,
            guarded: None,
            key: None,
        }
    }

    /// Returns a completed call, with its references, which are still to be checked.
    pub(in crate::proxy) fn from_completed(
        completed: CompletedCall,
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

    /// Returns the generation in which its caller sent it.
    pub(in crate::proxy) fn generation(&self) -> Generation {
        match &self.route {
            Some(route) => route.generation,
            None => Generation::of_method(self.method_name.as_deref().unwrap_or_default()),
        }
    }

    /// Undoes a translation.
    pub(in crate::proxy) fn undo_translation(&mut self) {
        if let Some(original) = self.original.take() {
            (self.body, self.method_name) = *original;
            (self.path, self.wire, self.rewrite) = (None, None, None);
        }
    }

    /// Resets the call, so that it can be prepared for another place of its agent. False if its translation cannot be
    /// undone.
    pub(in crate::proxy) fn reset_for_retry(&mut self) -> bool {
        if self.original.is_some() {
            self.undo_translation();
        } else if self.wire.is_some() {
            return false;
        } else if self.route.is_none() {
            self.path = None;
        }
        true
    }

    /// Sets the path of a JSON-RPC call from the agent's registered card, if it differs from the registered URL's.
    pub(in crate::proxy) fn set_path_from(&mut self, agent: &Agent) {
        if self.path.is_none() && self.route.is_none() {
            let method = self.method_name.as_deref();
            self.path = agent.json_rpc.path_of_method(method).map(str::to_owned);
        }
    }
}
