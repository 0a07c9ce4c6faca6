//! Callers of registrations, and what each may register.
//!
//! The second check of the caller of a request. A look-up of a name takes up to two seconds, in which a credential may
//! be revoked and a workspace moved or removed, and the caller chooses the names.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::tree_rules::require_within;
use super::urls::check_label;
use super::{Change, Creation, Editor, Registration};
use crate::rejections::{invalid, not_found, not_permitted, workspace_removed};
use access::workspace::{
    DeliveryMode, INSTANCES_MAX, Liveness, Move, RegistrationError, SettingsPatch, Status,
    Workspace, Workspaces,
};
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::rejection::{Reason, Rejection};

/// Caller of a registration; it decides which members are allowed.
#[derive(Clone, Debug)]
pub enum Registrar {
    /// The workspace, with its own or its enrolment token.
    Itself,
    /// An org token of this org; may create a workspace, but not move one.
    Org {
        /// The org.
        org: String,
        /// The root of its subtree, if it looks after one only.
        within: Option<WorkspaceIncarnation>,
        /// Members for operators and org tokens.
        terms: Terms,
    },
    /// An operator; may create and move.
    Operator(Terms),
}

/// Members of a registration that only operators and org tokens may set. `None` leaves a value as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Display name.
    pub name: Option<String>,
    /// Parent workspace.
    pub parent_id: Option<WorkspaceId>,
    /// Org that the workspace belongs to.
    pub org: Option<String>,
    /// Source of its liveness.
    pub liveness: Option<Liveness>,
    /// URL that its card is fetched from.
    pub card_url: Option<String>,
}

/// Checks that `registrar` may register the row found. Returns the name to set, and the move to make.
pub(super) fn check_registrar(
    found: Option<&Workspace>,
    registrar: &Registrar,
) -> Result<(Option<String>, Option<Move>), Rejection> {
    let terms = registrar.terms();
    if let Some(name) = terms.and_then(|p| p.name.as_deref()) {
        check_label("name", name)?;
    }
    let Some(found) = found else {
        let terms = terms.ok_or_else(not_found)?;
        return Ok((terms.name.clone(), None));
    };
    if found.status == Status::Removed {
        return Err(workspace_removed());
    }
    let Some(terms) = terms else {
        return Ok((None, None));
    };
    let parent_id = terms.parent_id.as_ref().or(found.parent_id.as_ref());
    let org = terms.org.as_ref().or(found.org.as_ref());
    let moves = parent_id != found.parent_id.as_ref() || org != found.org.as_ref();
    if moves && !matches!(registrar, Registrar::Operator(_)) {
        return Err(not_permitted("only an operator moves a workspace"));
    }
    let place = moves.then(|| Move {
        parent_id: terms.parent_id.clone().map(Some),
        org: terms.org.clone().map(Some),
    });
    Ok((terms.name.clone(), place))
}

/// Returns the delivery mode from this registration on.
pub(super) fn mode_of(
    registration: &Registration,
    found: Option<&Workspace>,
) -> Result<DeliveryMode, Rejection> {
    let mode = registration
        .delivery_mode
        .or(found.map(|found| found.delivery_mode))
        .unwrap_or(DeliveryMode::Push);
    if mode == DeliveryMode::Push && registration.url.is_none() {
        return Err(invalid(
            "delivery_mode push needs the url at which the agent listens; without one, poll",
        ));
    }
    if mode == DeliveryMode::Poll && registration.instance.is_some() {
        return Err(invalid(
            "instance_id needs delivery_mode push: an inbox is read by all instances alike; leave instance_id out",
        ));
    }
    Ok(mode)
}

/// Returns a workspace that is created by its registration.
pub(super) fn build_creation(
    id: &WorkspaceId,
    delivery_mode: DeliveryMode,
    registrar: &Registrar,
) -> Creation {
    let terms = registrar.terms().cloned().unwrap_or_default();
    let (org, within) = match registrar {
        Registrar::Org { org, within, .. } => (Some(org.clone()), within.clone()),
        Registrar::Itself | Registrar::Operator(_) => (terms.org, None),
    };
    let root = || within.as_ref().map(|root| root.id.clone());
    let parent_id = terms.parent_id.or_else(root);
    let patch = SettingsPatch {
        name: Some(terms.name.unwrap_or_else(|| id.to_string())),
        org: Some(org.clone()),
        delivery_mode: Some(delivery_mode),
        ..SettingsPatch::default()
    };
    Creation {
        id: id.clone(),
        change: Change {
            patch,
            place: Move {
                parent_id: Some(parent_id),
                org: Some(org),
            },
            ..Change::default()
        },
        within,
        enrolment: None,
        editor: match registrar {
            Registrar::Operator(_) => Editor::Operator,
            Registrar::Org { .. } | Registrar::Itself => Editor::Org,
        },
    }
}

impl Registrar {
    pub(super) fn terms(&self) -> Option<&Terms> {
        match self {
            Self::Itself => None,
            Self::Org { terms, .. } | Self::Operator(terms) => Some(terms),
        }
    }
}

pub(super) fn foreign_workspace() -> Rejection {
    not_permitted(
        "an org token registers workspaces of its own org only, and in its subtree if it has one; choose another id",
    )
}

pub(super) fn not_registered(why: RegistrationError) -> Rejection {
    match why {
        RegistrationError::OriginTaken(taken) => taken.into(),
        RegistrationError::TooMany => Rejection::new(
            Reason::Conflict,
            format!(
                "the workspace has {INSTANCES_MAX} instances, and none of them is offline: deregister one first \
                 (POST /registry/deregister with its instance_id)"
            ),
        )
        .with_fact("limit", INSTANCES_MAX),
    }
}

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
