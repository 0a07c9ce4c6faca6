//! URL keys and lease of a workspace in the shared state. They are written after the row, so of two concurrent
//! changes the earlier may write last. Each writer therefore reads the row again, and writes until the shared
//! state matches the row.
//!
//! Liveness: a lease that lapses unless renewed.
//!
//! Key `directory.heartbeat_key`, value the time of the last heartbeat in milliseconds, TTL
//! `registry.heartbeat_ttl`. Grant and renewal are the same `SET … EX`: a renewal must be able to
//! bring a lapsed lease back, which a bare `EXPIRE` cannot.
//!
//! A missing lease proves a lapse, except while the shared state may lack leases that were or would
//! have been granted: after it was away or had to be connected to again, and after a start at which
//! some were missing. Then, for one TTL, `last_seen` in SQL counts as well, which may be [`SQL_LAG`]
//! behind; after a start each agent has one TTL, since it may not have reached a gateway before.
//!
//! Key patterns in the shared state: `ws:{id}:url`. Configurable, since existing deployments use
//! several, and other programs write some of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::announcer::Announcer;
use access::workspace::{DeliveryMode, Liveness, Status, Workspace, Workspaces};
use kernel::config::Live;
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::rejection::{Reason, Rejection};
use kernel::time::{Timestamp, to_millis};
use stores::shared::{Shared, Subscription};
use stores::store::Unavailable;

/// Lifetime of a URL key without renewal. Heartbeats renew it after half of it.
const URL_TTL: Duration = Duration::from_secs(300);

/// Maximum reads of the row after a write. More than two are needed only while it keeps changing.
const LOOKS_MAX: usize = 5;

/// URLs of the agent: from the shared state, which other programs write, else from SQL.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentUrls {
    /// For the gateway and the host.
    pub(crate) host: Option<String>,
    /// For other workspaces.
    pub(crate) internal: Option<String>,
    /// True if `host` is from the shared state.
    pub(crate) shared: bool,
    /// All URLs of its named instances; `None`: they could not be read.
    pub(crate) instances: Option<Vec<String>>,
}

impl AgentUrls {
    /// Returns the URLs of a workspace. Values in the shared state take precedence over the row, except for a workspace
    /// with named instances: a key has one URL. Without an internal URL `host` is used.
    pub(crate) fn from_parts(workspace: &Workspace, shared: [Option<String>; 2]) -> Self {
        let of_one = workspace.instances == 0;
        let [url, internal_url] = shared.map(|url| url.filter(|_| of_one));
        let shared = url.is_some();
        let host = url.or_else(|| workspace.url.clone());
        Self {
            shared,
            internal: internal_url
                .or_else(|| workspace.internal_url.clone())
                .or_else(|| host.clone()),
            host,
            instances: of_one.then(Vec::new),
        }
    }
}

/// Values of one workspace in the shared state: URL and internal URL, and the rest of its lease, if it holds one.
pub(crate) type SharedValues = ([Option<String>; 2], Option<Duration>);

/// Keys of all workspaces in the shared state.
pub(crate) struct Presence {
    pub(crate) leases: Leases,
    shared: Shared,
    url_key: KeyPattern,
    internal_url_key: KeyPattern,
    workspaces: Workspaces,
    announcer: Arc<Announcer>,
}

impl Presence {
    pub(crate) fn new(
        config: &Live,
        shared: Shared,
        workspaces: Workspaces,
        announcer: Arc<Announcer>,
    ) -> Arc<Self> {
        let at_start = config.get();
        let keys = &at_start.directory;
        Arc::new(Self {
            leases: Leases::new(shared.clone(), &keys.heartbeat_key, config.clone()),
            shared,
            url_key: KeyPattern::new(&keys.url_key),
            internal_url_key: KeyPattern::new(&keys.internal_url_key),
            workspaces,
            announcer,
        })
    }

    /// Returns the keys of the URL and of the internal URL.
    pub(crate) fn url_keys(&self, id: &WorkspaceId) -> [String; 2] {
        [
            self.url_key.format_key(id),
            self.internal_url_key.format_key(id),
        ]
    }

