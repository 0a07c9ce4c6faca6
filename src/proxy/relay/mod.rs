//! Forwards an admitted call and relays the answer within its clocks and bounds, for the gateway and for a sidecar. A
//! short unary answer is held back, so that a failure can still be answered with an error instead of a broken
//! connection.

pub(in crate::proxy) mod answer;
pub(in crate::proxy) mod answer_head;
pub(in crate::proxy) mod cancel_watch;
mod certificates;
pub(in crate::proxy) mod failure;
pub(in crate::proxy) mod fetch;
pub(in crate::proxy) mod fields;
pub(in crate::proxy) mod forward;
pub(in crate::proxy) mod pool;
pub(in crate::proxy) mod response_translator;
pub(in crate::proxy) mod rewrite;
pub(in crate::proxy) mod stream;
mod unary;
pub(in crate::proxy) mod upstream;
pub(in crate::proxy) mod verdict;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::upstreams::peer::HttpPeer;
use tokio::time::{Instant, sleep_until};

use self::answer::{AnswerHead, AnswerReader};
use self::answer_head::{ResponseFields, content_length, refuse_by_framing, refuse_by_head};
pub(in crate::proxy) use self::answer_head::{content_length_of, is_event_stream, refuse_redirect};
pub(in crate::proxy) use self::cancel_watch::CancelWatch;
use self::failure::{agent_silent, timed_out};
use self::rewrite::Rewrite;
use self::stream::SnapshotRequest;
use self::unary::{BufferedRewrite, UnaryRelay};
use self::upstream::{AgentConnection, PoolHandle, Upstream, WireRequest};
use self::verdict::outcome_of_end;
use crate::access_watch::{AccessBasis, CutOff};
use crate::config::{Derived, Live, Timeouts};
use crate::delivery::streams::Streams;
use crate::directory::{self, CallOutcome};
use crate::drain::Drain;
use crate::gateway::Gateway;
use crate::identity::Proof;
use crate::ids::WorkspaceId;
use crate::metrics::Metrics;
use crate::proxy::batch::join_batch;
use crate::proxy::load::Load;
use crate::proxy::outcome::ExchangeOutcome;
use crate::proxy::parking::Turn;
use crate::proxy::record::Exchange;
use crate::proxy::respond::caller_gone;
use crate::rejection::{Delivery, Rejection};
use crate::shares::Share;
use crate::telemetry::traces::Traces;

/// Maximum pooled connections to all agents, of all threads.
const POOL_SIZE: usize = 4096;

/// The state of forwarding, for the gateway or a sidecar: connections to agents, configuration, bounds and shutdown.
pub(super) struct Relay {
    /// The configuration in force.
    pub(super) config: Live,
    /// The metrics of this process.
    pub(super) metrics: Arc<Metrics>,
    /// The shutdown of this process.
    pub(super) drain: Arc<Drain>,
    /// Connections to agents.
    pub(super) upstream: Upstream,
    /// The load that is admitted.
    pub(super) load: Load,
    /// The store of streamed events. `None`: streams cannot be resumed.
    pub(super) streams: Option<Arc<Streams>>,
    /// The gateway that can revoke a caller's access to a stream. `None`: access is never revoked.
    standing: Option<Arc<Gateway>>,
    /// The exporter of spans.
    pub(super) traces: Traces,
    /// The fields of agents' answers that pass.
    pub(super) response_fields: Derived<ResponseFields>,
}

/// The clocks of one exchange (`docs/reference/a2a.md`, "Clocks and limits").
#[derive(Clone, Copy)]
pub(in crate::proxy) struct Clocks {
    /// Maximum time from the sent request to the response head.
    pub(in crate::proxy) head: Duration,
    /// Maximum silence between two pieces.
    pub(in crate::proxy) idle: Duration,
    /// Deadline of a unary exchange.
    pub(in crate::proxy) total: Instant,
    /// Deadline of a stream.
    pub(in crate::proxy) stream: Instant,
}

impl Clocks {
    /// Takes the configured clocks, or `idle` and what the request asks for instead.
    pub(in crate::proxy) fn new(
        timeouts: &Timeouts,
        started: Instant,
        asked: Option<Duration>,
        idle: Option<Duration>,
    ) -> Self {
        Self {
            head: asked.unwrap_or(timeouts.head),
            idle: idle.unwrap_or(timeouts.idle),
            total: started + asked.unwrap_or(timeouts.total),
            stream: started + timeouts.stream.max(asked.unwrap_or_default()),
        }
    }
}

