//! The ways to set up a gateway.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;

use a2a_gateway::config::Live;
use a2a_gateway::config::load::{Layers, load};
use a2a_gateway::server::in_process::{self, ServerHandle};
use a2a_gateway::telemetry::log;

use super::gateway::{ADMIN, Gateway, Pair, Running};
use super::ports::free_address;
use super::servers::{self, Leased};
use super::{notes, planted, roots, schema};

/// A gateway under construction.
pub(crate) struct Builder {
    sets: Vec<(String, String)>,
    /// A configuration file below everything that is set.
    file: Option<PathBuf>,
    /// The program of a gateway with a process of its own.
    program: Option<PathBuf>,
    env: Vec<(String, String)>,
    dir: tempfile::TempDir,
    pub(super) sql: String,
    pub(super) shared: String,
    host: String,
    /// A Redis of its own: databases of one server share channels and watched keys.
    pub(super) redis: Option<Leased>,
    _database: Option<Database>,
}

/// The database of a case, which is dropped with it.
struct Database(String);

impl Drop for Database {
    fn drop(&mut self) {
        servers::postgres().drop_database(&self.0);
    }
}

impl Builder {
    /// A gateway on fresh stores of the pair.
    pub(crate) fn new(pair: Pair) -> Self {
        super::timed::begin_case();
        let dir = tempfile::tempdir().expect("a folder");
        let (sql, redis) = match pair {
            Pair::Embedded => (schema::sqlite_in(dir.path()), None),
            Pair::External => (schema::postgres(), Some(servers::lease())),
        };
        let url = redis.as_ref().map(|redis| redis.url());
        Self {
            sets: Vec::new(),
            file: None,
            program: None,
            env: Vec::new(),
            dir,
            shared: url.unwrap_or_else(|| "memory".to_owned()),
            host: "127.0.0.1".into(),
            redis,
            _database: (pair == Pair::External).then(|| Database(sql.clone())),
            sql,
        }
        // A busy machine makes a store slow, not unavailable.
        .sets("stores.timeout=20s registry.shared_origins=http://127.0.0.1:9")
        .sets("rate.caller_per_second=0 rate.failures_per_second=0 rate.cards_per_second=0")
    }

    /// One that listens beyond loopback. It is also reached at 127.0.0.1.
    pub(crate) fn on_every_interface(pair: Pair) -> Self {
        let mut builder = Self::new(pair);
        builder.host = "0.0.0.0".into();
        builder
    }

    /// Sets one configuration key.
    pub(crate) fn set(mut self, key: &str, value: &str) -> Self {
        self.sets.push((key.into(), value.into()));
        self
    }

    /// Sets several at once: `section.key=value`, with spaces between them.
    pub(crate) fn sets(self, settings: &str) -> Self {
        let pairs = settings.split_whitespace();
        let pairs = pairs.map(|pair| pair.split_once('=').expect("key=value"));
        pairs.fold(self, |builder, (key, value)| builder.set(key, value))
    }

