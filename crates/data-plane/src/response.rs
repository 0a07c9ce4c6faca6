//! Sends a call over its connection and relays the answer, for the gateway and for a sidecar: a stream by
//! [`super::sse`], any other in one body. A short one is held back, so that a failure can still be answered with an
//! error instead of a broken connection.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode, header};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::ServerSession;
use pingora::upstreams::peer::HttpPeer;

use crate::admission::{AdmittedCall, Load};
use crate::filters::Rewrite;
use crate::listener::{internal_error, put_request_id, set_chunked, write_response, write_within};
use crate::parking::Turn;
use crate::record::{
    Answered, CallContext, Exchange, ExchangeError, WholeAnswer, box_cold_path, outcome_of_end,
    search_answer,
};
use crate::services::{Context, Request};
use crate::sse::{SnapshotRequest, StreamSetup, relay_stream};
use crate::upstream::{
    AgentConnection, AgentResponse, CancelWatch, Clocks, Relay, SentCall, WireRequest, await_head,
    follow_redirect, is_event_stream, next_piece, refuse_by_framing, refuse_by_head,
    refuse_redirect, reject_unread, too_large,
};
use a2a::completion_steps::CompletionSteps;
use a2a::method::Method as A2aMethod;
use a2a::reply::{Reply, shows_not_run};
use a2a::{Generation, without_mark};
use access::identity::Allowance;
use assembly::access_watch::AccessBasis;
use directory::tasks::Learner;
use directory::{Agent, CallOutcome, Observer, Slot};
use http1::{AnswerHead, AnswerReader, content_length_of, join_batch};
use kernel::dialect::Dialect;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::Share;

/// A call to forward.
pub(super) struct OutboundCall {
    /// The agent, at an address that passed the check.
    pub(super) peer: Box<HttpPeer>,
    /// The request in wire format.
    pub(super) call: WireRequest,
    /// The agent, if a redirect at the same server is followed: its caller token may be sent twice.
    pub(super) follows: Option<Arc<Agent>>,
    /// True if the place of a redirect counts for the next calls, too: of JSON-RPC, which has one path.
    pub(super) keeps_place: bool,
    /// The memory share of its body, until it is sent.
    pub(super) share: Share,
    /// The clocks of the exchange.
    pub(super) clocks: Clocks,
    /// The rewrite of the answer.
    pub(super) rewrite: Option<Rewrite>,
    /// The request for the task with which a stream begins.
    pub(super) snapshot: Option<WireRequest>,
    /// Searches the answer for the task, until the task and its state are found.
    pub(super) learner: Option<Box<Learner>>,
    /// The concurrency slot of the call at its target, until it is over.
    pub(super) slot: Option<Slot>,
    /// The turn of a call that was parked, until it is sent.
    pub(super) turn: Option<Turn>,
    /// The answers that its caller can read.
    pub(super) expected: ExpectedAnswer,
    /// What its answer may show of the generation that the agent takes.
    pub(super) attempt: Attempt,
}

/// Maximum bytes of an agent's `Content-Type` in a rejection.
const NAMED_TYPE_MAX: usize = 100;

/// The answers that a caller can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedAnswer {
    /// Any: that to a notification. Of a call through a sidecar the gateway in front of it judges the answer.
    Any,
    /// A JSON object, or a stream of events.
    Message,
    /// The same, or nothing: of HTTP+JSON, to a `DELETE`.
    MessageOrNothing,
}

impl ExpectedAnswer {
    /// Returns that of a call. `is_bare`: the gateway made its envelope, with an id. `is_rewritten`: the agent may be
    /// asked in another binding.
    pub(super) fn of_call(call: &CallContext, is_bare: bool, is_rewritten: bool) -> Self {
        let has_id = call.rpc_id.as_deref().is_some() || is_bare;
        let is_rest = match call.dialect {
            Dialect::HttpJson | Dialect::HttpJsonStatus => true,
            Dialect::JsonRpc | Dialect::JsonRpcOk if has_id => false,
            Dialect::JsonRpc | Dialect::JsonRpcOk | Dialect::Plain => return Self::Any,
        };
        if call.method == A2aMethod::DeletePushConfig && (is_rest || is_rewritten) {
            return Self::MessageOrNothing;
        }
        Self::Message
    }

