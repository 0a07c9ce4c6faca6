//! A changed configuration while the gateway runs: when to load it again (SIGHUP, a changed file),
//! and what has to follow where a new one is in force.

mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::watch::Files;
use crate::audit::change::{operator_token, settings};
use crate::audit::{Draft, EventType};
use crate::coherence::Invalidation;
use crate::config::load::ADMIN_TOKEN;
use crate::config::load::{ConfigError, Layers, Problem, Source, load};
use crate::config::reload::{Change, Outcome};
use crate::gateway::Gateway;
use crate::rejection::Reason;
use crate::telemetry::{self, Chain};

/// Keys, or beginnings of keys, whose values remembered facts were judged by: which credential proves
/// whom, what is open to which call, where an agent may be.
const JUDGED_BY: [&str; 8] = [
    "A2A_GATEWAY_ADMIN_TOKEN",
    "a2a.complete",
    "address.",
    "auth.",
    "limits.target_concurrency",
    "server.public_url",
    "tokens.",
    "trusted_agents",
];

/// Loads `layers` again at SIGHUP and when one of their files changes. A background task; runs until
/// it is dropped.
pub async fn run(gateway: &Arc<Gateway>, layers: &Layers) {
    let mut hangup = signal(SignalKind::hangup())
        .inspect_err(|error| {
            tracing::error!(%error, "SIGHUP cannot be heard; only changes of files reload");
        })
        .ok();
    let read = layers.files();
    if let Some(path) = read.iter().find(|path| !can_be_read_again(path)) {
        let path = path.display();
        tracing::warn!(%path, "That is no regular file, so the configuration is read at the start only: no reload");
        loop {
            next(hangup.as_mut()).await;
            tracing::warn!(%path, "SIGHUP changes nothing: a part of the configuration cannot be read again");
        }
    }
    let filled: Vec<PathBuf> = read.iter().filter(|p| is_filled(p)).cloned().collect();
    let mut files = Files::watch(watched(gateway, layers));
    // What was changed since the start and before the watch.
    reload(gateway, layers, &filled).await;
    loop {
        files.set(watched(gateway, layers));
        let asked = tokio::select! {
            () = next(hangup.as_mut()) => true,
            () = files.changed() => false,
        };
        if asked {
            tracing::info!("SIGHUP: reading the configuration again");
            files.look();
        }
        reload(gateway, layers, &filled).await;
    }
}

/// Everything that is read: the layers, and what the configuration in force names.
fn watched(gateway: &Gateway, layers: &Layers) -> Vec<PathBuf> {
    let mut files = layers.files();
    files.extend(gateway.config().server.tls.files().cloned());
    files
}

async fn next(signal: Option<&mut Signal>) {
    if let Some(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}

/// What is not there is for loading to complain of. A pipe, such as `--config <(…)`, says it once.
fn can_be_read_again(path: &Path) -> bool {
    std::fs::metadata(path).is_err() || is_regular(path)
}

fn is_regular(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.is_file())
}

fn is_filled(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.len() > 0)
}

/// What speaks against reading files that held something at the start. An empty one is good TOML, and
/// would put the defaults in force and end an operator's token: it is about to be written, or the disk
/// is full. One that became a pipe could keep us waiting for ever.
fn unready(filled: &[PathBuf]) -> Option<ConfigError> {
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

/// Loads once, and has everything follow. A wrong configuration changes nothing.
async fn reload(gateway: &Gateway, layers: &Layers, filled: &[PathBuf]) {
    let loaded = unready(filled).map_or_else(|| load(layers), Err);
    match gateway.config.reload(loaded) {
        Outcome::Refused(error) => return refused(gateway, &error),
        Outcome::Unchanged { mended: false } => {}
        Outcome::Unchanged { mended: true } => {
            tracing::info!("The configuration is right again, and the same as before");
        }
        Outcome::Changed(change) => follow(gateway, &change).await,
    }
    let waiting = gateway.config.told().waiting.len();
    gateway.metrics.config_loaded(waiting);
}

fn refused(gateway: &Gateway, error: &ConfigError) {
    gateway.metrics.config_refused();
    // The keys, never what stands there.
    let keys = error
        .problems
        .iter()
        .filter_map(|problem| problem.key.as_deref());
    let keys: Vec<&str> = keys.collect();
    let draft = Draft {
        outcome: Reason::InvalidParams.word(),
        ..Draft::new(EventType::ConfigRefused)
    };
    gateway.audit.record(draft.with(json!({"keys": keys})));
    // One line: what collects logs takes each line end for the end of an entry.
    let problems: Vec<String> = error.problems.iter().map(ToString::to_string).collect();
    let problems = problems.join("; ");
    tracing::error!(
        problems,
        "The changed configuration cannot be used; the last good one stays in force"
    );
}

/// The new one is in force: forgets what was judged by the old one, and says what changed.
async fn follow(gateway: &Gateway, change: &Change) {
    // First: what follows is judged by it.
    let told = gateway.config.told();
    let applied = told.settings.iter();
    let applied = applied.filter(|setting| change.applied.contains(&setting.key));
    let mut values = settings(applied);
    for key in &change.applied {
        let value = || match key.as_str() {
            ADMIN_TOKEN => operator_token(&gateway.config()),
            _ => Value::Null,
        };
        values.entry(key.as_str()).or_insert_with(value);
    }
    let detail = json!({"keys": change.applied, "settings": values, "waiting": change.waiting});
    let changed = Draft::new(EventType::ConfigChanged).with(detail);
    gateway.audit.record(changed);
    let of = |key: &String| JUDGED_BY.iter().any(|judged| key.starts_with(judged));
    let within = |section: &str| change.applied.iter().any(|key| key.starts_with(section));
    if within("auth.issuers") {
        let config = gateway.config.hold();
        gateway.identity.set_issuers(&config.auth.issuers);
    }
    if within("rate.") {
        gateway.rates.set(&gateway.config().rate);
    }
    if change.applied.iter().any(of) {
        gateway.coherence.apply(&Invalidation::Everything).await;
    }
    if change.applied.iter().any(|key| key == "telemetry.log")
        && let Err(error) = telemetry::refilter(&gateway.config().telemetry.log)
    {
        tracing::error!(error = %Chain(&error), "The log goes on with its old filter");
    }
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
