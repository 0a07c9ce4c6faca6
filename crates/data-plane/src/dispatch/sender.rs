//! One attempt to send a deferred call.
//!
//! A call is delivered at most once. It is tried again only while nothing was delivered: everything up to the
//! connection comes before its row becomes `dispatched`, and after that only an error that proves it was not
//! delivered puts it back.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderName, HeaderValue, Method};
use pingora::http::RequestHeader;
use pingora::upstreams::peer::HttpPeer;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::admission::declared_version;
use crate::admission::{AdmittedCall, build_binder};
use crate::complete::{CallShape, CheckedCall, complete_body};
use crate::dispatch::response::read_response;
use crate::dispatch::{STOPPED_PAUSE, is_transient};
use crate::fetch::BufferedRequest;
use crate::filters::Rewrite;
use crate::listener::internal_error;
use crate::policy::{ContentCall, UncountedCall, check_content, rewrite_guarded, set_guards};
use crate::record::{Answered, Exchange, box_cold_path, outcome_of_rejection, search_answer};
use crate::response::ExpectedAnswer;
use crate::services::Context;
use crate::trace::ExchangeOrigin;
use crate::upstream::{AgentConnection, SentCall, WireRequest, shutting_down};
use crate::upstream_request::{
    AgentCall, Origin, callee_attributes, resolve_address, translate_for_inbox,
};
use a2a::Generation;
use a2a::method::Method as A2aMethod;
use a2a::state::TaskState;
use a2a::task::Binding;
use access::caps::Charge;
use access::identity::Proof;
use access::workspace::{CallerProof, Timestamp};
use directory::tasks::Learner;
use directory::{Agent, CallOutcome, Destination, LookupFor, OwnTimeouts, Slot};
use kernel::metrics::InProgress;
use kernel::rejection::{AtStage as _, Delivery, Reason, Rejection};
use kernel::shares::Account;
use kernel::stage::Stage;
use mailbox::jobs::{Attempt, Content, Ending, Job, Task, deadline_expired, request_id};

/// Result of an attempt.
enum AttemptResult {
    /// It was not delivered.
    Nothing(Rejection),
    /// It is in the target's inbox.
    InInbox,
    /// It has ended.
    Over(Ending),
    /// Another replica has it, or its caller canceled it.
    Taken,
}

impl AttemptResult {
    /// Returns what it tells of the agent. `None`: nothing.
    fn agent_outcome(&self) -> Option<CallOutcome> {
        match self {
            Self::Nothing(why) | Self::Over(Ending::Failed(why)) => {
                outcome_of_rejection(why, OwnTimeouts::default())
            }
            Self::Over(Ending::Result(_) | Ending::Error(_)) => Some(CallOutcome::ANSWERED),
            Self::Over(Ending::Expired(_)) | Self::InInbox | Self::Taken => None,
        }
    }
}

/// The handling of the answer of an agent.
struct AnswerHandling<'a> {
    /// The agent, if a redirect at the same server is followed: its caller token may be sent twice.
    follows: Option<&'a Arc<Agent>>,
    rewrite: Option<Rewrite>,
    /// Searches the answer for the task.
    learner: Option<Box<Learner>>,
    /// The concurrency slot of the call.
    slot: &'a mut Option<Slot>,
}

/// Sends deferred calls.
#[derive(Clone)]
pub(super) struct Sender(pub(super) Arc<Context>);

