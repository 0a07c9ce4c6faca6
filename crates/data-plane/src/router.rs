//! The entry of the data plane: finds the kind of a request, begins its record, and has it served.

use std::net::IpAddr;
use std::sync::Arc;

use http::Method;
use pingora::protocols::http::ServerSession;

use crate::admission::{self, client_address};
use crate::control_plane;
use crate::listener::{Service, put_request_id, write_response};
use crate::record::{Exchange, box_cold_path};
use crate::services::{Context, Request};
use crate::trace::ExchangeOrigin;
use crate::{card_route, grpc_calls, grpc_session, plan, rest};
use a2a::method::Method as A2aMethod;
use a2a::rest::{is_route_of_1_0, split_tenant};
use http1::AbortCause;
use kernel::config::RefusalStatus;
use kernel::dialect::{Dialect, ReplyForm};
use kernel::ids::{InvalidWorkspaceId, RequestId, WorkspaceId};
use kernel::rejection::Rejection;

/// The entry of the gateway's data plane.
pub(super) struct Router {
    pub(super) context: Arc<Context>,
}

impl Service for Router {
    async fn serve(&self, session: &mut ServerSession) -> Result<(), AbortCause> {
        if grpc_session::is_grpc(session) && self.context.gateway.config().server.grpc {
            return box_cold_path(self.serve_grpc(session)).await;
        }
        let head = session.req_header();
        let request_id = admission::request_id(&head.headers);
        let route = match match_route(head.uri.path()) {
            Route::Control => return box_cold_path(self.serve_control(session, request_id)).await,
            // By `GET` the base is the card of its agent.
            Route::A2a(target) if matches!(head.method, Method::GET | Method::HEAD) => {
                Route::Card(target)
            }
            Route::Origin if head.method != Method::POST => {
                return box_cold_path(self.serve_control(session, request_id)).await;
            }
            route => route,
        };
        self.serve_a2a(session, request_id, route).await
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
        route: &Route,
        request_id: &RequestId,
        peer: Option<IpAddr>,
        rejection: &Rejection,
    ) {
        let mut exchange = Exchange::begin_at(&self.context.gateway, request_id.clone(), false);
        // No field of an unreadable head is trusted, so the client is the peer, even if that is a proxy.
        if let Some(peer) = peer {
            exchange = exchange.with_client(peer.to_canonical());
        }
        exchange.call.target = route.target().cloned();
        if route.is_card() {
            exchange.call.method = A2aMethod::AgentCard;
        }
        exchange.record.status = rejection.reason.status();
        exchange.record_rejection(rejection);
    }

    /// Serves a request of A2A in one of its forms, from its first check to its record.
    async fn serve_a2a(
        &self,
        session: &mut ServerSession,
        request_id: RequestId,
        route: Route,
    ) -> Result<(), AbortCause> {
        if let Some(answered) = self.answer_preflight(session, &request_id).await {
            return answered;
        }
        let context = &*self.context;
        // No event is published for a card: its request is no call.
        let exchange = Exchange::begin_at(&context.gateway, request_id, !route.is_card());
        let origin = || route.origin();
        let mut exchange = self.open_record(session, exchange, route.dialect(), origin);
        let mut request = Request {
            context,
            session,
            exchange: &mut exchange,
            early_body: None,
        };
        if route.is_card() {
            request.exchange.call.method = A2aMethod::AgentCard;
        }
        let ended = match route {
            Route::A2a(target) => plan::serve_call(&mut request, target).await,
            Route::Origin => box_cold_path(plan::serve_by_tenant(&mut request)).await,
            Route::Below(target, tail) | Route::TaskBeside(target, tail) => {
                box_cold_path(rest::serve_request(&mut request, target, &tail)).await
            }
            Route::Task(task) => box_cold_path(rest::serve_task(&mut request, &task)).await,
            Route::Card(target) | Route::CardBeside(target) => {
                box_cold_path(card_route::serve(&mut request, Some(target))).await
            }
            Route::DefaultCard => box_cold_path(card_route::serve(&mut request, None)).await,
            Route::Control => Err(rest::no_such_route().into()),
        };
        match exchange.record_outcome(ended) {
            Ok(ended) => ended,
            Err(rejection) => self.reject_exchange(session, exchange, rejection).await,
        }
    }

    /// Notes in the record of an exchange what its head says, and begins its trace.
    fn open_record(
        &self,
        session: &ServerSession,
        exchange: Exchange,
        dialect: Dialect,
        origin: impl FnOnce() -> ExchangeOrigin,
    ) -> Exchange {
        let context = &*self.context;
        let mut exchange =
            exchange.with_client(client_address(session, &context.gateway.config().server));
        exchange.call.dialect = dialect;
        if let Some(version) = admission::declared_version(session.req_header()) {
            exchange.call.set_version(&version);
        }
        exchange.begin_trace(&context.relay.traces, session.req_header(), origin);
        exchange
    }

