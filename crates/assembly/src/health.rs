//! How workspaces are (`kernel::health`), from what the stores, the stops and the breakers of this replica say. What is
//! read is kept for a second, whatever number of readers asks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::console::ROWS_MAX;
use access::hierarchy::Lineage;
use access::workspace::{Outline, Timestamp, Workspace, Workspaces};
use audit::usage::Usage;
use directory::Slots;
use directory::stops::{End, Stops};
use kernel::closed_set::ClosedSet as _;
use kernel::health::{CallTrouble, Health, HealthFacts, HealthState};
use kernel::ids::WorkspaceId;
use kernel::metrics::AgentFailure;
use stores::store::Unavailable;

/// How long what was read is kept.
const KEPT: Duration = Duration::from_secs(1);

/// Part of the time that reading all workspaces may take.
const LOAD_PART: u32 = 20;

/// Workspaces that are not healthy and are listed at most, the worst first.
const LISTED_MAX: usize = 1000;

/// How long an agent that fails no more is listed as solved, in milliseconds.
const SOLVED_MS: i64 = 600_000;

/// Workspaces of one read.
const PAGE: usize = 1000;

/// The troubles of agents by their calls.
#[derive(Default)]
struct CallNews {
    troubles: HashMap<String, CallTrouble>,
    /// Calls of the last five minutes, and failed ones, where those are many.
    failing: HashMap<String, (i64, i64)>,
}

/// A workspace that is not healthy.
#[derive(Clone, Debug, Serialize)]
pub struct Unwell {
    id: String,
    name: String,
    org: Option<String>,
    #[serde(flatten)]
    health: Health,
    /// The last call that failed.
    last_failed: Option<Timestamp>,
}

/// An agent that failed, and does no more.
#[derive(Clone, Debug, Serialize)]
pub struct Solved {
    id: String,
    since: Timestamp,
    ended_at: Timestamp,
    calls: i64,
    failed: i64,
}

/// How all workspaces are.
#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    /// When it was read.
    pub at: Timestamp,
    /// The number of workspaces by state, the worst first.
    pub counts: Vec<(HealthState, usize)>,
    /// Those that are not healthy, the worst first.
    pub unwell: Vec<Unwell>,
    /// True if there are more, of either kind.
    pub truncated: bool,
    /// Those that failed within the last ten minutes, the last ones first.
    pub solved: Vec<Solved>,
    /// The last one that failed and does no more.
    pub last_solved: Option<Solved>,
}

/// A reading, with its time and its duration.
type Kept<T> = Mutex<Option<(Instant, Duration, Arc<T>)>>;

/// Decides how workspaces are.
pub struct HealthBoard {
    usage: Usage,
    workspaces: Workspaces,
    stops: Arc<Stops>,
    slots: Arc<Slots>,
    news: Kept<CallNews>,
    overview: Kept<Overview>,
}

impl HealthBoard {
    /// Creates it; does not touch the stores.
    pub fn new(usage: Usage, workspaces: Workspaces, stops: Arc<Stops>, slots: Arc<Slots>) -> Self {
        Self {
            usage,
            workspaces,
            stops,
            slots,
            news: Mutex::default(),
            overview: Mutex::default(),
        }
    }

    /// Returns how each of these workspaces is, in their order. `lineages`: their places, while stops are in force.
    /// Without the database their calls tell nothing.
    pub async fn judge_each(
        &self,
        workspaces: &[Workspace],
        lineages: &[Option<Arc<Lineage>>],
    ) -> Vec<Health> {
        let news = self.load_news().await.unwrap_or_default();
        let judged = workspaces.iter().enumerate().map(|(n, one)| {
            let place = lineages.get(n).and_then(Option::as_deref);
            let place = (
                one.org.as_deref(),
                place.map_or(&[][..], |place| &place.ancestors),
            );
            self.judge(&news, (&one.id, one.status.as_str(), one.last_seen), place)
        });
        judged.collect()
    }

    /// True if places of workspaces are needed to judge them.
    pub fn needs_places(&self) -> bool {
        !self.stops.is_idle()
    }

