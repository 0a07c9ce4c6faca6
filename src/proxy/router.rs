//! The entry of the data plane: finds the kind of a request, begins its record, and has it served.

use std::net::IpAddr;
use std::sync::Arc;

use http::Method;
use pingora::protocols::http::ServerSession;

use crate::a2a::method::Method as A2aMethod;
use crate::config::RefusalStatus;
use crate::dialect::{Dialect, ReplyForm};
use crate::ids::{InvalidWorkspaceId, RequestId, WorkspaceId};
use crate::proxy::admission::{self, check_request, client_address};
use crate::proxy::card_route::{self, CardTarget};
use crate::proxy::control_plane::span::ControlSpan;
use crate::proxy::http1::AbortCause;
use crate::proxy::listener::{Service, put_request_id, write_response};
use crate::proxy::record::{Exchange, box_cold_path};
use crate::proxy::services::{Context, Request};
use crate::proxy::trace::ExchangeOrigin;
use crate::proxy::{control_plane, plan, reject, rest};
use crate::rejection::Rejection;

/// The entry of the gateway's data plane.
pub(super) struct Router {
    pub(super) context: Arc<Context>,
}

impl Service for Router {
    async fn serve(&self, session: &mut ServerSession) -> Result<(), AbortCause> {
        let head = session.req_header();
        let request_id = admission::request_id(&head.headers);
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

    fn record_unreadable(
        &self,
        path: Option<&str>,
        request_id: &RequestId,
        peer: Option<IpAddr>,
        rejection: &Rejection,
    ) -> ReplyForm {
        let route = path.map_or(Route::Control, match_route);
        if !matches!(route, Route::Control) {
            self.record_unreadable_call(&route, request_id, peer, rejection);
        }
        route.dialect().into()
    }
}

impl Router {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    /// Records a request on a call route with an unreadable head.
    fn record_unreadable_call(
        &self,
        route: &Route<'_>,
        request_id: &RequestId,
        peer: Option<IpAddr>,
        rejection: &Rejection,
    ) {
        let mut exchange = Exchange::begin_at(&self.context.gateway, request_id.clone(), false);
        // No field of an unreadable head is trusted, so the client is the peer, even if that is a proxy.
        if let Some(peer) = peer {
            exchange = exchange.with_client(peer.to_canonical());
        }
        let target = match route {
            Route::A2a(id)
            | Route::Card(id)
            | Route::CardBeside(id)
            | Route::Below(id, _)
            | Route::TaskBeside(id, _) => id.as_ref().ok().cloned(),
            Route::DefaultCard | Route::Task(_) | Route::Control => None,
        };
        if let Some(target) = target {
            exchange.call.set_target(target);
        }
        if matches!(
            route,
            Route::Card(_) | Route::CardBeside(_) | Route::DefaultCard
        ) {
            exchange.call.set_method(A2aMethod::AgentCard);
        }
        exchange.record.set_status(rejection.reason.status());
        exchange.record_rejection(rejection);
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
        let exchange = Exchange::begin_at(
            &context.gateway,
            request_id,
            !matches!(asked, RequestKind::Card(..)),
        );
        let mut exchange =
            exchange.with_client(client_address(session, &context.gateway.config().server));
        exchange.call.set_dialect(asked.dialect());
        if let Some(version) = admission::declared_version(session.req_header()) {
            exchange.call.set_version(&version);
        }
        exchange.begin_trace(&context.relay.traces, session.req_header(), || {
            asked.origin()
        });
        let mut request = Request {
            context,
            session,
            exchange: &mut exchange,
        };
        let ended = match asked {
            RequestKind::Call(target) => plan::serve_call(&mut request, target).await,
            RequestKind::Below(target, tail, _) => {
                box_cold_path(rest::serve_request(&mut request, target, &tail)).await
            }
            RequestKind::Task(task) => box_cold_path(rest::serve_task(&mut request, &task)).await,
            RequestKind::Card(whose, _) => {
                request.exchange.call.set_method(A2aMethod::AgentCard);
                box_cold_path(card_route::serve(&mut request, whose)).await
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
        if exchange.call.dialect() == Dialect::JsonRpc
            && exchange.call.method() != A2aMethod::AgentCard
        {
            let resolution = &context.gateway.resolution;
            let status = resolution.refusal_status(exchange.call.proof());
            if box_cold_path(status).await == RefusalStatus::Ok {
                exchange.call.set_dialect(Dialect::JsonRpcOk);
            }
        }
        let client = client_address(session, &context.gateway.config().server);
        let mut rejection = context.gateway.rates.count_failure(client, rejection);
        if let Some(allowance) = exchange.call.allowance() {
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
        // Apart: what a `match` looks at lives to its end, and a control connection may last for hours.
        let checked = check_request(
            session,
            &self.context.origins.get(),
            &self.context.relay.load,
        );
        let answered = match checked {
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
        admission::check_head(session.req_header()).ok()?;
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

// Maps a path to an A2A route, or to the control plane.

/// Well-known paths of cards: A2A 0.3 and 1.0, then 0.2.
const WELL_KNOWN: [&str; 2] = ["/.well-known/agent-card.json", "/.well-known/agent.json"];

/// The A2A routes, by HTTP method and pattern. `HEAD` goes with `GET`.
pub const ROUTES: [(&str, &str); 7] = [
    ("POST", "/workspaces/{id}/a2a"),
    ("GET", "/workspaces/{id}/a2a"),
    ("GET", "/workspaces/{id}/a2a/.well-known/agent-card.json"),
    ("GET", "/workspaces/{id}/a2a/.well-known/agent.json"),
    ("GET", "/workspaces/{id}/.well-known/agent-card.json"),
    ("GET", "/workspaces/{id}/.well-known/agent.json"),
    ("GET", "/.well-known/agent-card.json"),
];

/// Described routes of tasks and of the HTTP+JSON binding of A2A 1.0, by HTTP method and pattern.
/// [`rest::parse_request`](crate::a2a::rest::parse_request) accepts the complete set.
pub const REST_ROUTES: [(&str, &str); 17] = [
    ("POST", "/workspaces/{id}/a2a/tasks/send"),
    ("POST", "/workspaces/{id}/a2a/tasks/send/stream"),
    ("GET", "/workspaces/{id}/a2a/tasks/{task_id}"),
    ("POST", "/workspaces/{id}/a2a/tasks/{task_id}/cancel"),
    ("POST", "/workspaces/{id}/a2a/message:send"),
    ("POST", "/workspaces/{id}/a2a/message:stream"),
    ("GET", "/workspaces/{id}/a2a/tasks"),
    ("POST", "/workspaces/{id}/a2a/tasks/{task_id}:cancel"),
    ("POST", "/workspaces/{id}/a2a/tasks/{task_id}:subscribe"),
    ("GET", "/workspaces/{id}/a2a/tasks/{task_id}:subscribe"),
    (
        "GET",
        "/workspaces/{id}/a2a/tasks/{task_id}/pushNotificationConfigs",
    ),
    (
        "POST",
        "/workspaces/{id}/a2a/tasks/{task_id}/pushNotificationConfigs",
    ),
    (
        "GET",
        "/workspaces/{id}/a2a/tasks/{task_id}/pushNotificationConfigs/{config_id}",
    ),
    (
        "DELETE",
        "/workspaces/{id}/a2a/tasks/{task_id}/pushNotificationConfigs/{config_id}",
    ),
    ("GET", "/workspaces/{id}/a2a/extendedAgentCard"),
    ("GET", "/workspaces/{id}/tasks/{task_id}"),
    ("GET", "/tasks/{task_id}"),
];

/// The route of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route<'p> {
    /// `/workspaces/{id}/a2a` or `/workspaces/{id}/a2a/`: the JSON-RPC endpoint of one workspace.
    A2a(Result<WorkspaceId, InvalidWorkspaceId>),
    /// The card of one workspace, below the base: an A2A route.
    Card(Result<WorkspaceId, InvalidWorkspaceId>),
    /// The same card beside the base, for clients that resolve `.well-known` against it.
    CardBeside(Result<WorkspaceId, InvalidWorkspaceId>),
    /// `/.well-known/agent-card.json`: the card of `a2a.default_workspace`.
    DefaultCard,
    /// A path below the base, without the slash before it.
    Below(Result<WorkspaceId, InvalidWorkspaceId>, &'p str),
    /// `tasks/{task_id}` beside the base.
    TaskBeside(Result<WorkspaceId, InvalidWorkspaceId>, &'p str),
    /// `/tasks/{task_id}`: a task of any workspace.
    Task(&'p str),
    /// Any other path.
    Control,
}

impl Route<'_> {
    /// Returns the dialect of the gateway's own answers on the route.
    pub(super) const fn dialect(&self) -> Dialect {
        match self {
            Self::A2a(_) | Self::Card(_) => Dialect::JsonRpc,
            Self::Below(..) => Dialect::HttpJson,
            Self::CardBeside(_)
            | Self::DefaultCard
            | Self::TaskBeside(..)
            | Self::Task(_)
            | Self::Control => Dialect::Plain,
        }
    }
}

/// Classifies a raw, still encoded path. An encoded id is invalid: `%` is not in its alphabet, so two spellings of one
/// path never name the same workspace.
pub(super) fn match_route(path: &str) -> Route<'_> {
    if path == WELL_KNOWN[0] {
        return Route::DefaultCard;
    }
    if let Some(task) = path.strip_prefix("/tasks/").and_then(single_segment) {
        return Route::Task(task);
    }
    let Some((id, rest)) = path
        .strip_prefix("/workspaces/")
        .and_then(|p| p.split_once('/'))
    else {
        return Route::Control;
    };
    let is_card = |path: &str| WELL_KNOWN.iter().any(|known| known[1..] == *path);
    if is_card(rest) {
        return Route::CardBeside(WorkspaceId::parse(id));
    }
    // For clients that take the path of the workspace for the agent's base.
    if rest
        .strip_prefix("tasks/")
        .and_then(single_segment)
        .is_some()
    {
        return Route::TaskBeside(WorkspaceId::parse(id), rest);
    }
    match rest.strip_prefix("a2a") {
        Some("" | "/") => Route::A2a(WorkspaceId::parse(id)),
        Some(below) => match below.strip_prefix('/') {
            Some(tail) if is_card(tail) => Route::Card(WorkspaceId::parse(id)),
            Some(tail) => Route::Below(WorkspaceId::parse(id), tail),
            None => Route::Control,
        },
        None => Route::Control,
    }
}

/// Returns `path` if it is one segment, without a slash at its end.
fn single_segment(path: &str) -> Option<&str> {
    let segment = path.strip_suffix('/').unwrap_or(path);
    (!segment.is_empty() && !segment.contains('/')).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::a2a::rest;

    #[test]
    fn what_is_described_is_routed_and_read() {
        for (verb, pattern) in REST_ROUTES {
            let path = pattern.replace("{id}", "dev").replace("{task_id}", "t-1");
            let path = path.replace("{config_id}", "c");
            let read = match match_route(&path) {
                Route::Below(Ok(_), tail) | Route::TaskBeside(Ok(_), tail) => {
                    rest::parse_request(verb, tail, None)
                }
                Route::Task(task) => rest::parse_request(verb, &format!("tasks/{task}"), None),
                _ => Err(rest::RouteError::Path),
            };
            // No version of A2A has these routes.
            let ours = ["/send", "/stream", "/cancel"];
            let ours = ours.iter().any(|end| path.ends_with(end));
            assert_eq!(read.map(|rest| rest.is_own), Ok(ours), "{verb} {path}");
        }
    }

    #[test]
    fn the_base_is_served_with_and_without_a_slash() {
        let dev = || Route::A2a(WorkspaceId::parse("dev"));
        let cases = [
            ("/workspaces/dev/a2a", dev()),
            ("/workspaces/dev/a2a/", dev()),
            (
                "/workspaces/system:x/a2a",
                Route::A2a(Err(InvalidWorkspaceId)),
            ),
            ("/workspaces//a2a", Route::A2a(Err(InvalidWorkspaceId))),
            ("/workspaces/d%65v/a2a", Route::A2a(Err(InvalidWorkspaceId))),
            (
                "/workspaces/dev/a2a/v1/card",
                Route::Below(WorkspaceId::parse("dev"), "v1/card"),
            ),
            (
                "/workspaces/dev/a2a/.well-known/agent-card.json",
                Route::Card(WorkspaceId::parse("dev")),
            ),
            (
                "/workspaces/dev/a2a/.well-known/agent.json",
                Route::Card(WorkspaceId::parse("dev")),
            ),
            (
                "/workspaces/dev/a2a//.well-known/agent.json",
                Route::Below(WorkspaceId::parse("dev"), "/.well-known/agent.json"),
            ),
            (
                "/workspaces/dev/.well-known/agent-card.json",
                Route::CardBeside(WorkspaceId::parse("dev")),
            ),
            (
                "/workspaces/a:b/.well-known/agent.json",
                Route::CardBeside(Err(InvalidWorkspaceId)),
            ),
            ("/workspaces/dev/.well-known/jwks.json", Route::Control),
            ("/.well-known/agent-card.json", Route::DefaultCard),
            ("/tasks/t-1", Route::Task("t-1")),
            (
                "/workspaces/dev/tasks/t-1",
                Route::TaskBeside(WorkspaceId::parse("dev"), "tasks/t-1"),
            ),
            ("/workspaces/dev/tasks", Route::Control),
            ("/tasks/t%20/", Route::Task("t%20")),
            ("/tasks/", Route::Control),
            ("/tasks/t/cancel", Route::Control),
            ("/.well-known/agent.json", Route::Control),
            ("/.well-known/jwks.json", Route::Control),
            ("/workspaces/dev/a2ax", Route::Control),
            ("/workspaces/dev", Route::Control),
            ("/workspaces/dev/tokens", Route::Control),
            ("/", Route::Control),
        ];
        for (path, expected) in cases {
            assert_eq!(match_route(path), expected, "{path}");
        }
    }
}