    /// Serves a request of gRPC.
    async fn serve_grpc(&self, session: &mut ServerSession) -> Result<(), AbortCause> {
        let request_id = admission::request_id(&session.req_header().headers);
        let call = match grpc_session::open(session) {
            Ok(Some(grpc_session::GrpcRequest::Call(call))) => call,
            Ok(Some(grpc_session::GrpcRequest::Own(method))) => {
                let drain = &self.context.relay.drain;
                return grpc_calls::serve_own(session, method, || !drain.is_leaving()).await;
            }
            Ok(None) | Err(_) => return Err(AbortCause::Ours),
        };
        let context = &*self.context;
        let exchange = Exchange::begin_at(&context.gateway, request_id, true);
        let origin = || ExchangeOrigin::for_route(grpc_calls::ROUTE, true);
        let mut exchange = self.open_record(session, exchange, Dialect::JsonRpc, origin);
        let mut request = Request {
            context,
            session,
            exchange: &mut exchange,
            early_body: None,
        };
        let ended = grpc_calls::serve_call(&mut request, call).await;
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
        // The status of gRPC follows from that of HTTP.
        if exchange.call.dialect == Dialect::JsonRpc
            && exchange.call.method != A2aMethod::AgentCard
            && !session.is_custom()
        {
            let resolution = &context.gateway.resolution;
            let status = resolution.refusal_status(exchange.call.proof.as_ref());
            if box_cold_path(status).await == RefusalStatus::Ok {
                exchange.call.dialect = Dialect::JsonRpcOk;
            }
        }
        let client = client_address(session, &context.gateway.config().server);
        let mut rejection = context.gateway.rates.count_failure(client, rejection);
        if let Some(allowance) = exchange.call.allowance.as_ref() {
            rejection = allowance.apply_to(rejection);
        }
        let origins = context.origins.get();
        let sent = admission::reject_exchange(session, &origins, &mut exchange, &rejection);
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
        control_plane::serve(&self.context, session, &request_id).await
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
/// [`rest::parse_request`](a2a::rest::parse_request) accepts the complete set.
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

/// The workspace of a path.
type Target = Result<WorkspaceId, InvalidWorkspaceId>;

/// The route of a request.
#[derive(Debug, PartialEq, Eq)]
enum Route {
    /// `/workspaces/{id}/a2a` or `/workspaces/{id}/a2a/`: the JSON-RPC endpoint of one workspace.
    A2a(Target),
    /// `/`: that of all workspaces, by tenant.
    Origin,
    /// The card of one workspace, at or below the base: an A2A route.
    Card(Target),
    /// The same card beside the base, for clients that resolve `.well-known` against it.
    CardBeside(Target),
    /// `/.well-known/agent-card.json`: the card of `a2a.default_workspace`.
    DefaultCard,
    /// A path below the base, without the slash before it.
    Below(Target, String),
    /// `tasks/{task_id}` beside the base.
    TaskBeside(Target, String),
    /// `/tasks/{task_id}`: a task of any workspace. The id is as spelled in the path.
    Task(String),
    /// Any other path.
    Control,
}

impl Route {
    /// Returns the dialect of the gateway's own answers on the route.
    const fn dialect(&self) -> Dialect {
        match self {
            Self::A2a(_) | Self::Card(_) | Self::Origin => Dialect::JsonRpc,
            Self::Below(..) => Dialect::HttpJson,
            _ => Dialect::Plain,
        }
    }

    const fn is_card(&self) -> bool {
        matches!(
            self,
            Self::Card(_) | Self::CardBeside(_) | Self::DefaultCard
        )
    }

    /// Returns the workspace in the path, if it is valid.
    fn target(&self) -> Option<&WorkspaceId> {
        match self {
            Self::A2a(id) | Self::Card(id) | Self::CardBeside(id) => id.as_ref().ok(),
            Self::Below(id, _) | Self::TaskBeside(id, _) => id.as_ref().ok(),
            Self::Origin | Self::DefaultCard | Self::Task(_) | Self::Control => None,
        }
    }

    fn origin(&self) -> ExchangeOrigin {
        let pattern = match self {
            // Two paths of one card, and the A2A base itself.
            Self::A2a(_) | Self::Card(_) => "/workspaces/{id}/a2a",
            Self::CardBeside(_) => "/workspaces/{id}/.well-known/agent-card.json",
            Self::Origin => "/",
            Self::DefaultCard => "/.well-known/agent-card.json",
            Self::Below(..) => "/workspaces/{id}/a2a/{*path}",
            Self::TaskBeside(..) => "/workspaces/{id}/tasks/{task_id}",
            Self::Task(_) | Self::Control => "/tasks/{task_id}",
        };
        ExchangeOrigin::for_route(pattern, matches!(self, Self::A2a(_) | Self::Origin))
    }
}

/// Classifies a raw, still encoded path. An encoded id is invalid: `%` is not in its alphabet, so two spellings of one
/// path never name the same workspace.
fn match_route(path: &str) -> Route {
    if path == WELL_KNOWN[0] {
        return Route::DefaultCard;
    }
    if path == "/" {
        return Route::Origin;
    }
    if let Some(task) = path.strip_prefix("/tasks/").and_then(single_segment) {
        return Route::Task(task.to_owned());
    }
    let Some((id, rest)) = path
        .strip_prefix("/workspaces/")
        .and_then(|p| p.split_once('/'))
    else {
        return match_tenant(path).unwrap_or(Route::Control);
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
        return Route::TaskBeside(WorkspaceId::parse(id), rest.to_owned());
    }
    match rest.strip_prefix("a2a") {
        Some("" | "/") => Route::A2a(WorkspaceId::parse(id)),
        Some(below) => match below.strip_prefix('/') {
            Some(tail) if is_card(tail) => Route::Card(WorkspaceId::parse(id)),
            Some(tail) => Route::Below(WorkspaceId::parse(id), tail.to_owned()),
            None => Route::Control,
        },
        None => Route::Control,
    }
}

/// First segments of the gateway's own routes: a workspace of such an id is no tenant in a path.
pub const OWN_SEGMENTS: [&str; 22] = [
    ".well-known",
    "access",
    "activity",
    "agents",
    "canvas",
    "caps",
    "console",
    "events",
    "explore",
    "grants",
    "oauth",
    "operators",
    "orgs",
    "policy",
    "registry",
    "revocations",
    "search",
    "stops",
    "tasks",
    "usage",
    "workspaces",
    "ws",
];

/// Matches `/{tenant}/message:send` and the other routes of HTTP+JSON of 1.0 at the origin: the tenant is a workspace.
fn match_tenant(path: &str) -> Option<Route> {
    let (id, tail) = path.strip_prefix('/')?.split_once('/')?;
    let is_own = OWN_SEGMENTS.contains(&id);
    let id = WorkspaceId::parse(id).ok().filter(|_| !is_own)?;
    let is_route = is_route_of_1_0(tail) || split_tenant(tail).is_some();
    is_route.then(|| Route::Below(Ok(id), tail.to_owned()))
}

/// Returns `path` if it is one segment, without a slash at its end.
fn single_segment(path: &str) -> Option<&str> {
    let segment = path.strip_suffix('/').unwrap_or(path);
    (!segment.is_empty() && !segment.contains('/')).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2a::rest;

    #[test]
    fn what_is_described_is_routed_and_read() {
        for (verb, pattern) in REST_ROUTES {
            let path = pattern.replace("{id}", "dev").replace("{task_id}", "t-1");
            let path = path.replace("{config_id}", "c");
            let read = match match_route(&path) {
                Route::Below(Ok(_), tail) | Route::TaskBeside(Ok(_), tail) => {
                    rest::parse_request(verb, &tail, None)
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
        let below = |tail: &str| Route::Below(WorkspaceId::parse("dev"), tail.to_owned());
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
                Route::Below(WorkspaceId::parse("dev"), "v1/card".into()),
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
                Route::Below(WorkspaceId::parse("dev"), "/.well-known/agent.json".into()),
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
            ("/tasks/t-1", Route::Task("t-1".into())),
            (
                "/workspaces/dev/tasks/t-1",
                Route::TaskBeside(WorkspaceId::parse("dev"), "tasks/t-1".into()),
            ),
            ("/workspaces/dev/tasks", Route::Control),
            ("/tasks/t%20/", Route::Task("t%20".into())),
            ("/tasks/", Route::Control),
            ("/tasks/t/cancel", Route::Control),
            ("/.well-known/agent.json", Route::Control),
            ("/.well-known/jwks.json", Route::Control),
            ("/workspaces/dev/a2ax", Route::Control),
            ("/workspaces/dev", Route::Control),
            ("/workspaces/dev/tokens", Route::Control),
            ("/", Route::Origin),
            ("/dev/message:send", below("message:send")),
            ("/dev/tasks/t:cancel", below("tasks/t:cancel")),
            ("/dev/eu/message:stream", below("eu/message:stream")),
            ("/dev/message:send/x", Route::Control),
            ("/dev/v1/message:send", Route::Control),
            ("/a:b/message:send", Route::Control),
            ("/registry/tasks", Route::Control),
            ("/stops/message:send", Route::Control),
        ];
        for (path, expected) in cases {
            assert_eq!(match_route(path), expected, "{path}");
        }
    }
}
