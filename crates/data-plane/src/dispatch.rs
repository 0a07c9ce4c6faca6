//! Sends deferred calls (`mailbox/src/jobs/`): through the same admission as a message, at the moment of sending,
//! with the principal that made the call. Finds due calls, decides whether each can be sent, and sends it.
//!
//! A call is delivered at most once. It is tried again only while nothing was delivered: everything up to the
//! connection comes before its row becomes `dispatched`, and after that only an error that proves it was not
//! delivered puts it back.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use pingora::http::{RequestHeader, ResponseHeader};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::admission::{AdmittedCall, AllowedCaller, build_binder, declared_version};
use crate::complete::{CallShape, CheckedCall, complete_body};
use crate::fetch::BufferedRequest;
use crate::filters::Rewrite;
use crate::listener::internal_error;
use crate::policy::{
    ContentCall, UncountedCall, ask_about_reply, check_access, check_content, permit_target,
    rewrite_guarded, set_guards,
};
use crate::record::{Answered, Exchange, box_cold_path, outcome_of_rejection, search_answer};
use crate::response::ExpectedAnswer;
use crate::services::Context;
use crate::trace::ExchangeOrigin;
use crate::upstream::{SentCall, WireRequest, refuse_redirect, shutting_down};
use crate::upstream_request::{
    AgentCall, Origin, callee_attributes, resolve_peer, translate_for_inbox,
};
use crate::wake::wake_workspace;
use a2a::Generation;
use a2a::method::Method as A2aMethod;
use a2a::refs::Refs;
use a2a::reply::Reply;
use a2a::state::TaskState;
use a2a::task::Binding;
use access::caps::Charge;
use access::explain::Live;
use access::identity::Proof;
use access::workspace::{CallerProof, Timestamp};
use directory::tasks::Learner;
use directory::{Agent, CallKind, CallOutcome, Destination, LookupFor, OwnTimeouts, Slot};
use kernel::deadline::ticks;
use kernel::ids::WorkspaceId;
use kernel::metrics::InProgress;
use kernel::rejection::{AtStage as _, Delivery, Reason, Rejection};
use kernel::shares::{Account, Bound, Share, Shares};
use kernel::stage::Stage;
use mailbox::jobs::{Attempt, Content, Ending, Job, Listeners, Task, deadline_expired, request_id};

/// Interval of looks for due calls without a wake-up: for calls that another replica accepted and does not
/// send, and for calls that wait for their time.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Maximum calls of one replica in progress. Each may hold a response of `limits.response_bytes`.
const RUNNING_MAX: usize = 256;

/// Maximum calls to one target, so that a slow or unreachable target does not take all of them.
const RUNNING_PER_TARGET_MAX: usize = 32;

/// Calls claimed at once.
const BATCH: usize = 16;

/// Pause before the next attempt at a busy target; shorter if one of its calls ends here.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// Attempts to write that a call is due again which may have recorded that it leaves: without the write it would be
/// lost when its lease ends.
const PUT_BACK_TRIES: u32 = 3;

/// Pause before the next attempt at a call that a stop covers.
const STOPPED_PAUSE: Duration = Duration::from_secs(1);

/// Dispatcher of due calls; runs until the process ends.
#[derive(Clone)]
pub struct Dispatcher(Arc<Context>);

/// The places of calls in progress: each target has some, and so there are some for others.
const PLACES: Bound = Bound {
    all: RUNNING_MAX,
    least: RUNNING_PER_TARGET_MAX,
    each: RUNNING_PER_TARGET_MAX,
};

/// Calls in progress on this replica.
#[derive(Default)]
struct RunningCalls {
    calls: JoinSet<()>,
    places: Arc<Shares>,
}

impl RunningCalls {
    /// Takes a place for one more call to the target. `None`: it has as many as it may.
    fn take_place(&self, target: &WorkspaceId) -> Option<Share> {
        let account = Account::of_owner(target.as_str());
        self.places.take(account, 1, PLACES).ok()
    }

    fn spawn(&mut self, place: Option<Share>, call: impl Future<Output = ()> + Send + 'static) {
        self.calls.spawn(async move {
            let _place = place;
            call.await;
        });
    }
}

/// The reason why a call is not sent now.
enum Refusal {
    /// The target is away or busy, or a stop covers it. True if it counts as an attempt.
    Later(Rejection, bool),
    /// It can never be sent.
    Never(Rejection),
}

