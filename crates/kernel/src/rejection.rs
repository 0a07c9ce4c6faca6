//! Rejections: the gateway's own responses, and the table from reason to status and code.
#![deny(clippy::wildcard_enum_match_arm)]

use axum_core::body::Body;
use axum_core::response::{IntoResponse, Response};
use http::StatusCode;
use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::closed_set::words;
use crate::ids::{InvalidInstanceId, InvalidWorkspaceId, RequestId};
use crate::stage::Stage;

/// Declares the reasons: of each its name on the wire, its HTTP status, its JSON-RPC code, and, if no explanation can
/// give it, what it depends on instead of caller and target.
macro_rules! reasons {
    (@depends) => { None };
    (@depends $on:literal) => { Some($on) };
    ($(#[$about:meta])* $name:ident {
        $($(#[$doc:meta])* $variant:ident
            => ($word:literal, $status:literal, $code:literal $(, $on:literal)?),)*
    }) => {
        words! {
            $(#[$about])*
            #[derive(PartialOrd, Ord)]
            $name { $($(#[$doc])* $variant => $word,)* }
        }

        impl $name {
            /// Returns the HTTP status and the JSON-RPC code.
            const fn row(self) -> (u16, i32) {
                match self { $(Self::$variant => ($status, $code),)* }
            }

            /// Returns what the reason depends on, if that is more than caller and target: no explanation gives it.
            pub const fn depends_on(self) -> Option<&'static str> {
                match self { $(Self::$variant => reasons!(@depends $($on)?),)* }
            }
        }
    };
}

reasons! {
    /// The closed set of reasons (`docs/reference/reasons.md`). The same name is the JSON `reason`, the metric label
    /// and the outcome in records. `CONTRIBUTING.md`, "A new reason", says what else has to know of one.
    ///
    /// -32000 is used for the gateway's own errors, because A2A claims -32001 to -32099 (A2A 1.0, 9.5).
    Reason {
        /// The body is not JSON.
        ParseError => ("parse_error", 400, -32_700, "the body"),
        /// JSON, but not a call that can be made; or a head that is not acceptable HTTP.
        InvalidRequest => ("invalid_request", 400, -32_600, "the head and the body"),
        /// Arguments that contradict each other, the path or their type.
        InvalidParams => ("invalid_params", 400, -32_602, "the body"),
        /// A browser page of another origin.
        OriginForbidden => ("origin_forbidden", 403, -32_000, "the request's Origin"),
        /// `Host` is not a name of this gateway.
        Misdirected => ("misdirected", 421, -32_000, "the request's Host"),
        /// Not the form of a workspace id.
        InvalidWorkspaceId => ("invalid_workspace_id", 400, -32_600),
        /// No credential, or one that proves nothing.
        Unauthenticated => ("unauthenticated", 401, -32_000),
        /// `X-Workspace-ID` is not what the credential proves.
        CallerMismatch => ("caller_mismatch", 403, -32_000, "the request's X-Workspace-ID"),
        /// Denied by the rule, the scope or the grant.
        NotPermitted => ("not_permitted", 403, -32_000),
        /// The request's X-A2A-On-Behalf-Of is no chain token for this caller.
        ChainInvalid => ("chain_invalid", 403, -32_000, "the request's X-A2A-On-Behalf-Of"),
        /// The chain of the request has ended.
        ChainExpired => ("chain_expired", 403, -32_000, "the request's X-A2A-On-Behalf-Of"),
        /// The root, the run or a link of the chain was revoked, or may not call the next any more.
        ChainRevoked => ("chain_revoked", 403, -32_000, "the request's X-A2A-On-Behalf-Of"),
        /// The target is called only on behalf of others (`access.require`).
        RootRequired => ("root_required", 403, -32_000),
        /// The role of an operator does not cover it.
        RoleRequired => ("role_required", 403, -32_000, "an operator's role: `matrix::roles` has it"),
        /// An operator stopped the caller or the target.
        Stopped => ("stopped", 403, -32_000, "an operator's: `stops::scopes` compares the two"),
        /// A guard rejects what the call, the answer or the event says.
        GuardRejected => ("guard_rejected", 403, -32_000, "what the body says"),
        /// No such route on this listener.
        NotFound => ("not_found", 404, -32_600, "the request's path"),
        /// The workspace does not exist, and the caller may know that.
        WorkspaceNotFound => ("workspace_not_found", 404, -32_000),
        /// A task that another caller started, or that does not exist.
        TaskNotFound => ("task_not_found", 404, -32_001, "a task that the body names"),
        /// Push notifications are switched off for the workspace.
        PushNotSupported => ("push_not_supported", 400, -32_003, "what the body asks for"),
        /// A call of a generation of A2A that its target does not speak, and that is not translated.
        VersionNotSupported => ("version_not_supported", 400, -32_009, "the method that the body names"),
        /// The path exists, the HTTP method does not.
        MethodNotAllowed => ("method_not_allowed", 405, -32_600, "the request's method"),
        /// The request did not arrive in time.
        RequestTimeout => ("request_timeout", 408, -32_000, "how fast the body comes"),
        /// It exists already, or the change contradicts the present state.
        Conflict => ("conflict", 409, -32_000, "the control plane's"),
        /// The same idempotency key with a different body.
        IdempotencyConflict => ("idempotency_conflict", 409, -32_000, "the request's key and body"),
        /// The workspace was removed.
        WorkspaceRemoved => ("workspace_removed", 410, -32_000),
        /// The entry of an inbox to continue from does not exist, or was pruned.
        CursorGone => ("cursor_gone", 410, -32_000, "a reader's"),
        /// Over `limits.request_bytes`.
        BodyTooLarge => ("body_too_large", 413, -32_600, "the body"),
        /// Declared as another type than JSON, or encoded.
        UnsupportedMediaType => ("unsupported_media_type", 415, -32_005, "the request's Content-Type"),
        /// The route accepts only WebSocket.
        UpgradeRequired => ("upgrade_required", 426, -32_000, "the control plane's"),
        /// Too many requests of this caller, or too many rejected ones from this address.
        RateLimited => ("rate_limited", 429, -32_000),
        /// A cap of the configuration is reached.
        CapReached => ("cap_reached", 429, -32_000, "time: `caps::shown` compares the two"),
        /// A bug.
        Internal => ("internal", 500, -32_603, "a bug"),
        /// No connection to the agent; nothing was delivered.
        AgentUnreachable => ("agent_unreachable", 502, -32_000),
        /// The agent violated HTTP or broke off.
        AgentProtocolError => ("agent_protocol_error", 502, -32_000),
        /// The agent answered 3xx.
        AgentRedirected => ("agent_redirected", 502, -32_000, "the agent's answer"),
        /// The address policy forbids the address.
        AddressForbidden => ("address_forbidden", 502, -32_000),
        /// Over `limits.response_bytes`, or `limits.stream_bytes` in a stream.
        ResponseTooLarge => ("response_too_large", 502, -32_000, "the agent's answer"),
        /// The target cannot be reached now.
        WorkspaceOffline => ("workspace_offline", 503, -32_000),
        /// The target is starting.
        WorkspaceRestarting => ("workspace_restarting", 503, -32_000),
        /// The target's concurrency limit is reached.
        AgentBusy => ("agent_busy", 503, -32_000),
        /// A fact needed to decide safely cannot be read.
        StoreUnavailable => ("store_unavailable", 503, -32_000),
        /// A guard that must be asked gives no verdict.
        GuardUnavailable => ("guard_unavailable", 503, -32_000, "a guard, which is not asked"),
        /// A limit of the gateway itself.
        Overloaded => ("overloaded", 503, -32_000),
        /// The gateway is shutting down.
        ShuttingDown => ("shutting_down", 503, -32_000),
        /// `timeouts.connect`, `.head`, `.total` or `.stream` passed.
        AgentTimeout => ("agent_timeout", 504, -32_000, "the agent's pace"),
        /// `timeouts.idle` passed.
        AgentSilent => ("agent_silent", 504, -32_000, "the agent's pace"),
        /// The call passed too many gateways.
        LoopDetected => ("loop_detected", 508, -32_000, "the request's X-A2A-Hops"),
    }
}

impl Reason {
    /// Returns the HTTP status.
    pub const fn status(self) -> u16 {
        self.row().0
    }

    /// Returns the JSON-RPC error code.
    pub const fn rpc_code(self) -> i32 {
        self.row().1
    }
}

words! {
    /// Delivery of a request that was not answered. An idempotency key is released, and a deferred call is
    /// retried, only after [`Delivery::NotSent`].
    Delivery {
        /// No byte of the request reached the agent.
        NotSent => "false",
        /// The connection failed while the request was being sent, or the process that sent it ended.
        Unknown => "unknown",
        /// The agent got the whole request.
        Sent => "true",
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
    /// The stage that refused the message. `None`: none of them did.
    pub stage: Option<Stage>,
    /// Delivery to the agent, where it was possible.
    pub delivered: Option<Delivery>,
    /// Further facts for `metadata` (`clock`, `limit`) and, on other routes, top level.
    pub facts: Vec<(&'static str, String)>,
    /// A further member of the plain form that is no text: its name and value.
    pub list: Option<Box<(&'static str, Value)>>,
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
            stage: None,
            delivered: None,
            facts: Vec::new(),
            list: None,
            cause: None,
        }
    }

    /// Sets the stage that refused the message, unless it is set.
    #[must_use]
    pub fn at(mut self, stage: Stage) -> Self {
        self.stage.get_or_insert(stage);
        self
    }

    /// Sets the time to wait.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after.as_secs().max(1));
        self
    }

    /// Sets another JSON-RPC code than the reason's own.
    #[must_use]
    pub fn with_rpc_code(mut self, code: i32) -> Self {
        self.rpc_code = Some(code);
        self
    }

    /// Adds one fact.
    #[must_use]
    pub fn with_fact(mut self, name: &'static str, value: impl ToString) -> Self {
        self.facts.push((name, value.to_string()));
        self
    }

    /// Notes whether only the share of the caller is used up: others may have room.
    #[must_use]
    pub fn with_share(mut self, is_share: bool) -> Self {
        self.facts
            .extend(is_share.then(|| ("share", "caller".to_owned())));
        self
    }

    /// True if only the share of the caller is used up.
    pub fn is_share_exhausted(&self) -> bool {
        self.facts.iter().any(|(name, _)| *name == "share")
    }

    /// Adds a member of the plain form that is a list.
    #[must_use]
    pub fn with_list(mut self, name: &'static str, value: Vec<Value>) -> Self {
        self.list = Some(Box::new((name, value.into())));
        self
    }

    /// Sets the delivery to the agent.
    #[must_use]
    pub fn with_delivery(mut self, delivery: Delivery) -> Self {
        self.delivered = Some(delivery);
        self
    }

    /// Sets that the call was not delivered, unless its delivery is set.
    #[must_use]
    pub fn mark_not_sent(mut self) -> Self {
        self.delivered.get_or_insert(Delivery::NotSent);
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
        if self.commit_mark().is_some() {
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
        self.with_fact(COMMITTED, if partly { "partly" } else { "true" })
    }

    /// Returns the mark of [`Rejection::after_commit`].
    pub fn commit_mark(&self) -> Option<Value> {
        let said = self.facts.iter().find(|(name, _)| *name == COMMITTED);
        said.map(|(_, value)| fact_value(value))
    }

    /// Adds one response field.
    #[must_use]
    pub fn with_field(mut self, name: &'static str, value: impl ToString) -> Self {
        self.fields.push((name, value.to_string()));
        self
    }

    /// Sets the cause for the log.
    #[must_use]
    pub fn with_cause(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
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
            body.insert(name.into(), fact_value(value));
        }
        if let Some((name, list)) = self.list.as_deref() {
            body.insert((*name).into(), list.clone());
        }
        Value::Object(body).to_string()
    }
}

/// The fact that a change was made all the same.
pub const COMMITTED: &str = "committed";

/// Returns a fact as JSON: agents read `"reregister":true` (`docs/reference/http-api.md`, "`POST
/// /registry/heartbeat`").
fn fact_value(value: &str) -> Value {
    match value {
        "true" => Value::Bool(true),
        text => text.into(),
    }
}

/// The rejection of a request to the control plane, as a request extension: the route's handler must not run.
/// As the error of a body: the body is not read any further.
#[derive(Clone, Debug, thiserror::Error)]
#[error("refused: {}", .0.message)]
pub struct RejectedRequest(pub Rejection);

impl From<InvalidWorkspaceId> for Rejection {
    fn from(error: InvalidWorkspaceId) -> Self {
        Self::new(Reason::InvalidWorkspaceId, error.to_string())
    }
}

impl From<InvalidInstanceId> for Rejection {
    fn from(error: InvalidInstanceId) -> Self {
        Self::new(Reason::InvalidParams, format!("instance_id: {error}"))
    }
}

/// Names the stage at which a message is refused.
pub trait AtStage {
    /// Sets the stage of an error.
    #[must_use]
    fn at(self, stage: Stage) -> Self;
}

impl AtStage for Rejection {
    fn at(self, stage: Stage) -> Self {
        Self::at(self, stage)
    }
}

impl<T, E: AtStage> AtStage for Result<T, E> {
    fn at(self, stage: Stage) -> Self {
        self.map_err(|error| error.at(stage))
    }
}

/// The response of a route, with the rejection in its extensions: the control plane adds the id and the body.
impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.reason.status());
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.extensions_mut().insert(self);
        response
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
