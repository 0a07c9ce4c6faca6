//! Signals: SIGTERM and SIGINT for a graceful shutdown, a second one for a fast one, SIGUSR2 for a
//! hand-over to a new process.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::sockets::{Sockets, notify_supervisor};
use assembly::gateway::Gateway;
use kernel::config::Live;
use kernel::drain::Drain;
use kernel::telemetry::traces::Traces;

/// Time for remaining exchanges to send their last event or error after the drain, or after a second signal.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Time for rejections in progress, which are recorded when their callers have them.
const LAST_REFUSALS: Duration = Duration::from_secs(2);

/// Time to export the last spans.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Time for the threads to end. A thread that reads a file from a mount that hangs would keep the process
/// alive forever.
const THREADS_END: Duration = Duration::from_secs(5);

/// The signal handler. SIGTERM and SIGINT drain; a second signal ends the process at once. SIGUSR2 starts a
/// successor.
pub(super) struct Signals {
    pub(super) drain: Arc<Drain>,
    pub(super) config: Live,
    /// The gateway, which has state to flush; `None` in a sidecar.
    pub(super) gateway: Option<Arc<Gateway>>,
    /// The listening sockets, which the successor takes over.
    pub(super) sockets: Arc<Sockets>,
    /// The tracer, which has spans to send.
    pub(super) traces: Traces,
}

/// Signal handlers. They are installed when this is created, before the listeners open.
pub(super) struct SignalHandlers([Signal; 3]);

impl SignalHandlers {
    /// Installs the handlers. With `reloads` also that of SIGHUP, whose default would end the process until
    /// the reloader waits for it.
    ///
    /// # Errors
    /// When the system cannot install them.
    pub(super) fn new(reloads: bool) -> io::Result<Self> {
        // A handler is installed for the whole process; a later runtime receives the signals.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let _entered = runtime.enter();
        let kinds = [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::user_defined2(),
        ];
        let [terminate, interrupt, follow] = kinds.map(signal);
        if reloads {
            signal(SignalKind::hangup()).map(drop)?;
        }
        Ok(Self([terminate?, interrupt?, follow?]))
    }
}

/// A wait for the end of the server, as Pingora asks for it.
pub(super) struct ShutdownWait(Mutex<Option<BoxFuture<'static, ShutdownSignal>>>);

impl ShutdownWait {
    pub(super) fn new_boxed(
        wait: impl Future<Output = ShutdownSignal> + Send + 'static,
    ) -> Box<dyn ShutdownSignalWatch> {
        Box::new(Self(Mutex::new(Some(wait.boxed()))))
    }
}

#[async_trait]
impl ShutdownSignalWatch for ShutdownWait {
    async fn recv(&self) -> ShutdownSignal {
        // Pingora calls this once.
        let wait = self.0.lock().take();
        match wait {
            Some(wait) => wait.await,
            None => std::future::pending().await,
        }
    }
}

/// The way in which a server beside the other work of a process is to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ShutdownMode {
    /// Not yet.
    #[default]
    No,
    /// As after SIGTERM.
    InOrder,
    /// As after a second SIGTERM.
    Hurried,
    /// As after SIGKILL.
    AtOnce,
}

/// Resolves when the server is to end in this mode, or faster.
async fn wait_for_mode(mode: &mut watch::Receiver<ShutdownMode>, least: ShutdownMode) {
    // An error means that the other part is gone.
    let _ = mode.wait_for(|mode| least <= *mode).await;
}

impl Signals {
    /// Waits for a signal that ends the process, and for the end of the calls.
    pub(super) async fn shut_down(self, handlers: SignalHandlers) -> ShutdownSignal {
        let SignalHandlers([mut terminate, mut interrupt, mut follow]) = handlers;
        let followed = loop {
            tokio::select! {
                _ = terminate.recv() => break false,
                _ = interrupt.recv() => break false,
                _ = follow.recv() => if self.start_successor().await { break true },
            }
        };
        let hurry = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        self.finish_exchanges(followed, hurry).await;
        spawn_exit_watchdog();
        ShutdownSignal::FastShutdown
    }

    /// Waits for the end of a sidecar that is a part of another process. That process has the signals, and waits for
    /// the calls.
    pub(super) async fn shut_down_guard(
        self,
        mut mode: watch::Receiver<ShutdownMode>,
    ) -> ShutdownSignal {
        wait_for_mode(&mut mode, ShutdownMode::InOrder).await;
        cut_exchanges(&self.drain).await;
        self.traces.stop(LAST_SPANS).await;
        ShutdownSignal::FastShutdown
    }

