//! The workspaces of a document in the form in which they are stored, and the changes that lead to them.

use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};

use super::document::{Entry, LocatedEntry};
use super::state::{CurrentWorkspace, State, compared_members};
use crate::directory::{
    BulkRegistrations, Change, Creation, Editor, Probe, Update, listed_urls, reports_itself,
};
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::workspace::{DeliveryMode, Liveness, Move, Status};

/// A workspace of a document.
#[derive(Debug)]
pub(super) struct DesiredWorkspace {
    pub(super) path: String,
    pub(super) id: WorkspaceId,
    pub(super) parent: Option<WorkspaceId>,
    /// Its members, in the form of [`CurrentWorkspace::entry`].
    pub(super) entry: Box<Entry>,
    probe: Option<Probe>,
}

impl DesiredWorkspace {
    /// Reads an entry.
    ///
    /// # Errors
    /// `invalid_workspace_id`, `invalid_params`, `address_forbidden`.
    pub(super) fn read(
        registrations: BulkRegistrations<'_>,
        LocatedEntry { path, mut entry }: LocatedEntry<Entry>,
        state: &State,
    ) -> Result<Self, Rejection> {
        let id = WorkspaceId::parse(&entry.id)?;
        let parent = entry.parent_id.as_deref().map(WorkspaceId::parse);
        let (parent, probe) = (parent.transpose()?, parse_probe(entry.probe.as_ref())?);
        let held = state.workspaces.get(&id).map(|held| &**held);
        entry.name = entry.name.take().filter(|name| *name != entry.id);
        // A policy that does not say these leaves them as they are: agents may say two of them when they register, and the
        // pause may be an operator's.
        let delivery_mode = entry
            .delivery_mode
            .or(held.map(|held| held.row.delivery_mode));
        entry.delivery_mode = delivery_mode.filter(|mode| *mode != DeliveryMode::Push);
        let is_paused = held.is_some_and(|held| held.row.status == Status::Paused);
        entry.paused = Some(entry.paused.unwrap_or(is_paused)).filter(|paused| *paused);
        entry.proof = entry.proof.or(held.and_then(|held| held.row.proof));
        entry.liveness = entry
            .liveness
            .filter(|liveness| *liveness != Liveness::Heartbeat);
        entry.probe = probe.as_ref().map(|probe| json!(probe.as_stored()));
        settle_urls(registrations, &mut entry, held)?;
        Ok(Self {
            path,
            id,
            parent,
            entry,
            probe,
        })
    }

    fn liveness(&self) -> Liveness {
        self.entry.liveness.unwrap_or(Liveness::Heartbeat)
    }

    /// Returns the members that differ from those of the present workspace, each with both values.
    pub(super) fn differing_members(&self, held: &CurrentWorkspace) -> Vec<(String, Value, Value)> {
        let (mut before, after) = (compared_members(&held.entry), compared_members(&self.entry));
        if self.liveness() == Liveness::Heartbeat {
            // From now on its agent names them.
            for name in ["url", "internal_url", "urls"] {
                before.remove(name);
            }
        }
        let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let value = |members: &Map<String, Value>, name: &str| {
            members.get(name).cloned().unwrap_or(Value::Null)
        };
        let all = names
            .into_iter()
            .map(|name| (name.clone(), value(&before, name), value(&after, name)));
        all.filter(|(_, before, after)| before != after).collect()
    }