    fn judge(
        &self,
        news: &CallNews,
        (id, status, last_seen): (&WorkspaceId, &str, Option<Timestamp>),
        (org, ancestors): (Option<&str>, &[WorkspaceId]),
    ) -> Health {
        let id_ = Some(id);
        let stop = self.stops.find_over(End {
            id: id_,
            org,
            ancestors,
        });
        let views = self.slots.capacity_views(id);
        let is_open = |failure: &Option<AgentFailure>| failure.map(AgentFailure::as_str);
        let open = views.iter().filter(|view| view.breaker == "open");
        let facts = HealthFacts {
            status,
            last_seen,
            stop: stop.as_ref().map(|stop| {
                let label = stop.operator.as_ref().and_then(|one| one.label.as_deref());
                let by = label.unwrap_or(&stop.created_by);
                (stop.created_at, stop.reason.as_str(), by)
            }),
            breaker: open
                .map(|view| is_open(&view.failure).unwrap_or("open"))
                .next(),
            trouble: news.troubles.get(id.as_str()),
            five_minutes: news.failing.get(id.as_str()).copied().unwrap_or_default(),
        };
        Health::judge(&facts, Timestamp::now())
    }

    async fn load_news(&self) -> Result<Arc<CallNews>, Unavailable> {
        let mut kept = self.news.lock().await;
        if let Some((.., news)) = kept.as_ref().filter(|(at, ..)| at.elapsed() < KEPT) {
            return Ok(Arc::clone(news));
        }
        let begun = Instant::now();
        let (troubles, failing) =
            tokio::try_join!(self.usage.read_troubles(), self.usage.read_failing())?;
        let news = Arc::new(CallNews { troubles, failing });
        *kept = Some((Instant::now(), begun.elapsed(), Arc::clone(&news)));
        Ok(news)
    }

    /// Returns how all workspaces are, as of a second ago, or longer where reading them takes long.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn overview(&self) -> Result<Arc<Overview>, Unavailable> {
        let mut kept = self.overview.lock().await;
        let is_fresh =
            |(at, took, _): &&(Instant, Duration, _)| at.elapsed() < KEPT.max(*took * LOAD_PART);
        if let Some((.., overview)) = kept.as_ref().filter(is_fresh) {
            return Ok(Arc::clone(overview));
        }
        let begun = Instant::now();
        let news = self.load_news().await?;
        let mut rows: Vec<Outline> = Vec::new();
        while rows.len() < ROWS_MAX {
            let after = rows.last().map_or(String::new(), |row| row.id.to_string());
            let more = self.workspaces.load_outlines(&after, PAGE).await?;
            let is_last = more.len() < PAGE;
            rows.extend(more);
            if is_last {
                break;
            }
        }
        let overview = Arc::new(self.summarize(&news, &rows));
        *kept = Some((Instant::now(), begun.elapsed(), Arc::clone(&overview)));
        Ok(overview)
    }

    fn summarize(&self, news: &CallNews, rows: &[Outline]) -> Overview {
        let parents: HashMap<&WorkspaceId, Option<&WorkspaceId>> = rows
            .iter()
            .map(|row| (&row.id, row.parent_id.as_ref()))
            .collect();
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        let mut unwell = Vec::new();
        for row in rows {
            let mut above = Vec::new();
            if self.needs_places() {
                let mut next = row.parent_id.as_ref();
                // A circle, which only a change of the table could make, ends.
                while let Some(id) = next.filter(|_| above.len() < parents.len()) {
                    above.push(id.clone());
                    next = parents.get(id).copied().flatten();
                }
            }
            let facts = (&row.id, row.status.as_str(), row.last_seen);
            let health = self.judge(news, facts, (row.org.as_deref(), &above));
            *counts.entry(health.state.index()).or_default() += 1;
            if health.state != HealthState::Healthy {
                let last = news
                    .troubles
                    .get(row.id.as_str())
                    .map(|one| one.last_failed);
                unwell.push(Unwell {
                    id: row.id.to_string(),
                    name: row.name.clone(),
                    org: row.org.clone(),
                    health,
                    last_failed: last.filter(|at| *at > 0).map(Timestamp),
                });
            }
        }
        unwell.sort_by_key(|one| one.health.state.index());
        let truncated = unwell.len() > LISTED_MAX || rows.len() >= ROWS_MAX;
        unwell.truncate(LISTED_MAX);
        let over = news.troubles.iter().filter(|(_, one)| one.ended_at > 0);
        let mut solved: Vec<_> = over
            .map(|(id, one)| Solved {
                id: id.clone(),
                since: Timestamp(one.failed_since),
                ended_at: Timestamp(one.ended_at),
                calls: one.calls,
                failed: one.failed,
            })
            .collect();
        solved.sort_by_key(|one| std::cmp::Reverse(one.ended_at));
        let last_solved = solved.first().cloned();
        let now = Timestamp::now();
        solved.retain(|one| now.0 - one.ended_at.0 < SOLVED_MS);
        Overview {
            at: now,
            counts: counts
                .into_iter()
                .map(|(state, count)| (HealthState::ALL[state], count))
                .collect(),
            unwell,
            truncated,
            solved,
            last_solved,
        }
    }
}
