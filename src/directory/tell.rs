//! What watchers hear of workspaces (contract §8.4): every change of status, place, card and being.

use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Directory;
use crate::events::{Event, Kind};
use crate::hierarchy::line_to_lineage;
use crate::ids::WorkspaceId;
use crate::workspace::{Changed, Status, Step};

/// Longest card in an event, in bytes. A longer one is to be read.
const EVENT_CARD_BYTES_MAX: usize = 16 * 1024;

impl Directory {
    /// It has another status, or registered.
    pub(super) fn tell_status(&self, id: &WorkspaceId, status: Status) {
        let kind = match status {
            Status::Online => Kind::WorkspaceOnline,
            Status::Degraded => Kind::WorkspaceDegraded,
            _ => Kind::WorkspaceOffline,
        };
        let payload = json!({"status": status});
        self.events.tell(Event::new(kind, id, payload));
    }

    /// It has another card.
    pub(super) fn tell_card(&self, id: &WorkspaceId, card: &RawValue) {
        let fits = card.get().len() <= EVENT_CARD_BYTES_MAX;
        let card = fits
            .then(|| serde_json::from_str(card.get()).ok())
            .flatten();
        let payload = json!({"agent_card": card.unwrap_or(Value::Null)});
        let event = Event::new(Kind::AgentCardUpdated, id, payload);
        self.events.tell(event);
    }

    /// What a change did to its place and its status.
    pub(super) fn tell_changed(&self, changed: &Changed) {
        let (before, after) = (&changed.before, &changed.after);
        if before.parent_id != after.parent_id || before.org != after.org {
            let parent_id = after.parent_id.as_ref().map(WorkspaceId::as_str);
            let payload = json!({"parent_id": parent_id, "org": after.org});
            self.tell_with_line(Kind::WorkspaceMoved, &after.id, payload, &changed.line);
        }
        if before.status != after.status {
            self.tell_status(&after.id, after.status);
        }
    }

    /// It is gone. `line` is the one that it had.
    pub(super) fn tell_removed(&self, id: &WorkspaceId, line: &[Step]) {
        self.tell_with_line(Kind::WorkspaceRemoved, id, json!({}), line);
    }

    fn tell_with_line(&self, kind: Kind, id: &WorkspaceId, payload: Value, line: &[Step]) {
        let mut event = Event::new(kind, id, payload);
        event.was = line_to_lineage(line.to_vec()).map(Arc::new);
        self.events.tell(event);
    }
}
