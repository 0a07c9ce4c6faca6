//! Loads and caches lineages. An entry is invalid once its workspace or any of its ancestors moves, is
//! created or is removed.
//!
//! A move of one workspace changes the lineage of all below it. Instead of searching the cache for them, each
//! move is appended to a short log, and an entry reads the part of the log that it has not seen when it is
//! next used: one comparison when there is none.

use std::collections::VecDeque;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use serde_json::json;
use tokio::time::Instant;

use super::Lineage;
use crate::explain::{Fact, Source};
use crate::workspace::{LINE_MAX, Step, Workspaces};
use kernel::ids::WorkspaceId;
use kernel::metrics::{self, Metrics};
use kernel::stage::Stage;
use stores::coherence::{Coherence, CoherentCache, Invalidation};
use stores::store::Unavailable;

/// Lifetime of a cached absence: long enough that guessed ids cost little.
const ABSENT_TTL: Duration = Duration::from_secs(1);

/// Moves in the log. An entry that missed more than these is loaded again.
const MOVES_MAX: usize = 1024;

/// The latest moves, numbered from 1.
#[derive(Default)]
struct MoveLog {
    /// The number of the newest.
    newest: AtomicU64,
    log: RwLock<VecDeque<WorkspaceId>>,
}

impl MoveLog {
    fn newest_number(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    fn record(&self, id: WorkspaceId) {
        let mut log = self.log.write();
        if log.len() == MOVES_MAX {
            log.pop_front();
        }
        log.push_back(id);
        self.newest.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns true if a move after number `seen` touched `lineage`, or if the log no longer has all of them;
    /// and the number up to which this holds.
    fn touched_since(&self, seen: u64, id: &WorkspaceId, lineage: Option<&Lineage>) -> (bool, u64) {
        let log = self.log.read();
        let newest = self.newest_number();
        let missed = usize::try_from(newest.saturating_sub(seen)).unwrap_or(usize::MAX);
        if missed > log.len() {
            return (true, newest);
        }
        let touched = log.iter().rev().take(missed).any(|moved| {
            moved == id || lineage.is_some_and(|lineage| lineage.ancestors.contains(moved))
        });
        (touched, newest)
    }
}

/// A lineage as it was read, or its absence.
struct CachedLineage {
    id: WorkspaceId,
    lineage: Option<Arc<Lineage>>,
    loaded_at: Instant,
    moves: Arc<MoveLog>,
    /// No move up to this number touched it.
    seen: AtomicU64,
}

impl CachedLineage {
    fn is_current(&self) -> bool {
        if self.lineage.is_none() && self.loaded_at.elapsed() >= ABSENT_TTL {
            return false;
        }
        let seen = self.seen.load(Ordering::Acquire);
        if seen == self.moves.newest_number() {
            return true;
        }
        let (touched, newest) = self
            .moves
            .touched_since(seen, &self.id, self.lineage.as_deref());
        if !touched {
            self.seen.fetch_max(newest, Ordering::AcqRel);
        }
        !touched
    }
}

/// A lineage for a decision.
pub(super) struct LineageLookup {
    /// `None`: there never was such a workspace.
    pub(super) lineage: Option<Arc<Lineage>>,
    pub(super) source: Source,
    read_at: Instant,
}

impl LineageLookup {
    /// Returns the lineage as a fact, for a witness.
    pub(super) fn to_fact(&self, check: Stage, id: &WorkspaceId) -> Fact {
        let value = match self.lineage.as_deref() {
            None => json!({"workspace": id, "exists": false}),
            Some(lineage) => json!({
                "workspace": id,
                "exists": true,
                "org": lineage.org,
                "ancestors": lineage.ancestors,
                "removed": lineage.removed,
                "paused": lineage.paused,
                "cyclic": lineage.cyclic,
                "generation": lineage.generation,
            }),
        };
        Fact::new(check, self.source, value).with_age(self.read_at.elapsed())
    }
}

/// The lineages, with a cache.
pub(super) struct Lineages {
    workspaces: Workspaces,
    moves: Arc<MoveLog>,
    known: CoherentCache<WorkspaceId, Arc<CachedLineage>>,
}

impl Lineages {
    pub(super) fn new(
        workspaces: Workspaces,
        coherence: &Arc<Coherence>,
        metrics: Arc<Metrics>,
        entries_max: u64,
    ) -> Self {
        let moves = Arc::<MoveLog>::default();
        let known = CoherentCache::new(
            Arc::clone(coherence),
            metrics,
            metrics::Cache::Lineages,
            (entries_max, None),
            |known: &Arc<CachedLineage>| known.is_current(),
        );
        let (log, cache) = (Arc::clone(&moves), known.clone());
        coherence.on_invalidation(move |what| {
            match what {
                Invalidation::Lineage(id) => log.record(id),
                Invalidation::Everything => cache.forget_all(),
                _ => {}
            }
            ready(())
        });
        Self {
            workspaces,
            moves,
            known,
        }
    }

    /// Returns the lineage of `id`.
    pub(super) async fn find(&self, id: &WorkspaceId) -> Result<LineageLookup, Unavailable> {
        let (known, remembered) = self.known.get_or_read(id, || self.load(id)).await?;
        Ok(LineageLookup {
            lineage: known.lineage.clone(),
            source: remembered.map_or(Source::Sql, |_| Source::Memory),
            read_at: known.loaded_at,
        })
    }

    async fn load(&self, id: &WorkspaceId) -> Result<Arc<CachedLineage>, Unavailable> {
        let seen = AtomicU64::new(self.moves.newest_number());
        let loaded_at = Instant::now();
        let lineage = Lineage::from_line(self.workspaces.load_line(id).await?);
        if lineage.as_ref().is_some_and(|lineage| lineage.cyclic) {
            tracing::error!(workspace.id = %id, "hierarchy cycle above this workspace; it can reach no other workspace");
        }
        Ok(Arc::new(CachedLineage {
            id: id.clone(),
            lineage: lineage.map(Arc::new),
            loaded_at,
            moves: Arc::clone(&self.moves),
            seen,
        }))
    }
}

impl Lineage {
    /// Builds the lineage of the first step of `line`; `None` when it is empty. Pure.
    pub fn from_line(line: Vec<Step>) -> Option<Self> {
        // The query reads one step more than a line may have.
        let mut cyclic = line.len() > LINE_MAX;
        let generation = line.iter().map(|step| step.generation).max().unwrap_or(0);
        let mut steps = line.into_iter();
        let first = steps.next()?;
        let mut ancestors: Vec<WorkspaceId> = Vec::new();
        let mut above = first.parent_id;
        while let Some(parent) = above {
            if parent == first.id || ancestors.contains(&parent) {
                cyclic = true;
                break;
            }
            ancestors.push(parent);
            // Beyond a removed or missing ancestor nothing is related.
            above = steps
                .next()
                .filter(|step| !step.removed)
                .and_then(|step| step.parent_id);
        }
        Some(Self {
            id: first.id,
            org: first.org,
            ancestors,
            removed: first.removed,
            paused: first.paused,
            cyclic,
            generation,
            born_at: first.born_at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> WorkspaceId {
        WorkspaceId::parse(text).unwrap()
    }

    fn step(text: &str) -> Step {
        let (name, parent) = text.split_once('<').unwrap_or((text, ""));
        Step {
            id: id(name.trim_end_matches('!')),
            parent_id: (!parent.is_empty()).then(|| id(parent)),
            org: None,
            removed: name.ends_with('!'),
            paused: false,
            generation: 1,
            born_at: 0,
        }
    }

    fn above(line: &[&str]) -> (String, bool) {
        let lineage = Lineage::from_line(line.iter().map(|text| step(text)).collect()).unwrap();
        let ids: Vec<_> = lineage.ancestors.iter().map(WorkspaceId::as_str).collect();
        (ids.join(" "), lineage.cyclic)
    }

    #[test]
    fn a_line_ends_at_a_root_a_gap_a_removed_one_or_a_cycle() {
        for (line, ancestors, cyclic) in [
            (&["a"][..], "", false),
            (&["a<b", "b<c", "c"], "b c", false),
            (&["a<b", "b!<c"], "b", false),
            (&["a!<b", "b<c", "c"], "b c", false),
            (&["a<ghost"], "ghost", false),
            (&["a<a", "a<a", "a<a"], "", true),
            (&["a<b", "b<a", "a<b", "b<a"], "b", true),
            (&["a<b", "b<c", "c<b", "b<c"], "b c", true),
        ] {
            assert_eq!(above(line), (ancestors.to_owned(), cyclic), "{line:?}");
        }
        assert!(Lineage::from_line(Vec::new()).is_none());
    }

    #[test]
    fn a_line_longer_than_any_that_we_make_counts_as_a_cycle() {
        let line = |steps: usize| {
            let all = (0..steps).map(|i| step(&format!("w{i}<w{}", i + 1)));
            Lineage::from_line(all.collect()).unwrap()
        };
        assert!(!line(LINE_MAX).cyclic);
        assert!(line(LINE_MAX + 1).cyclic);
    }

    #[test]
    fn a_move_touches_those_below_and_nobody_else() {
        let moves = Arc::<MoveLog>::default();
        let known = |name: &str, ancestors: &[&str]| CachedLineage {
            id: id(name),
            lineage: Some(Arc::new(Lineage {
                id: id(name),
                org: None,
                ancestors: ancestors.iter().map(|name| id(name)).collect(),
                removed: false,
                paused: false,
                cyclic: false,
                generation: 0,
                born_at: 0,
            })),
            loaded_at: Instant::now(),
            moves: Arc::clone(&moves),
            seen: AtomicU64::new(moves.newest_number()),
        };
        let (child, other) = (
            known("child", &["parent", "root"]),
            known("other", &["root"]),
        );
        assert!(child.is_current() && other.is_current());
        moves.record(id("parent"));
        assert!(!child.is_current() && other.is_current());
        moves.record(id("other"));
        assert!(!child.is_current() && !other.is_current());
        let late = known("late", &[]);
        for _ in 0..MOVES_MAX {
            moves.record(id("x"));
        }
        assert!(late.is_current());
        let idle = known("idle", &[]);
        for _ in 0..=MOVES_MAX {
            moves.record(id("x"));
        }
        assert!(!idle.is_current(), "more moves than are remembered");
    }
}
