//! The control plane: the HTTP API for everything that a message requires to exist. It only maps HTTP; the other
//! modules decide and store.
//!
//! The data plane calls the router in process, with the request's [`RequestId`](kernel::ids::RequestId)
//! and [`ClientAddr`](access::identity::ClientAddr) as extensions, and its own rejections as
//! [`RejectedRequest`](kernel::rejection::RejectedRequest). `answer` formats every rejection, and `extract` reads every
//! credential.

pub mod admin;

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
mod route;
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
use axum::{Extension, Router};

pub(crate) use self::answer::format_rejection;
use self::body::Bodies;
pub(crate) use self::erased_handler::ErasedHandler;
pub(crate) use self::route::declare_routes;
pub use self::route::{Offer, Route};
use assembly::gateway::Gateway;

declare_routes! {
    POST   "/workspaces" => workspaces::create_workspace, Admin, records WorkspaceCreated, [DryRun, Console];
    GET    "/workspaces" => reach::list_workspaces, Read;
    GET    "/workspaces/{id}" => workspaces::read_workspace, Read, [Console];
    PATCH  "/workspaces/{id}" => lifecycle::change_workspace, Admin, records WorkspaceChanged, [DryRun, Console];
    DELETE "/workspaces/{id}" => lifecycle::remove_workspace, Admin, records WorkspaceRemoved, [DryRun];
    POST   "/workspaces/{id}/pause" => lifecycle::pause_workspace, Operate, records WorkspacePaused, [DryRun, Console];
    POST   "/workspaces/{id}/resume" => lifecycle::resume_workspace, Operate, records WorkspaceResumed, [DryRun, Console];

    POST   "/workspaces/{id}/delegate" => delegations::create_delegation, Admin, records DelegationCreated;
    GET    "/workspaces/{id}/delegations" => delegations::list_delegations, Read;
    GET    "/workspaces/{id}/delegations/{delegation_id}" => delegations::read_delegation, Read;

    POST   "/registry/register" => registry::register_agent, Admin, records WorkspaceRegistered;
    POST   "/registry/heartbeat" => registry::record_heartbeat, Admin;
    POST   "/registry/update-card" => registry::update_card, Admin, records CardUpdated;
    POST   "/registry/deregister" => registry::deregister_agent, Operate, records WorkspaceDeregistered;
    POST   "/registry/drain" => registry::drain_instance, Operate, records InstanceDraining;
    GET    "/registry/discover/{id}" => discovery::discover_workspace, Read, records TokenIssued;
    GET    "/registry/{id}/peers" => reach::list_peers, Read;
    POST   "/registry/check-access" => reach::check_access, Read;

    GET    "/grants" => grants::list_grants, Read, [Console];
    POST   "/grants" => grants::create_grant, Operate, records GrantCreated, [DryRun, Console];
    DELETE "/grants/{grant_id}" => grants::remove_grant, Operate, records GrantRemoved, [DryRun, Console];

    GET    "/stops" => stops::list_stops, Read, [Console];
    POST   "/stops" => stops::create_stop, Operate, records StopCreated, [DryRun, Console];
    DELETE "/stops/{stop_id}" => stops::release_stop, Operate, records StopReleased, [DryRun, Console];
    GET    "/caps" => caps::list_caps, Read, [Console];
    GET    "/usage" => usage::list_usage, Read, [Console];
    GET    "/policy" => policy::export_policy, Read;
    POST   "/policy" => policy::apply_policy, Admin, records PolicyApplied, [OpenDryRun];

    GET    "/workspaces/{id}/tokens" => tokens::list_tokens, Read, [Console];
    POST   "/workspaces/{id}/tokens" => tokens::issue_token, Admin, records TokenIssued, [DryRun, Console];
    DELETE "/workspaces/{id}/tokens/{token_id}" => tokens::revoke_token, Admin, records TokenRevoked, [DryRun, Console];
    POST   "/workspaces/{id}/enrolment" => tokens::issue_enrolment, Admin, records TokenIssued, [DryRun];
    GET    "/orgs/{org}/tokens" => tokens::list_org, Read;
    POST   "/orgs/{org}/tokens" => tokens::issue_org, Admin, records TokenIssued, [DryRun];
    DELETE "/orgs/{org}/tokens/{token_id}" => tokens::revoke_org, Admin, records TokenRevoked, [DryRun];
    GET    "/operators/me" => operators::show_self, Read, [Console];
    GET    "/operators/tokens" => operators::list_tokens, Read;
    POST   "/operators/tokens" => operators::issue_token, Admin, records TokenIssued, [DryRun];
    DELETE "/operators/tokens/{token_id}" => operators::revoke_token, Admin, records TokenRevoked, [DryRun];
    POST   "/canvas/tokens" => tokens::issue_canvas, Admin, records TokenIssued, [DryRun];
    GET    "/canvas" => canvas::redirect_to_page, Read;
    GET    "/canvas/" => canvas::serve_file, Read;
    GET    "/canvas/{file}" => canvas::serve_file, Read;

    GET    "/activity" => activity::list_own, Read;
    GET    "/workspaces/{id}/activity" => activity::list_activity, Read;
    POST   "/workspaces/{id}/activity/ack" => activity::acknowledge_entries, Admin;
    POST   "/workspaces/{id}/activity/{activity_id}/reply" => reply::reply_to_entry, Admin, records MessageReplied;
    POST   "/workspaces/{id}/notify" => activity::notify_user, Admin, records MessageNotified;
    GET    "/workspaces/{id}/streams/{stream}" => streams::resume_stream, Admin, records StreamResumed;

    GET    "/ws" => ws::open_socket, Read;
    GET    "/events" => events::open_stream, Read;
    POST   "/ws/tickets" => events::issue_ticket, Read, records TokenIssued;

    GET    "/.well-known/jwks.json" => well_known::serve_jwks, Read;
    GET    "/.well-known/a2a-gateway" => well_known::serve_discovery, Read;
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
