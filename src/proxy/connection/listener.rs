//! One HTTP listener, in front of the gateway or of a sidecar.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pingora::protocols::http::{ReusableHttpStream, ServerSession};
use tokio::time::timeout;

use crate::a2a::method::Method;
use crate::gateway::Gateway;
use crate::ids::RequestId;
use crate::proxy::canceller::Canceller;
use crate::proxy::dispatch::Dispatcher;
use crate::proxy::explain::Explainer;
use crate::proxy::outcome::{AbortCause, box_in_place};
use crate::proxy::pipeline::Proxy;
use crate::proxy::prober::Prober;
use crate::proxy::record::Exchange;
use crate::proxy::relay::Relay;
use crate::proxy::request::route::Route;
use crate::proxy::respond::{reject, write_with_timeout};
use crate::proxy::sidecar::SidecarProxy;
use crate::rejection::{Reason, Rejection};
use crate::sidecar::Sidecar;
use crate::telemetry::traces::Traces;

/// Maximum time for reading the rest of a rejected request, so that its caller can read the rejection.
pub(in crate::proxy) const DRAIN: Duration = Duration::from_secs(5);

/// A listener: its HTTP front end and the service behind it.
pub struct Listener {
    pub(in crate::proxy) relay: Arc<Relay>,
    service: Service,
}

enum Service {
    Gateway(Arc<Proxy>),
    Sidecar(SidecarProxy),
}

impl Listener {
    /// Creates the public listener of `gateway`. Requests on other than A2A routes go to `control`.
    ///
    /// # Errors
    /// `forward.headers` names a field that may not be forwarded.
    pub fn for_gateway(
        gateway: Arc<Gateway>,
        control: axum::Router,
        traces: Traces,
    ) -> Result<Self, String> {
        let (config, metrics) = (gateway.config.clone(), Arc::clone(&gateway.metrics));
        let streams = Some(Arc::clone(&gateway.delivery.streams));
        let relay = Relay::new(config, metrics, Arc::clone(&gateway.drain), streams, traces);
        let relay = Arc::new(relay.with_gateway(&gateway));
        let proxy = Proxy::new(gateway, control, Arc::clone(&relay))?;
        let service = Service::Gateway(Arc::new(proxy));
        Ok(Self { relay, service })
    }

    /// Returns the dispatcher of deferred calls and delegations; `None` for a sidecar.
    pub fn dispatcher(&self) -> Option<Dispatcher> {
        match &self.service {
            Service::Gateway(proxy) => Some(Dispatcher::new(Arc::clone(&proxy.context))),
            Service::Sidecar(_) => None,
        }
    }

    /// Returns the prober of agents; `None` for a sidecar.
    pub fn prober(&self) -> Option<Prober> {
        match &self.service {
            Service::Gateway(proxy) => Some(Prober::new(Arc::clone(&proxy.context))),
            Service::Sidecar(_) => None,
        }
    }

    /// Returns the canceller of tasks; `None` for a sidecar.
    pub fn canceller(&self) -> Option<Canceller> {
        match &self.service {
            Service::Gateway(proxy) => Some(Canceller::new(Arc::clone(&proxy.context))),
            Service::Sidecar(_) => None,
        }
    }

    /// Returns the service behind `GET /explain`; `None` for a sidecar.
    pub fn explainer(&self) -> Option<Explainer> {
        match &self.service {
            Service::Gateway(proxy) => Some(Explainer::new(Arc::clone(&proxy.context))),
            Service::Sidecar(_) => None,
        }
    }

    /// Creates the listener in front of an agent.
    pub fn for_sidecar(sidecar: &Arc<Sidecar>, traces: Traces) -> Self {
        let (config, metrics) = (sidecar.config.clone(), Arc::clone(&sidecar.metrics));
        // No stream store: the gateway, where the caller connects, numbers the events.
        let relay = Relay::new(config, metrics, Arc::clone(&sidecar.drain), None, traces);
        let relay = Arc::new(relay);
        let guard = SidecarProxy::new(Arc::clone(sidecar), Arc::clone(&relay));
        let service = Service::Sidecar(guard);
        Self { relay, service }
    }

