//! Real load balancers, configured as in the documentation.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::gateway::free_address;

/// A running balancer. Dropping it ends it.
pub(crate) struct Balancer {
    pub(crate) address: SocketAddr,
    child: Child,
    dir: tempfile::TempDir,
}

impl Balancer {
    /// HAProxy; `config` gets the address to listen on.
    pub(crate) fn haproxy(config: impl Fn(SocketAddr) -> String) -> Self {
        Self::start("haproxy", "-f", |_, address| config(address))
    }

    /// nginx; `http` is the contents of `http {}`.
    pub(crate) fn nginx(http: impl Fn(SocketAddr) -> String) -> Self {
        Self::start("nginx", "-c", |folder, address| {
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

    fn start(program: &str, flag: &str, config: impl Fn(&Path, SocketAddr) -> String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = free_address("127.0.0.1");
        let file = dir.path().join("config");
        std::fs::write(&file, config(dir.path(), address) + "\n").unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new(Path::new("/usr/sbin").join(program))
            .arg(flag)
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error} (apt-get install {program})"));
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
