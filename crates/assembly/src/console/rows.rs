//! Detects changed workspaces and reads their current outlines. Without readers changes are not recorded.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Console;
use access::workspace::{Outline, Status, Timestamp};
use kernel::deadline::ticks;
use kernel::ids::WorkspaceId;
use kernel::telemetry::Chain;
use stores::broadcast::{Audience, AudienceTimes};
use stores::coherence::Invalidation;
use stores::store::Unavailable;

/// Interval of checks for changes.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Interval of checks for heartbeats, and of full reads where changes are not announced.
const SEEN_EVERY: Duration = Duration::from_secs(5);

/// Delay of heartbeats in the table, at most.
const SEEN_LATE: Duration = Duration::from_secs(3);

/// Heartbeats of one check at most.
const SEEN_MAX: usize = 5_000;

/// Ids of changed workspaces that are kept. Beyond it all are read again.
const CHANGED_MAX: usize = 2_000;

/// Rows of one read.
pub(super) const PAGE: usize = 1_000;

/// Workspaces that are shown at most.
pub const ROWS_MAX: usize = 20_000;

/// The set of changed workspaces.
#[derive(Debug, PartialEq, Eq)]
enum ChangedIds {
    /// Unknown: any may have changed.
    All,
    /// These.
    Only(BTreeSet<WorkspaceId>),
}

impl Default for ChangedIds {
    fn default() -> Self {
        Self::Only(BTreeSet::new())
    }
}

/// The times of the console's readers.
const TERMS: AudienceTimes = AudienceTimes {
    announce_every: Duration::from_secs(3),
    announced_for: Duration::from_secs(10),
    lingers_for: Duration::from_secs(30),
};

/// Collects changes.
pub(super) struct Changes {
    pub(super) audience: Audience,
    changed: Mutex<ChangedIds>,
    known: Mutex<Option<SentRows>>,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            audience: Audience::new(TERMS),
            changed: Mutex::default(),
            known: Mutex::default(),
        }
    }
}

impl Changes {
    /// Records an invalidation.
    pub(super) fn record_invalidation(&self, what: &Invalidation) {
        if !self.audience.is_here() {
            return;
        }
        match what {
            Invalidation::Workspace(id) | Invalidation::Lineage(id) => self.mark_one(id),
            Invalidation::Everything => self.mark_all(),
            Invalidation::Address(_)
            | Invalidation::Credential(_)
            | Invalidation::Grant(..)
            | Invalidation::Revocations
            | Invalidation::Stops => {}
        }
    }

    fn mark_one(&self, id: &WorkspaceId) {
        let mut changed = self.changed.lock();
        if let ChangedIds::Only(ids) = &mut *changed {
            ids.insert(id.clone());
            if CHANGED_MAX < ids.len() {
                *changed = ChangedIds::All;
            }
        }
    }

    /// Marks all workspaces to be read again.
    pub(super) fn mark_all(&self) {
        *self.changed.lock() = ChangedIds::All;
    }

    fn take_changed(&self) -> ChangedIds {
        std::mem::take(&mut *self.changed.lock())
    }

    /// True if a workspace of this id has been sent to readers.
    pub(super) fn is_known(&self, id: &str) -> bool {
        let known = self.known.lock();
        known.as_ref().is_some_and(|known| known.contains_key(id))
    }
}

/// The workspaces that were sent, each with the hash of its row: unchanged rows are not sent again.
type SentRows = HashMap<WorkspaceId, u64>;

/// Returns those of `rows` that differ from the rows that were sent.
fn filter_changed(sent: &mut SentRows, mut rows: Vec<Outline>) -> Vec<Outline> {
    rows.retain(|row| {
        // A removed workspace is sent once.
        if row.status == Status::Removed {
            return sent.remove(&row.id).is_some();
        }
        let mut hasher = DefaultHasher::new();
        // Heartbeats are sent separately.
        let quiet = Outline {
            last_seen: None,
            active_tasks: 0,
            ..row.clone()
        };
        quiet.hash(&mut hasher);
        let hash = hasher.finish();
        sent.insert(row.id.clone(), hash) != Some(hash)
    });
    rows
}

impl Changes {
    /// Returns those of `rows` that differ from the rows that were sent.
    fn filter_changed(&self, rows: Vec<Outline>) -> Vec<Outline> {
        filter_changed(self.known.lock().get_or_insert_default(), rows)
    }

    /// Returns the workspaces that were sent and are not in `there`.
    fn find_missing(&self, there: &BTreeSet<WorkspaceId>) -> Vec<WorkspaceId> {
        let known = self.known.lock();
        let ids = known.iter().flat_map(|known| known.keys());
        ids.filter(|id| !there.contains(*id)).cloned().collect()
    }

    /// Drops ids that no longer exist.
    fn forget_ids(&self, ids: &[WorkspaceId]) {
        if let Some(known) = &mut *self.known.lock() {
            known.retain(|id, _| !ids.contains(id));
        }
    }
}

impl Console {
    /// Sends changed workspaces to the readers of this replica, until it is dropped.
    pub(super) async fn follow_rows(self: &Arc<Self>) {
        let mut tick = ticks(LOOK_EVERY);
        let mut seen = (Instant::now(), Timestamp::now());
        loop {
            tick.tick().await;
            if !self.changes.audience.is_here() {
                *self.changes.known.lock() = None;
                self.changes.take_changed();
                continue;
            }
            if seen.0.elapsed() >= SEEN_EVERY {
                // Other programs may write to the tables without an announcement.
                if self.coherence.max_age() <= Duration::from_secs(1) {
                    self.changes.mark_all();
                }
                let from = seen.1.before(SEEN_LATE);
                seen = (Instant::now(), Timestamp::now());
                self.send_heartbeats(from).await;
            }
            if let Err(error) = self.send_changes().await {
                tracing::debug!(error = %Chain(&error), "failed to read changed workspaces for the console; retrying");
                self.changes.mark_all();
            }
        }
    }

