//! Rejections that several parts of the directory return.

use std::borrow::Cow;
use std::time::Duration;

pub(super) use access::hierarchy::{not_found, workspace_removed};
use kernel::rejection::{Reason, Rejection};

/// `Retry-After` for a workspace that cannot be reached.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(15);

pub(super) fn no_instance() -> Rejection {
    Rejection::new(
        Reason::WorkspaceNotFound,
        "the workspace has no instance of this id: GET /workspaces/{id} lists them, and POST /registry/register adds one",
    )
}

pub(super) fn conflict(message: &'static str) -> Rejection {
    Rejection::new(Reason::Conflict, message)
}

/// Returns the rejection of an id that a workspace has, or had.
pub fn workspace_id_taken() -> Rejection {
    conflict(
        "a workspace of this id exists, or did: choose another; an operator gives a removed id away again with \"recreate\": true",
    )
}

pub(super) fn not_permitted(message: &'static str) -> Rejection {
    Rejection::new(Reason::NotPermitted, message)
}

pub(super) fn invalid(message: impl Into<Cow<'static, str>>) -> Rejection {
    Rejection::new(Reason::InvalidParams, message)
}
