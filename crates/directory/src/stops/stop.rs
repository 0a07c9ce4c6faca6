//! A stop: the calls that it covers, the ends of a call that it is compared with, the words for its state, and its form
//! in requests and in policies.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::rejections::invalid;
use access::hierarchy::{Lineage, Permit};
use access::identity::Operator;
use kernel::closed_set::words;
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;

/// The calls that a stop covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Calls from and to one workspace.
    Workspace(WorkspaceId),
    /// Calls from and to a workspace or one below it.
    Subtree(WorkspaceId),
    /// Calls from and to the workspaces of an org, and those of its users and integrations.
    Org(String),
    /// Calls of the first to the second.
    Pair(WorkspaceId, WorkspaceId),
    /// All calls.
    All,
}

impl Scope {
    /// Returns the kind, the name and the target, as the table has them.
    pub(super) fn to_columns(&self) -> [&str; 3] {
        match self {
            Self::Workspace(id) => ["workspace", id.as_str(), ""],
            Self::Subtree(id) => ["subtree", id.as_str(), ""],
            Self::Org(org) => ["org", org, ""],
            Self::Pair(caller, target) => ["pair", caller.as_str(), target.as_str()],
            Self::All => ["all", "", ""],
        }
    }

    /// Reads what [`Scope::to_columns`] returns.
    pub(super) fn from_columns([kind, name, target]: [&str; 3]) -> Option<Self> {
        let id = |text| WorkspaceId::parse(text).ok();
        Some(match kind {
            "workspace" => Self::Workspace(id(name)?),
            "subtree" => Self::Subtree(id(name)?),
            "org" => Self::Org(name.to_owned()),
            "pair" => Self::Pair(id(name)?, id(target)?),
            "all" => Self::All,
            _ => return None,
        })
    }

    /// Returns the form in requests and answers.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Workspace(id) => json!({"workspace": id.as_str()}),
            Self::Subtree(id) => json!({"subtree": id.as_str()}),
            Self::Org(org) => json!({"org": org}),
            Self::Pair(caller, target) => {
                json!({"caller": caller.as_str(), "target": target.as_str()})
            }
            Self::All => json!({"all": true}),
        }
    }

    /// Returns the workspaces that it names.
    pub fn named_workspaces(&self) -> impl Iterator<Item = &WorkspaceId> {
        let named = match self {
            Self::Workspace(id) | Self::Subtree(id) => [Some(id), None],
            Self::Pair(caller, target) => [Some(caller), Some(target)],
            Self::Org(_) | Self::All => [None, None],
        };
        named.into_iter().flatten()
    }
}

/// One end of a call.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// The workspace; `None`: a user, an integration or an operator.
    pub id: Option<&'a WorkspaceId>,
    /// The org; `None` also if it is unknown.
    pub org: Option<&'a str>,
    /// Its ancestors; none if they are unknown.
    pub ancestors: &'a [WorkspaceId],
}

impl<'a> End<'a> {
    /// Returns the end at a workspace.
    pub fn at_workspace(id: &'a WorkspaceId, place: Option<&'a Lineage>) -> Self {
        Self {
            id: Some(id),
            org: place.and_then(|place| place.org.as_deref()),
            ancestors: place.map_or(&[], |place| &place.ancestors),
        }
    }

    /// True if it is at this workspace, or at one below it.
    pub(super) fn is_below(&self, root: &WorkspaceId) -> bool {
        self.id == Some(root) || self.ancestors.contains(root)
    }

    /// Returns the end at a caller that is no workspace.
    pub fn of_org(org: Option<&'a str>) -> Self {
        Self {
            id: None,
            org,
            ancestors: &[],
        }
    }
}

/// The ends of a call, as a permit found them.
pub(super) fn call_ends(permit: &Permit) -> [End<'_>; 2] {
    let caller = match permit.caller() {
        Some(id) => End::at_workspace(id, permit.caller_lineage()),
        None => End::of_org(permit.org()),
    };
    [
        caller,
        End::at_workspace(permit.target(), permit.target_lineage()),
    ]
}

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

impl NewStop {
    /// Returns the stop as it would be, for decisions about it. Nothing is made.
    pub fn to_stop(&self, id: &str) -> Stop {
        Stop {
            id: id.to_owned(),
            scope: self.scope.clone(),
            org: self.org.clone(),
            by_org: self.by_org.clone(),
            by_subtree: self.by_subtree.clone(),
            mode: self.mode,
            reason: self.reason.clone(),
            created_by: self.created_by.clone(),
            operator: self.operator.clone(),
            created_at: Timestamp::now(),
            expires_at: self.expires_at,
            cancel: Cancel::None,
            fence: 0,
        }
    }
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

