//! Table `workspace_instances`: the named instances of a workspace's agent. `workspaces.instances` counts them, so
//! that a workspace without any asks nothing here. Each writer locks the workspace's row first, except the writer of
//! heartbeats: it changes `last_seen` only, and goes in order of ids.

use sqlx::any::AnyRow;

use super::sql::HOLD;
use super::{DeliveryMode, OriginTaken, Timestamp, Workspace, url_base};
use crate::rows::{execute, fetch_all, fetch_with, from_row, read, select_in, sql, to_bigint};
use kernel::ids::{InstanceId, WorkspaceId};
use stores::db::{Connection, Db};
use stores::store::Unavailable;

/// Maximum instances of one workspace.
pub const INSTANCES_MAX: usize = 64;

/// Time after which an instance that sends no heartbeat is forgotten at the next registration, in milliseconds: its
/// server may belong to another agent by now.
const KEPT_MS: i64 = 3_600_000;

/// Id of an instance that names none, in a workspace with instances.
const DEFAULT: &str = "default";

const ALL: &str = "SELECT instance_id, url, internal_url, draining, has_auth, registered_at, last_seen \
     FROM workspace_instances WHERE workspace_id = $1 ORDER BY instance_id";

const PUT: &str = "INSERT INTO workspace_instances \
     (workspace_id, instance_id, url, internal_url, draining, has_auth, registered_at, last_seen) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (workspace_id, instance_id) DO UPDATE SET \
     url = excluded.url, internal_url = excluded.internal_url, draining = excluded.draining, \
     has_auth = excluded.has_auth, registered_at = excluded.registered_at, last_seen = excluded.last_seen";

const END: &str = "DELETE FROM workspace_instances WHERE workspace_id = $1 AND instance_id = $2";

const END_ALL: &str = "DELETE FROM workspace_instances WHERE workspace_id = $1";

const COUNT: &str = "UPDATE workspaces SET instances = $2 WHERE id = $1";

const DRAIN: &str =
    "UPDATE workspace_instances SET draining = $3 WHERE workspace_id = $1 AND instance_id = $2";

const TOUCH: &str = "UPDATE workspace_instances SET last_seen = $3 \
     WHERE workspace_id = $1 AND instance_id = $2 AND last_seen < $3";

/// Returns the id of an instance that names none, in a workspace with instances.
pub fn default_instance() -> InstanceId {
    InstanceId::parse(DEFAULT).unwrap_or_else(|_| unreachable!("the word has the form of an id"))
}

/// A named instance, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredInstance {
    /// Its id, unique in the workspace.
    pub id: InstanceId,
    /// URL that it listens at.
    pub url: String,
    /// URL on the agents' own network.
    pub internal_url: Option<String>,
    /// True if it takes only calls that are bound to it.
    pub is_draining: bool,
    /// True if the workspace's credential is for its URL, too, by an operator.
    pub has_auth: bool,
    /// Time of its last registration.
    pub registered_at: Timestamp,
    /// Time of its last heartbeat or registration. Written rarely: it may be half a lease behind.
    pub last_seen: Timestamp,
}

from_row! {
    StoredInstance: id = "instance_id", url, internal_url, is_draining = "draining", has_auth, registered_at, last_seen
}

/// Instance that registers.
#[derive(Clone, Debug)]
pub struct InstanceRegistration {
    /// `None`: the registration names none. In a workspace with instances it is of the instance `default` then.
    pub id: Option<InstanceId>,
    /// True if an operator registers it.
    pub by_operator: bool,
    /// An instance that was last seen before this time is offline.
    pub live_since: Timestamp,
}

/// Reason why a registration was not stored.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum RegistrationError {
    /// Another workspace's agent is on one of its servers.
    #[error(transparent)]
    OriginTaken(#[from] OriginTaken),
    /// The workspace has [`INSTANCES_MAX`] instances, and none of them is offline.
    #[error("the workspace has as many instances as it may")]
    TooMany,
}

/// Named instances in the SQL store.
#[derive(Clone)]
pub struct Instances {
    pub(super) db: Db,
}

