//! Servers that cannot be installed here: `scripts/test` names them, and counts the cases that need one as left out.

use std::panic::resume_unwind;
use std::thread;

use super::notes::append;

/// Servers that are missing, by the beginnings of their names, with spaces between them.
const WITHOUT: &str = "A2A_TEST_WITHOUT";

/// Leaves the case out if this server is missing: notes it, and ends it without a message.
#[expect(
    clippy::disallowed_methods,
    reason = "for scripts/test: the gateway itself reads no such variable"
)]
pub(super) fn leave_out_without(server: &str) {
    let without = std::env::var(WITHOUT).unwrap_or_default();
    let mut names = without.split_whitespace();
    if let Some(missing) = names.find(|name| server.starts_with(name)) {
        let case = thread::current();
        let line = format!("{} {missing}", case.name().unwrap_or_default());
        append("left-out", &line).expect("room for a line");
        resume_unwind(Box::new("left out"));
    }
}