    /// Starts it with a configuration file. Keys of the file are not set here, rates included.
    pub(crate) fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.sets.clear();
        self.file = Some(path.into());
        self
    }

    /// Starts another program than the one that was built.
    pub(crate) fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// Starts it as a process of its own.
    pub(crate) fn process(self) -> Self {
        self.program(env!("CARGO_BIN_EXE_a2a-gateway"))
    }

    /// Starts it as a process of its own, with a variable in its environment.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        if self.program.is_some() {
            return self;
        }
        self.process()
    }

    /// Other stores than those of the pair.
    pub(crate) fn stores(mut self, sql: &str, shared: &str) -> Self {
        self.sql = sql.into();
        self.shared = shared.into();
        self
    }

    /// Starts it and waits until it is ready, and linked where it is on a Redis of its own.
    pub(crate) async fn start(self) -> Gateway {
        let gateway = self.spawn();
        gateway.await_ready().await;
        let redis = gateway.builder.redis.as_ref().map(|redis| redis.url());
        if redis.is_some_and(|url| url == gateway.builder.shared) {
            gateway.until_coherent().await;
        }
        gateway
    }

    /// Starts it and waits only until it listens.
    pub(crate) fn spawn(self) -> Gateway {
        let public = free_address(&self.host);
        let admin = free_address("127.0.0.1");
        let planted = planted::mark();
        let gateway = Gateway {
            public,
            admin,
            dir: self.dir.path().to_owned(),
            running: self.run(public, admin),
            planted,
            builder: self,
        };
        gateway.await_port();
        gateway
    }

    pub(super) fn run(&self, public: SocketAddr, admin: SocketAddr) -> Running {
        raise_file_limit();
        note_start(self.program.is_some());
        let settings = self.settings(public, admin);
        match &self.program {
            Some(program) => Running::Process(self.start_process(program, settings)),
            None => Running::Here(self.start_here(settings)),
        }
    }

    /// Everything that is set, as `section.key=value`.
    fn settings(&self, public: SocketAddr, admin: SocketAddr) -> Vec<String> {
        let keys = self.dir.path().join("keys");
        let own = [
            ("server.listen", public.to_string()),
            ("admin.listen", admin.to_string()),
            ("stores.sql", self.sql.clone()),
            ("stores.shared", self.shared.clone()),
            ("keys.dir", keys.display().to_string()),
        ];
        let own = own.map(|(key, value)| (key.to_owned(), value));
        let all = own.iter().chain(&self.sets);
        all.map(|(key, value)| format!("{key}={value}")).collect()
    }

    fn log(&self) -> std::fs::File {
        let mut log = std::fs::OpenOptions::new();
        let log = log.create(true).append(true);
        log.open(self.dir.path().join("log")).expect("a log file")
    }

    fn start_here(&self, mut settings: Vec<String>) -> ServerHandle {
        // Else below the folder in which the tests run.
        let spool = self.dir.path().join("data/audit");
        settings.push(format!("audit.spool_dir={}", spool.display()));
        let layers = || Layers {
            file: self.file.clone(),
            environment: vec![("A2A_GATEWAY_ADMIN_TOKEN".into(), ADMIN.into())],
            overrides: settings.clone(),
            ..Layers::default()
        };
        let loaded = load(&layers()).expect("a valid configuration");
        let log = log::json_log(self.log(), &loaded.config.telemetry).expect("a valid filter");
        tracing::dispatcher::with_default(&log, || {
            for note in &loaded.notes {
                tracing::warn!("{note}");
            }
            in_process::start_gateway(Live::new(loaded), Some(layers()))
                .expect("the gateway starts")
        })
    }

    fn start_process(&self, program: &Path, settings: Vec<String>) -> Child {
        let mut command = Command::new(program);
        command
            .current_dir(self.dir.path())
            .env("A2A_GATEWAY_ADMIN_TOKEN", ADMIN)
            .envs(roots::one_root())
            .stdin(Stdio::null())
            .stdout(self.log())
            .stderr(self.log())
            .arg("serve");
        if let Some(file) = &self.file {
            command.arg("--config").arg(file);
        }
        for (name, value) in &self.env {
            command.env(name, value);
        }
        for setting in settings {
            command.args(["--set", &setting]);
        }
        command.spawn().expect("the gateway starts")
    }
}

/// Lets this process, and those that it starts, open as many files as the system allows: the gateways of several cases
/// need more than the 1,024 that a shell allows by default.
fn raise_file_limit() {
    static RAISED: Once = Once::new();
    RAISED.call_once(|| {
        let script = r#"prlimit --pid "$PPID" --nofile="$(ulimit -H -n):""#;
        let raised = Command::new("sh").args(["-c", script]).status();
        assert!(raised.is_ok_and(|status| status.success()), "prlimit");
    });
}

/// Notes a started gateway for `scripts/test`, which prints their number.
fn note_start(has_process: bool) {
    let kind = if has_process { "process" } else { "here" };
    // A case does not fail for want of a line.
    let _ = notes::append("gateways", kind);
}