    /// Records a request on a call route with an unreadable head.
    pub(in crate::proxy) fn record_unreadable(
        &self,
        route: &Route<'_>,
        request_id: &RequestId,
        peer: Option<IpAddr>,
        rejection: &Rejection,
    ) {
        let request_id = request_id.clone();
        let mut exchange = match (&self.service, route) {
            (Service::Gateway(_), Route::Control) => return,
            (Service::Gateway(proxy), _) => proxy.context.begin_exchange(request_id, false),
            (Service::Sidecar(_), _) => {
                Exchange::begin(&self.relay.metrics, &self.relay.config, None, request_id)
            }
        };
        // No field of an unreadable head is trusted, so the client is the peer, even if that is a proxy.
        if let Some(peer) = peer {
            exchange = exchange.with_client(peer.to_canonical());
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
        exchange.answer.status = rejection.reason.status();
        exchange.record_rejection(rejection);
    }

    /// Serves one request.
    async fn serve(&self, session: &mut ServerSession) -> Result<(), AbortCause> {
        match &self.service {
            Service::Gateway(proxy) => proxy.serve(session).await,
            Service::Sidecar(guard) => guard.serve(session).await,
        }
    }
}

impl Listener {
    /// Serves the one request of a session: an HTTP/2 stream, or HTTP/1 with a complete head. Returns the connection if
    /// another request may follow.
    pub(in crate::proxy) async fn serve_request(
        self: &Arc<Self>,
        mut session: Box<ServerSession>,
    ) -> Result<Option<ReusableHttpStream>, AbortCause> {
        let limit = Some(self.relay.config.get().timeouts.write);
        session.set_write_timeout(limit);
        match session.read_request().await {
            Ok(true) => {}
            Ok(false) => return Err(AbortCause::CallerLeft),
            Err(error) => {
                refuse_unreadable(&mut session, &error).await;
                return Err(AbortCause::CallerLeft);
            }
        }
        let Some(running) = self.relay.drain.try_count_work() else {
            return Err(AbortCause::CallerLeft);
        };
        let expects = session
            .req_header()
            .headers
            .contains_key(http::header::EXPECT);
        session.set_close_on_response_before_downstream_finish(expects);
        session.set_total_drain_timeout(Some(DRAIN));
        if self.relay.drain.is_leaving() {
            session.set_keepalive(None);
        }
        let served = self.serve(&mut session).await;
        // The exchange is recorded.
        drop(running);
        if let Err(broken) = served {
            let _ = timeout(DRAIN, session.shutdown()).await;
            return Err(broken);
        }
        drain_body(&mut session).await;
        // Boxed: it would be the largest part of every request's future, for its shortest step.
        write_with_timeout(limit, box_in_place(|| session.finish()))
            .await
            .map_err(|_| AbortCause::CallerLeft)
    }
}

/// Reads the rest of a rejected request before the connection is closed. A close with unread bytes resets the
/// connection, and the caller would never see the rejection.
async fn drain_body(session: &mut ServerSession) {
    if session.get_keepalive().is_none() && !session.is_body_done() {
        let _ = timeout(DRAIN, session.drain_request_body()).await;
    }
}

/// Rejects a head that is not HTTP, in JSON like every rejection, and closes.
async fn refuse_unreadable(session: &mut ServerSession, error: &pingora::Error) {
    if *error.etype() != pingora::ErrorType::InvalidHTTPHeader {
        return;
    }
    let rejection = Rejection::new(Reason::InvalidRequest, "the request head is not valid HTTP");
    session.set_keepalive(None);
    let _ = timeout(DRAIN, reject::answer_unreadable(session, &rejection)).await;
    session.shutdown().await;
    if let ServerSession::H1(http1) = session {
        let rest = async { while matches!(http1.idle().await, Ok(1..)) {} };
        let _ = timeout(DRAIN, rest).await;
    }
}
