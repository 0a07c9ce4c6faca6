//! `[[guard]]`: services and patterns that judge what messages, answers and events say.

use std::time::Duration;

use a2a::method::Method;
use regex::{Regex, RegexBuilder};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use toml::Value;

use super::Scope;
use super::tables::{self, entries};
use super::value::{ByteSize, duration, has_user, is_http, secret_url};
use crate::closed_set::words;

/// Maximum guards: each may be asked in turn.
const GUARDS_MAX: usize = 32;

/// Maximum patterns of one guard.
const PATTERNS_MAX: usize = 100;

/// Bounds of `timeout`.
const TIMEOUT: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(60);

/// Bounds of `max_bytes`.
const BYTES: std::ops::RangeInclusive<u64> = 1 << 10..=10 << 20;

/// Fields of the questions that `header` cannot set.
const OWN_FIELDS: [&str; 6] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "content-type",
    "x-a2a-guard-token",
];

/// Maximum of `concurrency`.
const CONCURRENCY_MAX: usize = 100_000;

/// Longest name of a guard, a cap or a pattern.
pub(super) const NAME_MAX: usize = 64;

/// Longest regular expression, in bytes.
const REGEX_MAX: usize = 4096;

/// Maximum bytes that one compiled regular expression takes.
const COMPILED_MAX: usize = 1 << 20;

words! {
    /// A phase in which a guard is asked.
    GuardPhase {
        /// Before a call is sent, or put into an inbox.
        Request => "request",
        /// Before an answer in one body goes to the caller.
        Response => "response",
        /// Before an event of a stream goes to the caller.
        Event => "event",
    }

    /// Treatment of a call when a guard fails.
    OnFailure {
        /// The call is rejected.
        Deny => "deny",
        /// The document passes.
        Allow => "allow",
    }

    /// If verdicts have an effect.
    GuardMode {
        /// Calls wait for verdicts and follow them.
        Enforce => "enforce",
        /// Verdicts are recorded only; calls do not wait.
        Observe => "observe",
    }

    /// The events of a stream that a guard is asked about.
    GuardStream {
        /// Each.
        Each => "each",
        /// The last one of a turn only.
        Final => "final",
        /// None.
        Off => "off",
    }

    /// Treatment of a text in which a pattern matches.
    PatternAction {
        /// The call is rejected.
        Reject => "reject",
        /// The match is replaced by the pattern's name in brackets.
        Mask => "mask",
    }

    /// A guard that needs no server.
    Builtin {
        /// Regular expressions.
        Patterns => "patterns",
    }
}

entries! {
    /// One table of `[[guard]]`.
    Guard {
        /// Its name, in records and metrics.
        name: String => "a text such as \"secrets\"",
        /// The URL that is asked; `None` for a built-in guard.
        url: Option<url::Url> => "a URL such as \"http://127.0.0.1:9000/check\"",
        /// A guard without a server.
        builtin: Option<Builtin> => "\"patterns\"",
        /// The patterns of `builtin = "patterns"`, in order.
        #[serde(default)]
        patterns: Vec<Pattern>
            => "a list such as [{ name = \"aws-key\", regex = 'AKIA[0-9A-Z]{16}' }], where `action` may be \"reject\" or \"mask\"",
        /// The phases in which it is asked.
        #[serde(default = "all_phases")]
        phases: Vec<GuardPhase> => "a list of \"request\", \"response\" and \"event\"",
        /// The names of the methods that it is asked about, of either generation; `None`: all.
        methods: Option<Vec<String>> => "a list such as [\"message/send\", \"SendMessage\"]",
        /// The targets of the calls that it is asked about.
        #[serde(default = "Scope::all")]
        targets: Scope => "a list such as [\"my-agent\", \"org:acme\"] or [\"*\"]",
        /// Longest wait for a verdict, all of it.
        #[serde(deserialize_with = "duration", default = "two_seconds")]
        timeout: Duration => "a duration such as \"2s\"",
        /// Treatment of a call when it fails.
        #[serde(default = "deny_by_default")]
        on_failure: OnFailure => "\"deny\" or \"allow\"",
        /// If its verdicts have an effect.
        #[serde(default = "enforce_by_default")]
        mode: GuardMode => "\"enforce\" or \"observe\"",
        /// The events that it is asked about.
        #[serde(default = "each_event")]
        stream: GuardStream => "\"each\", \"final\" or \"off\"",
        /// Maximum bytes of a message, result or event that it is asked about.
        #[serde(default = "one_mebibyte")]
        max_bytes: ByteSize => "a size such as \"1MiB\"",
        /// Maximum questions at once.
        #[serde(default = "default_concurrency")]
        concurrency: usize => "a whole number, without quotes",
        /// A header field of the questions: `Name: value`.
        #[serde(default)]
        header: Option<SecretHeader> => "a text, \"Name: value\"",
    }
}

