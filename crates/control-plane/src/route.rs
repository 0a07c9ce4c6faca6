//! Routes as they are declared: each once, with its handler, the role that it needs, and the record that it leaves.

use http::Method;

use access::identity::Role;
use audit::EventType;
use stores::store::Run;

/// Optional feature of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// `?dry_run=true`, with the role of the change.
    DryRun,
    /// `?dry_run=true`, for all operators: it shows no more than another route.
    OpenDryRun,
    /// A place below `/api` on the admin listener, for the console.
    Console,
}

/// A route.
#[derive(Debug)]
pub struct Route {
    /// The HTTP method.
    pub method: &'static str,
    /// The pattern.
    pub path: &'static str,
    /// The pattern on the admin listener, of a route with [`Offer::Console`].
    pub api_path: &'static str,
    /// The role that an operator needs.
    pub role: Role,
    /// The type of the record that it leaves; `None`: it leaves none.
    pub event: Option<EventType>,
    /// Optional features.
    pub offers: &'static [Offer],
}

impl Route {
    /// Returns the route of a request; a `GET` answers a `HEAD`, too.
    pub fn find<'r>(routes: &'r [Self], method: &Method, path: &str) -> Option<&'r Self> {
        let method = if *method == Method::HEAD {
            "GET"
        } else {
            method.as_str()
        };
        routes
            .iter()
            .find(|route| route.method == method && route.path == path)
    }

    /// Returns the type of the record that a request leaves. Heartbeats and acknowledgements leave none: there are
    /// thousands, and the status changes that follow from them are recorded.
    pub fn event_type(route: Option<&Self>, method: &Method) -> Option<EventType> {
        route?.event.filter(|_| *method != Method::HEAD)
    }

    /// Returns the role that an operator needs for a request. A route that is not declared, and that changes something,
    /// needs [`Role::Admin`].
    pub fn required_role(route: Option<&Self>, method: &Method, run: Run) -> Role {
        match route {
            Some(route) if run.is_dry() && route.offers.contains(&Offer::OpenDryRun) => Role::Read,
            Some(route) => route.role,
            None if method.is_safe() => Role::Read,
            None => Role::Admin,
        }
    }
}

/// Declares routes, and builds their router and their description:
/// `METHOD "/path" => handler, Role, records EventType, [Offer, …], says op(tag, id)…;`. The comment of a route is its
/// summary for callers; what it says are the bodies, the answers and the refusals (`tests::openapi::Operation`).
macro_rules! declare_routes {
    (
        $($(#[doc = $about:literal])+ $method:ident $path:literal => $handler:path, $role:ident
            $(, records $event:ident)? $(, [$($offer:ident),+])?, says $operation:expr;)*
    ) => {
        /// The routes by method and pattern.
        pub const ROUTES: &[(&str, &str)] = &[$((stringify!($method), $path)),*];

        /// The routes as they are declared.
        pub(crate) const DECLARED: &[$crate::Route] = &[$($crate::Route {
            method: stringify!($method),
            path: $path,
            api_path: concat!("/api", $path),
            role: access::identity::Role::$role,
            event: {
                let recorded: &[audit::EventType] = &[$(audit::EventType::$event)?];
                recorded.first().copied()
            },
            offers: &[$($($crate::Offer::$offer),+)?],
        }),*];

        /// Returns the router of the routes.
        pub(crate) fn routes() -> axum::Router<std::sync::Arc<assembly::gateway::Gateway>> {
            use axum::routing::{MethodFilter, on};
            axum::Router::new()$(.route(
                $path,
                on(MethodFilter::$method, $crate::ErasedHandler::new($handler)),
            ))*
        }

        /// Returns the routes with what their declarations say of them.
        #[cfg(test)]
        pub(crate) fn described() -> Vec<$crate::tests::openapi::DescribedRoute> {
            use $crate::tests::openapi::op;
            let said = [$((&[$($about),+][..], $operation)),*];
            let routes = DECLARED.iter().zip(said);
            let described = routes.map(|(route, (about, operation))| $crate::tests::openapi::DescribedRoute {
                route,
                about,
                operation,
            });
            described.collect()
        }
    };
}

pub(crate) use declare_routes;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DECLARED;

    #[test]
    fn a_change_that_no_row_names_needs_the_greatest_role() {
        for (method, pattern, run, role) in [
            (Method::GET, "/anything", Run::Real, Role::Read),
            (
                Method::GET,
                "/workspaces/{id}/streams/{stream}",
                Run::Real,
                Role::Admin,
            ),
            (
                Method::HEAD,
                "/workspaces/{id}/streams/{stream}",
                Run::Real,
                Role::Admin,
            ),
            (Method::POST, "/anything", Run::Real, Role::Admin),
            (Method::POST, "unmatched", Run::Real, Role::Admin),
            (Method::DELETE, "/workspaces/{id}", Run::Real, Role::Admin),
            (Method::POST, "/policy", Run::Dry, Role::Read),
            (Method::POST, "/policy", Run::Real, Role::Admin),
            (Method::POST, "/grants", Run::Dry, Role::Operate),
            (Method::DELETE, "/workspaces/{id}", Run::Dry, Role::Admin),
        ] {
            let route = Route::find(DECLARED, &method, pattern);
            let found = Route::required_role(route, &method, run);
            assert_eq!(found, role, "{method} {pattern}");
        }
    }
}