    /// Waits for the end of a gateway that is a part of another process.
    pub(super) async fn shut_down_in_process(
        self,
        mut mode: watch::Receiver<ShutdownMode>,
    ) -> ShutdownSignal {
        wait_for_mode(&mut mode, ShutdownMode::InOrder).await;
        let mut killed = mode.clone();
        tokio::select! {
            biased;
            () = wait_for_mode(&mut killed, ShutdownMode::AtOnce) => {}
            () = self.finish_exchanges(false, wait_for_mode(&mut mode, ShutdownMode::Hurried)) => {}
        }
        if let Some(gateway) = &self.gateway {
            gateway.dismantle().await;
        }
        ShutdownSignal::FastShutdown
    }

    /// Drains, lets the remaining exchanges end, and writes what is not written, less of it once `hurry` resolves.
    async fn finish_exchanges(&self, followed: bool, hurry: impl Future<Output = ()>) {
        let in_order = async {
            drain_exchanges(&self.drain, &self.config, followed).await;
            cut_exchanges(&self.drain).await;
            if let Some(gateway) = &self.gateway {
                gateway.flush().await;
            }
            self.traces.stop(LAST_SPANS).await;
        };
        tokio::select! {
            () = in_order => {}
            () = hurry => cut_exchanges(&self.drain).await,
        }
        // Also after a second signal: a chain without a stop record looks as if its end had been removed.
        if let Some(gateway) = &self.gateway {
            gateway.close();
            // Closed before the audit is: a later response would have no record.
            self.drain.close();
            wait_until_idle(LAST_REFUSALS, || self.drain.work_count() == 0).await;
            tokio::join!(gateway.audit.flush(), gateway.console.send_goodbye());
        }
    }

    /// Starts a successor if possible. Returns true if it serves.
    async fn start_successor(&self) -> bool {
        let alone = self
            .gateway
            .as_ref()
            .and_then(|gateway| gateway.why_alone());
        if let Some(why) = alone {
            tracing::warn!(
                "No new process can take over (SIGUSR2): {why}; it would serve beside this one until all calls are over. \
                 End this one with SIGTERM and start it again, or give both PostgreSQL and Redis"
            );
            return false;
        }
        tracing::info!("starting a new process to take over (SIGUSR2)");
        match self.sockets.hand_over().await {
            Ok(()) => {
                tracing::info!("The new process serves");
                true
            }
            Err(error) => {
                tracing::error!(%error, "The new process did not come to serve; this one goes on. If it was started, its log says why");
                false
            }
        }
    }
}

/// Exits after [`THREADS_END`] if the process still runs. Everything is flushed by then.
fn spawn_exit_watchdog() {
    let watch = std::thread::Builder::new().name("end".into());
    let watched = watch.spawn(|| {
        std::thread::sleep(THREADS_END);
        tracing::warn!("a thread did not end in time; exiting");
        std::process::exit(0);
    });
    if let Err(error) = watched {
        tracing::warn!(%error, "shutdown watchdog could not be started");
    }
}

/// Waits until no exchange is in progress, for at most `server.drain`. With a successor it also waits until
/// all connections are closed.
async fn drain_exchanges(drain: &Drain, config: &Live, followed: bool) {
    if followed {
        drain.begin_hand_over();
    } else {
        notify_supervisor(vec![sd_notify::NotifyState::Stopping]);
        drain.begin();
    }
    let connections = drain.connection_count();
    tracing::info!(running = drain.work_count(), connections, "Draining");
    let limit = config.get().server.drain;
    wait_until_idle(limit, || {
        drain.work_count() == 0 && (!followed || drain.connection_count() == 0)
    })
    .await;
}

/// Ends the remaining exchanges: streams with their last event, others with an error.
async fn cut_exchanges(drain: &Drain) {
    drain.begin();
    drain.cut_all();
    wait_until_idle(LAST_WORDS, || drain.work_count() == 0).await;
}

async fn wait_until_idle(limit: Duration, idle: impl Fn() -> bool) {
    let deadline = Instant::now() + limit;
    while !idle() && Instant::now() < deadline {
        sleep(Duration::from_millis(20)).await;
    }
}
