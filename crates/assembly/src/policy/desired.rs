//! The workspaces of a document in the form in which they are stored, and the changes that lead to them.

use serde_json::{Map, Value, json};

use super::document::LocatedEntry;
use super::state::{CurrentWorkspace, State, compared_members, leave_defaults_out};
use access::workspace::{Liveness, PolicyEntry, SettingsPatch, Status};
use directory::{Change, Creation, Registrations, Update, listed_urls, reports_itself};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};

/// A workspace of a document.
#[derive(Debug)]
pub(super) struct DesiredWorkspace {
    pub(super) path: String,
    pub(super) id: WorkspaceId,
    pub(super) parent: Option<WorkspaceId>,
    /// Its members, in the form of [`CurrentWorkspace::entry`].
    pub(super) entry: Box<PolicyEntry>,
}

impl DesiredWorkspace {
    /// Reads an entry.
    ///
    /// # Errors
    /// `invalid_workspace_id`, `invalid_params`, `address_forbidden`.
    pub(super) fn read(
        registrations: &Registrations,
        LocatedEntry { path, mut entry }: LocatedEntry<PolicyEntry>,
        state: &State,
    ) -> Result<Self, Rejection> {
        let id = WorkspaceId::parse(&entry.id)?;
        let made = entry.to_patch(|name| matches!(name, "parent_id" | "probe"));
        let made = Change::parse(made)?;
        entry.probe = made.probe.flatten().map(|probe| json!(probe));
        let held = state.workspaces.get(&id).map(|held| &**held);
        // A policy that does not say these leaves them as they are: agents may say two of them when they register, and
        // the pause may be an operator's.
        let row = held.map(|held| &held.row);
        entry.delivery_mode = entry.delivery_mode.or(row.map(|row| row.delivery_mode));
        entry.proof = entry.proof.or(row.and_then(|row| row.proof));
        let is_paused = row.is_some_and(|row| row.status == Status::Paused);
        entry.paused = entry.paused.or(Some(is_paused));
        leave_defaults_out(&mut entry);
        settle_urls(registrations, &mut entry, held)?;
        Ok(Self {
            path,
            id,
            parent: made.place.parent_id.flatten(),
            entry,
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
    ///
    /// # Errors
    /// Those of [`Change::parse`].
    pub(super) fn to_update(
        &self,
        held: &CurrentWorkspace,
        differences: &[(String, Value, Value)],
    ) -> Result<Update, Rejection> {
        let entry = &self.entry;
        let differs = |name: &str| differences.iter().any(|(other, ..)| other == name);
        let mut patch = self.to_patch(|name| match name {
            "parent_id" | "org" => differs("parent_id") || differs("org"),
            // The list has the place of the others.
            "url" | "internal_url" => entry.urls.is_none() && differs(name),
            "urls" => entry.urls.is_some() && differs(name),
            name => differs(name),
        });
        let has_list = listed_urls(&held.row, &held.instances).is_some();
        if entry.urls.is_none() && has_list && self.liveness() == Liveness::Heartbeat {
            patch.urls = Some(None);
        }
        Ok(Update {
            change: Change::parse(patch)?,
            paused: differs("paused").then_some(entry.paused == Some(true)),
        })
    }

    /// Returns the creation of the workspace.
    ///
    /// # Errors
    /// Those of [`Change::parse`].
    pub(super) fn to_creation(&self) -> Result<Creation, Rejection> {
        let said = compared_members(&self.entry);
        let patch = self.to_patch(|name| name == "name" || said.contains_key(name));
        let change = Change::parse(patch)?;
        Ok(Creation::by_operator(self.id.clone(), change))
    }

    fn to_patch(&self, selects: impl Fn(&str) -> bool) -> SettingsPatch {
        let mut patch = self.entry.to_patch(selects);
        let name = || self.entry.name.clone();
        patch.name = patch
            .name
            .map(|_| name().unwrap_or_else(|| self.id.to_string()));
        patch
    }
}

/// Brings the URLs into the form in which they are stored, and refuses those that an agent reports.
fn settle_urls(
    registrations: &Registrations,
    entry: &mut PolicyEntry,
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
