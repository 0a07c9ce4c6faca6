//! Detects changed workspaces and reads their current outlines. Without readers changes are not recorded.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Console;
use crate::broadcast::{Audience, Terms};
use crate::coherence::Invalidation;
use crate::ids::WorkspaceId;
use crate::store::Unavailable;
use crate::telemetry::Chain;
use crate::until::ticks;
use crate::workspace::{Outline, Status, Timestamp};

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
enum Changed {
    /// Unknown: any may have changed.
    All,
    /// These.
    Only(BTreeSet<WorkspaceId>),
}

impl Default for Changed {
    fn default() -> Self {
        Self::Only(BTreeSet::new())
    }
}

/// The times of the console's readers.
const TERMS: Terms = Terms {
    announce_every: Duration::from_secs(3),
    announced_for: Duration::from_secs(10),
    lingers_for: Duration::from_secs(30),
};

/// Collects changes.
pub(super) struct Changes {
    pub(super) audience: Audience,
    changed: Mutex<Changed>,
    known: Mutex<Option<Known>>,
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
    pub(super) fn note(&self, what: &Invalidation) {
        if !self.audience.is_here() {
            return;
        }
        match what {
            Invalidation::Workspace(id) | Invalidation::Lineage(id) => self.one(id),
            Invalidation::Everything => self.all(),
            Invalidation::Address(_)
            | Invalidation::Credential(_)
            | Invalidation::Grant(..)
            | Invalidation::Stops => {}
        }
    }

    fn one(&self, id: &WorkspaceId) {
        let mut changed = self.changed();
        if let Changed::Only(ids) = &mut *changed {
            ids.insert(id.clone());
            if CHANGED_MAX < ids.len() {
                *changed = Changed::All;
            }
        }
    }

    /// Marks all workspaces to be read again.
    pub(super) fn all(&self) {
        *self.changed() = Changed::All;
    }

    fn take(&self) -> Changed {
        std::mem::take(&mut *self.changed())
    }

    /// True if a workspace of this id has been sent to readers.
    pub(super) fn is_known(&self, id: &str) -> bool {
        let known = self.known();
        known.as_ref().is_some_and(|known| known.0.contains_key(id))
    }

    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) -> MutexGuard<'_, Changed> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The workspaces that were sent, each with the hash of its row: unchanged rows are not sent again.
#[derive(Default)]
pub(super) struct Known(HashMap<WorkspaceId, u64>);

impl Known {
    fn news(&mut self, rows: Vec<Outline>) -> Vec<Outline> {
        let news = rows.into_iter().filter(|row| {
            // A removed workspace is sent once.
            if row.status == Status::Removed {
                return self.0.remove(&row.id).is_some();
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
            self.0.insert(row.id.clone(), hash) != Some(hash)
        });
        news.collect()
    }
}

impl Changes {
    /// Returns those of `rows` that differ from the rows that were sent.
    fn news(&self, rows: Vec<Outline>) -> Vec<Outline> {
        self.known().get_or_insert_default().news(rows)
    }

    /// Returns the workspaces that were sent and are not in `there`.
    fn missing(&self, there: &BTreeSet<WorkspaceId>) -> Vec<WorkspaceId> {
        let known = self.known();
        let ids = known.iter().flat_map(|known| known.0.keys());
        ids.filter(|id| !there.contains(*id)).cloned().collect()
    }

    /// Drops ids that no longer exist.
    fn forget(&self, ids: &[WorkspaceId]) {
        if let Some(known) = &mut *self.known() {
            known.0.retain(|id, _| !ids.contains(id));
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
                *self.changes.known() = None;
                self.changes.take();
                continue;
            }
            if seen.0.elapsed() >= SEEN_EVERY {
                // Other programs may write to the tables without an announcement.
                if self.coherence.max_age() <= Duration::from_secs(1) {
                    self.changes.all();
                }
                let from = seen.1.before(SEEN_LATE);
                seen = (Instant::now(), Timestamp::now());
                self.tell_seen(from).await;
            }
            if let Err(error) = self.look().await {
                tracing::debug!(error = %Chain(&error), "failed to read changed workspaces for the console; retrying");
                self.changes.all();
            }
        }
    }