    /// Returns the workspace of a URL key, if it is one.
    pub(crate) fn id_of(&self, key: &str) -> Option<WorkspaceId> {
        let id = self.url_key.parse_id(key);
        id.or_else(|| self.internal_url_key.parse_id(key))
    }

    /// Subscribes to changes of URL keys.
    pub(crate) fn url_changes(&self) -> Subscription {
        let prefixes = [&self.url_key, &self.internal_url_key].map(|key| key.prefix.clone());
        let mut prefixes = prefixes.to_vec();
        prefixes.dedup();
        self.shared.watch_keys(prefixes)
    }

    /// Reads the values of one workspace: two concurrent round trips.
    pub(crate) async fn read(&self, id: &WorkspaceId) -> Result<SharedValues, Unavailable> {
        let keys = self.url_keys(id);
        let keys = [keys[0].as_str(), keys[1].as_str()];
        let (urls, lease) = tokio::join!(self.shared.get_many(&keys), self.leases.read(id));
        let urls = urls.inspect_err(|_| self.leases.start_doubt())?;
        Ok((urls.try_into().unwrap_or_default(), lease?))
    }

    /// Returns the URLs of each: from the shared state, in one round trip; from the rows if it does not answer.
    pub(crate) async fn urls_of(&self, workspaces: &[Workspace]) -> Vec<AgentUrls> {
        let keys = workspaces.iter().flat_map(|one| self.url_keys(&one.id));
        let found = self.get_all(keys).await;
        let mut found = found
            .inspect_err(|_| self.leases.start_doubt())
            .unwrap_or_default()
            .into_iter();
        let several = workspaces.iter().filter(|one| one.instances > 0);
        let several: Vec<&WorkspaceId> = several.map(|one| &one.id).collect();
        // If they cannot be read, no card of these workspaces is shown.
        let instances = self.workspaces.instances.find_urls(&several).await.ok();
        let urls = workspaces.iter().map(|workspace| {
            let shared = [found.next().flatten(), found.next().flatten()];
            let mut urls = AgentUrls::from_parts(workspace, shared);
            if workspace.instances > 0 {
                urls.instances = instances.as_ref().map(|all| {
                    let own = all.iter().filter(|(id, _)| *id == workspace.id);
                    own.map(|(_, url)| url.clone()).collect()
                });
            }
            urls
        });
        urls.collect()
    }