/// A call to forward.
pub(super) struct OutboundCall {
    /// The agent, at an address that passed the check.
    pub(super) peer: Box<HttpPeer>,
    /// The request in wire format.
    pub(super) call: WireRequest,
    /// The memory share of its body, until it is sent.
    pub(super) share: Share,
    /// The clocks of the exchange.
    pub(super) clocks: Clocks,
    /// The rewrite of the answer.
    pub(super) rewrite: Option<Rewrite>,
    /// The request for the task with which a stream begins.
    pub(super) snapshot: Option<WireRequest>,
    /// The concurrency slot of the call at its target, until it is over.
    pub(super) slot: Option<directory::Slot>,
    /// The turn of a call that was parked, until it is sent.
    pub(super) turn: Option<Turn>,
}

impl Relay {
    /// Creates the state. Opens no connection.
    pub(super) fn new(
        config: Live,
        metrics: Arc<Metrics>,
        drain: Arc<Drain>,
        streams: Option<Arc<Streams>>,
        traces: Traces,
    ) -> Self {
        let threads = config.get().server.threads();
        Self {
            standing: None,
            streams,
            traces,
            response_fields: Derived::new(&config, |config, _| ResponseFields::new(config)),
            load: Load::new(config.clone(), Arc::clone(&metrics), Arc::clone(&drain)),
            config,
            metrics,
            upstream: Upstream::new(POOL_SIZE, threads, Arc::clone(&drain)),
            drain,
        }
    }

    /// Sets the gateway, which ends a stream when its caller loses access.
    pub(super) fn with_gateway(self, gateway: &Arc<Gateway>) -> Self {
        Self {
            standing: Some(Arc::clone(gateway)),
            ..self
        }
    }

    /// Returns a future that ends when the caller loses access to the target's stream. `None` if it never does.
    pub(super) fn cut_off(
        &self,
        needs: AccessBasis,
        proof: Option<&Arc<Proof>>,
        target: Option<&WorkspaceId>,
    ) -> Option<CutOff> {
        let (gateway, proof) = self.standing.as_ref().zip(proof)?;
        Some(gateway.cut_off(needs, Arc::clone(proof), target?.clone()))
    }

    /// Returns the watch of an exchange over what may end it: the drain, or a stop of an operator.
    pub(super) fn watch_exchange(&self, exchange: &Exchange) -> CancelWatch {
        let (proof, target) = (exchange.proof.as_ref(), exchange.callee.as_ref());
        self.watch_call(proof, target)
    }

    /// As [`Relay::watch_exchange`], for a call that may have no exchange any more.
    pub(super) fn watch_call(
        &self,
        proof: Option<&Arc<Proof>>,
        target: Option<&WorkspaceId>,
    ) -> CancelWatch {
        CancelWatch::for_call(&self.drain, self.standing.as_ref(), proof, target)
    }

    /// Forwards the call over `connection`, and relays the answer with the head that `answer` builds from the agent's.
    /// Dropping the future cancels the call.
    pub(super) async fn run(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        (mut forward, connection): (OutboundCall, AgentConnection),
        answer: impl FnOnce(
            &ResponseHeader,
            &ServerSession,
            &Exchange,
        ) -> Result<ResponseHeader, Rejection>,
    ) -> Result<ExchangeOutcome, ExchangeOutcome> {
        let mut slot = forward.slot.take();
        let ended =
            self.relay_response(session, exchange, (forward, connection), &mut slot, answer);
        let ended = ended.await;
        if let Some(slot) = &mut slot {
            slot.finish_unless(|patience| match &ended {
                Ok(ended) | Err(ended) => outcome_of_end(ended, patience),
            });
        }
        ended
    }

    /// Sends the call over `connection`.
    async fn send(
        &self,
        (forward, connection): (&OutboundCall, AgentConnection),
        slot: Option<&directory::Slot>,
        cut: &mut CancelWatch,
    ) -> Result<AnswerReader, ExchangeOutcome> {
        let sent = self.upstream.send_over(
            connection,
            &forward.peer,
            &forward.call,
            forward.clocks.total,
            (&self.metrics, slot),
        );
        tokio::select! {
            biased;
            sent = sent => Ok(sent?),
            why = cut.cancelled(Delivery::Unknown) => Err(why.into()),
        }
    }

