//! The reading side of a stream: access, position, and the bytes that are sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use uuid::Uuid;

use super::Streams;
use super::copy::RemoteStream;
use super::stream_log::{LogRead, StreamAccess, StreamEnd, StreamLog};
use a2a::event::Framing;
use a2a::stamp::agent_id;
use kernel::ids::{RequestId, WorkspaceIncarnation};
use kernel::metrics::InProgress;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::{Account, Bound, Share};

/// The divisor of `stream.readers` that bounds the readers of one caller.
const SHARE_OF_CALLER: usize = 16;

/// A reader of a stream that was resumed. Dropping it ends the read.
pub struct Reader {
    source: Source,
    /// The number of the last event that was returned.
    after: u64,
    request_id: RequestId,
    over: bool,
    _place: Option<(Share, InProgress)>,
}

enum Source {
    Local(LocalStream),
    Remote(RemoteStream),
}

/// A stream of this replica, while it is read.
struct LocalStream(Arc<StreamLog>);

impl LocalStream {
    fn new(kept: Arc<StreamLog>) -> Self {
        kept.readers.fetch_add(1, Ordering::AcqRel);
        Self(kept)
    }

    async fn next_events(&self, after: u64) -> LogRead {
        loop {
            let mut grown = std::pin::pin!(self.0.grown.notified());
            // Enabled before the read, so that no change between the two is missed.
            grown.as_mut().enable();
            if let Some(look) = self.0.read_after(after) {
                return look;
            }
            grown.await;
        }
    }
}

impl Drop for LocalStream {
    fn drop(&mut self) {
        self.0.record_read();
        self.0.readers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Streams {
    /// Resumes a stream that `target` sent, for its caller `owner`: after the event `after`, or from the
    /// first event that is kept. `request_id` is used in events that the gateway itself adds.
    ///
    /// # Errors
    /// `not_found`, also for a stream of another caller or target; `invalid_params` if the id is not that of an
    /// event of the stream; `overloaded` beyond `stream.readers`; `store_unavailable`.
    pub async fn open(
        &self,
        (owner, target): (&str, &WorkspaceIncarnation),
        stream: &str,
        after: Option<&str>,
        request_id: RequestId,
    ) -> Result<Reader, Rejection> {
        let max = self.config.get().stream.readers;
        let bound = Bound {
            each: (max / SHARE_OF_CALLER).max(1),
            ..Bound::with_places(max)
        };
        let share = self.readers.take(Account::of_owner(owner), 1, bound);
        let share = share.map_err(|_| {
            let message = "as many resumed streams are open as may be (stream.readers), or a sixteenth of it by this caller";
            let again = Duration::from_secs(1);
            Rejection::new(Reason::Overloaded, message).with_retry_after(again)
        })?;
        let place = (share, InProgress::begin(&self.metrics.streams.readers));
        let opened = self.follow_stream((owner, target), stream, request_id);
        let mut reader = opened.await?.ok_or_else(not_found)?;
        let after = after.map_or(Ok(0), |after| parse_number(after, stream))?;
        let came = match &mut reader.source {
            Source::Local(stream) => after <= stream.0.last_number(),
            Source::Remote(stream) => stream.may_have(after).await?,
        };
        if !came {
            return Err(no_event());
        }
        reader.after = after;
        reader._place = Some(place);
        Ok(reader)
    }

    /// As [`Streams::open`] from the first event, for a request that is counted elsewhere. `None`: there is
    /// no such stream.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn follow_stream(
        &self,
        access: (&str, &WorkspaceIncarnation),
        stream: &str,
        request_id: RequestId,
    ) -> Result<Option<Reader>, Rejection> {
        let source = self.find_source(access, stream).await?;
        Ok(source.map(|source| Reader {
            source,
            after: 0,
            request_id,
            over: false,
            _place: None,
        }))
    }

    /// Returns the agent's own id of the event `id` that `target` sent to `owner`. `None`: the agent gave it none, or
    /// it is not kept.
    pub async fn agent_event_id(
        &self,
        access: (&str, &WorkspaceIncarnation),
        id: &str,
        request_id: RequestId,
    ) -> Option<Bytes> {
        let (stream, _) = id.split_once('-')?;
        let opened = self.open(access, stream, Some(id), request_id).await;
        let mut reader = opened.ok()?;
        // The event itself is read once more.
        reader.after = reader.after.checked_sub(1)?;
        let blocks = reader.next().await?;
        agent_id(&blocks, id).map(Bytes::copy_from_slice)
    }

    async fn find_source(
        &self,
        (owner, target): (&str, &WorkspaceIncarnation),
        stream: &str,
    ) -> Result<Option<Source>, Rejection> {
        let mine =
            |access: &StreamAccess| access.owner == owner && access.target == target.to_string();
        let Some(id) = parse_id(stream) else {
            return Ok(None);
        };
        if let Some(kept) = self.find_local(id) {
            let mine = mine(&kept.access);
            return Ok(mine.then(|| Source::Local(LocalStream::new(kept))));
        }
        let Some(copies) = &self.copies else {
            return Ok(None);
        };
        let found = RemoteStream::find(&copies.shared, id).await?;
        let found = found.filter(|found| mine(&found.meta.access));
        Ok(found.map(Source::Remote))
    }
}

impl Reader {
    /// Waits for the next events; `None`: the stream is over. Cancel-safe: no event is lost.
    pub async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        let look = match &mut self.source {
            Source::Local(stream) => stream.next_events(self.after).await,
            Source::Remote(stream) => stream.next_events(self.after).await,
        };
        let framing = Framing::from_text(&look.bytes);
        let mut bytes = BytesMut::new();
        if look.missed > 0 {
            bytes.extend_from_slice(&gap_event(look.missed, framing));
        }
        bytes.extend_from_slice(&look.bytes);
        self.after = look.up_to;
        if let Some(over) = look.over {
            self.over = true;
            match over {
                StreamEnd::Whole(rest) => bytes.extend_from_slice(&rest),
                StreamEnd::Lost => bytes.extend_from_slice(&self.lost_event(framing)),
            }
        }
        (!bytes.is_empty()).then(|| bytes.freeze())
    }

