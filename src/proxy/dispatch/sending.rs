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
use http::{HeaderName, HeaderValue, Method, StatusCode};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::upstreams::peer::HttpPeer;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until};

use super::{STOPPED_PAUSE, not_sent, passes_by};
use crate::a2a::Generation;
use crate::a2a::method::Method as A2aMethod;
use crate::a2a::reply::Reply;
use crate::a2a::state::TaskState;
use crate::a2a::task::Binding;
use crate::caps::Charge;
use crate::delivery::jobs::{Content, Ending, Job, Task, Try, expired, request_id};
use crate::directory::{CallOutcome, Destination, LookupFor, Patience, Slot};
use crate::identity::Proof;
use crate::metrics::InProgress;
use crate::proxy::admit::Admitted;
use crate::proxy::bridge::{meet, meet_inbox};
use crate::proxy::capped::ToCount;
use crate::proxy::context::Context;
use crate::proxy::guarding::{ask_about_call, rewrite_guarded, set_guards};
use crate::proxy::outcome::Ended;
use crate::proxy::outcome::rare;
use crate::proxy::record::Exchange;
use crate::proxy::record::trace::Came;
use crate::proxy::relay::failure::shutting_down;
use crate::proxy::relay::fetch::Question;
use crate::proxy::relay::forward::{AgentCall, Origin, address, callee};
use crate::proxy::relay::refuse_redirect;
use crate::proxy::relay::rewrite::Rewrite;
use crate::proxy::relay::upstream::{Call, Connection};
use crate::proxy::relay::verdict::of_rejection;
use crate::proxy::request::body::{CallShape, complete};
use crate::proxy::request::checked::CheckedCall;
use crate::proxy::request::instance::binder;
use crate::proxy::respond::internal;
use crate::rejection::{Delivery, Reason, Rejection};
use crate::shares::Account;
use crate::tasks::Learner;
use crate::workspace::Timestamp;

/// Result of an attempt.
enum Attempt {
    /// It was not delivered.
    Nothing(Rejection),
    /// It is in the target's inbox.
    InInbox,
    /// It has ended.
    Over(Ending),
    /// Another replica has it, or its caller canceled it.
    Taken,
}

impl Attempt {
    /// Returns what it tells of the agent. `None`: nothing.
    fn outcome(&self) -> Option<CallOutcome> {
        match self {
            Self::Nothing(why) | Self::Over(Ending::Failed(why)) => {
                of_rejection(why, Patience::default())
            }
            Self::Over(Ending::Result(_) | Ending::Error(_)) => Some(CallOutcome::ANSWERED),
            Self::Over(Ending::Expired(_)) | Self::InInbox | Self::Taken => None,
        }
    }
}

/// Sends deferred calls.
#[derive(Clone)]
pub(super) struct Sender(pub(super) Arc<Context>);

impl Sender {
    /// Makes an attempt and records its result.
    pub(super) async fn send(
        self,
        job: Job,
        one_try: Try,
        admitted: Box<Admitted>,
        mut slot: Option<Slot>,
    ) {
        let _running = self.0.gateway.drain.enter();
        let jobs = &self.0.gateway.delivery.jobs;
        let _sending = InProgress::begin(&self.0.gateway.metrics.jobs.running);
        let (attempt, status) = tokio::select! {
            attempt = self.attempt(&job, &admitted) => attempt,
            () = jobs.hold(&job) => (Attempt::Taken, None),
        };
        let answered = status.map(CallOutcome::of_status);
        if let (Some(slot), Some(outcome)) = (&mut slot, answered.or_else(|| attempt.outcome())) {
            slot.finish(outcome);
        }
        drop(slot);
        if !matches!(attempt, Attempt::Nothing(_)) {
            jobs.returned(&job.target);
        }
        match attempt {
            // Another process can send it at once.
            Attempt::Nothing(why) if why.reason == Reason::ShuttingDown => {
                jobs.put_back_surely(&job, Duration::ZERO, false).await;
            }
            // It waits for the release of the stop, and its target is not away.
            Attempt::Nothing(why) if why.reason == Reason::Stopped => {
                jobs.put_back_surely(&job, STOPPED_PAUSE, false).await;
            }
            Attempt::Nothing(why) => {
                let (reason, pause) = (why.reason.as_str(), job.backoff());
                tracing::debug!(job = job.id, reason, ?pause, "deferred call not delivered");
                jobs.put_back_surely(&job, pause, true).await;
                if !why.is_of_share() {
                    jobs.park(one_try, pause).await;
                }
            }
            Attempt::Over(ending) => jobs.finish(&job, &ending).await,
            Attempt::InInbox | Attempt::Taken => {}
        }
    }

