//! Table `agent_origins`: the servers that agents are registered at. It prevents a workspace from registering
//! the agent of another workspace as its own.
//!
//! A server belongs to one workspace: its row has an empty `slot`, which is unique for each origin. A server
//! that an operator shares has the workspace's id as slot. The primary key thus decides between concurrent
//! registrations, on all replicas. A row is deleted when its workspace deregisters, is removed or has another
//! URL. A former address of a name is released when another workspace asks for it, or when there are more than
//! `KEPT_MAX`: [`Workspaces::claim_origins`] runs before the first call to a new address.

use super::instances;
use super::sql::lock_row;
use super::{Status, Workspace, Workspaces};
use crate::rows::{execute, fetch_all, fetch_optional, from_row, sql};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use stores::db::{Connection, Db, Transaction};
use stores::store::Unavailable;

const OWN: &str = "SELECT origin, slot, base FROM agent_origins WHERE workspace_id = $1";

const TAKE: &str = "INSERT INTO agent_origins (origin, slot, workspace_id, base) VALUES ($1, $2, $3, $4) \
     ON CONFLICT (origin, slot) DO NOTHING";

const OTHER: &str =
    "SELECT base FROM agent_origins WHERE origin = $1 AND workspace_id <> $2 LIMIT 1";

/// Selects another workspace on the server `$1` that shares no other server of the host `$3` with `$2`.
const STRANGER: &str = "SELECT held.workspace_id, held.origin, held.base FROM agent_origins held \
     WHERE held.origin = $1 AND held.workspace_id <> $2 AND NOT EXISTS ( \
       SELECT 1 FROM agent_origins theirs \
       JOIN agent_origins ours ON ours.origin = theirs.origin AND ours.base = theirs.base \
       WHERE theirs.workspace_id = held.workspace_id AND ours.workspace_id = $2 AND ours.origin <> $1 \
       AND ours.base = $3 AND held.base = $3) LIMIT 1";

const HELD: &str = "SELECT workspace_id, origin, base FROM agent_origins WHERE origin = $1 AND workspace_id <> $2 \
     ORDER BY workspace_id";

const LEAVE: &str = "DELETE FROM agent_origins WHERE workspace_id = $1 AND origin = $2";

/// Releases all servers of the removed workspace `$1`.
pub(super) const LEAVE_ALL: &str = "DELETE FROM agent_origins WHERE workspace_id = $1";

/// Most servers of one workspace before those are released that its names do not resolve to now.
const KEPT_MAX: usize = 48;

/// Slot of a workspace that has an origin to itself.
const ALONE: &str = "";

/// One server of an agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// Scheme, address or name, and port.
    pub origin: String,
    /// Scheme, host and port as registered.
    pub base: String,
    /// True if other workspaces may use it, too.
    pub is_shared: bool,
}

/// Origins of the URLs of a registration or a change.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    pub(super) all: Vec<Origin>,
    /// What other workspaces hold of them and do not use any more: it is released in the transaction that takes the
    /// origins. Empty if an operator makes the change: its origins are shared.
    pub left: Vec<HeldOrigin>,
}

impl Origins {
    /// Sorts the origins, so that two concurrent registrations do not deadlock.
    pub fn new(mut origins: Vec<Origin>) -> Self {
        origins.sort();
        origins.dedup_by(|one, other| one.origin == other.origin);
        Self {
            all: origins,
            left: Vec::new(),
        }
    }

    /// Begins a transaction that settles them. Those that release servers of other workspaces run one after another: of
    /// two agents that swap their addresses, each would wait for rows of the other.
    pub(super) async fn begin_transaction(&self, db: &Db) -> Result<Transaction, sqlx::Error> {
        match self.left.is_empty() {
            true => db.begin().await,
            false => db.begin_alone().await,
        }
    }
}

/// The agent of another workspace is registered at the same server.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("another workspace's agent is registered at the same scheme, host and port")]
pub struct OriginTaken;

impl From<OriginTaken> for Rejection {
    fn from(taken: OriginTaken) -> Self {
        Rejection::new(
            Reason::Conflict,
            "another workspace's agent is registered at this scheme, host and port: register the agent's own address. \
             The other one can deregister, and an operator can remove it, register this one, or list the origin in \
             registry.shared_origins",
        )
        .with_cause(taken)
    }
}

