//! An exchange: what is known of the call, what is recorded of it, and how it ends.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use opentelemetry::TraceId;
use pingora::http::{RequestHeader, ResponseHeader};
use serde_json::json;
use tokio::time::Instant;

use crate::trace::{
    CallSpan, Callee, ExchangeOrigin, parent_context, push_agent, push_rpc, truncate_caller,
};
use a2a::Generation;
use a2a::bridge::{RequestedVersion, extensions_field, is_translated_version, parse_version};
use a2a::call_names::CallNames;
use a2a::method::Method;
use a2a::task::{Binding, TaskScan};
use access::caps::{Caps, Charge, Names};
use access::hierarchy::Permit;
use access::identity::{Allowance, Proof, SentChain, may_be_credential};
use access::workspace::Timestamp;
use assembly::console::{Console, ExchangeParties, ExchangeSummary, OpenStream};
use assembly::gateway::Gateway;
use audit::{Audit, ChainMembers, Detail, Draft, EventType, Verdicts};
use directory::events::{Event, Events, Kind};
use directory::tasks::Learner;
use directory::{CallOutcome, OwnTimeouts};
use http1::AbortCause;
use kernel::config::{Config, Live};
use kernel::dialect::{Dialect, ReplyForm};
use kernel::health::CallResult;
use kernel::ids::{InstanceId, RequestId, WorkspaceId, WorkspaceIncarnation};
use kernel::metrics::{AgentFailure, Metrics, Outcome, Shape};
use kernel::offload;
use kernel::rejection::{AtStage, Delivery, Reason, Rejection};
use kernel::stage::Stage;
use kernel::telemetry::MaskedAddress;
use kernel::telemetry::traces::attributes::{
    error_attribute, number_attribute, request_attributes, server_status, status_attribute,
    text_attribute, verb_name,
};
use kernel::telemetry::traces::{KeyValue, Parent, Span, SpanContext, SpanKind, Traces};
use kernel::time::to_millis;
use trust::PairClaims;

/// Boxes the future of a step that is rarely taken. An inline one would enlarge the future of every exchange, and its
/// type.
pub(super) fn box_cold_path<'f, F>(step: F) -> BoxFuture<'f, F::Output>
where
    F: Future + Send + 'f,
{
    Box::pin(step)
}

/// Boxes the future that `make` returns. It is made in its box: `Box::pin` makes it on the stack and copies all of it,
/// its states to come included.
pub(super) fn box_in_place<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}

/// The whole answer was sent.
pub(super) struct Answered;

/// The reasons why an exchange ends without a whole answer.
pub(super) enum ExchangeError {
    /// No byte of an answer was sent: the caller gets the rejection.
    Refused(Rejection),
    /// Part of the answer was sent. The connection must be aborted, so that the caller does not take the part for the
    /// whole.
    BrokenOff(Rejection),
    /// The caller left, and the call was cancelled.
    CallerLeft,
    /// The agent does not know the method in this generation of A2A, and so did not run the call. No byte of an answer
    /// was sent: the call goes once more in the other one, or else its caller gets this one. Only a first attempt ends
    /// so.
    NotRun(Box<WholeAnswer>),
}

/// An answer for a caller, in its form.
pub(super) type WholeAnswer = (ResponseHeader, Bytes);

impl ExchangeError {
    /// Returns the rejection of a call that the gateway makes by itself. No caller can leave it, so `left` is what
    /// stands for that: the end of its clock or of the process.
    pub(super) fn into_rejection(self, left: impl FnOnce() -> Rejection) -> Rejection {
        match self {
            Self::Refused(why) | Self::BrokenOff(why) => why,
            Self::CallerLeft | Self::NotRun(_) => left(),
        }
    }
}

impl From<Rejection> for ExchangeError {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(rejection)
    }
}

impl AtStage for ExchangeError {
    fn at(self, stage: Stage) -> Self {
        match self {
            ExchangeError::Refused(why) => ExchangeError::Refused(why.at(stage)),
            ended => ended,
        }
    }
}

/// The access that allowed an exchange.
struct GrantedAccess {
    /// The name of the rule.
    rule: &'static str,
    /// The caller's org.
    org: Option<String>,
    /// Time at which the callee's life began; 0: the first of its id.
    born_at: i64,
}

