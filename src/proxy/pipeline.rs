//! The entry of the data plane: the form of a request, its record, and the stages in order.

use std::sync::Arc;

use http::Method;
use pingora::protocols::http::ServerSession;

use super::cards::{self, Whose};
use super::context::Context;
use super::control_plane;
use super::control_plane::span::ControlSpan;
use super::outcome::{BrokenOff, rare};
use super::record::Exchange;
use super::record::trace::Came;
use super::relay::Relay;
use super::request::route::{Route, route};
use super::request::{Request, call, rest, validate};
use super::respond::{put_request_id, reject, write_response};
use crate::a2a::method::Method as A2aMethod;
use crate::dialect::Dialect;
use crate::gateway::Gateway;
use crate::ids::{InvalidWorkspaceId, RequestId, WorkspaceId};
use crate::rejection::Rejection;

/// The entry of the gateway's data plane.
pub(in crate::proxy) struct Proxy {
    pub(in crate::proxy) context: Arc<Context>,
}

impl Proxy {
    pub(in crate::proxy) fn new(
        gateway: Arc<Gateway>,
        control: axum::Router,
        relay: Arc<Relay>,
    ) -> Result<Self, String> {
        let context = Arc::new(Context::new(gateway, control, relay)?);
        Ok(Self { context })
    }

    /// Serves one request.
    pub(in crate::proxy) async fn serve(
        &self,
        session: &mut ServerSession,
    ) -> Result<(), BrokenOff> {
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
        let mut span = ControlSpan::begin(&self.context, session, &request_id);
        let told = span.as_ref().map(ControlSpan::told);
        let asked = control_plane::Asked {
            request_id: &request_id,
            told,
        };
        let answered = match self.context.check(session) {
            Ok(()) => control_plane::pass(&self.context, session, asked).await,
            Err(rejection) => control_plane::refuse(&self.context, session, asked, rejection).await,
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
