//! The data plane. A request passes the stages in this order; each takes the proof of the stage before:
//!
//! | Stage | takes | yields |
//! |---|---|---|
//! | [`connection`] | bytes | a session with a complete head, within the bounds of its address |
//! | [`request::route`] | the path | the form of the request ([`Asked`]) |
//! | [`record`] | the request id | the [`Exchange`], which reports the outcome when it is dropped |
//! | [`admit`] | the head | `Admitted`: the caller is proven and permitted, and the target is resolved |
//! | [`request::body`] | `Admitted` | `Received`: a JSON body within its bounds, and its share of the memory |
//! | [`request::call`], [`request::rest`] | `Received` | `CheckedCall`: completed, with its key, and with allowed references |
//! | [`destination`] | `CheckedCall` | the response: of the agent, an inbox, an earlier call, or of deferral |
//! | [`relay`] | the call on the wire | the agent's answer, within clocks and bounds |
//! | [`respond`] | a rejection, or an own answer | the bytes for the caller |
//!
//! [`cards`] and [`control_plane`] answer other routes; [`dispatch`] makes deferred calls; [`explain`] predicts a call;
//! [`sidecar`] uses the relay behind a token.
//!
//! The gateway is a Pingora `ServerApp` ([`Connections`]) that owns connection and session from the first byte to
//! the last. The phases of `ProxyHttp` can neither bound a body before it is forwarded nor run a clock while an agent
//! is silent (`ARCHITECTURE.md`, decisions).

mod admit;
mod cards;
mod connection;
mod context;
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

use std::pin::Pin;
use std::sync::Arc;

use http::Method;
use pingora::protocols::http::ServerSession;

use self::cards::Whose;
// Pure, and for `fuzz/` only: these parsers read every byte that arrives.
pub use self::connection::Connections;
pub use self::connection::chunks::{Broken, Chunks};
pub use self::connection::head::{Scan, Whole, Why};
pub use self::connection::listener::Listener;
use self::context::Context;
pub use self::dispatch::Dispatcher;
pub use self::explain::Explainer;
use self::record::Exchange;
use self::record::trace::{Came, ControlSpan};
use self::relay::Relay;
pub use self::relay::fields::extra_fields;
pub use self::request::route::{REST_ROUTES, ROUTES as A2A_ROUTES};
use self::request::route::{Route, route};
pub use self::request::validate::check as check_head;
use self::request::{Request, call, rest, validate};
use self::respond::reject;
use self::respond::{put_request_id, write_response};
use crate::a2a::method::Method as A2aMethod;
use crate::dialect::Dialect;
use crate::gateway::Gateway;
use crate::ids::{InvalidWorkspaceId, RequestId, WorkspaceId};
use crate::proxy::outcome::BrokenOff;
use crate::rejection::Rejection;

/// Boxes the future of a step that is rarely taken. An inline one would enlarge the future of every exchange.
fn rare<F: Future>(step: F) -> Pin<Box<F>> {
    Box::pin(step)
}

/// The entry of the gateway's data plane.
struct Proxy {
    context: Arc<Context>,
    control: axum::Router,
}

impl Proxy {
    fn new(
        gateway: Arc<Gateway>,
        control: axum::Router,
        relay: Arc<Relay>,
    ) -> Result<Self, String> {
        let context = Arc::new(Context::new(gateway, relay)?);
        Ok(Self { context, control })
    }

    /// Serves one request.
    async fn serve(&self, session: &mut ServerSession) -> Result<(), BrokenOff> {
        let head = session.req_header();
        let request_id = validate::request_id(&head.headers);
        let route = route(head.uri.path());
        let dialect = route.dialect();
        let reads = matches!(head.method, Method::GET | Method::HEAD);
        let asked = match route {
            Route::A2a(target) if !reads => Asked::Call(target),
            Route::A2a(target) | Route::Card(target) | Route::CardBeside(target) => {
                Asked::Card(Whose::Workspace(target), dialect)
            }
            Route::DefaultCard => Asked::Card(Whose::Default, dialect),
            Route::Below(target, tail) | Route::TaskBeside(target, tail) => {
                Asked::Below(target, tail.to_owned(), dialect)
            }
            Route::Task(task) => Asked::Task(task.to_owned()),
            Route::Control => return rare(self.control(session, request_id)).await,
        };
        self.a2a(session, request_id, asked).await
    }

