//! Retries of cases with timeouts of seconds, on a machine that may stall processes for longer.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;

use super::notes::append;
use super::timed::begin_case;

/// A machine that stalls for this long can make a case fail though the gateway is right.
const STILL: Duration = Duration::from_millis(80);

/// So can one on which some process waits for a CPU during more than this part of the case's time. The
/// scheduler favours the thread that sleeps: a gateway, a Redis or a PostgreSQL may starve without a stall of
/// that thread.
const WAITING_PERCENT: u32 = 50;

/// Attempts of a case on such a machine.
const ROUNDS: usize = 3;

/// Runs a case, and runs it again if it failed while this process stalled or other processes waited for a
/// CPU. Without such evidence a failure is final.
pub(crate) async fn calmly(case: impl AsyncFn()) {
    begin_case();
    for round in 1.. {
        let watch = Watch::begin();
        let Err(panic) = AssertUnwindSafe(case()).catch_unwind().await else {
            return;
        };
        match watch.excuse() {
            Some(excuse) if round < ROUNDS => note(&excuse),
            _ => resume_unwind(panic),
        }
    }
}

/// Records a retry in a file, since the output of a test that passes is not shown. `scripts/test` shows the
/// file, and fails if there are too many.
fn note(excuse: &str) {
    let case = thread::current();
    append(
        "tried-again",
        &format!("{}: {excuse}", case.name().unwrap_or_default()),
    )
    .unwrap();
}

/// A thread that only sleeps and measures by how much it oversleeps; and the system's CPU pressure.
struct Watch {
    began: Instant,
    /// [`waited`] at the beginning.
    waited: Duration,
    over: Arc<AtomicBool>,
    longest_ms: Arc<AtomicU64>,
}

impl Watch {
    const TICK: Duration = Duration::from_millis(20);

    fn begin() -> Self {
        let watch = Self {
            began: Instant::now(),
            waited: waited(),
            over: Arc::default(),
            longest_ms: Arc::default(),
        };
        let (over, longest) = (watch.over.clone(), watch.longest_ms.clone());
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                thread::sleep(Self::TICK);
                let stood = began.elapsed() - Self::TICK;
                let ms = u64::try_from(stood.as_millis()).unwrap_or(u64::MAX);
                longest.fetch_max(ms, Ordering::Relaxed);
            }
        });
        watch
    }

    /// Returns the evidence that a correct gateway may have failed.
    fn excuse(&self) -> Option<String> {
        let stood = Duration::from_millis(self.longest_ms.load(Ordering::Relaxed));
        let (waited, took) = (waited().saturating_sub(self.waited), self.began.elapsed());
        let excused = stood >= STILL || waited * 100 > took * WAITING_PERCENT;
        excused.then(|| {
            format!("this process stood still for {stood:?}; for {waited:?} of {took:?} some waited for a CPU")
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Returns the time for which some process waited for a CPU since boot, as Linux reports it; zero elsewhere.
fn waited() -> Duration {
    let told = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let some = told.lines().find(|line| line.starts_with("some "));
    let total = some.and_then(|line| line.rsplit_once("total=")?.1.parse::<u64>().ok());
    Duration::from_micros(total.unwrap_or(0))
}
