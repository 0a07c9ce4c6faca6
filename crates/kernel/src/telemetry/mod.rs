//! Telemetry: the log, traces, and error chains in one line.

mod address;
pub mod log;
pub mod traces;

use std::error::Error;
use std::fmt;

pub use self::address::MaskedAddress;
pub use self::log::{LogError, LogGuard, lines_dropped, replace_filter, start};

/// An error and its causes in one line: `cannot open the store: connection refused`.
///
/// A cause is omitted if the text above it already ends with it, since some crates repeat their source in
/// their own text.
pub struct Chain<'a>(pub &'a (dyn Error + 'a));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !said.ends_with(&text) {
                write!(f, ": {text}")?;
            }
            said = text;
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_says_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Step(&'static str, #[source] Option<Box<Step>>);
        let chain = |texts: [&'static str; 3]| {
            let [a, b, c] = texts;
            Step(a, Some(Box::new(Step(b, Some(Box::new(Step(c, None)))))))
        };
        let plain = chain(["cannot start", "cannot open the store", "refused"]);
        assert_eq!(
            Chain(&plain).to_string(),
            "cannot start: cannot open the store: refused"
        );
        let wordy = chain(["cannot start: refused", "refused", "refused"]);
        assert_eq!(Chain(&wordy).to_string(), "cannot start: refused");
    }
}