/// What is known of a call. Stages read it, and each adds what it proves; nothing is taken back.
pub(super) struct CallContext {
    /// The metrics that count the exchange.
    pub(super) metrics: Arc<Metrics>,
    /// The configuration at the start of the exchange. A reload does not change its clocks and bounds.
    pub(super) config: Arc<Config>,
    /// The time at which the request head was complete.
    pub(super) started: Instant,
    /// The time until which its caller waits, if that is before the gateway's clocks: of gRPC.
    pub(super) deadline: Option<Instant>,
    /// `X-Request-Id`.
    pub(super) request_id: RequestId,
    client: Option<MaskedAddress>,
    /// The method of A2A: [`Method::Unread`] until it is read.
    pub(super) method: Method,
    /// The request's JSON-RPC id, as spelled, once the body was read.
    pub(super) rpc_id: Option<String>,
    /// The format of the gateway's own answers.
    pub(super) dialect: Dialect,
    is_version_translated: bool,
    /// True if the caller says `A2A-Version: 1.0`.
    pub(super) declares_1_0: bool,
    /// The binding of the caller's answer: where its result is.
    pub(super) binding: Binding,
    /// The proven caller.
    pub(super) proof: Option<Arc<Proof>>,
    /// The proven caller at a sidecar.
    pub(super) pair: Option<Box<PairClaims>>,
    /// The root of the chain at a sidecar.
    pub(super) root: Option<String>,
    /// The remaining rate of the credential, if it has a limit.
    pub(super) allowance: Option<Allowance>,
    /// The workspace of the path, once its syntax was checked.
    pub(super) target: Option<WorkspaceId>,
    access: Option<GrantedAccess>,
    /// The fields of an answer that is translated for the caller.
    pub(super) translation: Option<TranslationFields>,
    /// The trace context for work that follows from the exchange without an immediate call.
    pub(super) trace: Option<SpanContext>,
    call_trace: Option<SpanContext>,
    /// The names by which calls belong together, once the body was read.
    pub(super) names: OnceLock<Box<Names>>,
    /// The chain token that the agent gets, once it is signed.
    pub(super) chain: OnceLock<Arc<SentChain>>,
}

impl CallContext {
    /// The life of the target that the exchange is with.
    pub(super) fn life(&self) -> Option<WorkspaceIncarnation> {
        let born_at = self.access.as_ref().map_or(0, |access| access.born_at);
        let id = self.target.clone()?;
        Some(WorkspaceIncarnation { id, born_at })
    }

    /// The trace context for the agent: that of the call, if there is one.
    pub(super) fn outgoing_trace(&self) -> Option<&SpanContext> {
        self.call_trace.as_ref().or(self.trace.as_ref())
    }

    /// Returns the names of a call with these headers and this body, which are read once.
    pub(super) async fn read_names(&self, headers: &HeaderMap, body: &Bytes) -> &Names {
        if let Some(names) = self.names.get() {
            return names;
        }
        let named = offload::run_on_body(body, CallNames::from_body).await;
        let trace = || parent_context(headers).map(|context| context.trace_id().to_string());
        self.names
            .get_or_init(|| Box::new(Names::from_message(named, trace)))
    }

    /// Returns its place in a chain of delegation, if it is in one.
    fn chain_members(&self) -> Option<Box<ChainMembers>> {
        let (proof, sent) = (self.proof.as_deref()?, self.chain.get());
        let handed = proof.chain();
        let (root, txn) = match (handed, sent) {
            (Some(chain), _) => (chain.root().to_owned(), chain.txn()),
            (None, Some(sent)) => (proof.principal.name().into_owned(), sent.txn()),
            (None, None) => return None,
        };
        Some(Box::new(ChainMembers {
            root,
            txn: txn.to_owned(),
            depth: handed.map_or(0, |chain| chain.depth()),
            link: handed.and_then(|chain| chain.link()).map(str::to_owned),
            sent: sent.map(|sent| sent.hash().to_owned()),
        }))
    }

    /// The format of the gateway's own answer.
    pub(super) fn reply_form(&self) -> ReplyForm {
        ReplyForm {
            dialect: self.dialect,
            rpc_id: self.rpc_id.clone(),
        }
    }

    /// Sets what the caller says in `A2A-Version`.
    pub(super) fn set_version(&mut self, version: &str) {
        self.is_version_translated = is_translated_version(version);
        self.declares_1_0 =
            parse_version(Some(version)) == RequestedVersion::Generation(Generation::V1);
        if self.declares_1_0 && self.dialect == Dialect::HttpJson {
            self.dialect = Dialect::HttpJsonStatus;
        }
    }

    /// Checks that the call can be translated from the version that it declares.
    ///
    /// # Errors
    /// `version_not_supported`.
    pub(super) fn check_version(&self) -> Result<(), Rejection> {
        if self.is_version_translated {
            return Ok(());
        }
        let message = "the agent does not speak this call, and it can be translated from A2A 0.3 and 1.0 only: \
                       send one of them in A2A-Version, or none";
        Err(Rejection::new(Reason::VersionNotSupported, message).mark_not_sent())
    }

    /// Sets the access of the caller to the target.
    pub(super) fn set_access(&mut self, permit: &Permit) {
        self.access = Some(GrantedAccess {
            rule: permit.rule().as_str(),
            org: permit.org().map(str::to_owned),
            born_at: permit.life().born_at,
        });
    }

