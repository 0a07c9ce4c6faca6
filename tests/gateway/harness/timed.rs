//! The time that each case takes, for `scripts/test`, which shows the sum of each module: the stable test harness
//! measures none.

use std::thread;
use std::time::Instant;

use super::notes::append;

/// Each case has a thread of its own, and ends with it.
struct Case {
    name: Option<String>,
    began: Instant,
}

thread_local! {
    static CASE: Case = Case {
        name: thread::current().name().map(str::to_owned),
        began: Instant::now(),
    };
}

/// Begins the time of the case on this thread, unless it began: called by what nearly every case begins with.
pub(crate) fn begin_case() {
    CASE.with(|_| ());
}

impl Drop for Case {
    fn drop(&mut self) {
        // Threads of a runtime make servers, too.
        if let Some(name) = self.name.as_ref().filter(|name| name.contains("::")) {
            // A case that passed does not fail for want of a line.
            let _ = append(
                "cases",
                &format!("{name} {:.3}", self.began.elapsed().as_secs_f64()),
            );
        }
    }
}
