//! The use of caps, for operators.

use std::collections::HashSet;

use serde::Serialize;

use super::Caps;
use super::counter::{limit_of, to_cap_units};
use super::facts::{Facts, Subject, index_key, shared_key};
use crate::config::{Cap, CapCount, CapPer};
use crate::rejection::{Reason, Rejection};
use crate::shared::CounterState;
use crate::store::Unavailable;
use crate::time::Timestamp;

/// Use of one cap.
#[derive(Clone, Debug, Serialize)]
pub struct CapUsage {
    /// Its name.
    pub name: String,
    /// By what it counts.
    pub per: CapPer,
    /// The quantity that it counts.
    pub count: CapCount,
    /// Its limit.
    pub limit: u64,
    /// Its window in seconds, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_seconds: Option<u64>,
    /// The subjects that used it last, greatest use first.
    pub subjects: Vec<SubjectUsage>,
    /// Number of subjects that used it, of those that are remembered.
    pub subjects_total: usize,
}

/// The use of one subject.
#[derive(Clone, Debug, Serialize)]
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
        for cap in &config.cap {
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
        for cap in config.cap.iter().filter(|cap| facts.is_in_scope(cap)) {
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

/// True if the subject is a caller, a pair or a target of these. Runs, contexts and orgs cannot be told apart.
fn is_among(per: CapPer, subject: &Subject, among: &HashSet<String>) -> bool {
    match per {
        CapPer::Caller | CapPer::Target => among.contains(&subject.name),
        // `>` is in no id. A name of another kind may have it, so the last one counts.
        CapPer::Pair => subject
            .name
            .rsplit_once('>')
            .is_some_and(|(caller, target)| among.contains(caller) && among.contains(target)),
        CapPer::Run | CapPer::Context | CapPer::Org => false,
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