    /// Returns URL, internal URL and lease of each, as stored, in one round trip; nothing if the shared state
    /// does not answer.
    pub(crate) async fn stored_values<'i>(
        &self,
        ids: impl Iterator<Item = &'i WorkspaceId>,
    ) -> Vec<[Option<String>; 3]> {
        let keys = ids.flat_map(|id| {
            let [url, internal_url] = self.url_keys(id);
            [url, internal_url, self.leases.key.format_key(id)]
        });
        let found = self.get_all(keys).await.unwrap_or_default();
        let (values, _) = found.as_chunks();
        values.to_vec()
    }

    async fn get_all(
        &self,
        keys: impl Iterator<Item = String>,
    ) -> Result<Vec<Option<String>>, Unavailable> {
        let keys: Vec<String> = keys.collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        self.shared.get_many(&keys).await
    }

    /// Writes lease and URL keys. A URL that is not registered any more is deleted at once, since it would take
    /// precedence over SQL.
    pub(crate) async fn publish(&self, workspace: &Workspace) -> Result<(), Unavailable> {
        let id = &workspace.id;
        if workspace.status == Status::Removed {
            return self.withdraw(id).await;
        }
        let urls = [Some(&workspace.url), Some(&workspace.internal_url)];
        self.write_urls(id, urls).await?;
        if workspace.status.is_up() && workspace.liveness == Liveness::Heartbeat {
            self.leases.renew(id, &[], Timestamp::now()).await?;
        }
        Ok(())
    }

    /// Writes URL and internal URL. `None` leaves a key as it is; `Some(None)` deletes it.
    pub(crate) async fn write_urls(
        &self,
        id: &WorkspaceId,
        urls: [Option<&Option<String>>; 2],
    ) -> Result<(), Unavailable> {
        for (key, url) in self.url_keys(id).iter().zip(urls) {
            match url {
                Some(Some(url)) => self.shared.set(key, url, Some(URL_TTL)).await?,
                Some(None) => self.shared.delete(&[key]).await?,
                None => {}
            }
        }
        Ok(())
    }

    /// Renews the URL keys: an existing key keeps its value, which may be another program's; a missing key gets
    /// the registered URL. `status`: the row's status after this heartbeat. Best effort, since SQL has the
    /// URLs, too; true if the keys were renewed.
    pub(crate) async fn renew_urls(&self, workspace: &Workspace, status: Status) -> bool {
        if workspace.delivery_mode == DeliveryMode::Poll {
            return true;
        }
        let keys = self.url_keys(&workspace.id);
        let there = self.shared.refresh(&[&keys[0], &keys[1]], URL_TTL).await;
        let Ok(there) = there else { return false };
        let own = [&workspace.url, &workspace.internal_url];
        let mut brought_back = false;
        for ((key, there), own) in keys.iter().zip(there).zip(own) {
            let Some(url) = own.as_deref().filter(|_| !there) else {
                continue;
            };
            // Another program may be writing the key at the same time: its value takes precedence.
            match self.shared.set_if_absent(key, url, URL_TTL).await {
                Ok(written) => brought_back |= written,
                Err(_) => return false,
            }
        }
        if brought_back {
            // The key may be missing because the agent deregistered. Then the row has that status.
            let mut written = workspace.clone();
            written.settings.status = status;
            return self.catch_up(&written).await.is_ok();
        }
        true
    }

    /// Deletes the URL keys and the lease.
    pub(crate) async fn withdraw(&self, id: &WorkspaceId) -> Result<(), Unavailable> {
        let [url, internal_url] = self.url_keys(id);
        self.shared.delete(&[&url, &internal_url]).await?;
        self.leases.delete(id).await
    }

    /// Compares the row with `written`, which was written to the shared state, and writes again if a concurrent
    /// change came in between.
    ///
    /// # Errors
    /// `store_unavailable`; `conflict` if the row keeps changing.
    pub(crate) async fn catch_up(&self, written: &Workspace) -> Result<(), Rejection> {
        let mut written = written.clone();
        for _ in 0..LOOKS_MAX {
            let Some(row) = self.workspaces.find(&written.id).await? else {
                return Ok(());
            };
            // A lapse was recorded before its lease, which the agent holds: a call that came in between found none.
            if row.status == Status::Offline
                && written.status.is_up()
                && row.liveness == Liveness::Heartbeat
                && row.url == written.url
                && matches!(self.leases.read(&row.id).await, Ok(Some(_)))
            {
                let (from, to) = (row.status, written.status);
                let set = self
                    .workspaces
                    .set_status(&row.id, from, to, Timestamp::now());
                if set.await? {
                    self.announcer.announce_status(&row.id, to);
                    self.announcer.invalidate(&row.id).await;
                }
                continue;
            }
            if !needs_write(&row, &written) {
                return Ok(());
            }
            self.publish(&row).await?;
            self.announcer.invalidate(&row.id).await;
            written = row;
        }
        Err(Rejection::new(
            Reason::Conflict,
            "others change the workspace at the same time, again and again; look at it, and try again",
        ))
    }
}

/// True if `row` requires other values in the shared state than `written`.
fn needs_write(row: &Workspace, written: &Workspace) -> bool {
    row.url != written.url
        || row.internal_url != written.internal_url
        || row.status != written.status
            && (row.status == Status::Removed || row.status.is_up() && !written.status.is_up())
}

/// Maximum delay of a due write to SQL, besides the half TTL after which it is due.
const SQL_LAG: Duration = Duration::from_secs(5);

/// Liveness of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// Its status decides: it is not up, its liveness is assumed, or the shared state does not answer.
    AsItsStatus,
    /// It has a lease that ends after this time.
    Beats(Duration),
    /// It must send heartbeats, and its lease has ended.
    Lapsed,
}

/// True if the status of the workspace depends on heartbeats.
pub(crate) fn must_beat(workspace: &Workspace) -> bool {
    workspace.status.is_up() && workspace.liveness == Liveness::Heartbeat
}

