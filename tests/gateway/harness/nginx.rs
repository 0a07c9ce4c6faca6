//! A real nginx in front, with the configuration of the documents.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::builder::free_address;
use super::{Answer, Connection, Request};

/// A real nginx. Dropping it ends it.
pub(crate) struct Nginx {
    pub(crate) address: SocketAddr,
    child: Child,
    dir: tempfile::TempDir,
}

impl Nginx {
    /// Serves `locations` as the user of the tests, from a folder of its own.
    pub(crate) fn start(locations: &str) -> Self {
        Self::start_at(
            free_address("127.0.0.1"),
            &format!("server {{\n{locations}\n}}"),
        )
    }

    /// Serves the contents of `http`, with one `server` that has no address yet.
    pub(crate) fn start_at(address: SocketAddr, http: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let http = http.replacen("server {", &format!("server {{\n    listen {address};"), 1);
        let path = dir.path().display();
        let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("  {kind}_temp_path {path}/{kind};\n"))
            .collect();
        let config = format!(
            "daemon off;\nmaster_process off;\npid {path}/pid;\nerror_log stderr info;\nevents {{}}\n\
             http {{\n  access_log off;\n{paths}{http}\n}}\n"
        );
        let file = dir.path().join("nginx.conf");
        std::fs::File::create(&file)
            .unwrap()
            .write_all(config.as_bytes())
            .unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        // Outside of most users' PATH.
        let program = ["/usr/sbin/nginx", "/usr/local/sbin/nginx"]
            .into_iter()
            .find(|program| Path::new(program).exists())
            .unwrap_or("nginx");
        let child = Command::new(program)
            .arg("-c")
            .arg(&file)
            .arg("-p")
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| {
                panic!("{program}: {e}: scripts/test installs it on Debian (apt-get install nginx)")
            });
        let nginx = Self {
            address,
            child,
            dir,
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "{config}\n{}", nginx.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        nginx
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub(crate) async fn call(&self, request: &Request) -> Answer {
        Connection::open(self.address).await.call(request).await
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