impl Sender {
    /// Makes an attempt and records its result.
    pub(super) async fn send(
        self,
        job: Job,
        one_try: Attempt,
        admitted: Box<AdmittedCall>,
        mut slot: Option<Slot>,
    ) {
        let _running = self.0.gateway.drain.count_work();
        let jobs = &self.0.gateway.delivery.jobs;
        let _sending = InProgress::begin(&self.0.gateway.metrics.jobs.running);
        let attempt = tokio::select! {
            attempt = self.attempt_call(&job, &admitted, &mut slot) => attempt,
            () = jobs.hold_lease(&job) => AttemptResult::Taken,
        };
        if let Some(slot) = &mut slot {
            slot.finish_unless(|_| attempt.agent_outcome());
        }
        drop(slot);
        if !matches!(attempt, AttemptResult::Nothing(_)) {
            jobs.mark_returned(&job.target);
        }
        match attempt {
            // Another process can send it at once.
            AttemptResult::Nothing(why) if why.reason == Reason::ShuttingDown => {
                jobs.put_back_surely(&job, Duration::ZERO, false).await;
            }
            // It waits for the release of the stop, and its target is not away.
            AttemptResult::Nothing(why) if why.reason == Reason::Stopped => {
                jobs.put_back_surely(&job, STOPPED_PAUSE, false).await;
            }
            AttemptResult::Nothing(why) => {
                let (reason, pause) = (why.reason.as_str(), job.backoff());
                tracing::debug!(job = job.id, reason, ?pause, "deferred call not delivered");
                jobs.put_back_surely(&job, pause, true).await;
                if !why.is_share_exhausted() {
                    jobs.park_target(one_try, pause).await;
                }
            }
            AttemptResult::Over(ending) => jobs.finish_job(&job, &ending).await,
            AttemptResult::InInbox | AttemptResult::Taken => {}
        }
    }

    /// Sends the call, awaits the response and records the exchange.
    async fn attempt_call(
        &self,
        job: &Job,
        admitted: &AdmittedCall,
        slot: &mut Option<Slot>,
    ) -> AttemptResult {
        let mut exchange = self.begin_exchange(job, Some(Arc::clone(&admitted.allowed.proof)));
        exchange.call.set_access(&admitted.allowed.permit);
        let attempt = self.run_exchange(job, (admitted, slot), &mut exchange);
        // The type is nested too deeply for the compiler when this future is spawned.
        match attempt.boxed().await {
            // Its caller canceled it: recorded like a caller that leaves.
            Ok(AttemptResult::Taken) => {
                exchange.record.request_bytes = 0;
                AttemptResult::Taken
            }
            Ok(attempt) => {
                // Cannot fail: no response is left to send.
                let _ = exchange.record_outcome(Ok(Answered));
                attempt
            }
            Err(why) => {
                exchange.record_rejection(&why);
                exchange.record.status = why.reason.status();
                self.classify_rejection(job, why)
            }
        }
    }

    /// Ends a call that can never be sent; records it like a call that is rejected at once.
    pub(super) async fn give_up(self, job: Job, why: Rejection) {
        self.record_given_up(&job, &why);
        let jobs = &self.0.gateway.delivery.jobs;
        jobs.finish_job(&job, &Ending::Failed(why)).await;
        jobs.mark_returned(&job.target);
    }

    /// Records a call that is not made, or that has an unknown outcome.
    pub(super) fn record_given_up(&self, job: &Job, why: &Rejection) {
        let proof = self
            .0
            .gateway
            .identity
            .restore_proof(&job.caller)
            .map(Arc::new);
        let mut exchange = self.begin_exchange(job, proof);
        exchange.record_rejection(why);
        exchange.record.status = why.reason.status();
    }

    /// Returns the exchange of a deferred call.
    fn begin_exchange(&self, job: &Job, proof: Option<Arc<Proof>>) -> Exchange {
        let mut exchange = Exchange::begin_at(&self.0.gateway, request_id(job), true);
        if let Content::Call(call) = &job.content {
            exchange = exchange.with_client(call.client);
        }
        exchange.call.method = A2aMethod::SendMessage;
        if let Some(proof) = proof {
            exchange.call.proof = Some(proof);
        }
        exchange.call.target = Some(job.target.clone());
        exchange
    }

    fn classify_rejection(&self, job: &Job, why: Rejection) -> AttemptResult {
        match why.delivered {
            Some(Delivery::NotSent) if is_transient(why.reason) => AttemptResult::Nothing(why),
            Some(delivered) if job.deadline <= Timestamp::now() => {
                let delivered = match delivered {
                    Delivery::Sent => Delivery::Sent,
                    Delivery::NotSent | Delivery::Unknown => Delivery::Unknown,
                };
                AttemptResult::Over(Ending::Expired(deadline_expired(delivered)))
            }
            _ => AttemptResult::Over(Ending::Failed(why)),
        }
    }

