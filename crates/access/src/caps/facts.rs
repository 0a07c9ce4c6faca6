//! Facts of a call that caps look at, and the subject under which each cap counts it.
//!
//! The use of caps, for operators.

use std::collections::HashSet;

use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::Caps;
use super::counter::{CounterKey, limit_of, to_cap_units};
use crate::hierarchy::{Hierarchy, Permit};
use crate::identity::{Principal, Proof};
use a2a::call_names::CallNames;
use a2a::method::Method;
use kernel::config::{Cap, CapCount, CapPer, GuardMode};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use stores::shared::CounterState;
use stores::store::Unavailable;

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
    /// Returns the names of a message with the trace id `trace`.
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
    /// The org and the name of the root of its chain; without one those of the caller.
    root: (String, String),
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
        let (owner, org) = (
            counted_name(&proof.principal),
            permit.org().unwrap_or_default().to_owned(),
        );
        let root = match proof.chain() {
            Some(chain) => {
                let name = chain.root_principal().map(|root| counted_name(&root));
                (
                    chain.org().unwrap_or_default().to_owned(),
                    name.unwrap_or_default(),
                )
            }
            None => (org.clone(), owner.clone()),
        };
        Ok(Self {
            owner,
            root,
            org,
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
            root: (org.to_owned(), caller.to_string()),
            org: org.to_owned(),
            target,
            target_org: target_org.to_owned(),
            names,
            method,
        }
    }

    /// True if `cap` counts the call. Only calls that send a message count: others begin no work, and must stay
    /// possible when a cap is reached.
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

    /// Returns the subject under which `cap` counts the call: an org, and a name in it. A run or a context counts in
    /// the org of its caller, since another org may choose the same name. `None`: the call names no run, or no context.
    pub(super) fn subject_for(&self, cap: &Cap) -> Option<Subject> {
        let (org, name) = match cap.per {
            CapPer::Run => (&*self.org, self.names.run.clone()?),
            CapPer::Context => (&*self.org, self.names.context.clone()?),
            CapPer::Caller => (&*self.org, self.owner.clone()),
            CapPer::Pair => (&*self.org, format!("{}>{}", self.owner, self.target)),
            CapPer::Target => (&*self.target_org, self.target.to_string()),
            CapPer::Org => (&*self.org, self.org.clone()),
            CapPer::Root => (&*self.root.0, self.root.1.clone()),
        };
        Some(Subject {
            org: org.to_owned(),
            name,
        })
    }
}

/// Returns the name that a caller is counted by: its name in records. The name of a browser user of a subtree token has
/// the subtree before it, as users elsewhere in the org may have the same name.
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

/// Use of one cap.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Cap)]
pub struct CapUsage {
    /// Its name.
    pub name: String,
    /// By what it counts.
    pub per: CapPer,
    /// The quantity that it counts.
    pub count: CapCount,
    /// Its limit.
    #[schema(minimum = 1)]
    pub limit: u64,
    /// Its window in seconds, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub window_seconds: Option<u64>,
    /// The subjects that used it last, greatest use first.
    pub subjects: Vec<SubjectUsage>,
    /// Number of subjects that used it, of those that are remembered.
    pub subjects_total: usize,
}

/// The use of one subject.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SubjectUsage {
    /// The org in which it counts; `None`: none.
    pub org: Option<String>,
    /// The run, context, caller, pair (`caller>target`), target or org.
    pub subject: String,
    /// Its use.
    pub used: u64,
    /// True if the limit is reached.
    pub reached: bool,
    /// The time at which the count begins again, or is forgotten if it is not used.
    pub resets_at: Timestamp,
}

/// The state of a cap for one call.
#[derive(Clone, Debug, Serialize)]
pub struct CapState {
    /// Its name.
    pub name: String,
    /// Its limit, as text: `500 messages for each run`.
    pub limit: String,
    /// The use of the call's subject; `None`: it depends on the message.
    pub used: Option<u64>,
    /// True if the limit is reached, so that the call would be refused.
    pub reached: bool,
}

impl CapState {
    /// Returns the rejection of the call, if the limit is reached.
    pub fn as_rejection(&self) -> Option<Rejection> {
        let said = format!("the cap `{}` is reached: {}", self.name, self.limit);
        let rejection = Rejection::new(Reason::CapReached, said).with_fact("cap", &self.name);
        self.reached.then_some(rejection)
    }
}

