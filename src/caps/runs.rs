//! The org in which a run or a context counts: that of who began it.
//!
//! A caller that was itself called in a run serves that run, whatever its own org. The first who uses a name at a workspace
//! decides: the workspace itself, by a call in a run of that name, or a caller from another org, whose call it serves.

use std::time::Duration;

use moka::future::Cache;
use serde_json::json;

use super::counter::IDLE;
use super::facts::Facts;
use crate::ids::WorkspaceId;
use crate::shared::Shared;
use crate::store::Unavailable;

/// Most names that are remembered.
const KNOWN_MAX: u64 = 65_536;

/// Time for which one is remembered.
const KNOWN_FOR: Duration = Duration::from_mins(10);

/// The orgs of runs, by workspace and name.
pub(super) struct Runs {
    shared: Shared,
    known: Cache<String, String>,
}

impl Runs {
    pub(super) fn new(shared: Shared) -> Self {
        let known = Cache::builder().max_capacity(KNOWN_MAX);
        Self {
            shared,
            known: known.time_to_live(KNOWN_FOR).build(),
        }
    }

    /// Returns the org in which the run or context `name` of a call counts, and has the target know it.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub(super) async fn org_of(&self, facts: &Facts, name: &str) -> Result<String, Unavailable> {
        let org = match &facts.caller {
            Some(caller) => self.decide(caller, name, &facts.org).await?,
            None => facts.org.clone(),
        };
        if org != facts.target_org {
            self.decide(&facts.target, name, &org).await?;
        }
        Ok(org)
    }

    /// Returns the org of `name` at a workspace: `org`, unless it was decided before.
    async fn decide(
        &self,
        workspace: &WorkspaceId,
        name: &str,
        org: &str,
    ) -> Result<String, Unavailable> {
        let key = format!("gw:cap-run:{}", json!([workspace.as_str(), name]));
        if let Some(known) = self.known.get(&key).await {
            return Ok(known);
        }
        let mut decided = org.to_owned();
        if !self.shared.set_if_absent(&key, org, IDLE).await?
            && let Some(before) = self.shared.get(&key).await?
        {
            decided = before;
        }
        self.known.insert(key, decided.clone()).await;
        Ok(decided)
    }
}
