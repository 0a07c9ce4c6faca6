//! The second check of the caller of a request. A look-up of a name takes up to two seconds, in which a credential may be
//! revoked and a workspace moved or removed, and the caller chooses the names.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::registrar::{Registrar, foreign_workspace};
use super::tree_rules::require_within;
use access::workspace::{Workspace, Workspaces};
use kernel::ids::WorkspaceId;
use kernel::rejection::Rejection;

type Check = dyn Fn() -> BoxFuture<'static, Result<(), Rejection>> + Send + Sync;

/// A check that runs after the look-ups of a request, and before anything is written.
#[derive(Clone)]
pub struct Recheck(Arc<Check>);

impl Recheck {
    /// Returns one. It may run twice for one request.
    pub fn new<C>(check: impl Fn() -> C + Send + Sync + 'static) -> Self
    where
        C: Future<Output = Result<(), Rejection>> + Send + 'static,
    {
        Self(Arc::new(move || Box::pin(check())))
    }

    /// Runs the check, if there is one.
    ///
    /// # Errors
    /// Those of the check.
    pub(super) async fn run(check: Option<&Self>) -> Result<(), Rejection> {
        match check {
            Some(check) => (check.0)().await,
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Recheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recheck")
    }
}

/// True if the registrar is an org token that does not look after the workspace.
pub(super) async fn is_foreign(
    workspaces: &Workspaces,
    registrar: &Registrar,
    workspace: Option<&Workspace>,
) -> Result<bool, Rejection> {
    let (Registrar::Org { org, within, .. }, Some(workspace)) = (registrar, workspace) else {
        return Ok(false);
    };
    if workspace.org.as_ref() != Some(org) {
        return Ok(true);
    }
    let line = match within {
        Some(_) => workspaces.load_line(&workspace.id).await?,
        None => return Ok(false),
    };
    Ok(require_within(&line, within.as_ref()).is_err())
}

/// Checks after the look-ups of names that an org token looks after the workspace `id` as before. `was_foreign`: it did
/// not.
///
/// # Errors
/// `not_permitted`; `store_unavailable`.
pub(super) async fn require_still_own(
    workspaces: &Workspaces,
    registrar: &Registrar,
    (id, was_foreign): (&WorkspaceId, bool),
) -> Result<(), Rejection> {
    if was_foreign || !matches!(registrar, Registrar::Org { .. }) {
        return Ok(());
    }
    let found = workspaces.find(id).await?;
    match is_foreign(workspaces, registrar, found.as_ref()).await? {
        true => Err(foreign_workspace()),
        false => Ok(()),
    }
}