    async fn run_exchange(
        &self,
        job: &Job,
        (admitted, slot): (&AdmittedCall, &mut Option<Slot>),
        exchange: &mut Exchange,
    ) -> Result<AttemptResult, Rejection> {
        let context = &*self.0;
        let checked = self.build_call(job, admitted, exchange).await;
        let checked = checked.at(Stage::Envelope);
        let (stored, mut call) = checked.map_err(Rejection::mark_not_sent)?;
        exchange.record.request_bytes = call.body.len() as u64;
        exchange.record.charge = self
            .measure_charge(admitted, exchange, &stored, &call)
            .await?;
        exchange.begin_trace(&context.relay.traces, &stored.head, || {
            ExchangeOrigin::LATER
        });
        if let Some(version) = declared_version(&stored.head) {
            exchange.call.set_version(&version);
        }
        set_guards(context, exchange, admitted, &mut call, &stored.head.headers);
        let Destination::Agent(agent) = &admitted.destination else {
            let options = admitted.options();
            let met = translate_for_inbox(context, options, exchange, &mut call).await;
            met.map_err(Rejection::mark_not_sent)?;
            self.check_content(admitted, exchange, &mut call).await?;
            let sent = (job, admitted.allowed.account());
            return self.put_into_inbox(sent, call).await;
        };
        let agents = AgentCall {
            context,
            admitted,
            agent,
        };
        let routed = agents.route_call(None, exchange, &mut call).await;
        routed
            .at(Stage::Call)
            .map_err(|ended| ended.into_rejection(no_caller))?;
        self.check_content(admitted, exchange, &mut call).await?;
        let asker = LookupFor::for_call(admitted.allowed.account());
        let address = resolve_address(context, agent, call.path.as_deref(), asker).await;
        let address = address
            .at(Stage::Address)
            .map_err(Rejection::mark_not_sent)?;
        exchange.begin_call_span(&callee_attributes(agent, &call));
        let timeouts = &exchange.call.config.timeouts;
        let patience = job.deadline.since(Timestamp::now()).min(timeouts.max);
        let origin = Origin {
            head: &stored.head,
            client: stored.client,
        };
        let wire = agents.write_head(&origin, exchange, &call).await;
        let upstream = &context.relay.upstream;
        let peer = upstream.agent_peer(agent, address, timeouts.connect).await;
        let question = BufferedRequest {
            peer: &peer,
            call: WireRequest::new(wire.map_err(Rejection::mark_not_sent)?, call.body),
            deadline: Instant::now() + patience,
            bytes_max: exchange.call.config.limits.response_bytes.bytes(),
            idle: exchange.call.config.upstream.idle,
            late: call_timeout,
        };
        exchange.record.instance = admitted.instance().cloned();
        let mut learner = Learner::for_state(Binding::Rpc);
        if let Some(binder) = build_binder(&context.gateway, admitted) {
            learner.set_binder(binder);
        }
        let rewrite = rewrite_guarded(call.guarded.take(), call.rewrite);
        let answer = AnswerHandling {
            follows: Some(agent).filter(|agent| agent.proof == CallerProof::Pair),
            rewrite,
            learner: Some(Box::new(learner)),
            slot,
        };
        self.call_agent(job, &question, answer, exchange).await
    }

    async fn check_content(
        &self,
        admitted: &AdmittedCall,
        exchange: &Exchange,
        call: &mut CheckedCall,
    ) -> Result<(), Rejection> {
        let content = ContentCall {
            context: &self.0,
            admitted,
            caller: None,
            exchange,
            call,
        };
        check_content(content)
            .await
            .map_err(|ended| ended.into_rejection(no_caller))
    }