    /// Sends the call, awaits the response and records the exchange. Returns the status of the response, too, if there was
    /// one.
    async fn attempt(&self, job: &Job, admitted: &Admitted) -> (Attempt, Option<u16>) {
        let mut exchange = self.exchange_of(job, Some(Arc::clone(&admitted.allowed.proof)));
        exchange.permitted(&admitted.allowed.permit);
        let attempt = self.exchange(job, admitted, &mut exchange);
        // The type is nested too deeply for the compiler when this future is spawned.
        let attempt = attempt.boxed().await;
        let status = Some(exchange.answer.status).filter(|status| *status != 0);
        let attempt = match attempt {
            // Its caller canceled it: recorded like a caller that leaves.
            Ok(Attempt::Taken) => {
                exchange.request_bytes = 0;
                Attempt::Taken
            }
            Ok(attempt) => {
                // Cannot fail: no response is left to send.
                let _ = exchange.ended(Ok(Ended::Answered));
                attempt
            }
            Err(why) => {
                exchange.rejected(&why);
                exchange.answer.status = why.reason.status();
                self.judge(job, why)
            }
        };
        (attempt, status)
    }

    /// Ends a call that can never be sent; records it like a call that is rejected at once.
    pub(super) async fn give_up(self, job: Job, why: Rejection) {
        self.record_given_up(&job, &why);
        let jobs = &self.0.gateway.delivery.jobs;
        jobs.finish(&job, &Ending::Failed(why)).await;
        jobs.returned(&job.target);
    }

    /// Records a call that is not made, or that has an unknown outcome.
    pub(super) fn record_given_up(&self, job: &Job, why: &Rejection) {
        let proof = self.0.gateway.identity.recall(&job.caller).map(Arc::new);
        let mut exchange = self.exchange_of(job, proof);
        exchange.rejected(why);
        exchange.answer.status = why.reason.status();
    }

    /// Returns the exchange of a deferred call.
    fn exchange_of(&self, job: &Job, proof: Option<Arc<Proof>>) -> Exchange {
        let mut exchange = self.0.begin(request_id(job), true);
        if let Content::Call(call) = &job.content {
            exchange = exchange.by_client(call.client);
        }
        exchange.method = A2aMethod::SendMessage;
        exchange.proof = proof;
        exchange.callee = Some(job.target.clone());
        exchange
    }

    fn judge(&self, job: &Job, why: Rejection) -> Attempt {
        match why.delivered {
            Some(Delivery::NotSent) if passes_by(why.reason) => Attempt::Nothing(why),
            Some(delivered) if job.deadline <= Timestamp::now() => {
                let delivered = match delivered {
                    Delivery::Sent => Delivery::Sent,
                    Delivery::NotSent | Delivery::Unknown => Delivery::Unknown,
                };
                Attempt::Over(Ending::Expired(expired(delivered)))
            }
            _ => Attempt::Over(Ending::Failed(why)),
        }
    }

    async fn exchange(
        &self,
        job: &Job,
        admitted: &Admitted,
        exchange: &mut Exchange,
    ) -> Result<Attempt, Rejection> {
        let context = &*self.0;
        let checked = self.checked(job, admitted, exchange).await;
        let (stored, mut call) = checked.map_err(not_sent)?;
        exchange.request_bytes = call.body.len() as u64;
        exchange.charge = self.charge(admitted, exchange, &stored, &call).await?;
        exchange.trace(&context.relay.traces, &stored.head, Came::LATER);
        set_guards(context, exchange, admitted, &mut call, &stored.head.headers);
        let Destination::Agent(agent) = &admitted.destination else {
            let options = admitted.options();
            let met = meet_inbox(context, options, exchange, &mut call).await;
            met.map_err(not_sent)?;
            let asked = ask_about_call((context, admitted), None, exchange, &mut call).await;
            asked.map_err(refused)?;
            let sent = (job, admitted.allowed.account());
            return self.put_into_inbox(sent, call).await;
        };
        let agents = AgentCall {
            context,
            admitted,
            agent,
        };
        let met = meet(&agents, None, exchange, &mut call).await;
        met.map_err(refused)?;
        let path = agents.set_path(None, exchange, &mut call).await;
        path.map_err(refused)?;
        let asked = ask_about_call((context, admitted), None, exchange, &mut call).await;
        asked.map_err(refused)?;
        let asker = LookupFor::calling(admitted.allowed.account());
        let address = address(context, agent, call.path.as_deref(), asker).await;
        let address = address.map_err(not_sent)?;
        exchange.will_call(&callee(agent, &call));
        let timeouts = &exchange.config.timeouts;
        let patience = job.deadline.since(Timestamp::now()).min(timeouts.max);
        let origin = Origin {
            head: &stored.head,
            client: stored.client,
        };
        let wire = agents.head(&origin, exchange, &call).await;
        let upstream = &context.relay.upstream;
        let peer = upstream.peer(agent, address, timeouts.connect).await;
        let question = Question {
            peer: &peer,
            call: Call::new(wire.map_err(not_sent)?, call.body),
            deadline: Instant::now() + patience,
            bytes_max: exchange.config.limits.response_bytes.bytes(),
            idle: exchange.config.upstream.idle,
            late,
        };
        exchange.instance = admitted.instance().cloned();
        let mut learner = Learner::of_state(Binding::Rpc);
        if let Some(binder) = binder(&context.gateway, admitted) {
            learner.binds(binder);
        }
        exchange.learner = Some(Box::new(learner));
        let rewrite = rewrite_guarded(call.guarded.take(), call.rewrite);
        self.ask(job, &question, rewrite, exchange).await
    }