/// Query for the use of caps.
#[derive(Clone, Debug, Default)]
pub struct UsageQuery<'a> {
    /// The only cap.
    pub cap: Option<&'a str>,
    /// The only subject.
    pub subject: Option<&'a str>,
    /// The only org.
    pub org: Option<&'a str>,
    /// The only names of callers and targets: a subject with another name, or without one, is left out.
    pub among: Option<&'a HashSet<String>>,
    /// Subjects of each cap at most.
    pub limit: usize,
}

impl Caps {
    /// Returns the caps with their use on all replicas.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn read_usage(&self, wanted: &UsageQuery<'_>) -> Result<Vec<CapUsage>, Unavailable> {
        let config = self.config.snapshot();
        if config.cap.is_empty() {
            return Ok(Vec::new());
        }
        self.recall_all().await?;
        let mut all = Vec::new();
        for cap in config.cap.iter().filter(|cap| is_enforced(cap)) {
            if wanted.cap.is_none_or(|name| name == cap.name) {
                all.push(self.measure_usage(cap, wanted).await?);
            }
        }
        Ok(all)
    }

    async fn measure_usage(
        &self,
        cap: &Cap,
        wanted: &UsageQuery<'_>,
    ) -> Result<CapUsage, Unavailable> {
        let index = index_key(cap);
        let counted = self
            .shared
            .list_counters(&index, |member| shared_key(cap, member));
        let counted = counted.await?.into_iter();
        let subjects = counted.filter_map(|(member, counted)| {
            let subject = Subject::from_member(&member)?;
            let asked = wanted.org.is_none_or(|org| org == subject.org)
                && wanted.subject.is_none_or(|name| name == subject.name)
                && wanted
                    .among
                    .is_none_or(|among| is_among(cap.per, &subject, among));
            asked.then(|| subject_usage(cap, subject, &counted))
        });
        let mut subjects: Vec<SubjectUsage> = subjects.collect();
        subjects.sort_by_key(|subject| std::cmp::Reverse(subject.used));
        let subjects_total = subjects.len();
        subjects.truncate(wanted.limit);
        Ok(CapUsage {
            name: cap.name.clone(),
            per: cap.per,
            count: cap.count,
            limit: cap.limit,
            window_seconds: cap.window.map(|window| window.as_secs()),
            subjects,
            subjects_total,
        })
    }

    /// Returns the caps that cover a call, with what its subject has used. Takes and counts nothing.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn states_for(&self, facts: &Facts) -> Result<Vec<CapState>, Unavailable> {
        let config = self.config.snapshot();
        self.recall_all().await?;
        let mut states = Vec::new();
        for cap in config.cap.iter().filter(|cap| is_enforced(cap)) {
            if !facts.is_in_scope(cap) {
                continue;
            }
            let by_name = matches!(cap.per, CapPer::Run | CapPer::Context);
            let subject = facts.subject_for(cap).filter(|_| !by_name);
            let used = match &subject {
                Some(subject) => {
                    let place = subject.counter_key(cap);
                    let total = self.shared.read_total(&place.key).await?;
                    Some(total)
                }
                None => None,
            };
            states.push(CapState {
                name: cap.name.clone(),
                limit: format!(
                    "{} {} for each {}",
                    cap.limit,
                    cap.count.as_str(),
                    cap.per.as_str()
                ),
                used: used.map(|total| to_cap_units(cap.count, total)),
                reached: facts.is_counted_by(cap)
                    && used.is_some_and(|total| total >= limit_of(cap)),
            });
        }
        Ok(states)
    }
}

/// True if calls over `cap` are refused. What is observed is counted nowhere but at its replica.
fn is_enforced(cap: &Cap) -> bool {
    cap.mode == GuardMode::Enforce
}

/// True if the subject is a caller, a pair or a target of these. Runs, contexts and orgs cannot be told apart.
fn is_among(per: CapPer, subject: &Subject, among: &HashSet<String>) -> bool {
    match per {
        CapPer::Caller | CapPer::Target => among.contains(&subject.name),
        // `>` is in no id. A name of another kind may have it, so the last one counts.
        CapPer::Pair => subject
            .name
            .rsplit_once('>')
            .is_some_and(|(caller, target)| among.contains(caller) && among.contains(target)),
        CapPer::Run | CapPer::Context | CapPer::Org | CapPer::Root => false,
    }
}

fn subject_usage(cap: &Cap, subject: Subject, counted: &CounterState) -> SubjectUsage {
    SubjectUsage {
        org: Some(subject.org).filter(|org| !org.is_empty()),
        subject: subject.name,
        used: to_cap_units(cap.count, counted.total),
        reached: counted.total >= limit_of(cap),
        resets_at: Timestamp::now().after(counted.left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::ids::WorkspaceIncarnation;

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