    /// True if an answer with this head is judged by its body. An error of 4xx is an answer in any form.
    pub(super) fn judges(self, head: &ResponseHeader) -> bool {
        let status = head.status;
        let coding = head.headers.get(header::CONTENT_ENCODING);
        let is_coded = coding.is_some_and(|coding| coding != "identity");
        self != Self::Any && !is_coded && (status.is_success() || status.is_server_error())
    }

    /// Rejects an answer that is none: its body, or with `is_whole` unset the start of it, is no JSON object. That is a
    /// failure of the agent, or of what is in front of it.
    ///
    /// # Errors
    /// `agent_protocol_error`.
    pub(super) fn refuse_unreadable(
        self,
        head: &ResponseHeader,
        (body, is_whole): (&[u8], bool),
        slot: Option<&mut Slot>,
    ) -> Result<(), Rejection> {
        let body = without_mark(body).trim_ascii();
        let is_object = match is_whole {
            true => body.starts_with(b"{") && body.ends_with(b"}"),
            false => body.is_empty() || body.starts_with(b"{"),
        };
        let may_be_empty = self == Self::MessageOrNothing && body.is_empty();
        if is_object || may_be_empty || !self.judges(head) {
            return Ok(());
        }
        let status = head.status.as_u16();
        if let Some(slot) = slot {
            slot.finish(CallOutcome::from_unreadable(status));
        }
        let content_type = head.headers.get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        let content_type = content_type.map(|name| &name[..name.len().min(NAMED_TYPE_MAX)]);
        let what = match body.is_empty() {
            true => "no body",
            false => content_type.unwrap_or("a body without a type"),
        };
        let message = format!(
            "the agent, or a server in front of it, answered with HTTP status {status} and {what} instead of a JSON object; \
             check the URL of its workspace and what listens there"
        );
        // A server in front of an agent cannot say whether the agent ran it.
        let delivered = match status {
            502 | 504 => Delivery::Unknown,
            _ => Delivery::Sent,
        };
        let rejection = Rejection::new(Reason::AgentProtocolError, message)
            .with_fact("agent_status", status)
            .with_delivery(delivered);
        Err(match content_type {
            Some(content_type) => rejection.with_fact("agent_content_type", content_type),
            None => rejection,
        })
    }
}

/// An attempt at a call in one generation of A2A.
pub(super) enum Attempt {
    /// The only one, whatever the answer is.
    Only,
    /// The first: it is made in the other generation if the agent shows that it did not run it. `has_version`: it said
    /// its version.
    First { has_version: bool },
    /// The second: its answer shows what the agent takes. If that does not run it either, the caller gets the answer to
    /// the first.
    Second(Box<(Observer, WholeAnswer)>),
}

/// Rejects an answer by its head, before any part of it is passed on. One that only cannot be rewritten is an answer of
/// the agent.
pub(super) fn refuse_answer(
    head: &AnswerHead,
    (limit, rewrite): (u64, Option<&Rewrite>),
    slot: Option<&mut Slot>,
) -> Result<(), Rejection> {
    refuse_by_framing(head)?;
    let head = &head.fields;
    refuse_by_head(head, limit)?;
    let Some(rewrite) = rewrite else {
        return Ok(());
    };
    let refused = rewrite.refuse_by_head(head, is_event_stream(head));
    if let (Err(_), Some(slot)) = (&refused, slot) {
        slot.finish(CallOutcome::from_status(head.status.as_u16()));
    }
    refused
}

// Relays an answer that is one body. A short one is held back, so that a failure can still be answered with an error.

/// Maximum bytes of a unary answer that are held back, so that most failures can still be answered with an error. A
/// caller cannot use half a JSON document anyway.
const HELD_BYTES_MAX: usize = 32 * 1024;

