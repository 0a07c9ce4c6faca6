//! What heartbeats said and SQL does not know yet. A heartbeat costs no SQL write; every few seconds
//! the newest word of each workspace is written in batches.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ids::WorkspaceId;
use crate::store::Unavailable;
use crate::workspace::{Seen, Workspaces};

/// Workspaces in one statement: well under the 32,766 parameters that SQLite takes.
const BATCH_MAX: usize = 500;

/// The newest word of each workspace. Bounded by the workspaces that exist, since only those beat.
#[derive(Default)]
pub(super) struct News(Mutex<HashMap<WorkspaceId, Seen>>);

impl News {
    pub(super) fn note(&self, seen: Seen) {
        self.lock().insert(seen.id.clone(), seen);
    }

    pub(super) fn of(&self, id: &WorkspaceId) -> Option<Seen> {
        self.lock().get(id).cloned()
    }

    /// Writes all of it down. Until it is written it stays here.
    pub(super) async fn flush(&self, workspaces: &Workspaces) -> Result<(), Unavailable> {
        let all: Vec<Seen> = self.lock().values().cloned().collect();
        for batch in all.chunks(BATCH_MAX) {
            workspaces.set_last_seen_many(batch).await?;
            let mut kept = self.lock();
            for seen in batch {
                // Newer news came meanwhile: they wait for the next time.
                if kept.get(&seen.id) == Some(seen) {
                    kept.remove(&seen.id);
                }
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkspaceId, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
