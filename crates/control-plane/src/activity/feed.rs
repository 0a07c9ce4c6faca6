//! An inbox as an event stream: first the stored entries, then new ones. Entries are read from the store as the reader
//! takes them, so nothing is buffered for a slow reader (backpressure).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use tokio::time::{Instant, sleep, sleep_until};

use super::query::Query;
use super::readable;
use super::{CHECK_EVERY, note_life};
use crate::events::{BEGIN, COMMENT, COMMENT_EVERY, event_stream, named_event};
use crate::extract::Caller;
use access::identity::Proof;
use assembly::gateway::Gateway;
use kernel::ids::WorkspaceId;
use kernel::metrics::InboxReader;
use kernel::rejection::{Reason, Rejection};
use mailbox::inbox::{Filter, Item, Page, Reader, Start};

/// Entries read at once.
const PAGE: u32 = 100;

/// Maximum bytes of one piece to the reader. A reader that takes none for 10 s is cut, and an entry may be large.
const PIECE_BYTES: usize = 64 << 10;

/// Pause before the store is read again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Answers with the stream.
///
/// # Errors
/// `cursor_gone`; `overloaded` and `rate_limited` beyond `[inbox]`; `store_unavailable`.
pub(super) async fn open_feed(
    gateway: Arc<Gateway>,
    id: WorkspaceId,
    caller: Caller,
    query: Query,
) -> Result<Response, Rejection> {
    let inbox = &gateway.delivery.inbox;
    let reader = inbox.open_reader(&id, &caller.0, InboxReader::Stream)?;
    let (after, resumed) = match &query.since_id {
        Some(since) => (inbox.find_position(&id, since).await?, true),
        None => (inbox.read_acknowledged(&id).await?, false),
    };
    let feed = Feed {
        reader,
        proof: caller.0,
        filter: query.filter,
        after,
        resumed,
        look: true,
        held: false,
        items: VecDeque::new(),
        rest: Bytes::from_static(BEGIN),
        check: Instant::now() + CHECK_EVERY,
        comment: Instant::now() + COMMENT_EVERY,
        over: false,
        gateway,
        id,
    };
    let pieces = stream::unfold(feed, |mut feed| async {
        let piece = feed.next().await?;
        Some((Ok::<_, Infallible>(piece), feed))
    });
    Ok(event_stream(Body::from_stream(pieces)))
}

/// Builds the rejection for a reader with a credential that is no longer valid.
pub(super) fn credential_gone() -> Rejection {
    let message = "the credential was revoked or has expired; come again with a live one";
    Rejection::new(Reason::Unauthenticated, message)
}

/// The state of one reader's stream.
struct Feed {
    gateway: Arc<Gateway>,
    id: WorkspaceId,
    reader: Reader,
    proof: Arc<Proof>,
    filter: Filter,
    /// The number of the reader's last entry, once `items` are sent.
    after: i64,
    /// True if no entry after `after` may be missing. Entries pruned before the stream began do not count.
    resumed: bool,
    /// True if the store may have more entries.
    look: bool,
    /// True if entries wait for the release of a stop.
    held: bool,
    /// Entries that were read and not yet sent.
    items: VecDeque<Item>,
    /// The rest of an entry that is being sent.
    rest: Bytes,
    check: Instant,
    comment: Instant,
    over: bool,
}

impl Feed {
    /// Returns the next piece; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if !self.rest.is_empty() {
                self.comment = Instant::now() + COMMENT_EVERY;
                return Some(self.rest.split_to(self.rest.len().min(PIECE_BYTES)));
            }
            if self.over {
                return None;
            }
            // A last event is valid only between two entries.
            if self.gateway.is_draining() {
                self.end_with(
                    "end",
                    Reason::ShuttingDown,
                    "this gateway is shutting down; come again to reach another one",
                );
            } else if self.check <= Instant::now() && !self.is_good().await {
                self.end_with("end", Reason::Unauthenticated, &credential_gone().message);
            } else if let Some(item) = self.items.pop_front() {
                self.rest = entry_event(&item);
            } else if self.look {
                self.load_entries().await;
            } else {
                self.wait_for_work().await;
            }
        }
    }

    async fn is_good(&mut self) -> bool {
        self.check = Instant::now() + CHECK_EVERY;
        // The release of a stop is no entry.
        self.look |= self.held;
        note_life(&self.gateway, &self.proof, &self.id).await;
        self.gateway.identity.is_still_valid(&self.proof).await
    }

    async fn load_entries(&mut self) {
        let wanted = (self.filter, Start::After(self.after), PAGE);
        let page = readable::load_page(&self.gateway, (&self.proof, &self.id), wanted);
        let Ok((page, held)) = page.await else {
            // The entries stay in the store, and comments keep the connection alive.
            sleep(RETRY_PAUSE).await;
            return;
        };
        self.held = held;
        if self.resumed && self.is_behind(&page) {
            let message =
                "entries after the last one were pruned; read what there is without an id";
            return self.end_with("gap", Reason::CursorGone, message);
        }
        let last = page.items.last().map(|item| item.seq);
        self.after = last
            .filter(|_| page.more)
            .unwrap_or(page.last)
            .max(self.after);
        self.resumed = true;
        self.look = page.more;
        self.items = page.items.into();
    }

    /// True if entries after the reader's last one were pruned.
    fn is_behind(&self, page: &Page) -> bool {
        self.after + 1 < page.oldest
    }

    /// Waits until there is work.
    async fn wait_for_work(&mut self) {
        tokio::select! {
            biased;
            () = self.gateway.drain.wait_for_leave() => {}
            () = sleep_until(self.check) => {}
            () = sleep_until(self.comment) => self.rest = Bytes::from_static(COMMENT),
            () = self.reader.watch.changed() => self.look = true,
        }
    }

    fn end_with(&mut self, name: &str, reason: Reason, message: &str) {
        self.rest = named_event(name, reason.as_str(), message);
        self.over = true;
    }
}

/// Builds an event with one line of data. JSON has line breaks only between its tokens, so spaces can replace them.
fn entry_event(item: &Item) -> Bytes {
    let mut data = serde_json::to_vec(item).unwrap_or_default();
    for byte in &mut data {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    let mut text = format!("id: {}\nevent: activity\ndata: ", item.id).into_bytes();
    text.append(&mut data);
    text.extend_from_slice(b"\n\n");
    text.into()
}