impl Instances {
    /// Returns the named instances of a workspace, in order of id.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn find_all(&self, id: &WorkspaceId) -> Result<Vec<StoredInstance>, Unavailable> {
        let work = async { load_instances(&mut self.db.begin_reading().await?, id).await };
        self.db.run("instances_find", work).await
    }

    /// Returns all URLs of the named instances of workspaces, each with its workspace.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn find_urls(
        &self,
        ids: &[&WorkspaceId],
    ) -> Result<Vec<(WorkspaceId, String)>, Unavailable> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let select =
            "SELECT workspace_id, url, internal_url FROM workspace_instances WHERE workspace_id";
        let query = select_in(select, ids.iter().copied(), "");
        let read = |row: &AnyRow| {
            let id: WorkspaceId = read(row, "workspace_id")?;
            let urls = [read(row, "internal_url")?, read(row, "url")?];
            Ok(urls.map(|url: Option<String>| Some((id.clone(), url?))))
        };
        let urls = fetch_with(&self.db, "instances_urls", query, read);
        Ok(urls.await?.into_iter().flatten().flatten().collect())
    }

    /// Lets an instance drain, or ends the drain of one that lapsed; false if there is no such instance.
    ///
    /// # Errors
    /// When the store cannot be asked; then it may still have been changed.
    pub async fn set_draining(
        &self,
        id: &WorkspaceId,
        instance: &InstanceId,
        is_draining: bool,
    ) -> Result<bool, Unavailable> {
        let work = async {
            let mut tx = self.db.begin().await?;
            // Otherwise a concurrent change of all instances would write its earlier read back.
            execute(&mut tx, sql!(HOLD.as_str(), id.as_str())).await?;
            let is_draining = i64::from(is_draining);
            let drain = sql!(DRAIN, id.as_str(), instance.as_str(), is_draining);
            let found = execute(&mut tx, drain).await? > 0;
            tx.commit().await?;
            Ok(found)
        };
        self.db.run("instance_drain", work).await
    }

    /// Writes the times of the last heartbeats of instances, in one transaction. An older time never replaces a newer
    /// one.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn touch_many(
        &self,
        seen: &[(WorkspaceId, InstanceId, Timestamp)],
    ) -> Result<(), Unavailable> {
        if seen.is_empty() {
            return Ok(());
        }
        // In one order, so that two replicas do not deadlock.
        let mut seen: Vec<_> = seen.iter().collect();
        seen.sort_by_key(|(id, instance, _)| (id.as_str(), instance.as_str()));
        let work = async {
            let mut tx = self.db.begin().await?;
            for (id, instance, at) in seen {
                let touch = sql!(TOUCH, id.as_str(), instance.as_str(), at.0);
                execute(&mut tx, touch).await?;
            }
            tx.commit().await
        };
        self.db.run("instances_touch", work).await
    }
}

/// Returns the instances of a workspace, in order of id.
///
/// # Errors
/// The error of the driver.
pub async fn load_instances(
    connection: &mut Connection,
    id: &WorkspaceId,
) -> Result<Vec<StoredInstance>, sqlx::Error> {
    fetch_all(connection, sql!(ALL, id.as_str())).await
}

/// Stores the instance of a registration. `before`: the locked row before it, if it named an instance; `after`: the row
/// after it, which gets its new number of instances. Returns the instance that registered, and true if the URL that was
/// registered without an id became an instance.
pub(super) async fn register(
    connection: &mut Connection,
    before: Option<&Workspace>,
    after: &mut Workspace,
    registering: &InstanceRegistration,
    now: Timestamp,
) -> Result<Result<(Option<InstanceId>, bool), RegistrationError>, sqlx::Error> {
    let polls = after.delivery_mode == DeliveryMode::Poll;
    let Some(url) = after.url.as_ref().filter(|_| !polls) else {
        // Its inbox is one for all.
        if after.instances > 0 {
            replace_all(connection, &after.id, &[]).await?;
            set_count(connection, after, 0).await?;
        }
        return Ok(Ok((None, false)));
    };
    let unnamed = (after.instances > 0).then(default_instance);
    let Some(id) = registering.id.clone().or(unnamed) else {
        return Ok(Ok((None, false)));
    };
    let mut others = load_instances(connection, &after.id).await?;
    let known = others.iter().position(|one| one.id == id);
    let known = known.map(|n| others.remove(n));
    let kept_auth = known.is_some_and(|one| one.has_auth && url_base(&one.url) == url_base(url));
    let instance = StoredInstance {
        id: id.clone(),
        url: url.clone(),
        internal_url: after.internal_url.clone(),
        is_draining: false,
        has_auth: registering.by_operator || kept_auth,
        registered_at: now,
        last_seen: now,
    };
    let first = before.and_then(|before| unnamed_of(before, &instance, now));
    let made_default = first.is_some();
    if let Some(first) = first {
        write_instance(connection, &after.id, &first).await?;
        others.push(first);
    }
    let forgotten = match evict_surplus(&mut others, registering.live_since, now) {
        Ok(forgotten) => forgotten,
        Err(many) => return Ok(Err(many)),
    };
    for one in &forgotten {
        execute(connection, sql!(END, after.id.as_str(), one.as_str())).await?;
    }
    write_instance(connection, &after.id, &instance).await?;
    set_count(connection, after, others.len() + 1).await?;
    Ok(Ok((Some(id), made_default)))
}