/// Returns scheme, host and port of a URL as stored.
pub fn url_base(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']);
    &url[..end.map_or(url.len(), |end| host + end)]
}

/// End of the place of a credential that an org token set. An operator's credential does not inherit that place.
const BY_ORG: &str = "#org";

/// Returns the place of a credential that is set for an agent at `url`, as stored.
pub fn credential_base(url: &str, by_operator: bool) -> String {
    let by = if by_operator { "" } else { BY_ORG };
    format!("{}{by}", url_base(url))
}

/// True if an operator set the credential of this place.
pub fn is_base_of_operator(place: &str) -> bool {
    !place.ends_with(BY_ORG)
}

/// Sets `origins` for the URLs of `workspace` that were just written. The caller rolls back if one is taken.
pub(super) async fn write_origins(
    connection: &mut Connection,
    workspace: &Workspace,
    origins: &Origins,
) -> Result<Result<(), OriginTaken>, sqlx::Error> {
    let id = workspace.id.as_str();
    for held in &origins.left {
        delete_origin(connection, &held.by, &held.origin).await?;
    }
    let own = read_own(connection, &workspace.id).await?;
    for one in &origins.all {
        if own.iter().any(|row| row.origin == one.origin) {
            continue;
        }
        take_origin(connection, &workspace.id, one, one.is_shared).await?;
        if one.is_shared {
            continue;
        }
        let other = sql!(OTHER, &one.origin, id);
        if other.fetch_optional(&mut *connection).await?.is_some() {
            return Ok(Err(OriginTaken));
        }
    }
    release_unused(connection, workspace, &own, origins).await?;
    Ok(Ok(()))
}

/// Releases the servers that no URL of `workspace` resolves to any more; `origins` are the present ones of some
/// of them. Returns true if there was one.
async fn release_unused(
    connection: &mut Connection,
    workspace: &Workspace,
    own: &[Row],
    origins: &Origins,
) -> Result<bool, sqlx::Error> {
    let mut released = false;
    let urls = urls_of(connection, workspace).await?;
    for row in own {
        let is_said = origins.all.iter().any(|one| one.origin == row.origin);
        let is_resolved_anew = origins.all.iter().any(|one| one.base == row.base);
        if !is_said && (is_resolved_anew || !is_used(&urls, &row.base)) {
            delete_origin(connection, &workspace.id, &row.origin).await?;
            released = true;
        }
    }
    Ok(released)
}

/// Returns all URLs of a workspace, those of its instances included.
async fn urls_of(
    connection: &mut Connection,
    workspace: &Workspace,
) -> Result<Vec<String>, sqlx::Error> {
    let urls = [&workspace.url, &workspace.internal_url, &workspace.card_url];
    let mut urls: Vec<String> = urls.into_iter().flatten().cloned().collect();
    if workspace.instances > 0 {
        for one in instances::load_instances(connection, &workspace.id).await? {
            urls.push(one.url);
            urls.extend(one.internal_url);
        }
    }
    Ok(urls)
}

/// True if one of the URLs has this scheme, host and port.
fn is_used(urls: &[String], at: &str) -> bool {
    urls.iter().any(|url| url_base(url) == at)
}

/// Row of the table.
struct Row {
    origin: String,
    base: String,
    /// Its workspace, if other workspaces may use it, too; else [`ALONE`].
    slot: String,
}

from_row!(Row: origin, base, slot);

async fn read_own(connection: &mut Connection, id: &WorkspaceId) -> Result<Vec<Row>, sqlx::Error> {
    fetch_all(connection, sql!(OWN, id.as_str())).await
}

/// Inserts the row; true if it did not exist.
pub(super) async fn take_origin(
    connection: &mut Connection,
    id: &WorkspaceId,
    one: &Origin,
    is_shared: bool,
) -> Result<bool, sqlx::Error> {
    let slot = if is_shared { id.as_str() } else { ALONE };
    let take = sql!(TAKE, &one.origin, slot, id.as_str(), &one.base);
    Ok(execute(connection, take).await? > 0)
}

/// A server held by a workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOrigin {
    /// The workspace.
    pub by: WorkspaceId,
    /// The server.
    pub origin: String,
    /// Scheme, host and port of its URL.
    pub base: String,
}