    /// Sets the rule that allowed an exchange without a caller.
    pub(super) fn set_rule(&mut self, rule: &'static str) {
        self.access = Some(GrantedAccess {
            rule,
            org: None,
            born_at: 0,
        });
    }

    fn rule(&self) -> Option<&'static str> {
        self.access.as_ref().map(|access| access.rule)
    }

    /// Returns the caller as records name it.
    fn caller_name(&self) -> Option<&dyn fmt::Display> {
        match (&self.proof, &self.pair) {
            (Some(proof), _) => Some(&proof.principal),
            (None, Some(claims)) => Some(&claims.sub),
            (None, None) => None,
        }
    }

    /// Returns the requested workspace as records name it. An id that may be a misplaced credential is omitted until a
    /// rule confirms that it is a workspace.
    fn named_target(&self) -> Option<&WorkspaceId> {
        let named = |id: &&WorkspaceId| self.rule().is_some() || !may_be_credential(id.as_str());
        self.target.as_ref().filter(named)
    }
}

/// Observed rules that judge a call otherwise than those in force, and whether they would allow it.
#[derive(Default)]
struct ObservedRules(Vec<(String, bool)>);

/// What is recorded of an exchange. Stages only write it.
///
/// Metrics, the access line, the span and the audit record come from this one value, so they cannot disagree.
#[derive(Default)]
pub(super) struct Record {
    /// The status of the answer; 0 before one is sent.
    pub(super) status: u16,
    /// True if the answer is a stream.
    is_stream: bool,
    /// The time the agent took to answer.
    head: Option<Duration>,
    /// Bytes of the answer's body.
    response_bytes: u64,
    /// Events of the answer.
    events: u64,
    /// Bytes of the request body.
    pub(super) request_bytes: u64,
    /// The instance of the target that gets the call, if it has several.
    pub(super) instance: Option<InstanceId>,
    /// The task of the exchange, once it is known.
    pub(super) task: Option<String>,
    /// The verdicts of guards; `None`: none are asked.
    pub(super) verdicts: Option<Arc<Verdicts>>,
    /// The counts of the call for caps. It counts nothing if it is dropped before the call is sent.
    pub(super) charge: Option<Box<Charge>>,
    /// Rarely any.
    observed: Option<Box<ObservedRules>>,
    /// The span. `None` if the exchange is not traced.
    trace: Option<Box<Trace>>,
    /// The event bus that it is announced on, if it is.
    events_bus: Option<Arc<Events>>,
    /// The audit log, if it is on.
    audit: Option<Arc<Audit>>,
    /// The console that it is shown in, and its entry among the open streams there.
    console: Option<Arc<Console>>,
    open_stream: Option<OpenStream>,
    outcome: Option<Outcome>,
    /// The stage that refused the call.
    refused_at: Option<Stage>,
}

impl Record {
    /// Records bytes of the answer's body.
    pub(super) fn add_bytes(&mut self, bytes: usize) {
        self.response_bytes += bytes as u64;
    }

    /// Records bytes of the answer's body that were passed on, and counts them for caps.
    pub(super) fn add_passed_bytes(&mut self, bytes: usize) {
        self.add_bytes(bytes);
        if let Some(charge) = &mut self.charge {
            charge.record_bytes(self.request_bytes + self.response_bytes);
        }
    }

    /// Records events of the answer.
    pub(super) fn add_events(&mut self, events: u32) {
        self.events += u64::from(events);
    }

    /// Records a task that the call names, unless one is known.
    pub(super) fn name_task(&mut self, task: Option<&String>) {
        if self.task.is_none() {
            self.task = task.cloned();
        }
    }

    /// Records that the call is sent, or kept for its target: it counts for caps from here on.
    pub(super) fn mark_sent(&mut self) {
        if let Some(charge) = &mut self.charge {
            charge.mark_sent();
        }
    }

    /// As [`Record::mark_sent`], for a call whose answer shows its task to this exchange.
    pub(super) fn mark_sent_with_task(&mut self) {
        if let Some(charge) = &mut self.charge {
            charge.mark_sent();
            charge.shows_its_task();
        }
    }

    /// Counts an answer that is complete, before its caller gets the last `rest` bytes: the caller's next call finds
    /// the counts.
    pub(super) fn mark_complete(&mut self, rest: usize) {
        let Some(charge) = &mut self.charge else {
            return;
        };
        charge.record_bytes(self.request_bytes + self.response_bytes + rest as u64);
        if self.task.is_none() {
            charge.began_no_task();
        }
    }

    /// Records that the call is being sent.
    pub(super) fn start_call_span(&mut self) {
        if let Some(call) = self.call_span() {
            call.record_sent();
        }
    }

    /// Records the status of the agent's answer.
    pub(super) fn set_call_status(&mut self, status: StatusCode) {
        if let Some(call) = self.call_span() {
            call.record_status(status);
        }
    }

