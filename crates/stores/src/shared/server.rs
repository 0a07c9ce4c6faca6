//! The Redis server of `stores.shared`: the forms of its URL, TLS, and the server that is connected to: the one of the
//! URL, the master that its sentinels name, or a node of the cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{
    Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo as _,
    ProtocolVersion, RedisError, ServerErrorKind, TlsCertificates, Value, cmd,
};

use super::node::Address;
use super::sentinel::Sentinels;
use crate::store::{Cause, InvalidUrl, as_cause};
use kernel::config::store_url::{RedisForm, RedisUrl};

/// The server of a URL.
pub(super) struct Server {
    /// The server, or one that stands for the master, with the user, the password and the database.
    info: ConnectionInfo,
    tls: bool,
    issuer: Option<Vec<u8>>,
    /// The file of the password, read for each connection: a new password needs no restart.
    password_file: Option<PathBuf>,
    discovery: Discovery,
}

/// How the server is found.
enum Discovery {
    ByUrl,
    BySentinels(Sentinels),
    /// By the owner of a key's slot. These nodes are asked first.
    InCluster(Vec<Address>),
}

/// The server cannot be connected to yet, or any more.
#[derive(Debug, thiserror::Error)]
enum ServerError {
    #[error(
        "the server is no master: a failover is under way, or the sentinels or the nodes of the cluster disagree"
    )]
    NoMaster,
    #[error("the server is part of a cluster: write `redis+cluster://` in stores.shared")]
    InCluster(#[source] RedisError),
    #[error("cannot read `password_file` of stores.shared")]
    PasswordFile(#[source] std::io::Error),
}

impl Server {
    /// Reads a URL. Uses RESP3, which push messages need.
    ///
    /// # Errors
    /// When it has no known form, or names a certificate or a password file that cannot be read.
    pub(super) fn parse(text: &str) -> Result<Self, InvalidUrl> {
        let RedisUrl {
            url,
            form,
            issuer_file,
            password_file,
        } = RedisUrl::parse(text).map_err(invalid_url)?;
        let tls = url.scheme() == "rediss";
        let issuer = issuer_file
            .map(|path| read("sslrootcert", Path::new(&path)))
            .transpose()?;
        if let Some(file) = &password_file {
            read("password_file", file)?;
        }
        let wrong = |error: RedisError| invalid_url(format!("not a Redis URL: {error}"));
        let info = url.into_connection_info().map_err(wrong)?;
        let settings = info.redis_settings().clone();
        let settings = settings.set_protocol(ProtocolVersion::RESP3);
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
        let mut server = Self {
            info,
            tls,
            issuer,
            password_file,
            discovery: Discovery::ByUrl,
        };
        server.build(server.info.clone()).map_err(wrong)?;
        server.discovery = match form {
            RedisForm::Server => Discovery::ByUrl,
            RedisForm::Sentinels {
                addresses,
                service,
                credential,
            } => {
                let addresses = addresses.iter();
                let clients = addresses.map(|at| server.build_for_sentinel(at, &credential));
                let clients = clients.collect::<Result<_, _>>().map_err(wrong)?;
                Discovery::BySentinels(Sentinels::new(clients, service))
            }
            RedisForm::Cluster(nodes) => Discovery::InCluster(nodes),
        };
        Ok(server)
    }

    /// Returns the number of the database.
    pub(super) fn database(&self) -> i64 {
        self.info.redis_settings().db()
    }

    /// Returns the nodes of a cluster that the URL names. `None`: the server is in no cluster.
    pub(super) fn cluster_nodes(&self) -> Option<&[Address]> {
        match &self.discovery {
            Discovery::InCluster(nodes) => Some(nodes),
            Discovery::ByUrl | Discovery::BySentinels(_) => None,
        }
    }

    /// Returns the master that more than half of the sentinels name, if there are sentinels. They are asked twice a
    /// second at most.
    pub(super) async fn agreed_master(&self) -> Option<Address> {
        let Discovery::BySentinels(sentinels) = &self.discovery else {
            return None;
        };
        Box::pin(sentinels.agreed_master()).await
    }

    /// Returns a client for a node of the cluster, or for the server, and its address unless that is the one of the
    /// URL. Asks the sentinels, if there are some.
    ///
    /// # Errors
    /// When they name no master, or the file of the password cannot be read.
    pub(super) async fn make_client(
        &self,
        node: Option<&Address>,
    ) -> Result<(Client, Option<Address>), Cause> {
        let mut info = self.info.clone();
        let mut at = node.cloned();
        if let Some(node) = node {
            info = info.set_addr(connection_addr(self.tls, node));
        } else if let Discovery::BySentinels(sentinels) = &self.discovery {
            let master = Box::pin(sentinels.find_master()).await?;
            info = info.set_addr(connection_addr(self.tls, &master));
            at = Some(master);
        }
        if let Some(file) = &self.password_file {
            let password = tokio::fs::read_to_string(file).await;
            let password = password.map_err(|error| as_cause(ServerError::PasswordFile(error)))?;
            let settings = info.redis_settings().clone();
            info = info.set_redis_settings(settings.set_password(password.trim_end()));
        }
        Ok((self.build(info).map_err(as_cause)?, at))
    }

    /// Checks that the server is the master, where sentinels or the nodes of a cluster named it.
    ///
    /// # Errors
    /// When it is not, or does not answer.
    pub(super) async fn check(&self, connection: &mut MultiplexedConnection) -> Result<(), Cause> {
        if matches!(self.discovery, Discovery::ByUrl) {
            return Ok(());
        }
        let answer = self.probe_command().query_async(connection).await;
        self.check_role(&answer.map_err(as_cause)?)
    }

    /// Returns the command that shows that a connection is of use.
    pub(super) fn probe_command(&self) -> Cmd {
        match self.discovery {
            Discovery::ByUrl => cmd("PING"),
            Discovery::BySentinels(_) | Discovery::InCluster(_) => cmd("ROLE"),
        }
    }

    /// Checks the role in the answer to the probe.
    ///
    /// # Errors
    /// When the server is no master any more.
    pub(super) fn check_role(&self, answer: &Value) -> Result<(), Cause> {
        if matches!(self.discovery, Discovery::ByUrl) {
            return Ok(());
        }
        let role = match answer {
            Value::Array(parts) => parts.first(),
            _ => None,
        };
        let is_master = match role {
            Some(Value::BulkString(name)) => name == b"master",
            Some(Value::SimpleString(name)) => name == "master",
            _ => false,
        };
        if is_master {
            Ok(())
        } else {
            Err(Arc::new(ServerError::NoMaster))
        }
    }

    /// Returns a client of a sentinel: TLS and socket options as those of its master, and its own user.
    fn build_for_sentinel(
        &self,
        address: &Address,
        (user, password): &(Option<String>, Option<String>),
    ) -> redis::RedisResult<Client> {
        let mut settings = redis::RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        let info = self.info.clone().set_redis_settings(settings);
        self.build(info.set_addr(connection_addr(self.tls, address)))
    }

    fn build(&self, info: ConnectionInfo) -> redis::RedisResult<Client> {
        if !self.tls {
            return Client::open(info);
        }
        // rustls panics without a provider. Pingora installs the same one with the first listener, so
        // an error here means that one is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let root_cert = self.issuer.clone();
        Client::build_with_tls(
            info,
            TlsCertificates {
                client_tls: None,
                root_cert,
            },
        )
    }
}

/// Returns the cause of an answer that is an error. A node of a cluster that is used as one server is told.
pub(super) fn to_cause(error: RedisError) -> Cause {
    let moved = ErrorKind::Server(ServerErrorKind::Moved);
    if error.kind() == moved {
        return Arc::new(ServerError::InCluster(error));
    }
    Arc::new(error)
}

fn connection_addr(tls: bool, (host, port): &Address) -> ConnectionAddr {
    let (host, port) = (host.clone(), *port);
    if tls {
        return ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        };
    }
    ConnectionAddr::Tcp(host, port)
}

