//! `a2a-gateway demo`: a gateway on embedded stores, five example agents that register through its
//! public listener as real agents do, and a page of commands to paste.
//!
//! With `--detach` all of that is another process, and its tokens are a context of the command line (`background`).
//!
//! The gateway runs on the main thread, as in `serve`; the agents and the page run on a second
//! thread. Both end at Ctrl-C.

mod background;
mod page;
mod seed;
mod sleeper;

use std::io::{self, IsTerminal as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tempfile::TempDir;
use url::Url;

use self::seed::DemoGateway;
use crate::{Failure, Gateway, USAGE, print, run_until_stopped};

/// The ports that are tried for the admin listener, in order.
const ADMIN_PORTS: std::ops::RangeInclusive<u16> = 9090..=9190;

/// Ports of which a random one is taken for port 0: below the ephemeral range, so that no outgoing connection takes it
/// before the gateway listens.
const FREE_PORTS: std::ops::Range<u16> = 12_000..32_000;

/// Tries to find one, before the system chooses.
const FREE_PORT_TRIES: usize = 100;

/// Time for the gateway to shut down after Ctrl-C: `server.drain`, which is 1 s here, and a margin
/// for its stores.
const END: Duration = Duration::from_secs(3);

const NO_WAKER: &str = "cannot open a port for the waker";

const EXAMPLES: &str = "\
Examples:
  a2a-gateway demo
  a2a-gateway demo --detach                in the background, with a context for the commands
  a2a-gateway demo --stop                  ends that
  a2a-gateway demo --listen 127.0.0.1:8085 --set card.sign=true
  a2a-gateway demo --data demo-data        kept for the next time";

/// `a2a-gateway demo`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Address and port for callers; port 0 is a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Address and port for metrics and health; without it, the first free one from 127.0.0.1:9090
    #[arg(long, value_name = "ADDR")]
    admin_listen: Option<SocketAddr>,
    /// Keep stores and tokens in this folder; without it, they are gone when the demo ends
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Set one setting, such as --set card.sign=true; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Run in the background, and make its gateway and tokens the current context, `demo`; return once it is up
    #[arg(long)]
    detach: bool,
    /// End the demo that runs in the background
    #[arg(long, exclusive = true)]
    stop: bool,
    /// The file for the page of the process in the background.
    #[arg(long, hide = true, conflicts_with = "detach")]
    page: Option<PathBuf>,
}

/// Runs the demo until Ctrl-C.
pub fn run(arguments: &Arguments, gateway: Gateway) -> ExitCode {
    run_demo(arguments, gateway).unwrap_or_else(|error| {
        (gateway.print_error)(&error);
        ExitCode::from(error.code)
    })
}

/// Prepares ports, folder and settings, starts the demo thread, then runs the gateway.
fn run_demo(arguments: &Arguments, gateway: Gateway) -> Result<ExitCode, Failure> {
    if arguments.stop {
        return background::stop(&gateway);
    }
    if arguments.detach {
        return background::start(&gateway);
    }
    let listen = find_free_address(arguments.listen, "--listen")?;
    let admin = match arguments.admin_listen {
        Some(address) => find_free_address(address, "--admin-listen")?,
        None => find_admin_address(listen)?,
    };
    // Kept open: another program could take the port until the waker serves.
    let waker = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Failure::because(NO_WAKER))?;
    let (folder, temporary) = open_folder(arguments.data.as_deref())?;
    let operator = operator_token();
    let settings = demo_settings([listen, admin], &folder, &arguments.set);
    let prepared = match (gateway.prepare)(settings, &operator) {
        Ok(prepared) => prepared,
        Err(error) => {
            (gateway.print_error)(&*error);
            return Ok(ExitCode::from(USAGE));
        }
    };
    // The page and the agents use these two addresses.
    let places = [
        ("server.listen", "--listen", listen, prepared.listen),
        (
            "admin.listen",
            "--admin-listen",
            admin,
            prepared.admin_listen,
        ),
    ];
    for (key, option, ours, set) in places {
        if ours != set {
            return Err(Failure::usage(format!(
                "--set {key} does not move the demo, {option} does"
            )));
        }
    }
    let demo = DemoGateway {
        public: base_url(listen),
        admin: base_url(admin),
        waker,
        operator,
        has_canvas: prepared.has_canvas,
        has_console: prepared.has_console,
        folder: folder.clone(),
        tokens_file: arguments
            .data
            .as_ref()
            .map(|data| data.join("demo-tokens.json")),
    };
    let page = arguments.page.clone();
    let gone = temporary.is_some().then_some(folder);
    std::thread::Builder::new()
        .name("demo".to_owned())
        .spawn(move || {
            let code = match run_agents(&demo, page, gateway) {
                Ok(()) => 0,
                Err(error) => {
                    (gateway.print_error)(&error);
                    1
                }
            };
            // Reached only if the gateway has not ended the process.
            if let Some(folder) = gone {
                let _ = std::fs::remove_dir_all(folder);
            }
            std::process::exit(code)
        })
        .map_err(Failure::because("cannot start a thread"))?;
    let code = (prepared.serve)();
    drop(temporary);
    Ok(code)
}

