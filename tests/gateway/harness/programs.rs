//! Programs of the stores, and what they need before they start.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Writes a certificate and its key for loopback.
pub(super) fn write_certificate(folder: &Path) {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    std::fs::write(folder.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
}

/// Makes the folder of a server. scripts/test has them in memory where that has room.
pub(super) fn make_folder(name: &str) -> PathBuf {
    let parent = std::env::var_os("A2A_TEST_STORES").map_or_else(std::env::temp_dir, PathBuf::from);
    let prefix = format!("a2a-gateway-{name}-");
    let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent);
    folder.unwrap().keep()
}

/// Makes the data of a PostgreSQL server.
pub(super) fn initialise(folder: &Path, data: &str) {
    give_to_postgres(folder);
    run(command_as_postgres("initdb")
        .args(["-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"])
        .args(["--locale=C", "--no-sync", "--no-instructions"]));
}

/// A PostgreSQL program, run by PostgreSQL's user.
pub(super) fn command_as_postgres(name: &str) -> Command {
    let mut words = as_postgres().into_iter().chain([program(name)]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    command
}

/// Makes a file or a folder PostgreSQL's.
pub(super) fn give_to_postgres(path: &Path) {
    if !as_postgres().is_empty() {
        let mut chown = Command::new("chown");
        run(chown.args(["-R", "postgres:postgres"]).arg(path));
    }
}

/// PostgreSQL refuses to run as root.
pub(super) fn as_postgres() -> Vec<String> {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return Vec::new();
    }
    let words = "setpriv --reuid=postgres --regid=postgres --clear-groups";
    words.split(' ').map(String::from).collect()
}

/// A PostgreSQL program: the newest under `/usr/lib/postgresql`, else the one in the path.
pub(super) fn program(name: &str) -> String {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter();
    versions
        .flatten()
        .flatten()
        .map(|version| version.path().join("bin").join(name))
        .filter(|path| path.exists())
        .max()
        .map_or_else(|| name.to_owned(), |path| path.display().to_string())
}

/// Runs a command to its end. Returns its output, trimmed.
pub(super) fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| {
        panic!("{command:?}: {error} (install redis-server and postgresql)")
    });
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(
        output.status.success(),
        "{command:?}: {text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

pub(super) fn redis_command(folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let words = "redis-server --bind 127.0.0.1 --appendonly no".split(' ');
    let words = words.chain(["--dir", &folder, "--save", ""]);
    words.map(String::from).collect()
}
