//! Forwards an admitted call and brings the answer back under its clocks and bounds.

use std::sync::Arc;

use http::{StatusCode, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v1::client::HttpSession;
use tokio::time::{Instant, sleep_until};

use super::ended::{
    Clocks, Ended, broken_http, internal, left, shutting_down, timed_out, too_large,
};
use super::exchange::Exchange;
use super::fields::response_head;
use super::hygiene::states_length;
use super::unary::Unary;
use super::upstream::{Call, Home};
use super::{Proxy, stream};
use crate::directory::Agent;
use crate::drain::Cut;
use crate::metrics::Shape;
use crate::rejection::{Reason, Rejection};

/// What is forwarded, and how it was completed.
pub(super) struct Forward {
    /// Where to.
    pub(super) agent: Arc<Agent>,
    /// The request for the wire.
    pub(super) call: Call,
    /// For `X-A2A-Completed`.
    pub(super) completed: Option<String>,
    /// When it must be over.
    pub(super) clocks: Clocks,
}

/// Runs the whole relay. Dropping the future cancels the call.
pub(super) async fn relay(
    proxy: &Proxy,
    session: &mut ServerSession,
    exchange: &mut Exchange,
    forward: Forward,
) -> Ended {
    run(proxy, session, exchange, forward)
        .await
        .unwrap_or_else(|ended| ended)
}

async fn run(
    proxy: &Proxy,
    session: &mut ServerSession,
    exchange: &mut Exchange,
    forward: Forward,
) -> Result<Ended, Ended> {
    let Forward {
        agent,
        call,
        completed,
        clocks,
    } = forward;
    let gateway = &proxy.gateway;
    let _slot = gateway.directory.slot(&agent)?;
    let address = gateway.directory.address(&agent.endpoint).await?;
    let peer = proxy
        .upstream
        .peer(&agent, address, exchange.config.timeouts.connect)
        .await;
    let mut cut = gateway.cut();
    let sent = proxy
        .upstream
        .send(&peer, &call, clocks.total, &gateway.metrics);
    let mut upstream = tokio::select! {
        biased;
        sent = sent => sent?,
        () = cut.requested() => return Err(shutting_down("unknown").into()),
    };
    drop(call);
    await_head(session, &mut upstream, &clocks, &mut cut).await?;
    exchange.head = Some(exchange.started.elapsed());
    let head = upstream.resp_header().ok_or_else(|| broken_http(None))?;
    refuse_by_framing(head, &upstream.get_headers_raw_bytes())?;
    refuse_by_head(head, exchange.config.limits.response_bytes.0)?;
    let is_stream = is_event_stream(head);
    let mut answer = response_head(
        head,
        &session.req_header().headers,
        &proxy.origins.get(),
        exchange,
        completed,
    )
    .map_err(internal)?;
    exchange.status = head.status.as_u16();
    let length = content_length(head);
    let home = Home {
        upstream: &proxy.upstream,
        peer: &peer,
        idle: exchange.config.upstream.idle,
    };
    if is_stream {
        exchange.shape = Shape::Stream;
        let framed = length.is_some() || head.headers.contains_key(header::TRANSFER_ENCODING);
        let ends = stream::Ends {
            clocks: &clocks,
            cut,
            framed,
        };
        stream::pass(proxy, session, exchange, (upstream, home), answer, ends).await
    } else {
        let limit = exchange.config.limits.response_bytes.bytes();
        let mut unary = Unary {
            limit,
            clocks: &clocks,
            cut,
        };
        let answer = (&mut answer, length);
        unary
            .pass(session, exchange, (upstream, home), answer)
            .await
    }
}

/// Waits for the head, past informational ones, until a clock or the caller ends it.
async fn await_head(
    session: &mut ServerSession,
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
            () = left(session) => return Err(Ended::CallerLeft),
            () = cut.requested() => return Err(shutting_down("true").into()),
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

/// Refuses an answer whose end is a matter of opinion, or whose coding would be lost on the way, as
/// we refuse such requests (RFC 9112, 6.1 and 6.3).
fn refuse_by_framing(head: &ResponseHeader, raw: &[u8]) -> Result<(), Rejection> {
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

fn refuse_by_head(head: &ResponseHeader, limit: u64) -> Result<(), Rejection> {
    if head.status.is_redirection() {
        return Err(Rejection::new(
            Reason::AgentRedirected,
            "the agent answered with a redirect, which is never followed; register its final URL",
        )
        .fact("delivered", "true"));
    }
    let coded = head.headers.get(header::CONTENT_ENCODING);
    if is_event_stream(head) && coded.is_some_and(|c| c.as_bytes() != b"identity") {
        return Err(Rejection::new(
            Reason::AgentProtocolError,
            "the agent compressed a stream of events, which can't be passed on event by event",
        )
        .fact("delivered", "true"));
    }
    match content_length(head) {
        Some(length) if length > limit && !is_event_stream(head) => Err(too_large(limit)),
        _ => Ok(()),
    }
}

fn content_length(head: &ResponseHeader) -> Option<u64> {
    head.headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// Decided by the response, never by the method: a streaming call may be answered by one error.
fn is_event_stream(head: &ResponseHeader) -> bool {
    const TYPE: &[u8] = b"text/event-stream";
    head.headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        let value = value.as_bytes().trim_ascii_start();
        value
            .get(..TYPE.len())
            .is_some_and(|essence| essence.eq_ignore_ascii_case(TYPE))
            && matches!(value.get(TYPE.len()), None | Some(b';' | b' ' | b'\t'))
    })
}
