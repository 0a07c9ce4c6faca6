//! Real load balancers, configured as in the documentation.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::packages;
use super::ports::free_address;
use super::spawned::Spawned;

/// A running balancer. Dropping it ends it.
pub(crate) struct Balancer {
    pub(crate) address: SocketAddr,
    running: Spawned,
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
        Self::nginx_at(free_address("127.0.0.1"), http)
    }

    /// The same at an address that is known already.
    pub(super) fn nginx_at(address: SocketAddr, http: impl Fn(SocketAddr) -> String) -> Self {
        // Outside of most users' PATH.
        let mut programs = ["/usr/sbin/nginx", "/usr/local/sbin/nginx"].into_iter();
        let program = programs.find(|program| Path::new(program).exists());
        let program = Path::new(program.unwrap_or("nginx"));
        Self::start_at(address, program, "-c", |folder, address| {
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

    fn start(program: &Path, flags: &str, config: impl Fn(&Path, SocketAddr) -> String) -> Self {
        Self::start_at(free_address("127.0.0.1"), program, flags, config)
    }

    /// Runs `program` with `flags` and the file that `config` writes, given a folder and the address to listen on.
    fn start_at(
        address: SocketAddr,
        program: &Path,
        flags: &str,
        config: impl Fn(&Path, SocketAddr) -> String,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        std::fs::write(&file, config(dir.path(), address) + "\n").unwrap();
        let mut command = Command::new(program);
        command.args(flags.split(' ')).arg(&file);
        let running = Spawned::start(&mut command, dir, address);
        Self { address, running }
    }

    /// Its log.
    pub(crate) fn log(&self) -> String {
        self.running.log()
    }
}
