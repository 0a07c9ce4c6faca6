//! The body of a request to the control plane, read from its caller piece by piece as the control plane asks for it: none
//! of it before its credential is proven, and none at all for a route that takes no body.

use std::future::pending;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::try_unfold;
use pingora::protocols::http::ServerSession;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::body::{NoBody, bid_continue, next_piece};
use super::ended::left;
use super::{Proxy, Slot};
use crate::rejection::{Reason, Refused, Rejection};

/// The next piece of a body; `None`: its end.
type Piece = Result<Option<Bytes>, Refused>;

/// Where the next piece is to go.
type Wanted = oneshot::Sender<Piece>;

/// The caller's side of a body.
pub(super) struct Feed {
    /// `None`: there is nothing to read.
    wanted: Option<mpsc::Receiver<Wanted>>,
    begun: bool,
}

/// The body of `session` for the control plane, and what feeds it.
pub(super) fn on_demand(session: &mut ServerSession) -> (Body, Feed) {
    let begun = false;
    if session.is_body_done() {
        return (
            Body::empty(),
            Feed {
                wanted: None,
                begun,
            },
        );
    }
    let (ask, wanted) = mpsc::channel::<Wanted>(1);
    let pieces = try_unfold(ask, async |ask| {
        Ok::<_, Refused>(next(&ask).await?.map(|piece| (piece, ask)))
    });
    let wanted = Some(wanted);
    (Body::from_stream(pieces), Feed { wanted, begun })
}

async fn next(ask: &mpsc::Sender<Wanted>) -> Piece {
    let (wanted, piece) = oneshot::channel();
    if ask.send(wanted).await.is_err() {
        return Err(broke_off());
    }
    piece.await.unwrap_or_else(|_| Err(broke_off()))
}

/// The caller left. Whoever reads this sent less than it said.
fn broke_off() -> Refused {
    Refused(Rejection::new(
        Reason::InvalidRequest,
        "the body broke off before its end",
    ))
}

impl Feed {
    /// Reads what is asked for. While the body is on its way, the request gives up its `place` among the exchanges.
    /// Ends when the caller is gone.
    pub(super) async fn supply<'p>(
        &mut self,
        proxy: &'p Proxy,
        session: &mut ServerSession,
        place: &mut Option<Slot<'p>>,
    ) {
        if let Some(wanted) = &mut self.wanted {
            let Some(first) = wanted.recv().await else {
                return pending().await;
            };
            self.begun = true;
            *place = None;
            if bid_continue(session).await.is_err() {
                return;
            }
            let timeouts = &proxy.gateway.config.hold().timeouts;
            let deadline = Instant::now() + timeouts.request_body;
            let mut asked = Some(first);
            while let Some(give) = asked {
                let piece = match next_piece(timeouts, session, deadline).await {
                    Ok(Some(piece)) => Ok(Some(piece)),
                    Ok(None) => proxy.relay.place().map(|slot| {
                        *place = Some(slot);
                        None
                    }),
                    Err(NoBody::Refused(rejection)) => Err(rejection),
                    Err(NoBody::CallerLeft) => return,
                };
                let more = matches!(piece, Ok(Some(_)));
                let _ = give.send(piece.map_err(Refused));
                if !more {
                    break;
                }
                asked = wanted.recv().await;
            }
        }
        if session.is_body_done() {
            left(session).await;
        } else {
            pending().await
        }
    }

    /// The request is answered. What was begun and not read to its end is read no more: the connection ends.
    pub(super) fn end(self, session: &mut ServerSession) {
        if self.begun && !session.is_body_done() {
            session.set_keepalive(None);
        }
    }
}

/// Ends when the caller of a request that is answered is gone. What it still sends of its body is passed over.
pub(super) async fn gone(session: &mut ServerSession) {
    while !session.is_body_done() {
        match session.read_request_body().await {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(_) => return,
        }
    }
    left(session).await;
}