    /// Returns the charge of the bytes and the time of a call. It was counted when it was accepted.
    async fn measure_charge(
        &self,
        admitted: &AdmittedCall,
        exchange: &Exchange,
        stored: &StoredRequest,
        call: &CheckedCall,
    ) -> Result<Option<Box<Charge>>, Rejection> {
        let call = (&stored.head.headers, &call.body);
        let gateway = &self.0.gateway;
        let call = box_cold_path(UncountedCall::from_call(
            gateway,
            exchange,
            &admitted.allowed,
            call,
        ))
        .await;
        Ok(call
            .map_err(Rejection::mark_not_sent)?
            .map(|call| call.measure()))
    }

    /// Attempts the call. Everything up to the connection can be repeated; the rest happens once.
    async fn call_agent(
        &self,
        job: &Job,
        question: &BufferedRequest<'_>,
        mut answer: AnswerHandling<'_>,
        exchange: &mut Exchange,
    ) -> Result<AttemptResult, Rejection> {
        let mut cut = self.0.relay.watch_exchange(exchange);
        exchange.record.start_call_span();
        let connection = tokio::select! {
            biased;
            why = cut.cancelled(Delivery::NotSent) => return Err(why),
            connection = self.connect(question.peer, question.deadline) => {
                connection.at(Stage::Connect)?
            }
        };
        match self.0.gateway.delivery.jobs.record_dispatch(job).await {
            Ok(true) => {}
            Ok(false) => return Ok(AttemptResult::Taken),
            Err(away) => return Err(Rejection::mark_not_sent(away.into())),
        }
        // No byte has been sent: another process can send it.
        if cut.is_requested() {
            return Err(shutting_down(Delivery::NotSent));
        }
        exchange.record.mark_sent();
        let (mut head, mut body) = tokio::select! {
            biased;
            answered = question.send_over(connection, &self.0.relay.upstream, &self.0.relay.metrics) => answered?,
            why = cut.cancelled(Delivery::Unknown) => return Err(why),
        };
        let sent = SentCall {
            peer: question.peer,
            call: &question.call,
            agent: answer.follows,
            place: Some(&job.target),
        };
        if let Some(call) = sent.redirected(&self.0.relay, &head).await? {
            let again = BufferedRequest { call, ..*question };
            (head, body) = tokio::select! {
                biased;
                answered = again.send(&self.0.relay.upstream, &self.0.relay.metrics) => answered?,
                why = cut.cancelled(Delivery::Unknown) => return Err(why),
            };
            sent.keep_place(&self.0.relay, &again.call, &head).await;
        }
        exchange.record.set_call_status(head.status);
        exchange.record.status = head.status.as_u16();
        exchange.record.add_bytes(body.len());
        let slot = answer.slot.as_mut();
        ExpectedAnswer::Message.refuse_unreadable(&head, (&body[..], true), slot)?;
        if let Some(slot) = answer.slot {
            slot.finish(CallOutcome::from_status(head.status.as_u16()));
        }
        if let Some(rewrite) = answer.rewrite {
            let deadline = question.deadline;
            let answer = (&mut head, body);
            body = rewrite
                .rewrite_body_within(answer, deadline, &mut cut)
                .await?;
        }
        let ending = read_response(&head, &body)?;
        let metrics = &exchange.call.metrics;
        if let Some(task) = search_answer(&mut answer.learner, metrics, &body).await {
            exchange.record.task = Some(task.clone());
            let tasks = &self.0.gateway.tasks;
            let over = TaskState::from_answer(&body).is_some_and(TaskState::is_terminal);
            let org = exchange
                .call
                .proof
                .as_ref()
                .and_then(|one| one.principal.org());
            let owner = (job.owner.as_str(), org);
            if let Some(life) = exchange.call.life() {
                tasks.record_owner(owner, &life, &task, Some(over));
            }
        }
        Ok(AttemptResult::Over(ending))
    }

    async fn connect(
        &self,
        peer: &HttpPeer,
        deadline: Instant,
    ) -> Result<AgentConnection, Rejection> {
        tokio::select! {
            connected = self.0.relay.upstream.connect(peer) => connected.map_err(Rejection::from),
            () = sleep_until(deadline) => Err(deadline_expired(Delivery::NotSent)),
        }
    }

