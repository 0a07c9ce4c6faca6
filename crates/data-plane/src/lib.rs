//! The data plane. Read the modules in this order; each depends only on those above it.

mod http2;

mod trace;

mod record;

mod grpc_pool;
mod grpc_session;

mod listener;

mod parking;

mod admission;

mod certificates;

mod dial;

mod upstream;

mod fetch;

mod guard;

mod cards;

mod filters;

mod sse;

mod services;

mod grpc_agent;

mod response;

mod complete;

mod policy;

mod body;

mod upstream_request;

mod reach;

mod wake;

mod idempotency;

mod deferral;

mod inbox;

mod plan;

mod grpc_calls;

mod card_route;

mod rest;

mod dispatch;

mod canceller;

mod prober;

mod explain;

mod control_plane;

mod sidecar;

mod router;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::router::Router;
use self::services::Context;
use self::sidecar::SidecarProxy;
use self::upstream::Relay;
use assembly::gateway::Gateway;
use assembly::sidecar::Sidecar;
use kernel::telemetry::traces::Traces;

pub use self::canceller::Canceller;
pub use self::dispatch::Dispatcher;
pub use self::explain::Explainer;
pub use self::listener::{Connections, Service};
pub use self::prober::Prober;
pub use self::router::{OWN_SEGMENTS, REST_ROUTES, ROUTES as A2A_ROUTES};

// Pure, and for `fuzz/` only.
pub use self::admission::check_head;

/// The data plane of a gateway: its public listener, and what sends calls of its own.
pub struct DataPlane(Arc<Context>);

impl DataPlane {
    /// Assembles the data plane of `gateway`. Requests on other than A2A routes go to `control`.
    pub fn new(gateway: Arc<Gateway>, control: axum::Router, traces: Traces) -> Self {
        let (config, metrics) = (gateway.config.clone(), Arc::clone(&gateway.metrics));
        let streams = Some(Arc::clone(&gateway.delivery.streams));
        let relay = Relay::new(config, metrics, Arc::clone(&gateway.drain), streams, traces);
        let relay = Arc::new(relay.with_gateway(&gateway));
        let context = Arc::new(Context::new(gateway, control, relay));
        let reader = Arc::downgrade(&context);
        let registrations = &context.gateway.directory.registrations;
        registrations.set_card_reader(move |id| {
            if let Some(context) = reader.upgrade() {
                context.cards.read_ahead(id);
            }
        });
        Self(context)
    }

    /// Returns the application of the public listener.
    pub fn connections(&self) -> Connections<impl Service + use<>> {
        listen(&self.0.relay, Router::new(Arc::clone(&self.0)))
    }

    /// Returns the dispatcher of deferred calls and delegations.
    pub fn dispatcher(&self) -> Dispatcher {
        Dispatcher::new(Arc::clone(&self.0))
    }

    /// Returns the prober of agents.
    pub fn prober(&self) -> Prober {
        Prober {
            context: Arc::clone(&self.0),
        }
    }

    /// Returns the canceller of tasks.
    pub fn canceller(&self) -> Canceller {
        Canceller {
            context: Arc::clone(&self.0),
        }
    }

    /// Returns the service behind `GET /explain`.
    pub fn explainer(&self) -> Explainer {
        Explainer::new(Arc::clone(&self.0))
    }
}

/// Returns the application of the listener of a sidecar, in front of its agent.
pub fn sidecar_connections(
    sidecar: &Arc<Sidecar>,
    traces: Traces,
) -> Connections<impl Service + use<>> {
    let (config, metrics) = (sidecar.config.clone(), Arc::clone(&sidecar.metrics));
    // No stream store: the gateway, where the caller connects, numbers the events.
    let relay = Relay::new(config, metrics, Arc::clone(&sidecar.drain), None, traces);
    let relay = Arc::new(relay);
    let proxy = SidecarProxy::new(Arc::clone(sidecar), Arc::clone(&relay));
    listen(&relay, proxy)
}

fn listen<S: Service>(relay: &Relay, service: S) -> Connections<S> {
    let (metrics, drain) = (Arc::clone(&relay.metrics), Arc::clone(&relay.drain));
    Connections::new(relay.config.clone(), metrics, drain, service)
}
