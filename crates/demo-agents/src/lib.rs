//! The demo of the gateway and its example agents: the commands `a2a-gateway demo` and `a2a-gateway agent`.
//!
//! The agents and the demo's setup speak to the gateway over HTTP only. The gateway itself is started by functions
//! that the binary passes ([`Gateway`]): this crate has no dependency on the gateway's library.

pub mod agent;
mod agents;
pub mod demo;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;

use gateway_client::RegistryError;
use tokio::signal::unix::{SignalKind, signal};
use url::Url;

/// `EX_USAGE` of sysexits.h: arguments or configuration are wrong, and nothing was started.
const USAGE: u8 = 64;

/// A result with an error for the user.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// The functions of the gateway that the commands call.
#[derive(Clone, Copy)]
pub struct Gateway {
    /// Loads settings, each `key=value`, over the defaults, with this operator's token. Ignores files and the
    /// environment.
    pub prepare: fn(Vec<String>, &str) -> Outcome<PreparedGateway>,
    /// Writes an error and its causes to standard error.
    pub print_error: fn(&dyn Error),
    /// Makes a demo in the background the current context of the command line.
    pub save_context: fn(DemoContext) -> Outcome<()>,
    /// Returns the public URL in the context of a demo in the background.
    pub find_context: fn() -> Option<Url>,
    /// Removes that context.
    pub remove_context: fn() -> Outcome<()>,
}

/// The content of the context of a demo.
pub struct DemoContext {
    /// Base URL of the public listener.
    pub url: Url,
    /// Base URL of the admin listener.
    pub admin_url: Url,
    /// The operator's token.
    pub token: String,
    /// Tokens of the workspaces.
    pub callers: BTreeMap<String, String>,
}

/// A gateway that has its settings and is not started yet.
pub struct PreparedGateway {
    /// `server.listen`.
    pub listen: SocketAddr,
    /// `admin.listen`.
    pub admin_listen: SocketAddr,
    /// True if the gateway serves the canvas.
    pub has_canvas: bool,
    /// True if the gateway serves the console.
    pub has_console: bool,
    /// Serves until the process is asked to end.
    pub serve: Box<dyn FnOnce() -> ExitCode>,
}

/// An error of the commands, as the user reads it, with its cause.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct Failure {
    text: String,
    source: Option<Box<dyn Error + Send + Sync>>,
    /// The exit code.
    code: u8,
}

impl Failure {
    fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            source: None,
            code: 1,
        }
    }

    /// A wrong argument.
    fn usage(text: impl Into<String>) -> Self {
        Self {
            code: USAGE,
            ..Self::new(text)
        }
    }

    /// Returns a function that makes an error of its cause.
    fn because<E: Error + Send + Sync + 'static>(
        text: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        move |cause| Self {
            source: Some(Box::new(cause)),
            ..Self::new(text)
        }
    }
}

impl From<RegistryError> for Failure {
    fn from(error: RegistryError) -> Self {
        Self::new(error.to_string())
    }
}

/// Runs `work` on threads of its own until it ends, or until `leave` has ended after the process was asked to end.
fn run_until_stopped(
    work: impl Future<Output = Result<(), Failure>>,
    leave: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("agents")
        .enable_all()
        .build()
        .map_err(Failure::because("cannot start a thread"))?;
    runtime.block_on(async {
        let terminate = signal(SignalKind::terminate());
        let mut terminate = terminate.map_err(Failure::because("cannot wait for signals"))?;
        let stop = async {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            leave.await;
        };
        tokio::select! {
            ended = work => ended,
            () = stop => Ok(()),
        }
    })
}

/// Writes to standard output and flushes it, for readers that wait for each line.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Failure::because("cannot print"))
}
