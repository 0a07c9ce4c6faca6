//! The process: Pingora services assembled, readiness, drain. The gateway here, a sidecar in [`sidecar`].

mod lasting;
pub mod sidecar;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::listeners::ListenerConfig;
use pingora::protocols::l4::stream::L4BufferSettings;
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server, ShutdownSignal, ShutdownSignalWatch, ShutdownWatch};
use pingora::services::background::{BackgroundService, background_service};
use pingora::services::listening::Service;
use secrecy::{ExposeSecret, SecretString};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use self::lasting::lasting;
use crate::audit::Audit;
use crate::config::load::Layers;
use crate::config::{Config, Live};
use crate::drain::Drain;
use crate::gateway::{Gateway, OpenError};
use crate::metrics::Metrics;
use crate::proxy::{Connections, Dispatcher, Explainer, Listener};
use crate::telemetry::traces::{Traces, TracesError};
use crate::{admin, control, reload};

/// Read buffer of a caller's connection. Pingora's 64 KiB would be most of an idle connection.
const READ_BUFFER: usize = 8 * 1024;

/// Write buffer of a caller's connection: one Ethernet segment, Pingora's own choice.
const WRITE_BUFFER: usize = 1460;

/// How long what is left gets to say so once the drain is over.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The same after a second signal.
const LAST_WORDS_HURRIED: Duration = Duration::from_millis(500);

/// How long the last spans may take.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Why the gateway cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An address is taken or not ours.
    #[error("cannot listen on {address} ({key}): {error}; {}", advice(key, error))]
    Listen {
        /// The configuration key.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system said; in the text already, and so not the source.
        error: std::io::Error,
    },
    /// `forward.headers` names a field that may not be forwarded.
    #[error("forward.headers: {0}")]
    ForwardHeaders(String),
    /// The SQLite file is another gateway's.
    #[error(
        "cannot use stores.sql alone ({0}): another gateway serves from this SQLite file; give each its own, \
         or let several share PostgreSQL and Redis"
    )]
    Claimed(#[source] std::io::Error),
    /// Spans cannot be sent.
    #[error("cannot trace: {0}")]
    Traces(#[from] TracesError),
    /// The rooms cannot be assembled.
    #[error("cannot start: {0}")]
    Open(#[from] OpenError),
}

/// Serves until SIGTERM or SIGINT. With `layers`, SIGHUP and changes of their files reload; without, SIGHUP ends the process.
///
/// # Errors
/// Before anything is served: an address is taken, a store's address, a key or a certificate cannot
/// be used.
pub fn run(live: Live, layers: Option<Layers>) -> Result<(), ServeError> {
    let config = live.hold();
    let listener = listener(&config);
    let metrics = Arc::new(Metrics::new());
    let gateway = Gateway::open(live, metrics)?;
    let traces = Traces::start(&gateway.config, &gateway.metrics, &gateway.replica)?;
    gateway.db.claim().map_err(ServeError::Claimed)?;
    probe("server.listen", config.server.listen)?;
    probe("admin.listen", config.admin.listen)?;
    let (mut server, threads) = pingora(&config);

    let control = control::router(Arc::clone(&gateway));
    let answers = Listener::of_gateway(Arc::clone(&gateway), control, traces.clone())
        .map_err(ServeError::ForwardHeaders)?;
    let (dispatcher, explainer) = (answers.dispatcher(), answers.explainer());
    let mut public = Service::new("public".to_owned(), Connections::new(answers));
    public.add_listener(listener);
    public.threads = Some(threads);

    let mut rooms = background_service("rooms", Rooms(Arc::clone(&gateway)));
    rooms.threads = Some(1);
    let admin = background_service(
        "admin",
        AdminListener {
            address: config.admin.listen,
            router: admin::router(Arc::clone(&gateway), explainer.map(Explainer::into_fn)),
        },
    );
    let rooms = server.add_service(rooms);
    let mut audit = background_service("audit", Audited(Arc::clone(&gateway.audit)));
    audit.threads = Some(1);
    server.add_service(audit);
    server.add_service(admin);
    if let Some(layers) = layers {
        let reloads = Reloads(Arc::clone(&gateway), layers);
        let mut reloads = background_service("reload", reloads);
        reloads.threads = Some(1);
        server.add_service(reloads);
    }
    if let Some(dispatcher) = dispatcher {
        let mut dispatch = background_service("dispatch", Dispatches(dispatcher));
        dispatch.threads = Some(1);
        server.add_service(dispatch).add_dependency(&rooms);
    }
    server.add_service(public).add_dependency(&rooms);

    let address = config.server.listen;
    tracing::info!(%address, admin = %config.admin.listen, threads, "a2a-gateway is starting");
    server.run(RunArgs {
        shutdown_signal: Box::new(Signals {
            drain: Arc::clone(&gateway.drain),
            config: gateway.config.clone(),
            gateway: Some(gateway),
            traces,
        }),
    });
    tracing::info!("a2a-gateway has ended");
    Ok(())
}

/// The process, and its worker threads.
fn pingora(config: &Config) -> (Server, usize) {
    let threads = match config.server.threads {
        0 => std::thread::available_parallelism().map_or(1, NonZero::get),
        threads => threads,
    };
    let conf = ServerConf {
        threads,
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(0),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    (server, threads)
}

/// Pingora panics in a service when it cannot bind; an operator deserves a sentence.
fn probe(key: &'static str, address: SocketAddr) -> Result<(), ServeError> {
    TcpListener::bind(address)
        .map(drop)
        .map_err(|error| ServeError::Listen {
            key,
            address,
            error,
        })
}

/// What to do about an address that cannot be listened on.
fn advice(key: &str, error: &std::io::Error) -> String {
    let guess = match error.kind() {
        std::io::ErrorKind::AddrInUse => "is another gateway running? ",
        std::io::ErrorKind::AddrNotAvailable => "this machine has no such address; ",
        std::io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege; ",
        _ => "",
    };
    format!("{guess}`--set {key}=ADDRESS:PORT` chooses another")
}

/// Plain TCP: [`Connections`] ends TLS.
fn listener(config: &Config) -> ListenerConfig {
    ListenerConfig::tcp(config.server.listen.to_string())
        .l4_buffer(L4BufferSettings::new(READ_BUFFER, WRITE_BUFFER))
}

/// What the rooms do besides answering: migrate, follow invalidations, sweep, flush.
struct Rooms(Arc<Gateway>);

#[async_trait]
impl BackgroundService for Rooms {
    async fn start_with_ready_notifier(
        &self,
        mut shutdown: ShutdownWatch,
        ready: pingora::services::ServiceReadyNotifier,
    ) {
        // A store that is down does not keep the listener from opening: what needs it is refused.
        let mut prepared = std::pin::pin!(self.0.prepare());
        let wait = self.0.config().stores.timeout;
        let first = tokio::time::timeout(wait, &mut prepared).await;
        ready.notify_ready();
        let work = async {
            let admin_token = match first {
                Ok(admin_token) => admin_token,
                Err(_) => prepared.await,
            };
            if let Some(token) = admin_token {
                announce(&token);
            }
            self.0.look_for_default_workspace().await;
            self.0.run().await;
        };
        tokio::select! {
            () = lasting("rooms", work) => {}
            _ = shutdown.changed() => {}
        }
    }
}

/// Shows the first admin token, once. Not through the log: logs are kept.
fn announce(token: &SecretString) {
    let text = token.expose_secret();
    let _ = writeln!(
        std::io::stderr(),
        "\nThis gateway had no admin token, so it made one. It is shown once and stored as a hash:\n\n  \
         export A2A_GATEWAY_ADMIN_TOKEN={text}\n\n\
         Keep it, and go on with it: `POST /workspaces` makes the first workspace (README.md has the steps).\n"
    );
}

/// What happened, written down. On a thread of its own, which no exchange waits for.
struct Audited(Arc<Audit>);

#[async_trait]
impl BackgroundService for Audited {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        tokio::select! {
            () = lasting("audit", self.0.run()) => {}
            _ = shutdown.changed() => {}
        }
    }
}

/// Calls that are made later.
struct Dispatches(Dispatcher);

#[async_trait]
impl BackgroundService for Dispatches {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        tokio::select! {
            () = lasting("dispatch", self.0.run()) => {}
            _ = shutdown.changed() => {}
        }
    }
}

/// `/metrics`, health, version.
struct AdminListener {
    address: SocketAddr,
    router: axum::Router,
}

#[async_trait]
impl BackgroundService for AdminListener {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let address = self.address;
        let listener = match tokio::net::TcpListener::bind(address).await {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%address, %error, "The admin listener cannot be opened");
                return;
            }
        };
        // Whose failures count together is known by the address of the connection.
        let router = self.router.clone();
        let router = router.into_make_service_with_connect_info::<SocketAddr>();
        let served = axum::serve(listener, router).with_graceful_shutdown(async move {
            let _ = shutdown.changed().await;
        });
        if let Err(error) = served.await {
            tracing::error!(%error, "The admin listener ended");
        }
    }
}