/// One answer in one body.
struct UnaryRelay<'a> {
    session: &'a mut ServerSession,
    exchange: &'a mut Exchange,
    /// Maximum bytes of the body.
    limit: usize,
    /// True if the caller asked for no body.
    head_only: bool,
    /// The clocks of the exchange.
    clocks: &'a Clocks,
    /// The end of the shutdown's grace period.
    cut: CancelWatch,
    /// Set if the answer is rewritten, for which it must be complete.
    whole: Option<BufferedRewrite<'a>>,
    /// The head, until it is sent.
    head: Option<Box<ResponseHeader>>,
    /// The status of the agent's answer.
    status: u16,
    /// Searches the answer for the task.
    learner: Option<Box<Learner>>,
    /// The concurrency slot of the call.
    slot: &'a mut Option<Slot>,
    /// The answers that the caller can read.
    expected: ExpectedAnswer,
    /// What the answer may show.
    attempt: Attempt,
}

/// The state of an answer that is passed on only when it is complete.
struct BufferedRewrite<'a> {
    /// The rewrite of the answer.
    rewrite: Rewrite,
    /// The memory bound.
    load: &'a Load,
    /// The memory share that the answer takes.
    share: Share,
}

impl UnaryRelay<'_> {
    /// Relays the whole answer.
    async fn relay_answer(
        &mut self,
        mut answering: AgentResponse<'_>,
        length: Option<u64>,
    ) -> Result<Answered, ExchangeError> {
        if self.head_only {
            return self.relay_head(length).await;
        }
        let (mut held, mut read) = (BytesMut::new(), 0_usize);
        loop {
            let next = next_piece(
                Some(&mut *self.session),
                &mut answering.upstream,
                self.clocks,
                &mut self.cut,
            );
            let piece = match next.await {
                Ok(piece) => piece,
                Err(ExchangeError::Refused(rejection)) if self.head.is_none() => {
                    return Err(ExchangeError::BrokenOff(rejection));
                }
                Err(ended) => return Err(ended),
            };
            let Some(piece) = piece else { break };
            read += piece.len();
            if read > self.limit {
                let rejection = too_large(self.limit as u64);
                return Err(match self.head {
                    None => ExchangeError::BrokenOff(rejection),
                    Some(_) => rejection.into(),
                });
            }
            // Before the caller gets the id: it may ask for the task at once.
            let metrics = &self.exchange.call.metrics;
            if let Some(task) = search_answer(&mut self.learner, metrics, &piece).await {
                self.exchange.record.task = Some(task);
            }
            if let Some(whole) = &mut self.whole {
                let taken = whole.load.reserve(&mut whole.share, piece.len());
                taken.map_err(|full| full.with_delivery(Delivery::Sent))?;
            }
            let hold = self.whole.is_some() || held.len() + piece.len() <= HELD_BYTES_MAX;
            if self.head.is_some() && hold {
                // The usual answer comes in one piece and is not copied again.
                match held.is_empty() {
                    true => held = BytesMut::from(piece),
                    false => held.extend_from_slice(&piece),
                }
                continue;
            }
            if self.head.is_some() {
                let start = if held.is_empty() { &piece[..] } else { &held };
                self.refuse_unreadable(start, false)?;
                self.begin_response(length).await?;
                self.write_piece(held.split().freeze(), false).await?;
            }
            self.write_piece(piece, false).await?;
        }
        answering.home.check_in(answering.upstream);
        self.refuse_unreadable(&held, true)?;
        self.finish_slot();
        let (mut rest, may_repeat) = self.judge_attempt(held.freeze()).await;
        // Until the caller has it: an answer may be longer in its generation.
        let mut share = None;
        if let (Some(whole), Some(head)) = (self.whole.take(), &mut self.head) {
            let received = rest.len();
            let answer = (&mut **head, rest);
            let changed = whole.rewrite;
            let changed = changed.rewrite_body_within(answer, self.clocks.total, &mut self.cut);
            rest = changed.await?;
            let held = share.insert(whole.share);
            let more = rest.len().saturating_sub(received);
            let taken = whole.load.reserve(held, more);
            taken.map_err(|full| full.with_delivery(Delivery::Sent))?;
            self.exchange.record.status = head.status.as_u16();
        }
        if may_repeat && let Some(head) = self.head.take() {
            return Err(ExchangeError::NotRun(Box::new((*head, rest))));
        }
        join_batch().await;
        self.begin_response(Some(rest.len() as u64)).await?;
        self.exchange.record.mark_complete(rest.len());
        self.write_piece(rest, true).await?;
        Ok(Answered)
    }

    /// Judges a whole answer by the attempt at its call. Returns the answer for the caller, which is that to the first
    /// attempt if the agent did not run the second either, and true if the call may be made once more.
    async fn judge_attempt(&mut self, answer: Bytes) -> (Bytes, bool) {
        let attempt = std::mem::replace(&mut self.attempt, Attempt::Only);
        let second = match attempt {
            Attempt::First { has_version } => {
                let is_held = self.head.is_some();
                let may_repeat = is_held && shows_not_run(&answer, has_version);
                return (answer, may_repeat);
            }
            Attempt::Second(second) if self.head.is_some() => second,
            Attempt::Second(_) | Attempt::Only => return (answer, false),
        };
        let (observer, (head, body)) = *second;
        let reply = Reply::parse(&answer);
        let is_reply = reply.is_some_and(|one| one.result().is_some() || one.error().is_some());
        let is_not_run = shows_not_run(&answer, true);
        if is_reply {
            observer.record(!is_not_run).await;
        }
        if is_reply && !is_not_run {
            return (answer, false);
        }
        (self.head, self.whole) = (Some(Box::new(head)), None);
        (body, false)
    }

    /// Rejects an answer that is none, while it can still be rejected.
    fn refuse_unreadable(&mut self, body: &[u8], is_whole: bool) -> Result<(), Rejection> {
        let (expected, slot) = (self.expected, self.slot.as_mut());
        self.head.as_ref().map_or(Ok(()), |head| {
            expected.refuse_unreadable(head, (body, is_whole), slot)
        })
    }

    /// Records that the agent answered with its status, whatever its caller and the translation make of it, and frees
    /// its slot: the caller's next call finds it free.
    fn finish_slot(&mut self) {
        if let Some(mut slot) = self.slot.take() {
            slot.finish(CallOutcome::from_status(self.status));
        }
    }

    /// Relays an answer without its body. The connection is dropped: the bytes after such a head are undefined.
    async fn relay_head(&mut self, length: Option<u64>) -> Result<Answered, ExchangeError> {
        self.finish_slot();
        let length = length.filter(|_| self.whole.is_none());
        self.begin_response(length).await?;
        self.write_piece(Bytes::new(), true).await?;
        Ok(Answered)
    }

    /// Sends the head, unless it was sent before.
    async fn begin_response(&mut self, length: Option<u64>) -> Result<(), ExchangeError> {
        let Some(mut head) = self.head.take() else {
            return Ok(());
        };
        let bodiless = matches!(
            head.status,
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
        match length {
            _ if bodiless => {}
            None if self.head_only => {}
            Some(length) => {
                // One allocation: from a number it would take two.
                head.insert_header(header::CONTENT_LENGTH, length.to_string())?;
            }
            None => set_chunked(self.session, &mut head)?,
        }
        write_within(self.clocks.total, self.session.write_response_header(head)).await
    }

    async fn write_piece(&mut self, piece: Bytes, last: bool) -> Result<(), ExchangeError> {
        self.exchange.record.add_bytes(piece.len());
        let write = self.session.write_response_body(piece, last);
        write_within(self.clocks.total, write).await
    }
}

