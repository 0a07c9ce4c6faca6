//! A real PgBouncer in front of the PostgreSQL of this test process.

use std::path::Path;
use std::process::Command;

use super::servers::{Server, as_postgres, postgres, run};

/// A PgBouncer. Dropping it ends it.
pub(crate) struct PgBouncer {
    server: Server,
    database: String,
}

impl PgBouncer {
    /// Starts one with a new and empty database behind it; `mode` as `pool_mode` has it.
    pub(crate) fn start(mode: &str) -> Self {
        Self::with(mode, "ignore_startup_parameters = extra_float_digits\n")
    }

    /// The same with other lines in its configuration.
    pub(crate) fn with(mode: &str, lines: &str) -> Self {
        let behind = postgres().database();
        let database = behind.rsplit('/').next().unwrap().to_owned();
        let port = postgres().port();
        let server = Server::start("pgbouncer", |folder, own| {
            let config = format!(
                "[databases]\n* = host=127.0.0.1 port={port} user=postgres\n[pgbouncer]\n\
                 listen_addr = 127.0.0.1\nlisten_port = {own}\nunix_socket_dir =\nauth_type = any\n\
                 pool_mode = {mode}\ndefault_pool_size = 5\nmax_client_conn = 200\n{lines}"
            );
            write(folder, &config);
            let mut command = as_postgres();
            command.push("/usr/sbin/pgbouncer".into());
            command.push(folder.join("pgbouncer.ini").display().to_string());
            command
        });
        Self { server, database }
    }

    /// The URL for `stores.sql`.
    pub(crate) fn url(&self) -> String {
        let address = self.server.address();
        format!("postgres://postgres@{address}/{}", self.database)
    }

    /// Gives it another `pool_mode` while it runs.
    pub(crate) fn change_mode(&self, from: &str, to: &str) {
        let file = self.server.folder().join("pgbouncer.ini");
        let config = std::fs::read_to_string(&file).unwrap();
        let (from, to) = (format!("pool_mode = {from}"), format!("pool_mode = {to}"));
        assert!(config.contains(&from), "{config}");
        write(self.server.folder(), &config.replace(&from, &to));
        self.server.signal_all("HUP");
    }

    /// Runs SQL as another client of the same pool.
    pub(crate) fn sql(&self, text: &str) -> String {
        let url = self.url();
        run(Command::new("psql").args([&url, "-Atqc", text]))
    }
}

/// Readable by PostgreSQL's user, which also runs the pooler.
fn write(folder: &Path, config: &str) {
    std::fs::write(folder.join("pgbouncer.ini"), config).unwrap();
    if !as_postgres().is_empty() {
        run(Command::new("chown")
            .args(["-R", "postgres:postgres"])
            .arg(folder));
    }
}
