//! The record of one exchange: filled while the exchange runs, and closed once, when it is dropped.
//!
//! Metrics, the access line and the audit record come from this one value, so they cannot disagree.
//! `Drop` closes it, because a caller may leave, a task may be cancelled and a bug may panic.

mod charge;
pub(in crate::proxy) mod trace;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::TraceId;
use serde_json::json;
use tokio::time::Instant;

use self::trace::Trace;
use crate::a2a::method::Method;
use crate::a2a::task::{Binding, TaskScan};
use crate::audit::{Audit, Draft, EventType};
use crate::caps::Charge;
use crate::config::{Config, Live};
use crate::console::{Console, ExchangeParties, ExchangeSummary, OpenStream};
use crate::dialect::{Dialect, ReplyForm};
use crate::events::{Event, Events, Kind};
use crate::hierarchy::Permit;
use crate::identity::{Allowance, Proof, may_be_credential};
use crate::ids::{InstanceId, RequestId, WorkspaceId, WorkspaceIncarnation};
use crate::metrics::{Metrics, Outcome, Shape};
use crate::proxy::guard::verdict::Verdicts;
use crate::proxy::outcome::{AbortCause, ExchangeOutcome};
use crate::proxy::translation::TranslationFields;
use crate::rejection::{Delivery, Reason, Rejection};
use crate::tasks::Learner;
use crate::telemetry::MaskedAddress;
use crate::trust::PairClaims;
use crate::workspace::Timestamp;

/// The rule that allowed an exchange.
pub(super) struct GrantingRule {
    /// The name of the rule.
    pub(super) rule: &'static str,
    /// The caller's org.
    pub(super) org: Option<String>,
    /// Time at which the callee's life began; 0: the first of its id.
    pub(super) born_at: i64,
}

/// The answer to the caller, as far as it was sent.
pub(super) struct AnswerRecord {
    /// The status; 0 before one is sent.
    pub(super) status: u16,
    /// The shape: unary or stream.
    shape: Shape,
    /// The time the agent took to answer.
    pub(super) head: Option<Duration>,
    /// Bytes of the body.
    pub(super) bytes: u64,
    /// Events.
    pub(super) events: u64,
}

/// The observers of an exchange, each if it is on.
#[derive(Default)]
struct Observers {
    /// The event bus that it is announced on.
    events: Option<Arc<Events>>,
    /// The audit log.
    audit: Option<Arc<Audit>>,
    /// The console that it is shown in.
    console: Option<Arc<Console>>,
    /// The entry among the open streams of the console.
    open_stream: Option<OpenStream>,
}

/// The record of one request and its response on an A2A route.
pub(super) struct Exchange {
    /// The metrics that count it.
    pub(super) metrics: Arc<Metrics>,
    /// The configuration at the start of the exchange. A reload does not change its clocks and bounds.
    pub(super) config: Arc<Config>,
    /// The time at which the request head was complete.
    pub(super) started: Instant,
    /// `X-Request-Id`.
    pub(super) request_id: RequestId,
    /// The JSON-RPC method, once the body was read.
    pub(super) method: Method,
    /// The request's JSON-RPC id, as spelled, once the body was read.
    pub(super) rpc_id: Option<String>,
    /// The format of the gateway's own answers.
    pub(super) dialect: Dialect,
    /// The proven caller, with its proof.
    pub(super) proof: Option<Arc<Proof>>,
    /// The proven caller at a sidecar.
    pub(super) pair: Option<PairClaims>,
    /// The remaining rate of the credential, if it has a limit.
    pub(super) allowance: Option<Allowance>,
    /// The workspace of the path, once its syntax was checked.
    pub(super) callee: Option<WorkspaceId>,
    /// The instance of the callee that gets the call, if it has several.
    pub(super) instance: Option<InstanceId>,
    /// The rule that allowed it, once the caller was permitted.
    pub(super) granted: Option<GrantingRule>,
    /// The answer to the caller.
    pub(super) answer: AnswerRecord,
    /// The observers that it is shown to.
    observers: Observers,
    /// Bytes of the request body.
    pub(super) request_bytes: u64,
    /// The client address, as far as it is recorded.
    client: Option<MaskedAddress>,
    /// The task of the exchange, once it is known.
    pub(super) task: Option<String>,
    /// The fields of an answer that is translated for the caller.
    pub(super) bridged: Option<TranslationFields>,
    /// The verdicts of guards; `None`: none are asked.
    pub(super) verdicts: Option<Arc<Verdicts>>,
    /// The binding of the caller's answer: where its result is.
    pub(super) binding: Binding,
    /// Searches the answer for the task, until the task and its state are found.
    pub(super) learner: Option<Box<Learner>>,
    /// The counts of the call for caps. It counts nothing if it is dropped before the call is sent.
    pub(super) charge: Option<Box<Charge>>,
    /// The span. `None` if the exchange is not traced.
    pub(super) trace: Option<Box<Trace>>,
    outcome: Option<Outcome>,
}