    async fn put_into_inbox(
        &self,
        sent: (&Job, Account),
        call: CheckedCall,
    ) -> Result<AttemptResult, Rejection> {
        let jobs = &self.0.gateway.delivery.jobs;
        let method = call.method_name.unwrap_or_default();
        let body = String::from_utf8_lossy(&call.body).into_owned();
        // After any failure it can be put there again: its id makes it unique.
        let put = jobs.deliver_to_inbox(sent, &method, body).await;
        put.map_err(|why| why.with_delivery(Delivery::NotSent))?;
        Ok(AttemptResult::InInbox)
    }

    /// Returns the call for the agent, and the request that it stands for.
    async fn build_call(
        &self,
        job: &Job,
        admitted: &AdmittedCall,
        exchange: &mut Exchange,
    ) -> Result<(StoredRequest, CheckedCall), Rejection> {
        let share = self.0.relay.load.new_share(Account::default());
        match &job.content {
            Content::Call(call) => {
                let checked = CheckedCall {
                    method_name: call.method.clone().map(Cow::Owned),
                    version_1_0: call.version_1_0,
                    ..CheckedCall::json_rpc(Bytes::from(call.body.clone()), share)
                };
                Ok((StoredRequest::new(call.client, &call.fields)?, checked))
            }
            Content::Task(task) => {
                let spoken = box_cold_path(self.0.cards.generation(None, exchange, admitted, true));
                let generation = spoken
                    .await
                    .map_err(|ended| ended.into_rejection(no_caller))?;
                let shape = CallShape {
                    complete: CallShape::with_envelope(admitted.options().complete),
                    generation,
                    prefers_stream: false,
                    message_only: false,
                };
                let bare = bare_call(&job.id, task, generation);
                let completed =
                    complete_body(exchange, &admitted.allowed.permit, &bare, &shape).await?;
                // The gateway wrote the call, so there is no reference to check.
                let (call, _) = CheckedCall::from_completed(completed, generation, share);
                let client = task.client.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
                // A gateway that traces writes a context of its own.
                let traced = self.0.relay.traces.is_on();
                let field = task.run.as_ref().and_then(|run| run.traceparent.clone());
                let field = field.filter(|_| !traced);
                let field = field.map(|value| ("traceparent".to_owned(), value));
                Ok((StoredRequest::new(client, field.as_slice())?, call))
            }
        }
    }
}

/// The request that a stored call stands for.
struct StoredRequest {
    head: RequestHeader,
    client: IpAddr,
}

impl StoredRequest {
    fn new(client: IpAddr, fields: &[(String, String)]) -> Result<Self, Rejection> {
        let mut head = RequestHeader::build(Method::POST, b"/", None).map_err(internal_error)?;
        for (name, value) in fields {
            // They were valid when they were stored.
            if let (Ok(name), Ok(value)) = (
                HeaderName::from_bytes(name.as_bytes()),
                HeaderValue::from_str(value),
            ) {
                head.append_header(name, value).map_err(internal_error)?;
            }
        }
        Ok(Self { head, client })
    }
}

/// Returns the rejection of a call whose wait ended without an answer: the process ends.
fn no_caller() -> Rejection {
    shutting_down(Delivery::NotSent)
}

fn call_timeout() -> Rejection {
    let message = "the agent did not answer within timeouts.max; it may still work on it";
    Rejection::new(Reason::AgentTimeout, message)
        .with_fact("clock", "max")
        .with_delivery(Delivery::Sent)
}

/// Returns the call of a delegation, for completion: its text as a message of the user.
fn bare_call(id: &str, task: &Task, generation: Generation) -> Bytes {
    let mut message = json!({
        "messageId": id,
        "role": "user",
        "content": task.text,
        "metadata": {"delegation_id": id},
    });
    if generation == Generation::V0 {
        message["kind"] = "message".into();
    }
    let mut call = json!({"id": id, "message": message, "metadata": {"delegation_id": id}});
    if let Some(run) = &task.run {
        call["metadata"]["run_id"] = (*run.name).into();
    }
    Bytes::from(call.to_string())
}
