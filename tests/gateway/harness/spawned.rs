//! A program that listens, started by a case in a folder of its own.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::warm::NEVER;

/// A running program. Dropping it kills it.
pub(crate) struct Spawned {
    pub(super) child: Child,
    dir: TempDir,
}

impl Spawned {
    /// Starts a program with its output in a log in `dir`, and waits until it listens.
    pub(super) fn start(command: &mut Command, dir: TempDir, address: SocketAddr) -> Self {
        let log = std::fs::File::create(dir.path().join("log")).expect("a log file");
        command.stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a log file"));
        let child = command.stderr(log).spawn().unwrap_or_else(|error| {
            panic!("{command:?}: {error} (scripts/test installs what it needs)")
        });
        let spawned = Self { child, dir };
        until_listens(address, || spawned.log());
        spawned
    }

    /// Everything it logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until something listens at an address.
pub(super) fn until_listens(address: SocketAddr, log: impl Fn() -> String) {
    let deadline = Instant::now() + NEVER;
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline, "nothing listens: {}", log());
        std::thread::sleep(Duration::from_millis(10));
    }
}