/// Leases of all workspaces.
pub(crate) struct Leases {
    shared: Shared,
    pub(crate) key: KeyPattern,
    config: Live,
    started: Instant,
    /// True once the leases granted before the start are known.
    known: AtomicBool,
    /// End of the time in which a missing lease proves nothing, in milliseconds after `started`.
    doubtful_until: AtomicU64,
    /// Count of losses of the shared state when a lease was last read.
    losses: AtomicU64,
}

/// Maximum age of SQL's `last_seen` of a live workspace, for a given TTL.
pub(crate) fn lag_max(ttl: Duration) -> Duration {
    ttl / 2
}

impl Leases {
    pub(crate) fn new(shared: Shared, key: &str, config: Live) -> Self {
        Self {
            key: KeyPattern::new(key),
            config,
            started: Instant::now(),
            known: AtomicBool::new(false),
            doubtful_until: AtomicU64::new(0),
            losses: AtomicU64::new(shared.loss_count()),
            shared,
        }
    }

    /// Returns the lifetime of a lease that begins now.
    pub(crate) fn ttl(&self) -> Duration {
        self.config.get().registry.heartbeat_ttl
    }

    /// Grants or renews the lease of a workspace and those of its `instances`, in one round trip.
    pub(crate) async fn renew(
        &self,
        id: &WorkspaceId,
        instances: &[&InstanceId],
        now: Timestamp,
    ) -> Result<(), Unavailable> {
        let (key, value) = (self.key.format_key(id), now.0.to_string());
        if instances.is_empty() {
            return self.note_losses(self.shared.set(&key, &value, Some(self.ttl())).await);
        }
        let mut keys = vec![key];
        keys.extend(instances.iter().map(|one| self.key.instance_key(id, one)));
        let values: Vec<(&str, &str)> = keys.iter().map(|key| (&**key, &*value)).collect();
        self.note_losses(self.shared.set_many(&values, self.ttl()).await)
    }

    /// Deletes the leases of instances.
    pub(crate) async fn end_instances(
        &self,
        id: &WorkspaceId,
        instances: &[&InstanceId],
    ) -> Result<(), Unavailable> {
        let keys = instances.iter().map(|one| self.key.instance_key(id, one));
        let keys: Vec<String> = keys.collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        self.note_losses(self.shared.delete(&keys).await)
    }

    /// Deletes a lease.
    pub(crate) async fn delete(&self, id: &WorkspaceId) -> Result<(), Unavailable> {
        self.note_losses(self.shared.delete(&[&self.key.format_key(id)]).await)
    }

    /// Reads a lease: it lasts at least as long as is returned. `None`: there is none. A key without a TTL, which only
    /// another program writes, counts as new.
    pub(crate) async fn read(&self, id: &WorkspaceId) -> Result<Option<Duration>, Unavailable> {
        let found = self.shared.get_with_ttl(&self.key.format_key(id)).await;
        let found = self.note_losses(found)?;
        Ok(found.map(|(_, left)| left.unwrap_or(self.ttl())))
    }

