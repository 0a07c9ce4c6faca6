//! The Redis connections for operations: one per runtime and node, opened on first use and reopened after an
//! error.
//!
//! The task that drives a connection lives on the runtime that opened it. With a driver on another
//! runtime's thread, each operation would be handed over twice, which costs more than the
//! operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use futures_util::future::BoxFuture;
use redis::aio::{MultiplexedConnection, SendError};
use redis::{PushInfo, PushKind};
use tokio::runtime::{Handle, Id};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::cluster::{Cluster, Shards};
use super::node::{Address, config_without_timeouts};
use super::server::Server;
use crate::store::{Cause, as_cause, wait_within};

/// Limit for TCP, TLS and the first commands of a connection.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(1);

/// First and longest pause between two attempts to connect.
pub(super) const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Attempts to connect for a subscription or a log.
pub(super) struct Attempts {
    pause: Duration,
    /// True if a failure was logged since the last success.
    pub(super) warned: bool,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            pause: PAUSE.0,
            warned: false,
        }
    }
}

impl Attempts {
    /// Returns the pause before the next attempt. That after it is longer.
    pub(super) fn next_pause(&mut self) -> Duration {
        let next = (self.pause * 2).min(PAUSE.1);
        std::mem::replace(&mut self.pause, next)
    }
}

pub(super) struct Connections {
    pub(super) server: Arc<Server>,
    pub(super) cluster: Option<Cluster>,
    slots: DashMap<SlotKey, Arc<Mutex<Slot>>>,
    losses: Arc<AtomicU64>,
    /// The number of times that all connections were retired.
    retired: AtomicU64,
    /// The master that the sentinels named last.
    followed: parking_lot::Mutex<Option<Address>>,
    /// The number of times that other servers took the place of those before.
    moves: AtomicU64,
}

/// A runtime, and a node of the cluster. Without a cluster there is no node.
type SlotKey = (Id, Option<Address>);

/// The connection of one runtime to one node. Locked while connecting, so that callers share one attempt.
#[derive(Default)]
struct Slot {
    connected: Option<NodeConnection>,
    /// True once a connection was opened.
    had: bool,
    /// The last failed attempt, for callers that waited while it ran.
    failed: Option<(Instant, Cause)>,
}

#[derive(Clone)]
pub(super) struct NodeConnection {
    pub(super) connection: MultiplexedConnection,
    gone: Arc<AtomicBool>,
    losses: Arc<AtomicU64>,
    /// The number of times that all connections had been retired before it.
    retired: u64,
}

impl NodeConnection {
    /// Retires the connection. Called by the first to detect a failure: the driver, or an operation
    /// without an answer.
    pub(super) fn give_up(&self) {
        give_up(&self.gone, &self.losses);
    }
}

fn give_up(gone: &AtomicBool, losses: &AtomicU64) {
    if !gone.swap(true, Ordering::AcqRel) {
        losses.fetch_add(1, Ordering::AcqRel);
    }
}

impl Connections {
    pub(super) fn new(server: Arc<Server>) -> Self {
        let nodes = server.cluster_nodes();
        Self {
            cluster: nodes.map(|nodes| Cluster::new(nodes.to_vec())),
            server,
            slots: DashMap::new(),
            losses: Arc::default(),
            retired: AtomicU64::default(),
            followed: parking_lot::Mutex::default(),
            moves: AtomicU64::default(),
        }
    }

