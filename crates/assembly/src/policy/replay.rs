//! The calls of some time, judged again by a document: which of them it would deny, and which refused ones it would
//! allow. Read from the audit batch by batch; nothing is changed.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::document::{Document, Problems, RawDocument};
use super::plan::{ApplyOptions, compute_plan};
use super::world::World;
use super::{named_ids, read_state};
use crate::gateway::Gateway;
use audit::{Audit, EventType, Filter, Record, RecordPosition};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use stores::store::Unavailable;

/// Records in a batch.
const BATCH: usize = 1_000;

/// Groups that are told at most; the calls of others are counted.
const GROUPS_MAX: usize = 20_000;

/// Calls of one caller to one target by one rule that are judged otherwise now.
#[derive(Debug, Serialize)]
struct ChangedCalls {
    caller: String,
    target: String,
    rule_before: Option<String>,
    rule_after: Option<&'static str>,
    calls: u64,
    last: String,
    example: Option<String>,
}

type GroupKey = (String, String, Option<String>, Option<&'static str>);

/// A replay under way.
pub struct Replay {
    world: World,
    filter: Filter,
    after: Option<RecordPosition>,
    records: u64,
    at: Option<String>,
    groups: HashMap<GroupKey, ChangedCalls>,
    untold: u64,
    is_over: bool,
}

impl Replay {
    /// Prepares the replay of the calls of the last `back`.
    ///
    /// # Errors
    /// `invalid_params`, with all that is wrong with the document; `store_unavailable`.
    pub async fn prepare(
        gateway: &Gateway,
        raw: RawDocument,
        options: &ApplyOptions,
        back: Duration,
    ) -> Result<Self, Rejection> {
        if raw.caps.is_some() {
            let message = "`caps` are not replayed by this release: leave them out";
            return Err(Rejection::new(Reason::InvalidParams, message));
        }
        let config = gateway.config();
        let max = config.limits.policy_workspaces;
        let mut problems = Problems::default();
        let lineage = raw.access.and_then(|access| access.lineage);
        let document = Document::read(raw, max, &mut problems)?;
        let state = read_state(gateway, named_ids(&document), max).await?;
        let registrations = &gateway.directory.registrations;
        let plan = compute_plan(registrations, document, &state, options, &mut problems);
        problems.into_result()?;
        let now = Timestamp::now();
        let back = i64::try_from(back.as_millis()).unwrap_or(i64::MAX);
        Ok(Self {
            world: World::planned(&state, &plan, lineage.unwrap_or(config.access.lineage)),
            filter: Filter {
                event_type: Some(EventType::A2aCall.as_str().to_owned()),
                since: Some(Timestamp(now.0.saturating_sub(back))),
                until: Some(now),
                ..Filter::default()
            },
            after: None,
            records: 0,
            at: None,
            groups: HashMap::new(),
            untold: 0,
            is_over: false,
        })
    }

    /// Judges one batch, newest first, and returns the line that tells of it; after the last one the result, and then
    /// nothing.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn next_line(&mut self, audit: &Audit) -> Result<Option<Value>, Unavailable> {
        if self.is_over {
            return Ok(None);
        }
        let read = audit
            .stored
            .read_batch(&self.filter, self.after.as_ref(), BATCH);
        let batch = read.await?;
        for (_, record) in &batch {
            self.judge(record);
        }
        self.records += batch.len() as u64;
        if let Some((place, record)) = batch.last() {
            self.after = Some(place.clone());
            self.at = Some(record.time.to_string());
        }
        if batch.len() == BATCH {
            return Ok(Some(
                json!({"progress": {"records": self.records, "at": self.at}}),
            ));
        }
        self.is_over = true;
        let mut changes: Vec<_> = std::mem::take(&mut self.groups).into_values().collect();
        changes.sort_unstable_by(|one, other| {
            let key = |one: &ChangedCalls| {
                (
                    one.caller.clone(),
                    one.target.clone(),
                    one.rule_before.clone(),
                )
            };
            (other.calls, key(one)).cmp(&(one.calls, key(other)))
        });
        Ok(Some(
            json!({"records": self.records, "changes": changes, "untold_calls": self.untold}),
        ))
    }

    fn judge(&mut self, record: &Record<'_>) {
        let (Some(caller), Some(target)) = (record.caller.as_deref(), record.target.as_deref())
        else {
            return;
        };
        let was_refused = matches!(&*record.outcome, "not_permitted" | "stopped");
        let before = record.rule.as_deref().filter(|_| !was_refused);
        if before.is_none() && !was_refused {
            // Refused before it was judged.
            return;
        }
        let after = self.permit(caller, target, record);
        if before.is_some() == after.is_some() {
            return;
        }
        let key = (
            caller.to_owned(),
            target.to_owned(),
            before.map(str::to_owned),
            after,
        );
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&key) {
            self.untold += 1;
            return;
        }
        let group = self.groups.entry(key).or_insert_with(|| ChangedCalls {
            caller: caller.to_owned(),
            target: target.to_owned(),
            rule_before: before.map(str::to_owned),
            rule_after: after,
            calls: 0,
            last: record.time.to_string(),
            example: record.request_id.as_deref().map(str::to_owned),
        });
        group.calls += 1;
        if *group.last < *record.time {
            group.last = record.time.to_string();
        }
    }

    /// Returns the rule by which a call passes. That of a user, an integration or an operator is the recorded one,
    /// while its target is there, in its org, and not stopped: what its token names is not recorded.
    fn permit(&self, caller: &str, target: &str, record: &Record<'_>) -> Option<&'static str> {
        let target = self.world.number(&WorkspaceId::parse(target).ok()?)?;
        if let Ok(caller) = WorkspaceId::parse(caller) {
            let caller = self.world.number(&caller)?;
            return self
                .world
                .permit(caller, target)
                .ok()
                .map(|rule| rule.as_str());
        }
        let recorded = record.rule.as_deref()?;
        let org = record.org.as_deref();
        let place = self.world.place(target);
        let is_inside = org.is_none() || org == place.org.as_deref();
        if !is_inside || self.world.find_stop_of_org(org, target).is_some() {
            return None;
        }
        access::hierarchy::Rule::parse(recorded).map(|rule| rule.as_str())
    }
}
