//! Metric families of the process under the names of the official Prometheus client libraries, and the
//! build info.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{Counter, Gauge, IntGauge, Opts, Registry};

use super::family::{register, register_float_gauge, register_gauge, register_gauges};

/// Ticks per second in `/proc/self/stat`. Linux always reports 100 to user space.
const TICKS: f64 = 100.0;

/// Metrics of the process, read from `/proc` at each scrape. An unreadable value stays unchanged.
pub(super) struct Process {
    cpu: Counter,
    /// Seconds that `cpu` already contains.
    counted: Mutex<f64>,
    memory: IntGauge,
    open_fds: IntGauge,
    max_fds: IntGauge,
    threads: IntGauge,
}

impl Process {
    pub(super) fn new(r: &Registry) -> Self {
        let info = register_gauges(
            r,
            "a2a_gateway_build_info",
            "1; the labels say what runs: version, and commit where the build knew it.",
            &["version", "commit"],
        );
        let commit = option_env!("A2A_GATEWAY_COMMIT").unwrap_or_default();
        info.with_label_values(&[env!("CARGO_PKG_VERSION"), commit])
            .set(1);
        let started = register_float_gauge(
            r,
            "process_start_time_seconds",
            "When the process started, in seconds since 1970.",
        );
        set_now(&started);
        let cpu = Opts::new(
            "process_cpu_seconds_total",
            "CPU time of the process, user and system, in seconds.",
        );
        Self {
            cpu: register(r, Counter::with_opts(cpu)),
            counted: Mutex::default(),
            memory: register_gauge(
                r,
                "process_resident_memory_bytes",
                "Bytes of memory that the process has in RAM.",
            ),
            open_fds: register_gauge(
                r,
                "process_open_fds",
                "Open file descriptors: connections, mostly.",
            ),
            max_fds: register_gauge(
                r,
                "process_max_fds",
                "File descriptors that may be open (ulimit -n).",
            ),
            threads: register_gauge(r, "process_threads", "Threads of the process."),
        }
    }

    /// Reads the current values.
    pub(super) fn refresh_values(&self) {
        let read =
            |file: &str| fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
        if let Some(seconds) = cpu_seconds(&read("stat")) {
            let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
            self.cpu.inc_by((seconds - *counted).max(0.0));
            *counted = counted.max(seconds);
        }
        let status = read("status");
        if let Some(kib) = number_after(&status, "VmRSS:") {
            self.memory.set(kib.saturating_mul(1024));
        }
        if let Some(threads) = number_after(&status, "Threads:") {
            self.threads.set(threads);
        }
        if let Some(max) = number_after(&read("limits"), "Max open files") {
            self.max_fds.set(max);
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // One of them is open for this read.
            let open = open.count().saturating_sub(1);
            self.open_fds.set(i64::try_from(open).unwrap_or(i64::MAX));
        }
    }
}

fn set_now(gauge: &Gauge) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    gauge.set(now.map_or(0.0, |since| since.as_secs_f64()));
}

/// Returns the sum of `utime` and `stime`, the fields 14 and 15, in seconds. The second field is the name
/// of the program, which may contain spaces and parentheses.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok().map(f64::from);
    Some((ticks()? + ticks()?) / TICKS)
}

/// Returns the first number behind `name`.
fn number_after(text: &str, name: &str) -> Option<i64> {
    let (_, behind) = text.split_once(name)?;
    behind.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says_is_read() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 4 0 100 1000 10";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds("7 (a"), None);
        let status = "VmHWM:\t  10 kB\nVmRSS:\t   12 kB\nThreads:\t4\n";
        assert_eq!(number_after(status, "VmRSS:"), Some(12));
        assert_eq!(number_after(status, "Threads:"), Some(4));
        let limits = "Max open files            1024                 524288               files\n";
        assert_eq!(number_after(limits, "Max open files"), Some(1024));
        assert_eq!(
            number_after("Max open files  unlimited", "Max open files"),
            None
        );
    }

    #[test]
    fn this_process_is_seen() {
        let process = Process::new(&Registry::new());
        process.refresh_values();
        assert!(process.memory.get() > 1 << 20, "{}", process.memory.get());
        assert!(process.open_fds.get() > 2 && process.max_fds.get() > process.open_fds.get());
        assert!(process.threads.get() >= 2);
        let before = process.cpu.get();
        process.refresh_values();
        assert!(process.cpu.get() >= before);
    }
}
