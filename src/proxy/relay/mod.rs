//! Forwards an admitted call and relays the answer within its clocks and bounds, for the gateway and for a sidecar. A
//! short unary answer is held back, so that a failure can still be answered with an error instead of a broken
//! connection.

pub(in crate::proxy) mod answer;
pub(in crate::proxy) mod answer_head;
pub(in crate::proxy) mod back;
mod certificates;
pub(in crate::proxy) mod failure;
pub(in crate::proxy) mod fetch;
pub(in crate::proxy) mod fields;
pub(in crate::proxy) mod forward;
pub(in crate::proxy) mod pool;
pub(in crate::proxy) mod rewrite;
pub(in crate::proxy) mod stream;
pub(in crate::proxy) mod upstream;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::upstreams::peer::HttpPeer;
use tokio::time::{Instant, sleep_until, timeout_at};

use self::answer::{AnswerHead, AnswerReader};
use self::answer_head::{ResponseFields, content_length, refuse_by_framing, refuse_by_head};
pub(in crate::proxy) use self::answer_head::{content_length_of, is_event_stream, refuse_redirect};
use self::failure::{shutting_down, silent, timed_out, too_large};
use self::rewrite::Rewrite;
use self::stream::Snapshot;
use self::upstream::{Call, Home, Upstream};
use crate::config::{Derived, Live, Timeouts};
use crate::delivery::streams::Streams;
use crate::directory;
use crate::drain::{Cut, Drain};
use crate::gateway::Gateway;
use crate::identity::Proof;
use crate::ids::WorkspaceId;
use crate::metrics::Metrics;
use crate::proxy::load::Load;
use crate::proxy::outcome::Ended;
use crate::proxy::record::Exchange;
use crate::proxy::respond::{chunk, gone, internal, send_head, within};
use crate::rejection::{Delivery, Rejection};
use crate::shares::Share;
use crate::standing::{CutOff, Needs};
use crate::telemetry::traces::Traces;

/// Maximum pooled connections to all agents, of all threads.
const POOL_SIZE: usize = 4096;

/// Maximum bytes of a unary answer that are held back, so that most failures can still be answered with an error. A
/// caller cannot use half a JSON document anyway.
const HELD_BYTES_MAX: usize = 32 * 1024;

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
pub(super) struct Forward {
    /// The agent, at an address that passed the check.
    pub(super) peer: Box<HttpPeer>,
    /// The request in wire format.
    pub(super) call: Call,
    /// The memory share of its body, until it is sent.
    pub(super) share: Share,
    /// The clocks of the exchange.
    pub(super) clocks: Clocks,
    /// The rewrite of the answer.
    pub(super) rewrite: Option<Rewrite>,
    /// The request for the task with which a stream begins.
    pub(super) snapshot: Option<Call>,
    /// The concurrency slot of the call at its target, until it is over.
    pub(super) slot: Option<directory::Slot>,
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
    pub(super) fn of(self, gateway: &Arc<Gateway>) -> Self {
        Self {
            standing: Some(Arc::clone(gateway)),
            ..self
        }
    }

    /// Returns a future that ends when the caller loses access to the target's stream. `None` if it never does.
    pub(super) fn cut_off(
        &self,
        needs: Needs,
        proof: Option<&Arc<Proof>>,
        target: Option<&WorkspaceId>,
    ) -> Option<CutOff> {
        let (gateway, proof) = self.standing.as_ref().zip(proof)?;
        Some(gateway.cut_off(needs, Arc::clone(proof), target?.clone()))
    }

