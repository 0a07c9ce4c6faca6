//! Values of the metrics of the process.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use prometheus::{Counter, Gauge, IntGauge, IntGaugeVec};

use super::family::{Declaration, Family, families};

families! {
    /// Metrics of the process under the names of the official Prometheus client libraries, and the build info.
    ProcessMetrics {
        build_info: IntGaugeVec = "a2a_gateway_build_info" ["version", "commit"],
            "1; the labels say what runs: version, and commit where the build knew it.";
        started: Gauge = "process_start_time_seconds", "When the process started, in seconds since 1970.";
        cpu: Counter = "process_cpu_seconds_total", "CPU time of the process, user and system, in seconds.";
        memory: IntGauge = "process_resident_memory_bytes", "Bytes of memory that the process has in RAM.";
        open_fds: IntGauge = "process_open_fds", "Open file descriptors: connections, mostly.";
        max_fds: IntGauge = "process_max_fds", "File descriptors that may be open (ulimit -n).";
        threads: IntGauge = "process_threads", "Threads of the process.";
    }
}

/// Ticks per second in `/proc/self/stat`. Linux always reports 100 to user space.
const TICKS: f64 = 100.0;

/// The metrics of the process, read from `/proc` at each scrape. An unreadable value stays unchanged.
pub(super) struct Process {
    families: ProcessMetrics,
    /// Seconds that the family of CPU time already contains.
    counted: Mutex<f64>,
}

impl Family for Process {
    fn register(declared: &Declaration<'_>) -> Self {
        let families = ProcessMetrics::register(declared);
        let commit = option_env!("A2A_GATEWAY_COMMIT").unwrap_or_default();
        let build = [env!("CARGO_PKG_VERSION"), commit];
        families.build_info.with_label_values(&build).set(1);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        families
            .started
            .set(now.map_or(0.0, |since| since.as_secs_f64()));
        let counted = Mutex::default();
        Self { families, counted }
    }
}

impl Process {
    /// Reads the current values.
    pub(super) fn refresh_values(&self) {
        let families = &self.families;
        let read =
            |file: &str| fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
        if let Some(seconds) = cpu_seconds(&read("stat")) {
            let mut counted = self.counted.lock();
            families.cpu.inc_by((seconds - *counted).max(0.0));
            *counted = counted.max(seconds);
        }
        let status = read("status");
        if let Some(kib) = number_after(&status, "VmRSS:") {
            families.memory.set(kib.saturating_mul(1024));
        }
        if let Some(threads) = number_after(&status, "Threads:") {
            families.threads.set(threads);
        }
        if let Some(max) = number_after(&read("limits"), "Max open files") {
            families.max_fds.set(max);
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // One of them is open for this read.
            let open = open.count().saturating_sub(1);
            families
                .open_fds
                .set(i64::try_from(open).unwrap_or(i64::MAX));
        }
    }
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
    use prometheus::Registry;

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
        let process = Process::register(&Declaration::new(&Registry::new(), false));
        process.refresh_values();
        assert!(
            process.families.memory.get() > 1 << 20,
            "{}",
            process.families.memory.get()
        );
        assert!(
            process.families.open_fds.get() > 2
                && process.families.max_fds.get() > process.families.open_fds.get()
        );
        assert!(process.families.threads.get() >= 2);
        let before = process.families.cpu.get();
        process.refresh_values();
        assert!(process.families.cpu.get() >= before);
    }
}
