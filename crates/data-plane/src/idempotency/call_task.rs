//! A call in a task of its own: it runs to its end, even if its caller disconnects.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use pingora::http::ResponseHeader;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::listener::internal_error;
use crate::record::{Exchange, ExchangeError, outcome_of_rejection, search_answer};
use crate::response::{OutboundCall, refuse_answer, send};
use crate::sse::{AgentStream, EventPace, StreamSetup};
use crate::trace::CallSpan;
use crate::upstream::{
    AgentConnection, CancelWatch, Relay, SentCall, await_head, broken_http, follow_redirect,
    is_event_stream, next_piece, reject_unread, too_large,
};
use a2a::event::last_data;
use a2a::state::TaskState;
use access::identity::Proof;
use assembly::access_watch::AccessBasis;
use directory::CallOutcome;
use http1::AnswerReader;
use kernel::config::Config;
use kernel::dialect::ReplyForm;
use kernel::ids::{RequestId, WorkspaceIncarnation};
use kernel::rejection::{Delivery, Reason, Rejection};
use mailbox::calls::{Answer, Claim};

/// Maximum pieces of a stream that wait for the caller, each of one read.
const LIVE_PIECES: usize = 4;

/// A call in progress, with its context.
pub(super) struct CallTask {
    relay: Arc<Relay>,
    forward: OutboundCall,
    config: Arc<Config>,
    request_id: RequestId,
    form: ReplyForm,
    proof: Option<Arc<Proof>>,
    target: Option<WorkspaceIncarnation>,
    span: Option<Box<CallSpan>>,
    /// Time at which the request head had been read.
    started: Instant,
}

impl CallTask {
    /// Takes the parts of the exchange that the call needs.
    pub(super) fn new(relay: Arc<Relay>, exchange: &mut Exchange, forward: OutboundCall) -> Self {
        let span = exchange.record.detach_call_span();
        Self {
            relay,
            forward,
            config: Arc::clone(&exchange.call.config),
            request_id: exchange.call.request_id.clone(),
            form: exchange.call.reply_form(),
            proof: exchange.call.proof.clone(),
            target: exchange.call.life(),
            span,
            started: exchange.call.started,
        }
    }

    /// Starts the call. Its stream is passed to the caller piece by piece, with backpressure while the caller
    /// is connected.
    pub(super) fn start(
        mut self,
        claim: Claim,
        connection: AgentConnection,
    ) -> mpsc::Receiver<Bytes> {
        let (live, pieces) = mpsc::channel(LIVE_PIECES);
        let running = self.relay.drain.count_work();
        tokio::spawn(async move {
            let _running = running;
            let mut cut = self.relay.watch_call(
                self.proof.as_ref(),
                self.target.as_ref().map(|target| &target.id),
            );
            // Ends with this task.
            let mut span = self.span.take();
            if let Some(span) = &mut span {
                span.record_sent();
            }
            let sent = self.send(connection, &mut cut).await;
            if let (Some(span), Ok((_, head))) = (&mut span, &sent) {
                span.record_status(head.status);
            }
            match sent {
                Err(rejection) => {
                    self.record_failure(&rejection);
                    reject_claim(claim, span, rejection).await;
                }
                Ok((upstream, head)) if is_event_stream(&head) => {
                    // A stop ends it by `cut_off`.
                    let cut = CancelWatch::for_drain(&self.relay.drain);
                    self.store_stream(upstream, (&head, cut), claim, live).await;
                }
                Ok((upstream, head)) => match self.read_whole(upstream, head, &mut cut).await {
                    Ok(answer) => {
                        let task_state = TaskState::from_answer(&answer.body);
                        claim.record_answer(answer, task_state).await;
                    }
                    // The verdict of a guard is final: the agent is not asked again.
                    Err(why) if why.reason == Reason::GuardRejected => {
                        let answer = self.rejection_answer(&why);
                        claim.record_rejection(why, &answer).await;
                    }
                    Err(rejection) => reject_claim(claim, span, rejection).await,
                },
            }
        });
        pieces
    }