/// Builds the head for the caller from the agent's.
///
/// # Errors
/// `agent_redirected`; a field cannot be built, which is a bug.
pub(super) fn answer_head(
    context: &Context,
    agents: &ResponseHeader,
    session: &ServerSession,
    exchange: &Exchange,
    done: CompletionSteps,
) -> Result<ResponseHeader, Rejection> {
    refuse_redirect(agents)?;
    let passed = context.relay.response_fields.get().filter_head(agents);
    context.response_head(session, exchange, passed.map_err(internal_error)?, done)
}

/// Forwards the call over `connection`, and relays the answer with the head that `answer` builds from the agent's.
/// Dropping the future cancels the call.
pub(super) async fn relay_call(
    relay: &Relay,
    session: &mut ServerSession,
    exchange: &mut Exchange,
    (mut forward, connection): (OutboundCall, AgentConnection),
    answer: impl FnOnce(&ResponseHeader, &ServerSession, &Exchange) -> Result<ResponseHeader, Rejection>,
) -> Result<Answered, ExchangeError> {
    let mut slot = forward.slot.take();
    let ended = relay_response(
        relay,
        session,
        exchange,
        (forward, connection),
        &mut slot,
        answer,
    );
    let ended = ended.await;
    if let Some(slot) = &mut slot {
        slot.finish_unless(|patience| outcome_of_end(&ended, patience));
    }
    ended
}

