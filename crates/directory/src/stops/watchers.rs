//! Events of stops: the watchers that get one, and how much of it.

use std::sync::Arc;

use serde_json::json;

use super::{Scope, Stop, Stops};
use crate::events::{Event, Kind, PayloadSubject};
use kernel::ids::WorkspaceId;

/// Maximum workspaces that get the event of a stop of an org, or of all; and those that are searched for them.
const WATCHED_MAX: usize = 256;
const SEARCHED_MAX: usize = 10_000;

/// Publishes the event of a stop for the workspaces that it names; if it is of an org, or of all, for those without a
/// parent.
pub(super) fn notify_watchers(stops: &Arc<Stops>, kind: Kind, stop: &Stop, by: &'static str) {
    let [scope, ..] = stop.scope.to_columns();
    let payload = json!({"stop": stop.id, "scope": scope, "mode": stop.mode.as_str(),
        "reason": stop.reason, "expires_at": stop.expires_at, "by": by});
    let (org, of) = match &stop.scope {
        Scope::Org(org) => (Some(org.clone()), PayloadSubject::Org(org.clone())),
        Scope::All => (None, PayloadSubject::All),
        Scope::Workspace(_) | Scope::Subtree(_) | Scope::Pair(..) => (
            None,
            PayloadSubject::from_workspaces(stop.scope.named_workspaces()),
        ),
    };
    // Integrations and users that look after less of it do not read the stop itself either.
    let event = move |workspace: &WorkspaceId| {
        let event = Event::new(kind, workspace, payload.clone());
        event.restrict_members(of.clone(), &["stop", "reason"])
    };
    for workspace in stop.scope.named_workspaces() {
        stops.events.publish(event(workspace));
    }
    if stop.scope.named_workspaces().next().is_some() {
        return;
    }
    let mut last = stops.telling.lock();
    let (stops, before) = (Arc::clone(stops), last.take());
    *last = Some(tokio::spawn(async move {
        // Watchers hear of a release after the stop.
        if let Some(before) = before {
            let _ = before.await;
        }
        for workspace in find_roots(&stops, org.as_deref()).await {
            stops.events.publish(event(&workspace));
        }
    }));
}

async fn find_roots(stops: &Stops, org: Option<&str>) -> Vec<WorkspaceId> {
    let (mut roots, mut after, mut seen) = (Vec::new(), String::new(), 0);
    while seen < SEARCHED_MAX {
        let Ok(page) = stops.workspaces.load_outlines(&after, 500).await else {
            break;
        };
        let Some(last) = page.last() else { break };
        after = last.id.to_string();
        seen += page.len();
        let of_org = page.into_iter().filter(|one| {
            one.parent_id.is_none() && org.is_none_or(|org| one.org.as_deref() == Some(org))
        });
        roots.extend(of_org.map(|one| one.id));
        if roots.len() >= WATCHED_MAX {
            roots.truncate(WATCHED_MAX);
            break;
        }
    }
    roots
}