    /// Forwards the call, and relays the answer with the head that `answer` builds from the agent's. Dropping the
    /// future cancels the call.
    pub(super) async fn run(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        forward: Forward,
        answer: impl FnOnce(
            &ResponseHeader,
            &ServerSession,
            &Exchange,
        ) -> Result<ResponseHeader, Rejection>,
    ) -> Result<Ended, Ended> {
        // Used in place: a value moved out of an argument takes space in the future twice.
        let clocks = forward.clocks;
        let mut cut = self.drain.watch();
        exchange.calls();
        let sent = self
            .upstream
            .send(&forward.peer, &forward.call, clocks.total, &self.metrics);
        let mut upstream = tokio::select! {
            biased;
            sent = sent => sent?,
            () = cut.requested() => return Err(shutting_down(Delivery::Unknown).into()),
        };
        drop(forward.call);
        // An answer that is rewritten is charged to its caller's share, as the request was, until it is complete.
        let share = forward.share;
        let whole = forward.rewrite.map(|rewrite| Whole {
            rewrite,
            load: &self.load,
            share,
        });
        await_head(Some(session), &mut upstream, &clocks, &mut cut).await?;
        exchange.answer.head = Some(exchange.started.elapsed());
        let agents = upstream.take_head()?;
        let head = &agents.fields;
        exchange.called(head.status);
        let limit = exchange.config.limits.response_bytes.0;
        refuse_answer(&agents, limit, whole.as_ref().map(|w| &w.rewrite))?;
        let head_only = session.req_header().method == Method::HEAD;
        let is_stream = is_event_stream(head) && !head_only;
        let answer = answer(head, session, exchange)?;
        exchange.answer.status = head.status.as_u16();
        let length = content_length(head);
        let idle = exchange.config.upstream.idle;
        let framed = length.is_some() || head.headers.contains_key(header::TRANSFER_ENCODING);
        let answering = Answering {
            home: self.upstream.home(idle),
            upstream,
        };
        // A waiting stream does not hold it.
        drop(agents);
        if is_stream {
            exchange.streams();
            let begun = stream::Begun {
                clocks,
                cut,
                framed,
                rewrite: whole.map(|whole| whole.rewrite),
                snapshot: Snapshot::new(forward.snapshot, forward.peer),
                slot: forward.slot,
                cut_off: self.cut_off(
                    Needs::Credential,
                    exchange.proof.as_ref(),
                    exchange.callee.as_ref(),
                ),
            };
            // Boxed: a waiting stream then holds only the state of the stream.
            Box::pin(stream::pass(
                self, session, exchange, answering, answer, begun,
            ))
            .await
        } else {
            let limit = exchange.config.limits.response_bytes.bytes();
            let mut unary = Unary {
                limit,
                head_only,
                clocks: &clocks,
                cut,
                whole,
                head: Some(Box::new(answer)),
            };
            unary.pass(session, exchange, answering, length).await
        }
    }
}

/// Waits for the head, after informational ones, until a clock or the caller, if there is one, ends the wait.
pub(super) async fn await_head(
    mut session: Option<&mut ServerSession>,
    upstream: &mut AnswerReader,
    clocks: &Clocks,
    cut: &mut Cut,
) -> Result<(), Ended> {
    let head = Instant::now() + clocks.head;
    let deadline = head.min(clocks.total);
    tokio::select! {
        biased;
        read = upstream.read_head() => Ok(read?),
        () = sleep_until(deadline) => {
            let clock = if head <= clocks.total { "head" } else { "total" };
            Err(timed_out(clock).into())
        }
        () = gone(&mut session) => Err(Ended::CallerLeft),
        () = cut.requested() => Err(shutting_down(Delivery::Sent).into()),
    }
}

/// Rejects an answer by its head, before any part of it is passed on.
pub(in crate::proxy) fn refuse_answer(
    head: &AnswerHead,
    limit: u64,
    rewrite: Option<&Rewrite>,
) -> Result<(), Rejection> {
    refuse_by_framing(head)?;
    let head = &head.fields;
    refuse_by_head(head, limit)?;
    match rewrite {
        Some(rewrite) => rewrite.refuse_by_head(head, is_event_stream(head)),
        None => Ok(()),
    }
}

/// An agent's answer that is being read, and the place of its connection in the pool afterwards.
struct Answering<'a> {
    upstream: AnswerReader,
    home: Home<'a>,
}

/// One answer in one body.
struct Unary<'a> {
    /// Maximum bytes of the body.
    limit: usize,
    /// True if the caller asked for no body.
    head_only: bool,
    /// The clocks of the exchange.
    clocks: &'a Clocks,
    /// The end of the shutdown's grace period.
    cut: Cut,
    /// Set if the answer is rewritten, for which it must be complete.
    whole: Option<Whole<'a>>,
    /// The head, until it is sent.
    head: Option<Box<ResponseHeader>>,
}

/// The state of an answer that is passed on only when it is complete.
struct Whole<'a> {
    /// The rewrite of the answer.
    rewrite: Rewrite,
    /// The memory bound.
    load: &'a Load,
    /// The memory share that the answer takes.
    share: Share,
}