    fn call_span(&mut self) -> Option<&mut CallSpan> {
        self.trace.as_mut()?.call.as_deref_mut()
    }

    /// Takes the span of the call, which continues apart from the exchange.
    pub(super) fn detach_call_span(&mut self) -> Option<Box<CallSpan>> {
        self.trace.as_mut()?.call.take()
    }

    /// Records that an observed rule judges the call otherwise, once.
    pub(super) fn observe(&mut self, rule: String, allows: bool) {
        let rules = &mut self.observed.get_or_insert_default().0;
        if !rules.iter().any(|(known, _)| *known == rule) {
            rules.push((rule, allows));
        }
    }

    fn observed(&self) -> &[(String, bool)] {
        self.observed.as_deref().map_or(&[], |rules| &rules.0)
    }

    /// Ends the counts of the call for caps.
    fn settle_charge(&mut self, outcome: Outcome) {
        if let Some(mut charge) = self.charge.take() {
            charge.record_bytes(self.request_bytes + self.response_bytes);
            let answered = outcome == Outcome::Answered && !self.is_stream;
            if answered && self.task.is_none() {
                charge.began_no_task();
            }
            for cap in charge.take_observed() {
                self.observe(format!("cap:{cap}"), false);
            }
        }
    }
}

/// The trace data of an exchange. Its span ends with the exchange.
struct Trace {
    span: Span,
    origin: ExchangeOrigin,
    verb: http::Method,
    /// The JSON-RPC code of a rejection, if it differs from the reason's own.
    code: Option<i32>,
    /// The span of the call, until it continues apart from the exchange.
    call: Option<Box<CallSpan>>,
}

impl Trace {
    fn kind(&self) -> SpanKind {
        if self.origin.later {
            SpanKind::Consumer
        } else {
            SpanKind::Server
        }
    }

    /// Returns a name of low cardinality: the called method, or the pattern of the route.
    fn name(&self, method: Method) -> Cow<'static, str> {
        match (method.name(), self.origin.route) {
            (Some(name), _) if self.origin.later => format!("make {name}").into(),
            (Some(name), _) if self.origin.rpc => name.into(),
            (_, Some(route)) => format!("{} {route}", verb_name(&self.verb)).into(),
            (_, None) => verb_name(&self.verb).to_owned().into(),
        }
    }
}

/// One request and its response on an A2A route. It is recorded once, when it is dropped: a caller may leave, a task
/// may be cancelled and a bug may panic.
pub(super) struct Exchange {
    /// What is known of the call.
    pub(super) call: CallContext,
    /// What is recorded of it.
    pub(super) record: Record,
}

impl Exchange {
    /// Begins an exchange at a gateway. `is_announced`: to subscribers of its target.
    pub(super) fn begin_at(gateway: &Gateway, request_id: RequestId, is_announced: bool) -> Self {
        let mut exchange = Self::begin(&gateway.metrics, &gateway.config, request_id);
        let record = &mut exchange.record;
        record.events_bus = is_announced.then(|| Arc::clone(&gateway.events));
        record.audit = gateway.audit.is_on().then(|| Arc::clone(&gateway.audit));
        record.console = Some(Arc::clone(&gateway.console));
        exchange
    }

    /// Reads the names of a call with these headers and this body, if its record or caps need them.
    pub(super) async fn read_names(&self, headers: &HeaderMap, body: &Bytes) {
        if self.record.audit.is_some() || Caps::are_configured(&self.call.config) {
            self.call.read_names(headers, body).await;
        }
    }

    /// Begins an exchange without observers. From here on it counts as open.
    pub(super) fn begin(metrics: &Arc<Metrics>, config: &Live, request_id: RequestId) -> Self {
        metrics.open_exchanges.inc();
        let call = CallContext {
            metrics: Arc::clone(metrics),
            config: config.snapshot(),
            started: Instant::now(),
            deadline: None,
            request_id,
            client: None,
            method: Method::Unread,
            rpc_id: None,
            dialect: Dialect::JsonRpc,
            is_version_translated: true,
            declares_1_0: false,
            binding: Binding::Rpc,
            proof: None,
            pair: None,
            root: None,
            allowance: None,
            target: None,
            access: None,
            translation: None,
            trace: None,
            call_trace: None,
            names: OnceLock::new(),
            chain: OnceLock::new(),
        };
        let record = Record::default();
        Self { call, record }
    }

    /// Sets the client address.
    pub(super) fn with_client(mut self, client: IpAddr) -> Self {
        let masking = self.call.config.audit.client_address;
        self.call.client = MaskedAddress::mask(client, masking);
        self
    }