impl Dispatcher {
    pub(super) fn new(context: Arc<Context>) -> Self {
        let [records, judges] = [Arc::downgrade(&context), Arc::downgrade(&context)];
        let listeners = Listeners {
            given_up: Box::new(move |job, why| {
                if let Some(context) = records.upgrade() {
                    Self(context).record_given_up(job, why);
                }
            }),
            judge: Box::new(move |job, said| {
                let context = judges.upgrade();
                Box::pin(async move {
                    match context {
                        Some(context) => ask_about_reply(&context, job, said).await,
                        None => Err(Rejection::new(Reason::ShuttingDown, "the process ends")),
                    }
                })
            }),
        };
        let jobs = &context.gateway.delivery.jobs;
        jobs.listeners.store(Some(Arc::new(listeners)));
        Self(context)
    }

    /// Runs until a drain begins and the attempts in progress are over.
    pub async fn run(&self) {
        let gateway = &self.0.gateway;
        let mut running = RunningCalls::default();
        let mut tick = ticks(LOOK_EVERY);
        let mut more = false;
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = gateway.delivery.jobs.wait_for_news() => {}
                Some(_) = running.calls.join_next(), if more => {}
                () = gateway.drain.wait_for_leave() => break,
            }
            while running.calls.try_join_next().is_some() {}
            more = self.send_due(&mut running).await;
        }
        while running.calls.join_next().await.is_some() {}
    }

    /// Starts to send due calls. True if there may be more.
    async fn send_due(&self, running: &mut RunningCalls) -> bool {
        let jobs = &self.0.gateway.delivery.jobs;
        loop {
            let room = RUNNING_MAX.saturating_sub(running.calls.len()).min(BATCH);
            if room == 0 || self.0.gateway.is_draining() {
                return true;
            }
            // An outage of the store: the next look finds them.
            let Ok(due) = jobs.claim_due(u32::try_from(room).unwrap_or(1)).await else {
                return false;
            };
            let taken = due.len();
            let mut away: HashMap<WorkspaceId, Duration> = HashMap::new();
            for job in due {
                if let Some(pause) = away.get(&job.target) {
                    jobs.put_back(&job, *pause, false, 1).await;
                    continue;
                }
                let attempt = jobs.begin_attempt(&job.target);
                let place = running.take_place(&job.target);
                let admitted = match place {
                    Some(_) => self.admit(&job).await,
                    None => {
                        let message = "as many calls that are made later as may be are in progress at the target";
                        let busy = Rejection::new(Reason::AgentBusy, message);
                        Err(Refusal::Later(busy, false))
                    }
                };
                match admitted {
                    Ok((admitted, slot)) => {
                        let sending = self.clone().send(job, attempt, admitted, slot);
                        running.spawn(place, sending);
                    }
                    Err(Refusal::Later(why, tried)) => {
                        let parked = self.postpone(&job, attempt, &why, tried, 1).await;
                        away.extend(parked.map(|pause| (job.target, pause)));
                    }
                    Err(Refusal::Never(why)) => {
                        running.spawn(place, self.clone().give_up(job, why));
                    }
                }
            }
            if taken < room {
                return false;
            }
        }
    }

    /// Makes a call due again that was not delivered, after `why`, and puts off all calls for its target if that is
    /// away or busy: for how long. `tried`: it counts as an attempt. `tries`: how often the write is tried.
    async fn postpone(
        &self,
        job: &Job,
        attempt: Attempt,
        why: &Rejection,
        tried: bool,
        tries: u32,
    ) -> Option<Duration> {
        let jobs = &self.0.gateway.delivery.jobs;
        let is_share = why.is_share_exhausted();
        let (pause, tried, parks) = match why.reason {
            // Another process can send it at once.
            Reason::ShuttingDown => (Duration::ZERO, false, false),
            // It waits for the release of the stop, and its target is not away.
            Reason::Stopped => (STOPPED_PAUSE, false, false),
            // Calls of others are not put off with it.
            _ if is_share => (job.backoff(), true, false),
            _ if tried => (job.backoff(), true, true),
            _ => (BUSY_PAUSE, false, true),
        };
        let reason = why.reason.as_str();
        tracing::debug!(job = job.id, reason, ?pause, "deferred call postponed");
        jobs.put_back(job, pause, tried, tries).await;
        if !parks {
            return None;
        }
        jobs.park_target(attempt, pause).await;
        Some(pause)
    }

    /// Has the target woken if it sleeps. The call stays due: it is tried again when the target has changed.
    async fn wake_target(&self, target: &WorkspaceId) {
        let waking = &self.0.gateway.directory.waking;
        if let Ok(Some(times)) = waking.wake_times(target).await {
            wake_workspace(&self.0, target, times);
        }
    }

    /// Runs the checks of a message in their order, except those of a request. Returns the call, with its slot among
    /// the target's calls if it takes one.
    async fn admit(&self, job: &Job) -> Result<(Box<AdmittedCall>, Option<Slot>), Refusal> {
        let gateway = &self.0.gateway;
        let Some(proof) = gateway.identity.restore_proof(&job.caller) else {
            let message = "the call was accepted in auth.mode = \"open\", which is over";
            let why = Rejection::new(Reason::NotPermitted, message);
            return Err(Refusal::Never(why.mark_not_sent()));
        };
        let permit = permit_target(gateway, &proof, &job.target, &mut Live).await;
        let permit = permit.map_err(refuse)?;
        let checked = check_access(gateway, (&proof, &permit), &mut Live).await;
        checked.map_err(refuse)?;
        let destination = match gateway.resolution.resolve(&permit).await {
            Ok(destination) => destination,
            Err(why) => {
                self.wake_target(&job.target).await;
                return Err(refuse(why));
            }
        };
        let proof = Arc::new(proof);
        let allowed = AllowedCaller { proof, permit };
        let (hops, refs) = (job.content.hops(), parse_refs(job));
        let admitted = AdmittedCall::own(gateway, (allowed, destination), hops, &refs);
        let admitted = admitted.await.map_err(refuse)?;
        let account = admitted.allowed.account();
        let slot = match &admitted.destination {
            Destination::Agent(agent) => {
                let slot = agent.slots.take(account, CallKind::Unary);
                Some(slot.map_err(|busy| Refusal::Later(busy.why.at(Stage::Slots), false))?)
            }
            Destination::Inbox(_) => None,
        };
        Ok((Box::new(admitted), slot))
    }
}

