//! Events of stops: who is told of one, and how much.

use std::sync::{Arc, PoisonError};

use serde_json::json;

use super::{Scope, Stop, Stops};
use crate::events::{Event, Kind, Of};
use crate::ids::WorkspaceId;

/// Workspaces that are told of a stop of an org, or of all, at most; and those that are looked at for it.
const TOLD_MAX: usize = 256;
const TOLD_AMONG_MAX: usize = 10_000;

/// Tells watchers of the workspaces that a stop names, or, of an org or of all, of those without a parent.
pub(super) fn tell_watchers(stops: &Arc<Stops>, kind: Kind, stop: &Stop, by: &'static str) {
    let [scope, ..] = stop.scope.columns();
    let payload = json!({"stop": stop.id, "scope": scope, "mode": stop.mode.as_str(),
        "reason": stop.reason, "expires_at": stop.expires_at, "by": by});
    let (org, of) = match &stop.scope {
        Scope::Org(org) => (Some(org.clone()), Of::Org(org.clone())),
        Scope::All => (None, Of::All),
        Scope::Workspace(_) | Scope::Subtree(_) | Scope::Pair(..) => {
            (None, Of::workspaces(stop.scope.named()))
        }
    };
    // Integrations and users that look after less of it do not read the stop itself either.
    let event = move |workspace: &WorkspaceId| {
        let event = Event::new(kind, workspace, payload.clone());
        event.telling(of.clone(), &["stop", "reason"])
    };
    for workspace in stop.scope.named() {
        stops.events.tell(event(workspace));
    }
    if stop.scope.named().next().is_some() {
        return;
    }
    let mut last = stops.telling.lock().unwrap_or_else(PoisonError::into_inner);
    let (stops, before) = (Arc::clone(stops), last.take());
    *last = Some(tokio::spawn(async move {
        // Watchers hear of a release after the stop.
        if let Some(before) = before {
            let _ = before.await;
        }
        for workspace in find_roots(&stops, org.as_deref()).await {
            stops.events.tell(event(&workspace));
        }
    }));
}

async fn find_roots(stops: &Stops, org: Option<&str>) -> Vec<WorkspaceId> {
    let (mut roots, mut after, mut seen) = (Vec::new(), String::new(), 0);
    while seen < TOLD_AMONG_MAX {
        let Ok(page) = stops.workspaces.outlines(&after, 500).await else {
            break;
        };
        let Some(last) = page.last() else { break };
        after = last.id.to_string();
        seen += page.len();
        let of_org = page.into_iter().filter(|one| {
            one.parent_id.is_none() && org.is_none_or(|org| one.org.as_deref() == Some(org))
        });
        roots.extend(of_org.map(|one| one.id));
        if roots.len() >= TOLD_MAX {
            roots.truncate(TOLD_MAX);
            break;
        }
    }
    roots
}
