//! Registered cards as they are shown to others than their workspace and operators: like served ones
//! they do not tell where the agent listens, and unlike them they are not completed.

use serde_json::value::RawValue;

use super::Directory;
use super::card::hidden;
use super::entry::Urls;
use crate::a2a::card;
use crate::workspace::Workspace;

impl Directory {
    /// Changes the cards of those workspaces for whose place a reader `has_no_sight`, to what it may see.
    pub async fn conceal(
        &self,
        workspaces: &mut [Workspace],
        has_no_sight: impl Fn(&Workspace) -> bool,
    ) {
        let concerns = |one: &Workspace| one.agent_card.is_some() && has_no_sight(one);
        if !workspaces.iter().any(concerns) {
            return;
        }
        let urls = self.urls_of(workspaces).await;
        for (one, urls) in workspaces.iter_mut().zip(urls) {
            if concerns(one) {
                one.agent_card = self.shown_card(one, &urls).await;
            }
        }
    }

    /// The workspace's card for those who may not know where its agent is. `None` also of a card in which
    /// that cannot be told for sure, such as one with a member twice.
    pub(super) async fn shown_card(
        &self,
        workspace: &Workspace,
        urls: &Urls,
    ) -> Option<Box<RawValue>> {
        // A page may hold megabytes of cards, and others have their turn in between.
        tokio::task::yield_now().await;
        let registered = workspace.agent_card.as_deref()?;
        let base = self.config.get().base_of(&workspace.id);
        let shown = card::shown(registered.get(), &base, &hidden(workspace, urls)).ok()?;
        RawValue::from_string(shown).ok()
    }
}