impl Exchange {
    /// Begins the record. From here on the exchange counts as open.
    pub(super) fn begin(
        metrics: &Arc<Metrics>,
        config: &Live,
        watchers: Option<&Arc<Events>>,
        request_id: RequestId,
    ) -> Self {
        metrics.open_exchanges.inc();
        Self {
            metrics: Arc::clone(metrics),
            config: config.snapshot(),
            started: Instant::now(),
            request_id,
            method: Method::Unread,
            rpc_id: None,
            dialect: Dialect::JsonRpc,
            proof: None,
            pair: None,
            allowance: None,
            callee: None,
            instance: None,
            granted: None,
            answer: AnswerRecord {
                status: 0,
                shape: Shape::Unary,
                head: None,
                bytes: 0,
                events: 0,
            },
            observers: Observers {
                events: watchers.map(Arc::clone),
                ..Observers::default()
            },
            request_bytes: 0,
            client: None,
            task: None,
            bridged: None,
            verdicts: None,
            binding: Binding::Rpc,
            learner: None,
            charge: None,
            trace: None,
            outcome: None,
        }
    }

    /// Returns the format of the gateway's own answer.
    pub(super) fn reply_form(&self) -> ReplyForm {
        ReplyForm {
            dialect: self.dialect,
            rpc_id: self.rpc_id.clone(),
        }
    }

    /// Sets the audit log.
    pub(super) fn with_audit(mut self, audit: &Arc<Audit>) -> Self {
        self.observers.audit = audit.is_on().then(|| Arc::clone(audit));
        self
    }

    /// Sets the console.
    pub(super) fn with_console(mut self, console: &Arc<Console>) -> Self {
        self.observers.console = Some(Arc::clone(console));
        self
    }

    /// Records that the answer is a stream.
    pub(super) fn record_stream(&mut self) {
        self.answer.shape = Shape::Stream;
        if let (Some(console), Some(callee)) = (&self.observers.console, &self.callee) {
            self.observers.open_stream = Some(console.open_stream(callee));
        }
    }

    /// Records the outcome. An outer error is still to be sent to the caller.
    pub(super) fn record_outcome(
        &mut self,
        ended: Result<ExchangeOutcome, ExchangeOutcome>,
    ) -> Result<Result<(), AbortCause>, Rejection> {
        match ended.unwrap_or_else(|ended| ended) {
            ExchangeOutcome::Answered => {
                self.outcome.get_or_insert(Outcome::Answered);
                Ok(Ok(()))
            }
            ExchangeOutcome::CallerLeft => {
                self.outcome.get_or_insert(Outcome::CallerLeft);
                Ok(Err(AbortCause::CallerLeft))
            }
            ExchangeOutcome::BrokenOff(rejection) => {
                self.record_rejection(&rejection);
                Ok(Err(AbortCause::Ours))
            }
            ExchangeOutcome::Refused(rejection) => Err(rejection),
        }
    }

    /// Starts to search the answer for the state of its task, if its method returns one.
    pub(super) fn watch_state(&mut self, binding: Binding) {
        let asks = matches!(self.method, Method::GetTask | Method::CancelTask);
        if asks || self.method.sends() {
            self.learner = Some(Box::new(Learner::for_state(binding)));
        }
    }

    /// Searches a piece of a unary answer for the task.
    pub(super) async fn search_task(&mut self, piece: &[u8]) {
        let found = search_answer(&mut self.learner, &self.metrics, piece).await;
        if found.is_some() {
            self.task = found;
        }
    }

    /// Searches for the task in an answer that another component has already parsed.
    pub(super) fn record_task(&mut self, find: impl FnOnce(&mut TaskScan) -> Option<String>) {
        if self.observers.audit.is_some() && self.task.is_none() && self.method.sends() {
            self.task = find(&mut TaskScan::new(self.binding));
        }
    }

