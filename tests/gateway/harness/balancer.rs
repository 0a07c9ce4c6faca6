//! Real load balancers, configured as in the documentation.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::builder::free_address;
use super::packages;

/// A running balancer. Dropping it ends it.
pub(crate) struct Balancer {
    pub(crate) address: SocketAddr,
    child: Child,
    dir: tempfile::TempDir,
}

impl Balancer {
    /// HAProxy; `config` gets the address to listen on.
    pub(crate) fn haproxy(config: impl Fn(SocketAddr) -> String) -> Self {
        let program = Path::new("/usr/sbin/haproxy");
        Self::start(program, "-f", |_, address| config(address))
    }

    /// Envoy, installed by `scripts/balancers`.
    pub(crate) fn envoy(config: impl Fn(SocketAddr) -> String) -> Self {
        let program = packages::installed("scripts/balancers").join("python/bin/envoy");
        let flags = "--disable-hot-restart --concurrency 2 --log-level warn --config-path";
        Self::start(&program, flags, |_, address| config(address))
    }

    /// Traefik, installed by `scripts/balancers`; `config` names the file that `dynamic` is written into.
    pub(crate) fn traefik(
        config: impl Fn(SocketAddr) -> String,
        dynamic: impl Fn() -> String,
    ) -> Self {
        let program = packages::installed("scripts/balancers").join("python/bin/traefik");
        Self::start(&program, "--configFile", |folder, address| {
            let file = folder.join("gateways.yaml");
            std::fs::write(&file, dynamic() + "\n").unwrap();
            let config =
                config(address).replace("/etc/traefik/gateways.yaml", file.to_str().unwrap());
            format!("global: {{checkNewVersion: false}}\n{config}")
        })
    }

    /// nginx; `http` is the contents of `http {}`.
    pub(crate) fn nginx(http: impl Fn(SocketAddr) -> String) -> Self {
        Self::start(Path::new("/usr/sbin/nginx"), "-c", |folder, address| {
            let path = folder.display();
            let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                .iter()
                .map(|kind| format!("  {kind}_temp_path {path}/{kind};\n"))
                .collect();
            format!(
                "daemon off;\nmaster_process off;\npid {path}/pid;\nerror_log stderr info;\nevents {{}}\n\
                 http {{\n  access_log off;\n{paths}{}\n}}\n",
                http(address)
            )
        })
    }

    /// Runs `program` with `flags` and the file that `config` writes, given a folder and the address to listen on.
    fn start(program: &Path, flags: &str, config: impl Fn(&Path, SocketAddr) -> String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = free_address("127.0.0.1");
        let file = dir.path().join("config.yaml");
        std::fs::write(&file, config(dir.path(), address) + "\n").unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new(program)
            .args(flags.split(' '))
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{}: {error} (scripts/test installs it)", program.display())
            });
        let balancer = Self {
            address,
            child,
            dir,
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "{}", balancer.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        balancer
    }

    /// Its log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
