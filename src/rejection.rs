//! Rejections: the gateway's own responses, and the table from reason to status and code.
#![deny(clippy::wildcard_enum_match_arm)]

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::ids::{InvalidWorkspaceId, RequestId};
use crate::store::Unavailable;

/// The closed set of reasons (`docs/reference/reasons.md`). The same name is the JSON `reason`, the metric label
/// and the outcome in records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The body is not JSON.
    ParseError,
    /// JSON, but not a call that can be made; or a head that is not acceptable HTTP.
    InvalidRequest,
    /// Arguments that contradict each other, the path or their type.
    InvalidParams,
    /// A browser page of another origin.
    OriginForbidden,
    /// `Host` is not a name of this gateway.
    Misdirected,
    /// Not the form of a workspace id.
    InvalidWorkspaceId,
    /// No credential, or one that proves nothing.
    Unauthenticated,
    /// `X-Workspace-ID` is not what the credential proves.
    CallerMismatch,
    /// Denied by the rule, the scope or the grant.
    NotPermitted,
    /// No such route on this listener.
    NotFound,
    /// The workspace does not exist, and the caller may know that.
    WorkspaceNotFound,
    /// A task that another caller started, or that does not exist.
    TaskNotFound,
    /// Push notifications are switched off for the workspace.
    PushNotSupported,
    /// The path exists, the HTTP method does not.
    MethodNotAllowed,
    /// The request did not arrive in time.
    RequestTimeout,
    /// It exists already, or the change contradicts the present state.
    Conflict,
    /// The same idempotency key with a different body.
    IdempotencyConflict,
    /// The workspace was removed.
    WorkspaceRemoved,
    /// The entry of an inbox to continue from does not exist, or was pruned.
    CursorGone,
    /// Over `limits.request_bytes`.
    BodyTooLarge,
    /// Declared as another type than JSON, or encoded.
    UnsupportedMediaType,
    /// The route accepts only WebSocket.
    UpgradeRequired,
    /// Too many requests of this caller, or too many rejected ones from this address.
    RateLimited,
    /// A bug.
    Internal,
    /// No connection to the agent; nothing was delivered.
    AgentUnreachable,
    /// The agent violated HTTP or broke off.
    AgentProtocolError,
    /// The agent answered 3xx.
    AgentRedirected,
    /// The address policy forbids the address.
    AddressForbidden,
    /// Over `limits.response_bytes`, or `limits.stream_bytes` in a stream.
    ResponseTooLarge,
    /// The target cannot be reached now.
    WorkspaceOffline,
    /// The target is starting.
    WorkspaceRestarting,
    /// The target's concurrency limit is reached.
    AgentBusy,
    /// A fact needed to decide safely cannot be read.
    StoreUnavailable,
    /// A limit of the gateway itself.
    Overloaded,
    /// The gateway is shutting down.
    ShuttingDown,
    /// `timeouts.connect`, `.head`, `.total` or `.stream` passed.
    AgentTimeout,
    /// `timeouts.idle` passed.
    AgentSilent,
    /// The call passed too many gateways.
    LoopDetected,
}

impl Reason {
    /// All reasons, for metrics and tests.
    pub const ALL: [Self; 38] = [
        Self::ParseError,
        Self::InvalidRequest,
        Self::InvalidParams,
        Self::OriginForbidden,
        Self::Misdirected,
        Self::InvalidWorkspaceId,
        Self::Unauthenticated,
        Self::CallerMismatch,
        Self::NotPermitted,
        Self::NotFound,
        Self::WorkspaceNotFound,
        Self::TaskNotFound,
        Self::PushNotSupported,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::Conflict,
        Self::IdempotencyConflict,
        Self::WorkspaceRemoved,
        Self::CursorGone,
        Self::BodyTooLarge,
        Self::UnsupportedMediaType,
        Self::UpgradeRequired,
        Self::RateLimited,
        Self::Internal,
        Self::AgentUnreachable,
        Self::AgentProtocolError,
        Self::AgentRedirected,
        Self::AddressForbidden,
        Self::ResponseTooLarge,
        Self::WorkspaceOffline,
        Self::WorkspaceRestarting,
        Self::AgentBusy,
        Self::StoreUnavailable,
        Self::Overloaded,
        Self::ShuttingDown,
        Self::AgentTimeout,
        Self::AgentSilent,
        Self::LoopDetected,
    ];

