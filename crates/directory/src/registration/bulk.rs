//! Creations, changes and removals of many workspaces in one transaction (`assembly::policy`), by the rules of the single
//! ones. What a rule needs of other workspaces comes from the caller, as they are after all changes.

use super::change::{self, Change, Registrations, VettedChange};
use super::lifecycle::status_after_resume;
use super::register::Creation;
use super::tree_rules::Editor;
use super::urls::is_listed;
use crate::address::Endpoint;
use crate::rejections::workspace_removed;
use access::workspace::{
    Liveness, Move, NewWorkspace, Origins, Settings, Status, Step, StoredInstance, Surroundings,
    Workspace, WorkspaceChange,
};
use kernel::ids::WorkspaceId;
use kernel::rejection::Rejection;

/// Change of a workspace, and of its pause.
#[derive(Clone, Debug, Default)]
pub struct Update {
    /// The change.
    pub change: Change,
    /// True: it is paused; false: resumed. `None` leaves it as it is.
    pub paused: Option<bool>,
}

/// Update with checked URLs.
pub struct VettedUpdate<'a> {
    vetted: VettedChange<'a>,
    update: &'a Update,
    /// True if its agent lives, so that it is online once it is resumed.
    is_alive: bool,
}

impl VettedUpdate<'_> {
    /// Returns the settings of the workspace after the update.
    ///
    /// # Errors
    /// As [`Registrations::change`], [`Registrations::pause`] and [`Registrations::resume`].
    pub fn apply_to(
        &self,
        workspace: &Workspace,
        around: &Surroundings,
    ) -> Result<Settings, Rejection> {
        if workspace.status == Status::Removed {
            return Err(workspace_removed());
        }
        let mut settings =
            change::decide_settings(workspace, around, &self.vetted, Editor::Operator)?;
        match self.update.paused {
            Some(true) => settings.status = Status::Paused,
            Some(false) if workspace.status == Status::Paused => {
                settings.status = status_after_resume(workspace, &settings, self.is_alive)?;
            }
            _ => {}
        }
        Ok(settings)
    }

    /// Returns the requested parent and org.
    pub fn requested_move(&self) -> &Move {
        &self.update.change.place
    }

    /// Returns the origins of its new URLs.
    pub fn origins(&self) -> &Origins {
        &self.vetted.origins
    }
}

/// The registrations, for many workspaces at once.
#[derive(Clone, Copy)]
pub struct BulkRegistrations<'r>(&'r Registrations);

impl<'r> BulkRegistrations<'r> {
    /// Returns those of a gateway.
    pub fn new(registrations: &'r Registrations) -> Self {
        Self(registrations)
    }

    /// Checks a creation as [`Registrations::create`] does, apart from its place, and returns its row.
    ///
    /// # Errors
    /// As [`Registrations::create`], but `conflict`.
    pub async fn vet_creation(self, creation: &Creation) -> Result<NewWorkspace, Rejection> {
        let vetted = self.0.vet_new(creation).await?;
        self.0.prepare(creation, &vetted).await
    }

    /// Checks an update as [`Registrations::change`] does, apart from its row.
    ///
    /// # Errors
    /// As [`Registrations::change`], but those about its row and its place.
    pub async fn vet_update<'a>(
        self,
        workspace: &Workspace,
        update: &'a Update,
    ) -> Result<VettedUpdate<'a>, Rejection> {
        change::check(&update.change)?;
        let id = &workspace.id;
        let vetted = self
            .0
            .vet_change(id, &update.change, Editor::Operator)
            .await?;
        let resumes = update.paused == Some(false) && workspace.status == Status::Paused;
        Ok(VettedUpdate {
            vetted,
            update,
            is_alive: resumes && self.0.is_alive(workspace).await,
        })
    }

    /// Returns the form in which a URL is stored.
    ///
    /// # Errors
    /// `invalid_params`, `address_forbidden`.
    pub fn stored_url(self, member: &'static str, url: &str) -> Result<String, Rejection> {
        Endpoint::parse_as(member, url, &self.0.resolver.policy()).map(|endpoint| endpoint.url())
    }

    /// Publishes workspaces that were created. `invalidates`: caches are to be told of each.
    pub async fn publish_created(self, workspace: &Workspace, invalidates: bool) {
        // An earlier life of the id may have left keys.
        if let Err(error) = self.0.presence.withdraw(&workspace.id).await {
            tracing::debug!(%error, workspace.id = %workspace.id, "failed to clear the keys of a new workspace");
        }
        if invalidates {
            self.0.announce_created(workspace).await;
        } else {
            self.0
                .announcer
                .announce_status(&workspace.id, workspace.status);
        }
    }

    /// Publishes an update that was made. `invalidates`: caches are to be told of it.
    ///
    /// # Errors
    /// `store_unavailable`, if the shared state was not written.
    pub async fn publish_update(
        self,
        update: &VettedUpdate<'_>,
        changed: &WorkspaceChange,
        invalidates: bool,
    ) -> Result<(), Rejection> {
        let id = &changed.after.id;
        self.0.announcer.announce_change(changed);
        let published = self.0.publish_change(&update.vetted, changed).await;
        if invalidates {
            self.0.announcer.invalidate_lineage_after(id, &Ok(())).await;
        }
        if update.vetted.has_urls() {
            self.0.presence.catch_up(&changed.after).await?;
        }
        self.0.read_card_of(&changed.after);
        published
    }

    /// Publishes the removal of a workspace. `line`: it and its former ancestors; `invalidates`: caches are to be told.
    ///
    /// # Errors
    /// `store_unavailable`, if the shared state was not written.
    pub async fn publish_removal(
        self,
        id: &WorkspaceId,
        line: &[Step],
        invalidates: bool,
    ) -> Result<(), Rejection> {
        if invalidates {
            self.0.announcer.invalidate_lineage_after(id, &Ok(())).await;
        }
        self.0.announcer.announce_removal(id, line);
        Ok(self.0.presence.withdraw(id).await?)
    }
}

/// Returns the URLs of a workspace that an operator lists, the first one first; `None`: there is no list.
pub fn listed_urls(workspace: &Workspace, instances: &[StoredInstance]) -> Option<Vec<String>> {
    if instances.is_empty() || reports_itself(workspace, instances) {
        return None;
    }
    let mut urls: Vec<String> = instances.iter().map(|one| one.url.clone()).collect();
    urls.sort_unstable_by_key(|url| (Some(url) != workspace.url.as_ref(), url.clone()));
    Some(urls)
}

/// True if the agent of a workspace names its URLs itself.
pub fn reports_itself(workspace: &Workspace, instances: &[StoredInstance]) -> bool {
    workspace.liveness == Liveness::Heartbeat || !instances.iter().all(is_listed)
}
