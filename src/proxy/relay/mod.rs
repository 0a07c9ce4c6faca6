//! Forwards an admitted call and relays the answer within its clocks and bounds, for the gateway and for a sidecar.

mod certificates;
pub(in crate::proxy) mod failure;
pub(in crate::proxy) mod fetch;
pub(in crate::proxy) mod fields;
pub(in crate::proxy) mod forward;
pub(in crate::proxy) mod response_fields;
pub(in crate::proxy) mod rewrite;
pub(in crate::proxy) mod stream;
pub(in crate::proxy) mod unary;
pub(in crate::proxy) mod upstream;

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v1::client::HttpSession;
use pingora::upstreams::peer::HttpPeer;
use tokio::time::{Instant, sleep_until};

use self::failure::{broken_http, shutting_down, timed_out, too_large};
use self::response_fields::{ResponseFields, refuse_large_head};
use self::rewrite::Rewrite;
use self::unary::{Unary, Whole};
use self::upstream::{Call, Upstream};
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
use crate::proxy::request::validate::states_length;
use crate::proxy::respond::gone;
use crate::rejection::{Delivery, Reason, Rejection};
use crate::shares::Share;
use crate::standing::{CutOff, Needs};
use crate::telemetry::traces::Traces;

/// Maximum pooled connections to all agents.
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
        Self {
            standing: None,
            streams,
            traces,
            response_fields: Derived::new(&config, |config, _| ResponseFields::new(config)),
            load: Load::new(config.clone(), Arc::clone(&metrics), Arc::clone(&drain)),
            config,
            metrics,
            drain,
            upstream: Upstream::new(POOL_SIZE),
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
        exchange.head = Some(exchange.started.elapsed());
        let head = upstream.resp_header().ok_or_else(|| broken_http(None))?;
        exchange.called(head.status);
        let limit = exchange.config.limits.response_bytes.0;
        let rewrite = whole.as_ref().map(|whole| &whole.rewrite);
        refuse_answer(head, &upstream.get_headers_raw_bytes(), limit, rewrite)?;
        let head_only = session.req_header().method == Method::HEAD;
        let is_stream = is_event_stream(head) && !head_only;
        let answer = answer(head, session, exchange)?;
        exchange.status = head.status.as_u16();
        let length = content_length(head);
        let idle = exchange.config.upstream.idle;
        let home = self.upstream.home(&forward.peer, idle);
        drop(forward.peer);
        if is_stream {
            exchange.streams();
            let framed = length.is_some() || head.headers.contains_key(header::TRANSFER_ENCODING);
            let begun = stream::Begun {
                clocks,
                cut,
                framed,
                rewrite: whole.map(|whole| whole.rewrite),
                slot: forward.slot,
                cut_off: self.cut_off(
                    Needs::Credential,
                    exchange.proof.as_ref(),
                    exchange.callee.as_ref(),
                ),
            };
            // Boxed: a waiting stream then holds only the state of the stream.
            let upstream = (upstream, home);
            Box::pin(stream::pass(
                self, session, exchange, upstream, answer, begun,
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
            unary
                .pass(session, exchange, (upstream, home), length)
                .await
        }
    }
}

/// Waits for the head, after informational ones, until a clock or the caller, if there is one, ends the wait.
pub(super) async fn await_head(
    mut session: Option<&mut ServerSession>,
    upstream: &mut HttpSession,
    clocks: &Clocks,
    cut: &mut Cut,
) -> Result<(), Ended> {
    let head = Instant::now() + clocks.head;
    let deadline = head.min(clocks.total);
    while upstream
        .resp_header()
        .is_none_or(|h| h.status.is_informational())
    {
        tokio::select! {
            biased;
            read = upstream.read_response() => {
                read.map_err(|e| broken_http(Some(e)))?;
            }
            () = sleep_until(deadline) => {
                let clock = if head <= clocks.total { "head" } else { "total" };
                return Err(timed_out(clock).into());
            }
            () = gone(&mut session) => return Err(Ended::CallerLeft),
            () = cut.requested() => return Err(shutting_down(Delivery::Sent).into()),
        }
        if upstream
            .resp_header()
            .is_some_and(|h| h.status == StatusCode::SWITCHING_PROTOCOLS)
        {
            return Err(broken_http(None).into());
        }
    }
    Ok(())
}

/// Rejects an answer with a head that is too large, with ambiguous framing, or with a transfer coding that would be
/// lost, as for requests (RFC 9112, 6.1 and 6.3).
pub(super) fn refuse_by_framing(head: &ResponseHeader, raw: &[u8]) -> Result<(), Rejection> {
    refuse_large_head(head, raw)?;
    let mut codings = head.headers.get_all(header::TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else {
        return Ok(());
    };
    let chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
    if states_length(raw) || !chunked {
        return Err(broken_http(None));
    }
    Ok(())
}

/// Rejects a redirect. It is neither followed nor passed on: its target was not checked.
pub(super) fn refuse_redirect(head: &ResponseHeader) -> Result<(), Rejection> {
    if !head.status.is_redirection() {
        return Ok(());
    }
    let message =
        "the agent answered with a redirect, which is never followed; register its final URL";
    Err(Rejection::new(Reason::AgentRedirected, message).delivered(Delivery::Sent))
}

/// Rejects an answer by its head, before any part of it is passed on.
pub(super) fn refuse_answer(
    head: &ResponseHeader,
    raw: &[u8],
    limit: u64,
    rewrite: Option<&Rewrite>,
) -> Result<(), Rejection> {
    refuse_by_framing(head, raw)?;
    refuse_by_head(head, limit)?;
    match rewrite {
        Some(rewrite) => rewrite.refuse_by_head(head, is_event_stream(head)),
        None => Ok(()),
    }
}

fn refuse_by_head(head: &ResponseHeader, limit: u64) -> Result<(), Rejection> {
    let coded = head.headers.get(header::CONTENT_ENCODING);
    if is_event_stream(head) && coded.is_some_and(|c| c.as_bytes() != b"identity") {
        return Err(Rejection::new(
            Reason::AgentProtocolError,
            "the agent compressed a stream of events, which can't be passed on event by event",
        )
        .delivered(Delivery::Sent));
    }
    match content_length(head) {
        Some(length) if length > limit && !is_event_stream(head) => Err(too_large(limit)),
        _ => Ok(()),
    }
}

pub(super) fn content_length(head: &ResponseHeader) -> Option<u64> {
    content_length_of(&head.headers)
}

pub(super) fn content_length_of(headers: &http::HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// True for an event stream. The response decides, not the method: a streaming call may be answered by one error.
pub(super) fn is_event_stream(head: &ResponseHeader) -> bool {
    const TYPE: &[u8] = b"text/event-stream";
    head.headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        let value = value.as_bytes().trim_ascii_start();
        value
            .get(..TYPE.len())
            .is_some_and(|essence| essence.eq_ignore_ascii_case(TYPE))
            && matches!(value.get(TYPE.len()), None | Some(b';' | b' ' | b'\t'))
            // A browser takes the last type of a list.
            && !value.contains(&b',')
    })
}
