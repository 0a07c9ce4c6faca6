//! The listening sockets. They outlive the process: its successor takes them over while it still serves, so
//! that no connection is refused. `ecdysis` starts the same program with the same arguments, passes the
//! sockets, and waits until the successor reports that it serves.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use ecdysis::Ecdysis;
use parking_lot::Mutex;
use sd_notify::NotifyState;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::ServeError;

/// Backlog of a listening socket; the system may lower it. Pingora's default.
const BACKLOG: i32 = 65_535;

/// Timeout of `--version`.
const VERSION_WITHIN: Duration = Duration::from_secs(5);

/// The listening sockets of this process.
pub(super) struct Sockets {
    ecdysis: Mutex<Ecdysis>,
    handover: watch::Sender<bool>,
}

/// A listening socket for one listener.
pub(super) struct Socket {
    sockets: Arc<Sockets>,
    /// The configuration key of the address.
    key: &'static str,
    address: SocketAddr,
    /// The socket that the previous process passed.
    given: Option<TcpListener>,
}

impl Sockets {
    /// Creates an empty set.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            ecdysis: Mutex::new(Ecdysis::new()),
            handover: watch::Sender::new(false),
        })
    }

    /// True if this process is the successor of another.
    pub(super) fn is_successor(&self) -> bool {
        self.with_ecdysis(|ecdysis| ecdysis.is_child())
    }

    /// Reserves a socket for `address`. It listens only when the service starts. Pingora would panic if the
    /// address cannot be bound; this returns an error for the operator.
    ///
    /// # Errors
    /// The address is in use, or not of this machine.
    pub(super) fn reserve_socket(
        self: &Arc<Self>,
        key: &'static str,
        address: SocketAddr,
    ) -> Result<Socket, ServeError> {
        let mut socket = Socket {
            sockets: Arc::clone(self),
            key,
            address,
            given: None,
        };
        // An inherited socket is taken at once, since those that are not taken are closed when this process
        // is ready.
        let taken = if self.is_successor() {
            socket.bind().map(|given| socket.given = Some(given))
        } else {
            socket.try_bind()
        };
        match taken {
            Ok(()) => Ok(socket),
            Err(error) => Err(socket.listen_error(error)),
        }
    }

    /// Reports that this process serves, to the previous process, which then ends, and to the supervisor.
    pub(super) fn report_ready(&self) {
        if let Err(error) = self.with_ecdysis(Ecdysis::ready) {
            tracing::warn!(%error, "failed to notify the previous process that this one serves");
        }
        notify_supervisor(vec![
            NotifyState::Ready,
            NotifyState::MainPid(std::process::id()),
        ]);
    }

    /// Starts the successor, and resolves when it serves. After that this process accepts no connections.
    ///
    /// # Errors
    /// The reason why it did not start. This process continues to serve.
    pub(super) async fn hand_over(self: &Arc<Self>) -> Result<(), String> {
        // If the program cannot be started, `ecdysis` would wait forever.
        check_program().await?;
        let sockets = Arc::clone(self);
        let upgrade =
            move || sockets.with_ecdysis(|ecdysis| ecdysis.upgrade().map_err(|e| e.to_string()));
        let begun = spawn_blocking(upgrade).await;
        begun.map_err(|error| error.to_string()).flatten()?;
        self.handover.send_replace(true);
        self.with_ecdysis(|ecdysis| ecdysis.quit());
        Ok(())
    }

    /// Returns the signal for the accept loops.
    pub(super) fn watch_handover(&self) -> HandoverWatch {
        HandoverWatch(self.handover.subscribe())
    }

    fn with_ecdysis<T>(&self, work: impl FnOnce(&mut Ecdysis) -> T) -> T {
        work(&mut self.ecdysis.lock())
    }
}

/// A signal that another process accepts connections.
#[derive(Clone)]
pub(super) struct HandoverWatch(watch::Receiver<bool>);

impl HandoverWatch {
    /// Resolves when another process accepts.
    pub(super) async fn wait(&mut self) {
        if self.0.wait_for(|handover| *handover).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Socket {
    /// Listens, or takes over the inherited socket. `SO_REUSEPORT` is not set: a second process that was
    /// started by mistake must fail.
    ///
    /// # Errors
    /// The address is in use by now, or the system has no resources for a socket.
    pub(super) fn listen(&mut self) -> Result<TcpListener, ServeError> {
        let listener = self.given.take().map_or_else(|| self.bind(), Ok);
        listener.map_err(|error| self.listen_error(error))
    }

    /// Returns the error of this socket.
    pub(super) fn listen_error(&self, error: io::Error) -> ServeError {
        ServeError::Listen {
            key: self.key,
            address: self.address,
            error,
        }
    }

    /// Checks that the address can be bound, without listening.
    fn try_bind(&self) -> io::Result<()> {
        let domain = socket2::Domain::for_address(self.address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&self.address.into())
    }

    fn bind(&self) -> io::Result<TcpListener> {
        let listener = self.sockets.with_ecdysis(|ecdysis| {
            ecdysis.build_listen_tcp(self.address, |socket, address| {
                // As in the standard library: connections in TIME_WAIT must not block the address.
                socket.set_reuse_address(true)?;
                socket.bind(&address.into())?;
                socket.listen(BACKLOG)?;
                Ok(socket.into())
            })
        })?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Listens, for use in a Tokio runtime.
    ///
    /// # Errors
    /// As `Socket::listen`.
    pub(super) fn into_tokio(mut self) -> Result<tokio::net::TcpListener, ServeError> {
        let listener = tokio::net::TcpListener::from_std(self.listen()?);
        listener.map_err(|error| self.listen_error(error))
    }
}

/// Runs the program with `--version`, to check that it exists and can be executed.
async fn check_program() -> Result<(), String> {
    let program = std::env::args_os().next().unwrap_or_default();
    let said = Command::new(&program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .status();
    let why = match timeout(VERSION_WITHIN, said).await {
        Ok(Ok(status)) if status.success() => return Ok(()),
        Ok(Ok(status)) => format!("it does not say its version: {status}"),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("it does not say its version within {VERSION_WITHIN:?}"),
    };
    Err(format!("{} cannot be started: {why}", program.display()))
}

/// Notifies the supervisor through `NOTIFY_SOCKET`, if it is set (`sd_notify(3)`). It runs on its own
/// thread, since a supervisor that does not read blocks the writer, which must delay neither the accept
/// loop nor the shutdown.
pub(super) fn notify_supervisor(states: Vec<NotifyState<'static>>) {
    let tell =
        move || sd_notify::notify(&states).unwrap_or_else(|error| log_notify_failure(&error));
    if let Err(error) = std::thread::Builder::new()
        .name("supervisor".into())
        .spawn(tell)
    {
        log_notify_failure(&error);
    }
}

fn log_notify_failure(error: &io::Error) {
    tracing::warn!(%error, "failed to notify the supervisor of the state of the process (NOTIFY_SOCKET)");
}