    async fn tell_seen(&self, since: Timestamp) {
        match self.workspaces.seen_since(since, SEEN_MAX).await {
            Ok(seen) => {
                let seen = seen.into_iter();
                let seen = seen.map(|(id, at, tasks)| (id.as_str().to_owned(), at.0, tasks));
                self.hub.seen(seen);
            }
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "failed to read heartbeats for the console; retrying");
            }
        }
    }

    async fn look(&self) -> Result<(), Unavailable> {
        if self.changes.known().is_some() {
            return self.tell_changed().await;
        }
        // Readers have read these rows, or will; later changes are sent.
        let mut all = Known::default();
        self.all(|rows| drop(all.news(rows))).await?;
        *self.changes.known() = Some(all);
        Ok(())
    }

    /// Reads all workspaces, page by page.
    async fn all(&self, mut take: impl FnMut(Vec<Outline>)) -> Result<(), Unavailable> {
        let (mut after, mut count) = (String::new(), 0);
        while count < ROWS_MAX {
            let rows = self.workspaces.outlines(&after, PAGE).await?;
            let Some(last) = rows.last() else {
                break;
            };
            last.id.as_str().clone_into(&mut after);
            count += rows.len();
            take(rows);
        }
        Ok(())
    }

    async fn tell_changed(&self) -> Result<(), Unavailable> {
        match self.changes.take() {
            Changed::Only(ids) => {
                let ids: Vec<_> = ids.into_iter().collect();
                for ids in ids.chunks(PAGE / 2) {
                    let rows = self.workspaces.outlines_of(ids).await?;
                    self.changes.news(rows.clone());
                    self.hub.changed(rows);
                }
            }
            Changed::All => {
                let mut there = BTreeSet::new();
                let take = |rows: Vec<Outline>| {
                    there.extend(rows.iter().map(|row| row.id.clone()));
                    self.hub.changed(self.changes.news(rows));
                };
                self.all(take).await?;
                let gone = self.changes.missing(&there);
                for ids in gone.chunks(PAGE / 2) {
                    let rows = self.workspaces.outlines_of(ids).await?;
                    let left: BTreeSet<_> = rows.iter().map(|row| &row.id).collect();
                    let none: Vec<_> = ids
                        .iter()
                        .filter(|id| !left.contains(*id))
                        .cloned()
                        .collect();
                    self.changes.forget(&none);
                    let removed = rows.into_iter().filter(|row| row.status == Status::Removed);
                    self.hub.changed(self.changes.news(removed.collect()));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::{DeliveryMode, Liveness};

    fn id(text: &str) -> WorkspaceId {
        WorkspaceId::parse(text).unwrap()
    }

    #[test]
    fn changes_are_noted_for_somebody_and_bounded() {
        let changes = Changes::default();
        let none = Changed::default();
        changes.note(&Invalidation::Workspace(id("a")));
        assert_eq!(changes.take(), none, "nobody looks");
        changes.audience.enter(1);
        changes.note(&Invalidation::Workspace(id("a")));
        changes.note(&Invalidation::Address(id("b")));
        let only = Changed::Only([id("a")].into());
        assert_eq!(changes.take(), only);
        for n in 0..=CHANGED_MAX {
            changes.note(&Invalidation::Lineage(id(&format!("w{n}"))));
        }
        assert_eq!(changes.take(), Changed::All);
        changes.note(&Invalidation::Everything);
        assert_eq!(changes.take(), Changed::All);
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
        assert_eq!(changes.news(vec![row(Status::Online)]).len(), 1);
        assert!(changes.is_known("a") && !changes.is_known("b"));
        assert_eq!(
            changes.news(vec![row(Status::Online)]).len(),
            0,
            "as before"
        );
        assert_eq!(changes.missing(&BTreeSet::new()), [id("a")]);
        assert_eq!(changes.news(vec![row(Status::Removed)]).len(), 1);
        assert_eq!(changes.news(vec![row(Status::Removed)]).len(), 0);
        assert!(!changes.is_known("a"));
        changes.news(vec![row(Status::Online)]);
        changes.forget(&[id("a")]);
        assert!(changes.known().as_ref().unwrap().0.is_empty());
    }
}