/// Returns the task and the context that a call names; none for one that cannot be read.
fn parse_refs(job: &Job) -> Refs {
    #[derive(Deserialize)]
    struct Envelope<'a> {
        #[serde(borrow)]
        params: &'a RawValue,
    }
    let Content::Call(call) = &job.content else {
        return Refs::default();
    };
    let envelope: Option<Envelope<'_>> = serde_json::from_str(&call.body).ok();
    let refs = envelope.map(|envelope| {
        Refs::from_rest_body(envelope.params.get().as_bytes(), A2aMethod::SendMessage)
    });
    refs.and_then(Result::ok).unwrap_or_default()
}

/// Decides about a call that was rejected before it was sent.
fn refuse(why: Rejection) -> Refusal {
    if is_transient(why.reason) {
        Refusal::Later(why, true)
    } else {
        Refusal::Never(why.mark_not_sent())
    }
}

/// True if a later attempt may succeed.
fn is_transient(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::WorkspaceOffline
            | Reason::WorkspaceRestarting
            | Reason::AgentBusy
            | Reason::AgentUnreachable
            | Reason::AgentTimeout
            | Reason::StoreUnavailable
            | Reason::GuardUnavailable
            | Reason::Overloaded
            | Reason::ShuttingDown
            | Reason::Stopped
    )
}

// One attempt to send a deferred call.

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

impl Dispatcher {
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
            AttemptResult::Nothing(why) => {
                self.postpone(&job, one_try, &why, true, PUT_BACK_TRIES)
                    .await;
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
        let names = exchange.read_names(&stored.head.headers, &call.body);
        names.await;
        exchange.record.charge = self.measure_charge(admitted, exchange).await?;
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
        let connect = exchange.call.config.timeouts.connect;
        let peer = resolve_peer(context, agent, &call, asker, connect).await;
        let peer = peer.at(Stage::Address).map_err(Rejection::mark_not_sent)?;
        exchange.begin_call_span(&callee_attributes(agent, &call));
        let timeouts = &exchange.call.config.timeouts;
        let patience = job.deadline.since(Timestamp::now()).min(timeouts.max);
        let origin = Origin {
            head: &stored.head,
            client: stored.client,
        };
        let wire = agents.write_head(&origin, exchange, &call).await;
        let question = BufferedRequest {
            peer: &peer,
            call: WireRequest::new(wire.map_err(Rejection::mark_not_sent)?, call.body),
            deadline: Instant::now() + patience,
            bytes_max: exchange.call.config.limits.response_bytes.bytes(),
            idle: exchange.call.config.upstream.idle,
            late: call_timeout,
        };
        exchange.record.instance = admitted.instance().cloned();
        let rewrite = rewrite_guarded(call.guarded.take(), call.rewrite);
        let agent = (admitted, agent, slot);
        self.call_agent(job, agent, (&question, rewrite), exchange)
            .await
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
    ) -> Result<Option<Box<Charge>>, Rejection> {
        let (gateway, allowed) = (&self.0.gateway, &admitted.allowed);
        let call = box_cold_path(UncountedCall::from_call(gateway, exchange, allowed)).await;
        Ok(call
            .map_err(Rejection::mark_not_sent)?
            .map(|call| call.measure()))
    }

