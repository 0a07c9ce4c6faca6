//! The sidecar process: one listener in front of an agent, and the fetcher of keys.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use pingora::server::{RunArgs, ShutdownWatch};
use pingora::services::background::{BackgroundService, background_service};

use super::lasting::lasting;
use super::signals::{Caught, Signals};
use super::sockets::Sockets;
use super::{AdminListener, ServeError, pingora, threads};
use crate::admin;
use crate::config::Live;
use crate::ids::ReplicaId;
use crate::metrics::Metrics;
use crate::proxy::{Connections, Listener};
use crate::sidecar::{Settings, Sidecar};
use crate::telemetry::traces::Traces;

/// Serves until SIGTERM or SIGINT. `admin` is the address of the admin listener, if there is one.
///
/// # Errors
/// Before anything is served: an address is in use, or the exporter of spans cannot be started.
pub fn run(live: Live, settings: Settings, admin: Option<SocketAddr>) -> Result<(), ServeError> {
    let config = live.hold();
    let caught = Caught::new(false).map_err(ServeError::Signals)?;
    let sockets = Sockets::new();
    let front_socket = sockets.socket("server.listen", config.server.listen)?;
    let admin_socket = admin.map(|admin| sockets.socket("admin.listen", admin));
    let admin_socket = admin_socket.transpose()?;
    let metrics = Arc::new(Metrics::of_sidecar());
    let traces = Traces::start(&live, &metrics, &ReplicaId::random())?;
    let sidecar = Sidecar::new(live, metrics, settings);
    let mut server = pingora();

    let answers = Listener::of_sidecar(&sidecar, traces.clone());
    threads::add_to(
        &mut server,
        "sidecar",
        config.server.threads(),
        Connections::new(answers),
        front_socket,
        Arc::clone(&sockets),
    );
    server.add_service(background_service("keys", Fetches(Arc::clone(&sidecar))));
    if let Some(socket) = admin_socket {
        let listener = AdminListener {
            socket: Mutex::new(Some(socket)),
            given_up: sockets.given_up(),
            router: admin::sidecar_router(Arc::clone(&sidecar)),
            metrics: Arc::clone(&sidecar.metrics),
        };
        server.add_service(background_service("admin", listener));
    }

    let (address, threads) = (config.server.listen, config.server.threads());
    let workspace = sidecar.settings.workspace.as_str();
    tracing::info!(%address, workspace.id = workspace, threads, "sidecar is starting");
    server.run(RunArgs {
        shutdown_signal: Box::new(Signals {
            caught,
            drain: Arc::clone(&sidecar.drain),
            config: sidecar.config.clone(),
            gateway: None,
            sockets,
            traces,
        }),
    });
    tracing::info!("sidecar has ended");
    Ok(())
}

/// The task that keeps the gateway's keys fresh.
struct Fetches(Arc<Sidecar>);

#[async_trait]
impl BackgroundService for Fetches {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        tokio::select! {
            () = lasting("keys", self.0.run()) => {}
            _ = shutdown.changed() => {}
        }
    }
}