    /// Returns the name on the wire, the HTTP status and the JSON-RPC code.
    ///
    /// -32000 is used for the gateway's own errors, because A2A claims -32001 to -32099 (A2A 1.0, 9.5).
    const fn row(self) -> (&'static str, u16, i32) {
        match self {
            Self::ParseError => ("parse_error", 400, -32_700),
            Self::InvalidRequest => ("invalid_request", 400, -32_600),
            Self::InvalidParams => ("invalid_params", 400, -32_602),
            Self::OriginForbidden => ("origin_forbidden", 403, -32_000),
            Self::Misdirected => ("misdirected", 421, -32_000),
            Self::InvalidWorkspaceId => ("invalid_workspace_id", 400, -32_600),
            Self::Unauthenticated => ("unauthenticated", 401, -32_000),
            Self::CallerMismatch => ("caller_mismatch", 403, -32_000),
            Self::NotPermitted => ("not_permitted", 403, -32_000),
            Self::NotFound => ("not_found", 404, -32_600),
            Self::WorkspaceNotFound => ("workspace_not_found", 404, -32_000),
            Self::TaskNotFound => ("task_not_found", 404, -32_001),
            Self::PushNotSupported => ("push_not_supported", 400, -32_003),
            Self::MethodNotAllowed => ("method_not_allowed", 405, -32_600),
            Self::RequestTimeout => ("request_timeout", 408, -32_000),
            Self::Conflict => ("conflict", 409, -32_000),
            Self::IdempotencyConflict => ("idempotency_conflict", 409, -32_000),
            Self::WorkspaceRemoved => ("workspace_removed", 410, -32_000),
            Self::CursorGone => ("cursor_gone", 410, -32_000),
            Self::BodyTooLarge => ("body_too_large", 413, -32_600),
            Self::UnsupportedMediaType => ("unsupported_media_type", 415, -32_005),
            Self::UpgradeRequired => ("upgrade_required", 426, -32_000),
            Self::RateLimited => ("rate_limited", 429, -32_000),
            Self::Internal => ("internal", 500, -32_603),
            Self::AgentUnreachable => ("agent_unreachable", 502, -32_000),
            Self::AgentProtocolError => ("agent_protocol_error", 502, -32_000),
            Self::AgentRedirected => ("agent_redirected", 502, -32_000),
            Self::AddressForbidden => ("address_forbidden", 502, -32_000),
            Self::ResponseTooLarge => ("response_too_large", 502, -32_000),
            Self::WorkspaceOffline => ("workspace_offline", 503, -32_000),
            Self::WorkspaceRestarting => ("workspace_restarting", 503, -32_000),
            Self::AgentBusy => ("agent_busy", 503, -32_000),
            Self::StoreUnavailable => ("store_unavailable", 503, -32_000),
            Self::Overloaded => ("overloaded", 503, -32_000),
            Self::ShuttingDown => ("shutting_down", 503, -32_000),
            Self::AgentTimeout => ("agent_timeout", 504, -32_000),
            Self::AgentSilent => ("agent_silent", 504, -32_000),
            Self::LoopDetected => ("loop_detected", 508, -32_000),
        }
    }

    /// Returns the name on the wire: `workspace_offline`.
    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    /// Returns the HTTP status.
    pub const fn status(self) -> u16 {
        self.row().1
    }

    /// Returns the JSON-RPC error code.
    pub const fn rpc_code(self) -> i32 {
        self.row().2
    }
}

/// Delivery of a request that was not answered. An idempotency key is released, and a deferred call is
/// retried, only after [`Delivery::NotSent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// No byte of the request reached the agent.
    NotSent,
    /// The connection failed while the request was being sent, or the process that sent it ended.
    Unknown,
    /// The agent got the whole request.
    Sent,
}

impl Delivery {
    /// Returns the value of `delivered` on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotSent => "false",
            Self::Unknown => "unknown",
            Self::Sent => "true",
        }
    }
}

/// The response field with the reason of a rejection by the gateway. An agent's own field of that name is
/// dropped from all responses, so the field proves what a body cannot: agents may write any body.
pub const REFUSED: &str = "x-a2a-refused";

/// The response field with the name of a stream, which its caller knows and its agent does not. So, in the
/// last event of the stream, it proves that the event is the gateway's ([`Rejection::last_event`]). An
/// agent's own field of that name is dropped.
pub const STREAM: &str = "x-a2a-stream";

