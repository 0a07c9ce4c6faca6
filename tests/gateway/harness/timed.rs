//! The time that each case takes, for `scripts/test`, which shows the sum of each module: the stable test harness
//! measures none.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::thread;
use std::time::Instant;

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

/// Appends a line to a file that `scripts/test` reads. One write, so that two at once stay two lines.
pub(super) fn append(file: &str, line: &str) -> io::Result<()> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    let mut open = OpenOptions::new().create(true).append(true).open(path)?;
    open.write_all(format!("{line}\n").as_bytes())
}
