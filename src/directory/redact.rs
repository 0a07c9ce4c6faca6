//! Redacts registered cards for readers other than the workspace and operators: the URLs of the agent are
//! removed, as from served cards. Unlike served cards they are not completed.

use serde_json::value::RawValue;

use super::Directory;
use super::card::hidden;
use super::entry::Urls;
use crate::a2a::card;
use crate::workspace::Workspace;

impl Directory {
    /// Redacts the cards of the workspaces for which the reader `has_no_sight` of the URLs.
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

    /// Returns the card without the URLs of its agent. `None` if they cannot be removed reliably, as from a
    /// card with a duplicate key.
    pub(super) async fn shown_card(
        &self,
        workspace: &Workspace,
        urls: &Urls,
    ) -> Option<Box<RawValue>> {
        // A page may have megabytes of cards: yield to other tasks.
        tokio::task::yield_now().await;
        let registered = workspace.agent_card.as_deref()?;
        let base = self.config.get().base_of(&workspace.id);
        let shown = card::shown(registered.get(), &base, &hidden(workspace, urls)).ok()?;
        RawValue::from_string(shown).ok()
    }
}