    /// Begins the span, as a child of the context in `head`. Does nothing while tracing is off.
    pub(super) fn begin_trace(
        &mut self,
        traces: &Traces,
        head: &RequestHeader,
        origin: impl FnOnce() -> ExchangeOrigin,
    ) {
        if !traces.is_on() {
            return;
        }
        let origin = origin();
        let whose = if origin.later {
            Parent::Ours
        } else {
            Parent::Callers
        };
        let settings = &self.call.config.telemetry;
        let span = traces.begin_span(settings, whose, || parent_context(&head.headers));
        self.call.trace = span.as_ref().map(|span| span.context().clone());
        self.record.trace = span.map(|span| {
            Box::new(Trace {
                span,
                origin,
                verb: head.method.clone(),
                code: None,
                call: None,
            })
        });
    }

    /// Begins the span of the call to the agent. Its id goes into the head of the request.
    pub(super) fn begin_call_span(&mut self, callee: &Callee<'_>) {
        if let Some(trace) = &mut self.record.trace {
            let target = self.call.target.as_ref();
            let call = CallSpan::new(&trace.span, callee, self.call.method, target);
            let context = call.context().unwrap_or(trace.span.context());
            self.call.call_trace = Some(context.clone());
            trace.call = Some(Box::new(call));
        }
    }

    /// Records the time that the agent took to answer.
    pub(super) fn record_head_time(&mut self) {
        self.record.head = Some(self.call.started.elapsed());
    }

    /// Records that the answer is a stream.
    pub(super) fn record_stream(&mut self) {
        self.record.is_stream = true;
        if let (Some(console), Some(target)) = (&self.record.console, &self.call.target) {
            self.record.open_stream = Some(console.open_stream(target));
        }
    }

    /// Records the outcome. An outer error is still to be sent to the caller.
    ///
    /// # Errors
    /// The rejection that the caller gets.
    pub(super) fn record_outcome(
        &mut self,
        ended: Result<Answered, ExchangeError>,
    ) -> Result<Result<(), AbortCause>, Rejection> {
        match ended {
            Ok(Answered) => {
                self.record.outcome.get_or_insert(Outcome::Answered);
                Ok(Ok(()))
            }
            Err(ExchangeError::CallerLeft | ExchangeError::NotRun(_)) => {
                self.record.outcome.get_or_insert(Outcome::CallerLeft);
                Ok(Err(AbortCause::CallerLeft))
            }
            Err(ExchangeError::BrokenOff(rejection)) => {
                self.record_rejection(&rejection);
                Ok(Err(AbortCause::Ours))
            }
            Err(ExchangeError::Refused(rejection)) => Err(rejection),
        }
    }

    /// Searches for the task in an answer that another component has already parsed.
    pub(super) fn record_task(&mut self, find: impl FnOnce(&mut TaskScan) -> Option<String>) {
        let record = &mut self.record;
        if record.audit.is_some() && record.task.is_none() && self.call.method.sends() {
            record.task = find(&mut TaskScan::new(self.call.binding));
        }
    }

    /// Records that the gateway rejected the request, or cut the answer. The first reason stays.
    pub(super) fn record_rejection(&mut self, rejection: &Rejection) {
        let record = &mut self.record;
        if record.outcome.is_none() {
            record.outcome = Some(Outcome::Rejected(rejection.reason));
            record.refused_at = rejection.stage;
            if let (Some(charge), Some(Delivery::NotSent)) =
                (&mut record.charge, rejection.delivered)
            {
                charge.not_sent();
            }
            if let Some(trace) = &mut record.trace {
                trace.code = rejection.rpc_code;
            }
            log_cause(rejection, &self.call.request_id);
        }
    }

    /// Announces the exchange to subscribers of the target: kind, outcome and duration, never content. Requests that
    /// were not admitted are not announced, so that a stranger cannot flood subscribers.
    fn publish_event(&self, outcome: Outcome, elapsed: Duration) {
        let events = self.record.events_bus.as_ref();
        let events = events.filter(|events| events.has_readers());
        let call = &self.call;
        let (Some(events), Some(target), Some(_)) = (events, &call.target, call.rule()) else {
            return;
        };
        let payload = json!({
            "method": call.method.label(),
            "outcome": outcome.as_str(),
            "duration_ms": to_millis(elapsed),
        });
        events.publish(Event::new(Kind::A2aResponse, target, payload));
    }

    /// Shows the exchange in the console.
    fn show_in_console(&self, outcome: Outcome, elapsed: Duration) {
        let (call, record) = (&self.call, &self.record);
        let Some(console) = &record.console else {
            return;
        };
        let refused = matches!(outcome, Outcome::Rejected(_));
        let target = call.named_target();
        let caller = call.proof.as_ref();
        let ends = ExchangeParties {
            caller: caller.and_then(|proof| proof.principal.workspace()),
            target,
        };
        console.count_exchange(ends, refused, || ExchangeSummary {
            id: call.request_id.as_str().to_owned(),
            at: Timestamp::now().0,
            caller: call.caller_name().map(ToString::to_string),
            target: target.map(|id| id.as_str().to_owned()),
            method: call.method.label().to_owned(),
            rule: call.rule().map(str::to_owned),
            outcome: outcome.as_str().to_owned(),
            result: Some(CallResult::of_call(outcome, record.status)),
            refused,
            status: record.status,
            ms: to_millis(elapsed),
            stream: record.is_stream,
            bridged: call.translation.map(|fields| fields.label.to_owned()),
        });
    }

