//! Facts of a call that caps look at, and the subject under which each cap counts it.

use serde_json::json;

use super::counter::CounterKey;
use crate::a2a::call_names::CallNames;
use crate::a2a::method::Method;
use crate::config::{Cap, CapCount, CapPer};
use crate::hierarchy::{Hierarchy, Permit};
use crate::identity::{Principal, Proof};
use crate::ids::WorkspaceId;
use crate::rejection::Rejection;

/// The names by which calls belong together: those of a message, and the trace of its request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// `metadata.run_id`, else the trace id of `traceparent`, else the context.
    pub run: Option<String>,
    /// The context.
    pub context: Option<String>,
    /// True if the message continues a task.
    pub continues_task: bool,
}

impl Names {
    /// Returns the names of a message whose request has the trace id `trace`.
    pub fn from_message(named: CallNames, trace: impl FnOnce() -> Option<String>) -> Self {
        let run = named.run.or_else(trace);
        Self {
            run: run.or_else(|| named.context.clone()),
            context: named.context,
            continues_task: named.continues_task,
        }
    }
}

/// A call, as far as caps count it.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The name that the caller is counted by.
    owner: String,
    /// The caller's org; empty: none, which counts as one org.
    org: String,
    target: WorkspaceId,
    /// The target's org.
    target_org: String,
    pub(super) names: Names,
    method: Method,
}

impl Facts {
    /// Returns the facts of a permitted call.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn for_call(
        hierarchy: &Hierarchy,
        proof: &Proof,
        permit: &Permit,
        method: Method,
        names: Names,
    ) -> Result<Self, Rejection> {
        // Cached: the permit depends on it.
        let place = hierarchy.load_lineage(permit.target()).await?;
        Ok(Self {
            owner: counted_name(&proof.principal),
            org: permit.org().unwrap_or_default().to_owned(),
            target: permit.target().clone(),
            target_org: place
                .and_then(|place| place.org.clone())
                .unwrap_or_default(),
            names,
            method,
        })
    }

    /// For tests: a caller and a target, each with its org.
    #[cfg(test)]
    pub(super) fn for_test(
        (caller, org): (WorkspaceId, &str),
        (target, target_org): (WorkspaceId, &str),
        method: Method,
        names: Names,
    ) -> Self {
        Self {
            owner: caller.to_string(),
            org: org.to_owned(),
            target,
            target_org: target_org.to_owned(),
            names,
            method,
        }
    }

    /// True if `cap` counts the call. Only calls that send a message count: others begin no work, and must stay possible
    /// when a cap is reached.
    pub(super) fn is_counted_by(&self, cap: &Cap) -> bool {
        let counted = match cap.count {
            CapCount::Messages | CapCount::Bytes | CapCount::Seconds => true,
            CapCount::Tasks => !self.names.continues_task,
            CapCount::Streams => self.method == Method::SendStreamingMessage,
        };
        counted && self.method.sends() && self.is_in_scope(cap)
    }

    /// True if the target is in the scope of `cap`.
    pub(super) fn is_in_scope(&self, cap: &Cap) -> bool {
        let org = Some(self.target_org.as_str()).filter(|org| !org.is_empty());
        cap.scope.covers(&self.target, org)
    }

    /// Returns the subject under which `cap` counts the call: an org, and a name in it. A run or a context counts in the
    /// org of its caller, since another org may choose the same name. `None`: the call names no run, or no context.
    pub(super) fn subject_for(&self, cap: &Cap) -> Option<Subject> {
        let (org, name) = match cap.per {
            CapPer::Run => (&*self.org, self.names.run.clone()?),
            CapPer::Context => (&*self.org, self.names.context.clone()?),
            CapPer::Caller => (&*self.org, self.owner.clone()),
            CapPer::Pair => (&*self.org, format!("{}>{}", self.owner, self.target)),
            CapPer::Target => (&*self.target_org, self.target.to_string()),
            CapPer::Org => (&*self.org, self.org.clone()),
        };
        Some(Subject {
            org: org.to_owned(),
            name,
        })
    }
}

/// Returns the name that a caller is counted by: its name in records. The name of a browser user of a subtree token has the
/// subtree before it, as users elsewhere in the org may have the same name.
fn counted_name(principal: &Principal) -> String {
    match principal {
        Principal::Canvas {
            within: Some(root), ..
        } => format!("subtree:{}:{principal}", root.id),
        other => other.name().into_owned(),
    }
}

/// The subject of a count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    /// The org in which it counts; empty: none.
    pub(super) org: String,
    /// Its name in it.
    pub(super) name: String,
}

impl Subject {
    /// Returns the place of its count.
    pub(super) fn counter_key(&self, cap: &Cap) -> CounterKey {
        // Names are arbitrary text: JSON keeps them apart.
        let member = json!([self.org, self.name]).to_string();
        CounterKey {
            key: shared_key(cap, &member),
            index: index_key(cap),
            member,
        }
    }

    /// Reads the name that a count has in its index.
    pub(super) fn from_member(member: &str) -> Option<Self> {
        let (org, name) = serde_json::from_str(member).ok()?;
        Some(Self { org, name })
    }
}

/// Returns the key of a count. It has one hash tag with its index, as one script changes both. A cap that counts
/// something else after a reload begins again.
pub(super) fn shared_key(cap: &Cap, member: &str) -> String {
    format!("gw:cap:{{{}:{}}}:{member}", cap.name, cap.count.as_str())
}

/// Returns the key of the index of a cap.
pub(super) fn index_key(cap: &Cap) -> String {
    format!("gw:caps:{{{}:{}}}", cap.name, cap.count.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::WorkspaceIncarnation;

    #[test]
    fn users_of_subtrees_are_counted_apart_from_others_of_their_name() {
        let user = |within: Option<&str>| Principal::Canvas {
            user: "ada".to_owned(),
            org: Some("acme".to_owned()),
            workspaces: None,
            confined: within.is_some(),
            within: within.and_then(WorkspaceIncarnation::parse),
        };
        let names = [None, Some("team"), Some("lab")].map(|root| counted_name(&user(root)));
        let expected = [
            "canvas:ada",
            "subtree:team:canvas:ada",
            "subtree:lab:canvas:ada",
        ];
        assert_eq!(names, expected);
        let org = Principal::Org {
            org: "acme".to_owned(),
            within: WorkspaceIncarnation::parse("team"),
        };
        assert_eq!(counted_name(&org), "subtree:team:acme");
    }
}
