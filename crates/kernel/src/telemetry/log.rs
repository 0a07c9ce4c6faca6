//! The log on standard error.
//!
//! Lines pass through a bounded queue to a dedicated thread, so that a slow terminal or a full pipe never
//! delays an exchange. Lines that do not fit are dropped and counted. Standard output belongs to the
//! command line. Lines of crates that use `log` (Pingora, sqlx) are included.

use std::io::{self, IsTerminal as _};
use std::sync::OnceLock;

use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, dispatcher};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, reload};

use crate::config::{LogFormat, Telemetry};

/// Maximum number of queued lines. An access line has about 400 bytes, hence 25 MiB.
const LINES_WAITING_MAX: usize = 65_536;

/// Directives for noisy crates. They log steps of interest only to their authors at `info`, and errors that
/// an operator cannot act on at `error`. Directives of the operator follow these and take precedence.
///
/// `pingora_core::connectors` logs two things above `debug`: an idle connection could not be taken from the
/// pool, or had bytes in it. In both cases a new connection is used, and the call does not notice.
const QUIET: &str = "pingora=warn,pingora_core=warn,pingora_core::connectors=off,pingora_proxy=warn,pingora_pool=warn,\
                     pingora_runtime=warn,sqlx=warn,hyper=warn,h2=warn,rustls=warn,ecdysis=error,\
                     rustls_platform_verifier=off";

/// The counter of dropped lines. A process has one log.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Replaces the filter of the log.
type Refilter = Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>;

static REFILTER: OnceLock<Refilter> = OnceLock::new();

/// Keeps the log running. Dropping it writes the queued lines.
#[must_use = "lines that wait are written when it is dropped"]
pub struct LogGuard {
    _writer: WorkerGuard,
}

/// The log cannot be started or changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// `telemetry.log` is not a filter.
    #[error("telemetry.log is not a log filter")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// The filter of the running log cannot be replaced.
    #[error("the filter of the log cannot be replaced")]
    Reload(#[from] reload::Error),
    /// The log is already started.
    #[error("the log is started already")]
    Started(#[from] tracing_subscriber::util::TryInitError),
}

/// Starts the log of this process on standard error.
///
/// # Errors
/// [`LogError`] when the filter is invalid, or the log is already started.
pub fn start(settings: &Telemetry) -> Result<LogGuard, LogError> {
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(LINES_WAITING_MAX)
        .thread_name("log")
        .finish(io::stderr());
    // A second start fails below, and must not replace the counter of the first.
    let counter = writer.error_counter();
    let terminal = io::stderr().is_terminal();
    let human = match settings.log_format {
        LogFormat::Auto => terminal,
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    let filter = parse_filter(&settings.log)?;
    let (log, refilter) = new_log(writer, filter, human.then_some(terminal));
    log.try_init()?;
    DROPPED.get_or_init(|| counter);
    REFILTER.get_or_init(|| refilter);
    Ok(LogGuard { _writer: guard })
}

/// Replaces the filter of the running log. Does nothing if there is none.
///
/// # Errors
/// [`LogError`] when the filter is invalid.
pub fn replace_filter(directives: &str) -> Result<(), LogError> {
    let filter = parse_filter(directives)?;
    if let Some(refilter) = REFILTER.get() {
        refilter(filter)?;
        // Crates that use `log` check its own maximum level first, which was set at startup. Both name levels alike.
        let level = LevelFilter::current().to_string().parse();
        log::set_max_level(level.unwrap_or(log::LevelFilter::Trace));
    }
    Ok(())
}

/// Returns the number of lines dropped because the writer was behind.
pub fn lines_dropped() -> u64 {
    DROPPED
        .get()
        .map_or(0, |counter| counter.dropped_lines() as u64)
}

/// Returns the log of this thread, unless the whole process has one.
pub fn thread_log() -> Option<Dispatch> {
    DROPPED
        .get()
        .is_none()
        .then(|| dispatcher::get_default(Clone::clone))
}

/// Makes this thread log there for as long as it lives.
pub fn set_thread_log(log: &Dispatch) {
    std::mem::forget(dispatcher::set_default(log));
}

/// Returns a log of JSON lines to `writer`, for threads that have one of their own.
///
/// # Errors
/// [`LogError`] when the filter is invalid.
pub fn json_log<W>(writer: W, settings: &Telemetry) -> Result<Dispatch, LogError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (log, _) = new_log(writer, parse_filter(&settings.log)?, None);
    Ok(log)
}

fn parse_filter(directives: &str) -> Result<EnvFilter, tracing_subscriber::filter::ParseError> {
    EnvFilter::try_new(format!("{QUIET},{directives}"))
}

/// Returns a log, and what replaces its filter. `colors`: lines for people, `2026-11-21T10:00:00Z  INFO access: POST …
/// outcome=answered`, with or without colors. `None`: one JSON object in each line, with fields at the top level, so
/// that they can be queried by name.
fn new_log<W>(writer: W, filter: EnvFilter, colors: Option<bool>) -> (Dispatch, Refilter)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = match colors {
        Some(colors) => lines.with_ansi(colors).boxed(),
        None => {
            let lines = lines.json().flatten_event(true);
            lines.with_current_span(false).with_span_list(false).boxed()
        }
    };
    let log = tracing_subscriber::registry().with(filter).with(lines);
    let refilter = Box::new(move |filter| handle.reload(filter));
    (log.into(), refilter)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    fn machine_lines(directives: &str, speak: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let filter = parse_filter(directives).unwrap();
        let (log, _) = new_log(move || writer.clone(), filter, None);
        dispatcher::with_default(&log, speak);
        lines.text()
    }

    #[test]
    fn a_json_line_has_its_fields_at_top_level() {
        let text = machine_lines("info", || {
            tracing::info!(target: "access", { exchange.id = "r-1" }, "answered");
        });
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            [
                &line["exchange.id"],
                &line["message"],
                &line["target"],
                &line["level"]
            ],
            ["r-1", "answered", "access", "INFO"]
        );
    }

    #[test]
    fn pingora_is_quiet_until_it_is_asked_for() {
        let speak = || {
            tracing::info!(target: "pingora_core::server", "Server starting");
            tracing::info!(target: "access", "answered");
        };
        let text = machine_lines("debug,access=off", speak);
        assert!(text.is_empty(), "{text}");
        let text = machine_lines("info,pingora_core=info", speak);
        assert_eq!(text.lines().count(), 2, "{text}");
        let speak = || {
            tracing::error!(target: "pingora_core::connectors", "failed to acquire reusable stream");
        };
        let text = machine_lines("info", speak);
        assert!(text.is_empty(), "{text}");
        let text = machine_lines("info,pingora_core::connectors=error", speak);
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
