//! `[[cap]]`: how much calls may use in total, counted by run, context, caller, pair, target, org or root.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::Scope;
use super::guard::{GuardMode, NAME_MAX, enforce_by_default, is_name};
use super::tables::{self, entries};
use super::value::duration;
use crate::closed_set::words;

/// Maximum caps: each counts each call that it covers.
const CAPS_MAX: usize = 64;

/// Greatest limit: greater numbers are not exact in JSON.
const LIMIT_MAX: u64 = 1 << 53;

/// Shortest and longest window.
const WINDOWS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_hours(31 * 24));

words! {
    /// By what the calls of a cap are counted.
    CapPer {
        /// A run: `metadata.run_id`, else the trace, else the context.
        Run => "run",
        /// A `contextId`.
        Context => "context",
        /// A caller.
        Caller => "caller",
        /// A caller with a target.
        Pair => "pair",
        /// A target.
        Target => "target",
        /// The callers of one org.
        Org => "org",
        /// The root of a chain; without one the caller.
        Root => "root",
    }

    /// The quantity that a cap counts.
    CapCount {
        /// Calls that send a message.
        Messages => "messages",
        /// Calls that begin a task.
        Tasks => "tasks",
        /// Calls that ask for a stream.
        Streams => "streams",
        /// Bytes of the bodies of requests and answers.
        Bytes => "bytes",
        /// Time that calls take.
        Seconds => "seconds",
    }
}

impl CapCount {
    /// True if one call is one unit, known before it is sent.
    pub const fn is_by_call(self) -> bool {
        matches!(self, Self::Messages | Self::Tasks | Self::Streams)
    }
}

entries! {
    /// One entry of `[[cap]]`.
    Cap {
        /// Its name, in rejections, metrics and `GET /caps`.
        name: String => "a text such as \"run-messages\"",
        /// By what it counts.
        per: CapPer => "\"run\", \"context\", \"caller\", \"pair\", \"target\", \"org\" or \"root\"",
        /// The quantity that it counts.
        count: CapCount => "\"messages\", \"tasks\", \"streams\", \"bytes\" or \"seconds\"",
        /// The greatest count.
        limit: u64 => "a whole number from 1 on, without quotes",
        /// The time after which a count begins again; `None`: it lasts as long as its run or context.
        #[serde(default, deserialize_with = "window")]
        window: Option<Duration> => "a duration such as \"1h\"",
        /// The targets of the calls that it counts.
        #[serde(default = "Scope::all")]
        scope: Scope => "a list such as [\"my-agent\", \"org:acme\"] or [\"*\"]",
        /// The effect on calls over it.
        #[serde(default = "enforce_by_default")]
        mode: GuardMode => "\"enforce\" or \"observe\"",
    }
}

fn window<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

/// Returns the problems of the list.
pub(super) fn find_problems(caps: &[Cap]) -> Vec<String> {
    tables::find_problems(
        ("caps", CAPS_MAX),
        caps,
        |cap| &cap.name,
        |number, cap| {
            let (name, mut problems) = (&cap.name, Vec::new());
            if !is_name(name) {
                return vec![format!(
                    "`name` of cap {number} must be 1 to {NAME_MAX} of a-z, 0-9, `-` and `_`, such as \"run-messages\""
                )];
            }
            let ends = matches!(cap.per, CapPer::Run | CapPer::Context);
            list! { problems;
                !(1..=LIMIT_MAX).contains(&cap.limit)
                    => "`limit` of `{name}` must be from 1 to {LIMIT_MAX}; to stop all calls, use POST /stops";
                cap.window.is_some_and(|window| window < WINDOWS.0 || WINDOWS.1 < window)
                    => "`window` of `{name}` must be from 1s to 31days";
                cap.window.is_none() && !ends
                    => "`{name}` counts by {}, which does not end: it needs a `window`, such as \"1h\"", cap.per.as_str();
            }
            problems
        },
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::load::{ConfigError, Layers, LoadedConfig, load};

    fn set(value: &str) -> Result<LoadedConfig, ConfigError> {
        load(&Layers {
            overrides: vec![format!("cap={value}")],
            ..Layers::default()
        })
    }

    fn good() -> serde_json::Value {
        json!({"name": "run-messages", "per": "run", "count": "messages", "limit": 500})
    }

    #[test]
    fn caps_are_read_from_a_file_and_from_one_value() {
        let loaded = set(&json!([good()]).to_string()).unwrap();
        let [cap] = &loaded.config.cap[..] else {
            panic!("one cap");
        };
        assert_eq!(
            (cap.per, cap.count, cap.limit),
            (CapPer::Run, CapCount::Messages, 500)
        );
        assert_eq!((cap.window, &cap.scope), (None, &Scope::all()));
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "[[cap]]\nname = \"a\"\nper = \"org\"\ncount = \"bytes\"\nlimit = 9\nwindow = \"1h\"\nscope = [\"org:x\"]\n";
        std::fs::write(file.path(), text).unwrap();
        let read = load(&Layers {
            file: Some(file.path().to_owned()),
            ..Layers::default()
        });
        assert_eq!(
            read.unwrap().config.cap[0].window,
            Some(Duration::from_hours(1))
        );
    }

    #[test]
    fn a_cap_that_makes_no_sense_is_refused_with_the_next_step() {
        let with = |member: &str, value: serde_json::Value| {
            let mut cap = good();
            cap[member] = value;
            json!([cap]).to_string()
        };
        let many: Vec<_> = (0..65)
            .map(|n| {
                let mut cap = good();
                cap["name"] = n.to_string().into();
                cap
            })
            .collect();
        for (value, part) in [
            (with("name", "Big Cap".into()), "must be 1 to 64"),
            (with("name", "".into()), "must be 1 to 64"),
            (with("limit", 0.into()), "from 1 to"),
            (with("limit", (-1).into()), "`limit` must be a whole number"),
            (with("per", "target".into()), "needs a `window`"),
            (with("window", "10ms".into()), "from 1s to 31days"),
            (with("window", "60days".into()), "from 1s to 31days"),
            (with("window", 5.into()), "`window` must be a duration"),
            (with("per", "day".into()), "`per` must be \"run\""),
            (with("mode", "off".into()), "`mode` must be \"enforce\""),
            (
                with("count", "tokens".into()),
                "`count` must be \"messages\"",
            ),
            (with("scope", json!([])), "`scope` must be a list"),
            (with("scope", json!(["org:"])), "`scope` must be a list"),
            (with("colour", "red".into()), "there is no `colour`"),
            (json!([good(), good()]).to_string(), "stands twice"),
            (json!(many).to_string(), "at most 64"),
            ("500".to_owned(), "write [[cap]]"),
        ] {
            let text = set(&value).unwrap_err().to_string();
            assert!(
                text.contains("cap") && text.contains(part),
                "{value}: {text}"
            );
        }
    }
}
