//! `GET /config`: the configuration in force, changes that need a restart, and the result of the
//! last reload.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use access::workspace::Timestamp;
use kernel::config::load::Setting;
use kernel::config::reload::ConfigView;

/// Returns the body of the response. Secrets are masked in every [`Setting`].
pub(super) fn config_as_json(view: &ConfigView) -> Value {
    let settings: Vec<Value> = view.settings.iter().map(setting_as_json).collect();
    let waiting = view.waiting.iter();
    let waiting: Vec<Value> = waiting
        .map(|(key, new)| match new {
            Some(new) => setting_as_json(new),
            None => json!({"key": key, "value": null, "source": null}),
        })
        .collect();
    let failure = view.failure.as_ref();
    let problems = failure.map_or_else(Vec::new, |failure| {
        failure.problems.iter().map(ToString::to_string).collect()
    });
    json!({
        "loaded_at": to_timestamp(view.loaded_at),
        "last_reload": {
            "successful": failure.is_none(),
            "failed_at": failure.map(|failure| to_timestamp(failure.at)),
            "problems": problems,
        },
        "restart_needed": waiting,
        "settings": settings,
    })
}

fn setting_as_json(setting: &Setting) -> Value {
    json!({
        "key": setting.key,
        "value": setting.to_json(),
        "source": setting.source.to_string(),
    })
}

fn to_timestamp(at: SystemTime) -> Timestamp {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