sections! {
    /// One pattern of a built-in guard.
    #[derive(PartialEq, Eq)]
    Pattern {
        /// Its name, in rejections and in place of what it masks.
        name: String,
        /// The regular expression, in the syntax of the `regex` crate, which takes linear time.
        regex: String,
        /// Treatment of a text in which it matches.
        #[serde(default = "reject_by_default")]
        action: PatternAction,
    }
}

impl Pattern {
    /// Compiles the regular expression.
    ///
    /// # Errors
    /// It is none, or too large.
    pub fn compile(&self) -> Result<Regex, regex::Error> {
        RegexBuilder::new(&self.regex)
            .size_limit(COMPILED_MAX)
            .build()
    }
}

/// Returns the problem of a pattern.
fn problem_of(pattern: &Pattern) -> Option<String> {
    let name = &pattern.name;
    if !is_name(name) {
        return Some(format!("pattern `{name}` {NAME_FORM}"));
    }
    let why = match pattern.compile() {
        _ if pattern.regex.len() > REGEX_MAX => format!("is longer than {REGEX_MAX} bytes"),
        Err(regex::Error::CompiledTooBig(_)) => format!(
            "takes more than {COMPILED_MAX} bytes when it is compiled: use shorter repetitions"
        ),
        Err(error) => {
            // Several lines: the expression, a mark below the place, the reason.
            let error = error.to_string();
            let why = error.lines().last().unwrap_or_default();
            let why = why.trim_start_matches("error: ");
            format!(
                "is no regular expression of the `regex` crate, which has neither look-around nor back-references: {why}"
            )
        }
        Ok(regex) if regex.is_match("") => {
            "matches the empty text, so it matches everywhere".to_owned()
        }
        Ok(_) => return None,
    };
    Some(format!("`regex` of pattern `{name}` {why}"))
}

const fn reject_by_default() -> PatternAction {
    PatternAction::Reject
}

/// Form of a name, in each rejection.
const NAME_FORM: &str = "has no good name: write 1 to 64 of a to z, 0 to 9, `_` and `-`";

/// True if it may be the name of a guard, a cap or a pattern.
pub(super) fn is_name(name: &str) -> bool {
    let known = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(known)
}