fn read(parameter: &str, path: &Path) -> Result<Vec<u8>, InvalidUrl> {
    std::fs::read(path).map_err(|error| InvalidUrl {
        source: Some(Arc::new(error)),
        ..invalid_url(format!("`{parameter}`: cannot read `{}`", path.display()))
    })
}

fn invalid_url(problem: impl Into<String>) -> InvalidUrl {
    InvalidUrl {
        key: "stores.shared",
        problem: problem.into(),
        source: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked_and_never_repeated() {
        for good in [
            "redis://127.0.0.1",
            "redis://user:pass%40word@redis.internal:6380/3",
            "rediss://:secret@redis.internal",
            "redis+sentinel://user:secret@one,two:26380,[::1]/main",
            "rediss+sentinel://one/main/2?sentinel_password=other",
            "redis+cluster://user:secret@one,two:7001,[::1]",
            "rediss+cluster://:secret@one/0",
        ] {
            assert!(Server::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "rabbit://:secret@host",
            "rabbit+sentinel://:secret@host/main",
            "redis://:secret@",
            "redis://:secret@host:port",
            "redis://:secret@host/db",
            "rediss://:secret@host#insecure",
            "rediss://:secret@host?sslrootcert=/does/not/exist",
            "redis://:secret@host?password_file=/etc/hostname",
            "redis://host?password_file=/does/not/exist",
            "redis+sentinel://:secret@one,two",
            "redis+sentinel://:secret@one,/main",
            "redis+sentinel://:secret@one/main/db",
            "redis+cluster://:secret@one,/",
            "redis+cluster://:secret@one,two/1",
            "rabbit+cluster://:secret@one",
        ] {
            let error = Server::parse(bad)
                .err()
                .map(|error| format!("{error} {error:?}"));
            assert!(error.is_some_and(|e| !e.contains("secret@")), "{bad}");
        }
    }

    #[test]
    fn a_url_names_the_sentinels_the_service_and_the_database() {
        let text = "redis+sentinel://user:pass@one,two:26380,[::1]/main/3";
        let server = Server::parse(text).unwrap();
        assert_eq!(server.database(), 3);
        let settings = server.info.redis_settings();
        assert_eq!(settings.username(), Some("user"));
        assert_eq!(settings.password(), Some("pass"));
        let Discovery::BySentinels(sentinels) = server.discovery else {
            panic!("found by sentinels");
        };
        let named = |host: &str, port| ConnectionAddr::Tcp(host.to_owned(), port);
        let expected = [
            named("one", 26379),
            named("two", 26380),
            named("::1", 26379),
        ];
        let clients = sentinels.clients.iter();
        let addresses = clients.map(|client| client.get_connection_info().addr().clone());
        assert_eq!(addresses.collect::<Vec<_>>(), expected);
        assert_eq!(sentinels.service, "main");
    }

    #[test]
    fn a_url_names_the_nodes_of_a_cluster() {
        let server = Server::parse("redis+cluster://user:pass@one,two:7001").unwrap();
        let expected = [("one".to_owned(), 6379), ("two".to_owned(), 7001)];
        assert_eq!(server.cluster_nodes(), Some(&expected[..]));
        assert_eq!(server.info.redis_settings().username(), Some("user"));
        assert!(
            Server::parse("redis://one")
                .unwrap()
                .cluster_nodes()
                .is_none()
        );
    }

    #[test]
    fn only_a_master_is_of_use_where_sentinels_or_nodes_name_it() {
        let role = |name: &str| Value::Array(vec![Value::BulkString(name.into())]);
        let sentinels = Server::parse("redis+sentinel://one/main").unwrap();
        assert!(sentinels.check_role(&role("master")).is_ok());
        assert!(sentinels.check_role(&role("slave")).is_err());
        let cluster = Server::parse("redis+cluster://one").unwrap();
        assert!(cluster.check_role(&role("slave")).is_err());
        let fixed = Server::parse("redis://one").unwrap();
        assert!(
            fixed
                .check_role(&Value::SimpleString("PONG".to_owned()))
                .is_ok()
        );
    }
}
