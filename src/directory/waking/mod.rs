//! Waking agents: which workspace sleeps, who wakes it, and the claim by which one replica calls the waker
//! (`docs/guide/wake-a-sleeping-agent.md`). The data plane parks the calls and sends the request.

mod waker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use self::waker::Wake;
use self::waker::{Fields, open_fields};
use super::address::{Addresses, Endpoint};
use super::resolution::{Entries, Entry};
use crate::config::{Config, Live};
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::shared::Shared;
use crate::store::Unavailable;
use crate::trust::Seal;
use crate::workspace::{DeliveryMode, Liveness, Status, WakeMethod, Workspace};

/// Times of one workspace's waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeTimes {
    /// Longest wait of a call for its agent.
    pub max_wait: Duration,
    /// Shortest time between two requests to the waker.
    pub cool_down: Duration,
    /// True if the waker is the workspace's own.
    pub own: bool,
}

impl WakeTimes {
    /// Returns the name of the setting that bounds the wait.
    pub fn max_wait_key(&self) -> &'static str {
        if self.own {
            "wake.max_wait_seconds of the workspace, or wake.max_wait"
        } else {
            "wake.max_wait"
        }
    }
}

/// Request to a waker, at an address that passed the policy.
pub struct WakeRequest {
    /// HTTP method.
    pub method: WakeMethod,
    /// Location of the waker.
    pub endpoint: Endpoint,
    /// Address to dial.
    pub address: SocketAddr,
    /// Header fields of the operator, with secret values.
    pub fields: Fields,
}

/// Wakers of workspaces.
pub struct Wakers {
    entries: Arc<Entries>,
    addresses: Arc<Addresses>,
    seal: Arc<Seal>,
    shared: Shared,
    config: Live,
}

impl Wakers {
    pub(super) fn new(
        entries: &Arc<Entries>,
        addresses: &Arc<Addresses>,
        seal: &Arc<Seal>,
        shared: &Shared,
        config: &Live,
    ) -> Self {
        Self {
            entries: Arc::clone(entries),
            addresses: Arc::clone(addresses),
            seal: Arc::clone(seal),
            shared: shared.clone(),
            config: config.clone(),
        }
    }

    /// Returns the times of the waker if the workspace sleeps and has one. `None`: it is awake, it has no waker, or
    /// its state is one that a waker does not end.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn wake_times(&self, id: &WorkspaceId) -> Result<Option<WakeTimes>, Rejection> {
        let entry = self.entries.get(id).await?;
        Ok(times_of_waker(&entry, &self.config.get()))
    }

    /// True if the agent may still come: the workspace sleeps, or is being started.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn may_come(&self, id: &WorkspaceId) -> Result<bool, Rejection> {
        let entry = self.entries.get(id).await?;
        Ok(entry.workspace.as_ref().is_some_and(|workspace| {
            matches!(
                workspace.status,
                Status::Provisioning | Status::Restarting | Status::Online | Status::Degraded
            ) || is_asleep(&entry, workspace)
        }))
    }

    /// Claims the right to call the waker of `id` now: one replica gets it in `cool_down`.
    ///
    /// # Errors
    /// If the shared state does not answer.
    pub async fn claim(&self, id: &WorkspaceId, cool_down: Duration) -> Result<bool, Unavailable> {
        let key = format!("a2a:wake:{id}");
        self.shared.set_if_absent(&key, "1", cool_down).await
    }

    /// Returns the request to the waker of `id`, without the gateway's token.
    ///
    /// # Errors
    /// `address_forbidden`, `agent_unreachable` (its name has no address), `store_unavailable` (its header fields
    /// cannot be opened), `workspace_not_found` (there is no waker any more).
    pub async fn build_request(&self, id: &WorkspaceId) -> Result<WakeRequest, Rejection> {
        let entry = self.entries.get(id).await?;
        let own = entry.workspace.as_ref().and_then(|one| one.wake.as_ref());
        let (url, method, sealed) = match own {
            Some(wake) => (
                wake.shown.url.clone(),
                wake.shown.method,
                wake.sealed.as_ref(),
            ),
            None => {
                let all = self
                    .config
                    .get()
                    .wake
                    .url
                    .as_ref()
                    .and_then(|url| url.url_for(id));
                let url = all.ok_or_else(no_waker)?;
                (url, WakeMethod::default(), None)
            }
        };
        let fields = sealed.map(|sealed| open_fields(&self.seal, id, sealed));
        let fields = fields.transpose()?.unwrap_or_default();
        let (endpoint, address) = self.addresses.waker_address(&url).await?;
        Ok(WakeRequest {
            method,
            address,
            endpoint,
            fields,
        })
    }
}

/// Returns the times of the waker of a workspace that sleeps.
pub(super) fn times_of_waker(entry: &Entry, config: &Config) -> Option<WakeTimes> {
    let workspace = entry.workspace.as_ref()?;
    if !is_asleep(entry, workspace) {
        return None;
    }
    let all = &config.wake;
    let own = workspace.wake.as_ref().map(|wake| &wake.shown);
    if own.is_none() {
        all.url.as_ref()?.url_for(&workspace.id)?;
    }
    let seconds = |said: Option<u32>, all| said.map_or(all, |s| Duration::from_secs(s.into()));
    Some(WakeTimes {
        max_wait: seconds(own.and_then(|own| own.max_wait_seconds), all.max_wait),
        cool_down: seconds(own.and_then(|own| own.cool_down_seconds), all.cool_down),
        own: own.is_some(),
    })
}

/// True if its agent, which gets calls, has stopped and comes back by a registration or a heartbeat. A workspace with
/// assumed liveness that is offline was switched off by an operator.
fn is_asleep(entry: &Entry, workspace: &Workspace) -> bool {
    let stopped = match workspace.status {
        Status::Hibernated => true,
        Status::Offline => workspace.liveness == Liveness::Heartbeat,
        Status::Online | Status::Degraded => entry.has_lapsed(),
        Status::Provisioning
        | Status::Paused
        | Status::Failed
        | Status::Restarting
        | Status::Removed => false,
    };
    stopped && workspace.delivery_mode == DeliveryMode::Push
}

fn no_waker() -> Rejection {
    Rejection::new(
        Reason::WorkspaceNotFound,
        "the workspace has no waker any more",
    )
}