    /// Sends the call, and awaits the head of an acceptable response.
    async fn send(
        &mut self,
        connection: AgentConnection,
        cut: &mut CancelWatch,
    ) -> Result<(AnswerReader, ResponseHeader), Rejection> {
        let turn = self.forward.turn.take();
        let (relay, clocks) = (&self.relay, &self.forward.clocks);
        let call = (&self.forward, connection);
        let sent = send(relay, call, self.forward.slot.as_ref(), cut).await;
        let mut upstream = sent.map_err(to_rejection)?;
        drop(turn);
        let awaited = await_head(None, &mut upstream, clocks, cut).await;
        awaited.map_err(to_rejection)?;
        let mut head = *upstream.take_head().map_err(reject_unread)?;
        let follows = self.forward.follows.is_some();
        self.forward.call.keep_for_redirect(follows);
        let place = self.target.as_ref().map(|target| &target.id);
        let call = SentCall {
            peer: &self.forward.peer,
            call: &self.forward.call,
            agent: self.forward.follows.as_ref(),
            place: place.filter(|_| self.forward.keeps_place),
        };
        let again = follow_redirect(relay, None, call, &head.fields, clocks, cut).await;
        if let Some(again) = again.map_err(to_rejection)? {
            upstream = again.0;
            head = *again.1;
        }
        let limit = self.config.limits.response_bytes.0;
        let rewrite = self.forward.rewrite.as_ref();
        refuse_answer(&head, (limit, rewrite), self.forward.slot.as_mut())?;
        Ok((upstream, head.fields))
    }

    /// Records what a rejection says of the agent.
    fn record_failure(&mut self, why: &Rejection) {
        if let Some(slot) = &mut self.forward.slot {
            slot.finish_unless(|patience| outcome_of_rejection(why, patience));
        }
    }

    /// Reads the stream to its end: for its caller, and into the log, which all other readers use.
    async fn store_stream(
        self,
        upstream: AnswerReader,
        (head, cut): (&ResponseHeader, CancelWatch),
        claim: Claim,
        live: mpsc::Sender<Bytes>,
    ) {
        let (Some(streams), Some(target)) = (&self.relay.streams, &self.target) else {
            // Calls with a key belong to the gateway, which keeps streams.
            return claim.record_refusal(broken_http(None)).await;
        };
        let owner = self.proof.as_ref().map(|proof| proof.owner());
        let owner = owner.unwrap_or_default();
        // Each reader has its own cut-off, for its own credential.
        let cut_off =
            self.relay
                .cut_off(AccessBasis::Caller, self.proof.as_ref(), Some(&target.id));
        let log = streams.begin_needed(owner, target, self.form.clone());
        let name = log.name();
        let begun = StreamSetup {
            clocks: self.forward.clocks,
            cut,
            framed: head.headers.contains_key(header::CONTENT_LENGTH)
                || head.headers.contains_key(header::TRANSFER_ENCODING),
            rewrite: self.forward.rewrite,
            expects_events: self.forward.expected.judges(head),
            snapshot: None,
            learner: self.forward.learner,
            slot: self.forward.slot,
            cut_off,
        };
        let ids = (self.request_id, self.form);
        let pace = EventPace::new(Arc::clone(&self.relay.metrics), self.started);
        let mut feed = AgentStream::new((upstream, pace), begun, self.config, ids, Some(log));
        match build_answer(&self.relay, head, Bytes::new()) {
            Ok(answer) => claim.publish_stream(answer, name).await,
            Err(rejection) => return claim.record_refusal(rejection).await,
        }
        let mut task_state = None;
        loop {
            let arrived = feed.wait().await;
            let passed = feed.process(arrived).await;
            if let Some(data) = last_data(&passed.bytes) {
                task_state = TaskState::from_answer(&data);
            }
            if !passed.bytes.is_empty() {
                // A caller that left does not block the stream.
                let _ = live.send(passed.bytes).await;
            }
            if passed.over {
                drop(live);
                return claim.record_stream_end(task_state).await;
            }
        }
    }