/// Sends the call over `connection`.
pub(super) async fn send(
    relay: &Relay,
    (forward, connection): (&OutboundCall, AgentConnection),
    slot: Option<&Slot>,
    cut: &mut CancelWatch,
) -> Result<AnswerReader, ExchangeError> {
    let sent = relay.upstream.send_over(
        connection,
        &forward.peer,
        &forward.call,
        forward.clocks.total,
        (&relay.metrics, slot),
    );
    tokio::select! {
        biased;
        sent = sent => Ok(sent?),
        why = cut.cancelled(Delivery::Unknown) => Err(why.into()),
    }
}

/// Waits for the head of the answer to a call that was sent, also where the agent redirects it.
async fn await_answer(
    relay: &Relay,
    session: &mut ServerSession,
    exchange: &mut Exchange,
    (peer, call): (&HttpPeer, &WireRequest),
    (agent, keeps_place): (Option<&Arc<Agent>>, bool),
    (mut upstream, clocks, cut): (AnswerReader, &Clocks, &mut CancelWatch),
) -> Result<(AnswerReader, Box<AnswerHead>), ExchangeError> {
    await_head(Some(session), &mut upstream, clocks, cut).await?;
    exchange.record_head_time();
    let head = upstream.take_head().map_err(reject_unread)?;
    let place = exchange.call.target.as_ref().filter(|_| keeps_place);
    match head.fields.status.as_u16() {
        300..400 => {
            let sent = SentCall {
                peer,
                call,
                agent,
                place,
            };
            let caller = Some(session);
            let again = follow_redirect(relay, caller, sent, &head.fields, clocks, cut);
            if let Some(again) = box_cold_path(again).await? {
                return Ok(again);
            }
        }
        404 | 405 | 410 => box_cold_path(relay.forget_place(place)).await,
        _ => {}
    }
    Ok((upstream, head))
}

/// As [`relay_call`]. A stream takes the slot.
async fn relay_response(
    relay: &Relay,
    session: &mut ServerSession,
    exchange: &mut Exchange,
    (mut forward, connection): (OutboundCall, AgentConnection),
    slot: &mut Option<Slot>,
    answer: impl FnOnce(&ResponseHeader, &ServerSession, &Exchange) -> Result<ResponseHeader, Rejection>,
) -> Result<Answered, ExchangeError> {
    // Used in place: a value moved out of an argument takes space in the future twice.
    let clocks = forward.clocks;
    join_batch().await;
    let mut cut = relay.watch_exchange(exchange);
    let upstream = send(relay, (&forward, connection), slot.as_ref(), &mut cut).await?;
    drop(forward.turn.take());
    forward.call.keep_for_redirect(forward.follows.is_some());
    let call = (&*forward.peer, &forward.call);
    let place = (forward.follows.as_ref(), forward.keeps_place);
    let answered = (upstream, &clocks, &mut cut);
    let answered = await_answer(relay, session, exchange, call, place, answered);
    let (upstream, agents) = answered.await?;
    forward.call = WireRequest::default();
    // An answer that is rewritten is charged to its caller's share, as the request was, until it is complete.
    let share = forward.share;
    let whole = forward.rewrite.map(|rewrite| BufferedRewrite {
        rewrite,
        load: &relay.load,
        share,
    });
    let head = &agents.fields;
    exchange.record.set_call_status(head.status);
    let limit = exchange.call.config.limits.response_bytes.0;
    let rewrite = whole.as_ref().map(|whole| &whole.rewrite);
    refuse_answer(&agents, (limit, rewrite), slot.as_mut())?;
    let head_only = session.req_header().method == Method::HEAD;
    let is_stream = is_event_stream(head) && !head_only;
    let answer = answer(head, session, exchange)?;
    let status = head.status.as_u16();
    exchange.record.status = status;
    let length = content_length_of(&head.headers);
    let idle = exchange.call.config.upstream.idle;
    let framed = length.is_some() || head.headers.contains_key(header::TRANSFER_ENCODING);
    let answering = AgentResponse {
        home: relay.upstream.connector.pool_handle(idle),
        upstream,
    };
    // A waiting stream does not hold it.
    drop(agents);
    if is_stream {
        if let Attempt::Second(second) = forward.attempt {
            second.0.record(true).await;
        }
        exchange.record_stream();
        let begun = StreamSetup {
            clocks,
            // A stop ends it by `cut_off`.
            cut: CancelWatch::for_drain(&relay.drain),
            framed,
            expects_events: forward.expected.judges(&answer),
            rewrite: whole.map(|whole| whole.rewrite),
            snapshot: SnapshotRequest::new(forward.snapshot, forward.peer),
            learner: forward.learner,
            slot: slot.take(),
            cut_off: relay.cut_off(
                AccessBasis::Credential,
                exchange.call.proof.as_ref(),
                exchange.call.target.as_ref(),
            ),
        };
        // Boxed: a waiting stream then holds only the state of the stream.
        Box::pin(relay_stream(
            relay, session, exchange, answering, answer, begun,
        ))
        .await
    } else {
        let limit = exchange.call.config.limits.response_bytes.bytes();
        let mut unary = UnaryRelay {
            session,
            exchange,
            limit,
            head_only,
            clocks: &clocks,
            cut,
            whole,
            head: Some(Box::new(answer)),
            status,
            learner: forward.learner,
            slot,
            expected: forward.expected,
            attempt: forward.attempt,
        };
        unary.relay_answer(answering, length).await
    }
}

