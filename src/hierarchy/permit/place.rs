//! Place of a workspace, and access to a place: for decisions about the past or in advance.

use std::sync::Arc;

use super::Hierarchy;
use crate::explain::{Check, Witness};
use crate::hierarchy::Lineage;
use crate::ids::WorkspaceId;
use crate::store::Unavailable;

impl Hierarchy {
    /// Returns the place of `id`; `None` if it never existed.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn place(&self, id: &WorkspaceId) -> Result<Option<Arc<Lineage>>, Unavailable> {
        let found = self.lineages.find(id).await;
        let found = found.map_err(|error| Unavailable::clone(&error))?;
        Ok(found.lineage)
    }

    /// Reports the place of the workspace `caller` to `witness`, or that there is none; nothing if the store is
    /// away.
    pub async fn tell_caller(&self, caller: &WorkspaceId, witness: &mut impl Witness) {
        if let Ok(found) = self.look(caller).await {
            witness.hear(|| found.fact(Check::CallerPlace, caller));
        }
    }

    /// Returns the place of `id` from the store, without the cache.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn place_afresh(&self, id: &WorkspaceId) -> Result<Option<Lineage>, Unavailable> {
        self.lineages.find_afresh(id).await
    }

    /// True if the workspace `caller` may message a workspace at `target`.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn reaches(
        &self,
        caller: &WorkspaceId,
        target: &Lineage,
    ) -> Result<bool, Unavailable> {
        let Some(caller) = self.place(caller).await? else {
            return Ok(false);
        };
        Ok(self.rule(&caller, target).await?.is_ok())
    }
}