    /// True if the maker's authority covers an end: that of an org token its org or its subtree, as the hierarchy is
    /// now.
    pub(super) fn is_over(&self, end: &End<'_>) -> bool {
        let in_org = self.by_org.is_none() || end.org == self.by_org.as_deref();
        in_org
            && self
                .by_subtree
                .as_ref()
                .is_none_or(|root| end.is_below(&root.id))
    }

    /// True if it covers a call between these ends. One that an org token made covers nothing of another org, or
    /// outside of the token's subtree, also after a move.
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

/// Maximum characters of a reason.
const REASON_CHARS_MAX: usize = 500;

/// Maximum characters of the name of an org.
const ORG_CHARS_MAX: usize = 256;

/// The forms of a scope.
const SCOPES: &str = r#"`scope` is {"workspace":"ID"}, {"subtree":"ID"}, {"org":"NAME"}, {"caller":"ID","target":"ID"} or {"all":true}"#;

/// Reads a scope.
///
/// # Errors
/// `invalid_params`, `invalid_workspace_id`.
pub fn read_scope(said: &Map<String, Value>) -> Result<Scope, Rejection> {
    let text = |name: &str| said.get(name).and_then(Value::as_str);
    let members: Vec<&str> = said.keys().map(String::as_str).collect();
    Ok(match members.as_slice() {
        ["workspace"] => Scope::Workspace(parse_id(text("workspace"))?),
        ["subtree"] => Scope::Subtree(parse_id(text("subtree"))?),
        ["org"] => {
            let org = text("org").filter(|org| is_name(org));
            let message = "`scope.org` is the name of an org, text of 1 to 256 characters";
            Scope::Org(org.ok_or_else(|| invalid(message))?.to_owned())
        }
        ["caller", "target"] | ["target", "caller"] => {
            Scope::Pair(parse_id(text("caller"))?, parse_id(text("target"))?)
        }
        ["all"] if said["all"] == true => Scope::All,
        _ => return Err(invalid(SCOPES)),
    })
}

fn parse_id(text: Option<&str>) -> Result<WorkspaceId, Rejection> {
    let text = text.ok_or_else(|| invalid(SCOPES))?;
    Ok(WorkspaceId::parse(text)?)
}

fn is_name(text: &str) -> bool {
    !text.trim().is_empty()
        && text.chars().count() <= ORG_CHARS_MAX
        && !text.chars().any(char::is_control)
}

/// Reads a mode.
///
/// # Errors
/// `invalid_params`.
pub fn read_mode(said: &str) -> Result<Mode, Rejection> {
    Mode::parse(said).ok_or_else(|| {
        invalid(r#"`mode` is "new" (new calls are refused) or "running" (calls and streams under way end, too)"#)
    })
}

/// Reads a reason, without spaces around it.
///
/// # Errors
/// `invalid_params`.
pub fn read_reason(said: &str) -> Result<&str, Rejection> {
    let reason = said.trim();
    let length = reason.chars().count();
    if !(1..=REASON_CHARS_MAX).contains(&length) || reason.chars().any(char::is_control) {
        return Err(invalid(format!(
            "`reason` is text of 1 to {REASON_CHARS_MAX} characters, none of them a control character: refused callers get it"
        )));
    }
    Ok(reason)
}

/// Reads the time at which a stop ends.
///
/// # Errors
/// `invalid_params`.
pub fn read_expiry(said: &str) -> Result<Timestamp, Rejection> {
    Timestamp::parse(said)
        .ok_or_else(|| invalid("`expires_at` is a time by RFC 3339, such as 2026-11-21T10:00:00Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_read_as_it_was_written() {
        let id = |text| WorkspaceId::parse(text).unwrap();
        for scope in [
            Scope::Workspace(id("dev")),
            Scope::Subtree(id("dev")),
            Scope::Org("acme".to_owned()),
            Scope::Pair(id("dev"), id("qa")),
            Scope::All,
        ] {
            assert_eq!(Scope::from_columns(scope.to_columns()), Some(scope));
        }
        assert_eq!(Scope::from_columns(["workspace", "a b", ""]), None);
        assert_eq!(Scope::from_columns(["other", "dev", ""]), None);
    }
}
