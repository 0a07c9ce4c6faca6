//! One HTTP/2 connection. Its preface is awaited with a clock, and its streams run concurrently. The connection is cut
//! if it is idle, or if its streams are opened only to be reset.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pingora::Error;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::{H2Accept, H2Options, HttpSession, handshake};
use pingora::protocols::{Digest, Stream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use http1::AbortCause;
use kernel::config::Live;
use kernel::drain::Drain;
use kernel::metrics::{ConnectionCut, Metrics};

/// Maximum bytes of a decoded header list, as for HTTP/1.
const HEADER_LIST_BYTES_MAX: u32 = 32 * 1024;

/// Maximum streams that a caller may reset before they are accepted (CVE-2023-44487, rapid reset).
const UNSEEN_RESETS_MAX: usize = 20;

/// Maximum streams that a caller may make the gateway reset by protocol errors (CVE-2025-8671, MadeYouReset).
const FORCED_RESETS_MAX: usize = 32;

/// Maximum bytes that one stream buffers for a caller that does not read: one frame. No task waits for the rest of a
/// complete answer, so only the clock of an idle connection bounds it.
const SEND_BUFFER_BYTES: usize = 16 * 1024;

/// Maximum requests without a usable target or authority over the life of a connection.
const MALFORMED_MAX: u32 = 32;

/// A stream that is reset sooner counts as rapid.
const RAPID: Duration = Duration::from_secs(1);

/// Maximum excess of rapidly reset streams over answered ones.
const RAPID_MAX: i64 = 100;

/// Serves one connection. Its preface must be complete, and its first stream open, at `deadline`. A `proxied`
/// connection carries many callers, so it is not cut for the resets of one of them. `serve_request` gets `true` for
/// a stream beyond `server.http2_streams`.
pub(super) async fn serve<F>(
    (config, metrics, drain): (&Live, &Metrics, &Drain),
    stream: Stream,
    deadline: Instant,
    proxied: bool,
    serve_request: impl Fn(Box<ServerSession>, bool) -> F,
) where
    F: Future<Output = StreamOutcome> + Send + 'static,
{
    let digest = Arc::new(Digest {
        ssl_digest: stream.get_ssl_digest(),
        timing_digest: stream.get_timing_digest(),
        proxy_digest: stream.get_proxy_digest(),
        socket_digest: stream.get_socket_digest(),
    });
    let streams_max = config.get().server.http2_streams;
    let options = Some(h2_options(streams_max));
    let mut connection = match timeout_at(deadline, handshake(stream, options)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(_)) => return metrics.connections_cut[ConnectionCut::BadHead].inc(),
        Err(_) => return metrics.connections_cut[ConnectionCut::SlowHead].inc(),
    };
    // A client that keeps the connection must get GOAWAY while it has time to connect elsewhere.
    let mut leaving = pin!(drain.wait_for_leave());
    let mut ending = false;
    // Dropping the set would abort the streams. A stream whose caller is gone ends by itself, in order.
    let mut streams = JoinSet::new();
    let mut balance = ResetBalance::default();
    let mut idle_until = deadline;
    loop {
        tokio::select! {
            biased;
            () = &mut leaving, if !ending => {
                connection.graceful_shutdown();
                ending = true;
            }
            Some(ended) = streams.join_next(), if !streams.is_empty() => {
                if balance.record_outcome(ended.ok()) && !proxied {
                    metrics.connections_cut[ConnectionCut::Resets].inc();
                    break;
                }
                idle_until = Instant::now() + config.get().server.keepalive;
            }
            accepted = HttpSession::from_h2_conn(&mut connection, Arc::clone(&digest)) => {
                match accepted {
                    Ok(Some(H2Accept::Session(session))) => {
                        // Spawned as it is: a future that another one captures takes its space twice.
                        let is_beyond = streams.len() >= streams_max as usize;
                        let session = Box::new(ServerSession::new_http2(session));
                        streams.spawn(serve_request(session, is_beyond));
                        // A stream that its caller reset is no longer open to HTTP/2, but its task may still run.
                        if streams.len() > 4 * streams_max as usize {
                            metrics.connections_cut[ConnectionCut::Resets].inc();
                            break;
                        }
                    }
                    Ok(Some(H2Accept::Rejected)) => {
                        balance.malformed += 1;
                        if balance.malformed >= MALFORMED_MAX {
                            metrics.connections_cut[ConnectionCut::BadHead].inc();
                            break;
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        if is_flood(&error) {
                            metrics.connections_cut[ConnectionCut::Resets].inc();
                        }
                        break;
                    }
                }
            }
            () = sleep_until(idle_until), if streams.is_empty() => break,
        }
    }
    streams.detach_all();
}

/// True if h2 itself cut the connection for resets beyond the bounds of [`h2_options`].
fn is_flood(error: &Error) -> bool {
    let cause = error.cause.as_deref();
    let cause = cause.and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|error| {
        error.is_library() && error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM)
    })
}

/// Returns the settings of a connection. It may open twice as many streams as are served, so that those beyond are
/// refused with a reason instead of stalled.
fn h2_options(streams_max: u32) -> H2Options {
    let mut options = H2Options::new();
    options
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_concurrent_streams(streams_max.saturating_mul(2))
        .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
        .max_local_error_reset_streams(Some(FORCED_RESETS_MAX))
        .max_send_buffer_size(SEND_BUFFER_BYTES);
    options
}

/// The outcome of one stream.
pub(super) struct StreamOutcome {
    /// Ok if the whole answer was sent.
    pub(super) served: Result<(), AbortCause>,
    pub(super) took: Duration,
}

/// The balance of rapid resets against answered streams on one connection.
#[derive(Default)]
struct ResetBalance {
    /// Rapidly reset streams minus answered ones.
    rapid: i64,
    malformed: u32,
}

impl ResetBalance {
    /// Records the outcome of one stream. Returns true if the connection only causes work and must be cut. `None`: a
    /// bug of the gateway ended the stream.
    fn record_outcome(&mut self, ended: Option<StreamOutcome>) -> bool {
        match ended {
            Some(StreamOutcome { served: Ok(()), .. }) => {
                self.rapid = (self.rapid - 1).max(-RAPID_MAX)
            }
            Some(StreamOutcome {
                served: Err(AbortCause::CallerLeft),
                took,
            }) if took < RAPID => self.rapid += 1,
            // An exchange that the gateway aborts, because the agent did, is not the caller's fault.
            Some(_) | None => {}
        }
        self.rapid > RAPID_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_streams_given_up_at_once_and_in_numbers_count() {
        let ended = |served, millis| {
            let took = Duration::from_millis(millis);
            Some(StreamOutcome { served, took })
        };
        let left = || Err(AbortCause::CallerLeft);
        let mut balance = ResetBalance::default();
        for _ in 0..1000 {
            assert!(
                !balance.record_outcome(ended(left(), 5000)),
                "readers of events leave"
            );
            assert!(!balance.record_outcome(ended(Ok(()), 1)));
            assert!(!balance.record_outcome(ended(left(), 1)), "one for one");
        }
        for _ in 0..1000 {
            assert!(
                !balance.record_outcome(ended(Err(AbortCause::Ours), 1)),
                "not its doing"
            );
        }
        let given_up = (1..=500).find(|_| balance.record_outcome(ended(left(), 1)));
        assert!(given_up.is_some_and(|n| n <= 201), "{given_up:?}");
    }
}
