//! Work that goes on for as long as the process. Without it a gateway would go on answering, by facts that it follows
//! no more: revocations, addresses, deadlines. So where it panics the process ends, and whoever supervises it starts
//! it again. The same where a listener cannot be opened.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::sleep;

use super::ServeError;

/// Ends the process, of which nothing can be asked without this listener. Its address could be had when the process began:
/// another that was started at the same moment has it.
pub(super) async fn unopened(error: ServeError) -> ! {
    tracing::error!(%error, "The process ends");
    sleep(LAST_LINE).await;
    std::process::exit(1);
}

/// `EX_SOFTWARE` of sysexits.h.
const EXIT: i32 = 70;

/// What the log's thread gets to write its last line.
const LAST_LINE: Duration = Duration::from_millis(200);

/// Does the work. If it panics this ends the process.
pub(super) async fn lasting(what: &'static str, work: impl Future<Output = ()>) {
    if AssertUnwindSafe(work).catch_unwind().await.is_err() {
        tracing::error!(
            what,
            "The work in the background panicked, which is a bug: the process ends, and must be started again"
        );
        sleep(LAST_LINE).await;
        std::process::exit(EXIT);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Set in the process that is to end.
    const ENDS: &str = "A2A_GATEWAY_TEST_LASTING_ENDS";

    #[test]
    fn a_panic_in_the_background_ends_the_process() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        if std::env::var_os(ENDS).is_some() {
            // As Pingora does it: a panic in a task of its own would end that task alone.
            let work = lasting("test", async { panic!("on purpose") });
            runtime.spawn(work);
            std::thread::sleep(Duration::from_secs(60));
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
