//! A server on threads of its own, beside the other work of a process, which has the signals: a sidecar beside an agent
//! (`run`), a gateway inside a test.

use std::sync::Arc;

use pingora::server::ShutdownSignalWatch;
use tokio::sync::watch;

use super::signals::{End, Told};
use super::{Prepared, ServeError};
use crate::config::Live;
use crate::config::load::Layers;
use crate::drain::Drain;
use crate::telemetry::log;
use crate::telemetry::traces::Traces;

/// A server beside the other work of a process. It ends at once when this is dropped.
pub struct ServerHandle {
    /// The calls in progress.
    pub drain: Arc<Drain>,
    tell: watch::Sender<End>,
    serving: watch::Receiver<()>,
}

/// Starts a gateway beside the other work of the process. It logs where the calling thread does.
///
/// # Errors
/// As [`super::run`].
pub fn gateway(live: Live, layers: Option<Layers>) -> Result<ServerHandle, ServeError> {
    let prepared = Prepared::new(live, layers)?;
    let drain = Arc::clone(&prepared.gateway.drain);
    let signals = prepared.signals();
    ServerHandle::start("gateway", drain, |told| {
        prepared.serve(signals.into_told_watch(told));
    })
}

impl ServerHandle {
    /// Starts a sidecar. `serve` serves until the signal.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub(super) fn sidecar(
        drain: Arc<Drain>,
        traces: Traces,
        serve: impl FnOnce(Box<dyn ShutdownSignalWatch>) + Send + 'static,
    ) -> Result<Self, ServeError> {
        let ends = Arc::clone(&drain);
        Self::start("sidecar", drain, |told| {
            let told = Told {
                told,
                drain: ends,
                traces,
            };
            serve(told.into_watch());
        })
    }

    fn start(
        name: &str,
        drain: Arc<Drain>,
        serve: impl FnOnce(watch::Receiver<End>) + Send + 'static,
    ) -> Result<Self, ServeError> {
        let (tell, told) = watch::channel(End::No);
        let (served, serving) = watch::channel(());
        let log = log::of_this_thread();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let serve = move || {
            if let Some(own) = &log {
                log::keep_on_this_thread(own);
            }
            serve(told);
            drop(served);
        };
        thread.spawn(serve).map_err(ServeError::Thread)?;
        Ok(Self {
            drain,
            tell,
            serving,
        })
    }

    /// Ends it as SIGTERM ends a process: its streams get their last event, other exchanges an error. A second time hurries.
    pub fn end(&self) {
        self.tell.send_modify(|end| {
            *end = match end {
                End::No => End::InOrder,
                _ => End::Hurried.max(*end),
            }
        });
    }

    /// Ends it as SIGKILL ends a process.
    pub fn kill(&self) {
        self.tell.send_replace(End::AtOnce);
    }

    /// True until it has ended.
    pub fn is_serving(&self) -> bool {
        self.serving.has_changed().is_ok()
    }

    /// Resolves when it has ended.
    pub async fn ended(&self) {
        let mut serving = self.serving.clone();
        while serving.changed().await.is_ok() {}
    }
}
