//! A changed configuration while the gateway runs: when to load it again (SIGHUP, a changed file),
//! and what has to follow where a new one is in force.

mod watch;

use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};

use self::watch::Files;
use crate::coherence::Invalidation;
use crate::config::load::{ConfigError, Layers, load};
use crate::config::reload::{Change, Outcome};
use crate::gateway::Gateway;
use crate::telemetry::{self, Chain};

/// Keys, or beginnings of keys, whose values remembered facts were judged by: which credential proves
/// whom, what is open to which call, where an agent may be.
const JUDGED_BY: [&str; 7] = [
    "A2A_GATEWAY_ADMIN_TOKEN",
    "a2a.complete",
    "address.",
    "auth.",
    "limits.target_concurrency",
    "server.public_url",
    "tokens.",
];

/// Loads `layers` again at SIGHUP and when one of their files changes. A background task; runs until
/// it is dropped.
pub async fn run(gateway: &Arc<Gateway>, layers: &Layers) {
    let mut hangup = signal(SignalKind::hangup())
        .inspect_err(|error| {
            tracing::error!(%error, "SIGHUP cannot be heard; only changes of files reload");
        })
        .ok();
    let mut files = Files::watch(layers.files());
    // What was changed since the start and before the watch.
    reload(gateway, layers).await;
    loop {
        let asked = tokio::select! {
            () = next(hangup.as_mut()) => true,
            () = files.changed() => false,
        };
        if asked {
            tracing::info!("SIGHUP: reading the configuration again");
            files.look();
        }
        reload(gateway, layers).await;
    }
}

async fn next(signal: Option<&mut Signal>) {
    if let Some(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}

/// Loads once, and has everything follow. A wrong configuration changes nothing.
async fn reload(gateway: &Gateway, layers: &Layers) {
    match gateway.config.reload(load(layers)) {
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
