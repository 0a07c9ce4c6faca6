//! The problems of a document, each with its place, up to a bound.

use serde_json::{Value, json};

use crate::members::wrong_member;
use crate::rejection::{Reason, Rejection};

/// Problems that are told at most.
const TOLD_MAX: usize = 100;

/// The problems of a document.
#[derive(Debug, Default)]
pub(super) struct Problems {
    told: Vec<Value>,
    count: usize,
}

impl Problems {
    /// Notes that the entry at `path` is refused.
    pub(super) fn note(&mut self, path: &str, why: &Rejection) {
        self.count += 1;
        if self.told.len() < TOLD_MAX {
            self.told.push(json!({
                "path": path, "reason": why.reason.as_str(), "error": why.message,
            }));
        }
    }

    /// Notes a member of a wrong name or type.
    pub(super) fn note_member(
        &mut self,
        path: &str,
        error: &serde_path_to_error::Error<serde_json::Error>,
    ) {
        let member = error.path().to_string();
        let path = match member.as_str() {
            "." => path.to_owned(),
            member => format!("{path}.{member}"),
        };
        self.note(&path, &wrong_member(error));
    }

    /// Refuses the document if there is a problem.
    ///
    /// # Errors
    /// `invalid_params`.
    pub(super) fn check(self) -> Result<(), Rejection> {
        if self.count == 0 {
            return Ok(());
        }
        let message = match self.count {
            1 => "the policy has an error, and nothing was changed: `errors` has its place"
                .to_owned(),
            count if count > TOLD_MAX => format!(
                "the policy has {count} errors, and nothing was changed: `errors` has the first {TOLD_MAX}"
            ),
            count => {
                format!("the policy has {count} errors, and nothing was changed: `errors` has them")
            }
        };
        Err(Rejection::new(Reason::InvalidParams, message).list("errors", self.told))
    }
}
