//! The record of one exchange: filled on the way, closed once, when it is dropped.
//!
//! Metrics, the access line and the audit outcome come from this one value, so they can't disagree.
//! A `Drop` closes it, because a caller may leave, a task may be cancelled and a bug may panic.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::TraceId;
use serde_json::json;
use tokio::time::Instant;

use super::ended::Ended;
use super::listener::BrokenOff;
use super::relay::Relay;
use super::trace::Trace;
use crate::a2a::method::Method;
use crate::a2a::task::{Binding, TaskScan};
use crate::audit::{Audit, Draft, EventType};
use crate::config::Config;
use crate::console::{Console, Ends, OpenStream, Passed};
use crate::dialect::{Dialect, ReplyForm};
use crate::events::{Event, Events, Kind};
use crate::identity::{Allowance, Proof, may_be_credential};
use crate::ids::{RequestId, WorkspaceId};
use crate::metrics::{Metrics, Outcome, Shape};
use crate::rejection::{Reason, Rejection};
use crate::tasks::Learner;
use crate::telemetry::ShownAddress;
use crate::trust::PairClaims;
use crate::workspace::Timestamp;

/// One request and its response on an A2A route, as it is left behind.
pub(super) struct Exchange {
    /// Where it is counted.
    pub(super) metrics: Arc<Metrics>,
    /// Where it is told of, if anybody may watch.
    watchers: Option<Arc<Events>>,
    /// As it was when the exchange began: its clocks and bounds are not moved under it.
    pub(super) config: Arc<Config>,
    /// When the request head had been read.
    pub(super) started: Instant,
    /// `X-Request-Id`.
    pub(super) request_id: RequestId,
    /// The JSON-RPC method, once the body was read.
    pub(super) method: Method,
    /// The request's own JSON-RPC id, as it was spelled, once the body was read.
    pub(super) rpc_id: Option<String>,
    /// In which form the gateway answers it itself.
    pub(super) dialect: Dialect,
    /// Who asks, and what proved it.
    pub(super) proof: Option<Arc<Proof>>,
    /// The same at a sidecar.
    pub(super) pair: Option<PairClaims>,
    /// What the credential may still ask for, if it has a limit.
    pub(super) allowance: Option<Allowance>,
    /// The workspace of the path, once its form was checked.
    pub(super) callee: Option<WorkspaceId>,
    /// The rule that let it pass.
    pub(super) rule: Option<&'static str>,
    /// The status that went to the caller; 0 while none did.
    pub(super) status: u16,
    /// Bytes of the request body.
    pub(super) request_bytes: u64,
    /// Bytes of the response body that went to the caller.
    pub(super) response_bytes: u64,
    /// Events that went to the caller.
    pub(super) events: u64,
    /// Whether the response was a stream.
    pub(super) shape: Shape,
    /// How long the agent took to answer.
    pub(super) head: Option<Duration>,
    /// Where it came from, as far as that is written down.
    client: Option<ShownAddress>,
    /// Where it is written down.
    audit: Option<Arc<Audit>>,
    /// Where it is shown.
    console: Option<Arc<Console>>,
    /// Its place among the open streams that are shown.
    open_stream: Option<OpenStream>,
    /// The caller's org, once it was let pass.
    pub(super) org: Option<String>,
    /// The task that it is about, once it is known.
    pub(super) task: Option<String>,
    /// Where the answer that its caller gets has its result.
    pub(super) binding: Binding,
    /// Looks for the task in the answer, until it is found with its state.
    pub(super) learner: Option<Box<Learner>>,
    /// Its place in its trace. `None`: nothing is traced.
    pub(super) trace: Option<Box<Trace>>,
    outcome: Option<Outcome>,
}

impl Exchange {
    /// Begins the record: from here on the exchange counts as open.
    pub(super) fn begin(
        relay: &Relay,
        watchers: Option<&Arc<Events>>,
        request_id: RequestId,
    ) -> Self {
        relay.metrics.open_exchanges.inc();
        Self {
            metrics: Arc::clone(&relay.metrics),
            watchers: watchers.map(Arc::clone),
            config: relay.config.hold(),
            started: Instant::now(),
            request_id,
            method: Method::Unread,
            rpc_id: None,
            dialect: Dialect::JsonRpc,
            proof: None,
            pair: None,
            allowance: None,
            callee: None,
            rule: None,
            status: 0,
            request_bytes: 0,
            response_bytes: 0,
            events: 0,
            shape: Shape::Unary,
            head: None,
            client: None,
            audit: None,
            console: None,
            open_stream: None,
            org: None,
            task: None,
            binding: Binding::Rpc,
            learner: None,
            trace: None,
            outcome: None,
        }
    }

