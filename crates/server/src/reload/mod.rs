//! Reloads the configuration while the gateway runs: on SIGHUP and on a changed file. A valid configuration
//! is applied, and cached facts that depend on it are invalidated (`docs/reference/configuration.md`, "Reload").

mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::watch::Files;
use assembly::gateway::Gateway;
use audit::change::{operator_token_hash, settings_as_json};
use audit::{Draft, EventType};
use kernel::config::load::ADMIN_TOKEN;
use kernel::config::load::{ConfigError, Layers, Problem, Source, load};
use kernel::config::reload::{Change, Outcome};
use kernel::rejection::Reason;
use kernel::telemetry::{self, Chain};
use stores::coherence::Invalidation;

/// Keys, or prefixes of keys, that cached facts depend on: the principal of a credential, the access to a
/// call, the permitted addresses of agents.
const CACHED_FACT_KEYS: &str = "A2A_GATEWAY_ADMIN_TOKEN a2a.bridge a2a.complete address. admin.sign_in. auth. \
    breaker. concurrency. limits.target_concurrency limits.target_queue server.public_url tokens. trusted_agents";

/// Reloads `layers` on SIGHUP and when one of their files changes. A background task that runs until it is
/// dropped.
pub(super) async fn run(gateway: &Arc<Gateway>, layers: &Layers) {
    let mut hangup = signal(SignalKind::hangup())
        .inspect_err(|error| {
            tracing::error!(%error, "failed to install the SIGHUP handler; only changed files reload");
        })
        .ok();
    let read = layers.files();
    if let Some(path) = read.iter().find(|path| !can_be_read_again(path)) {
        let path = path.display();
        tracing::warn!(%path, "not a regular file; the configuration is read at startup only and cannot be reloaded");
        loop {
            next_hangup(hangup.as_mut()).await;
            tracing::warn!(%path, "SIGHUP ignored: a part of the configuration cannot be read again");
        }
    }
    let is_filled = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|file| file.len() > 0);
    let filled: Vec<PathBuf> = read
        .iter()
        .filter(|path| is_filled(path))
        .cloned()
        .collect();
    let mut files = Files::watch(watched_files(gateway, layers));
    // Applies changes made between startup and the watch.
    reload_once(gateway, layers, &filled).await;
    loop {
        while files.set_paths(watched_files(gateway, layers)) {
            // Those that are watched from now on may have changed since they were read.
            reload_once(gateway, layers, &filled).await;
        }
        let asked = tokio::select! {
            () = next_hangup(hangup.as_mut()) => true,
            () = files.wait_for_change() => false,
        };
        if asked {
            tracing::info!("SIGHUP received; reloading the configuration");
            files.accept_current();
        }
        reload_once(gateway, layers, &filled).await;
    }
}

/// Returns all files that are read: those of the layers, and those named by the current configuration.
fn watched_files(gateway: &Gateway, layers: &Layers) -> Vec<PathBuf> {
    let mut files = layers.files();
    files.extend(gateway.config().server.tls.files().cloned());
    files
}

async fn next_hangup(signal: Option<&mut Signal>) {
    if let Some(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}

/// Returns false for a file that can be read only once, such as a pipe (`--config <(…)`). A missing file is
/// left to the loader to report.
fn can_be_read_again(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |file| file.is_file())
}

/// Returns a problem with files that had content at startup. An empty file is valid TOML, and would apply
/// the defaults and remove an operator's token: it is about to be written, or the disk is full. A file that
/// became a pipe could block forever.
fn find_unready(filled: &[PathBuf]) -> Option<ConfigError> {
    let problem = |path: &PathBuf| {
        let reason = match std::fs::metadata(path) {
            Ok(file) if !file.is_file() => "is no regular file any more",
            Ok(file) if file.len() == 0 => {
                "is empty, as if it was still being written; if nothing is to be set, write a comment"
            }
            _ => return None,
        };
        Some(Problem {
            key: None,
            source: Some(Source::File(path.clone())),
            reason: reason.to_owned(),
        })
    };
    let problems: Vec<Problem> = filled.iter().filter_map(problem).collect();
    (!problems.is_empty()).then_some(ConfigError { problems })
}

