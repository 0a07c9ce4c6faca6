//! The control plane: the HTTP API for everything that a message requires to exist. It only maps HTTP; the other
//! modules decide and store.
//!
//! The data plane calls the router in process, with the request's [`RequestId`](crate::ids::RequestId)
//! and [`ClientAddr`](crate::identity::ClientAddr) as extensions, and its own rejections as
//! [`RejectedRequest`](crate::rejection::RejectedRequest). `answer` formats every rejection, and `extract` reads every
//! credential.

mod activity;
mod answer;
mod body;
mod canvas;
mod caps;
mod change_facts;
mod delegations;
mod discovery;
mod dry_run;
mod duplicate_names;
mod erased_handler;
mod events;
mod extract;
mod grants;
mod lifecycle;
mod operators;
mod page;
mod policy;
mod reach;
mod registry;
mod reply;
mod stops;
mod streams;
mod tokens;
mod turns;
mod usage;
mod watch;
mod well_known;
mod workspaces;
mod ws;

use std::sync::Arc;

use axum::middleware::from_fn_with_state;
use axum::routing::{MethodFilter, on};
use axum::{Extension, Router};

use self::body::Bodies;
use self::erased_handler::ErasedHandler;
use crate::gateway::Gateway;

macro_rules! routes {
    ($($method:ident $path:literal => $handler:path,)*) => {
        /// Every route of the control plane, by HTTP method and pattern. The router is built from it.
        pub const ROUTES: &[(&str, &str)] = &[$((stringify!($method), $path)),*];

        fn routes() -> Router<Arc<Gateway>> {
            Router::new()$(.route($path, on(MethodFilter::$method, ErasedHandler::new($handler))))*
        }
    };
}

routes! {
    POST   "/workspaces"                        => workspaces::create_workspace,
    GET    "/workspaces"                        => reach::list_workspaces,
    GET    "/workspaces/{id}"                   => workspaces::read_workspace,
    PATCH  "/workspaces/{id}"                   => lifecycle::change_workspace,
    DELETE "/workspaces/{id}"                   => lifecycle::remove_workspace,
    POST   "/workspaces/{id}/pause"             => lifecycle::pause_workspace,
    POST   "/workspaces/{id}/resume"            => lifecycle::resume_workspace,

    POST   "/workspaces/{id}/delegate"          => delegations::create_delegation,
    GET    "/workspaces/{id}/delegations"       => delegations::list_delegations,
    GET    "/workspaces/{id}/delegations/{delegation_id}" => delegations::read_delegation,

    POST   "/registry/register"                 => registry::register_agent,
    POST   "/registry/heartbeat"                => registry::record_heartbeat,
    POST   "/registry/update-card"              => registry::update_card,
    POST   "/registry/deregister"               => registry::deregister_agent,
    POST   "/registry/drain"                    => registry::drain_instance,
    GET    "/registry/discover/{id}"            => discovery::discover_workspace,
    GET    "/registry/{id}/peers"               => reach::list_peers,
    POST   "/registry/check-access"             => reach::check_access,

    GET    "/grants"                            => grants::list_grants,
    POST   "/grants"                            => grants::create_grant,
    DELETE "/grants/{grant_id}"                 => grants::remove_grant,

    GET    "/stops"                             => stops::list_stops,
    POST   "/stops"                             => stops::create_stop,
    DELETE "/stops/{stop_id}"                   => stops::release_stop,
    GET    "/caps"                              => caps::list_caps,
    GET    "/usage"                             => usage::list_usage,
    GET    "/policy"                            => policy::export_policy,
    POST   "/policy"                            => policy::apply_policy,

    GET    "/workspaces/{id}/tokens"            => tokens::list_tokens,
    POST   "/workspaces/{id}/tokens"            => tokens::issue_token,
    DELETE "/workspaces/{id}/tokens/{token_id}" => tokens::revoke_token,
    POST   "/workspaces/{id}/enrolment"         => tokens::issue_enrolment,
    GET    "/orgs/{org}/tokens"                 => tokens::list_org,
    POST   "/orgs/{org}/tokens"                 => tokens::issue_org,
    DELETE "/orgs/{org}/tokens/{token_id}"      => tokens::revoke_org,
    GET    "/operators/me"                      => operators::show_self,
    GET    "/operators/tokens"                  => operators::list_tokens,
    POST   "/operators/tokens"                  => operators::issue_token,
    DELETE "/operators/tokens/{token_id}"       => operators::revoke_token,
    POST   "/canvas/tokens"                     => tokens::issue_canvas,
    GET    "/canvas"                            => canvas::redirect_to_page,
    GET    "/canvas/"                           => canvas::serve_file,
    GET    "/canvas/{file}"                     => canvas::serve_file,

    GET    "/activity"                          => activity::list_own,
    GET    "/workspaces/{id}/activity"          => activity::list_activity,
    POST   "/workspaces/{id}/activity/ack"      => activity::acknowledge_entries,
    POST   "/workspaces/{id}/activity/{activity_id}/reply" => reply::reply_to_entry,
    POST   "/workspaces/{id}/notify"            => activity::notify_user,
    GET    "/workspaces/{id}/streams/{stream}"  => streams::resume_stream,

    GET    "/ws"                                => ws::open_socket,
    GET    "/events"                            => events::open_stream,
    POST   "/ws/tickets"                        => events::issue_ticket,

    GET    "/.well-known/jwks.json"             => well_known::serve_jwks,
    GET    "/.well-known/a2a-gateway"           => well_known::serve_discovery,
}

/// Builds the control plane of `gateway`.
pub fn router(gateway: Arc<Gateway>) -> Router {
    routes()
        .fallback(answer::unknown_path)
        .method_not_allowed_fallback(answer::wrong_method)
        .layer(from_fn_with_state(Arc::clone(&gateway), answer::wrap_route))
        .layer(Extension(Bodies::default()))
        .with_state(gateway)
}

#[cfg(test)]
mod tests;
