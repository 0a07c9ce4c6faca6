//! `GET /config`: the configuration in force, changes that need a restart, and the result of the
//! last reload.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::config::load::Setting;
use crate::config::reload::Told;
use crate::workspace::Timestamp;

/// Returns the body of the response. Secrets are masked in every [`Setting`].
pub(super) fn shown(told: &Told) -> Value {
    let settings: Vec<Value> = told.settings.iter().map(setting).collect();
    let waiting = told.waiting.iter();
    let waiting: Vec<Value> = waiting
        .map(|(key, new)| match new {
            Some(new) => setting(new),
            None => json!({"key": key, "value": null, "source": null}),
        })
        .collect();
    let failure = told.failure.as_ref();
    let problems = failure.map_or_else(Vec::new, |failure| {
        failure.problems.iter().map(ToString::to_string).collect()
    });
    json!({
        "loaded_at": time(told.loaded_at),
        "last_reload": {
            "successful": failure.is_none(),
            "failed_at": failure.map(|failure| time(failure.at)),
            "problems": problems,
        },
        "restart_needed": waiting,
        "settings": settings,
    })
}

fn setting(setting: &Setting) -> Value {
    json!({
        "key": setting.key,
        "value": setting.json(),
        "source": setting.source.to_string(),
    })
}

fn time(at: SystemTime) -> Timestamp {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