    /// Returns the charge of the bytes and the time of a call. It was counted when it was accepted.
    async fn charge(
        &self,
        admitted: &Admitted,
        exchange: &Exchange,
        stored: &Stored,
        call: &CheckedCall,
    ) -> Result<Option<Box<Charge>>, Rejection> {
        let call = (&stored.head.headers, &call.body);
        let gateway = &self.0.gateway;
        let call = rare(ToCount::of(gateway, exchange, &admitted.allowed, call)).await;
        Ok(call.map_err(not_sent)?.map(|call| call.measure()))
    }

    /// Attempts the call. Everything up to the connection can be repeated; the rest happens once.
    async fn ask(
        &self,
        job: &Job,
        question: &Question<'_>,
        rewrite: Option<Rewrite>,
        exchange: &mut Exchange,
    ) -> Result<Attempt, Rejection> {
        let mut cut = self.0.relay.watch(exchange);
        exchange.calls();
        let connection = tokio::select! {
            biased;
            why = cut.requested(Delivery::NotSent) => return Err(why),
            connection = self.connect(question.peer, question.deadline) => connection?,
        };
        match self.0.gateway.delivery.jobs.begin(job).await {
            Ok(true) => {}
            Ok(false) => return Ok(Attempt::Taken),
            Err(away) => return Err(not_sent(away.into())),
        }
        // No byte has been sent: another process can send it.
        if cut.is_requested() {
            return Err(shutting_down(Delivery::NotSent));
        }
        exchange.sent();
        let (mut head, mut body) = tokio::select! {
            biased;
            answered = question.ask_over(connection, &self.0.relay.upstream, &self.0.relay.metrics) => answered?,
            why = cut.requested(Delivery::Unknown) => return Err(why),
        };
        exchange.called(head.status);
        exchange.answer.status = head.status.as_u16();
        exchange.answer.bytes = body.len() as u64;
        if let Some(rewrite) = rewrite {
            let deadline = question.deadline;
            let answer = (&mut head, body);
            body = rewrite.answer_within(answer, deadline, &mut cut).await?;
        }
        let ending = read(&head, &body)?;
        exchange.look_at(&body).await;
        if let Some(task) = &exchange.task {
            let tasks = &self.0.gateway.tasks;
            let over = TaskState::of(&body).is_some_and(TaskState::is_terminal);
            let org = exchange.proof.as_ref().and_then(|one| one.principal.org());
            let owner = (job.owner.as_str(), org);
            if let Some(life) = exchange.life() {
                tasks.learn(owner, &life, task, Some(over)).await;
            }
        }
        Ok(Attempt::Over(ending))
    }

    async fn connect(&self, peer: &HttpPeer, deadline: Instant) -> Result<Connection, Rejection> {
        tokio::select! {
            connected = self.0.relay.upstream.connect(peer) => connected.map_err(Rejection::from),
            () = sleep_until(deadline) => Err(expired(Delivery::NotSent)),
        }
    }

    async fn put_into_inbox(
        &self,
        sent: (&Job, Account),
        call: CheckedCall,
    ) -> Result<Attempt, Rejection> {
        let jobs = &self.0.gateway.delivery.jobs;
        let method = call.method_name.unwrap_or_default();
        let body = String::from_utf8_lossy(&call.body).into_owned();
        // After any failure it can be put there again: its id makes it unique.
        let put = jobs.deliver_to_inbox(sent, &method, body).await;
        put.map_err(|why| why.delivered(Delivery::NotSent))?;
        Ok(Attempt::InInbox)
    }

