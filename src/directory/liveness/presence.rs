//! URL keys and lease of a workspace in the shared state. They are written after the row, so of two concurrent
//! changes the earlier may write last. Each writer therefore reads the row again, and writes until the shared
//! state matches the row.

use std::sync::Arc;
use std::time::Duration;

use super::key_pattern::KeyPattern;
use super::lease::{Lease, Leases};
use crate::config::Live;
use crate::directory::announcer::Announcer;
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::shared::{Shared, Subscription};
use crate::store::Unavailable;
use crate::time::Timestamp;
use crate::workspace::{DeliveryMode, Liveness, Status, Workspace, Workspaces};

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
    pub(crate) fn from_parts(
        workspace: &Workspace,
        url: Option<String>,
        internal_url: Option<String>,
    ) -> Self {
        let of_one = workspace.instances == 0;
        let (url, internal_url) = (url.filter(|_| of_one), internal_url.filter(|_| of_one));
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

/// Values of one workspace in the shared state.
pub(crate) struct SharedValues {
    pub(crate) url: Option<String>,
    pub(crate) internal_url: Option<String>,
    pub(crate) lease: Lease,
}

/// Keys of all workspaces in the shared state.
pub(crate) struct Presence {
    pub(crate) leases: Leases,
    shared: Shared,
    url_key: KeyPattern,
    internal_url_key: KeyPattern,
    workspaces: Workspaces,
    pub(crate) announcer: Arc<Announcer>,
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

    /// True if the shared state is in this process: no other program writes to it.
    pub(crate) fn is_embedded(&self) -> bool {
        self.shared.is_embedded()
    }

    /// Returns the shared state.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
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
        let prefixes = [&self.url_key, &self.internal_url_key].map(|key| key.prefix().to_owned());
        let mut prefixes = prefixes.to_vec();
        prefixes.dedup();
        self.shared.watch_keys(prefixes)
    }

    /// Reads the values of one workspace: two concurrent round trips.
    pub(crate) async fn read(&self, id: &WorkspaceId) -> Result<SharedValues, Unavailable> {
        let keys = self.url_keys(id);
        let keys = [keys[0].as_str(), keys[1].as_str()];
        let (urls, lease) = tokio::join!(self.shared.get_many(&keys), self.leases.read(id));
        let mut urls = urls.inspect_err(|_| self.leases.start_doubt())?.into_iter();
        Ok(SharedValues {
            url: urls.next().flatten(),
            internal_url: urls.next().flatten(),
            lease: lease?,
        })
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
            let url = found.next().flatten();
            let mut urls = AgentUrls::from_parts(workspace, url, found.next().flatten());
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
            [url, internal_url, self.leases.lease_key(id)]
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
            self.leases.renew(id, Timestamp::now()).await?;
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
            let written = Workspace {
                status,
                ..workspace.clone()
            };
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
            if self.lapsed_before_its_lease(&row, &written).await {
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

impl Presence {
    /// True if a lapse was recorded after `written` and before its lease, which the agent holds: a call that came in between
    /// found none.
    async fn lapsed_before_its_lease(&self, row: &Workspace, written: &Workspace) -> bool {
        row.status == Status::Offline
            && written.status.is_up()
            && row.liveness == Liveness::Heartbeat
            && row.url == written.url
            && matches!(self.leases.read(&row.id).await, Ok(Lease::Held(_)))
    }
}

/// True if `row` requires other values in the shared state than `written`.
fn needs_write(row: &Workspace, written: &Workspace) -> bool {
    row.url != written.url
        || row.internal_url != written.internal_url
        || row.status != written.status
            && (row.status == Status::Removed || row.status.is_up() && !written.status.is_up())
}