/// A rejection: the reason, a message with the next step, and facts.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// The row of the table.
    pub reason: Reason,
    /// A sentence for the caller. Never a token, a body, an address or a driver's text.
    pub message: Cow<'static, str>,
    /// The time to wait, in whole seconds; also the `Retry-After` field.
    pub retry_after: Option<u64>,
    /// The JSON-RPC code, where it is not the reason's own.
    pub rpc_code: Option<i32>,
    /// The `Allow` field of a 405.
    pub allow: Option<&'static str>,
    /// Further response fields, such as the `RateLimit-*` ones.
    pub fields: Vec<(&'static str, String)>,
    /// Delivery to the agent, where it was possible.
    pub delivered: Option<Delivery>,
    /// Further facts for `metadata` (`clock`, `limit`) and, on other routes, top level.
    pub facts: Vec<(&'static str, String)>,
    /// The cause, for the log: the chain of causes. Never sent.
    pub cause: Option<std::sync::Arc<dyn std::error::Error + Send + Sync>>,
}

impl Rejection {
    /// Creates a rejection with its message.
    pub fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason,
            message: message.into(),
            retry_after: None,
            rpc_code: None,
            allow: None,
            fields: Vec::new(),
            delivered: None,
            facts: Vec::new(),
            cause: None,
        }
    }

    /// Sets the time to wait.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after.as_secs().max(1));
        self
    }

    /// Sets another JSON-RPC code than the reason's own.
    #[must_use]
    pub fn rpc_code(mut self, code: i32) -> Self {
        self.rpc_code = Some(code);
        self
    }

    /// Adds one fact.
    #[must_use]
    pub fn fact(mut self, name: &'static str, value: impl ToString) -> Self {
        self.facts.push((name, value.to_string()));
        self
    }

    /// Sets the delivery to the agent.
    #[must_use]
    pub fn delivered(mut self, delivery: Delivery) -> Self {
        self.delivered = Some(delivery);
        self
    }

    /// Returns the facts as they are sent, by name.
    pub fn facts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let delivered = self
            .delivered
            .map(|delivery| ("delivered", delivery.as_str()));
        let facts = self
            .facts
            .iter()
            .map(|(name, value)| (*name, value.as_str()));
        facts.chain(delivered)
    }

    /// Marks a rejection after a change that was made, or with `partly` a part of it: a repeated request
    /// completes it.
    #[must_use]
    pub fn after_commit(mut self, partly: bool) -> Self {
        if self.committed().is_some() {
            return self;
        }
        if self.reason == Reason::StoreUnavailable {
            self.message = if partly {
                "a part of it is done, and then a store went away; send the same request again to complete it"
            } else {
                "it is done, but a store went away before everything that follows from it was; send the same request again to complete it"
            }
            .into();
        }
        self.fact(COMMITTED, if partly { "partly" } else { "true" })
    }

    /// Returns the mark of [`Rejection::after_commit`].
    pub fn committed(&self) -> Option<Value> {
        let said = self.facts.iter().find(|(name, _)| *name == COMMITTED);
        said.map(|(_, value)| fact(value))
    }

    /// Adds one response field.
    #[must_use]
    pub fn field(mut self, name: &'static str, value: impl ToString) -> Self {
        self.fields.push((name, value.to_string()));
        self
    }

    /// Sets the cause for the log.
    #[must_use]
    pub fn cause(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.cause = Some(std::sync::Arc::new(cause));
        self
    }

    /// Returns the body in the plain form.
    pub fn plain_body(&self, request_id: &RequestId) -> String {
        let mut body = Map::new();
        body.insert("error".into(), Value::from(self.message.as_ref()));
        body.insert("reason".into(), self.reason.as_str().into());
        body.insert("request_id".into(), request_id.as_str().into());
        if let Some(seconds) = self.retry_after {
            body.insert("retry_after".into(), seconds.into());
        }
        if self.reason == Reason::WorkspaceRestarting {
            body.insert("restarting".into(), true.into());
        }
        for (name, value) in self.facts() {
            body.insert(name.into(), fact(value));
        }
        Value::Object(body).to_string()
    }
}

/// The fact that a change was made all the same.
pub const COMMITTED: &str = "committed";

/// Returns a fact as JSON: agents read `"reregister":true` (`docs/reference/http-api.md`, "`POST /registry/heartbeat`").
fn fact(value: &str) -> Value {
    match value {
        "true" => Value::Bool(true),
        text => text.into(),
    }
}

/// The rejection of a request to the control plane, as a request extension: the route's handler must not run.
/// As the error of a body: the body is not read any further.
#[derive(Clone, Debug, thiserror::Error)]
#[error("refused: {}", .0.message)]
pub struct Refused(pub Rejection);

impl From<Unavailable> for Rejection {
    fn from(error: Unavailable) -> Self {
        Self::new(
            Reason::StoreUnavailable,
            "the gateway cannot read a fact it needs to decide safely; try again shortly",
        )
        .retry_after(Duration::from_secs(1))
        .cause(error)
    }
}

impl From<InvalidWorkspaceId> for Rejection {
    fn from(error: InvalidWorkspaceId) -> Self {
        Self::new(Reason::InvalidWorkspaceId, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_word() {
        let words: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|r| r.as_str()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
        assert!(Reason::ALL.iter().all(|r| (400..600).contains(&r.status())));
    }
}