    /// Records that the gateway rejected the request, or cut the answer. The first reason stays.
    pub(super) fn record_rejection(&mut self, rejection: &Rejection) {
        if self.outcome.is_none() {
            self.outcome = Some(Outcome::Rejected(rejection.reason));
            if let (Some(charge), Some(Delivery::NotSent)) = (&mut self.charge, rejection.delivered)
            {
                charge.not_sent();
            }
            self.trace_refusal(rejection);
            log_cause(rejection, &self.request_id);
        }
    }
}

impl Exchange {
    /// Records the rule that allowed the exchange.
    pub(super) fn record_permit(&mut self, permit: &Permit) {
        self.granted = Some(GrantingRule {
            rule: permit.rule().as_str(),
            org: permit.org().map(str::to_owned),
            born_at: permit.life().born_at,
        });
    }

    /// Returns the life of the callee that the exchange is with.
    pub(super) fn life(&self) -> Option<WorkspaceIncarnation> {
        let born_at = self.granted.as_ref().map_or(0, |granted| granted.born_at);
        let id = self.callee.clone()?;
        Some(WorkspaceIncarnation { id, born_at })
    }

    /// Returns the generations between which the call was translated.
    fn translation(&self) -> Option<&'static str> {
        self.bridged.map(|bridged| bridged.label)
    }

    fn rule(&self) -> Option<&'static str> {
        self.granted.as_ref().map(|granted| granted.rule)
    }

    /// Sets the client address.
    pub(super) fn with_client(mut self, client: IpAddr) -> Self {
        self.client = MaskedAddress::mask(client, self.config.audit.client_address);
        self
    }

    /// Returns the caller as records name it.
    pub(super) fn caller(&self) -> Option<&dyn fmt::Display> {
        match (&self.proof, &self.pair) {
            (Some(proof), _) => Some(&proof.principal),
            (None, Some(claims)) => Some(&claims.sub),
            (None, None) => None,
        }
    }

    /// Returns the requested workspace as records name it. An id that may be a misplaced credential is omitted until a
    /// rule confirms that it is a workspace.
    pub(super) fn named_callee(&self) -> Option<&WorkspaceId> {
        let named = |id: &&WorkspaceId| self.rule().is_some() || !may_be_credential(id.as_str());
        self.callee.as_ref().filter(named)
    }

    /// Announces the exchange to subscribers of the target: kind, outcome and duration, never content. Requests that
    /// were not admitted are not announced, so that a stranger cannot flood subscribers.
    fn publish_event(&self, outcome: Outcome, elapsed: Duration) {
        let told = self
            .observers
            .events
            .as_ref()
            .filter(|events| events.has_readers());
        let (Some(events), Some(callee), Some(_)) = (told, &self.callee, self.rule()) else {
            return;
        };
        let payload = json!({
            "method": self.method.label(),
            "outcome": outcome.as_str(),
            "duration_ms": u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        });
        events.publish(Event::new(Kind::A2aResponse, callee, payload));
    }
}

impl Exchange {
    /// Shows the exchange in the console.
    fn show_in_console(&self, outcome: Outcome, elapsed: Duration) {
        let Some(console) = &self.observers.console else {
            return;
        };
        let refused = matches!(outcome, Outcome::Rejected(_));
        let target = self.named_callee();
        let caller = self.proof.as_ref();
        let ends = ExchangeParties {
            caller: caller.and_then(|proof| proof.principal.workspace()),
            target,
        };
        console.count_exchange(ends, refused, || ExchangeSummary {
            id: self.request_id.as_str().to_owned(),
            at: Timestamp::now().0,
            caller: self.caller().map(ToString::to_string),
            target: target.map(|id| id.as_str().to_owned()),
            method: self.method.label().to_owned(),
            rule: self.rule().map(str::to_owned),
            outcome: outcome.as_str().to_owned(),
            refused,
            status: self.answer.status,
            ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            stream: self.answer.shape == Shape::Stream,
            bridged: self.translation().map(str::to_owned),
        });
    }