    /// Returns the times at which workspaces, or their instances, renewed their leases, for those that hold one, in one
    /// round trip. A value that is no time, which only another program writes, counts as now.
    pub(crate) async fn renewal_times<'n>(
        &self,
        names: impl Iterator<Item = (&'n WorkspaceId, Option<&'n InstanceId>)>,
        now: Timestamp,
    ) -> Result<Vec<Option<Timestamp>>, Unavailable> {
        let keys = names.map(|(id, instance)| match instance {
            Some(instance) => self.key.instance_key(id, instance),
            None => self.key.format_key(id),
        });
        let keys: Vec<String> = keys.collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let found = self.note_losses(self.shared.get_many(&keys).await)?;
        let time = |value: String| value.parse().map_or(now, Timestamp);
        Ok(found.into_iter().map(|value| value.map(time)).collect())
    }

    /// As [`Leases::renewal_times`], of one workspace or instance.
    pub(crate) async fn renewal_time(
        &self,
        id: &WorkspaceId,
        instance: Option<&InstanceId>,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, Unavailable> {
        let name = std::iter::once((id, instance));
        Ok(self.renewal_times(name, now).await?.pop().flatten())
    }

    /// Returns how much longer a workspace without a lease counts as alive; `None`: it lapsed.
    pub(crate) fn benefit_of_doubt(
        &self,
        last_seen: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Duration> {
        let until = last_seen?.after(self.seen_within());
        let left = until.since(now).max(self.start_left());
        let left = left.min(self.doubt_left());
        (!left.is_zero()).then_some(left)
    }

    /// Returns the time within which a live workspace or instance was seen, by SQL.
    pub(crate) fn seen_within(&self) -> Duration {
        self.ttl() + lag_max(self.ttl()) + SQL_LAG
    }

    /// Returns the rest of the time in which a missing lease proves nothing.
    pub(crate) fn doubt_left(&self) -> Duration {
        let until = self.doubtful_until.load(Ordering::Acquire);
        let left = until.saturating_sub(to_millis(self.started.elapsed()));
        Duration::from_millis(left).max(self.start_left())
    }

    /// Returns the rest of the time in which agents have not had a TTL since the start to renew their leases; zero
    /// once all leases granted before are known.
    pub(crate) fn start_left(&self) -> Duration {
        if self.known.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        self.ttl().saturating_sub(self.started.elapsed())
    }

    /// Ends the doubt of the start.
    pub(crate) fn set_known(&self) {
        self.known.store(true, Ordering::Release);
    }

    /// Starts a TTL in which a missing lease proves nothing.
    pub(crate) fn start_doubt(&self) {
        let until = to_millis(self.started.elapsed()) + to_millis(self.ttl());
        self.doubtful_until.fetch_max(until, Ordering::AcqRel);
    }

    /// Notes a failure or a reconnect of the store, after which it may have lost leases.
    fn note_losses<T>(&self, result: Result<T, Unavailable>) -> Result<T, Unavailable> {
        let losses = self.shared.loss_count();
        if result.is_err() || self.losses.swap(losses, Ordering::AcqRel) != losses {
            self.start_doubt();
        }
        result
    }
}

/// Placeholder of the workspace id in a pattern.
const PLACE: &str = "{id}";

/// Parsed pattern. If it has no placeholder, the id is appended.
#[derive(Clone, Debug)]
pub(crate) struct KeyPattern {
    /// The common prefix of the keys.
    pub(crate) prefix: String,
    suffix: String,
}

impl KeyPattern {
    pub(crate) fn new(pattern: &str) -> Self {
        let (prefix, suffix) = pattern.split_once(PLACE).unwrap_or((pattern, ""));
        Self {
            prefix: prefix.to_owned(),
            suffix: suffix.to_owned(),
        }
    }

    /// Returns the key of one workspace.
    pub(crate) fn format_key(&self, id: &WorkspaceId) -> String {
        format!("{}{id}{}", self.prefix, self.suffix)
    }

    /// Returns the key of one instance of a workspace. No id has a `/`, so it is the key of no workspace.
    pub(crate) fn instance_key(&self, id: &WorkspaceId, instance: &InstanceId) -> String {
        format!("{}{id}/instance/{instance}{}", self.prefix, self.suffix)
    }

    /// Returns the workspace of `key`, if it is one of these keys.
    pub(crate) fn parse_id(&self, key: &str) -> Option<WorkspaceId> {
        let id = key.strip_prefix(&self.prefix)?.strip_suffix(&self.suffix)?;
        WorkspaceId::parse(id).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_its_workspace_and_only_that() {
        let url = KeyPattern::new("ws:{id}:url");
        let id = WorkspaceId::parse("a.b").unwrap();
        assert_eq!(url.format_key(&id), "ws:a.b:url");
        assert_eq!(url.parse_id("ws:a.b:url"), Some(id));
        for foreign in [
            "ws:a.b:internal_url",
            "ws::url",
            "ws:a:b:url",
            "a.b",
            "ws:url",
        ] {
            assert_eq!(url.parse_id(foreign), None, "{foreign}");
        }
        let instance = InstanceId::parse("one").unwrap();
        for pattern in ["workspace:{id}:heartbeat", "beat:{id}", "{id}", ""] {
            let key = KeyPattern::new(pattern);
            let of_instance = key.instance_key(&WorkspaceId::parse("a.b").unwrap(), &instance);
            assert_eq!(key.parse_id(&of_instance), None, "{of_instance}");
        }
    }
}
