//! The control plane: the HTTP API for everything that a message requires to exist. It only maps HTTP; the other
//! modules decide and store.
//!
//! The data plane calls the router in process, with the request's [`RequestId`](crate::ids::RequestId)
//! and [`ClientAddr`](crate::identity::ClientAddr) as extensions, and its own rejections as
//! [`Refused`](crate::rejection::Refused). `answer` formats every rejection, and `extract` reads every credential.

mod activity;
mod answer;
mod body;
mod canvas;
mod caps;
mod changed;
mod delegations;
mod discovery;
mod dry_run;
mod erased;
mod events;
mod extract;
mod grants;
mod lifecycle;
mod operators;
mod page;
mod policy;
mod reach;
mod registry;
mod repeated;
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
use self::erased::Erased;
use crate::gateway::Gateway;

macro_rules! routes {
    ($($method:ident $path:literal => $handler:path,)*) => {
        /// Every route of the control plane, by HTTP method and pattern. The router is built from it.
        pub const ROUTES: &[(&str, &str)] = &[$((stringify!($method), $path)),*];

        fn routes() -> Router<Arc<Gateway>> {
            Router::new()$(.route($path, on(MethodFilter::$method, Erased::new($handler))))*
        }
    };
}

routes! {
    POST   "/workspaces"                        => workspaces::create,
    GET    "/workspaces"                        => reach::list,
    GET    "/workspaces/{id}"                   => workspaces::read,
    PATCH  "/workspaces/{id}"                   => lifecycle::change,
    DELETE "/workspaces/{id}"                   => lifecycle::remove,
    POST   "/workspaces/{id}/pause"             => lifecycle::pause,
    POST   "/workspaces/{id}/resume"            => lifecycle::resume,

    POST   "/workspaces/{id}/delegate"          => delegations::create,
    GET    "/workspaces/{id}/delegations"       => delegations::list,
    GET    "/workspaces/{id}/delegations/{delegation_id}" => delegations::read,

    POST   "/registry/register"                 => registry::register,
    POST   "/registry/heartbeat"                => registry::heartbeat,
    POST   "/registry/update-card"              => registry::update_card,
    POST   "/registry/deregister"               => registry::deregister,
    POST   "/registry/drain"                    => registry::drain,
    GET    "/registry/discover/{id}"            => discovery::discover,
    GET    "/registry/{id}/peers"               => reach::peers,
    POST   "/registry/check-access"             => reach::check_access,

    GET    "/grants"                            => grants::list,
    POST   "/grants"                            => grants::create,
    DELETE "/grants/{grant_id}"                 => grants::remove,

    GET    "/stops"                             => stops::list,
    POST   "/stops"                             => stops::create,
    DELETE "/stops/{stop_id}"                   => stops::release,
    GET    "/caps"                              => caps::list,
    GET    "/usage"                             => usage::list,
    GET    "/policy"                            => policy::export,
    POST   "/policy"                            => policy::apply,

    GET    "/workspaces/{id}/tokens"            => tokens::list,
    POST   "/workspaces/{id}/tokens"            => tokens::issue,
    DELETE "/workspaces/{id}/tokens/{token_id}" => tokens::revoke,
    POST   "/workspaces/{id}/enrolment"         => tokens::enrol,
    GET    "/orgs/{org}/tokens"                 => tokens::list_org,
    POST   "/orgs/{org}/tokens"                 => tokens::issue_org,
    DELETE "/orgs/{org}/tokens/{token_id}"      => tokens::revoke_org,
    GET    "/operators/me"                      => operators::me,
    GET    "/operators/tokens"                  => operators::list,
    POST   "/operators/tokens"                  => operators::issue,
    DELETE "/operators/tokens/{token_id}"       => operators::revoke,
    POST   "/canvas/tokens"                     => tokens::issue_canvas,
    GET    "/canvas"                            => canvas::door,
    GET    "/canvas/"                           => canvas::file,
    GET    "/canvas/{file}"                     => canvas::file,

    GET    "/activity"                          => activity::list_own,
    GET    "/workspaces/{id}/activity"          => activity::list,
    POST   "/workspaces/{id}/activity/ack"      => activity::acknowledge,
    POST   "/workspaces/{id}/activity/{activity_id}/reply" => reply::reply,
    POST   "/workspaces/{id}/notify"            => activity::notify,
    GET    "/workspaces/{id}/streams/{stream}"  => streams::resume,

    GET    "/ws"                                => ws::socket,
    GET    "/events"                            => events::stream,
    POST   "/ws/tickets"                        => events::ticket,

    GET    "/.well-known/jwks.json"             => well_known::jwks,
    GET    "/.well-known/a2a-gateway"           => well_known::discovery,
}

/// Builds the control plane of `gateway`.
pub fn router(gateway: Arc<Gateway>) -> Router {
    routes()
        .fallback(answer::unknown_path)
        .method_not_allowed_fallback(answer::wrong_method)
        .layer(from_fn_with_state(Arc::clone(&gateway), answer::frame))
        .layer(Extension(Bodies::default()))
        .with_state(gateway)
}

#[cfg(test)]
mod tests;
