//! Redis Cluster: three masters, a replica of each.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use super::failover::until;
use super::ports::free_address;
use super::programs::{run, write_certificate};
use super::servers::Redis;

/// `cluster-node-timeout` in milliseconds: longer than a busy machine stalls a node.
const NODE_TIMEOUT: &str = "30000";

/// The same while the nodes replace one that was killed.
const NODE_TIMEOUT_BRIEF: &str = "1000";

/// The cluster of this test process. For cases that do not harm it; prefix keys and channels.
pub(crate) fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(Cluster::start)
}

/// Six Redis servers.
pub(crate) struct Cluster {
    nodes: Vec<Redis>,
    tls: Option<Tls>,
}

/// The ports of the nodes for TLS, and their certificate, which is its own issuer.
struct Tls {
    ports: Vec<u16>,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// Starts them, and waits until each master has a replica and all see each other.
    pub(crate) fn start() -> Self {
        let nodes = (0..6).map(|_| node(&[])).collect();
        Self::joined(nodes, None)
    }

    /// The same, and each node has a port for TLS besides.
    pub(crate) fn start_tls() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_certificate(folder.path());
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (certificate, key) = (file("cert.pem"), file("key.pem"));
        let port = |_| free_address("127.0.0.1").port();
        let ports: Vec<u16> = (0..6).map(port).collect();
        let of_port = |port: &u16| {
            // Without `--tls-cluster` Redis 7.0 names the other ports, to all clients.
            let port = port.to_string();
            let mut words = vec!["--tls-port", &port, "--tls-cert-file", &certificate];
            words.extend(["--tls-key-file", &key, "--tls-ca-cert-file", &certificate]);
            let rest = "--tls-auth-clients no --tls-cluster yes --tls-replication yes";
            words.extend(rest.split(' '));
            node(&words)
        };
        let nodes = ports.iter().map(of_port).collect();
        Self::joined(nodes, Some(Tls { ports, folder }))
    }

    fn joined(nodes: Vec<Redis>, tls: Option<Tls>) -> Self {
        let addresses: Vec<String> = nodes.iter().map(address).collect();
        run(Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(addresses)
            .args(["--cluster-replicas", "1", "--cluster-yes"]));
        let started = Self { nodes, tls };
        let is_joined = |node: &Redis| {
            let info = node.command(&["CLUSTER", "INFO"]);
            let role = node.command(&["ROLE"]);
            let mut role = role.lines();
            let has_other = match role.next() {
                Some("slave") => role.any(|line| line == "connected"),
                // Its offset, then its replica.
                _ => role.count() > 1,
            };
            info.contains("cluster_state:ok") && has_other
        };
        let joined = || started.nodes.iter().all(is_joined);
        until(
            "each node sees the cluster and its replica or master",
            joined,
        );
        started
    }

    /// The URL for `stores.shared`: a part of the nodes, the rest is found.
    pub(crate) fn url(&self) -> String {
        let named: Vec<String> = self.nodes.iter().take(3).map(address).collect();
        format!("redis+cluster://{}", named.join(","))
    }

    /// The same by TLS, for a user, and the file of the issuer of the certificates.
    pub(crate) fn tls_url(&self, user: &str) -> (String, PathBuf) {
        let tls = self.tls.as_ref().expect("started with TLS");
        let named = tls.ports[..3]
            .iter()
            .map(|port| format!("127.0.0.1:{port}"));
        let named: Vec<String> = named.collect();
        let url = format!("rediss+cluster://{user}@{}", named.join(","));
        (url, tls.folder.path().join("cert.pem"))
    }

    /// All nodes.
    pub(crate) fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The nodes that own slots.
    pub(crate) fn masters(&self) -> Vec<&Redis> {
        let is_master =
            |node: &&Redis| own_line(node).is_some_and(|line| line.contains("myself,master"));
        self.nodes.iter().filter(is_master).collect()
    }

    /// The master that owns a key's slot.
    pub(crate) fn owner(&self, key: &str) -> &Redis {
        let slot = self.nodes[0].command(&["CLUSTER", "KEYSLOT", key]);
        let slot: u16 = slot.parse().unwrap();
        let has_slot = |range: &str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            (first.parse().unwrap()..=last.parse().unwrap()).contains(&slot)
        };
        let owns = |node: &&Redis| {
            let line = own_line(node).unwrap_or_default();
            let ranges = line.split(' ').skip(8);
            let mut ranges = ranges.filter(|word| !word.starts_with('['));
            ranges.any(has_slot)
        };
        let mut nodes = self.nodes.iter();
        nodes.find(owns).expect("a running master owns the slot")
    }

    /// A running replica of a master.
    pub(crate) fn replica(&self, master: &Redis) -> &Redis {
        let id = master.command(&["CLUSTER", "MYID"]);
        let follows = |node: &&Redis| {
            own_line(node).is_some_and(|line| line.split(' ').nth(3) == Some(id.as_str()))
        };
        self.nodes.iter().find(follows).expect("a replica")
    }

    /// A master that is not `other`.
    pub(crate) fn owner_besides(&self, other: &Redis) -> &Redis {
        let is_other = |node: &&Redis| {
            node.port() != other.port()
                && own_line(node).is_some_and(|line| line.contains("master"))
        };
        self.nodes.iter().find(is_other).expect("another master")
    }

    /// Waits until a node besides `old` owns a key's slot, and all running nodes say so.
    pub(crate) fn until_owned_by_another(&self, key: &str, old: &Redis) {
        let is_dead = old.try_command(&["PING"]).is_none();
        if is_dead {
            self.set_node_timeout(NODE_TIMEOUT_BRIEF);
        }
        until("another node owns the slot", || {
            self.nodes.iter().any(|node| {
                node.port() != old.port()
                    && node
                        .try_command(&["EXISTS", key])
                        .is_some_and(|answer| answer.parse::<u8>().is_ok())
            })
        });
        if is_dead {
            self.set_node_timeout(NODE_TIMEOUT);
        }
    }

    fn set_node_timeout(&self, millis: &str) {
        for node in &self.nodes {
            // One of them is dead.
            let _ = node.try_command(&["CONFIG", "SET", "cluster-node-timeout", millis]);
        }
    }

    /// Moves slots with their keys from one master to another, as an operator does.
    pub(crate) fn reshard(&self, from: &Redis, to: &Redis, slots: u16) {
        // It refuses to begin before each node has heard of the last change.
        until("the nodes agree about the slots", || {
            let mut check = Command::new("redis-cli");
            check.args(["--cluster", "check", &address(from)]);
            check.output().is_ok_and(|done| done.status.success())
        });
        let id = |node: &Redis| node.command(&["CLUSTER", "MYID"]);
        let words = format!(
            "--cluster reshard {} --cluster-from {} --cluster-to {} --cluster-slots {slots} --cluster-yes",
            address(from),
            id(from),
            id(to)
        );
        run(Command::new("redis-cli").args(words.split(' ')));
    }
}

/// Starts a node of a cluster, with more arguments.
fn node(more: &[&str]) -> Redis {
    let bus = free_address("127.0.0.1").port();
    let words = format!(
        "--cluster-enabled yes --cluster-port {bus} --cluster-node-timeout {} \
         --cluster-replica-validity-factor 0 --repl-diskless-sync-delay 0",
        NODE_TIMEOUT
    );
    let words = words.split(' ').chain(more.iter().copied());
    Redis::with(&words.collect::<Vec<_>>())
}

fn address(node: &Redis) -> String {
    format!("127.0.0.1:{}", node.port())
}

/// The line of a node about itself, if it runs.
fn own_line(node: &Redis) -> Option<String> {
    let nodes = node.try_command(&["CLUSTER", "NODES"])?;
    let own = nodes.lines().find(|line| line.contains("myself"))?;
    Some(own.to_owned())
}