    /// Ends the span and that of the call.
    fn end_trace(&mut self, outcome: Outcome) {
        let Some(mut trace) = self.record.trace.take() else {
            return;
        };
        if let (Some(call), Outcome::Rejected(reason)) = (&mut trace.call, outcome) {
            call.record_failure(reason);
        }
        drop(trace.call.take());
        if trace.span.is_recorded() {
            let attributes = self.span_attributes(&trace, outcome);
            let (kind, name) = (trace.kind(), trace.name(self.call.method));
            let status = server_status(self.record.status);
            trace.span.end(kind, name, attributes, status);
        }
    }

    fn span_attributes(&self, trace: &Trace, outcome: Outcome) -> Vec<KeyValue> {
        let (call, record) = (&self.call, &self.record);
        let method = call.method;
        let refused = match outcome {
            Outcome::Rejected(reason) => Some(reason),
            Outcome::Answered | Outcome::CallerLeft => None,
        };
        let mut set = Vec::with_capacity(24);
        if !trace.origin.later {
            let tls = call.config.server.tls.cert.is_some();
            set.extend(request_attributes(&trace.verb, tls));
            let route = trace.origin.route;
            set.extend(route.map(|route| KeyValue::new("http.route", route)));
        }
        if record.status > 0 {
            set.push(status_attribute(record.status));
        }
        if trace.origin.rpc {
            push_rpc(&mut set, method);
            if let Some(reason) = refused {
                let code = trace.code.unwrap_or_else(|| reason.rpc_code());
                set.push(text_attribute(
                    "rpc.response.status_code",
                    &code.to_string(),
                ));
            }
        }
        let callee = call.named_target();
        push_agent(&mut set, method, callee);
        set.extend(error_attribute(refused, record.status, 500));
        set.push(KeyValue::new("a2a.method", method.label()));
        set.push(KeyValue::new("a2a.outcome", outcome.as_str()));
        set.push(text_attribute("a2a.request_id", call.request_id.as_str()));
        if let Some(caller) = call.caller_name() {
            let caller = caller.to_string();
            set.push(text_attribute("a2a.caller", truncate_caller(&caller)));
        }
        set.extend(callee.map(|id| text_attribute("a2a.callee", id.as_str())));
        set.extend(call.rule().map(|rule| KeyValue::new("a2a.rule", rule)));
        let stage = record.refused_at;
        set.extend(stage.map(|stage| KeyValue::new("a2a.stage", stage.as_str())));
        let bridged = call.translation;
        set.extend(bridged.map(|fields| KeyValue::new("a2a.bridged", fields.label)));
        for (key, bytes) in [
            ("http.request.body.size", record.request_bytes),
            ("http.response.body.size", record.response_bytes),
        ] {
            set.push(number_attribute(key, bytes));
        }
        if record.is_stream {
            set.push(number_attribute("a2a.events", record.events));
        }
        set
    }

