//! Stream of a polling agent's task: its present state, then each update, until its turn ends.

use bytes::Bytes;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use crate::filters::Rewrite;
use crate::guard::stream::{EventCheck, EventGuard};
use crate::idempotency::EventWriter;
use crate::inbox::{ResponseContext, own_head};
use crate::listener::client_disconnected;
use crate::record::{Answered, ExchangeError};
use crate::services::Request;
use crate::upstream::{shutting_down, timed_out};
use a2a::state::TaskState;
use assembly::access_watch::{AccessBasis, CutOff, cut_off};
use kernel::ids::stream_id;
use kernel::metrics::InProgress;
use kernel::rejection::{Delivery, Rejection};
use mailbox::inbox::{InboxTask, Watch};

/// Follows the task, from its document `first` on, to the end of its agent's turn.
pub(super) async fn stream_task(
    request: &mut Request<'_>,
    response: ResponseContext,
    task: InboxTask,
    (document, mut seen): (Value, i64),
) -> Result<Answered, ExchangeError> {
    let (gateway, relay) = (&request.context.gateway, &request.context.relay);
    let inbox = &gateway.delivery.inbox;
    let mut watch = inbox.watch_task(&task.id);
    let _open = InProgress::begin(&request.exchange.call.metrics.open_streams);
    let name = stream_id().simple().to_string();
    let head = own_head(request, "text/event-stream", None, &response)?;
    let end = request.exchange.call.started + request.exchange.call.config.timeouts.stream;
    let writer = EventWriter::begin(request, (200, head), &name, false).await?;
    let call = &writer.exchange.call;
    let mut stream = TaskStream {
        cut_off: relay.cut_off(
            AccessBasis::Credential,
            call.proof.as_ref(),
            call.target.as_ref(),
        ),
        writer,
        rewrite: response.rewrite,
        guard: response.guarded.as_ref().and_then(EventGuard::for_turns),
        end,
    };
    let first = response.form.stream_event(&document);
    if !stream.write(first, false).await? {
        return Ok(Answered);
    }
    let mut over = ends_turn(&document);
    while !over {
        // An outage of the store does not end the stream: the next read may succeed.
        let updates = inbox.updates_after(&task.id, seen).await;
        let updates = updates.unwrap_or_default();
        let waits = updates.is_empty();
        for update in updates {
            seen = update.n;
            over = update.update.ends_turn();
            let event = response
                .form
                .update_event(&task.id, &task.context_id, &update);
            if !stream.write(event, false).await? {
                return Ok(Answered);
            }
        }
        let leave = gateway.drain.wait_for_leave();
        if waits && let Some(why) = stream.wait(&mut watch, leave).await? {
            return stream.writer.end(&why).await;
        }
    }
    stream.write(String::new(), true).await?;
    Ok(Answered)
}

/// A stream in progress.
struct TaskStream<'a> {
    /// Ends the stream when its caller loses access.
    cut_off: Option<CutOff>,
    writer: EventWriter<'a>,
    rewrite: Option<Rewrite>,
    /// The guards that are asked about updates.
    guard: Option<EventGuard>,
    /// Deadline of the stream.
    end: Instant,
}

impl TaskStream<'_> {
    /// Waits for an update or the next keepalive. Returns the reason why the stream is cut, if it is.
    async fn wait(
        &mut self,
        watch: &mut Watch,
        drain: impl Future<Output = ()>,
    ) -> Result<Option<Rejection>, ExchangeError> {
        let wake = self.writer.keepalive_at().min(self.end);
        tokio::select! {
            biased;
            () = watch.changed() => return Ok(None),
            () = sleep_until(wake) => {}
            why = cut_off(&mut self.cut_off) => return Ok(Some(why)),
            () = drain => return Ok(Some(shutting_down(Delivery::Sent))),
            () = client_disconnected(self.writer.session) => return Err(ExchangeError::CallerLeft),
        }
        if self.end <= wake {
            return Ok(Some(timed_out("stream")));
        }
        self.writer.send_keepalive().await.map(|()| None)
    }

    /// Writes an event, unless guards withhold it. False: it was the last one, with the reason of a guard.
    async fn write(&mut self, event: String, last: bool) -> Result<bool, ExchangeError> {
        let mut bytes = Bytes::from(event);
        if let Some(rewrite) = &mut self.rewrite {
            (bytes, _) = rewrite.rewrite_events(bytes);
        }
        let guard = self.guard.as_mut().filter(|_| !bytes.is_empty() && !last);
        let Some(check) = guard.map(EventGuard::take) else {
            self.writer.send(bytes, last).await?;
            return Ok(true);
        };
        let (passed, rejected) = self.ask_guards(check, bytes).await?;
        self.writer.send(passed, false).await?;
        match rejected {
            None => Ok(true),
            Some(why) => self.writer.end(&why).await.map(|Answered| false),
        }
    }

    /// Asks guards about an update. Comments keep the caller's connection alive meanwhile.
    async fn ask_guards(
        &mut self,
        mut check: EventCheck,
        bytes: Bytes,
    ) -> Result<(Bytes, Option<Rejection>), ExchangeError> {
        let mut asked = std::pin::pin!(check.check_events(bytes, false));
        loop {
            tokio::select! {
                biased;
                passed = &mut asked => return Ok(passed),
                () = sleep_until(self.writer.keepalive_at()) => self.writer.send_keepalive().await?,
                () = client_disconnected(self.writer.session) => return Err(ExchangeError::CallerLeft),
            }
        }
    }
}

/// True if the task waits for its caller, or is over.
fn ends_turn(task: &Value) -> bool {
    let state = task["status"]["state"].as_str().and_then(TaskState::parse);
    state.is_some_and(TaskState::ends_turn)
}
