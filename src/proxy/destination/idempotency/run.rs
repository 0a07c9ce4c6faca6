//! A call in a task of its own: it runs to its end, even if its caller disconnects.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use pingora::http::ResponseHeader;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::a2a::event::last_data;
use crate::a2a::state::TaskState;
use crate::config::Config;
use crate::delivery::calls::{Answer, Claim};
use crate::dialect::ReplyForm;
use crate::directory::CallOutcome;
use crate::identity::Proof;
use crate::ids::{Life, RequestId};
use crate::proxy::outcome::Ended;
use crate::proxy::record::trace::CallSpan;
use crate::proxy::record::{Exchange, look_at};
use crate::proxy::relay::answer::AnswerReader;
use crate::proxy::relay::failure::{broken_http, too_large};
use crate::proxy::relay::next_piece;
use crate::proxy::relay::stream::{Begun, Feed, Pace};
use crate::proxy::relay::upstream::{Connection, Home};
use crate::proxy::relay::verdict::of_rejection;
use crate::proxy::relay::{Cut, Forward, Relay, await_head, is_event_stream, refuse_answer};
use crate::proxy::respond::internal;
use crate::rejection::{Delivery, Reason, Rejection};
use crate::shares::Share;
use crate::standing::Needs;
use crate::tasks::Learner;

/// Maximum pieces of a stream that wait for the caller, each of one read.
const LIVE_PIECES: usize = 4;

/// A call with its context.
pub(super) struct Run {
    relay: Arc<Relay>,
    forward: Forward,
    learner: Option<Box<Learner>>,
    config: Arc<Config>,
    request_id: RequestId,
    form: ReplyForm,
    proof: Option<Arc<Proof>>,
    target: Option<Life>,
    span: Option<Box<CallSpan>>,
    /// Time at which the request head had been read.
    started: Instant,
}

impl Run {
    /// Takes the parts of the exchange that the call needs.
    pub(super) fn new(relay: Arc<Relay>, exchange: &mut Exchange, forward: Forward) -> Self {
        let (learner, span) = (exchange.learner.take(), exchange.take_call());
        Self {
            relay,
            forward,
            learner,
            config: Arc::clone(&exchange.config),
            request_id: exchange.request_id.clone(),
            form: exchange.form(),
            proof: exchange.proof.clone(),
            target: exchange.life(),
            span,
            started: exchange.started,
        }
    }

    /// Starts the call. Its stream is passed to the caller piece by piece, with backpressure while the caller
    /// is connected.
    pub(super) fn start(mut self, claim: Claim, connection: Connection) -> mpsc::Receiver<Bytes> {
        let (live, pieces) = mpsc::channel(LIVE_PIECES);
        let running = self.relay.drain.enter();
        tokio::spawn(async move {
            let _running = running;
            let mut cut = self.relay.watch_call(
                self.proof.as_ref(),
                self.target.as_ref().map(|target| &target.id),
            );
            // Ends with this task.
            let mut span = self.span.take();
            if let Some(span) = &mut span {
                span.made();
            }
            let sent = self.send(connection, &mut cut).await;
            if let (Some(span), Ok((_, head))) = (&mut span, &sent) {
                span.answered(head.status);
            }
            match sent {
                Err(rejection) => {
                    self.judge(&rejection);
                    refuse(claim, span, rejection).await;
                }
                Ok((upstream, head)) if is_event_stream(&head) => {
                    // A stop ends it by `cut_off`.
                    let cut = Cut::of_drain(&self.relay.drain);
                    self.stream(upstream, (&head, cut), claim, live).await;
                }
                Ok((upstream, head)) => {
                    let told = (self.form.clone(), self.request_id.clone());
                    match self.whole(upstream, head, &mut cut).await {
                        Ok(answer) => {
                            let task_state = TaskState::of(&answer.body);
                            claim.answered(answer, task_state).await;
                        }
                        // The verdict of a guard is final: the agent is not asked again.
                        Err(why) if why.reason == Reason::GuardRejected => {
                            let answer = answer_of(&why, &told);
                            claim.rejected(why, &answer).await;
                        }
                        Err(rejection) => refuse(claim, span, rejection).await,
                    }
                }
            }
        });
        pieces
    }

    /// Sends the call, and awaits the head of an acceptable response.
    async fn send(
        &mut self,
        connection: Connection,
        cut: &mut Cut,
    ) -> Result<(AnswerReader, ResponseHeader), Rejection> {
        let turn = self.forward.turn.take();
        let (relay, clocks) = (&self.relay, &self.forward.clocks);
        let send = relay.upstream.send_over(
            connection,
            &self.forward.peer,
            &self.forward.call,
            clocks.total,
            (&relay.metrics, self.forward.slot.as_ref()),
        );
        let mut upstream = tokio::select! {
            biased;
            sent = send => sent?,
            why = cut.requested(Delivery::Unknown) => return Err(why),
        };
        drop(turn);
        let awaited = await_head(None, &mut upstream, clocks, cut).await;
        awaited.map_err(reason)?;
        let head = *upstream.take_head()?;
        let limit = self.config.limits.response_bytes.0;
        let rewrite = self.forward.rewrite.as_ref();
        refuse_answer(&head, (limit, rewrite), self.forward.slot.as_mut())?;
        Ok((upstream, head.fields))
    }

    /// Notes what a rejection tells of the agent.
    fn judge(&mut self, why: &Rejection) {
        if let Some(slot) = &mut self.forward.slot {
            slot.finish_unless(|patience| of_rejection(why, patience));
        }
    }

