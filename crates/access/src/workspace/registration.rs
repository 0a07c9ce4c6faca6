//! Registrations in the table `workspaces`, each with its instance and its origins in one transaction.

use serde_json::value::RawValue;

use super::instances::{self, InstanceRegistration, RegistrationError};
use super::origins::{self, Origins};
use super::sql::{REGISTER, lock_row};
use super::{CallerProof, DeliveryMode, Liveness, Timestamp, Workspace};
use crate::rows::{fetch_all, sql};
use kernel::ids::{InstanceId, WorkspaceId};
use stores::db::Connection;

/// Values that a registration sets.
#[derive(Clone, Debug)]
pub struct RegistrationUpdate {
    /// Delivery mode: push or poll.
    pub delivery_mode: DeliveryMode,
    /// URL that its agent listens at.
    pub url: Option<String>,
    /// URL on the agents' own network; `None` removes it.
    pub internal_url: Option<String>,
    /// Its card; `None` keeps the current one.
    pub agent_card: Option<Box<RawValue>>,
    /// Its name; `None` keeps the current one.
    pub name: Option<String>,
    /// Source of its liveness; `None` keeps the current one.
    pub liveness: Option<Liveness>,
    /// URL that its card is fetched from; `None` keeps the current one.
    pub card_url: Option<String>,
    /// Origins of these URLs.
    pub origins: Origins,
    /// Place of a credential that waits for one: an operator names it.
    pub upstream_auth_base: Option<String>,
    /// Proof in the tokens that it gets with calls; `None` keeps the current one.
    pub proof: Option<CallerProof>,
    /// The instance that registers.
    pub instance: InstanceRegistration,
}

/// A stored registration.
#[derive(Clone, Debug)]
pub struct StoredRegistration {
    /// The workspace after it.
    pub workspace: Workspace,
    /// The instance that registered; `None`: the workspace has no named instances.
    pub instance: Option<InstanceId>,
    /// True if the URL that was registered without an id became the instance `default`.
    pub made_default: bool,
}

/// Stores a registration; the caller commits, unless it is an error. `None` inside: the workspace does not exist or is
/// removed.
pub(super) async fn register(
    connection: &mut Connection,
    id: &WorkspaceId,
    change: &RegistrationUpdate,
    now: Timestamp,
) -> Result<Result<Option<StoredRegistration>, RegistrationError>, sqlx::Error> {
    let registering = &change.instance;
    let before = match registering.id {
        Some(_) => lock_row(connection, id).await?,
        None => None,
    };
    let change_row = sql!(
        REGISTER.as_str(),
        id.as_str(),
        change.delivery_mode.as_str(),
        change.url.as_deref(),
        change.internal_url.as_deref(),
        change.agent_card.as_deref().map(RawValue::get),
        change.name.as_deref(),
        now.0,
        change.liveness.map(Liveness::as_str),
        change.card_url.as_deref(),
        change.upstream_auth_base.as_deref(),
        change.proof.map(CallerProof::as_str),
    );
    let rows: Vec<Workspace> = fetch_all(connection, change_row).await?;
    let Some(mut after) = rows.into_iter().next() else {
        return Ok(Ok(None));
    };
    let stored = instances::register(connection, before.as_ref(), &mut after, registering, now);
    let (instance, made_default) = match stored.await? {
        Ok(stored) => stored,
        Err(why) => return Ok(Err(why)),
    };
    let settled = origins::write_origins(connection, &after, &change.origins).await?;
    Ok(match settled {
        Ok(()) => Ok(Some(StoredRegistration {
            workspace: after,
            instance,
            made_default,
        })),
        Err(taken) => Err(taken.into()),
    })
}