    /// The form of the gateway's own answer.
    pub(super) fn form(&self) -> ReplyForm {
        ReplyForm {
            dialect: self.dialect,
            rpc_id: self.rpc_id.clone(),
        }
    }

    /// Has it written down.
    pub(super) fn audited(mut self, audit: &Arc<Audit>) -> Self {
        self.audit = audit.is_on().then(|| Arc::clone(audit));
        self
    }

    /// Has it shown to operators who look.
    pub(super) fn shown(mut self, console: &Arc<Console>) -> Self {
        self.console = Some(Arc::clone(console));
        self
    }

    /// Notes that the answer is a stream.
    pub(super) fn streams(&mut self) {
        self.shape = Shape::Stream;
        if let (Some(console), Some(callee)) = (&self.console, &self.callee) {
            self.open_stream = Some(console.stream(callee));
        }
    }

    /// Notes how it ended. What is in the outer error is still to be told to the caller.
    pub(super) fn ended(
        &mut self,
        ended: Result<Ended, Ended>,
    ) -> Result<Result<(), BrokenOff>, Rejection> {
        match ended.unwrap_or_else(|ended| ended) {
            Ended::Answered => {
                self.outcome.get_or_insert(Outcome::Answered);
                Ok(Ok(()))
            }
            Ended::CallerLeft => {
                self.outcome.get_or_insert(Outcome::CallerLeft);
                Ok(Err(BrokenOff::CallerLeft))
            }
            Ended::BrokenOff(rejection) => {
                self.rejected(&rejection);
                Ok(Err(BrokenOff::Ours))
            }
            Ended::Refused(rejection) => Err(rejection),
        }
    }

    /// Has the answer looked at for where its task stands, if it is one that says so.
    pub(super) fn watch_state(&mut self, binding: Binding) {
        let asks = matches!(self.method, Method::GetTask | Method::CancelTask);
        if asks || self.method.sends() {
            self.learner = Some(Box::new(Learner::of_state(binding)));
        }
    }

    /// Looks for the task in a piece of an answer in one body.
    pub(super) async fn look_at(&mut self, piece: &[u8]) {
        let found = look_at(&mut self.learner, &self.metrics, piece).await;
        if found.is_some() {
            self.task = found;
        }
    }

    /// Looks for the task in an answer that somebody else has learnt from.
    pub(super) fn note_task(&mut self, find: impl FnOnce(&mut TaskScan) -> Option<String>) {
        if self.audit.is_some() && self.task.is_none() && self.method.sends() {
            self.task = find(&mut TaskScan::new(self.binding));
        }
    }

    /// The gateway refused, or cut the answer. The first reason stays.
    pub(super) fn rejected(&mut self, rejection: &Rejection) {
        if self.outcome.is_none() {
            self.outcome = Some(Outcome::Rejected(rejection.reason));
            self.trace_refusal(rejection);
            log_cause(rejection, &self.request_id);
        }
    }
}

impl Exchange {
    /// The same with where it came from.
    pub(super) fn by_client(mut self, client: IpAddr) -> Self {
        self.client = ShownAddress::of(client, self.config.audit.client_address);
        self
    }

    /// Who asks, as records name them.
    pub(super) fn caller(&self) -> Option<&dyn fmt::Display> {
        match (&self.proof, &self.pair) {
            (Some(proof), _) => Some(&proof.principal),
            (None, Some(claims)) => Some(&claims.sub),
            (None, None) => None,
        }
    }

    /// The workspace that was asked for, as records name it. Not what may be a credential in a wrong place, until
    /// a rule says that it is a workspace.
    pub(super) fn named_callee(&self) -> Option<&WorkspaceId> {
        let named = |id: &&WorkspaceId| self.rule.is_some() || !may_be_credential(id.as_str());
        self.callee.as_ref().filter(named)
    }

    /// Tells those who watch the target: what, how it ended and how long it took, never content. Of
    /// what was not admitted nobody hears, so that a stranger cannot make a noise.
    fn tell(&self, outcome: Outcome, elapsed: Duration) {
        let told = self.watchers.as_ref().filter(|events| events.heard());
        let (Some(events), Some(callee), Some(_)) = (told, &self.callee, self.rule) else {
            return;
        };
        let payload = json!({
            "method": self.method.label(),
            "outcome": outcome.word(),
            "duration_ms": u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        });
        events.tell(Event::new(Kind::A2aResponse, callee, payload));
    }
}