    /// Returns the call for the agent, and the request that it stands for.
    async fn checked(
        &self,
        job: &Job,
        admitted: &Admitted,
        exchange: &mut Exchange,
    ) -> Result<(Stored, CheckedCall), Rejection> {
        let share = self.0.relay.load.share(Account::default());
        match &job.content {
            Content::Call(call) => {
                let checked = CheckedCall {
                    method_name: call.method.clone().map(Cow::Owned),
                    version_1_0: call.version_1_0,
                    ..CheckedCall::json_rpc(Bytes::from(call.body.clone()), share)
                };
                Ok((Stored::new(call.client, &call.fields)?, checked))
            }
            Content::Task(task) => {
                let spoken = rare(self.0.cards.generation(None, exchange, admitted, true));
                let generation = spoken.await.map_err(refused)?;
                let shape = CallShape {
                    complete: CallShape::with_envelope(admitted.options().complete),
                    generation,
                    prefers_stream: false,
                    message_only: false,
                };
                let bare = bare_call(&job.id, task, generation);
                let completed = complete(exchange, &admitted.allowed.permit, &bare, &shape).await?;
                // The gateway wrote the call, so there is no reference to check.
                let (call, _) = CheckedCall::completed(completed, generation, share);
                let client = task.client.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
                // A gateway that traces writes a context of its own.
                let traced = self.0.relay.traces.on();
                let field = task.run.as_ref().and_then(|run| run.traceparent.clone());
                let field = field.filter(|_| !traced);
                let field = field.map(|value| ("traceparent".to_owned(), value));
                Ok((Stored::new(client, field.as_slice())?, call))
            }
        }
    }
}

/// The request that a stored call stands for.
struct Stored {
    head: RequestHeader,
    client: IpAddr,
}

impl Stored {
    fn new(client: IpAddr, fields: &[(String, String)]) -> Result<Self, Rejection> {
        let mut head = RequestHeader::build(Method::POST, b"/", None).map_err(internal)?;
        for (name, value) in fields {
            // They were valid when they were stored.
            if let (Ok(name), Ok(value)) = (
                HeaderName::from_bytes(name.as_bytes()),
                HeaderValue::from_str(value),
            ) {
                head.append_header(name, value).map_err(internal)?;
            }
        }
        Ok(Self { head, client })
    }
}

/// Returns the rejection for a call with a card that could not be fetched.
fn refused(ended: Ended) -> Rejection {
    match ended {
        Ended::Refused(why) | Ended::BrokenOff(why) => why,
        Ended::Answered | Ended::CallerLeft => shutting_down(Delivery::NotSent),
    }
}

fn late() -> Rejection {
    let message = "the agent did not answer within timeouts.max; it may still work on it";
    Rejection::new(Reason::AgentTimeout, message)
        .fact("clock", "max")
        .delivered(Delivery::Sent)
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

/// Reads the agent's response.
///
/// # Errors
/// `agent_redirected`, `agent_protocol_error`.
fn read(head: &ResponseHeader, body: &[u8]) -> Result<Ending, Rejection> {
    refuse_redirect(head)?;
    let raw = |text: &str| RawValue::from_string(text.to_owned()).ok();
    let reply = Reply::read(body);
    if let Some(error) = reply.as_ref().and_then(Reply::error).and_then(raw) {
        return Ok(Ending::Error(error));
    }
    let result = reply.as_ref().and_then(Reply::result).and_then(raw);
    match result.filter(|_| head.status.is_success()) {
        Some(result) => Ok(Ending::Result(result)),
        None => {
            let message = if head.status == StatusCode::OK {
                "the agent's answer is no JSON-RPC response"
            } else {
                "the agent answered with an HTTP status other than 200, and no JSON-RPC error"
            };
            Err(Rejection::new(Reason::AgentProtocolError, message)
                .fact("status", head.status.as_u16())
                .delivered(Delivery::Sent))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_answers_is_a_result_an_error_or_neither() {
        let head = |status: u16| ResponseHeader::build(status, None).unwrap();
        let answer = |status, body: &str| read(&head(status), body.as_bytes());
        let result = answer(200, r#"{"jsonrpc":"2.0","id":"1","result":{"a":1.0}}"#);
        assert!(matches!(result, Ok(Ending::Result(raw)) if raw.get() == r#"{"a":1.0}"#));
        for status in [200, 400, 500] {
            let error = answer(status, r#"{"error":{"code":-32001,"message":"no"}}"#);
            assert!(matches!(error, Ok(Ending::Error(_))), "{status}");
        }
        for (status, body) in [(200, "hello"), (200, "{}"), (500, r#"{"result":1}"#)] {
            let why = answer(status, body).unwrap_err();
            assert_eq!(why.reason, Reason::AgentProtocolError, "{body}");
            assert_eq!(why.delivered, Some(Delivery::Sent));
        }
        let redirect = answer(307, "{}").unwrap_err();
        assert_eq!(redirect.reason, Reason::AgentRedirected);
    }
}
