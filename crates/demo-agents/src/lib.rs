//! The demo of the gateway and its example agents: the commands `a2a-gateway demo` and `a2a-gateway agent`.
//!
//! The agents and the demo's setup speak to the gateway over HTTP only. The gateway itself is started by functions
//! that the binary passes ([`Gateway`]): this crate has no dependency on the gateway's library.

pub mod agent;
mod agents;
pub mod demo;

use std::error::Error;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;

/// `EX_USAGE` of sysexits.h: arguments or configuration are wrong, and nothing was started.
const USAGE: u8 = 64;

/// A result whose error is shown to the user.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// The functions of the gateway that the commands call.
#[derive(Clone, Copy)]
pub struct Gateway {
    /// Loads settings, each `key=value`, over the defaults, with this operator's token. Ignores files and the
    /// environment.
    pub prepare: fn(Vec<String>, &str) -> Outcome<PreparedGateway>,
    /// Writes an error and its causes to standard error.
    pub print_error: fn(&dyn Error),
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

/// Writes to standard output and flushes it, for readers that wait for each line.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