impl Context {
    /// Adds the fields of every answer to a head: the passed fields of the agent's, or the gateway's own. `done`: the
    /// completions, for `X-A2A-Completed`.
    ///
    /// # Errors
    /// A field cannot be built, which is a bug.
    pub(super) fn response_head(
        &self,
        session: &ServerSession,
        exchange: &Exchange,
        mut head: ResponseHeader,
        done: CompletionSteps,
    ) -> Result<ResponseHeader, Rejection> {
        if let Some(bridged) = exchange.call.translation {
            bridged.write_to(&mut head).map_err(internal_error)?;
        }
        put_request_id(&mut head, &exchange.call.request_id).map_err(internal_error)?;
        let allowance = exchange.call.allowance.iter();
        for (name, value) in allowance.flat_map(Allowance::header_fields) {
            head.append_header(name, value).map_err(internal_error)?;
        }
        if !done.is_empty() {
            head.append_header("x-a2a-completed", done.to_string())
                .map_err(internal_error)?;
        }
        let request = &session.req_header().headers;
        self.origins.get().put_browser_fields(request, &mut head);
        Ok(head)
    }
}

impl Request<'_> {
    /// Returns the head of the request.
    pub(super) fn head(&self) -> &RequestHeader {
        self.session.req_header()
    }

    /// Returns the generation that the target speaks. `is_bare`: the call is built in it.
    ///
    /// # Errors
    /// The caller left, or the process shuts down.
    pub(super) async fn target_generation(
        &mut self,
        admitted: &AdmittedCall,
        is_bare: bool,
    ) -> Result<Generation, ExchangeError> {
        let (caller, exchange) = (Some(&mut *self.session), &*self.exchange);
        let cards = &self.context.cards;
        cards.generation(caller, exchange, admitted, is_bare).await
    }

    /// Adds the fields of every answer to a head.
    ///
    /// # Errors
    /// As [`Context::response_head`].
    pub(super) fn response_head(
        &self,
        head: ResponseHeader,
        done: CompletionSteps,
    ) -> Result<ResponseHeader, Rejection> {
        let (session, exchange) = (&*self.session, &*self.exchange);
        self.context.response_head(session, exchange, head, done)
    }

    /// Sends an answer in one body, and records its status and size.
    ///
    /// # Errors
    /// The caller left.
    pub(super) async fn respond(
        &mut self,
        head: ResponseHeader,
        body: Bytes,
    ) -> Result<Answered, ExchangeError> {
        self.exchange.record.status = head.status.as_u16();
        self.exchange.record.add_bytes(body.len());
        write_response(self.session, head, body).await?;
        Ok(Answered)
    }
}
