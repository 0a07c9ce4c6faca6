//! Reads the body of a request to the control plane piece by piece, as the control plane asks for it. None of it is
//! read before the credential is proven, and none at all on a route without a body.

use std::future::pending;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::try_unfold;
use pingora::protocols::http::ServerSession;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::proxy::body::{next_piece, send_continue};
use crate::proxy::listener::client_disconnected;
use crate::proxy::record::BodyError;
use crate::proxy::services::Context;
use crate::rejection::{Reason, RejectedRequest, Rejection};
use crate::shares::SlotGuard;

/// The next piece of a body; `None` at its end.
type PieceResult = Result<Option<Bytes>, RejectedRequest>;

/// The channel for the next piece.
type PieceSender = oneshot::Sender<PieceResult>;

/// The caller's side of a body.
pub(in crate::proxy) struct BodyFeed {
    /// `None` if there is nothing to read.
    wanted: Option<mpsc::Receiver<PieceSender>>,
    begun: bool,
}

/// Returns the body of `session` for the control plane, and the feed that supplies it.
pub(in crate::proxy) fn feed_body(session: &mut ServerSession) -> (Body, BodyFeed) {
    let begun = false;
    if session.is_body_done() {
        return (
            Body::empty(),
            BodyFeed {
                wanted: None,
                begun,
            },
        );
    }
    let (ask, wanted) = mpsc::channel::<PieceSender>(1);
    let pieces = try_unfold(ask, async |ask| {
        Ok::<_, RejectedRequest>(request_piece(&ask).await?.map(|piece| (piece, ask)))
    });
    let wanted = Some(wanted);
    (Body::from_stream(pieces), BodyFeed { wanted, begun })
}

async fn request_piece(ask: &mpsc::Sender<PieceSender>) -> PieceResult {
    let (wanted, piece) = oneshot::channel();
    if ask.send(wanted).await.is_err() {
        return Err(body_broken_off());
    }
    piece.await.unwrap_or_else(|_| Err(body_broken_off()))
}

/// The caller left, or sent less of the body than it declared.
fn body_broken_off() -> RejectedRequest {
    RejectedRequest(Rejection::new(
        Reason::InvalidRequest,
        "the body broke off before its end",
    ))
}

impl BodyFeed {
    /// Reads the pieces that are asked for. The request gives up its `slot` among the exchanges while its body
    /// arrives. Returns when the caller is gone.
    pub(in crate::proxy) async fn supply_pieces<'p>(
        &mut self,
        context: &'p Context,
        session: &mut ServerSession,
        slot: &mut Option<SlotGuard<'p>>,
    ) {
        if let Some(wanted) = &mut self.wanted {
            let Some(first) = wanted.recv().await else {
                return pending().await;
            };
            self.begun = true;
            *slot = None;
            if send_continue(session).await.is_err() {
                return;
            }
            let timeouts = &context.gateway.config.snapshot().timeouts;
            let deadline = Instant::now() + timeouts.request_body;
            let mut asked = Some(first);
            while let Some(give) = asked {
                let piece = match next_piece(timeouts, session, deadline).await {
                    Ok(Some(piece)) => Ok(Some(piece)),
                    Ok(None) => context.relay.load.take_slot().map(|taken| {
                        *slot = Some(taken);
                        None
                    }),
                    Err(BodyError::Refused(rejection)) => Err(rejection),
                    Err(BodyError::CallerLeft) => return,
                };
                let more = matches!(piece, Ok(Some(_)));
                let _ = give.send(piece.map_err(RejectedRequest));
                if !more {
                    break;
                }
                asked = wanted.recv().await;
            }
        }
        if session.is_body_done() {
            client_disconnected(session).await;
        } else {
            pending().await
        }
    }

    /// Ends the feed after the answer. If the body was only partly read, the connection is closed.
    pub(in crate::proxy) fn end(self, session: &mut ServerSession) {
        if self.begun && !session.is_body_done() {
            session.set_keepalive(None);
        }
    }
}

/// Waits until the caller of an answered request is gone. Discards the rest of its body.
pub(in crate::proxy) async fn discard_until_gone(session: &mut ServerSession) {
    while !session.is_body_done() {
        match session.read_request_body().await {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(_) => return,
        }
    }
    client_disconnected(session).await;
}