    /// Attempts the call. Everything up to the connection can be repeated; the rest happens once.
    async fn call_agent(
        &self,
        job: &Job,
        (admitted, agent, slot): (&AdmittedCall, &Arc<Agent>, &mut Option<Slot>),
        (question, rewrite): (&BufferedRequest<'_>, Option<Rewrite>),
        exchange: &mut Exchange,
    ) -> Result<AttemptResult, Rejection> {
        let mut cut = self.0.relay.watch_exchange(exchange);
        let (upstream, metrics) = (&self.0.relay.upstream, &self.0.relay.metrics);
        exchange.record.start_call_span();
        let connection = tokio::select! {
            biased;
            why = cut.cancelled(Delivery::NotSent) => return Err(why),
            connection = timeout_at(question.deadline, upstream.connect(question.peer)) => {
                let late = |_| Err(deadline_expired(Delivery::NotSent));
                let connection = connection.map_or_else(late, |made| made.map_err(Rejection::from));
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
            answered = question.send_over(connection, upstream, metrics) => answered?,
            why = cut.cancelled(Delivery::Unknown) => return Err(why),
        };
        let sent = SentCall {
            peer: question.peer,
            call: &question.call,
            // A token of one request proves nothing the second time.
            agent: Some(agent).filter(|agent| agent.proof == CallerProof::Pair),
            place: Some(&job.target),
        };
        if let Some(call) = sent.redirected(&self.0.relay, &head).await? {
            let again = BufferedRequest { call, ..*question };
            (head, body) = tokio::select! {
                biased;
                answered = again.send(upstream, metrics) => answered?,
                why = cut.cancelled(Delivery::Unknown) => return Err(why),
            };
            sent.keep_place(&self.0.relay, &again.call, &head).await;
        }
        exchange.record.set_call_status(head.status);
        exchange.record.status = head.status.as_u16();
        exchange.record.add_bytes(body.len());
        let judged = (&body[..], true);
        ExpectedAnswer::Message.refuse_unreadable(&head, judged, slot.as_mut())?;
        if let Some(slot) = slot {
            slot.finish(CallOutcome::from_status(head.status.as_u16()));
        }
        if let Some(rewrite) = rewrite {
            let deadline = question.deadline;
            let answer = (&mut head, body);
            body = rewrite
                .rewrite_body_within(answer, deadline, &mut cut)
                .await?;
        }
        let ending = read_response(&head, &body)?;
        let mut learner = Learner::for_state(Binding::Rpc);
        if let Some(binder) = build_binder(&self.0.gateway, admitted) {
            learner.set_binder(binder);
        }
        let learner = &mut Some(Box::new(learner));
        if let Some(task) = search_answer(learner, &exchange.call.metrics, &body).await {
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

/// Returns the rejection of a call that waited without an answer: the process ends.
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

/// Reads the agent's response.
///
/// # Errors
/// `agent_redirected`, `agent_protocol_error`.
pub(super) fn read_response(head: &ResponseHeader, body: &[u8]) -> Result<Ending, Rejection> {
    refuse_redirect(head)?;
    let raw = |text: &str| RawValue::from_string(text.to_owned()).ok();
    let reply = Reply::parse(body);
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
                .with_fact("status", head.status.as_u16())
                .with_delivery(Delivery::Sent))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_answers_is_a_result_an_error_or_neither() {
        let head = |status: u16| ResponseHeader::build(status, None).unwrap();
        let answer = |status, body: &str| read_response(&head(status), body.as_bytes());
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
