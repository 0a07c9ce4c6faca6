//! A stop, and the words for its state.

use std::sync::Arc;

use super::scope::{End, Scope};
use access::identity::Operator;
use kernel::closed_set::words;
use kernel::ids::WorkspaceIncarnation;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;

words! {
    /// The calls that a stop ends.
    Mode {
        /// New calls are refused.
        New => "new",
        /// Calls and streams under way end, too.
        Running => "running",
    }
}

words! {
    /// How far the cancellation of a stop's tasks is.
    Cancel {
        /// It was not asked for.
        None => "none",
        /// The tasks are not listed yet.
        Wanted => "wanted",
        /// The tasks are listed, and being canceled.
        Listed => "listed",
        /// Each task has an outcome.
        Done => "done",
    }
}

words! {
    /// The outcome of the cancellation of one task.
    TaskOutcome {
        /// There is none yet.
        Pending => "pending",
        /// Its agent canceled it.
        Canceled => "canceled",
        /// Its agent says that it is over, that it cannot be canceled, or that there is none.
        Over => "over",
        /// Its agent could not be asked, or did not answer.
        Failed => "failed",
    }
}

/// A stop to be made.
#[derive(Clone, Debug)]
pub struct NewStop {
    /// The calls that it covers.
    pub scope: Scope,
    /// The org of what it covers; `None`: several, or none.
    pub org: Option<String>,
    /// The org of the org token that makes it. It then covers that org only.
    pub by_org: Option<String>,
    /// The root of that token's subtree, if it has one. It then covers that subtree only.
    pub by_subtree: Option<WorkspaceIncarnation>,
    /// The calls that it ends.
    pub mode: Mode,
    /// Its maker's reason, which refused callers get.
    pub reason: String,
    /// Its maker, as records name it.
    pub created_by: String,
    /// The operator who makes it; `None`: an org token does.
    pub operator: Option<Arc<Operator>>,
    /// The expiry; `None`: until it is released.
    pub expires_at: Option<Timestamp>,
    /// True if known tasks are canceled at their agents.
    pub cancel_tasks: bool,
}

/// A stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Its id. Ordered by time.
    pub id: String,
    /// The calls that it covers.
    pub scope: Scope,
    /// The org of what it covers; `None`: several, or none.
    pub org: Option<String>,
    /// The org of the org token that made it.
    pub by_org: Option<String>,
    /// The root of that token's subtree.
    pub by_subtree: Option<WorkspaceIncarnation>,
    /// The calls that it ends.
    pub mode: Mode,
    /// Its maker's reason.
    pub reason: String,
    /// Its maker.
    pub created_by: String,
    /// The operator who made it; `None`: an org token did, or an earlier release did not note it.
    pub operator: Option<Arc<Operator>>,
    /// Time of its creation.
    pub created_at: Timestamp,
    /// The expiry.
    pub expires_at: Option<Timestamp>,
    /// How far the cancellation of its tasks is.
    pub cancel: Cancel,
    /// Grows with each claim of the cancellation.
    pub(super) fence: i64,
}

impl Stop {
    pub(super) fn is_active_at(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }

    /// True if the maker's authority covers an end: that of an org token its org or its subtree, as the hierarchy is now.
    pub(super) fn is_over(&self, end: &End<'_>) -> bool {
        let in_org = self.by_org.is_none() || end.org == self.by_org.as_deref();
        in_org
            && self
                .by_subtree
                .as_ref()
                .is_none_or(|root| end.is_below(&root.id))
    }

    /// True if it covers a call between these ends. One that an org token made covers nothing of another org, or outside
    /// of the token's subtree, also after a move.
    pub fn covers_call(&self, ends: &[End<'_>; 2]) -> bool {
        let at = |end: &End<'_>| {
            self.is_over(end)
                && match &self.scope {
                    Scope::All => true,
                    Scope::Org(org) => end.org == Some(org),
                    Scope::Workspace(id) => end.id == Some(id),
                    Scope::Subtree(id) => end.is_below(id),
                    Scope::Pair(..) => false,
                }
        };
        match &self.scope {
            Scope::Pair(caller, target) => {
                let named = ends[0].id == Some(caller) && ends[1].id == Some(target);
                named && ends.iter().all(|end| self.is_over(end))
            }
            _ => ends.iter().any(at),
        }
    }

    /// Returns the rejection of a call.
    pub(super) fn as_rejection(&self) -> Rejection {
        Rejection::new(Reason::Stopped, self.reason.clone()).with_fact("stop", &self.id)
    }
}
