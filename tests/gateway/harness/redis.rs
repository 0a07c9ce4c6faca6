//! Real Redis servers.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::programs::{redis_command, run, write_certificate};
use super::relay::Relay;
use super::servers::{START_MAX, Server};
use super::warm::until_holds;

/// The Redis of this test process. For cases that do not harm it; prefix keys and channels.
pub(crate) fn redis() -> &'static Redis {
    static SERVER: OnceLock<Redis> = OnceLock::new();
    SERVER.get_or_init(Redis::start)
}

/// A Redis that a case has for itself, and leaves in order. The next case has it, empty.
pub(crate) struct Leased(Option<Redis>);

static IDLE: Mutex<Vec<Redis>> = Mutex::new(Vec::new());

/// Takes an idle Redis, or starts one.
pub(crate) fn lease() -> Leased {
    let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    Leased(Some(idle.unwrap_or_else(Redis::start)))
}

impl Deref for Leased {
    type Target = Redis;

    fn deref(&self) -> &Redis {
        self.0.as_ref().expect("taken at the end only")
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        let redis = self.0.take().filter(|redis| redis.flush());
        IDLE.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(redis);
    }
}

/// A Redis server without persistence.
pub(crate) struct Redis {
    server: Server,
    tls: bool,
}

impl Redis {
    /// Starts one and waits until it answers.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts one with more arguments.
    pub(super) fn with(more: &[&str]) -> Self {
        let server = Server::start("redis", |folder, port| {
            let mut command = redis_command(folder);
            command.extend(["--port".into(), port.to_string()]);
            command.extend(more.iter().map(ToString::to_string));
            command
        });
        Self { server, tls: false }
    }

    /// Starts one that speaks only TLS, with a certificate of an issuer of its own.
    pub(crate) fn start_tls() -> Self {
        let server = Server::start("redis-tls", |folder, port| {
            write_certificate(folder);
            let file = |name: &str| folder.join(name).display().to_string();
            let mut command = redis_command(folder);
            command.extend(
                "--port 0 --tls-auth-clients no --tls-port"
                    .split(' ')
                    .map(String::from),
            );
            command.extend([port.to_string(), "--tls-cert-file".into(), file("cert.pem")]);
            command.extend(["--tls-key-file".into(), file("key.pem")]);
            command
        });
        Self { server, tls: true }
    }

    /// The same without the certificate's issuer, and the file that has it.
    pub(crate) fn bare_url(&self) -> (String, PathBuf) {
        let url = format!("rediss://{}", self.server.address);
        (url, self.server.folder.join("cert.pem"))
    }

    /// Makes it a replica of `other`, which takes no writes, until [`Redis::lead`].
    pub(crate) fn follow(&self, other: &Self) {
        let address = other.server.address;
        let port = address.port().to_string();
        self.command(&["REPLICAOF", &address.ip().to_string(), &port]);
    }

    /// Makes it take writes again.
    pub(crate) fn lead(&self) {
        self.command(&["REPLICAOF", "NO", "ONE"]);
    }

    /// The URL for `stores.shared`.
    pub(crate) fn url(&self) -> String {
        let address = self.server.address;
        if self.tls {
            let issuer = self.server.folder.join("cert.pem");
            return format!("rediss://{address}?sslrootcert={}", issuer.display());
        }
        format!("redis://{address}")
    }

    /// A relay to it, and the URL through it.
    pub(crate) fn relayed(&self) -> (Relay, String) {
        let relay = Relay::to(self.server.address);
        let url = format!("redis://{}", relay.address());
        (relay, url)
    }

    /// Waits until so many connections are subscribed to a channel.
    pub(crate) async fn until_subscribed(&self, channel: &str, count: usize) {
        let number = ["PUBSUB", "NUMSUB", channel];
        let are_subscribed = async || self.command(&number).ends_with(&count.to_string());
        until_holds("subscriptions", are_subscribed).await;
    }

    /// Runs one command as another client and returns what `redis-cli` prints.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        run(&mut client(self.port(), words))
    }

    /// The same. `None` if it does not answer.
    pub(super) fn try_command(&self, words: &[&str]) -> Option<String> {
        let output = client(self.port(), words).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    }

    /// Closes what listens to it, and keeps that from listening again; everything else goes on.
    pub(crate) fn cut_links(&self) {
        self.command(&[
            "ACL",
            "SETUSER",
            "default",
            "-subscribe",
            "-client|tracking",
        ]);
        for client in self.command(&["CLIENT", "LIST"]).lines() {
            let word = |name: &str| {
                let found = client.split(' ').find_map(|word| word.strip_prefix(name));
                found.unwrap_or_default().to_owned()
            };
            if word("flags=").contains(['t', 'P']) {
                // It may have gone by itself.
                self.command(&["CLIENT", "KILL", "ID", &word("id=")]);
            }
        }
    }

    /// Lets clients listen again.
    pub(crate) fn allow_links(&self) {
        self.command(&["ACL", "SETUSER", "default", "+@all"]);
    }

    /// Empties it. False if it cannot.
    fn flush(&self) -> bool {
        let mut answer = [0; 5];
        let flushed = TcpStream::connect(self.server.address).and_then(|mut stream| {
            stream.set_read_timeout(Some(START_MAX))?;
            stream.write_all(b"FLUSHALL\r\n")?;
            stream.read_exact(&mut answer)
        });
        flushed.is_ok() && answer == *b"+OK\r\n"
    }
}

impl Deref for Redis {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// A command of `redis-cli`.
pub(super) fn client(port: u16, words: &[&str]) -> Command {
    let mut client = Command::new("redis-cli");
    client.arg("-p").arg(port.to_string()).args(words);
    client
}