/// A header field with a secret value.
#[derive(Clone, Debug, Deserialize)]
pub struct SecretHeader(#[serde(deserialize_with = "secret_url")] SecretString);

impl PartialEq for SecretHeader {
    fn eq(&self, other: &Self) -> bool {
        self.0.expose_secret() == other.0.expose_secret()
    }
}

impl Eq for SecretHeader {}

impl SecretHeader {
    /// Returns name and value. `None`: it is not `Name: value`.
    pub fn parts(&self) -> Option<(http::HeaderName, &str)> {
        let (name, value) = self.0.expose_secret().split_once(':')?;
        let name = http::HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
        let value = value.trim();
        let plain = !value.is_empty() && http::HeaderValue::from_str(value).is_ok();
        plain.then_some((name, value))
    }
}

impl Guard {
    /// True if it is asked about calls of `method`.
    pub fn is_about(&self, method: Method) -> bool {
        let methods = self.methods.as_ref();
        methods.is_none_or(|names| names.iter().any(|name| Method::parse(name) == method))
    }

    fn find_problems(&self) -> Vec<String> {
        let (mut problems, builtin) = (Vec::new(), self.builtin.is_some());
        let header = self.header.as_ref().map(SecretHeader::parts);
        let names = self.methods.iter().flatten();
        let unknown = names.filter(|name| Method::parse(name) == Method::Other);
        list! { problems;
            self.url.is_some() == builtin => "needs either `url` or `builtin = \"patterns\"`";
            !builtin && self.url.as_ref().is_some_and(|url| !is_http(url) || has_user(url) || url.fragment().is_some())
                => "`url` must be http:// or https://, and hold no user, password or fragment";
            builtin == self.patterns.is_empty()
                => "`patterns` go with `builtin = \"patterns\"`, which needs at least one";
            self.patterns.len() > PATTERNS_MAX => "may have at most {PATTERNS_MAX} `patterns`";
            builtin && header.is_some() => "`header` goes with `url`";
            self.phases.is_empty() => "`phases` is empty, so it is never asked";
            !TIMEOUT.contains(&self.timeout) => "`timeout` must be 10ms to 60s";
            !BYTES.contains(&self.max_bytes.0) => "`max_bytes` must be 1KiB to 10MiB";
            !(1..=CONCURRENCY_MAX).contains(&self.concurrency) => "`concurrency` must be 1 to {CONCURRENCY_MAX}";
            header.is_some_and(|parts| parts.is_none_or(|(name, _)| OWN_FIELDS.contains(&name.as_str())))
                => "`header` must be \"Name: value\", and no field of the gateway's own";
            self.methods.as_ref().is_some_and(Vec::is_empty) => "`methods` is empty, so it is never asked";
        }
        problems.extend(unknown.map(|name| {
            format!("`{name}` in `methods` is no method of A2A: write \"message/send\" or \"SendMessage\"")
        }));
        problems.extend(self.patterns.iter().filter_map(problem_of));
        problems
    }
}

/// Returns the problems of the list.
pub(super) fn find_problems(guards: &[Guard]) -> Vec<String> {
    tables::find_problems(
        ("guards", GUARDS_MAX),
        guards,
        |guard| &guard.name,
        |number, guard| {
            let mut problems = Vec::new();
            list! { problems; !is_name(&guard.name) => "guard {number} {NAME_FORM}"; }
            let wrong = guard.find_problems();
            problems.extend(
                wrong
                    .into_iter()
                    .map(|why| format!("guard {number}: {why}")),
            );
            problems
        },
    )
}

/// Masks the header fields of the guards in a value of the key. `masked_url` masks a URL.
pub(super) fn mask_urls(value: &Value, masked_url: fn(&str) -> String) -> Value {
    let mut shown = value.clone();
    let tables = shown.as_array_mut().into_iter().flatten();
    for table in tables.filter_map(Value::as_table_mut) {
        if let Some(header) = table.get_mut("header") {
            *header = "***".into();
        }
        if let Some(url) = table.get_mut("url") {
            *url = masked_url(url.as_str().unwrap_or_default()).into();
        }
    }
    shown
}

fn all_phases() -> Vec<GuardPhase> {
    GuardPhase::ALL.to_vec()
}

const fn two_seconds() -> Duration {
    Duration::from_secs(2)
}

const fn deny_by_default() -> OnFailure {
    OnFailure::Deny
}

pub(super) const fn enforce_by_default() -> GuardMode {
    GuardMode::Enforce
}

const fn each_event() -> GuardStream {
    GuardStream::Each
}

const fn one_mebibyte() -> ByteSize {
    ByteSize(1 << 20)
}

const fn default_concurrency() -> usize {
    256
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::{ConfigError, Layers, LoadedConfig, load};

    fn set(value: &str) -> Result<LoadedConfig, ConfigError> {
        load(&Layers {
            overrides: vec![format!("guard={value}")],
            ..Layers::default()
        })
    }

    #[test]
    fn a_guard_has_defaults_and_its_header_is_never_shown() {
        let loaded = set(
            r#"[{"name":"pii","url":"http://g:1/a?key=s3cret","header":"X-Key: s3cret"},
               {"name":"own","builtin":"patterns","patterns":[{"name":"card","regex":"[0-9]{16}","action":"mask"}],
                "methods":["message/send","SendStreamingMessage"],"targets":["org:acme"],"timeout":"50ms"}]"#,
        );
        let loaded = loaded.unwrap();
        let [pii, own] = &loaded.config.guard[..] else {
            panic!("two guards");
        };
        assert_eq!(pii.timeout, Duration::from_secs(2));
        assert_eq!((pii.phases.len(), pii.concurrency), (3, 256));
        assert_eq!(pii.on_failure, OnFailure::Deny);
        let (name, value) = pii.header.as_ref().unwrap().parts().unwrap();
        assert_eq!((name.as_str(), value), ("x-key", "s3cret"));
        assert!(own.is_about(Method::SendMessage) && own.is_about(Method::SendStreamingMessage));
        assert!(!own.is_about(Method::GetTask) && pii.is_about(Method::GetTask));
        let shown = loaded.settings.iter().find(|s| s.key == "guard").unwrap();
        assert!(
            shown.value.contains("pii") && !shown.value.contains("s3cret"),
            "{}",
            shown.value
        );
        assert!(!format!("{:?}", loaded.config.guard[0].header).contains("s3cret"));
    }

    #[test]
    fn what_is_no_guard_is_refused_with_what_to_write() {
        let with = |more: &str| format!(r#"[{{"name":"a","url":"http://g/"{more}}}]"#);
        let patterns =
            |more: &str| format!(r#"[{{"name":"a","builtin":"patterns","patterns":{more}}}]"#);
        let many: Vec<_> = (0..33)
            .map(|n| serde_json::json!({"name": n.to_string(), "url": "http://g/"}))
            .collect();
        for (value, part) in [
            (with(r#","timeout":"5ms""#), "10ms to 60s"),
            (with(r#","timeout":"61s""#), "10ms to 60s"),
            (with(r#","max_bytes":"1023B""#), "1KiB to 10MiB"),
            (with(r#","max_bytes":"11MiB""#), "1KiB to 10MiB"),
            (with(r#","concurrency":0"#), "`concurrency`"),
            (with(r#","phases":[]"#), "never asked"),
            (with(r#","methods":[]"#), "never asked"),
            (with(r#","methods":["send"]"#), "no method of A2A"),
            (with(r#","targets":[]"#), "`targets` must be a list"),
            (
                with(r#","mode":"geheim""#),
                "`mode` must be \"enforce\" or \"observe\"",
            ),
            (with(r#","header":"geheim""#), "Name: value"),
            (with(r#","header":"Host: geheim""#), "Name: value"),
            (with(r#","builtin":"patterns""#), "either `url`"),
            (
                with(r#","patterns":[{"name":"x","regex":"x"}]"#),
                "`patterns`",
            ),
            (r#"[{"name":"a"}]"#.into(), "either `url`"),
            (
                r#"[{"name":"A b","url":"http://g/"}]"#.into(),
                "has no good name",
            ),
            (
                r#"[{"name":"a","url":"http://u:geheim@g/"}]"#.into(),
                "no user",
            ),
            (
                r#"[{"name":"a","url":"ftp://g/"}]"#.into(),
                "http:// or https://",
            ),
            (
                r#"[{"name":"a","url":"http://g/"},{"name":"a","url":"http://g/"}]"#.into(),
                "stands twice",
            ),
            (serde_json::json!(many).to_string(), "at most 32"),
            (patterns("[]"), "at least one"),
            (
                patterns(r#"[{"name":"x","regex":"(?=a)"}]"#),
                "no regular expression",
            ),
            (
                patterns(r#"[{"name":"x","regex":"a*"}]"#),
                "matches everywhere",
            ),
            (patterns(r#"[{"name":"","regex":"a"}]"#), "has no good name"),
            (
                patterns(r#"[{"name":"x","regex":"(a{1000}){1000}"}]"#),
                "takes more than",
            ),
            ("http://g/".into(), "write [[guard]]"),
        ] {
            let text = set(&value).unwrap_err().to_string();
            assert!(
                text.contains("guard") && text.contains(part),
                "{value}: {text}"
            );
            assert!(!text.contains("geheim"), "{text}");
        }
    }

    #[test]
    fn keys_that_are_missing_or_unknown_are_named_without_values() {
        for (value, part) in [
            (
                r#"[{"url":"http://u:geheim@g/"}]"#,
                "guard 1: `name` is missing",
            ),
            (
                r#"[{"name":"a","url":"http://g/"},{"name":"b","phase":["geheim"]}]"#,
                "guard 2: there is no `phase`",
            ),
        ] {
            let text = set(value).unwrap_err().to_string();
            assert!(text.contains(part) && !text.contains("geheim"), "{text}");
        }
    }
}
