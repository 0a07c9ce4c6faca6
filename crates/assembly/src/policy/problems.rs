//! The problems of a document, each with its place, up to a bound, and the rejections of places in the hierarchy.

use serde_json::{Value, json};

use access::workspace::LINE_MAX;
use directory::id_taken;
use kernel::json_errors::wrong_member;
use kernel::rejection::{Reason, Rejection};

/// Problems that are listed at most.
const LISTED_MAX: usize = 100;

/// The problems of a document.
#[derive(Debug, Default)]
pub(super) struct Problems {
    listed: Vec<Value>,
    count: usize,
}

impl Problems {
    /// Notes that the entry at `path` is refused.
    pub(super) fn add(&mut self, path: &str, why: &Rejection) {
        self.count += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push(json!({
                "path": path, "reason": why.reason.as_str(), "error": why.message,
            }));
        }
    }

    /// Notes a member of a wrong name or type.
    pub(super) fn add_member(
        &mut self,
        path: &str,
        error: &serde_path_to_error::Error<serde_json::Error>,
    ) {
        let member = error.path().to_string();
        let path = match member.as_str() {
            "." => path.to_owned(),
            member => format!("{path}.{member}"),
        };
        self.add(&path, &wrong_member(error));
    }

    /// Refuses the document if there is a problem.
    ///
    /// # Errors
    /// `invalid_params`.
    pub(super) fn into_result(self) -> Result<(), Rejection> {
        if self.count == 0 {
            return Ok(());
        }
        let message = match self.count {
            1 => "the policy has an error, and nothing was changed: `errors` has its place"
                .to_owned(),
            count if count > LISTED_MAX => format!(
                "the policy has {count} errors, and nothing was changed: `errors` has the first {LISTED_MAX}"
            ),
            count => {
                format!("the policy has {count} errors, and nothing was changed: `errors` has them")
            }
        };
        Err(Rejection::new(Reason::InvalidParams, message).with_list("errors", self.listed))
    }
}

/// Returns the rejection of a removed id in a policy that does not recreate.
pub(super) fn id_removed() -> Rejection {
    let mut rejection = id_taken();
    rejection.reason = Reason::WorkspaceRemoved;
    rejection.message = "the workspace of this id was removed: choose another id, or say \"recreate\": true in the policy, \
                         and it comes back without tokens, grants, tasks and messages"
        .into();
    rejection
}

/// Returns the rejection of a place that makes the hierarchy too deep.
pub(super) fn too_deep() -> Rejection {
    let message = format!(
        "the hierarchy is {LINE_MAX} levels deep at most: choose a parent that is higher up"
    );
    Rejection::new(Reason::Conflict, message).with_fact("limit", LINE_MAX)
}

/// Returns the rejection of an id that comes back in another org than the workspaces below it.
pub(super) fn other_org_below() -> Rejection {
    Rejection::new(
        Reason::Conflict,
        "workspaces below it belong to another org: name that org, or move them to another parent first",
    )
}
