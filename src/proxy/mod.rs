//! The data plane, in the order of a request: [`connection`], [`request`], [`admit`], [`destination`] or [`cards`] or
//! [`control_plane`], [`relay`], [`respond`], [`record`].
//!
//! The gateway is a Pingora `ServerApp` ([`Connections`]) that owns connection and session from the first byte to
//! the last. The phases of `ProxyHttp` can neither bound a body before it is forwarded nor run a clock while an agent
//! is silent (`ARCHITECTURE.md`, decisions).
//!
//! Steps that are rarely taken are boxed futures: an inline one would enlarge the future of every exchange.

mod admit;
mod cards;
mod connection;
mod control_plane;
mod destination;
mod dispatch;
mod explain;
mod hop_by_hop;
mod load;
mod outcome;
mod record;
mod relay;
mod request;
mod respond;
mod sidecar;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::{HeaderName, Method};
use pingora::protocols::http::ServerSession;

use self::cards::{Cards, Whose};
// Pure, and for `fuzz/` only: these parsers read every byte that arrives.
pub use self::connection::Connections;
pub use self::connection::chunks::{Broken, Chunks};
pub use self::connection::head::{Scan, Whole, Why};
pub use self::connection::listener::Listener;
pub use self::dispatch::Dispatcher;
pub use self::explain::Explainer;
use self::load::Slot;
use self::outcome::BrokenOff;
use self::record::Exchange;
use self::record::trace::{Came, ControlSpan};
use self::relay::Relay;
pub use self::relay::fields::extra_fields;
use self::request::origin::{Origins, client_address};
pub use self::request::route::{REST_ROUTES, ROUTES as A2A_ROUTES};
use self::request::route::{Route, route};
use self::request::validate;
pub use self::request::validate::check as check_head;
use self::respond::reject;
use self::respond::{put_request_id, write_response};
use crate::config::Derived;
use crate::dialect::Dialect;
use crate::gateway::Gateway;
use crate::ids::{InvalidWorkspaceId, RequestId, WorkspaceId};
use crate::rejection::{Reason, Rejection};

/// The gateway's data plane.
struct Proxy {
    gateway: Arc<Gateway>,
    control: axum::Router,
    relay: Arc<Relay>,
    cards: Cards,
    origins: Derived<Origins>,
    extra_fields: Derived<HashSet<HeaderName>>,
}

impl Proxy {
    fn new(
        gateway: Arc<Gateway>,
        control: axum::Router,
        relay: Arc<Relay>,
    ) -> Result<Self, String> {
        let config = gateway.config();
        // Errors surface at the start. A reload is checked before it is applied.
        extra_fields(&config.forward.headers)?;
        Ok(Self {
            relay,
            origins: Derived::new(&gateway.config, |config, _| Origins::new(config)),
            extra_fields: Derived::new(&gateway.config, |config, _| {
                extra_fields(&config.forward.headers).unwrap_or_default()
            }),
            control,
            cards: Cards::default(),
            gateway: Arc::clone(&gateway),
        })
    }

    /// Serves one request.
    async fn serve(self: &Arc<Self>, session: &mut ServerSession) -> Result<(), BrokenOff> {
        let head = session.req_header();
        let request_id = validate::request_id(&head.headers);
        let route = route(head.uri.path());
        let dialect = route.dialect();
        // Boxed, here and below: rarely taken.
        match route {
            Route::A2a(target) if matches!(head.method, Method::GET | Method::HEAD) => {
                let whose = Whose::Workspace(target);
                Box::pin(self.card(session, request_id, whose, dialect)).await
            }
            Route::A2a(target) => self.a2a(session, request_id, Asked::Call(target)).await,
            Route::Card(target) | Route::CardBeside(target) => {
                let whose = Whose::Workspace(target);
                Box::pin(self.card(session, request_id, whose, dialect)).await
            }
            Route::DefaultCard => {
                Box::pin(self.card(session, request_id, Whose::Default, dialect)).await
            }
            Route::Below(target, tail) | Route::TaskBeside(target, tail) => {
                let asked = Asked::Below(target, tail.to_owned(), dialect);
                self.a2a(session, request_id, asked).await
            }
            Route::Task(task) => {
                let asked = Asked::Task(task.to_owned());
                self.a2a(session, request_id, asked).await
            }
            Route::Control => Box::pin(self.control(session, request_id)).await,
        }
    }

    /// Runs the checks that apply to every request on any route.
    fn preliminaries(&self, session: &mut ServerSession) -> Result<(), Rejection> {
        validate::require(session)?;
        self.origins.get().check(session.req_header())?;
        self.relay.load.open()
    }

