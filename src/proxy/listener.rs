//! One HTTP listener, whoever answers at it: the gateway, or a sidecar.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pingora::protocols::http::{ReusableHttpStream, ServerSession};
use tokio::time::timeout;

use super::dispatch::Dispatcher;
use super::ended::patiently;
use super::exchange::Exchange;
use super::explain::Explainer;
use super::relay::Relay;
use super::route::Route;
use super::sidecar::Guard;
use super::{Proxy, reject};
use crate::a2a::method::Method;
use crate::gateway::Gateway;
use crate::ids::RequestId;
use crate::rejection::{Reason, Rejection};
use crate::sidecar::Sidecar;
use crate::telemetry::traces::Traces;

/// How long the rest of a refused request is read, so that the refusal can be read by the caller.
pub(super) const DRAIN: Duration = Duration::from_secs(5);

/// What answers at a listener, and the HTTP in front of it.
pub struct Listener {
    pub(super) relay: Arc<Relay>,
    behind: Behind,
}

enum Behind {
    Gateway(Arc<Proxy>),
    Sidecar(Guard),
}

impl Listener {
    /// The public listener of `gateway`; what is no A2A route goes to `control`.
    ///
    /// # Errors
    /// When `forward.headers` names a field that may not be forwarded.
    pub fn of_gateway(
        gateway: Arc<Gateway>,
        control: axum::Router,
        traces: Traces,
    ) -> Result<Self, String> {
        let (config, metrics) = (gateway.config.clone(), Arc::clone(&gateway.metrics));
        let streams = Some(Arc::clone(&gateway.delivery.streams));
        let relay = Relay::new(config, metrics, Arc::clone(&gateway.drain), streams, traces);
        let relay = Arc::new(relay.of(&gateway));
        let proxy = Proxy::new(gateway, control, Arc::clone(&relay))?;
        let behind = Behind::Gateway(Arc::new(proxy));
        Ok(Self { relay, behind })
    }

    /// What sends the calls that are made later; `None`: a sidecar has none.
    pub fn dispatcher(&self) -> Option<Dispatcher> {
        match &self.behind {
            Behind::Gateway(proxy) => Some(Dispatcher::new(Arc::clone(proxy))),
            Behind::Sidecar(_) => None,
        }
    }

    /// What explains how a message would fare; `None`: a sidecar does not.
    pub fn explainer(&self) -> Option<Explainer> {
        match &self.behind {
            Behind::Gateway(proxy) => Some(Explainer::new(Arc::clone(proxy))),
            Behind::Sidecar(_) => None,
        }
    }

    /// The listener in front of an agent.
    pub fn of_sidecar(sidecar: &Arc<Sidecar>, traces: Traces) -> Self {
        let (config, metrics) = (sidecar.config.clone(), Arc::clone(&sidecar.metrics));
        // Its events are numbered where the caller is: by the gateway.
        let relay = Relay::new(config, metrics, Arc::clone(&sidecar.drain), None, traces);
        let relay = Arc::new(relay);
        let guard = Guard::new(Arc::clone(sidecar), Arc::clone(&relay));
        let behind = Behind::Sidecar(guard);
        Self { relay, behind }
    }

    /// Leaves a record of what is no call for want of a head that could be read, where a call was meant.
    pub(super) fn unreadable(
        &self,
        route: &Route<'_>,
        request_id: &RequestId,
        peer: Option<IpAddr>,
        rejection: &Rejection,
    ) {
        let request_id = request_id.clone();
        let mut exchange = match (&self.behind, route) {
            (Behind::Gateway(_), Route::Control) => return,
            (Behind::Gateway(proxy), _) => proxy.begin(request_id, false),
            (Behind::Sidecar(_), _) => Exchange::begin(&self.relay, None, request_id),
        };
        // Of a head that cannot be read no field counts, so it is the peer, also where that is a proxy.
        if let Some(peer) = peer {
            exchange = exchange.by_client(peer.to_canonical());
        }
        exchange.callee = match route {
            Route::A2a(id)
            | Route::Card(id)
            | Route::CardBeside(id)
            | Route::Below(id, _)
            | Route::TaskBeside(id, _) => id.as_ref().ok().cloned(),
            Route::DefaultCard | Route::Task(_) | Route::Control => None,
        };
        if matches!(
            route,
            Route::Card(_) | Route::CardBeside(_) | Route::DefaultCard
        ) {
            exchange.method = Method::AgentCard;
        }
        exchange.status = rejection.reason.status();
        exchange.rejected(rejection);
    }

