//! Cases with clocks of seconds on a machine that may stand still for longer.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;

/// Standing still for this long, a machine can make a case fail whose gateway is right.
const STILL: Duration = Duration::from_millis(300);

/// How often a case is tried on such a machine.
const ROUNDS: usize = 3;

/// Runs a case; one that failed while this process stood still, again. On a machine that does not,
/// whatever fails has failed.
pub(crate) async fn calmly(case: impl AsyncFn()) {
    for round in 1.. {
        let watch = Watch::begin();
        let Err(panic) = AssertUnwindSafe(case()).catch_unwind().await else {
            return;
        };
        let stood = watch.end();
        if round == ROUNDS || stood < STILL {
            resume_unwind(panic);
        }
        eprintln!("once more: this process stood still for {stood:?}");
    }
}

/// A thread that only sleeps, and sees by how much it sleeps too long.
struct Watch {
    over: Arc<AtomicBool>,
    longest_ms: Arc<AtomicU64>,
}

impl Watch {
    const TICK: Duration = Duration::from_millis(20);

    fn begin() -> Self {
        let watch = Self {
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

    fn end(&self) -> Duration {
        Duration::from_millis(self.longest_ms.load(Ordering::Relaxed))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
