//! The sidecar process: one listener in front of an agent, and the fetcher of keys.

use std::net::SocketAddr;
use std::sync::Arc;

use pingora::server::{RunArgs, Server, ShutdownSignal};

use super::background::Background;
use super::in_process::ServerHandle;
use super::signals::{ShutdownWait, SignalHandlers, Signals};
use super::sockets::Sockets;
use super::{ServeError, admin_service, pingora_server, threads};
use assembly::sidecar::{Settings, Sidecar};
use control_plane::admin;
use data_plane::sidecar_connections;
use kernel::config::Live;
use kernel::ids::{ReplicaId, WorkspaceId};
use kernel::metrics::Metrics;
use kernel::telemetry::traces::Traces;

/// Serves until SIGTERM or SIGINT. `admin` is the address of the admin listener, if there is one.
///
/// # Errors
/// Before anything is served: an address is in use, or the exporter of spans cannot be started.
pub fn run(live: Live, settings: Settings, admin: Option<SocketAddr>) -> Result<(), ServeError> {
    let handlers = SignalHandlers::new(false).map_err(ServeError::Signals)?;
    let prepared = PreparedSidecar::new(live, settings, admin)?;
    prepared.serve(|signals| signals.shut_down(handlers));
    Ok(())
}

/// Starts a sidecar beside the other work of the process. `admin` is as for [`run`].
///
/// # Errors
/// As [`run`].
pub fn start(
    live: Live,
    settings: Settings,
    admin: Option<SocketAddr>,
) -> Result<ServerHandle, ServeError> {
    let prepared = PreparedSidecar::new(live, settings, admin)?;
    let drain = Arc::clone(&prepared.signals.drain);
    ServerHandle::start("sidecar", drain, |mode| {
        prepared.serve(|signals| signals.shut_down_guard(mode));
    })
}

/// A sidecar with its addresses, that does not serve yet.
struct PreparedSidecar {
    workspace: WorkspaceId,
    server: Server,
    signals: Signals,
}

impl PreparedSidecar {
    fn new(live: Live, settings: Settings, admin: Option<SocketAddr>) -> Result<Self, ServeError> {
        let config = live.snapshot();
        let sockets = Sockets::new();
        let front_socket = sockets.reserve_socket("server.listen", config.server.listen)?;
        let admin_socket = admin.map(|admin| sockets.reserve_socket("admin.listen", admin));
        let admin_socket = admin_socket.transpose()?;
        let metrics = Arc::new(Metrics::for_sidecar());
        let traces = Traces::start(&live, &metrics, &ReplicaId::random())?;
        let sidecar = Sidecar::new(live, metrics, settings);
        let mut server = pingora_server();

        threads::add_threads(
            &mut server,
            "sidecar",
            config.server.threads(),
            sidecar_connections(&sidecar, traces.clone()),
            front_socket,
            Arc::clone(&sockets),
        );
        let fetching = Arc::clone(&sidecar);
        server.add_service(Background::new_service("keys", async move {
            fetching.run().await
        }));
        if let Some(socket) = admin_socket {
            let metrics = Arc::clone(&sidecar.metrics);
            let router = admin::sidecar_router(Arc::clone(&sidecar));
            server.add_service(admin_service(
                socket,
                sockets.watch_handover(),
                router,
                metrics,
            ));
        }
        let signals = Signals {
            drain: Arc::clone(&sidecar.drain),
            config: sidecar.config.clone(),
            gateway: None,
            sockets,
            traces,
        };
        Ok(Self {
            workspace: sidecar.settings.workspace.clone(),
            server,
            signals,
        })
    }

    /// Serves until the signal.
    fn serve<F>(self, wait: impl FnOnce(Signals) -> F)
    where
        F: Future<Output = ShutdownSignal> + Send + 'static,
    {
        let config = self.signals.config.snapshot();
        let (address, threads) = (config.server.listen, config.server.threads());
        let workspace = self.workspace.as_str();
        tracing::info!(%address, workspace.id = workspace, threads, "sidecar is starting");
        let shutdown_signal = ShutdownWait::new_boxed(wait(self.signals));
        self.server.run(RunArgs { shutdown_signal });
        tracing::info!("sidecar has ended");
    }
}
