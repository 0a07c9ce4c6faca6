//! Member `probe` of a workspace, parsed from a body.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::directory::rejections::invalid;
use crate::rejection::Rejection;
use crate::workspace::{DeliveryMode, Liveness, StoredProbe};

/// Form of the member, in each rejection.
const FORM: &str = r#"`probe` is {"path" or "card", "every_seconds", "failures"}: `path` a text, or else `card` true, the others whole numbers; null takes it back"#;

/// Longest path, in bytes.
const PATH_BYTES_MAX: usize = 1024;

/// Bounds of `every_seconds`, and its default.
const EVERY_SECONDS: (u32, u32, u32) = (5, 3600, 30);

/// Bounds of `failures`, and its default.
const FAILURES: (u32, u32, u32) = (1, 20, 3);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    path: Option<String>,
    card: Option<bool>,
    every_seconds: Option<u32>,
    failures: Option<u32>,
}

/// Probe of one agent, as an operator set it.
#[derive(Clone, Debug)]
pub struct Probe(StoredProbe);

impl Probe {
    /// Parses the member `probe` of a body.
    ///
    /// # Errors
    /// `invalid_params`, with the cause.
    pub fn parse(json: &RawValue) -> Result<Self, Rejection> {
        let form: Form = serde_json::from_str(json.get()).map_err(|_| invalid(FORM))?;
        let card = form.card.unwrap_or(false);
        if form.path.is_some() == card {
            return Err(invalid(
                "`probe` has either `path`, which is asked, or `card`: true, to ask for the agent's card",
            ));
        }
        if let Some(path) = &form.path {
            check_path(path)?;
        }
        Ok(Self(StoredProbe {
            path: form.path,
            card,
            every_seconds: check_range("every_seconds", form.every_seconds, EVERY_SECONDS)?,
            failures: check_range("failures", form.failures, FAILURES)?,
        }))
    }

    /// Returns it as it is stored and shown.
    pub fn as_stored(&self) -> &StoredProbe {
        &self.0
    }

    /// Returns what it asks for: `path` or `card`.
    pub fn kind(&self) -> &'static str {
        if self.0.card { "card" } else { "path" }
    }
}

/// The path is written into a request line as it is.
fn check_path(path: &str) -> Result<(), Rejection> {
    let is_clean = path.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
    if path.starts_with('/') && path.len() <= PATH_BYTES_MAX && is_clean {
        return Ok(());
    }
    Err(invalid(format!(
        "`probe.path` begins with / and has at most {PATH_BYTES_MAX} bytes, without spaces, control characters or a \
         fragment (#); other characters than ASCII are percent-encoded"
    )))
}

fn check_range(
    name: &'static str,
    said: Option<u32>,
    (min, max, default): (u32, u32, u32),
) -> Result<u32, Rejection> {
    let value = said.unwrap_or(default);
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(invalid(format!(
        "`probe.{name}` is {value}: it is a whole number from {min} to {max}"
    )))
}

/// Checks that a workspace with a probe can be probed.
///
/// # Errors
/// `invalid_params`.
pub(in crate::directory) fn require_probed(
    liveness: Liveness,
    delivery: DeliveryMode,
) -> Result<(), Rejection> {
    if liveness == Liveness::Assumed && delivery == DeliveryMode::Push {
        return Ok(());
    }
    Err(invalid(
        "`probe` needs liveness assumed and delivery_mode push: an agent that registers proves its liveness by \
         heartbeats. Set both, or take the probe back with \"probe\": null",
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::rejection::Reason;

    fn parse(json: &Value) -> Result<Probe, Rejection> {
        Probe::parse(&serde_json::value::to_raw_value(json).unwrap())
    }

    #[test]
    fn a_probe_has_defaults_and_is_read_again_as_it_is_stored() {
        let probe = parse(&json!({"path": "/healthz?deep=1"})).unwrap();
        let stored = serde_json::to_value(probe.as_stored()).unwrap();
        let full = json!({"path": "/healthz?deep=1", "every_seconds": 30, "failures": 3});
        assert_eq!((probe.kind(), &stored), ("path", &full));
        let card = json!({"card": true, "every_seconds": 5, "failures": 20});
        let probe = parse(&card).unwrap();
        let stored = serde_json::to_value(probe.as_stored()).unwrap();
        assert_eq!((probe.kind(), &stored), ("card", &card));
        let again: StoredProbe = serde_json::from_value(stored).unwrap();
        assert_eq!(&again, probe.as_stored());
    }

    #[test]
    fn a_wrong_probe_is_refused_with_the_bound_that_it_breaks() {
        let path = |path: &str| json!({"path": path});
        for (json, told) in [
            (json!("/healthz"), "null takes it back"),
            (json!({"path": "/", "other": 1}), "null takes it back"),
            (json!({"path": 7}), "null takes it back"),
            (
                json!({"path": "/", "every_seconds": -1}),
                "null takes it back",
            ),
            (json!({}), "either `path`"),
            (json!({"card": false}), "either `path`"),
            (json!({"path": "/", "card": true}), "either `path`"),
            (json!({"path": "/", "every_seconds": 4}), "from 5 to 3600"),
            (
                json!({"path": "/", "every_seconds": 3601}),
                "from 5 to 3600",
            ),
            (json!({"card": true, "failures": 0}), "from 1 to 20"),
            (json!({"card": true, "failures": 21}), "from 1 to 20"),
            (path(""), "begins with /"),
            (path("healthz"), "begins with /"),
            (path("http://h/"), "begins with /"),
            (path("/a#b"), "fragment"),
            (path("/a b"), "spaces"),
            (path("/a\r\nHost: evil"), "control"),
            (path("/é"), "ASCII"),
            (path(&format!("/{}", "a".repeat(1024))), "1024 bytes"),
        ] {
            let refusal = parse(&json).unwrap_err();
            assert_eq!(refusal.reason, Reason::InvalidParams, "{json}");
            assert!(
                refusal.message.contains(told),
                "{json}: {}",
                refusal.message
            );
        }
        assert!(parse(&path(&format!("/{}", "a".repeat(1023)))).is_ok());
    }
}