    /// Serves one request.
    async fn serve(&self, session: &mut ServerSession) -> Result<(), BrokenOff> {
        match &self.behind {
            Behind::Gateway(proxy) => proxy.serve(session).await,
            Behind::Sidecar(guard) => guard.serve(session).await,
        }
    }
}

/// The connection, of HTTP/2 the stream, had to be broken off.
#[derive(Clone, Copy, Debug)]
pub(super) enum BrokenOff {
    /// The caller left, or does not read.
    CallerLeft,
    /// We did it: the agent broke off, or ran out of time, when part of its answer was sent.
    Ours,
}

impl BrokenOff {
    /// What comes of an answer that is all ours: only its caller can keep it from going out.
    pub(super) fn unless<E>(answered: Result<(), E>) -> Result<(), Self> {
        answered.map_err(|_| Self::CallerLeft)
    }
}

impl Listener {
    /// Serves the one request of a session, which is an HTTP/2 stream, or whose head is here.
    /// Answers the connection, if another request may follow.
    pub(super) async fn request(
        self: &Arc<Self>,
        mut session: Box<ServerSession>,
    ) -> Result<Option<ReusableHttpStream>, BrokenOff> {
        let limit = Some(self.relay.config.get().timeouts.write);
        session.set_write_timeout(limit);
        match session.read_request().await {
            Ok(true) => {}
            Ok(false) => return Err(BrokenOff::CallerLeft),
            Err(error) => {
                refuse_unreadable(&mut session, &error).await;
                return Err(BrokenOff::CallerLeft);
            }
        }
        if self.relay.drain.closed() {
            return Err(BrokenOff::CallerLeft);
        }
        let expects = session
            .req_header()
            .headers
            .contains_key(http::header::EXPECT);
        session.set_close_on_response_before_downstream_finish(expects);
        session.set_total_drain_timeout(Some(DRAIN));
        if self.relay.drain.leaving() {
            session.set_keepalive(None);
        }
        if let Err(broken) = self.serve(&mut session).await {
            let _ = timeout(DRAIN, session.shutdown()).await;
            return Err(broken);
        }
        drain(&mut session).await;
        // Boxed: it would be the largest part of every request's future, and is its shortest.
        patiently(limit, Box::pin(session.finish()))
            .await
            .map_err(|_| BrokenOff::CallerLeft)
    }
}

/// Reads what a refused request still sends, before the connection is closed: a close with unread
/// bytes resets it, and the caller would never see the refusal.
async fn drain(session: &mut ServerSession) {
    if session.get_keepalive().is_none() && !session.is_body_done() {
        let _ = timeout(DRAIN, session.drain_request_body()).await;
    }
}

/// Answers a head that is no HTTP, in JSON like every refusal, and closes.
async fn refuse_unreadable(session: &mut ServerSession, error: &pingora::Error) {
    if *error.etype() != pingora::ErrorType::InvalidHTTPHeader {
        return;
    }
    let rejection = Rejection::new(Reason::InvalidRequest, "the request head is not valid HTTP");
    let request_id = RequestId::random();
    let Ok(head) = reject::head_of(&rejection, &request_id) else {
        return;
    };
    let body = bytes::Bytes::from(rejection.plain_body(&request_id));
    session.set_keepalive(None);
    let write = async {
        session.write_response_header(Box::new(head)).await?;
        session.write_response_body(body, true).await
    };
    let _ = timeout(DRAIN, write).await;
    session.shutdown().await;
    if let ServerSession::H1(http1) = session {
        let rest = async { while matches!(http1.idle().await, Ok(1..)) {} };
        let _ = timeout(DRAIN, rest).await;
    }
}
