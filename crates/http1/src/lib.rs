//! HTTP/1.1 at both ends of a proxy: the heads and chunks of requests, which are refused if two parsers could read them
//! differently; answers, which are read as leniently as their clients do; and the idle connections to servers. No
//! module knows what the messages mean.

mod address;
mod answer;
mod body;
mod caller;
mod chunks;
mod connector;
mod failure;
mod fields;
mod head;
mod pool;
mod request;

pub use self::address::forwarded_address;
pub use self::answer::{ANSWER_HEAD_BYTES_MAX, AnswerError, AnswerHead, AnswerReader};
pub use self::caller::{
    AbortCause, CallerStream, lingering_close, read_first_bytes, read_request_head,
};
pub use self::chunks::{ChunkParser, InvalidChunks, is_invalid_chunks};
pub use self::connector::{Connection, Connector, PoolHandle, SendError, build_peer};
pub use self::failure::{Failure, is_local_failure};
pub use self::fields::{
    content_length_of, has_tag, is_event_stream, is_hop_by_hop, named_by_connection, names_utf8,
    opens_socket, preferred_wait, prefers_async,
};
pub use self::head::{
    HeadError, HeadScanner, REQUEST_FIELDS_MAX, ScannedHead, TARGET_BYTES_MAX, is_canonical_segment,
};
pub use self::pool::{Pool, number_of_thread, serve_on_this_thread};
pub use self::request::{HeadWriter, WireRequest};

use pingora::protocols::Stream;
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead as _, ReadBuf};

/// Largest body that is copied behind the head, so that both leave in one write.
const ONE_WRITE: usize = 16 * 1024;

/// Lets the tasks of this thread that are ready run first, once. They get as far as this too, and what they send then
/// leaves in one batch: a peer on this machine is woken once for all of it, not once for each message. Costs one poll
/// where no other task is ready. Unlike `yield_now`, it does not look for I/O events before it goes on.
pub async fn join_batch() {
    let mut has_waited = false;
    poll_fn(|task| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        task.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

// Reads into one buffer of each thread, so that a connection that waits holds none.

/// Maximum bytes of one read, and size of each thread's buffer.
const READ_MAX: usize = 64 * 1024;

thread_local! {
    /// The buffer of this thread. Taken while it is used.
    static BUFFER: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// Reads at most `max` bytes, once, and hands them to `take`. No bytes: the other side closed the connection.
fn poll_read<T>(
    stream: &mut Stream,
    context: &mut Context<'_>,
    max: usize,
    take: impl FnOnce(&mut [u8]) -> T,
) -> Poll<io::Result<T>> {
    let mut buffer = BUFFER
        .take()
        .unwrap_or_else(|| vec![0; READ_MAX].into_boxed_slice());
    let mut read = ReadBuf::new(&mut buffer[..max.min(READ_MAX)]);
    let polled = Pin::new(stream).poll_read(context, &mut read);
    let taken = polled.map_ok(|()| take(read.filled_mut()));
    BUFFER.set(Some(buffer));
    taken
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn tasks_that_are_ready_send_together() {
        let steps = Mutex::new(Vec::new());
        let note = |step: &'static str| steps.lock().push(step);
        let call = async || {
            note("read");
            join_batch().await;
            note("sent");
        };
        futures_util::future::join3(call(), call(), call()).await;
        assert_eq!(
            *steps.lock(),
            ["read", "read", "read", "sent", "sent", "sent"]
        );
    }
}