    /// Serves a request of A2A in one of its forms, from its first check to its record.
    async fn a2a(
        &self,
        session: &mut ServerSession,
        request_id: RequestId,
        asked: Asked,
    ) -> Result<(), BrokenOff> {
        if let Some(answered) = self.preflight(session, &request_id).await {
            return answered;
        }
        let context = &*self.context;
        let _running = context.gateway.drain.enter();
        // No event is published for a card: its request is no call.
        let exchange = context.begin(request_id, !matches!(asked, Asked::Card(..)));
        let mut exchange = exchange.by_client(context.client(session));
        exchange.dialect = asked.dialect();
        exchange.trace(&context.relay.traces, session.req_header(), asked.came());
        let mut request = Request {
            context,
            session,
            exchange: &mut exchange,
        };
        let ended = match asked {
            Asked::Call(target) => call::call(&mut request, target).await,
            Asked::Below(target, tail, _) => rare(rest::call(&mut request, target, &tail)).await,
            Asked::Task(task) => rare(rest::task(&mut request, &task)).await,
            Asked::Card(whose, _) => {
                request.exchange.method = A2aMethod::AgentCard;
                rare(cards::serve(&mut request, whose)).await
            }
        };
        match exchange.ended(ended) {
            Ok(ended) => ended,
            Err(rejection) => self.refuse(session, exchange, rejection).await,
        }
    }

    /// Sends a rejection to the caller, with the remaining rate.
    async fn refuse(
        &self,
        session: &mut ServerSession,
        mut exchange: Exchange,
        rejection: Rejection,
    ) -> Result<(), BrokenOff> {
        let context = &self.context;
        let client = context.client(session);
        let mut rejection = context.gateway.rates.failed(client, rejection);
        if let Some(allowance) = &exchange.allowance {
            rejection = allowance.told_with(rejection);
        }
        let origins = context.origins.get();
        let told = reject::refuse(session, &origins, &mut exchange, &rejection);
        BrokenOff::unless(rare(told).await)
    }

    /// Passes any other request to the control plane.
    async fn control(
        &self,
        session: &mut ServerSession,
        request_id: RequestId,
    ) -> Result<(), BrokenOff> {
        if let Some(answered) = self.preflight(session, &request_id).await {
            return answered;
        }
        let _running = self.context.gateway.drain.enter();
        let mut span = self.context.control_span(session, &request_id);
        let told = span.as_ref().map(ControlSpan::told);
        let asked = control_plane::Asked {
            request_id: &request_id,
            told,
        };
        let answered = match self.context.check(session) {
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
        let origins = self.context.origins.get();
        let mut head = origins.preflight(session.req_header())?;
        validate::check(session.req_header()).ok()?;
        origins.check(session.req_header()).ok()?;
        origins.put_browser_fields(&session.req_header().headers, &mut head);
        // A request id is visible ASCII, so the field can be built.
        let _ = put_request_id(&mut head, request_id);
        drop(origins);
        let write = write_response(session, head, bytes::Bytes::new());
        Some(BrokenOff::unless(rare(write).await))
    }
}

/// The forms of a request of A2A.
enum Asked {
    /// JSON-RPC at the base of a workspace.
    Call(Result<WorkspaceId, InvalidWorkspaceId>),
    /// A path below the base, or beside it and treated as below.
    Below(Result<WorkspaceId, InvalidWorkspaceId>, String, Dialect),
    /// `/tasks/{task_id}`, at any agent. The id is as spelled in the path.
    Task(String),
    /// The card of an agent.
    Card(Whose, Dialect),
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
            Self::Card(whose, dialect) => whose.came(*dialect),
        }
    }

    const fn dialect(&self) -> Dialect {
        match self {
            Self::Call(_) => Dialect::JsonRpc,
            Self::Below(_, _, dialect) | Self::Card(_, dialect) => *dialect,
            Self::Task(_) => Dialect::Plain,
        }
    }
}
