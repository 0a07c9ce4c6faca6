//! The gateway process: its Pingora services, readiness and shutdown. A sidecar's process is in
//! [`sidecar`].

mod accept_failures;
mod admin;
mod background;
pub mod in_process;
mod reload;
pub mod sidecar;
mod signals;
mod sockets;
mod threads;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server, ShutdownSignal};
use pingora::services::{ServiceHandle, ServiceReadyNotifier};
use secrecy::{ExposeSecret, SecretString};

use self::admin::admin_service;
use self::background::Background;
use self::signals::{ShutdownWait, SignalHandlers, Signals};
use self::sockets::Sockets;
use assembly::gateway::{Gateway, OpenError};
use data_plane::DataPlane;
use kernel::config::Live;
use kernel::config::load::Layers;
use kernel::metrics::Metrics;
use kernel::telemetry::traces::{Traces, TracesError};

/// The reason why the gateway cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is in use or not of this machine.
    #[error(
        "cannot listen on {address} ({key}): {error}; {}",
        listen_advice(key, error)
    )]
    Listen {
        /// The configuration key.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// The error of the system. It is part of the text, so it is not the source.
        error: std::io::Error,
    },
    /// Another gateway uses the SQLite file.
    #[error(
        "cannot use stores.sql alone: another gateway serves from this SQLite file; give each its own, \
         or let several share PostgreSQL and Redis"
    )]
    Claimed,
    /// The previous process has stores that cannot be shared with this one.
    #[error(
        "cannot go on for the process before, which keeps its stores until its calls are over: {0}. End that one with \
         SIGTERM and start this one after it"
    )]
    Alone(&'static str),
    /// The lock of the SQLite file failed for another reason.
    #[error("cannot lock the SQLite file of stores.sql")]
    Unclaimed(#[source] std::io::Error),
    /// The signal handlers cannot be installed.
    #[error("cannot listen for signals")]
    Signals(#[source] std::io::Error),
    /// The system has no thread for the sidecar.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// The exporter of spans cannot be started.
    #[error("cannot trace: {0}")]
    Traces(#[from] TracesError),
    /// The gateway cannot be assembled.
    #[error("cannot start: {0}")]
    Open(#[from] OpenError),
}

/// Serves until SIGTERM or SIGINT. With `layers`, SIGHUP and changes of their files reload the
/// configuration. Without, SIGHUP ends the process.
///
/// # Errors
/// Before anything is served: an address is in use, or the URL of a store, a key or a certificate is
/// invalid.
pub fn run(live: Live, layers: Option<Layers>) -> Result<(), ServeError> {
    let reloads = layers.is_some();
    let prepared = PreparedServer::new(live, layers)?;
    let handlers = SignalHandlers::new(reloads).map_err(ServeError::Signals)?;
    prepared.serve(|signals| signals.shut_down(handlers));
    Ok(())
}

/// A gateway with its addresses, that does not serve yet.
struct PreparedServer {
    server: Server,
    signals: Signals,
}

impl PreparedServer {
    fn new(live: Live, layers: Option<Layers>) -> Result<Self, ServeError> {
        let config = live.snapshot();
        let metrics = Arc::new(Metrics::new());
        let gateway = Gateway::open(live, metrics)?;
        let sockets = Sockets::new();
        claim_stores(&gateway, &sockets)?;
        let traces = Traces::start(&gateway.config, &gateway.metrics, &gateway.replica)?;
        let public_socket = sockets.reserve_socket("server.listen", config.server.listen)?;
        let admin_socket = sockets.reserve_socket("admin.listen", config.admin.listen)?;
        let mut server = pingora_server();

        let control = control_plane::router(Arc::clone(&gateway));
        let plane = DataPlane::new(Arc::clone(&gateway), control.clone(), traces.clone());
        let working = Arc::clone(&gateway);
        let rooms = Background::notifying_service("rooms", |ready| run_rooms(working, ready));
        let router = control_plane::admin::router(
            Arc::clone(&gateway),
            Some(plane.explainer().into_fn()),
            &control,
        );
        let metrics = Arc::clone(&gateway.metrics);
        let admin = admin_service(admin_socket, sockets.watch_handover(), router, metrics);
        let rooms = server.add_service(rooms);
        let audit = Arc::clone(&gateway.audit);
        server.add_service(Background::new_service("audit", async move {
            audit.run().await
        }));
        let admin = server.add_service(admin);
        let public = threads::add_threads(
            &mut server,
            "public",
            config.server.threads(),
            plane.connections(),
            public_socket,
            Arc::clone(&sockets),
        );
        public.add_dependency(&rooms);
        // Every process binds in the same order, so of two that start at once one gets both addresses.
        public.add_dependency(&admin);
        if let Some(layers) = layers {
            let gateway = Arc::clone(&gateway);
            let reloads = async move { reload::run(&gateway, &layers).await };
            server.add_service(Background::new_service("reload", reloads));
        }
        add_senders(&mut server, &plane, &public);
        let signals = Signals {
            drain: Arc::clone(&gateway.drain),
            config: gateway.config.clone(),
            gateway: Some(gateway),
            sockets,
            traces,
        };
        Ok(Self { server, signals })
    }

    /// Serves until the signal.
    fn serve<F>(self, wait: impl FnOnce(Signals) -> F)
    where
        F: Future<Output = ShutdownSignal> + Send + 'static,
    {
        let config = self.signals.config.snapshot();
        let (own, pid) = (&config.server, std::process::id());
        let canvas = config
            .canvas
            .enabled
            .then(|| format!("{}/canvas/", config.public_url()));
        tracing::info!(
            address = %own.listen, console = %format_args!("http://{}/", config.admin.listen), canvas,
            threads = own.threads(), pid, "a2a-gateway is starting"
        );
        let shutdown_signal = ShutdownWait::new_boxed(wait(self.signals));
        self.server.run(RunArgs { shutdown_signal });
        tracing::info!(pid, "a2a-gateway has ended");
    }
}

/// Adds what sends requests of its own. A process that exits because its address is in use sends nothing.
fn add_senders(server: &mut Server, plane: &DataPlane, public: &ServiceHandle) {
    let dispatcher = plane.dispatcher();
    let dispatch = Background::new_service("dispatch", async move { dispatcher.run().await });
    server.add_service(dispatch).add_dependency(public);
    let prober = plane.prober();
    let probes = Background::new_service("probes", async move { prober.run().await });
    server.add_service(probes).add_dependency(public);
    let canceller = plane.canceller();
    let cancels = Background::new_service("cancels", async move { canceller.run().await });
    server.add_service(cancels).add_dependency(public);
}

/// Claims stores that only one process can use.
fn claim_stores(gateway: &Gateway, sockets: &Sockets) -> Result<(), ServeError> {
    // A previous process with such stores refuses to start a successor, so the previous process had other stores.
    if let Some(why) = gateway.why_alone().filter(|_| sockets.is_successor()) {
        return Err(ServeError::Alone(why));
    }
    gateway.db.claim().map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => ServeError::Claimed,
        _ => ServeError::Unclaimed(error),
    })
}

/// Returns the Pingora server.
fn pingora_server() -> Server {
    let conf = ServerConf {
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(0),
        // A service has one thread, with the runtime for one: that for several costs a call a third more.
        work_stealing: false,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    server
}

/// Returns the advice for an address that cannot be bound.
fn listen_advice(key: &str, error: &std::io::Error) -> String {
    let guess = match error.kind() {
        std::io::ErrorKind::AddrInUse => "is another gateway running? ",
        std::io::ErrorKind::AddrNotAvailable => "this machine has no such address; ",
        std::io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege; ",
        _ => "",
    };
    format!("{guess}`--set {key}=ADDRESS:PORT` chooses another")
}

/// Runs the background work of the gateway: migrations, invalidations, sweeps, flushes. Notifies `ready` when the
/// listener may open: even if a store is down, since requests that need the store are rejected.
async fn run_rooms(gateway: Arc<Gateway>, ready: ServiceReadyNotifier) {
    let mut prepared = std::pin::pin!(gateway.prepare());
    let wait = gateway.config().stores.timeout;
    let first = tokio::time::timeout(wait, &mut prepared).await;
    ready.notify_ready();
    let admin_token = match first {
        Ok(admin_token) => admin_token,
        Err(_) => prepared.await,
    };
    if let Some(token) = admin_token {
        print_admin_token(&token);
    }
    gateway.look_for_default_workspace().await;
    gateway.run().await;
}

/// Prints the first admin token to standard error, once. It is not logged, since logs are kept.
fn print_admin_token(token: &SecretString) {
    let text = token.expose_secret();
    let _ = writeln!(
        std::io::stderr(),
        "\nThis gateway had no admin token, so it made one. It is shown once and stored as a hash:\n\n  \
         export A2A_GATEWAY_ADMIN_TOKEN={text}\n\n\
         Keep it, and go on with it: `POST /workspaces` makes the first workspace (docs/guide/quickstart.md has the steps).\n"
    );
}