/// Reloads once. An invalid configuration changes nothing.
async fn reload_once(gateway: &Gateway, layers: &Layers, filled: &[PathBuf]) {
    let loaded = find_unready(filled).map_or_else(|| load(layers), Err);
    match gateway.config.reload(loaded) {
        Outcome::Refused(error) => return report_refusal(gateway, &error),
        Outcome::Unchanged { mended: false } => {}
        Outcome::Unchanged { mended: true } => {
            tracing::info!("configuration is valid again, and unchanged");
        }
        Outcome::Changed(change) => follow_change(gateway, change).await,
    }
    let waiting = gateway.config.view().waiting.len();
    gateway.metrics.record_config_loaded(waiting);
}

fn report_refusal(gateway: &Gateway, error: &ConfigError) {
    gateway.metrics.config_reloaded.set(0);
    // Only the keys, never their values.
    let keys = error
        .problems
        .iter()
        .filter_map(|problem| problem.key.as_deref());
    let keys: Vec<&str> = keys.collect();
    let draft = Draft {
        outcome: Reason::InvalidParams.as_str(),
        ..Draft::new(EventType::ConfigRefused)
    };
    gateway
        .audit
        .record(draft.with_detail(json!({"keys": keys})));
    // One line, since log collectors split entries at line ends.
    let problems: Vec<String> = error.problems.iter().map(ToString::to_string).collect();
    let problems = problems.join("; ");
    tracing::error!(
        problems,
        "The changed configuration cannot be used; the last good one stays in force"
    );
}

/// Applies a changed configuration: invalidates facts that depend on the old one, shows it to operators, and logs the
/// changes.
async fn follow_change(gateway: &Gateway, change: Change) {
    // Recorded first: what follows depends on it.
    let applied = change.view.settings.iter();
    let applied = applied.filter(|setting| change.applied.contains(&setting.key));
    let mut values = settings_as_json(applied);
    for key in &change.applied {
        let value = || match key.as_str() {
            ADMIN_TOKEN => operator_token_hash(&gateway.config()),
            _ => Value::Null,
        };
        values.entry(key.as_str()).or_insert_with(value);
    }
    let detail = json!({"keys": change.applied, "settings": values, "waiting": change.waiting});
    let changed = Draft::new(EventType::ConfigChanged).with_detail(detail);
    gateway.audit.record(changed);
    let of = |key: &String| {
        let mut prefixes = CACHED_FACT_KEYS.split(' ');
        prefixes.any(|prefix| key.starts_with(prefix))
    };
    let within = |section: &str| change.applied.iter().any(|key| key.starts_with(section));
    if within("auth.") {
        let config = gateway.config.snapshot();
        gateway.identity.set_issuers(&config.auth);
    }
    if within("rate.") {
        gateway.rates.set(&gateway.config().rate);
    }
    if change.applied.iter().any(of) {
        gateway.coherence.apply(&Invalidation::Everything).await;
    }
    if change.applied.iter().any(|key| key == "telemetry.log")
        && let Err(error) = telemetry::replace_filter(&gateway.config().telemetry.log)
    {
        tracing::error!(error = %Chain(&error), "failed to change the log filter; the old one stays");
    }
    gateway.config.set_view(change.view);
    if within("a2a.default_workspace") {
        gateway.look_for_default_workspace().await;
    }
    if !change.applied.is_empty() {
        let keys = change.applied.join(", ");
        tracing::info!(keys, "A changed configuration is in force");
    }
    if !change.waiting.is_empty() {
        let keys = change.waiting.join(", ");
        tracing::warn!(
            keys,
            "These changed keys count after a restart; until then they stay as they were"
        );
    }
    for note in &change.notes {
        tracing::warn!("{note}");
    }
}