impl Unary<'_> {
    /// Relays the whole answer.
    async fn pass(
        &mut self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        mut answering: Answering<'_>,
        length: Option<u64>,
    ) -> Result<Ended, Ended> {
        if self.head_only {
            // The connection is dropped: the bytes after such a head are undefined.
            let length = length.filter(|_| self.whole.is_none());
            self.begin(session, length).await?;
            self.write(session, exchange, Bytes::new(), true).await?;
            return Ok(Ended::Answered);
        }
        let mut held = BytesMut::new();
        let mut read = 0_usize;
        loop {
            let next = next_piece(
                Some(session),
                &mut answering.upstream,
                self.clocks,
                &mut self.cut,
            );
            let piece = match next.await {
                Ok(piece) => piece,
                Err(Ended::Refused(rejection)) if self.head.is_none() => {
                    return Err(Ended::BrokenOff(rejection));
                }
                Err(ended) => return Err(ended),
            };
            let Some(piece) = piece else { break };
            read += piece.len();
            if read > self.limit {
                let rejection = too_large(self.limit as u64);
                return Err(match self.head {
                    None => Ended::BrokenOff(rejection),
                    Some(_) => rejection.into(),
                });
            }
            // Before the caller gets the id: it may ask for the task at once.
            exchange.look_at(&piece).await;
            if let Some(whole) = &mut self.whole {
                let taken = whole.load.hold(&mut whole.share, piece.len());
                taken.map_err(|full| full.delivered(Delivery::Sent))?;
            }
            let hold = self.whole.is_some() || held.len() + piece.len() <= HELD_BYTES_MAX;
            if self.head.is_some() && hold {
                // The usual answer comes in one piece and is not copied again.
                held = if held.is_empty() {
                    BytesMut::from(piece)
                } else {
                    joined(held, &piece)
                };
                continue;
            }
            if self.head.is_some() {
                self.begin(session, length).await?;
                self.write(session, exchange, held.split().freeze(), false)
                    .await?;
            }
            self.write(session, exchange, piece, false).await?;
        }
        answering.home.take_back(answering.upstream);
        let mut rest = held.freeze();
        // Until the caller has it: an answer may be longer in its generation.
        let mut share = None;
        if let (Some(whole), Some(head)) = (self.whole.take(), &mut self.head) {
            let received = rest.len();
            let changed = Box::pin(whole.rewrite.answer(head, rest));
            let changed = timeout_at(self.clocks.total, changed).await;
            rest = changed.map_err(|_| timed_out("total"))??;
            let held = share.insert(whole.share);
            let taken = whole.load.hold(held, rest.len().saturating_sub(received));
            taken.map_err(|full| full.delivered(Delivery::Sent))?;
            exchange.answer.status = head.status.as_u16();
        }
        self.begin(session, Some(rest.len() as u64)).await?;
        self.write(session, exchange, rest, true).await?;
        Ok(Ended::Answered)
    }

    /// Sends the head, unless it was sent before.
    async fn begin(
        &mut self,
        session: &mut ServerSession,
        length: Option<u64>,
    ) -> Result<(), Ended> {
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
                head.insert_header(header::CONTENT_LENGTH, length.to_string())
                    .map_err(internal)?;
            }
            None => chunk(session, &mut head).map_err(internal)?,
        }
        send_head(session, self.clocks.total, head).await
    }

    async fn write(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        piece: Bytes,
        last: bool,
    ) -> Result<(), Ended> {
        exchange.answer.bytes += piece.len() as u64;
        within(self.clocks.total, session.write_response_body(piece, last)).await
    }
}

/// Returns the next piece of the body, or what ended the wait: a clock, or the caller, if there is one.
pub(in crate::proxy) async fn next_piece(
    mut session: Option<&mut ServerSession>,
    upstream: &mut AnswerReader,
    clocks: &Clocks,
    cut: &mut Cut,
) -> Result<Option<Bytes>, Ended> {
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
            Err(if idle < clocks.total { silent(clocks.idle) } else { timed_out("total") }.into())
        }
        () = gone(&mut session) => Err(Ended::CallerLeft),
        () = cut.requested() => Err(shutting_down(Delivery::Sent).into()),
    }
}

fn joined(mut held: BytesMut, piece: &[u8]) -> BytesMut {
    held.extend_from_slice(piece);
    held
}