/// Runs everything but the gateway (agents, hierarchy, page) until Ctrl-C.
fn run_agents(demo: &DemoGateway, page: Option<PathBuf>, gateway: Gateway) -> Result<(), Failure> {
    let work = async {
        let issued = demo.seed().await;
        let issued = issued.map_err(Failure::because("the demo cannot be set up"))?;
        if let Some(page) = &page {
            background::hand_over(demo, &issued, page, &gateway)?;
            let watched = background::end_without_context(&demo.public, &gateway);
            tokio::select! {
                () = demo.keep_alive(&issued) => {}
                ended = watched => ended?,
            }
            return Ok(());
        }
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
        let is_bold = io::stdout().is_terminal() && !is_plain;
        print(&page::format_page(demo, &issued, is_bold))?;
        demo.keep_alive(&issued).await;
        Ok(())
    };
    let ended = run_until_stopped(work, std::future::ready(()));
    if page.is_some() && (gateway.find_context)().as_ref() == Some(&demo.public) {
        (gateway.remove_context)().map_err(background::no_context)?;
    }
    ended?;
    // The agents have ended. The gateway got the same signal and needs time to shut down.
    std::thread::sleep(END);
    Ok(())
}

/// Returns the demo's settings, then `set`, which overrides them. A demo must not touch stores that are configured
/// for real use.
fn demo_settings([listen, admin]: [SocketAddr; 2], folder: &Path, set: &[String]) -> Vec<String> {
    let own = [
        format!("server.listen={listen}"),
        format!("server.public_url={}", base_url(listen)),
        format!("admin.listen={admin}"),
        format!("stores.sql=sqlite:{}", folder.join("gateway.db").display()),
        format!("keys.dir={}", folder.join("keys").display()),
        format!("audit.spool_dir={}", folder.join("audit").display()),
        "canvas.enabled=true".to_owned(),
        // Ctrl-C ends a demo at once; it does not wait for streams.
        "server.drain=1s".to_owned(),
        // Keeps the page readable: failures of the gateway are logged; rejected exchanges, which
        // some commands of the page cause on purpose, are not.
        "telemetry.log=warn,access=off,a2a_gateway::proxy=error".to_owned(),
    ];
    own.into_iter().chain(set.iter().cloned()).collect()
}

/// Returns the address after a test bind; port 0 becomes a free one.
fn find_free_address(address: SocketAddr, option: &'static str) -> Result<SocketAddr, Failure> {
    if address.port() == 0 {
        let random = || SocketAddr::new(address.ip(), rand::random_range(FREE_PORTS));
        let mut some = std::iter::repeat_with(random).take(FREE_PORT_TRIES);
        if let Some(found) = some.find(|one| TcpListener::bind(one).is_ok()) {
            return Ok(found);
        }
    }
    let bound = TcpListener::bind(address).and_then(|listener| listener.local_addr());
    bound.map_err(Failure::because(format!(
        "cannot listen on {address}; choose another with {option}"
    )))
}

fn find_admin_address(listen: SocketAddr) -> Result<SocketAddr, Failure> {
    ADMIN_PORTS
        .filter(|port| *port != listen.port())
        .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .find_map(|address| find_free_address(address, "--admin-listen").ok())
        .ok_or_else(|| {
            let (first, last) = (ADMIN_PORTS.start(), ADMIN_PORTS.end());
            Failure::new(format!(
                "no port from {first} to {last} is free; choose one with --admin-listen"
            ))
        })
}

/// Returns the URL of a listener as seen from this machine.
fn base_url(listen: SocketAddr) -> Url {
    let mut listen = listen;
    if listen.ip().is_unspecified() {
        listen.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    Url::parse(&format!("http://{listen}/")).expect("a socket address is the authority of a URL")
}

fn operator_token() -> String {
    let random: [u8; 32] = rand::random();
    format!("a2aa_{}", URL_SAFE_NO_PAD.encode(random))
}

/// Returns the folder of the stores, and, if it is removed at the end, what removes it.
fn open_folder(data: Option<&Path>) -> Result<(PathBuf, Option<TempDir>), Failure> {
    use std::os::unix::fs::DirBuilderExt as _;
    let path = data.map_or_else(std::env::temp_dir, Path::to_owned);
    let failed = format!("cannot use the folder {}", path.display());
    // The folder holds keys and token hashes: no access for other users.
    if data.is_none() {
        let temporary = tempfile::Builder::new()
            .prefix("a2a-gateway-demo-")
            .tempdir();
        let temporary = temporary.map_err(Failure::because(failed))?;
        return Ok((temporary.path().to_owned(), Some(temporary)));
    }
    let mut folder = std::fs::DirBuilder::new();
    let made = folder.recursive(true).mode(0o700).create(&path);
    made.map_err(Failure::because(failed))?;
    Ok((path, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_settings_come_after_the_demos_own() {
        let any = SocketAddr::from(([0, 0, 0, 0], 8080));
        let admin = find_admin_address(any).unwrap();
        let set = ["card.sign=true", "server.drain=7s"].map(str::to_owned);
        let settings = demo_settings([any, admin], Path::new("/tmp/demo"), &set);
        assert!(settings.contains(&"server.public_url=http://127.0.0.1:8080/".to_owned()));
        let at = |setting: &str| settings.iter().position(|own| own == setting).unwrap();
        assert!(at("server.drain=1s") < at("server.drain=7s"));
        assert_eq!(at("server.drain=7s"), settings.len() - 1);
    }

    #[test]
    fn an_operators_token_has_the_form_of_the_contract() {
        let token = operator_token();
        assert_eq!((&token[..5], token.len()), ("a2aa_", 48));
    }

    #[test]
    fn a_folder_that_was_not_asked_for_is_removed() {
        let (path, temporary) = open_folder(None).unwrap();
        assert!(path.is_dir());
        drop(temporary);
        assert!(!path.exists());
    }
}