    /// As [`Relay::run`]. A stream takes the slot.
    async fn relay_response(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        (forward, connection): (OutboundCall, AgentConnection),
        slot: &mut Option<directory::Slot>,
        answer: impl FnOnce(
            &ResponseHeader,
            &ServerSession,
            &Exchange,
        ) -> Result<ResponseHeader, Rejection>,
    ) -> Result<ExchangeOutcome, ExchangeOutcome> {
        // Used in place: a value moved out of an argument takes space in the future twice.
        let clocks = forward.clocks;
        join_batch().await;
        let mut cut = self.watch_exchange(exchange);
        let call = (&forward, connection);
        let mut upstream = self.send(call, slot.as_ref(), &mut cut).await?;
        drop((forward.call, forward.turn));
        // An answer that is rewritten is charged to its caller's share, as the request was, until it is complete.
        let share = forward.share;
        let whole = forward.rewrite.map(|rewrite| BufferedRewrite {
            rewrite,
            load: &self.load,
            share,
        });
        await_head(Some(session), &mut upstream, &clocks, &mut cut).await?;
        exchange.answer.head = Some(exchange.started.elapsed());
        let agents = upstream.take_head()?;
        let head = &agents.fields;
        exchange.record_call_status(head.status);
        let limit = exchange.config.limits.response_bytes.0;
        let rewrite = whole.as_ref().map(|whole| &whole.rewrite);
        refuse_answer(&agents, (limit, rewrite), slot.as_mut())?;
        let head_only = session.req_header().method == Method::HEAD;
        let is_stream = is_event_stream(head) && !head_only;
        let answer = answer(head, session, exchange)?;
        exchange.answer.status = head.status.as_u16();
        let length = content_length(head);
        let idle = exchange.config.upstream.idle;
        let framed = length.is_some() || head.headers.contains_key(header::TRANSFER_ENCODING);
        let answering = AgentResponse {
            home: self.upstream.pool_handle(idle),
            upstream,
        };
        // A waiting stream does not hold it.
        drop(agents);
        if is_stream {
            exchange.record_stream();
            let begun = stream::StreamSetup {
                clocks,
                // A stop ends it by `cut_off`.
                cut: CancelWatch::for_drain(&self.drain),
                framed,
                rewrite: whole.map(|whole| whole.rewrite),
                snapshot: SnapshotRequest::new(forward.snapshot, forward.peer),
                slot: slot.take(),
                cut_off: self.cut_off(
                    AccessBasis::Credential,
                    exchange.proof.as_ref(),
                    exchange.callee.as_ref(),
                ),
            };
            // Boxed: a waiting stream then holds only the state of the stream.
            Box::pin(stream::relay_stream(
                self, session, exchange, answering, answer, begun,
            ))
            .await
        } else {
            let limit = exchange.config.limits.response_bytes.bytes();
            let mut unary = UnaryRelay {
                limit,
                head_only,
                clocks: &clocks,
                cut,
                whole,
                head: Some(Box::new(answer)),
                slot,
            };
            unary
                .relay_answer(session, exchange, answering, length)
                .await
        }
    }
}

/// Waits for the head, after informational ones, until a clock or the caller, if there is one, ends the wait.
pub(super) async fn await_head(
    mut session: Option<&mut ServerSession>,
    upstream: &mut AnswerReader,
    clocks: &Clocks,
    cut: &mut CancelWatch,
) -> Result<(), ExchangeOutcome> {
    let head = Instant::now() + clocks.head;
    let deadline = head.min(clocks.total);
    tokio::select! {
        biased;
        read = upstream.read_head() => Ok(read?),
        () = sleep_until(deadline) => {
            let clock = if head <= clocks.total { "head" } else { "total" };
            Err(timed_out(clock).into())
        }
        () = caller_gone(&mut session) => Err(ExchangeOutcome::CallerLeft),
        why = cut.cancelled(Delivery::Sent) => Err(why.into()),
    }
}

/// Rejects an answer by its head, before any part of it is passed on. One that only cannot be rewritten is an answer of
/// the agent.
pub(in crate::proxy) fn refuse_answer(
    head: &AnswerHead,
    (limit, rewrite): (u64, Option<&Rewrite>),
    slot: Option<&mut directory::Slot>,
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

/// An agent's answer that is being read, and the handle that returns its connection to the pool.
struct AgentResponse<'a> {
    upstream: AnswerReader,
    home: PoolHandle<'a>,
}

/// Returns the next piece of the body, or what ended the wait: a clock, or the caller, if there is one.
pub(in crate::proxy) async fn next_piece(
    mut session: Option<&mut ServerSession>,
    upstream: &mut AnswerReader,
    clocks: &Clocks,
    cut: &mut CancelWatch,
) -> Result<Option<Bytes>, ExchangeOutcome> {
    if upstream.is_done() {
        return Ok(None);
    }
    let now = Instant::now();
    // An agent that sends without a pause leaves no poll to the clock below.
    if now >= clocks.total {
        return Err(timed_out("total").into());
    }
    let idle = now + clocks.idle;
    tokio::select! {
        biased;
        read = upstream.read_piece() => Ok(read?),
        () = sleep_until(idle.min(clocks.total)) => {
            Err(if idle < clocks.total { agent_silent(clocks.idle) } else { timed_out("total") }.into())
        }
        () = caller_gone(&mut session) => Err(ExchangeOutcome::CallerLeft),
        why = cut.cancelled(Delivery::Sent) => Err(why.into()),
    }
}
