//! Stores that fail over: Redis with a replica and three sentinels, PostgreSQL with a synchronous standby.

use std::path::Path;
use std::time::{Duration, Instant};

use super::planted::DATABASE_PASSWORD;
use super::programs::{command_as_postgres, give_to_postgres, initialise, run};
use super::redis::client;
use super::servers::{Postgres, Redis, Server};
use super::warm::NEVER;

/// The service, as the sentinels name it.
const SERVICE: &str = "main";

/// Two Redis servers, of which one is the master, and three sentinels.
pub(crate) struct Sentinels {
    servers: [Redis; 2],
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts them, and waits until the sentinels know each other and the replica.
    pub(crate) fn start() -> Self {
        let start = || Redis::with(&["--repl-diskless-sync-delay", "0"]);
        let servers = [start(), start()];
        servers[1].follow(&servers[0]);
        until("the replica has what its master has", || {
            let state = servers[1].command(&["INFO", "replication"]);
            state.contains("master_link_status:up")
        });
        let master = servers[0].port();
        let sentinel = |_| {
            Server::start("sentinel", |folder, port| {
                let file = folder.join("sentinel.conf");
                let text = format!(
                    "port {port}\nbind 127.0.0.1\nsentinel monitor {SERVICE} 127.0.0.1 {master} 2\n\
                     sentinel down-after-milliseconds {SERVICE} 5000\nsentinel failover-timeout {SERVICE} 3000\n"
                );
                std::fs::write(&file, text).unwrap();
                let file = file.display().to_string();
                vec!["redis-server".into(), file, "--sentinel".into()]
            })
        };
        let started = Self {
            servers,
            sentinels: (0..3).map(sentinel).collect(),
        };
        until("the sentinels know each other and the replica", || {
            (0..3).all(|sentinel| {
                let known = started.ask(sentinel, &["SENTINEL", "MASTER", SERVICE]);
                let field = |name: &str| {
                    let mut lines = known.lines();
                    lines.find(|line| *line == name)?;
                    lines.next()
                };
                field("num-other-sentinels") == Some("2") && field("num-slaves") == Some("1")
            })
        });
        started
    }

    /// The URL for `stores.shared`.
    pub(crate) fn url(&self) -> String {
        let hosts = self.sentinels.iter().map(|one| one.address.to_string());
        let hosts: Vec<String> = hosts.collect();
        format!("redis+sentinel://{}/{SERVICE}", hosts.join(","))
    }

    /// The server that the first sentinel names the master, and the other one.
    pub(crate) fn roles(&self) -> (&Redis, &Redis) {
        let named = self.ask(0, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
        let port = named.lines().nth(1).unwrap_or_default();
        let [one, other] = &self.servers;
        if port == one.port().to_string() {
            (one, other)
        } else {
            (other, one)
        }
    }

    /// Has the sentinels make the replica the master though the master is well.
    pub(crate) fn fail_over(&self) {
        let (master, _) = self.roles();
        let before = master.port();
        until("another server is the master", || {
            let is_done = self.roles().0.port() != before;
            if !is_done {
                // Refused while it is under way, or while the replica is silent; given up where that is slow.
                self.ask(0, &["SENTINEL", "FAILOVER", SERVICE]);
            }
            is_done
        });
    }

    fn ask(&self, sentinel: usize, words: &[&str]) -> String {
        run(&mut client(self.sentinels[sentinel].port(), words))
    }
}

/// A PostgreSQL server that acknowledges no commit before its standby has it.
pub(crate) struct Standby {
    pub(crate) primary: Postgres,
    pub(crate) standby: Postgres,
}

impl Standby {
    /// Starts both, and waits until commits wait for the standby.
    pub(crate) fn start() -> Self {
        let commits = |_: &Path| vec!["synchronous_commit=on".to_owned()];
        let primary = Postgres::made(initialise, commits);
        let port = primary.port().to_string();
        let copy = |folder: &Path, data: &str| {
            give_to_postgres(folder);
            run(command_as_postgres("pg_basebackup")
                .args(["-h", "127.0.0.1", "-U", "postgres", "-p", &port])
                .args(["-D", data, "-R", "-X", "stream", "-c", "fast", "--no-sync"]));
        };
        let standby = Postgres::made(copy, commits);
        primary.statement("ALTER SYSTEM SET synchronous_standby_names = '*'");
        primary.statement("SELECT pg_reload_conf()");
        until("commits wait for the standby", || {
            primary.statement("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")
                == "1"
        });
        Self { primary, standby }
    }

    /// The URL of a new database on both, the first host first.
    pub(crate) fn database(&self, hosts: [&Postgres; 2]) -> String {
        let url = self.primary.database();
        let (_, name) = url.rsplit_once('/').unwrap();
        until("the standby has the database", || {
            let known = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'");
            self.standby.statement(&known) == "1"
        });
        let [one, other] = hosts.map(|host| host.port());
        format!("postgres://postgres:{DATABASE_PASSWORD}@127.0.0.1:{one},127.0.0.1:{other}/{name}")
    }

    /// Makes the standby take writes.
    pub(crate) fn promote(&self) {
        assert_eq!(self.standby.statement("SELECT pg_promote()"), "t");
    }
}

/// Waits until a condition holds.
pub(super) fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + NEVER;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