    /// Returns the update that changes these members.
    pub(super) fn to_update(
        &self,
        held: &CurrentWorkspace,
        differences: &[(String, Value, Value)],
    ) -> Update {
        let entry = &self.entry;
        let differs = |name: &str| differences.iter().any(|(other, ..)| other == name);
        let set = |name: &str| differs(name).then_some(());
        let mut change = Change {
            name: set("name").map(|()| self.display_name()),
            role: set("role").map(|()| entry.role.clone()),
            card_url: set("card_url").map(|()| entry.card_url.clone()),
            delivery_mode: set("delivery_mode")
                .map(|()| entry.delivery_mode.unwrap_or(DeliveryMode::Push)),
            max_concurrent: set("max_concurrent").map(|()| entry.max_concurrent),
            liveness: set("liveness").map(|()| self.liveness()),
            complete: set("complete").map(|()| entry.complete),
            push_notifications: set("push_notifications").map(|()| entry.push_notifications),
            card_access: set("card_access").map(|()| entry.card_access),
            proof: set("proof").map(|()| entry.proof),
            bridge: set("bridge").map(|()| entry.bridge),
            resolve: set("resolve").map(|()| entry.resolve),
            probe: set("probe").map(|()| self.probe.clone()),
            ..Change::default()
        };
        if differs("parent_id") || differs("org") {
            change.place = Move {
                parent_id: Some(self.parent.clone()),
                org: Some(entry.org.clone()),
            };
        }
        match &entry.urls {
            // The list has the place of the others.
            Some(urls) => change.urls = set("urls").map(|()| Some(urls.clone())),
            None => {
                change.url = set("url").map(|()| entry.url.clone());
                change.internal_url = set("internal_url").map(|()| entry.internal_url.clone());
                let has_list = listed_urls(&held.row, &held.instances).is_some();
                if has_list && self.liveness() == Liveness::Heartbeat {
                    change.urls = Some(None);
                }
            }
        }
        Update {
            change,
            paused: set("paused").map(|()| entry.paused == Some(true)),
        }
    }

    /// Returns the creation of the workspace.
    pub(super) fn to_creation(&self) -> Creation {
        let entry = &self.entry;
        Creation {
            id: self.id.clone(),
            name: self.display_name(),
            parent_id: self.parent.clone(),
            org: entry.org.clone(),
            role: entry.role.clone(),
            delivery_mode: entry.delivery_mode.unwrap_or(DeliveryMode::Push),
            url: entry.url.clone(),
            internal_url: entry.internal_url.clone(),
            card_url: entry.card_url.clone(),
            urls: entry.urls.clone(),
            max_concurrent: entry.max_concurrent,
            liveness: self.liveness(),
            complete: entry.complete,
            push_notifications: entry.push_notifications,
            card_access: entry.card_access,
            proof: entry.proof,
            bridge: entry.bridge,
            resolve: entry.resolve,
            upstream_auth: None,
            upstream_tls: None,
            wake: None,
            probe: self.probe.clone(),
            enrolment: None,
            editor: Editor::Operator,
            within: None,
            recheck: None,
        }
    }

    fn display_name(&self) -> String {
        self.entry
            .name
            .clone()
            .unwrap_or_else(|| self.id.to_string())
    }
}

/// Brings the URLs into the form in which they are stored, and refuses those that an agent reports.
fn settle_urls(
    registrations: BulkRegistrations<'_>,
    entry: &mut Entry,
    held: Option<&CurrentWorkspace>,
) -> Result<(), Rejection> {
    let stored = |member, url: &mut Option<String>| {
        if let Some(said) = url {
            *said = registrations.stored_url(member, said)?;
        }
        Ok::<_, Rejection>(())
    };
    stored("card_url", &mut entry.card_url)?;
    let says_url = entry.url.is_some() || entry.internal_url.is_some() || entry.urls.is_some();
    let is_reported = match entry.liveness {
        None => true,
        // Its agent registers instances, although it need not send heartbeats.
        Some(_) => held.is_some_and(|held| {
            held.row.liveness == Liveness::Assumed && reports_itself(&held.row, &held.instances)
        }),
    };
    if is_reported && says_url {
        return Err(Rejection::new(
            Reason::InvalidParams,
            "url, internal_url and urls are what the agent reports when it registers: leave them out, or, for an agent that \
             does not register, say \"liveness\": \"assumed\"",
        ));
    }
    stored("url", &mut entry.url)?;
    stored("internal_url", &mut entry.internal_url)?;
    if let Some(urls) = &mut entry.urls {
        for url in urls.iter_mut() {
            *url = registrations.stored_url("urls", url)?;
        }
        // The first is the one by which views name the agent.
        if let Some((_, others)) = urls.split_first_mut() {
            others.sort_unstable();
        }
    }
    Ok(())
}

fn parse_probe(value: Option<&Value>) -> Result<Option<Probe>, Rejection> {
    let value = value.filter(|value| !value.is_null()).map(to_raw_value);
    let wrong = |_| Rejection::new(Reason::InvalidParams, "`probe` is no JSON");
    let value = value.transpose().map_err(wrong)?;
    value.map(|value| Probe::parse(&value)).transpose()
}
