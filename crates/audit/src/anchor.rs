//! Keeps the newest signed end of this replica's chain outside the database (`audit.anchor`): in the log,
//! in a file, or at a URL. An attacker who can write to the database can restore an older signed end and
//! remove the records behind it; `audit verify --anchor` detects that with the end that is kept here.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use super::chain::Statement;
use kernel::config::AuditAnchor;
use kernel::metrics::Metrics;
use kernel::telemetry::Chain as Causes;

/// Minimum interval between two writes of the end to a file or a URL.
const KEEP_EVERY: Duration = Duration::from_secs(1);

/// Delay between two attempts.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// Timeout of a write to a file or a URL.
const KEEP_MAX: Duration = Duration::from_secs(10);

/// Timeout of the last write before the process exits.
const LAST_MAX: Duration = Duration::from_secs(1);

/// Minimum interval between two log lines about an end that cannot be kept.
const FAILURE_TOLD_EVERY: Duration = Duration::from_secs(60);

/// Maximum number of chains in the file, those of earlier starts included.
const CHAINS_MAX: usize = 1000;

/// Maximum size of a file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The end of a chain as it is kept: one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct End {
    replica: String,
    seq: i64,
    hash: String,
    /// The time at which the chain ended here.
    time: String,
    /// The same facts, signed by a trust key.
    statement: String,
    /// True if a checkpoint was written with it.
    #[serde(skip)]
    has_checkpoint: bool,
}

/// The task that keeps the newest end.
pub(super) struct Anchor {
    newest: watch::Sender<Option<End>>,
    in_file: Arc<SharedSeq>,
}

/// The number of the last record in the file; locked while the file is written. A write outlives the future that waits
/// for it, and must not replace the end that a later one wrote.
type SharedSeq = Mutex<i64>;