from_row!(HeldOrigin: by = "workspace_id", origin, base);

/// Result of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The workspace may be called there.
    Held {
        /// True if former addresses were released, which replicas may still take for its own.
        released: bool,
    },
    /// Another workspace holds one of the servers.
    Taken(HeldOrigin),
}

impl Workspaces {
    /// Returns the holders of `origins`, other than `id`, that are not shared.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn held_by_others(
        &self,
        id: &WorkspaceId,
        origins: &Origins,
    ) -> Result<Vec<HeldOrigin>, Unavailable> {
        let work = async {
            let mut connection = self.db.begin_reading().await?;
            let mut held = Vec::new();
            for one in origins.all.iter().filter(|one| !one.is_shared) {
                let query = sql!(HELD, &one.origin, id.as_str());
                held.extend(fetch_all::<HeldOrigin>(&mut connection, query).await?);
            }
            Ok(held)
        };
        self.db.run("workspace_held", work).await
    }

    /// Releases a server that its workspace does not use any more.
    ///
    /// # Errors
    /// When the store cannot be asked; then it may still have been released.
    pub async fn release_origin(&self, held: &HeldOrigin) -> Result<(), Unavailable> {
        let leave = sql!(LEAVE, held.by.as_str(), &held.origin);
        self.db.execute("workspace_leave", leave).await.map(drop)
    }

    /// Claims `origins` for the agent of `id`: all present addresses of the host of one of its URLs. Former
    /// addresses of that host are kept, up to `KEPT_MAX`.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn claim_origins(
        &self,
        id: &WorkspaceId,
        origins: &Origins,
    ) -> Result<Claim, Unavailable> {
        let work = async {
            let own = read_own(&mut self.db.begin_reading().await?, id).await?;
            let is_own = |one: &Origin| own.iter().any(|row| row.origin == one.origin);
            if origins.all.iter().all(is_own) {
                return Ok(Claim::Held { released: false });
            }
            let mut tx = self.db.begin().await?;
            // Locked, so that its URLs do not change meanwhile.
            let row = lock_row(&mut tx, id).await?;
            let Some(row) = row.filter(|row| row.status != Status::Removed) else {
                return Ok(Claim::Held { released: false });
            };
            let own = read_own(&mut tx, id).await?;
            for one in &origins.all {
                if own.iter().any(|row| row.origin == one.origin) {
                    continue;
                }
                // An operator who shared the earlier address of the host shares the new one, too.
                let was_shared = own
                    .iter()
                    .any(|row| row.slot != ALONE && row.base == one.base);
                let is_shared = one.is_shared || was_shared;
                let taken = take_origin(&mut tx, id, one, is_shared).await?;
                if one.is_shared {
                    continue;
                }
                let stranger = sql!(STRANGER, &one.origin, id.as_str(), &one.base);
                if let Some(held) = fetch_optional::<HeldOrigin>(&mut tx, stranger).await? {
                    return Ok(Claim::Taken(held));
                }
                if !taken {
                    take_origin(&mut tx, id, one, true).await?;
                }
            }
            // If another program has set the agent's location (the URL keys), the origin is not kept.
            let mut released = false;
            let urls = urls_of(&mut tx, &row).await?;
            if origins.all.iter().all(|one| is_used(&urls, &one.base)) {
                // Former addresses stay until another workspace asks for one: a name may rotate through them.
                if own.len() > KEPT_MAX {
                    released = release_unused(&mut tx, &row, &own, origins).await?;
                }
                tx.commit().await?;
            }
            Ok(Claim::Held { released })
        };
        self.db.run("workspace_claim", work).await
    }
}

async fn delete_origin(
    connection: &mut Connection,
    id: &WorkspaceId,
    origin: &str,
) -> Result<(), sqlx::Error> {
    execute(connection, sql!(LEAVE, id.as_str(), origin))
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_of_a_url_ends_before_its_path() {
        for (url, expected) in [
            ("http://127.0.0.1:9001/a2a?x=1", "http://127.0.0.1:9001"),
            ("https://agents.example/", "https://agents.example"),
            ("http://[::1]:8000", "http://[::1]:8000"),
            ("http://a?x://y/", "http://a"),
            (&credential_base("http://a:1/b", false), "http://a:1"),
        ] {
            assert_eq!(url_base(url), expected);
        }
    }
}