impl Exchange {
    /// Shows it to operators who look.
    fn show(&self, outcome: Outcome, elapsed: Duration) {
        let Some(console) = &self.console else {
            return;
        };
        let refused = matches!(outcome, Outcome::Rejected(_));
        let target = self.named_callee();
        let caller = self.proof.as_ref();
        let ends = Ends {
            caller: caller.and_then(|proof| proof.principal.workspace()),
            target,
        };
        console.count(ends, refused, || Passed {
            id: self.request_id.as_str().to_owned(),
            at: Timestamp::now().0,
            caller: self.caller().map(ToString::to_string),
            target: target.map(|id| id.as_str().to_owned()),
            method: self.method.label().to_owned(),
            rule: self.rule.map(str::to_owned),
            outcome: outcome.word().to_owned(),
            refused,
            status: self.status,
            ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            stream: self.shape == Shape::Stream,
        });
    }

    /// Writes down who called whom, by which rule, and what came of it.
    fn write_down(&mut self, outcome: Outcome, elapsed: Duration, trace_id: Option<TraceId>) {
        let Some(audit) = self.audit.take() else {
            return;
        };
        let org = self.org.take();
        audit.record(Draft {
            request_id: Some(self.request_id.clone()),
            trace_id,
            proof: self.proof.take(),
            client: self.client,
            target: self.named_callee().cloned(),
            org,
            rule: self.rule,
            method: Some(self.method.label()),
            outcome: outcome.word(),
            status: self.status,
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
            duration_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            task_id: self.task.take(),
            ..Draft::new(EventType::A2aCall)
        });
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let outcome = self.outcome.unwrap_or(if std::thread::panicking() {
            Outcome::Rejected(Reason::Internal)
        } else {
            Outcome::CallerLeft
        });
        let metrics = &self.metrics;
        let elapsed = self.started.elapsed();
        let recorded = self.recorded_trace();
        metrics.exchange((self.method, outcome, self.shape), elapsed, recorded);
        metrics.request_bytes.inc_by(self.request_bytes);
        metrics.response_bytes.inc_by(self.response_bytes);
        metrics.events.inc_by(self.events);
        if let Some(head) = self.head {
            metrics.head(self.shape, head, recorded);
        }
        self.tell(outcome, elapsed);
        self.show(outcome, elapsed);
        let trace_id = self.trace_id();
        self.end_trace(outcome);
        tracing::info!(
            target: "access",
            {
            exchange.id = self.request_id.as_str(),
            trace_id = trace_id.map(tracing::field::display),
            caller = self.caller().map(tracing::field::display),
            credential.kind = self.proof.as_ref().map(|p| p.kind.word()),
            client_address = self.client.map(tracing::field::display),
            credential.prefix = self.proof.as_ref().map(|p| p.prefix.as_str()),
            callee = self.named_callee().map(WorkspaceId::as_str),
            rule = self.rule,
            method = self.method.label(),
            outcome = outcome.word(),
            status = self.status,
            request_bytes = self.request_bytes,
            response_bytes = self.response_bytes,
            events = self.events,
            duration_ms = elapsed.as_secs_f64() * 1000.0
            },
            "A2A exchange ended"
        );
        self.write_down(outcome, elapsed, trace_id);
        // The last: who sees that nothing is open finds all of it counted and written down.
        self.metrics.open_exchanges.dec();
    }
}

/// Looks for the task, and where it stands, in a piece of an answer in one body. The task, once it is
/// found.
pub(super) async fn look_at(
    learner: &mut Option<Box<Learner>>,
    metrics: &Metrics,
    piece: &[u8],
) -> Option<String> {
    let looking = learner.as_mut()?;
    let task = looking.look_at(piece);
    if let Some(state) = looking.take_state() {
        metrics.tasks.seen(state);
    }
    if let Some(task) = &task {
        // Boxed: once in an exchange, and it would widen every one's future.
        Box::pin(looking.learn(task.clone())).await;
    }
    if looking.is_over() {
        *learner = None;
    }
    task
}

/// Logs what stands behind a refusal, once, where it is known. What a caller brings on itself is not
/// for an operator's eyes: anyone could fill the log with it.
pub(super) fn log_cause(rejection: &Rejection, request_id: &RequestId) {
    let Some(cause) = &rejection.cause else {
        return;
    };
    let (id, reason) = (request_id.as_str(), rejection.reason.word());
    let error = crate::telemetry::Chain(cause.as_ref());
    match rejection.reason.status() {
        500 => tracing::error!(exchange.id = id, %error, "A bug ended an exchange"),
        501.. => tracing::warn!(exchange.id = id, reason, %error, "An exchange was refused"),
        _ => tracing::debug!(exchange.id = id, reason, %error, "An exchange was refused"),
    }
}