    /// Writes the audit record: caller, callee, rule and outcome.
    fn write_audit(&mut self, outcome: Outcome, elapsed: Duration, trace_id: Option<TraceId>) {
        let (call, record) = (&mut self.call, &mut self.record);
        let Some(audit) = record.audit.take() else {
            return;
        };
        let (rule, target) = (call.rule(), call.named_target().cloned());
        let org = call.access.take().and_then(|access| access.org);
        let shows = record.is_stream || !matches!(outcome, Outcome::Rejected(_));
        let proof = call.proof.as_deref();
        let looks = shows && call.method.returns_content();
        let looks = looks && proof.is_some_and(Proof::sees_all_content);
        let verdicts = record.verdicts.as_ref().and_then(|given| given.close());
        let on_chain = call.chain_members();
        let names = *call.names.take().unwrap_or_default();
        let draft = Draft {
            request_id: Some(call.request_id.clone()),
            trace_id,
            proof: call.proof.take(),
            client: call.client,
            target,
            org,
            rule,
            method: Some(call.method.label()),
            outcome: outcome.as_str(),
            status: record.status,
            request_bytes: record.request_bytes,
            response_bytes: record.response_bytes,
            duration_ms: to_millis(elapsed),
            task_id: record.task.take(),
            run: names.run,
            context: names.context,
            on_chain,
            bridged: call.translation.map(|fields| fields.label),
            detail: with_observed(with_stage(verdicts, record.refused_at), record.observed()),
            ..Draft::new(EventType::A2aCall)
        };
        if looks {
            audit.record(Draft {
                event_type: EventType::ContentRead,
                ..draft.clone()
            });
        }
        audit.record(draft);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let outcome = self.record.outcome.unwrap_or(if std::thread::panicking() {
            Outcome::Rejected(Reason::Internal)
        } else {
            Outcome::CallerLeft
        });
        let (call, record) = (&self.call, &self.record);
        let elapsed = call.started.elapsed();
        let trace = record.trace.as_ref();
        let trace_id = trace.map(|trace| trace.span.trace_id());
        let recorded = trace_id.filter(|_| trace.is_some_and(|trace| trace.span.is_recorded()));
        let metrics = &call.metrics;
        let shape = match record.is_stream {
            true => Shape::Stream,
            false => Shape::Unary,
        };
        metrics.record_exchange((call.method, outcome, shape), elapsed, recorded);
        metrics.call_results[CallResult::of_call(outcome, record.status)].inc();
        metrics.request_bytes.inc_by(record.request_bytes);
        metrics.response_bytes.inc_by(record.response_bytes);
        metrics.events.inc_by(record.events);
        if let Some(head) = record.head {
            metrics.record_head_time(shape, head, recorded);
        }
        self.record.settle_charge(outcome);
        let differs = &self.call.metrics.caps.differs;
        for (rule, allows) in self.record.observed() {
            differs.with_label_values(&[rule, would(*allows)]).inc();
        }
        self.publish_event(outcome, elapsed);
        self.show_in_console(outcome, elapsed);
        self.end_trace(outcome);
        let (call, record) = (&self.call, &self.record);
        tracing::info!(
            target: "access",
            {
            exchange.id = call.request_id.as_str(),
            trace_id = trace_id.map(tracing::field::display),
            caller = call.caller_name().map(tracing::field::display),
            credential.kind = call.proof.as_ref().map(|p| p.kind.as_str()),
            client_address = call.client.map(tracing::field::display),
            credential.prefix = call.proof.as_ref().map(|p| p.prefix.as_str()),
            callee = call.named_target().map(WorkspaceId::as_str),
            instance = record.instance.as_ref().map(InstanceId::as_str),
            rule = call.rule(),
            method = call.method.label(),
            bridged = call.translation.map(|fields| fields.label),
            guards = record.verdicts.as_ref().and_then(|given| given.access_line()),
            outcome = outcome.as_str(),
            status = record.status,
            request_bytes = record.request_bytes,
            response_bytes = record.response_bytes,
            events = record.events,
            duration_ms = elapsed.as_secs_f64() * 1000.0
            },
            "A2A exchange ended"
        );
        self.write_audit(outcome, elapsed, trace_id);
        // Last: an observer that sees no open exchange finds all of them counted and recorded.
        self.call.metrics.open_exchanges.dec();
    }
}

/// Adds the stage that refused a call to the detail of its audit record.
fn with_stage(detail: Option<Detail>, stage: Option<Stage>) -> Option<Detail> {
    match stage {
        None => detail,
        Some(stage) => Some(match detail {
            None => Detail::from_canonical(format!(r#"{{"stage":"{}"}}"#, stage.as_str())),
            Some(detail) => detail.with_member("stage", stage.as_str().into()),
        }),
    }
}

/// Returns what an observed rule would do with a call.
const fn would(allows: bool) -> &'static str {
    if allows { "allow" } else { "refuse" }
}

/// Adds the observed rules that judge a call otherwise to the detail of its audit record.
fn with_observed(detail: Option<Detail>, observed: &[(String, bool)]) -> Option<Detail> {
    if observed.is_empty() {
        return detail;
    }
    let told = observed.iter();
    let told = told.map(|(rule, allows)| json!({"rule": rule, "would": would(*allows)}));
    let detail = detail.unwrap_or_default();
    Some(detail.with_member("observed", told.collect()))
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
        metrics.tasks.states[state].inc();
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
    let error = kernel::telemetry::Chain(cause.as_ref());
    match rejection.reason.status() {
        500 => tracing::error!(exchange.id = id, %error, "exchange ended by a bug"),
        501.. => tracing::warn!(exchange.id = id, reason, %error, "An exchange was refused"),
        _ => tracing::debug!(exchange.id = id, reason, %error, "An exchange was refused"),
    }
}

// Outcomes of calls for the breaker and the learned limit of their agent. An A2A error, any 4xx, and a caller that
// leaves are no failures of the agent.

/// Returns what the end of a call tells of the agent. `None`: nothing. Clocks that the caller made shorter tell
/// nothing.
pub(super) fn outcome_of_end(
    ended: &Result<Answered, ExchangeError>,
    patience: OwnTimeouts,
) -> Option<CallOutcome> {
    match ended {
        Ok(Answered) => Some(CallOutcome::ANSWERED),
        Err(ExchangeError::Refused(why) | ExchangeError::BrokenOff(why)) => {
            outcome_of_rejection(why, patience)
        }
        Err(ExchangeError::CallerLeft | ExchangeError::NotRun(_)) => None,
    }
}

/// Returns what the rejection of a call tells of its agent. `None`: nothing. An answer that the gateway refuses is one.
pub(super) fn outcome_of_rejection(why: &Rejection, patience: OwnTimeouts) -> Option<CallOutcome> {
    match why.reason {
        Reason::AgentUnreachable => Some(CallOutcome::from_failure(AgentFailure::Connect)),
        Reason::AgentTimeout => {
            let own = match clock_name(why) {
                Some("head") => patience.head,
                Some("total") => patience.total,
                _ => true,
            };
            own.then(|| CallOutcome::from_failure(AgentFailure::Timeout))
        }
        Reason::AgentRedirected | Reason::ResponseTooLarge => Some(CallOutcome::ANSWERED),
        Reason::AgentSilent => Some(CallOutcome::from_failure(AgentFailure::Timeout)),
        Reason::AgentProtocolError => Some(CallOutcome::from_failure(AgentFailure::Protocol)),
        _ => None,
    }
}

/// Returns what the cut of a stream tells of its agent. `None`: nothing.
pub(super) fn outcome_of_cut(why: &Rejection) -> Option<CallOutcome> {
    match why.reason {
        Reason::AgentProtocolError | Reason::AgentSilent => {
            Some(CallOutcome::from_failure(AgentFailure::Stream))
        }
        _ => None,
    }
}

fn clock_name(why: &Rejection) -> Option<&str> {
    let mut facts = why.facts();
    facts
        .find(|(name, _)| *name == "clock")
        .map(|(_, clock)| clock)
}

/// Names the generations of caller and agent in an answer that was translated.
const BRIDGED: HeaderName = HeaderName::from_static("x-a2a-bridged");

/// The fields of a translated answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct TranslationFields {
    /// The generations, the caller's first: `0.3>1.0`.
    pub(super) label: &'static str,
    caller: Generation,
}

