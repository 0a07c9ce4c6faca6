//! The time that each case takes, for `scripts/test`, which shows the sum of each module: the stable test harness
//! measures none, and has no timeout.

use std::collections::HashMap;
use std::io::Write as _;
use std::process;
use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::notes::append;

/// The time after which a case counts as hung. The longest cases take less than a minute on a quiet machine.
const CASE_MAX: Duration = Duration::from_secs(600);

/// The cases that run: a hung one ends the process, and is named, so that CI shows it before it runs out of time.
static RUNNING: LazyLock<Mutex<HashMap<String, Instant>>> = LazyLock::new(|| {
    thread::spawn(|| {
        loop {
            thread::sleep(Duration::from_millis(900));
            end_if_hung();
        }
    });
    Mutex::default()
});

fn end_if_hung() {
    let running = RUNNING.lock().unwrap();
    let hung = running.iter().find(|(_, began)| began.elapsed() > CASE_MAX);
    if let Some((name, _)) = hung {
        // Unlike the macros, this is not captured as the output of a case.
        let _ = writeln!(
            std::io::stderr(),
            "{name} hangs: it has not ended after {CASE_MAX:?}"
        );
        process::exit(1);
    }
}

/// Each case has a thread of its own, and ends with it.
struct Case {
    name: Option<String>,
    began: Instant,
}

thread_local! {
    static CASE: Case = Case::begin();
}

/// Begins the time of the case on this thread, unless it began: called by what nearly every case begins with.
pub(crate) fn begin_case() {
    CASE.with(|_| ());
}

impl Case {
    fn begin() -> Self {
        let thread = thread::current();
        // Threads of a runtime make servers, too.
        let name = thread.name().filter(|name| name.contains("::"));
        let case = Self {
            name: name.map(str::to_owned),
            began: Instant::now(),
        };
        if let Some(name) = &case.name {
            RUNNING.lock().unwrap().insert(name.clone(), case.began);
        }
        case
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            RUNNING.lock().unwrap().remove(name);
            // A case that passed does not fail for want of a line.
            let _ = append(
                "cases",
                &format!("{name} {:.3}", self.began.elapsed().as_secs_f64()),
            );
        }
    }
}
