//! Real Redis and PostgreSQL servers on free ports, in folders of their own. They never touch a server that
//! already runs, and they end with the test process however it ends: each is held by a shell that reads from
//! a pipe of the test process, and cleans up when the pipe closes.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::planted::DATABASE_PASSWORD;
use super::pooler::name_of;
use super::ports::free_address;
use super::programs::{
    as_postgres, give_to_postgres, initialise, make_folder, program, run, write_certificate,
};
use super::relay::Relay;

/// Time that a server may take to answer for the first time, on a busy machine.
pub(super) const START_MAX: Duration = Duration::from_secs(60);

/// Runs "$@", prints its id, and ends it when standard input ends. PostgreSQL ends at once on QUIT, which
/// shells make their children ignore; Redis ends on TERM. Deletes the folder as well, unless the last input
/// was `keep`. In a process group of its own, so that a signal that ends the tests does not end the shell
/// first.
const KEEPER: &str = r#"
trap '' HUP INT TERM
folder=$1; shift
"$@" >>"$folder/log" 2>&1 </dev/null &
server=$!
echo $server
read -r word
kill -QUIT $server 2>/dev/null
kill -TERM $server 2>/dev/null
kill -CONT $server 2>/dev/null
wait $server
[ "$word" = keep ] || rm -rf -- "$folder"
"#;

pub(crate) use super::redis::{Leased, Redis, lease, redis};

/// The PostgreSQL of this test process. Take a [`Postgres::database`] each.
pub(crate) fn postgres() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::start)
}

/// A PostgreSQL server with everything slow switched off.
pub(crate) struct Postgres {
    server: Server,
}

impl Postgres {
    /// Initialises a cluster, starts it and waits until it answers.
    pub(crate) fn start() -> Self {
        Self::with(|_| Vec::new())
    }

    /// One that speaks TLS, too, with a certificate of an issuer of its own.
    pub(crate) fn start_tls() -> Self {
        Self::with(|folder| {
            write_certificate(folder);
            let key = folder.join("key.pem");
            run(Command::new("chmod").arg("600").arg(&key));
            give_to_postgres(&key);
            let file = |name: &str| folder.join(name).display().to_string();
            vec![
                "ssl=on".into(),
                format!("ssl_cert_file={}", file("cert.pem")),
                format!("ssl_key_file={}", file("key.pem")),
            ]
        })
    }

    /// The file that has the issuer of its certificate.
    pub(crate) fn issuer(&self) -> PathBuf {
        self.server.folder.join("cert.pem")
    }

    /// Runs a statement as the superuser, and returns its values.
    pub(crate) fn statement(&self, sql: &str) -> String {
        run(self
            .client("psql")
            .args(["-d", "postgres", "-qAt", "-c", sql]))
    }

    /// A client program, as the superuser.
    fn client(&self, name: &str) -> Command {
        let mut client = Command::new(program(name));
        client.args(["-h", "127.0.0.1", "-U", "postgres", "-p"]);
        client.arg(self.port().to_string());
        client
    }

    /// The folder of its data.
    pub(crate) fn data(&self) -> PathBuf {
        self.server.folder.join("data")
    }

    fn with(more: impl Fn(&Path) -> Vec<String>) -> Self {
        Self::made(initialise, more)
    }

    /// Starts one on the data that `make` makes in a folder.
    pub(super) fn made(make: impl Fn(&Path, &str), more: impl Fn(&Path) -> Vec<String>) -> Self {
        let server = Server::start("postgres", |folder, port| {
            let data = folder.join("data").display().to_string();
            if !Path::new(&data).exists() {
                make(folder, &data);
            }
            let mut command = as_postgres();
            command.push(program("postgres"));
            command.extend(["-D".into(), data]);
            for setting in [
                "listen_addresses=127.0.0.1",
                // A socket in a folder with a long name could not be made.
                "unix_socket_directories=",
                &format!("port={port}"),
                "fsync=off",
                "synchronous_commit=off",
                "full_page_writes=off",
                // It would visit the databases of hundreds of cases, ten a second.
                "autovacuum=off",
                "max_connections=300",
                "shared_buffers=32MB",
            ] {
                command.extend(["-c".into(), setting.into()]);
            }
            for setting in more(folder) {
                command.extend(["-c".into(), setting]);
            }
            command
        });
        Self { server }
    }

    /// The URL, for `stores.sql`, of a new and empty database.
    pub(crate) fn database(&self) -> String {
        self.database_at(self.server.address)
    }

    /// A relay to it, and the URL of a new and empty database through it.
    pub(crate) fn relayed(&self) -> (Relay, String) {
        let relay = Relay::to(self.server.address);
        let url = self.database_at(relay.address());
        (relay, url)
    }

    fn database_at(&self, address: SocketAddr) -> String {
        // PostgreSQL's own template.
        self.copy(address, "template1")
    }

    /// The URL, for `stores.sql`, of a copy of a database that is not in use.
    pub(super) fn copy_of(&self, database: &str) -> String {
        self.copy(self.server.address, database)
    }

