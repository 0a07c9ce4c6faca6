//! One reader: first all workspaces, page by page, then live events. Each event is built when the reader asks
//! for it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep_until};

use super::Console;
use super::hub::format_event;
use super::rows::{PAGE, ROWS_MAX};
use kernel::metrics::EventReader;
use kernel::rejection::{Reason, Rejection};
use kernel::telemetry::Chain;

/// Consoles that may be open at once on one replica.
pub const READERS_MAX: usize = 16;

/// Pause after a page that cannot be read.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The reader fell too far behind: the events that it missed are no longer in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedOverrun;

/// The position of a reader.
enum Position {
    Begin(Bytes),
    Rows(Page),
    Live,
}

/// The page of workspaces that comes next.
struct Page {
    /// The id after which it begins.
    after: String,
    /// The number of workspaces before it.
    before: usize,
    /// Time of the next attempt, if it could not be read.
    retry: Option<Instant>,
}

/// A reader of the console. Dropping it closes it.
pub struct Reader {
    console: Arc<Console>,
    live: broadcast::Receiver<Bytes>,
    position: Position,
}

impl Console {
    /// Opens a reader for an operator.
    ///
    /// # Errors
    /// `overloaded` beyond [`READERS_MAX`].
    pub fn open_reader(self: &Arc<Self>) -> Result<Reader, Rejection> {
        if !self.changes.audience.add_reader(READERS_MAX) {
            let message = "as many consoles as may be are open at this gateway; close one first";
            let rejection = Rejection::new(Reason::Overloaded, message);
            return Err(rejection.with_retry_after(Duration::from_secs(5)));
        }
        self.metrics.event_readers[EventReader::Console].inc();
        let (begin, live) = self.hub.subscribe(self.replica.as_str());
        Ok(Reader {
            console: Arc::clone(self),
            live,
            position: Position::Begin(begin),
        })
    }
}

impl Reader {
    /// Waits for the next event, in the form of an event stream. Cancel-safe: no event is lost.
    ///
    /// # Errors
    /// When it fell too far behind.
    pub async fn next(&mut self) -> Result<Bytes, FeedOverrun> {
        loop {
            match &mut self.position {
                Position::Begin(begin) => {
                    let begin = begin.clone();
                    self.position = Position::Rows(Page {
                        after: String::new(),
                        before: 0,
                        retry: None,
                    });
                    return Ok(begin);
                }
                Position::Rows(page) => {
                    let Some(at) = page.retry else {
                        let (event, position) = read_rows(&self.console, page).await;
                        self.position = position;
                        return Ok(event);
                    };
                    tokio::select! {
                        biased;
                        () = sleep_until(at) => page.retry = None,
                        live = self.live.recv() => return live.map_err(|_| FeedOverrun),
                    }
                }
                Position::Live => return self.live.recv().await.map_err(|_| FeedOverrun),
            }
        }
    }
}

/// Returns the next page of workspaces, or an event that it cannot be read now.
async fn read_rows(console: &Console, page: &Page) -> (Bytes, Position) {
    let rows = match console.workspaces.load_outlines(&page.after, PAGE).await {
        Ok(rows) => rows,
        Err(error) => {
            tracing::debug!(error = %Chain(&error), "failed to read workspaces for a console; retrying");
            let message = "the database does not answer; workspaces are shown as soon as it does";
            let trouble = json!({"reason": "store_unavailable", "message": message});
            let again = Page {
                after: page.after.clone(),
                before: page.before,
                retry: Some(Instant::now() + RETRY_PAUSE),
            };
            return (format_event("trouble", &trouble), Position::Rows(again));
        }
    };
    let before = page.before + rows.len();
    let last = rows.last().map(|row| row.id.as_str().to_owned());
    let full = rows.len() == PAGE;
    let truncated = full && before >= ROWS_MAX;
    let more = last.filter(|_| full && !truncated);
    let event = json!({"rows": rows, "last": more.is_none(), "truncated": truncated});
    let position = more.map_or(Position::Live, |after| {
        Position::Rows(Page {
            after,
            before,
            retry: None,
        })
    });
    (format_event("rows", &event), position)
}

impl Drop for Reader {
    fn drop(&mut self) {
        let metrics = &self.console.metrics;
        metrics.event_readers[EventReader::Console].dec();
        self.console.changes.audience.remove_reader();
    }
}