    /// Reads the response to its end.
    async fn read_whole(
        &mut self,
        upstream: AnswerReader,
        mut head: ResponseHeader,
        cut: &mut CancelWatch,
    ) -> Result<Answer, Rejection> {
        let status = head.status.as_u16();
        let body = self.read_body(upstream, cut).await;
        let (forward, relay) = (&mut self.forward, &self.relay);
        let (expected, slot) = (forward.expected, forward.slot.as_mut());
        let judge = |body: &[u8]| expected.refuse_unreadable(&head, (body, true), slot);
        let body = body.and_then(|body| judge(&body).map(|()| body));
        if let Some(slot) = &mut forward.slot {
            slot.finish_unless(|patience| match &body {
                Ok(_) => Some(CallOutcome::from_status(status)),
                Err(why) => outcome_of_rejection(why, patience),
            });
        }
        let body = body?;
        let body = match forward.rewrite.take() {
            Some(rewrite) => {
                let answer = (&mut head, body);
                let changed = rewrite.rewrite_body_within(answer, forward.clocks.total, cut);
                changed.await?
            }
            None => body,
        };
        build_answer(relay, &head, body)
    }

    /// Returns a rejection as the answer that its caller gets.
    fn rejection_answer(&self, rejection: &Rejection) -> Answer {
        let json = HeaderValue::from_static("application/json");
        Answer {
            status: rejection.status_in(self.form.dialect),
            fields: HeaderMap::from_iter([(header::CONTENT_TYPE, json)]),
            body: rejection.to_body(&self.form, &self.request_id).into(),
            kept: true,
        }
    }

    /// Reads the body of a response, which is held whole: it is stored before it is sent.
    async fn read_body(
        &mut self,
        mut upstream: AnswerReader,
        cut: &mut CancelWatch,
    ) -> Result<Bytes, Rejection> {
        let (relay, forward) = (&self.relay, &mut self.forward);
        let limit = self.config.limits.response_bytes.0;
        let mut body = BytesMut::new();
        loop {
            let piece = next_piece(None, &mut upstream, &forward.clocks, cut).await;
            let Some(piece) = piece.map_err(to_rejection)? else {
                break;
            };
            if (body.len() + piece.len()) as u64 > limit {
                return Err(too_large(limit));
            }
            // Its share in the caller's memory bound, as for the request.
            let taken = relay.load.reserve(&mut forward.share, piece.len());
            taken.map_err(|full| full.with_delivery(Delivery::Sent))?;
            search_answer(&mut forward.learner, &relay.metrics, &piece).await;
            body.extend_from_slice(&piece);
        }
        let idle = self.config.upstream.idle;
        relay
            .upstream
            .connector
            .pool_handle(idle)
            .check_in(upstream);
        Ok(body.freeze())
    }
}

/// Returns what ended a call that no caller can leave.
fn to_rejection(ended: ExchangeError) -> Rejection {
    ended.into_rejection(|| broken_http(None))
}

/// Ends the call with a rejection.
async fn reject_claim(claim: Claim, mut span: Option<Box<CallSpan>>, rejection: Rejection) {
    if let Some(span) = &mut span {
        span.record_failure(rejection.reason);
    }
    drop(span);
    claim.record_refusal(rejection).await;
}

/// Returns a response as it is kept: with the fields that are passed on only.
fn build_answer(relay: &Relay, head: &ResponseHeader, body: Bytes) -> Result<Answer, Rejection> {
    let head = relay.response_fields.get().filter_head(head);
    let head = head.map_err(internal_error)?;
    Ok(Answer {
        status: head.status.as_u16(),
        fields: head.headers.clone(),
        body,
        kept: true,
    })
}