#[derive(Debug, thiserror::Error)]
enum AnchorError {
    #[error("cannot write {0}")]
    File(String, #[source] io::Error),
    #[error("cannot send it")]
    Send(#[source] reqwest::Error),
    #[error("the answer was {0}; 2xx is needed")]
    Status(u16),
    #[error("it took longer than {} s", .0.as_secs())]
    TooSlow(Duration),
}

impl Anchor {
    pub(super) fn new() -> Self {
        let (newest, _) = watch::channel(None);
        Self {
            newest,
            in_file: Arc::default(),
        }
    }

    /// Accepts the end that was just written to SQL.
    pub(super) fn set_end(&self, end: &Statement, statement: &str, has_checkpoint: bool) {
        self.newest.send_replace(Some(End {
            replica: end.replica.clone(),
            seq: end.last,
            hash: end.hash.clone(),
            time: end.time.clone(),
            statement: statement.to_owned(),
            has_checkpoint,
        }));
    }

    /// Writes each new end to `place`. Runs until it is dropped.
    pub(super) async fn run(&self, place: &AuditAnchor, metrics: &Metrics) {
        let mut newest = self.newest.subscribe();
        let mut told: Option<Instant> = None;
        loop {
            // `self` holds the sender, so the channel stays open.
            let _ = newest.changed().await;
            loop {
                let end = newest.borrow_and_update().clone();
                let Some(error) = self.write_with_timeout(place, end, KEEP_MAX).await.err() else {
                    break;
                };
                metrics.audit.anchors_failed.inc();
                if told.is_none_or(|at| at.elapsed() >= FAILURE_TOLD_EVERY) {
                    told = Some(Instant::now());
                    tracing::warn!(error = %Causes(&error), "failed to write the end of the audit chain to audit.anchor; retrying");
                }
                sleep(RETRY_PAUSE).await;
            }
            sleep(KEEP_EVERY).await;
        }
    }

    /// Keeps the last end before the process exits.
    pub(super) async fn write_last_end(&self, place: &AuditAnchor, metrics: &Metrics) {
        let end = self.newest.borrow().clone();
        if let Err(error) = self.write_with_timeout(place, end, LAST_MAX).await {
            metrics.audit.anchors_failed.inc();
            tracing::warn!(error = %Causes(&error), "failed to write the last end of the audit chain to audit.anchor");
        }
    }

    async fn write_with_timeout(
        &self,
        place: &AuditAnchor,
        end: Option<End>,
        max: Duration,
    ) -> Result<(), AnchorError> {
        let Some(end) = end else { return Ok(()) };
        let kept = timeout(max, self.write_end(place, end)).await;
        kept.unwrap_or(Err(AnchorError::TooSlow(max)))
    }

    async fn write_end(&self, place: &AuditAnchor, end: End) -> Result<(), AnchorError> {
        match place {
            AuditAnchor::Log => {
                if end.has_checkpoint {
                    let (replica, seq, hash, statement) =
                        (end.replica, end.seq, end.hash, end.statement);
                    tracing::info!(replica, seq, hash, statement, "Audit anchor");
                }
                Ok(())
            }
            AuditAnchor::File(path) => {
                let (at, in_file) = (path.clone(), Arc::clone(&self.in_file));
                let write = move || write_newest(&at, &end, &in_file);
                let written = tokio::task::spawn_blocking(write).await;
                let written = written.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
                written.map_err(|error| AnchorError::File(path.display().to_string(), error))
            }
            AuditAnchor::Url(url) => post_end(url, &end).await,
        }
    }
}

/// Writes the end, unless the file has a later one.
fn write_newest(path: &Path, end: &End, in_file: &SharedSeq) -> io::Result<()> {
    let mut seq = in_file.lock();
    if end.seq >= *seq {
        rewrite_file(path, end)?;
        *seq = end.seq;
    }
    Ok(())
}

/// Rewrites the file with this end and the ends of other chains. Replaces it by a rename, so that a reader
/// never sees a partial file.
fn rewrite_file(path: &Path, end: &End) -> io::Result<()> {
    let before = match fs::metadata(path) {
        Ok(data) if data.len() <= FILE_BYTES_MAX => fs::read_to_string(path)?,
        Ok(_) => return Err(io::Error::other("it is larger than 16 MiB")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let is_other = |line: &&str| {
        let read: Option<End> = serde_json::from_str(line).ok();
        read.is_some_and(|other| other.replica != end.replica)
    };
    let mut lines: Vec<&str> = before.lines().filter(is_other).collect();
    let surplus = lines.len().saturating_sub(CHAINS_MAX - 1);
    lines.drain(..surplus);
    let own = serde_json::to_string(end)?;
    lines.push(&own);
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    // A new file of mode 0600: an existing one, or a link, is never opened.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    for line in lines {
        writeln!(file, "{line}")?;
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    fs::File::open(folder)?.sync_all()
}

async fn post_end(url: &Url, end: &End) -> Result<(), AnchorError> {
    // reqwest's rustls needs a default crypto provider. The call fails if one is installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(KEEP_MAX)
        .pool_max_idle_per_host(0)
        .user_agent(concat!("a2a-gateway/", env!("CARGO_PKG_VERSION")));
    let failed = |error: reqwest::Error| AnchorError::Send(error.without_url());
    let body = serde_json::json!(end).to_string();
    let request = client.build().map_err(failed)?.post(url.clone());
    let request = request.header("content-type", "application/json");
    let answer = request.body(body).send().await.map_err(failed)?;
    match answer.status() {
        status if status.is_success() => Ok(()),
        status => Err(AnchorError::Status(status.as_u16())),
    }
}

/// Returns the signed statements in a file of `audit.anchor`, in a file of a receiver of it, or in a JSON
/// log.
pub fn anchored_statements(text: &str) -> Vec<String> {
    let statement = |line: &str| {
        let read: serde_json::Value = serde_json::from_str(line).ok()?;
        let place = read
            .get("statement")
            .or(read.pointer("/fields/statement"))?;
        place.as_str().map(str::to_owned)
    };
    text.lines().filter_map(statement).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(replica: &str, seq: i64) -> End {
        End {
            replica: replica.to_owned(),
            seq,
            hash: "00".to_owned(),
            time: "2026-01-01T00:00:00.000Z".to_owned(),
            statement: format!("s-{replica}-{seq}"),
            has_checkpoint: false,
        }
    }

    #[test]
    fn a_file_has_the_newest_end_of_each_chain() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("anchor");
        rewrite_file(&path, &end("b", 9)).unwrap();
        let in_file = SharedSeq::default();
        for seq in [1, 2, 3, 2] {
            write_newest(&path, &end("a", seq), &in_file).unwrap();
        }
        let found = anchored_statements(&fs::read_to_string(&path).unwrap());
        assert_eq!(found, ["s-b-9", "s-a-3"]);
        for n in 0..CHAINS_MAX + 10 {
            rewrite_file(&path, &end(&format!("c-{n}"), 1)).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), CHAINS_MAX);
    }
}