    /// Returns the number of times that other servers took the place of those before.
    pub(super) fn move_count(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// Notes the master that sentinels name. The connections to another one are retired.
    pub(super) fn follow_master(&self, master: &Address) {
        let mut followed = self.followed.lock();
        if followed.as_ref() == Some(master) {
            return;
        }
        let moved = followed.replace(master.clone()).is_some();
        drop(followed);
        if moved {
            self.moves.fetch_add(1, Ordering::AcqRel);
            self.retire_all();
        }
    }

    /// Returns the number of connections lost and reopened. Values read after a change may come
    /// from a server that lost its data.
    pub(super) fn loss_count(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// Returns the connection of this runtime, to a node of the cluster or to the server.
    pub(super) async fn get(&self, node: Option<&Address>) -> Result<NodeConnection, Cause> {
        let asked = Instant::now();
        let slot = self.slot_for(node);
        let mut slot = slot.lock().await;
        if let Some(connected) = &slot.connected
            && !connected.gone.load(Ordering::Acquire)
            && connected.retired == self.retired.load(Ordering::Acquire)
        {
            return Ok(connected.clone());
        }
        slot.connected = None;
        if let Some((at, cause)) = &slot.failed
            && asked < *at
        {
            return Err(cause.clone());
        }
        match self.open_connection(node).await {
            Ok(connected) => {
                if slot.had {
                    // Before any answer over it is read.
                    self.losses.fetch_add(1, Ordering::AcqRel);
                }
                slot.had = true;
                slot.connected = Some(connected.clone());
                slot.failed = None;
                Ok(connected)
            }
            Err(cause) => {
                slot.failed = Some((Instant::now(), cause.clone()));
                Err(cause)
            }
        }
    }

    /// Retires the connection of this runtime to the server: an operation on it failed.
    pub(super) async fn give_up(&self) {
        if let Some(connected) = &self.slot_for(None).lock().await.connected {
            connected.give_up();
        }
    }

    /// Returns the owners of the cluster's slots. What was read from an earlier owner counts as lost.
    ///
    /// # Errors
    /// When no node answers.
    pub(super) async fn shards(&self, cluster: &Cluster) -> Result<Arc<Shards>, Cause> {
        let (shards, replaced) = cluster.load_shards(&self.server).await?;
        if let Some(replaced) = replaced {
            self.losses.fetch_add(1, Ordering::AcqRel);
            if replaced.masters != shards.masters {
                self.moves.fetch_add(1, Ordering::AcqRel);
            }
            self.slots.retain(|(_, node), _| {
                node.as_ref()
                    .is_none_or(|node| shards.masters.contains(node))
            });
        }
        Ok(shards)
    }

    /// Retires the connections of all runtimes: their server is no master any more.
    pub(super) fn retire_all(&self) {
        self.retired.fetch_add(1, Ordering::AcqRel);
        self.losses.fetch_add(1, Ordering::AcqRel);
    }

    fn slot_for(&self, node: Option<&Address>) -> Arc<Mutex<Slot>> {
        let place = (Handle::current().id(), node.cloned());
        if let Some(slot) = self.slots.get(&place) {
            return Arc::clone(&slot);
        }
        Arc::clone(&self.slots.entry(place).or_default())
    }

    async fn open_connection(&self, node: Option<&Address>) -> Result<NodeConnection, Cause> {
        let retired = self.retired.load(Ordering::Acquire);
        let gone = Arc::<AtomicBool>::default();
        let (lost, losses) = (Arc::clone(&gone), Arc::clone(&self.losses));
        let connection = self.connect(node, move |push| {
            if push.kind == PushKind::Disconnection {
                give_up(&lost, &losses);
            }
        });
        let (connection, _) = connection.await?;
        Ok(NodeConnection {
            connection,
            gone,
            losses: Arc::clone(&self.losses),
            retired,
        })
    }

    /// Opens a connection that is driven by the caller's runtime: to a node of the cluster, or to the server. Where
    /// sentinels or nodes name the server, it is a master, whose address is returned with it.
    pub(super) async fn connect(
        &self,
        node: Option<&Address>,
        pushed: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<(MultiplexedConnection, Option<Address>), Cause> {
        let config = config_without_timeouts().set_push_sender(move |push| {
            pushed(push);
            Ok::<(), SendError>(())
        });
        // Boxed: rare, and each operation would be larger by it, on the stack of the task that polls it, too.
        let connection: BoxFuture<'_, Result<_, Cause>> = Box::pin(async {
            let (client, at) = self.server.make_client(node).await?;
            let connection = client.get_multiplexed_async_connection_with_config(&config);
            let mut connection = connection.await.map_err(as_cause)?;
            self.server.check(&mut connection).await?;
            if let (Some(master), None) = (&at, node) {
                self.follow_master(master);
            }
            Ok((connection, at))
        });
        wait_within(CONNECT_MAX, connection).await
    }
}