/// Returns the agent that registered without an id before the first instance, as an instance. `None`: there is none, or
/// it is at the URL of the new one.
fn unnamed_of(
    before: &Workspace,
    first: &StoredInstance,
    now: Timestamp,
) -> Option<StoredInstance> {
    let is_there = before.instances == 0
        && before.status.is_up()
        && before.delivery_mode == DeliveryMode::Push
        && first.id != default_instance();
    let url = before.url.clone().filter(|url| *url != first.url);
    url.filter(|_| is_there).map(|url| StoredInstance {
        id: default_instance(),
        has_auth: before.has_credential_for(&url),
        url,
        internal_url: before.internal_url.clone(),
        is_draining: false,
        registered_at: before.last_seen.unwrap_or(now),
        last_seen: before.last_seen.unwrap_or(now),
    })
}

/// Removes from `others` the instances that make room for one more, and returns their ids: those that have been silent
/// for long, and if there are too many the one that has been silent for longest.
fn evict_surplus(
    others: &mut Vec<StoredInstance>,
    live_since: Timestamp,
    now: Timestamp,
) -> Result<Vec<InstanceId>, RegistrationError> {
    others.sort_by_key(|one| one.last_seen);
    let is_old = |one: &StoredInstance| {
        one.last_seen < live_since && one.last_seen.0 < now.0.saturating_sub(KEPT_MS)
    };
    let mut forgotten = Vec::new();
    while let Some(oldest) = others.first() {
        let is_offline = oldest.last_seen < live_since;
        let is_over = others.len() >= INSTANCES_MAX;
        if is_over && !is_offline {
            return Err(RegistrationError::TooMany);
        }
        if !is_over && !is_old(oldest) {
            break;
        }
        forgotten.push(others.remove(0).id);
    }
    Ok(forgotten)
}

/// Replaces all instances of a workspace. The caller sets their number.
pub(super) async fn replace_all(
    connection: &mut Connection,
    id: &WorkspaceId,
    instances: &[StoredInstance],
) -> Result<(), sqlx::Error> {
    execute(connection, sql!(END_ALL, id.as_str())).await?;
    for one in instances {
        write_instance(connection, id, one).await?;
    }
    Ok(())
}

async fn write_instance(
    connection: &mut Connection,
    id: &WorkspaceId,
    one: &StoredInstance,
) -> Result<(), sqlx::Error> {
    let (url, internal_url) = (&one.url, one.internal_url.as_deref());
    let flags = [one.is_draining, one.has_auth].map(i64::from);
    let (registered_at, last_seen) = (one.registered_at.0, one.last_seen.0);
    let put = sql!(
        PUT,
        id.as_str(),
        one.id.as_str(),
        url,
        internal_url,
        flags[0],
        flags[1]
    )
    .bind(registered_at)
    .bind(last_seen);
    execute(connection, put).await.map(drop)
}

async fn set_count(
    connection: &mut Connection,
    workspace: &mut Workspace,
    instances: usize,
) -> Result<(), sqlx::Error> {
    workspace.instances = u32::try_from(instances).unwrap_or(u32::MAX);
    let count = sql!(COUNT, workspace.id.as_str(), to_bigint(instances));
    execute(connection, count).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = KEPT_MS;

    fn seen(id: &str, last_seen: i64) -> StoredInstance {
        StoredInstance {
            id: InstanceId::parse(id).unwrap(),
            url: "http://127.0.0.1:9001/".to_owned(),
            internal_url: None,
            is_draining: false,
            has_auth: false,
            registered_at: Timestamp(0),
            last_seen: Timestamp(last_seen),
        }
    }

    /// Ids that make room for one more at hour 10, and the number of those that stay.
    fn room(mut others: Vec<StoredInstance>) -> Option<(Vec<String>, usize)> {
        let now = Timestamp(10 * HOUR);
        let forgotten = evict_surplus(&mut others, Timestamp(now.0 - 100), now).ok()?;
        let ids = forgotten.iter().map(|id| id.as_str().to_owned());
        Some((ids.collect(), others.len()))
    }

    #[test]
    fn an_instance_that_is_silent_for_long_is_forgotten_and_a_live_one_never() {
        let (long_ago, lately, now) = (9 * HOUR - 1, 10 * HOUR - 101, 10 * HOUR - 100);
        let few = vec![
            seen("now", now),
            seen("old", long_ago),
            seen("lately", lately),
        ];
        assert_eq!(room(few), Some((vec!["old".to_owned()], 2)));
        let many = |first: i64, second: i64| {
            let live = (2..INSTANCES_MAX).map(|n| seen(&n.to_string(), now));
            live.chain([seen("a", first), seen("b", second)]).collect()
        };
        let most = INSTANCES_MAX - 1;
        assert_eq!(
            room(many(lately, lately - 1)),
            Some((vec!["b".to_owned()], most))
        );
        assert_eq!(room(many(lately, now)), Some((vec!["a".to_owned()], most)));
        assert_eq!(room(many(now, now)), None, "all live");
        let both = vec!["b".to_owned(), "a".to_owned()];
        assert_eq!(room(many(long_ago, long_ago - 1)), Some((both, most - 1)));
    }
}
