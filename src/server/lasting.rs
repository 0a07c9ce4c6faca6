//! Background work that must run as long as the process. Without it a gateway would continue to serve from
//! stale facts: revocations, addresses, deadlines. If it panics, the process exits, and the supervisor
//! restarts it. The process also exits if a listener cannot be opened.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::sleep;

use super::ServeError;

/// Logs the error and exits, because the listener is indispensable. Its address was free at startup, so
/// another process that started at the same moment has taken it.
pub(super) async fn unopened(error: ServeError) -> ! {
    tracing::error!(%error, "The process ends");
    sleep(LAST_LINE).await;
    std::process::exit(1);
}

/// `EX_SOFTWARE` of sysexits.h.
const EXIT: i32 = 70;

/// Time for the log thread to write the last line.
const LAST_LINE: Duration = Duration::from_millis(200);

/// Runs `work`. Exits the process if it panics.
pub(super) async fn lasting(what: &'static str, work: impl Future<Output = ()>) {
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
            let work = lasting("test", async { panic!("on purpose") });
            runtime.spawn(work);
            std::thread::park_timeout(Duration::from_secs(60));
            return;
        }
        let (_, path) = module_path!().split_once("::").unwrap();
        let name = format!("{path}::a_panic_in_the_background_ends_the_process");
        let mut process = Command::new(std::env::current_exe().unwrap());
        let ended = process.args(["--exact", &name]).env(ENDS, "1").output();
        assert_eq!(ended.unwrap().status.code(), Some(EXIT));
        runtime.block_on(lasting("test", async {}));
    }
}
