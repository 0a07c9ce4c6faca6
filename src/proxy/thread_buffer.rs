//! Reads into one buffer of each thread, so that a connection that waits holds none.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use pingora::protocols::Stream;
use tokio::io::{AsyncRead as _, ReadBuf};

/// Maximum bytes of one read, and size of each thread's buffer.
pub(in crate::proxy) const READ_MAX: usize = 64 * 1024;

thread_local! {
    /// The buffer of this thread. Taken while it is used.
    static BUFFER: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// Reads at most `max` bytes, once, and hands them to `take`. No bytes: the other side closed the connection.
pub(in crate::proxy) fn poll_read<T>(
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
