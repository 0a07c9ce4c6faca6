//! Patterns of a built-in guard: regular expressions that take linear time.

use regex::{Regex, RegexBuilder};
use serde::Deserialize;

use crate::closed_set::words;

/// Longest name of a guard, a cap or a pattern.
pub(super) const NAME_MAX: usize = 64;

/// Longest regular expression, in bytes.
const REGEX_MAX: usize = 4096;

/// Maximum bytes that one compiled regular expression takes.
const COMPILED_MAX: usize = 1 << 20;

words! {
    /// Treatment of a text in which a pattern matches.
    PatternAction {
        /// The call is rejected.
        Reject => "reject",
        /// The match is replaced by the pattern's name in brackets.
        Mask => "mask",
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
pub(super) fn problem_of(pattern: &Pattern) -> Option<String> {
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
pub(super) const NAME_FORM: &str = "has no good name: write 1 to 64 of a to z, 0 to 9, `_` and `-`";

/// True if it may be the name of a guard, a cap or a pattern.
pub(super) fn is_name(name: &str) -> bool {
    let known = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(known)
}
