//! Stream of a polling agent's task: its present state, then each update, until its turn ends.

use bytes::Bytes;
use http::{HeaderValue, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::{Outward, own_head};
use crate::a2a::event::Framing;
use crate::a2a::state::TaskState;
use crate::delivery::inbox::{InboxTask, Watch};
use crate::ids::stream_id;
use crate::metrics::InProgress;
use crate::proxy::guard::stream::{EventGuard, Guards};
use crate::proxy::outcome::Ended;
use crate::proxy::record::Exchange;
use crate::proxy::relay::failure::{shutting_down, timed_out};
use crate::proxy::relay::rewrite::Rewrite;
use crate::proxy::request::Request;
use crate::proxy::respond::{chunk, client_disconnected, internal, send_head, within};
use crate::rejection::{Delivery, Rejection, STREAM};
use crate::standing::{CutOff, Needs, cut_off};

/// Result of a wait.
enum Step {
    News,
    Keepalive,
    Cut(Rejection),
}

/// Follows the task, from its document `first` on, to the end of its agent's turn.
pub(super) async fn follow(
    request: &mut Request<'_>,
    outward: Outward,
    task: InboxTask,
    (document, mut seen): (Value, i64),
) -> Result<Ended, Ended> {
    let (gateway, relay) = (&request.context.gateway, &request.context.relay);
    let inbox = &gateway.delivery.inbox;
    let mut watch = inbox.watch_task(&task.id);
    let _open = InProgress::begin(&request.exchange.metrics.open_streams);
    let name = stream_id().simple().to_string();
    let head = stream_head(request, &outward, &name)?;
    let exchange = &mut *request.exchange;
    let deadline = Instant::now() + exchange.config.timeouts.write;
    send_head(request.session, deadline, Box::new(head)).await?;
    let end = exchange.started + exchange.config.timeouts.stream;
    let (proof, callee) = (exchange.proof.as_ref(), exchange.callee.as_ref());
    let mut stream = Stream {
        cut_off: relay.cut_off(Needs::Credential, proof, callee),
        session: request.session,
        exchange,
        name,
        rewrite: outward.rewrite,
        guard: outward.guarded.as_ref().and_then(EventGuard::of_turns),
        end,
        written: Instant::now(),
    };
    stream.write(outward.words.event(&document), false).await?;
    let mut over = ends_turn(&document);
    while !over {
        // An outage of the store does not end the stream: the next read may succeed.
        let updates = inbox.updates_after(&task.id, seen).await;
        let updates = updates.unwrap_or_default();
        let waits = updates.is_empty();
        for update in updates {
            seen = update.n;
            over = update.update.ends_turn();
            let said = outward.words.update(&task.id, &task.context_id, &update);
            stream.write(said, false).await?;
        }
        if waits {
            match stream.step(&mut watch, gateway.drain.leaves()).await? {
                Step::News => {}
                Step::Keepalive => {
                    let comment = Framing::default().keepalive(false);
                    stream.write(comment.to_owned(), false).await?;
                }
                Step::Cut(rejection) => {
                    let parting = stream.parting(&rejection);
                    stream.pass(parting, true).await?;
                    return Ok(Ended::Answered);
                }
            }
        }
    }
    stream.write(String::new(), true).await?;
    Ok(Ended::Answered)
}

fn stream_head(
    request: &mut Request<'_>,
    outward: &Outward,
    name: &str,
) -> Result<ResponseHeader, Rejection> {
    let mut own = ResponseHeader::build(200, Some(4)).map_err(internal)?;
    for (name, value) in [
        (header::CONTENT_TYPE.as_str(), "text/event-stream"),
        (header::CACHE_CONTROL.as_str(), "no-cache"),
        ("x-accel-buffering", "no"),
    ] {
        own.append_header(name, HeaderValue::from_static(value))
            .map_err(internal)?;
    }
    let mut head = own_head(request, own, outward)?;
    head.insert_header(STREAM, name).map_err(internal)?;
    chunk(request.session, &mut head).map_err(internal)?;
    request.exchange.answer.status = 200;
    request.exchange.streams();
    Ok(head)
}

/// A stream in progress.
struct Stream<'a> {
    /// Ends the stream when its caller loses access.
    cut_off: Option<CutOff>,
    session: &'a mut ServerSession,
    exchange: &'a mut Exchange,
    /// Id of the stream's call, as the caller knows it.
    name: String,
    rewrite: Option<Rewrite>,
    /// The guards that are asked about updates.
    guard: Option<EventGuard>,
    /// Deadline of the stream.
    end: Instant,
    /// Time of the last write to the caller.
    written: Instant,
}

