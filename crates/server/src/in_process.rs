//! A server on threads of its own, beside the other work of a process, which has the signals: a sidecar beside an agent
//! (`run`), a gateway inside a test.

use std::sync::Arc;

use tokio::sync::watch;

use super::signals::ShutdownMode;
use super::{PreparedServer, ServeError};
use kernel::config::Live;
use kernel::config::load::Layers;
use kernel::drain::Drain;
use kernel::telemetry::log;

/// A server beside the other work of a process. It ends at once when this is dropped.
pub struct ServerHandle {
    /// The calls in progress.
    pub drain: Arc<Drain>,
    mode: watch::Sender<ShutdownMode>,
    serving: watch::Receiver<()>,
}

/// Starts a gateway beside the other work of the process. It logs where the calling thread does.
///
/// # Errors
/// As [`super::run`].
pub fn start_gateway(live: Live, layers: Option<Layers>) -> Result<ServerHandle, ServeError> {
    let prepared = PreparedServer::new(live, layers)?;
    let drain = Arc::clone(&prepared.signals.drain);
    ServerHandle::start("gateway", drain, |mode| {
        prepared.serve(|signals| signals.shut_down_in_process(mode));
    })
}

impl ServerHandle {
    /// Starts a server on a thread. `serve` serves until it is to end.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub(super) fn start(
        name: &str,
        drain: Arc<Drain>,
        serve: impl FnOnce(watch::Receiver<ShutdownMode>) + Send + 'static,
    ) -> Result<Self, ServeError> {
        let (sender, mode) = watch::channel(ShutdownMode::No);
        let (served, serving) = watch::channel(());
        let log = log::thread_log();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let serve = move || {
            if let Some(own) = &log {
                log::set_thread_log(own);
            }
            serve(mode);
            drop(served);
        };
        thread.spawn(serve).map_err(ServeError::Thread)?;
        Ok(Self {
            drain,
            mode: sender,
            serving,
        })
    }

    /// Ends it as SIGTERM ends a process: its streams get their last event, other exchanges an error. A second time
    /// hurries.
    pub fn shut_down(&self) {
        self.mode.send_modify(|mode| {
            *mode = match mode {
                ShutdownMode::No => ShutdownMode::InOrder,
                _ => ShutdownMode::Hurried.max(*mode),
            }
        });
    }

    /// Ends it as SIGKILL ends a process.
    pub fn kill(&self) {
        self.mode.send_replace(ShutdownMode::AtOnce);
    }

    /// True until it has ended.
    pub fn is_serving(&self) -> bool {
        self.serving.has_changed().is_ok()
    }

    /// Resolves when it has ended.
    pub async fn wait(&self) {
        let mut serving = self.serving.clone();
        while serving.changed().await.is_ok() {}
    }
}