    /// Runs the same checks, and takes a slot among the exchanges.
    fn enter(&self, session: &mut ServerSession) -> Result<Slot<'_>, Rejection> {
        self.preliminaries(session)?;
        self.relay.load.place()
    }

    /// Serves a call in one of its forms, from admission to the record.
    async fn a2a(
        self: &Arc<Self>,
        session: &mut ServerSession,
        request_id: RequestId,
        asked: Asked,
    ) -> Result<(), BrokenOff> {
        if let Some(answered) = self.preflight(session, &request_id).await {
            return answered;
        }
        let _running = self.gateway.drain.enter();
        let exchange = self.begin(request_id, true);
        let mut exchange = exchange.by_client(self.client(session));
        exchange.trace(&self.relay.traces, session.req_header(), asked.came());
        exchange.dialect = asked.dialect();
        let ended = match asked {
            Asked::Call(target) => self.call(session, &mut exchange, target).await,
            // Boxed: rarely taken.
            Asked::Below(target, tail, _) => {
                Box::pin(self.rest(session, &mut exchange, target, &tail)).await
            }
            Asked::Task(task) => Box::pin(self.task(session, &mut exchange, &task)).await,
        };
        match exchange.ended(ended) {
            Ok(ended) => ended,
            Err(rejection) => self.refuse(session, exchange, rejection).await,
        }
    }

    /// Begins the record of an exchange. `heard`: it is announced to subscribers of its target.
    fn begin(&self, request_id: RequestId, heard: bool) -> Exchange {
        let watchers = heard.then_some(&self.gateway.events);
        Exchange::begin(
            &self.relay.metrics,
            &self.relay.config,
            watchers,
            request_id,
        )
        .audited(&self.gateway.audit)
        .shown(&self.gateway.console)
    }

    /// Sends a rejection to the caller, with the remaining rate.
    async fn refuse(
        &self,
        session: &mut ServerSession,
        mut exchange: Exchange,
        rejection: Rejection,
    ) -> Result<(), BrokenOff> {
        let mut rejection = self.gateway.rates.failed(self.client(session), rejection);
        if let Some(allowance) = &exchange.allowance {
            rejection = allowance.told_with(rejection);
        }
        let origins = self.origins.get();
        let told = reject::refuse(session, &origins, &mut exchange, &rejection);
        BrokenOff::unless(Box::pin(told).await)
    }

    /// Passes any other request to the control plane.
    async fn control(
        self: &Arc<Self>,
        session: &mut ServerSession,
        request_id: RequestId,
    ) -> Result<(), BrokenOff> {
        if let Some(answered) = self.preflight(session, &request_id).await {
            return answered;
        }
        let _running = self.gateway.drain.enter();
        let mut span = self.control_span(session, &request_id);
        let told = span.as_ref().map(ControlSpan::told);
        let asked = control_plane::Asked {
            request_id: &request_id,
            told,
        };
        let answered = match self.preliminaries(session) {
            Ok(()) => control_plane::pass(self, session, asked).await,
            Err(rejection) => control_plane::refuse(self, session, asked, rejection).await,
        };
        let answered = BrokenOff::unless(answered);
        if let Some(span) = &mut span {
            span.answered(session);
        }
        answered
    }

    /// Answers a CORS preflight, before any credential is checked.
    async fn preflight(
        &self,
        session: &mut ServerSession,
        request_id: &RequestId,
    ) -> Option<Result<(), BrokenOff>> {
        let mut head = self.origins.get().preflight(session.req_header())?;
        validate::check(session.req_header()).ok()?;
        self.origins.get().check(session.req_header()).ok()?;
        self.origins
            .get()
            .put_browser_fields(&session.req_header().headers, &mut head);
        // A request id is visible ASCII, so the field can be built.
        let _ = put_request_id(&mut head, request_id);
        let write = write_response(session, head, bytes::Bytes::new());
        Some(BrokenOff::unless(Box::pin(write).await))
    }

    fn client(&self, session: &ServerSession) -> IpAddr {
        let peer = session
            .client_addr()
            .and_then(|a| a.as_inet())
            .map(std::net::SocketAddr::ip);
        // All listeners are TCP, so every peer has an address.
        let peer = peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        client_address(
            peer,
            &session.req_header().headers,
            &self.gateway.config().server.trusted_proxies,
        )
    }
}

/// The forms of a call.
enum Asked {
    /// JSON-RPC at the base of a workspace.
    Call(Result<WorkspaceId, InvalidWorkspaceId>),
    /// A path below the base, or beside it and treated as below.
    Below(Result<WorkspaceId, InvalidWorkspaceId>, String, Dialect),
    /// `/tasks/{task_id}`, at any agent. The id is as spelled in the path.
    Task(String),
}

impl Asked {
    fn came(&self) -> Came {
        match self {
            Self::Call(_) => Came::by("/workspaces/{id}/a2a", true),
            Self::Below(_, _, Dialect::Plain) => {
                Came::by("/workspaces/{id}/tasks/{task_id}", false)
            }
            Self::Below(..) => Came::by("/workspaces/{id}/a2a/{*path}", false),
            Self::Task(_) => Came::by("/tasks/{task_id}", false),
        }
    }

    const fn dialect(&self) -> Dialect {
        match self {
            Self::Call(_) => Dialect::JsonRpc,
            Self::Below(_, _, dialect) => *dialect,
            Self::Task(_) => Dialect::Plain,
        }
    }
}

/// Builds `method_not_allowed`, with the allowed methods.
fn wrong_method(message: &'static str, allow: &'static str) -> Rejection {
    let mut rejection = Rejection::new(Reason::MethodNotAllowed, message);
    rejection.allow = Some(allow);
    rejection
}