    /// Returns the last event of a stream that was broken off for an unknown reason.
    fn lost_event(&self, framing: Framing) -> Bytes {
        let rejection = Rejection::new(
            Reason::AgentProtocolError,
            "the stream was broken off: it had no reader for stream.linger, or the gateway that had it is gone; ask for the task",
        )
        .with_delivery(Delivery::Unknown);
        let (form, stream) = match &self.source {
            Source::Local(stream) => (&stream.0.access.form, stream.0.id),
            Source::Remote(stream) => (&stream.meta.access.form, stream.id),
        };
        let stream = stream.simple().to_string();
        rejection.last_event(form, &self.request_id, &stream, framing)
    }
}

fn gap_event(missed: u64, framing: Framing) -> Bytes {
    let end = framing.line_end();
    format!("event: gap{end}data: {{\"missed\":{missed}}}{end}{end}").into()
}

/// Parses the name of a stream, in its one spelling.
fn parse_id(stream: &str) -> Option<Uuid> {
    let id = Uuid::try_parse(stream).ok()?;
    (id.simple().to_string() == stream).then_some(id)
}

/// Parses the number in the id of an event: `<stream>-<n>`.
fn parse_number(id: &str, stream: &str) -> Result<u64, Rejection> {
    let number = id
        .strip_prefix(stream)
        .and_then(|rest| rest.strip_prefix('-'));
    let digits = number.filter(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    let number = digits.and_then(|digits| digits.parse().ok());
    // Nothing can follow the greatest number.
    number.filter(|n| *n < u64::MAX).ok_or_else(no_event)
}

fn no_event() -> Rejection {
    let message = "Last-Event-ID is no id of an event of this stream: `<stream>-<number>`, as in its `id` lines";
    Rejection::new(Reason::InvalidParams, message)
}

fn not_found() -> Rejection {
    Rejection::new(
        Reason::NotFound,
        "there is no such stream for this caller, or it is not kept any more (stream.log_ttl; without Redis, until the \
         gateway ends): ask for the task (tasks/get, tasks/resubscribe)",
    )
}