/// The configuration, loaded again. On a thread of its own: files may be slow.
struct Reloads(Arc<Gateway>, Layers);

#[async_trait]
impl BackgroundService for Reloads {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        tokio::select! {
            () = lasting("reload", reload::run(&self.0, &self.1)) => {}
            _ = shutdown.changed() => {}
        }
    }
}

/// SIGTERM and SIGINT drain; a second signal ends at once.
struct Signals {
    drain: Arc<Drain>,
    config: Live,
    /// What has to write something down before the end.
    gateway: Option<Arc<Gateway>>,
    /// What has to send the last spans.
    traces: Traces,
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    async fn recv(&self) -> ShutdownSignal {
        let (Ok(mut terminate), Ok(mut interrupt)) = (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
        ) else {
            tracing::error!("cannot listen for signals; end the process with SIGKILL");
            return std::future::pending().await;
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tokio::select! {
            () = drain(&self.drain, &self.config) => {
                last_words(&self.drain, LAST_WORDS).await;
                if let Some(gateway) = &self.gateway {
                    gateway.flush().await;
                }
                self.traces.stop(LAST_SPANS).await;
            }
            _ = terminate.recv() => last_words(&self.drain, LAST_WORDS_HURRIED).await,
            _ = interrupt.recv() => last_words(&self.drain, LAST_WORDS_HURRIED).await,
        }
        // Also in a hurry: a chain without its end looks like one whose end was taken away.
        if let Some(gateway) = &self.gateway {
            gateway.audit.flush().await;
        }
        ShutdownSignal::FastShutdown
    }
}

/// Waits until nothing is in progress, at most `server.drain`.
async fn drain(drain: &Drain, config: &Live) {
    drain.begin();
    tracing::info!(running = drain.running(), "Draining");
    let limit = config.get().server.drain;
    idle_within(drain, limit).await;
}

/// Ends what is left: streams with their last event, the others with an error.
async fn last_words(drain: &Drain, limit: Duration) {
    drain.cut();
    idle_within(drain, limit).await;
}

async fn idle_within(drain: &Drain, limit: Duration) {
    let deadline = Instant::now() + limit;
    while drain.running() > 0 && Instant::now() < deadline {
        sleep(Duration::from_millis(20)).await;
    }
}