    fn copy(&self, address: SocketAddr, template: &str) -> String {
        super::timed::begin_case();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("case_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        run(self.client("createdb").args(["-T", template, &name]));
        format!("postgres://postgres:{DATABASE_PASSWORD}@{address}/{name}")
    }

    /// Drops the database of a URL, which is not needed any more: all of them would take gigabytes.
    pub(super) fn drop_database(&self, url: &str) {
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", name_of(url));
        let mut psql = self.client("psql");
        psql.args(["-d", "postgres", "-qc", &drop]);
        let _ = psql.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Any server.
pub(crate) struct Server {
    pub(super) folder: PathBuf,
    pub(super) address: SocketAddr,
    command: Vec<String>,
    running: Mutex<Running>,
}

struct Running {
    /// The shell. Dropping its standard input ends the server.
    keeper: Child,
    /// The server itself.
    id: u32,
}

impl Server {
    pub(super) fn start(name: &str, command: impl Fn(&Path, u16) -> Vec<String>) -> Self {
        super::timed::begin_case();
        super::missing::leave_out_without(name);
        let folder = make_folder(name);
        let mut log = String::new();
        // Another process may take the port between this check and the server's bind. While a server is away,
        // no agent is given it: those get ephemeral ones.
        for _ in 0..3 {
            let address = free_address("127.0.0.1");
            let command = command(&folder, address.port());
            let server = Self {
                folder: folder.clone(),
                address,
                running: Mutex::new(Running::begin(&folder, &command)),
                command,
            };
            if server.answers() {
                return server;
            }
            log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
            server.end("keep\n");
        }
        let _ = std::fs::remove_dir_all(&folder);
        panic!("{name} does not start: {log}");
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Waits for the first answer. False when the server has ended instead.
    fn answers(&self) -> bool {
        let deadline = Instant::now() + START_MAX;
        while Instant::now() < deadline {
            if answers(self.address, self.command.iter().any(|word| word == "-D")) {
                return true;
            }
            if !self.is_running() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    fn is_running(&self) -> bool {
        let id = self.running.lock().unwrap().id;
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // A zombie has ended.
        stat.rsplit(") ")
            .next()
            .is_some_and(|rest| !rest.starts_with('Z'))
            && !stat.is_empty()
    }

    /// Starts it again on the same port, PostgreSQL with its data, and waits until it answers.
    pub(crate) fn restart(&self) {
        let deadline = Instant::now() + START_MAX;
        loop {
            self.end("keep\n");
            *self.running.lock().unwrap() = Running::begin(&self.folder, &self.command);
            if self.answers() {
                return;
            }
            // Processes of a killed PostgreSQL may hold its memory for a moment, and the next one ends.
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            let command = &self.command;
            assert!(
                Instant::now() < deadline,
                "{command:?} does not start again: {log}"
            );
        }
    }

    /// Makes the shell end the server, with `word` as its last input, and waits for both.
    fn end(&self, word: &str) {
        let mut running = self.running.lock().unwrap();
        if let Some(mut input) = running.keeper.stdin.take() {
            // Fails if the shell has ended, which is the aim.
            let _ = input.write_all(word.as_bytes());
        }
        let _ = running.keeper.wait();
    }

    /// SIGKILL to it and to every process it has: a power cut.
    pub(crate) fn kill(&self) {
        // Stopped first, so that it cannot begin further processes meanwhile.
        self.pause();
        self.signal_all("KILL");
        let deadline = Instant::now() + START_MAX;
        while self.is_running() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// SIGSTOP to it and to every process it has: it holds its connections and answers nothing.
    pub(crate) fn pause(&self) {
        self.signal_all("STOP");
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) {
        self.signal_all("CONT");
    }

    pub(super) fn signal_all(&self, signal: &str) {
        let id = self.running.lock().unwrap().id;
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let mut kill = Command::new("kill");
        kill.arg(format!("-{signal}")).arg(id.to_string());
        kill.args(children.unwrap_or_default().split_whitespace());
        // A child may have ended in between.
        let _ = kill.stderr(Stdio::null()).status();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.resume();
        self.end("");
    }
}

impl Running {
    fn begin(folder: &Path, command: &[String]) -> Self {
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(folder)
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = keeper.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let id = line.trim().parse().unwrap();
        Self { keeper, id }
    }
}

fn answers(address: SocketAddr, postgres: bool) -> bool {
    if postgres {
        let port = address.port().to_string();
        let mut ready = Command::new(program("pg_isready"));
        ready.args(["-q", "-h", "127.0.0.1", "-p", &port]);
        return ready.status().is_ok_and(|status| status.success());
    }
    let Ok(mut stream) = TcpStream::connect(address) else {
        return false;
    };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    let mut answer = [0; 5];
    let written = stream.write_all(b"PING\r\n");
    match written.and_then(|()| stream.read(&mut answer)) {
        Ok(_) => true,
        // A TLS server's reaction to this counts as an answer.
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}
