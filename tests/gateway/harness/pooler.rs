//! A real PgBouncer in front of the PostgreSQL of this test process.

use std::path::Path;
use std::process::Command;

use super::documents::block_of;
use super::programs::{as_postgres, give_to_postgres, run};
use super::servers::{Server, postgres};

/// A PgBouncer. Dropping it ends it.
pub(crate) struct PgBouncer {
    server: Server,
    /// With the password, where it needs one.
    user: String,
    database: String,
}

impl PgBouncer {
    /// Starts one with a new and empty database behind it; `mode` as `pool_mode` has it.
    pub(crate) fn start(mode: &str) -> Self {
        Self::with(mode, "ignore_startup_parameters = extra_float_digits\n")
    }

    /// The same with other lines in its configuration.
    pub(crate) fn with(mode: &str, lines: &str) -> Self {
        let port = postgres().port();
        Self::configured("postgres", &postgres().database(), |_, own| {
            format!(
                "[databases]\n* = host=127.0.0.1 port={port} user=postgres\n[pgbouncer]\n\
                 listen_addr = 127.0.0.1\nlisten_port = {own}\nauth_type = any\n\
                 pool_mode = {mode}\ndefault_pool_size = 5\nmax_client_conn = 200\n{lines}"
            )
        })
    }

    /// As `docs/guide/deploy.md` has it, but for the addresses, with a user of its own in PostgreSQL.
    pub(crate) fn documented() -> Self {
        let behind = postgres().database();
        let name = name_of(&behind);
        let create = "CREATE ROLE a2a_gateway LOGIN PASSWORD 'secret-of-the-test'";
        let own = format!("ALTER DATABASE {name} OWNER TO a2a_gateway");
        run(Command::new("psql").args([&behind, "-qc", create, "-c", &own]));
        let port = postgres().port();
        Self::configured("a2a_gateway:secret-of-the-test", &behind, |folder, own| {
            let users = folder.join("userlist.txt");
            std::fs::write(&users, "\"a2a_gateway\" \"secret-of-the-test\"\n").unwrap();
            block_of("docs/guide/deploy.md", "## PgBouncer", "ini")
                .replace(
                    "a2a_gateway = host=10.0.0.20 port=5432",
                    &format!("{name} = host=127.0.0.1 port={port}"),
                )
                .replace("10.0.0.21", "127.0.0.1")
                .replace("6432", &own.to_string())
                .replace("/etc/pgbouncer/userlist.txt", &users.display().to_string())
        })
    }

    /// Starts one with what `config` writes, given a folder and its port.
    fn configured(user: &str, behind: &str, config: impl Fn(&Path, u16) -> String) -> Self {
        let server = Server::start("pgbouncer", |folder, own| {
            write(folder, &(config(folder, own) + "\nunix_socket_dir =\n"));
            let mut command = as_postgres();
            command.push("/usr/sbin/pgbouncer".into());
            command.push(folder.join("pgbouncer.ini").display().to_string());
            command
        });
        Self {
            server,
            user: user.to_owned(),
            database: name_of(behind),
        }
    }

    /// The URL for `stores.sql`.
    pub(crate) fn url(&self) -> String {
        let address = self.server.address;
        format!("postgres://{}@{address}/{}", self.user, self.database)
    }

    /// Gives it another `pool_mode` while it runs.
    pub(crate) fn change_mode(&self, from: &str, to: &str) {
        let file = self.server.folder.join("pgbouncer.ini");
        let config = std::fs::read_to_string(&file).unwrap();
        let (from, to) = (format!("pool_mode = {from}"), format!("pool_mode = {to}"));
        assert!(config.contains(&from), "{config}");
        write(&self.server.folder, &config.replace(&from, &to));
        self.server.signal_all("HUP");
    }

    /// Runs SQL as another client of the same pool.
    pub(crate) fn sql(&self, text: &str) -> String {
        let url = self.url();
        run(Command::new("psql").args([&url, "-Atqc", text]))
    }
}

/// The database that a URL names.
pub(super) fn name_of(url: &str) -> String {
    url.rsplit('/').next().unwrap().to_owned()
}

/// Readable by PostgreSQL's user, which also runs the pooler.
fn write(folder: &Path, config: &str) {
    std::fs::write(folder.join("pgbouncer.ini"), config).unwrap();
    give_to_postgres(folder);
}