impl Stream<'_> {
    /// Waits for an update, a timer or the end of the stream.
    async fn step(
        &mut self,
        watch: &mut Watch,
        drain: impl Future<Output = ()>,
    ) -> Result<Step, Ended> {
        let keepalive = self.written + self.exchange.config.stream.keepalive;
        let wake = keepalive.min(self.end);
        tokio::select! {
            biased;
            () = watch.changed() => Ok(Step::News),
            () = sleep_until(wake) => Ok(if self.end <= wake {
                Step::Cut(timed_out("stream"))
            } else {
                Step::Keepalive
            }),
            why = cut_off(&mut self.cut_off) => Ok(Step::Cut(why)),
            () = drain => Ok(Step::Cut(shutting_down(Delivery::Sent))),
            () = client_disconnected(self.session) => Err(Ended::CallerLeft),
        }
    }

    async fn write(&mut self, said: String, last: bool) -> Result<(), Ended> {
        let mut bytes = Bytes::from(said);
        if let Some(rewrite) = &mut self.rewrite {
            (bytes, _) = rewrite.events(bytes);
        }
        let guards = self.guard.as_mut().filter(|_| !bytes.is_empty() && !last);
        let Some(guards) = guards.map(EventGuard::take) else {
            return self.pass(bytes, last).await;
        };
        let (passed, rejected) = self.asked(guards, bytes).await?;
        self.pass(passed, false).await?;
        match rejected {
            None => Ok(()),
            Some(why) => {
                let parting = self.parting(&why);
                self.pass(parting, true).await?;
                Err(Ended::Answered)
            }
        }
    }

    /// Asks guards about an update. Comments keep the caller's connection alive meanwhile.
    async fn asked(
        &mut self,
        mut guards: Guards,
        bytes: Bytes,
    ) -> Result<(Bytes, Option<Rejection>), Ended> {
        let mut asked = std::pin::pin!(guards.pass(bytes, false));
        loop {
            let keepalive = self.written + self.exchange.config.stream.keepalive;
            tokio::select! {
                biased;
                passed = &mut asked => return Ok(passed),
                () = sleep_until(keepalive) => {
                    let comment = Framing::default().keepalive(false);
                    self.pass(comment.into(), false).await?;
                }
                () = client_disconnected(self.session) => return Err(Ended::CallerLeft),
            }
        }
    }

    async fn pass(&mut self, bytes: Bytes, last: bool) -> Result<(), Ended> {
        self.exchange.passed(bytes.len());
        self.exchange.answer.events += u64::from(!bytes.is_empty() && !bytes.starts_with(b":"));
        let deadline = Instant::now() + self.exchange.config.timeouts.write;
        within(deadline, self.session.write_response_body(bytes, last)).await?;
        self.written = Instant::now();
        Ok(())
    }

    /// Returns the last event of a stream that is cut, with the reason.
    fn parting(&mut self, cut: &Rejection) -> Bytes {
        self.exchange.rejected(cut);
        let form = self.exchange.form();
        cut.last_event(
            &form,
            &self.exchange.request_id,
            &self.name,
            Framing::default(),
        )
    }
}

/// True if the task waits for its caller, or is over.
fn ends_turn(task: &Value) -> bool {
    let state = task["status"]["state"].as_str().and_then(TaskState::parse);
    state.is_some_and(TaskState::ends_turn)
}