    /// Reads the stream to its end: for its caller, and into the log, which all other readers use.
    async fn stream(
        self,
        upstream: AnswerReader,
        (head, cut): (&ResponseHeader, Cut),
        claim: Claim,
        live: mpsc::Sender<Bytes>,
    ) {
        let (Some(streams), Some(target)) = (&self.relay.streams, &self.target) else {
            // Calls with a key belong to the gateway, which keeps streams.
            return claim.refused(broken_http(None)).await;
        };
        let owner = self.proof.as_ref().map(|proof| proof.owner());
        let owner = owner.unwrap_or_default();
        // Each reader has its own cut-off, for its own credential.
        let cut_off = self
            .relay
            .cut_off(Needs::Caller, self.proof.as_ref(), Some(&target.id));
        let log = streams.begin_needed(owner, target, self.form.clone());
        let name = log.name();
        let begun = Begun {
            clocks: self.forward.clocks,
            cut,
            framed: head.headers.contains_key(header::CONTENT_LENGTH)
                || head.headers.contains_key(header::TRANSFER_ENCODING),
            rewrite: self.forward.rewrite,
            snapshot: None,
            slot: self.forward.slot,
            cut_off,
        };
        let ids = (self.request_id, self.form);
        let pace = Pace::new(Arc::clone(&self.relay.metrics), self.started);
        let mut feed = Feed::new(
            (upstream, pace),
            begun,
            self.config,
            ids,
            self.learner,
            Some(log),
        );
        match kept(&self.relay, head, Bytes::new()) {
            Ok(answer) => claim.streams(answer, name).await,
            Err(rejection) => return claim.refused(rejection).await,
        }
        let mut task_state = None;
        loop {
            let arrived = feed.wait().await;
            let passed = feed.take(arrived).await;
            if let Some(data) = last_data(&passed.bytes) {
                task_state = TaskState::of(&data);
            }
            if !passed.bytes.is_empty() {
                // A caller that left does not block the stream.
                let _ = live.send(passed.bytes).await;
            }
            if passed.over {
                drop(live);
                return claim.ended(task_state).await;
            }
        }
    }

    /// Reads the response to its end.
    async fn whole(
        self,
        upstream: AnswerReader,
        mut head: ResponseHeader,
        cut: &mut Cut,
    ) -> Result<Answer, Rejection> {
        let (mut forward, relay) = (self.forward, &self.relay);
        let status = head.status.as_u16();
        let body = Body {
            relay,
            upstream,
            learner: self.learner,
            limit: self.config.limits.response_bytes.0,
            share: forward.share,
        };
        let idle = self.config.upstream.idle;
        let home = relay.upstream.home(idle);
        let body = body.read(home, &forward.clocks, cut).await;
        if let Some(slot) = &mut forward.slot {
            slot.finish_unless(|patience| match &body {
                Ok(_) => Some(CallOutcome::of_status(status)),
                Err(why) => of_rejection(why, patience),
            });
        }
        let body = body?;
        let body = match forward.rewrite {
            Some(rewrite) => {
                let answer = (&mut head, body);
                let changed = rewrite.answer_within(answer, forward.clocks.total, cut);
                changed.await?
            }
            None => body,
        };
        kept(relay, &head, body)
    }
}

/// Ends the call with a rejection.
async fn refuse(claim: Claim, mut span: Option<Box<CallSpan>>, rejection: Rejection) {
    if let Some(span) = &mut span {
        span.failed(rejection.reason);
    }
    drop(span);
    claim.refused(rejection).await;
}

/// Returns a rejection as the answer that its caller gets.
fn answer_of(rejection: &Rejection, (form, request_id): &(ReplyForm, RequestId)) -> Answer {
    let json = HeaderValue::from_static("application/json");
    Answer {
        status: rejection.status_in(form.dialect),
        fields: HeaderMap::from_iter([(header::CONTENT_TYPE, json)]),
        body: rejection.body(form, request_id).into(),
        kept: true,
    }
}

/// Returns the rejection of a call without a caller, which cannot end otherwise.
fn reason(ended: Ended) -> Rejection {
    match ended {
        Ended::Refused(rejection) | Ended::BrokenOff(rejection) => rejection,
        Ended::Answered | Ended::CallerLeft => broken_http(None),
    }
}

/// Returns a response as it is kept: with the fields that are passed on only.
fn kept(relay: &Relay, head: &ResponseHeader, body: Bytes) -> Result<Answer, Rejection> {
    let head = relay.response_fields.get().passed(head);
    let head = head.map_err(internal)?;
    Ok(Answer {
        status: head.status.as_u16(),
        fields: head.headers.clone(),
        body,
        kept: true,
    })
}

/// A response in one body, held whole: it is stored before it is sent.
struct Body<'a> {
    relay: &'a Relay,
    upstream: AnswerReader,
    learner: Option<Box<Learner>>,
    limit: u64,
    /// Share in the caller's memory bound, as for the request.
    share: Share,
}

impl Body<'_> {
    async fn read(
        mut self,
        home: Home<'_>,
        clocks: &crate::proxy::relay::Clocks,
        cut: &mut Cut,
    ) -> Result<Bytes, Rejection> {
        let mut body = BytesMut::new();
        loop {
            let piece = next_piece(None, &mut self.upstream, clocks, cut).await;
            let Some(piece) = piece.map_err(reason)? else {
                break;
            };
            if (body.len() + piece.len()) as u64 > self.limit {
                return Err(too_large(self.limit));
            }
            let taken = self.relay.load.hold(&mut self.share, piece.len());
            taken.map_err(|full| full.delivered(Delivery::Sent))?;
            look_at(&mut self.learner, &self.relay.metrics, &piece).await;
            body.extend_from_slice(&piece);
        }
        home.take_back(self.upstream);
        Ok(body.freeze())
    }
}
