//! Debian's chromium, headless, on one page, and the tiny site that serves the page and takes down
//! what its script found.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a browser may take to start and a page to do its work, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs "$@" until standard input ends, then ends the whole group, itself included: chromium is many
/// processes, and must be gone however the test ended.
const KEEPER: &str = r#""$@" & read -r _; kill -KILL 0"#;

/// The tests may run as root in a container, where its sandbox cannot. Nothing but the page: no updates, no reports, no
/// look-ups, and no proxy on the way.
const OPTIONS: &str = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-breakpad \
    --no-first-run --disable-background-networking --disable-sync --no-proxy-server --disable-component-update \
    --disable-extensions --mute-audio";

/// Every file of the site, by path.
const FILES: &[(&str, &str)] = &[
    ("/allowed.html", include_str!("pages/allowed.html")),
    ("/allowed.js", include_str!("pages/allowed.js")),
    ("/foreign.html", include_str!("pages/foreign.html")),
    ("/foreign.js", include_str!("pages/foreign.js")),
    ("/socket.html", include_str!("pages/socket.html")),
    ("/socket.js", include_str!("pages/socket.js")),
    ("/page.js", include_str!("pages/page.js")),
    ("/sdk.html", include_str!("pages/sdk.html")),
    ("/sdk.js", include_str!("pages/sdk.js")),
];

/// A web site on two origins, `http://127.0.0.1:PORT` and `http://localhost:PORT`. To a gateway on
/// 127.0.0.1 the first is another origin of the same site, the second another site.
pub(super) struct Site {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// What is served below `/node_modules/`.
    packages: Option<PathBuf>,
    task: Mutex<Value>,
    findings: Mutex<Option<Value>>,
    found: Condvar,
}

impl Site {
    /// Serves on a free port, as long as the test process lives.
    pub(super) fn start() -> Self {
        Self::serve(Shared::default())
    }

    /// The same, with modules from a folder that has a `node_modules`.
    pub(super) fn with_packages(folder: PathBuf) -> Self {
        Self::serve(Shared {
            packages: Some(folder),
            ..Shared::default()
        })
    }

    fn serve(shared: Shared) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(shared);
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                // Browsers open connections ahead of need, so each has a thread of its own.
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        Self { port, shared }
    }

    /// The site's origin under a loopback name.
    pub(super) fn origin(&self, host: &str) -> String {
        format!("http://{host}:{}", self.port)
    }

    /// Opens `url` in a browser, gives its script `task`, and waits for what it found.
    pub(super) fn visit(&self, url: &str, task: Value) -> Value {
        *self.shared.task.lock().unwrap() = task;
        *self.shared.findings.lock().unwrap() = None;
        let browser = Browser::open(url);
        let deadline = Instant::now() + PATIENCE;
        let mut findings = self.shared.findings.lock().unwrap();
        loop {
            if let Some(found) = findings.take() {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no word from {url}:\n{}", browser.log());
            findings = self.shared.found.wait_timeout(findings, left).unwrap().0;
        }
    }
}

/// Answers one request: the page's files, its task, what it found, and `/echo`, the request itself.
fn serve(mut stream: TcpStream, shared: &Shared) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let Some((head, body)) = read(&mut stream) else {
        return;
    };
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let file = FILES.iter().find(|(name, _)| *name == path);
    let (status, media_type, text) = match (method, path, file) {
        ("GET", _, Some((name, text))) => {
            let is_page = name.ends_with(".html");
            let media_type = if is_page {
                "text/html"
            } else {
                "text/javascript"
            };
            (200, media_type, (*text).to_owned())
        }
        ("GET", "/task", _) => {
            let task = shared.task.lock().unwrap().to_string();
            (200, "application/json", task)
        }
        ("GET", "/echo", _) => (200, "text/plain", head.clone()),
        ("GET", _, _) if path.starts_with("/node_modules/") => {
            let module = shared.packages.as_ref().map(|f| f.join(&path[1..]));
            let text = module.and_then(|file| std::fs::read_to_string(file).ok());
            let status = if text.is_some() { 200 } else { 404 };
            (status, "text/javascript", text.unwrap_or_default())
        }
        ("POST", "/findings", _) => {
            *shared.findings.lock().unwrap() = Some(serde_json::from_slice(&body).unwrap());
            shared.found.notify_all();
            (200, "text/plain", String::new())
        }
        _ => (404, "text/plain", String::new()),
    };
    let answer = format!(
        "HTTP/1.1 {status} -\r\nContent-Type: {media_type}; charset=utf-8\r\nContent-Length: {}\r\n\
         Access-Control-Allow-Origin: *\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    let _ = stream.write_all(answer.as_bytes());
}

fn read(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut held = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let end = held.windows(4).position(|w| w == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8_lossy(&held[..end]).into_owned();
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                let named = name.eq_ignore_ascii_case("content-length");
                named.then(|| value.trim().parse::<usize>().ok()).flatten()
            });
            if held.len() >= end + 4 + length.unwrap_or(0) {
                return Some((head, held.split_off(end + 4)));
            }
        }
        let read = stream.read(&mut piece).ok().filter(|read| *read > 0)?;
        held.extend_from_slice(&piece[..read]);
    }
}

/// A browser with a profile of its own. Dropping it ends all of its processes.
struct Browser {
    keeper: Child,
    folder: tempfile::TempDir,
}

impl Browser {
    fn open(url: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut look = Command::new("sh");
        let found = look.args(["-c", "command -v chromium"]).output();
        let is_here = found.is_ok_and(|found| found.status.success());
        assert!(
            is_here,
            "there is no `chromium` here: scripts/test installs it on Debian"
        );
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper", "chromium"])
            .args(OPTIONS.split_whitespace())
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .arg(url)
            .env("HOME", folder.path())
            .env_remove("DISPLAY")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { keeper, folder }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// `http://ADDRESS` of a gateway.
pub(super) fn base(address: SocketAddr) -> String {
    format!("http://{address}")
}
