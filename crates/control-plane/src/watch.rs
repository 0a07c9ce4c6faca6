//! The common part of `GET /ws` and `GET /events`: the reader's credential, and the next step of its connection.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Query};
use futures_util::future::{Fuse, FusedFuture as _, FutureExt as _};
use http::request::Parts;
use secrecy::SecretString;
use serde::Deserialize;
use tokio::time::Interval;

use super::extract::{LastEventId, admit, single_authorization};
use super::ws::Handshake;
use access::identity::Proof;
use assembly::gateway::Gateway;
use directory::events::{Frame, Reader, ReaderLagged};
use kernel::deadline::ticks_after;
use kernel::metrics::EventReader;
use kernel::rejection::{Reason, Rejection};

/// Interval of credential checks: a revocation closes the connection within 2 s.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A reader to be, proven by `Authorization` or by `?ticket=`, and the event after which it resumes.
pub(super) struct Watcher {
    pub(super) proof: Arc<Proof>,
    after: Option<String>,
}

#[derive(Deserialize)]
struct WatchQuery {
    ticket: Option<String>,
}

impl FromRequestParts<Arc<Gateway>> for Watcher {
    type Rejection = Rejection;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Rejection> {
        let query = Query::<WatchQuery>::from_request_parts(parts, gateway).await;
        // The message does not repeat the query: it may contain a ticket.
        let Ok(Query(query)) = query else {
            let message = "the query is `ticket` and `last_event_id`, each once at most";
            return Err(Rejection::new(Reason::InvalidParams, message));
        };
        let LastEventId(after) = LastEventId::from_request_parts(parts, gateway).await?;
        let proof = match (
            single_authorization(&parts.headers)?,
            query.ticket.map(SecretString::from),
        ) {
            (Some(_), Some(_)) => {
                let message = "the request has both `Authorization` and `?ticket=`: send one";
                return Err(Rejection::new(Reason::Unauthenticated, message));
            }
            (None, Some(ticket)) => {
                if parts.uri.path() == "/ws" {
                    // Before the ticket is redeemed.
                    Handshake::from_parts(parts)?;
                }
                let (identity, shared) = (&gateway.identity, &gateway.shared);
                identity.redeem_ticket(shared, &ticket).await?
            }
            (field, None) => gateway.identity.authenticate(field).await?,
        };
        admit(gateway, parts, &proof)?;
        Ok(Self { proof, after })
    }
}

/// The next step of a reader's connection.
pub(super) enum Step {
    /// An event for the reader.
    Frame(Frame),
    /// Silence for the configured time.
    Quiet,
    /// The end of the connection.
    End(EndReason),
}

/// The reason for the end of a connection.
#[derive(Clone, Copy)]
pub(super) enum EndReason {
    ShuttingDown,
    Credential,
    Slow,
}

impl EndReason {
    /// Returns the reason, and a message for people.
    pub(super) const fn reason_and_message(self) -> (&'static str, &'static str) {
        match self {
            Self::ShuttingDown => (
                "shutting_down",
                "this gateway is shutting down; connect again to reach another one",
            ),
            Self::Credential => (
                "unauthenticated",
                "the credential was revoked or has expired; connect again with a live one",
            ),
            Self::Slow => (
                "too_slow",
                "events came faster than they were read; connect again and read the state anew",
            ),
        }
    }
}

/// The supervision of an open connection: ends it with the gateway or the credential, and reports silence.
pub(super) struct ConnectionWatch {
    gateway: Arc<Gateway>,
    check: Interval,
    quiet: Interval,
}

/// The first result of a wait.
pub(super) enum WaitOutcome<T> {
    Next(T),
    Quiet,
    End(EndReason),
}

impl ConnectionWatch {
    pub(super) fn new(gateway: Arc<Gateway>, quiet: Duration) -> Self {
        Self {
            check: ticks_after(CHECK_EVERY, CHECK_EVERY),
            quiet: ticks_after(quiet, quiet),
            gateway,
        }
    }

    /// Waits for `next`, the shutdown, the end of the credential, or silence. `next` is dropped if another comes first.
    pub(super) async fn wait<T>(
        &mut self,
        proof: &Proof,
        next: impl Future<Output = T>,
    ) -> WaitOutcome<T> {
        let Self {
            gateway,
            check,
            quiet,
        } = self;
        let mut next = std::pin::pin!(next);
        // Beside `next`, which may have begun the load that the check waits for.
        let mut checking = std::pin::pin!(Fuse::terminated());
        loop {
            tokio::select! {
                biased;
                () = gateway.drain.wait_for_leave() => return WaitOutcome::End(EndReason::ShuttingDown),
                _ = check.tick(), if checking.is_terminated() => {
                    checking.set(gateway.identity.is_still_valid(proof).fuse());
                }
                is_good = &mut checking => {
                    if !is_good {
                        gateway.metrics.count_event_reader_cut("credential");
                        return WaitOutcome::End(EndReason::Credential);
                    }
                }
                _ = quiet.tick() => return WaitOutcome::Quiet,
                next = &mut next => return WaitOutcome::Next(next),
            }
        }
    }

    /// Counts a cut reader.
    pub(super) fn count_cut(&self, why: &'static str) {
        self.gateway.metrics.count_event_reader_cut(why);
    }
}

/// One reader's subscription.
pub(super) struct Watch {
    gateway: Arc<Gateway>,
    reader: Reader,
    supervision: ConnectionWatch,
}

impl Watch {
    /// Subscribes a reader.
    ///
    /// # Errors
    /// Too many readers are connected, or the gateway shuts down.
    pub(super) async fn open(
        gateway: Arc<Gateway>,
        watcher: Watcher,
        kind: EventReader,
        quiet: Duration,
    ) -> Result<Self, Rejection> {
        let after = watcher.after.as_deref();
        let reader = gateway.events.open(watcher.proof, kind, after).await?;
        Ok(Self {
            supervision: ConnectionWatch::new(Arc::clone(&gateway), quiet),
            gateway,
            reader,
        })
    }

    /// Waits for the next step. Cancel-safe: dropping it loses no event.
    pub(super) async fn next(&mut self) -> Step {
        let proof = Arc::clone(self.reader.proof());
        let next = self.reader.next(&self.gateway.hierarchy);
        match self.supervision.wait(&proof, next).await {
            WaitOutcome::Next(Ok(frame)) => Step::Frame(frame),
            WaitOutcome::Next(Err(ReaderLagged)) => {
                self.supervision.count_cut("slow");
                Step::End(EndReason::Slow)
            }
            WaitOutcome::Quiet => Step::Quiet,
            WaitOutcome::End(end) => Step::End(end),
        }
    }

    /// Counts a cut reader.
    pub(super) fn count_cut(&self, why: &'static str) {
        self.supervision.count_cut(why);
    }
}
