//! What the process is told from outside: to end in order, at once, or when another one goes on in its place.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep};

use super::sockets::{Sockets, tell_supervisor};
use crate::config::Live;
use crate::drain::Drain;
use crate::gateway::Gateway;
use crate::telemetry::traces::Traces;

/// How long what is left gets to say so once the drain is over.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The same after a second signal.
const LAST_WORDS_HURRIED: Duration = Duration::from_millis(500);

/// How long what was just being refused may take.
const LAST_REFUSALS: Duration = Duration::from_millis(300);

/// How long the last spans may take.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// How long the threads may take to end when nothing is left to do. One that reads a file from a mount that hangs
/// would keep the process for ever.
const THREADS_END: Duration = Duration::from_secs(5);

/// SIGTERM and SIGINT drain; a second signal ends at once. SIGUSR2 has a new process go on.
pub(super) struct Signals {
    /// What they end it by.
    pub(super) caught: Caught,
    pub(super) drain: Arc<Drain>,
    pub(super) config: Live,
    /// What has to write something down before the end.
    pub(super) gateway: Option<Arc<Gateway>>,
    /// What the process that follows goes on with.
    pub(super) sockets: Arc<Sockets>,
    /// What has to send the last spans.
    pub(super) traces: Traces,
}

/// Signals from the moment on in which it is made: before anybody can connect.
pub(super) struct Caught(Mutex<Option<[Signal; 3]>>);

impl Caught {
    /// Catches them. `reloads`: SIGHUP, too, which would end the process until somebody waits for it.
    ///
    /// # Errors
    /// The system has no room for it.
    pub(super) fn new(reloads: bool) -> io::Result<Self> {
        // What is caught is caught for the process, and heard by the runtime that waits for it later.
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
        Ok(Self(Mutex::new(Some([terminate?, interrupt?, follow?]))))
    }

    fn take(&self) -> Option<[Signal; 3]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    async fn recv(&self) -> ShutdownSignal {
        // Pingora waits once.
        let Some([mut terminate, mut interrupt, mut follow]) = self.caught.take() else {
            return std::future::pending().await;
        };
        let followed = loop {
            tokio::select! {
                _ = terminate.recv() => break false,
                _ = interrupt.recv() => break false,
                _ = follow.recv() => if self.is_followed().await { break true },
            }
        };
        let in_order = async {
            drain(&self.drain, &self.config, followed).await;
            last_words(&self.drain, LAST_WORDS).await;
            if let Some(gateway) = &self.gateway {
                gateway.flush().await;
            }
            self.traces.stop(LAST_SPANS).await;
        };
        tokio::select! {
            () = in_order => {}
            _ = terminate.recv() => last_words(&self.drain, LAST_WORDS_HURRIED).await,
            _ = interrupt.recv() => last_words(&self.drain, LAST_WORDS_HURRIED).await,
        }
        // Also in a hurry: a chain without its end looks like one whose end was taken away.
        if let Some(gateway) = &self.gateway {
            gateway.close();
            // Before the records are: an answer without one would be nobody's.
            self.drain.close();
            idle_within(LAST_REFUSALS, || self.drain.running() == 0).await;
            tokio::join!(gateway.audit.flush(), gateway.console.goodbye());
        }
        end_in_any_case();
        ShutdownSignal::FastShutdown
    }
}

impl Signals {
    /// Has a new process go on, if one can. Whether it does.
    async fn is_followed(&self) -> bool {
        let alone = self.gateway.as_ref().and_then(|gateway| gateway.alone());
        if let Some(why) = alone {
            tracing::warn!(
                "No new process can take over (SIGUSR2): {why}; it would serve beside this one until all calls are over. \
                 End this one with SIGTERM and start it again, or give both PostgreSQL and Redis"
            );
            return false;
        }
        tracing::info!("A new process is to take over (SIGUSR2)");
        match self.sockets.give_up().await {
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

/// Ends the process after [`THREADS_END`], if it still is there then. All that was to be said and written down has been.
fn end_in_any_case() {
    let watch = std::thread::Builder::new().name("end".into());
    let watched = watch.spawn(|| {
        std::thread::sleep(THREADS_END);
        tracing::warn!("A thread does not end; the process does");
        std::process::exit(0);
    });
    if let Err(error) = watched {
        tracing::warn!(%error, "Nobody sees to it that the process ends");
    }
}

/// Waits until nothing is in progress, at most `server.drain`; where another process follows, also until who is
/// connected has gone there.
async fn drain(drain: &Drain, config: &Live, followed: bool) {
    if followed {
        drain.leave();
    } else {
        tell_supervisor(vec![sd_notify::NotifyState::Stopping]);
        drain.begin();
    }
    let connections = drain.connections();
    tracing::info!(running = drain.running(), connections, "Draining");
    let limit = config.get().server.drain;
    idle_within(limit, || {
        drain.running() == 0 && (!followed || drain.connections() == 0)
    })
    .await;
}

/// Ends what is left: streams with their last event, the others with an error.
async fn last_words(drain: &Drain, limit: Duration) {
    drain.begin();
    drain.cut();
    idle_within(limit, || drain.running() == 0).await;
}

async fn idle_within(limit: Duration, idle: impl Fn() -> bool) {
    let deadline = Instant::now() + limit;
    while !idle() && Instant::now() < deadline {
        sleep(Duration::from_millis(20)).await;
    }
}
