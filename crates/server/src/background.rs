//! Background work that must run as long as the process. Without it a gateway would continue to serve from
//! stale facts: revocations, addresses, deadlines. If it panics, the process exits, and the supervisor
//! restarts it. The process also exits if a listener cannot be opened.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use pingora::server::ShutdownWatch;
use pingora::services::ServiceReadyNotifier;
use pingora::services::background::{BackgroundService, GenBackgroundService, background_service};
use tokio::time::sleep;
use tracing::Dispatch;

use super::ServeError;
use kernel::telemetry::log;

/// Logs the error and exits, because the listener is indispensable. Its address was free at startup, so
/// another process that started at the same moment has taken it.
pub(super) async fn exit_unopened(error: ServeError) -> ! {
    tracing::error!(%error, "The process ends");
    sleep(LAST_LINE).await;
    std::process::exit(1);
}

/// `EX_SOFTWARE` of sysexits.h.
const EXIT: i32 = 70;

/// Time for the log thread to write the last line.
const LAST_LINE: Duration = Duration::from_millis(200);

/// Background work as a service of Pingora, on a thread of its own until shutdown.
pub(super) struct Background {
    what: &'static str,
    /// Taken at the start.
    work: Mutex<Option<BackgroundWork>>,
    log: Option<Dispatch>,
}

/// The work is boxed where it is made. Inside a method of an `async_trait` the compiler proves for each service anew
/// that all that its future holds is `Send`: a third of the time that this crate took to compile.
type BackgroundWork =
    Box<dyn FnOnce(ServiceReadyNotifier, ShutdownWatch) -> BoxFuture<'static, ()> + Send>;

impl Background {
    /// Returns the service of `work`.
    pub(super) fn new_service(
        what: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> GenBackgroundService<Self> {
        Self::notifying_service(what, |ready| {
            ready.notify_ready();
            work
        })
    }

    /// Returns the service of `work`, which notifies when services that depend on it may start.
    pub(super) fn notifying_service<F>(
        what: &'static str,
        work: impl FnOnce(ServiceReadyNotifier) -> F + Send + 'static,
    ) -> GenBackgroundService<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::ending_service(what, |ready, mut shutdown| {
            let work = work(ready);
            async move {
                tokio::select! {
                    () = work => {}
                    _ = shutdown.changed() => {}
                }
            }
        })
    }

    /// Returns the service of `work`, which ends by itself after the shutdown, and notifies when services that depend
    /// on it may start.
    pub(super) fn ending_service<F>(
        what: &'static str,
        work: impl FnOnce(ServiceReadyNotifier, ShutdownWatch) -> F + Send + 'static,
    ) -> GenBackgroundService<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let work: BackgroundWork = Box::new(|ready, shutdown| work(ready, shutdown).boxed());
        let work = Mutex::new(Some(work));
        let log = log::thread_log();
        background_service(what, Self { what, work, log })
    }
}

#[async_trait]
impl BackgroundService for Background {
    async fn start_with_ready_notifier(
        &self,
        shutdown: ShutdownWatch,
        ready: ServiceReadyNotifier,
    ) {
        if let Some(own) = &self.log {
            log::set_thread_log(own);
        }
        let work = self.work.lock().take();
        if let Some(work) = work {
            run_or_exit(self.what, work(ready, shutdown)).await;
        }
    }
}

/// Runs `work`. Exits the process if it panics.
async fn run_or_exit(what: &'static str, work: impl Future<Output = ()>) {
    if AssertUnwindSafe(work).catch_unwind().await.is_err() {
        tracing::error!(
            what,
            "background work panicked, which is a bug; exiting, the process must be restarted"
        );
        sleep(LAST_LINE).await;
        std::process::exit(EXIT);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Set in the child process, which is expected to exit.
    const ENDS: &str = "A2A_GATEWAY_TEST_LASTING_ENDS";

    #[test]
    fn a_panic_in_the_background_ends_the_process() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        if std::env::var_os(ENDS).is_some() {
            // On a task, as Pingora runs it: a panic in a task ends only that task.
            let work = run_or_exit("test", async { panic!("on purpose") });
            runtime.spawn(work);
            std::thread::park_timeout(Duration::from_secs(60));
            return;
        }
        let (_, path) = module_path!().split_once("::").unwrap();
        let name = format!("{path}::a_panic_in_the_background_ends_the_process");
        let mut process = Command::new(std::env::current_exe().unwrap());
        let ended = process.args(["--exact", &name]).env(ENDS, "1").output();
        assert_eq!(ended.unwrap().status.code(), Some(EXIT));
        runtime.block_on(run_or_exit("test", async {}));
    }
}