    /// Writes the audit record: caller, callee, rule and outcome.
    fn write_audit(&mut self, outcome: Outcome, elapsed: Duration, trace_id: Option<TraceId>) {
        let Some(audit) = self.observers.audit.take() else {
            return;
        };
        let (rule, target) = (self.rule(), self.named_callee().cloned());
        let org = self.granted.take().and_then(|granted| granted.org);
        let shows = self.answer.shape == Shape::Stream || !matches!(outcome, Outcome::Rejected(_));
        let proof = self.proof.as_deref();
        let looks = shows && self.method.returns_content();
        let looks = looks && proof.is_some_and(Proof::sees_all_content);
        let call = Draft {
            request_id: Some(self.request_id.clone()),
            trace_id,
            proof: self.proof.take(),
            client: self.client,
            target,
            org,
            rule,
            method: Some(self.method.label()),
            outcome: outcome.as_str(),
            status: self.answer.status,
            request_bytes: self.request_bytes,
            response_bytes: self.answer.bytes,
            duration_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            task_id: self.task.take(),
            bridged: self.translation(),
            detail: self.verdicts.as_ref().and_then(|given| given.close()),
            ..Draft::new(EventType::A2aCall)
        };
        if looks {
            audit.record(Draft {
                event_type: EventType::ContentRead,
                ..call.clone()
            });
        }
        audit.record(call);
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
        metrics.record_exchange((self.method, outcome, self.answer.shape), elapsed, recorded);
        metrics.request_bytes.inc_by(self.request_bytes);
        metrics.response_bytes.inc_by(self.answer.bytes);
        metrics.events.inc_by(self.answer.events);
        if let Some(head) = self.answer.head {
            metrics.record_head_time(self.answer.shape, head, recorded);
        }
        self.settle_charge(outcome);
        self.publish_event(outcome, elapsed);
        self.show_in_console(outcome, elapsed);
        let trace_id = self.trace_id();
        self.end_trace(outcome);
        tracing::info!(
            target: "access",
            {
            exchange.id = self.request_id.as_str(),
            trace_id = trace_id.map(tracing::field::display),
            caller = self.caller().map(tracing::field::display),
            credential.kind = self.proof.as_ref().map(|p| p.kind.as_str()),
            client_address = self.client.map(tracing::field::display),
            credential.prefix = self.proof.as_ref().map(|p| p.prefix.as_str()),
            callee = self.named_callee().map(WorkspaceId::as_str),
            instance = self.instance.as_ref().map(InstanceId::as_str),
            rule = self.rule(),
            method = self.method.label(),
            bridged = self.translation(),
            guards = self.verdicts.as_ref().and_then(|given| given.access_line()),
            outcome = outcome.as_str(),
            status = self.answer.status,
            request_bytes = self.request_bytes,
            response_bytes = self.answer.bytes,
            events = self.answer.events,
            duration_ms = elapsed.as_secs_f64() * 1000.0
            },
            "A2A exchange ended"
        );
        self.write_audit(outcome, elapsed, trace_id);
        // Last: an observer that sees no open exchange finds all of them counted and recorded.
        self.metrics.open_exchanges.dec();
    }
}

/// Searches a piece of a unary answer for the task and its state. Returns the task once it is found.
pub(super) async fn search_answer(
    learner: &mut Option<Box<Learner>>,
    metrics: &Metrics,
    piece: &[u8],
) -> Option<String> {
    let looking = learner.as_mut()?;
    let task = looking.push(piece);
    let state = looking.take_state();
    if let Some(state) = state {
        metrics.tasks.count_state(state);
    }
    if task.is_some() || looking.has_more_to_learn(state) {
        // Boxed: rarely taken.
        Box::pin(looking.record_task(task.as_deref(), state)).await;
    }
    if looking.is_over() {
        *learner = None;
    }
    task
}

/// Logs the cause of a rejection, once, where it is known. Errors of the caller are logged at debug level only: any
/// caller could otherwise fill the log.
pub(super) fn log_cause(rejection: &Rejection, request_id: &RequestId) {
    let Some(cause) = &rejection.cause else {
        return;
    };
    let (id, reason) = (request_id.as_str(), rejection.reason.as_str());
    let error = crate::telemetry::Chain(cause.as_ref());
    match rejection.reason.status() {
        500 => tracing::error!(exchange.id = id, %error, "exchange ended by a bug"),
        501.. => tracing::warn!(exchange.id = id, reason, %error, "An exchange was refused"),
        _ => tracing::debug!(exchange.id = id, reason, %error, "An exchange was refused"),
    }
}