    async fn send_heartbeats(&self, since: Timestamp) {
        match self.workspaces.seen_since(since, SEEN_MAX).await {
            Ok(seen) => {
                let seen = seen.into_iter();
                let seen = seen.map(|(id, at, tasks)| (id.as_str().to_owned(), at.0, tasks));
                self.hub.add_heartbeats(seen);
            }
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "failed to read heartbeats for the console; retrying");
            }
        }
    }

    async fn send_changes(&self) -> Result<(), Unavailable> {
        if self.changes.known.lock().is_some() {
            return self.send_changed_rows().await;
        }
        // Readers have read these rows, or will; later changes are sent.
        let mut all = SentRows::default();
        self.read_all_rows(|rows| drop(filter_changed(&mut all, rows)))
            .await?;
        *self.changes.known.lock() = Some(all);
        Ok(())
    }

    /// Reads all workspaces, page by page.
    async fn read_all_rows(&self, mut take: impl FnMut(Vec<Outline>)) -> Result<(), Unavailable> {
        let (mut after, mut count) = (String::new(), 0);
        while count < ROWS_MAX {
            let rows = self.workspaces.load_outlines(&after, PAGE).await?;
            let Some(last) = rows.last() else {
                break;
            };
            last.id.as_str().clone_into(&mut after);
            count += rows.len();
            take(rows);
        }
        Ok(())
    }

    async fn send_changed_rows(&self) -> Result<(), Unavailable> {
        match self.changes.take_changed() {
            ChangedIds::Only(ids) => {
                let ids: Vec<_> = ids.into_iter().collect();
                for ids in ids.chunks(PAGE / 2) {
                    let rows = self.workspaces.find_outlines(ids).await?;
                    self.changes.filter_changed(rows.clone());
                    self.hub.add_rows(rows);
                }
            }
            ChangedIds::All => {
                let mut there = BTreeSet::new();
                let take = |rows: Vec<Outline>| {
                    there.extend(rows.iter().map(|row| row.id.clone()));
                    self.hub.add_rows(self.changes.filter_changed(rows));
                };
                self.read_all_rows(take).await?;
                let gone = self.changes.find_missing(&there);
                for ids in gone.chunks(PAGE / 2) {
                    let rows = self.workspaces.find_outlines(ids).await?;
                    let left: BTreeSet<_> = rows.iter().map(|row| &row.id).collect();
                    let none: Vec<_> = ids
                        .iter()
                        .filter(|id| !left.contains(*id))
                        .cloned()
                        .collect();
                    self.changes.forget_ids(&none);
                    let removed = rows.into_iter().filter(|row| row.status == Status::Removed);
                    self.hub
                        .add_rows(self.changes.filter_changed(removed.collect()));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use access::workspace::{DeliveryMode, Liveness};

    fn id(text: &str) -> WorkspaceId {
        WorkspaceId::parse(text).unwrap()
    }

    #[test]
    fn changes_are_noted_for_somebody_and_bounded() {
        let changes = Changes::default();
        let none = ChangedIds::default();
        changes.record_invalidation(&Invalidation::Workspace(id("a")));
        assert_eq!(changes.take_changed(), none, "nobody looks");
        changes.audience.add_reader(1);
        changes.record_invalidation(&Invalidation::Workspace(id("a")));
        changes.record_invalidation(&Invalidation::Address(id("b")));
        let only = ChangedIds::Only([id("a")].into());
        assert_eq!(changes.take_changed(), only);
        for n in 0..=CHANGED_MAX {
            changes.record_invalidation(&Invalidation::Lineage(id(&format!("w{n}"))));
        }
        assert_eq!(changes.take_changed(), ChangedIds::All);
        changes.record_invalidation(&Invalidation::Everything);
        assert_eq!(changes.take_changed(), ChangedIds::All);
    }

    #[test]
    fn a_removed_workspace_is_told_once_and_forgotten() {
        let changes = Changes::default();
        let row = |status| Outline {
            id: id("a"),
            name: "A".to_owned(),
            status,
            parent_id: None,
            org: None,
            delivery_mode: DeliveryMode::Push,
            liveness: Liveness::Heartbeat,
            last_seen: None,
            active_tasks: 0,
        };
        assert_eq!(changes.filter_changed(vec![row(Status::Online)]).len(), 1);
        assert!(changes.is_known("a") && !changes.is_known("b"));
        assert_eq!(
            changes.filter_changed(vec![row(Status::Online)]).len(),
            0,
            "as before"
        );
        assert_eq!(changes.find_missing(&BTreeSet::new()), [id("a")]);
        assert_eq!(changes.filter_changed(vec![row(Status::Removed)]).len(), 1);
        assert_eq!(changes.filter_changed(vec![row(Status::Removed)]).len(), 0);
        assert!(!changes.is_known("a"));
        changes.filter_changed(vec![row(Status::Online)]);
        changes.forget_ids(&[id("a")]);
        assert!(changes.known.lock().as_ref().unwrap().is_empty());
    }
}
