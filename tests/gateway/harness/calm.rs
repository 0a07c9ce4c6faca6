//! Cases with clocks of seconds on a machine that may stand still, or keep others waiting, for longer.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;

/// Standing still for this long, a machine can make a case fail whose gateway is right.
const STILL: Duration = Duration::from_millis(80);

/// So can one on which some process waits for a CPU during more than this part of the case's time. The thread that sleeps
/// is the one that the scheduler favours: a gateway, a Redis or a PostgreSQL may starve unseen by it.
const WAITING_PERCENT: u32 = 50;

/// How often a case is tried on such a machine.
const ROUNDS: usize = 3;

/// Runs a case; one that failed while this process stood still, or others waited for a CPU, again. On a machine where
/// they do not, whatever fails has failed.
pub(crate) async fn calmly(case: impl AsyncFn()) {
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

/// Writes down that a case is tried again: what a test prints is not seen when it passes in the end. `scripts/test` shows it.
fn note(excuse: &str) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tried-again");
    let case = thread::current();
    let line = format!("{}: {excuse}\n", case.name().unwrap_or_default());
    let notes = OpenOptions::new().create(true).append(true).open(path);
    // One write, so that two at once stay two lines.
    notes.unwrap().write_all(line.as_bytes()).unwrap();
}

/// A thread that only sleeps, and sees by how much it sleeps too long; and what the system says of others.
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

    /// By what a gateway that is right may have failed.
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

/// For how long some process waited for a CPU since the machine began, as Linux tells; nothing where it does not.
fn waited() -> Duration {
    let told = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let some = told.lines().find(|line| line.starts_with("some "));
    let total = some.and_then(|line| line.rsplit_once("total=")?.1.parse::<u64>().ok());
    Duration::from_micros(total.unwrap_or(0))
}