impl TranslationFields {
    pub(super) const fn new(label: &'static str, caller: Generation) -> Self {
        Self { label, caller }
    }

    /// Puts the generations, the caller's version, and the extensions under the caller's name for them, into a head.
    ///
    /// # Errors
    /// A field cannot be built, which is a bug.
    pub(super) fn write_to(self, head: &mut ResponseHeader) -> pingora::Result<()> {
        let other = match self.caller {
            Generation::V0 => Generation::V1,
            Generation::V1 => Generation::V0,
        };
        let (theirs, ours) = (extensions_field(other), extensions_field(self.caller));
        let named: Vec<HeaderValue> = head.headers.get_all(theirs).iter().cloned().collect();
        head.remove_header(theirs);
        for value in named {
            head.append_header(ours, value)?;
        }
        if head.remove_header("a2a-version").is_some() {
            head.insert_header("a2a-version", self.caller.version())?;
        }
        head.insert_header(BRIDGED, self.label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout(clock: &'static str) -> Rejection {
        Rejection::new(Reason::AgentTimeout, "late").with_fact("clock", clock)
    }

    const OWN: OwnTimeouts = OwnTimeouts {
        head: true,
        total: true,
    };

    #[test]
    fn clocks_that_a_caller_made_shorter_tell_nothing() {
        let hasty = OwnTimeouts {
            head: false,
            total: false,
        };
        assert_eq!(outcome_of_rejection(&timeout("head"), hasty), None);
        assert_eq!(outcome_of_rejection(&timeout("total"), hasty), None);
        for (clock, patience) in [("connect", hasty), ("head", OWN), ("total", OWN)] {
            let outcome = outcome_of_rejection(&timeout(clock), patience).unwrap();
            assert_eq!(outcome.failure, Some(AgentFailure::Timeout), "{clock}");
        }
    }

    #[test]
    fn only_failures_of_the_agent_count() {
        for &reason in Reason::ALL {
            let why = Rejection::new(reason, "why");
            let outcome = outcome_of_rejection(&why, OWN);
            let failed = outcome.is_some_and(|outcome| outcome.failure.is_some());
            let of_agent = matches!(
                reason,
                Reason::AgentUnreachable
                    | Reason::AgentTimeout
                    | Reason::AgentSilent
                    | Reason::AgentProtocolError
            );
            assert_eq!(failed, of_agent, "{}", reason.as_str());
            let cut = outcome_of_cut(&why).and_then(|outcome| outcome.failure);
            let of_agent = matches!(reason, Reason::AgentSilent | Reason::AgentProtocolError);
            let expected = of_agent.then_some(AgentFailure::Stream);
            assert_eq!(cut, expected, "a stream: {}", reason.as_str());
        }
        assert_eq!(outcome_of_end(&Err(ExchangeError::CallerLeft), OWN), None);
    }
}
