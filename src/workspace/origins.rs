//! The table `agent_origins`: at which servers agents are registered, so that no workspace registers the agent of
//! another one as its own.
//!
//! A server belongs to one workspace: its row has an empty `slot`, of which there is one for each origin. What an
//! operator shares has the workspace's id there. So the primary key decides between two that register at the same
//! moment, on every replica. Rows go when their workspace deregisters, is removed or has another URL.

use sqlx::Row as _;

use super::Workspace;
use crate::db::Connection;
use crate::ids::WorkspaceId;
use crate::store::Unavailable;

const OWN: &str = "SELECT origin, base FROM agent_origins WHERE workspace_id = $1";

const TAKE: &str = "INSERT INTO agent_origins (origin, slot, workspace_id, base) VALUES ($1, $2, $3, $4) \
     ON CONFLICT (origin, slot) DO NOTHING";

const OTHER: &str =
    "SELECT base FROM agent_origins WHERE origin = $1 AND workspace_id <> $2 LIMIT 1";

const LEAVE: &str = "DELETE FROM agent_origins WHERE workspace_id = $1 AND origin = $2";

const LEAVE_ALL: &str = "DELETE FROM agent_origins WHERE workspace_id = $1";

/// The slot of a workspace that has an origin to itself.
const ALONE: &str = "";

/// One server of an agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// Scheme, address or name, and port.
    pub origin: String,
    /// Scheme, host and port as they are registered.
    pub base: String,
    /// Whether other workspaces may be there, too.
    pub is_shared: bool,
}

/// The servers of the URLs that a registration or a change names.
#[derive(Clone, Debug, Default)]
pub struct Origins(Vec<Origin>);

impl Origins {
    /// These, in one order for all, so that two who register at once do not wait for each other.
    pub fn new(mut origins: Vec<Origin>) -> Self {
        origins.sort();
        origins.dedup_by(|one, other| one.origin == other.origin);
        Self(origins)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The agent of another workspace is registered at the same server.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("another workspace's agent is registered at the same scheme, host and port")]
pub struct OriginTaken;

/// Scheme, host and port of a URL as it is kept.
pub fn base(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']);
    &url[..end.map_or(url.len(), |end| host + end)]
}

/// Makes `origins` those of the URLs of `workspace` that were just written. The caller rolls back where they are taken.
pub(super) async fn settle(
    connection: &mut Connection,
    workspace: &Workspace,
    origins: &Origins,
) -> Result<Result<(), OriginTaken>, sqlx::Error> {
    let id = workspace.id.as_str();
    let rows = sqlx::query(OWN).bind(id);
    let rows = rows.fetch_all(&mut *connection).await?;
    let mut own = Vec::with_capacity(rows.len());
    for row in &rows {
        let (origin, base): (String, String) = (row.try_get("origin")?, row.try_get("base")?);
        own.push((origin, base));
    }
    for one in &origins.0 {
        if own.iter().any(|(origin, _)| *origin == one.origin) {
            continue;
        }
        let take = sqlx::query(TAKE)
            .bind(&one.origin)
            .bind(if one.is_shared { id } else { ALONE })
            .bind(id)
            .bind(&one.base);
        take.execute(&mut *connection).await?;
        if one.is_shared {
            continue;
        }
        let other = sqlx::query(OTHER).bind(&one.origin).bind(id);
        if other.fetch_optional(&mut *connection).await?.is_some() {
            return Ok(Err(OriginTaken));
        }
    }
    let urls = [&workspace.url, &workspace.internal_url, &workspace.card_url];
    let used: Vec<&str> = urls.into_iter().flatten().map(|url| base(url)).collect();
    for (origin, at) in &own {
        let is_said = origins.0.iter().any(|one| one.origin == *origin);
        let is_resolved_anew = origins.0.iter().any(|one| one.base == *at);
        if !is_said && (is_resolved_anew || !used.contains(&at.as_str())) {
            let leave = sqlx::query(LEAVE).bind(id).bind(origin);
            leave.execute(&mut *connection).await?;
        }
    }
    Ok(Ok(()))
}

/// Frees all servers of a workspace that is removed.
pub(super) async fn leave_all(
    connection: &mut Connection,
    id: &WorkspaceId,
) -> Result<(), sqlx::Error> {
    let leave = sqlx::query(LEAVE_ALL).bind(id.as_str());
    leave.execute(connection).await.map(drop)
}

/// Either way the store may not answer, or say no.
pub(super) type Settled<T> = Result<Result<T, OriginTaken>, Unavailable>;

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
        ] {
            assert_eq!(base(url), expected);
        }
    }
}
