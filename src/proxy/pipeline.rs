//! The entry of the data plane: the form of a request, its record, and the stages in order.

use std::sync::Arc;

use http::Method;
use pingora::protocols::http::ServerSession;

use super::cards::{self, CardTarget};
use super::context::Context;
use super::control_plane;
use super::control_plane::span::ControlSpan;
use super::outcome::{AbortCause, box_cold_path};
use super::record::Exchange;
use super::record::trace::ExchangeOrigin;
use super::relay::Relay;
use super::request::route::{Route, match_route};
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
    ) -> Result<(), AbortCause> {
        let head = session.req_header();
        let request_id = validate::request_id(&head.headers);
        let route = match_route(head.uri.path());
        let dialect = route.dialect();
        let reads = matches!(head.method, Method::GET | Method::HEAD);
        let asked = match route {
            Route::A2a(target) if !reads => RequestKind::Call(target),
            Route::A2a(target) | Route::Card(target) | Route::CardBeside(target) => {
                RequestKind::Card(CardTarget::Workspace(target), dialect)
            }
            Route::DefaultCard => RequestKind::Card(CardTarget::Default, dialect),
            Route::Below(target, tail) | Route::TaskBeside(target, tail) => {
                RequestKind::Below(target, tail.to_owned(), dialect)
            }
            Route::Task(task) => RequestKind::Task(task.to_owned()),
            Route::Control => return box_cold_path(self.serve_control(session, request_id)).await,
        };
        self.serve_a2a(session, request_id, asked).await
    }

    /// Serves a request of A2A in one of its forms, from its first check to its record.
    async fn serve_a2a(
        &self,
        session: &mut ServerSession,
        request_id: RequestId,
        asked: RequestKind,
    ) -> Result<(), AbortCause> {
        if let Some(answered) = self.answer_preflight(session, &request_id).await {
            return answered;
        }
        let context = &*self.context;
        // No event is published for a card: its request is no call.
        let exchange = context.begin_exchange(request_id, !matches!(asked, RequestKind::Card(..)));
        let mut exchange = exchange.with_client(context.client_address(session));
        exchange.dialect = asked.dialect();
        exchange.begin_trace(&context.relay.traces, session.req_header(), asked.origin());
        let mut request = Request {
            context,
            session,
            exchange: &mut exchange,
        };
        let ended = match asked {
            RequestKind::Call(target) => call::serve_call(&mut request, target).await,
            RequestKind::Below(target, tail, _) => {
                box_cold_path(rest::serve_request(&mut request, target, &tail)).await
            }
            RequestKind::Task(task) => box_cold_path(rest::serve_task(&mut request, &task)).await,
            RequestKind::Card(whose, _) => {
                request.exchange.method = A2aMethod::AgentCard;
                box_cold_path(cards::serve(&mut request, whose)).await
            }
        };
        match exchange.record_outcome(ended) {
            Ok(ended) => ended,
            Err(rejection) => self.reject_exchange(session, exchange, rejection).await,
        }
    }

    /// Sends a rejection to the caller, with the remaining rate.
    async fn reject_exchange(
        &self,
        session: &mut ServerSession,
        mut exchange: Exchange,
        rejection: Rejection,
    ) -> Result<(), AbortCause> {
        let context = &self.context;
        let client = context.client_address(session);
        let mut rejection = context.gateway.rates.count_failure(client, rejection);
        if let Some(allowance) = &exchange.allowance {
            rejection = allowance.apply_to(rejection);
        }
        let origins = context.origins.get();
        let sent = reject::reject_exchange(session, &origins, &mut exchange, &rejection);
        AbortCause::from_write(box_cold_path(sent).await)
    }

    /// Passes any other request to the control plane.
    async fn serve_control(
        &self,
        session: &mut ServerSession,
        request_id: RequestId,
    ) -> Result<(), AbortCause> {
        if let Some(answered) = self.answer_preflight(session, &request_id).await {
            return answered;
        }
        let mut span = ControlSpan::begin(&self.context, session, &request_id);
        let span_facts = span.as_ref().map(ControlSpan::facts);
        let asked = control_plane::ControlRequest {
            request_id: &request_id,
            span_facts,
        };
        let answered = match self.context.check(session) {
            Ok(()) => control_plane::pass_request(&self.context, session, asked).await,
            Err(rejection) => {
                control_plane::reject_request(&self.context, session, asked, rejection).await
            }
        };
        let answered = AbortCause::from_write(answered);
        if let Some(span) = &mut span {
            span.record_status(session);
        }
        answered
    }

    /// Answers a CORS preflight, before any credential is checked.
    async fn answer_preflight(
        &self,
        session: &mut ServerSession,
        request_id: &RequestId,
    ) -> Option<Result<(), AbortCause>> {
        let origins = self.context.origins.get();
        let mut head = origins.answer_preflight(session.req_header())?;
        validate::check_head(session.req_header()).ok()?;
        origins.check(session.req_header()).ok()?;
        origins.put_browser_fields(&session.req_header().headers, &mut head);
        // A request id is visible ASCII, so the field can be built.
        let _ = put_request_id(&mut head, request_id);
        drop(origins);
        let write = write_response(session, head, bytes::Bytes::new());
        Some(AbortCause::from_write(box_cold_path(write).await))
    }
}

/// The forms of a request of A2A.
enum RequestKind {
    /// JSON-RPC at the base of a workspace.
    Call(Result<WorkspaceId, InvalidWorkspaceId>),
    /// A path below the base, or beside it and treated as below.
    Below(Result<WorkspaceId, InvalidWorkspaceId>, String, Dialect),
    /// `/tasks/{task_id}`, at any agent. The id is as spelled in the path.
    Task(String),
    /// The card of an agent.
    Card(CardTarget, Dialect),
}

impl RequestKind {
    fn origin(&self) -> ExchangeOrigin {
        match self {
            Self::Call(_) => ExchangeOrigin::for_route("/workspaces/{id}/a2a", true),
            Self::Below(_, _, Dialect::Plain) => {
                ExchangeOrigin::for_route("/workspaces/{id}/tasks/{task_id}", false)
            }
            Self::Below(..) => ExchangeOrigin::for_route("/workspaces/{id}/a2a/{*path}", false),
            Self::Task(_) => ExchangeOrigin::for_route("/tasks/{task_id}", false),
            Self::Card(whose, dialect) => whose.origin(*dialect),
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
