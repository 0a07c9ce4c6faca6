//! `demo --detach`: the same demo as another process. Its tokens are in a context of the command line, and it ends when
//! that context is removed (`demo --stop`).

use std::error::Error;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use tempfile::NamedTempFile;
use url::Url;

use super::seed::{DemoGateway, IssuedTokens};
use crate::{DemoContext, Failure, Gateway, print};

/// Longest start of a demo.
const START: Duration = Duration::from_secs(60);

/// Longest end of one.
const END: Duration = Duration::from_secs(15);

/// Delay between two looks at the other process.
const LOOK: Duration = Duration::from_millis(50);

/// Interval at which the demo looks for its context.
const WATCH: Duration = Duration::from_millis(500);

const NO_PROCESS: &str = "cannot start the demo in the background";

/// Starts the demo as a process of its own, with the same arguments, and prints its page once it is up.
pub(super) fn start(gateway: &Gateway) -> Result<ExitCode, Failure> {
    if let Some(url) = (gateway.find_context)().filter(is_served) {
        return Err(Failure::new(format!(
            "a demo runs in the background at {url}; `a2a-gateway demo --stop` ends it"
        )));
    }
    let folder = tempfile::tempdir().map_err(Failure::because(NO_PROCESS))?;
    let log = NamedTempFile::with_prefix("a2a-gateway-demo-log-").and_then(|log| Ok(log.keep()?));
    let (log, path) = log.map_err(Failure::because(NO_PROCESS))?;
    let page = folder.path().join("page");
    let program = std::env::current_exe().map_err(Failure::because(NO_PROCESS))?;
    let given = std::env::args_os()
        .skip(1)
        .filter(|word| word != "--detach");
    let mut child = Command::new(program);
    child
        .args(given)
        .arg("--page")
        .arg(&page)
        .stdin(Stdio::null());
    let other = log.try_clone().map_err(Failure::because(NO_PROCESS))?;
    // A group of its own: Ctrl-C and the end of this terminal are not for it.
    let started = child.stdout(other).stderr(log).process_group(0).spawn();
    let mut child = started.map_err(Failure::because(NO_PROCESS))?;
    let deadline = Instant::now() + START;
    loop {
        if let Ok(text) = std::fs::read_to_string(&page) {
            print(&format!("{text}Its log is {}.\n", path.display()))?;
            return Ok(ExitCode::SUCCESS);
        }
        let ended = child.try_wait().map_err(Failure::because(NO_PROCESS))?;
        if ended.is_some() || Instant::now() >= deadline {
            // It may have ended meanwhile.
            let _ = child.kill();
            let said = std::fs::read_to_string(&path).unwrap_or_default();
            let said = said.trim().trim_start_matches("a2a-gateway: ");
            return Err(Failure::new(format!("the demo did not start: {said}")));
        }
        thread::sleep(LOOK);
    }
}

/// Ends the demo in the background: removes its context, and waits until its port is closed.
pub(super) fn stop(gateway: &Gateway) -> Result<ExitCode, Failure> {
    let Some(url) = (gateway.find_context)() else {
        return Err(Failure::new(
            "no demo runs in the background: there is no context `demo`",
        ));
    };
    (gateway.remove_context)().map_err(no_context)?;
    let deadline = Instant::now() + END;
    while is_served(&url) {
        if Instant::now() >= deadline {
            return Err(Failure::new(format!(
                "{url} is still served after {END:?}; its context was removed"
            )));
        }
        thread::sleep(LOOK);
    }
    print("the demo has ended\n")?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the context, then the page for the process that waits for it.
pub(super) fn hand_over(
    demo: &DemoGateway,
    issued: &IssuedTokens,
    page: &Path,
    gateway: &Gateway,
) -> Result<(), Failure> {
    let context = DemoContext {
        url: demo.public.clone(),
        admin_url: demo.admin.clone(),
        token: demo.operator.clone(),
        callers: issued.tokens.clone(),
    };
    (gateway.save_context)(context).map_err(no_context)?;
    let folder = page.parent().unwrap_or(Path::new("."));
    // Whole at once: the other process reads it as soon as it is there.
    let written = NamedTempFile::new_in(folder).and_then(|mut file| {
        file.write_all(format_page(demo, issued).as_bytes())?;
        Ok(file.persist(page)?)
    });
    written
        .map(drop)
        .map_err(Failure::because("cannot write the page"))
}

/// Ends this process as a signal does once its context has gone.
pub(super) async fn end_without_context(url: &Url, gateway: &Gateway) -> Result<(), Failure> {
    while (gateway.find_context)().as_ref() == Some(url) {
        tokio::time::sleep(WATCH).await;
    }
    let sent = kill_process(getpid(), Signal::TERM);
    sent.map_err(Failure::because("cannot end the demo"))?;
    std::future::pending().await
}

/// Returns the failure of a context that cannot be written or removed.
pub(super) fn no_context(error: Box<dyn Error>) -> Failure {
    Failure::new(format!("the context of the demo: {error}"))
}

/// Returns what is printed: the commands need no token, since the context has them.
fn format_page(demo: &DemoGateway, issued: &IssuedTokens) -> String {
    let [public, admin] = [&demo.public, &demo.admin];
    let mut pages = format!("  callers and agents   {public}\n");
    if let Some(token) = issued.canvas.as_ref().filter(|_| demo.has_canvas) {
        pages += &format!("  canvas in a browser  {public}canvas/#token={token}\n");
    }
    if demo.has_console {
        pages += &format!("  console in a browser {admin}\n");
    }
    format!(
        "The demo runs in the background, and is the current context:\n\n{pages}\n\
         Try:\n\n  \
         a2a-gateway send acme-pm 'hello' --as acme-dev\n  \
         a2a-gateway send acme-dev 'plan the release' --stream --as acme-pm\n  \
         a2a-gateway send acme-dev 'what are you building?' --as rival-spy\n  \
         a2a-gateway explain rival-spy acme-dev\n  \
         a2a-gateway workspace tree\n\n\
         `a2a-gateway demo --stop` ends it. "
    )
}

fn is_served(url: &Url) -> bool {
    let addresses = url.socket_addrs(|| None).unwrap_or_default();
    let connect = |address| TcpStream::connect_timeout(address, Duration::from_secs(1));
    addresses.iter().any(|address| connect(address).is_ok())
}
