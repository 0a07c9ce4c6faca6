//! The listening sockets, which outlive the process: the one that follows takes them over while this one still serves,
//! so that no connection is refused in between. Done by `ecdysis`, which starts the same program with the same
//! arguments once more, gives it the sockets, and waits until it says that it serves.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::IntoRawFd as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ecdysis::Ecdysis;
use pingora::server::{ListenFds, ShutdownWatch};
use pingora::services::{ServiceReadyNotifier, ServiceWithDependents};
use sd_notify::NotifyState;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::ServeError;
use super::lasting::unopened;

/// Connections that wait to be accepted at most; the system may allow fewer. Pingora's own choice.
const BACKLOG: i32 = 65_535;

/// How long the program may take to say its version.
const VERSION_WITHIN: Duration = Duration::from_secs(5);

/// The sockets of one process.
pub(super) struct Sockets {
    ecdysis: Mutex<Ecdysis>,
    given_up: watch::Sender<bool>,
}

/// One of them, for whoever accepts from it.
pub(super) struct Socket {
    sockets: Arc<Sockets>,
    /// The configuration key of the address.
    key: &'static str,
    address: SocketAddr,
    /// By the process before.
    given: Option<TcpListener>,
}

impl Sockets {
    /// None yet.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            ecdysis: Mutex::new(Ecdysis::new()),
            given_up: watch::Sender::new(false),
        })
    }

    /// Whether this process goes on in the place of another one.
    pub(super) fn inherited(&self) -> bool {
        self.with(|ecdysis| ecdysis.is_child())
    }

    /// A socket for `address`, which is listened on when there is somebody to answer. Pingora would panic where it
    /// cannot be had; an operator deserves a sentence before that.
    ///
    /// # Errors
    /// The address is taken, or not ours.
    pub(super) fn socket(
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
        // What the process before gives is taken at once: what is left of it is closed when this one is ready.
        let taken = if self.inherited() {
            socket.bind().map(|given| socket.given = Some(given))
        } else {
            socket.try_bind()
        };
        match taken {
            Ok(()) => Ok(socket),
            Err(error) => Err(socket.refused(error)),
        }
    }

    /// Says that this process serves: to the one before, which ends then, and to whoever supervises.
    fn ready(&self) {
        if let Err(error) = self.with(Ecdysis::ready) {
            tracing::warn!(%error, "The process before cannot be told that this one serves");
        }
        tell_supervisor(vec![
            NotifyState::Ready,
            NotifyState::MainPid(std::process::id()),
        ]);
    }

    /// Starts the process that follows, and gives it the sockets; resolves when it serves. From then on nothing is
    /// accepted here.
    ///
    /// # Errors
    /// In words: it did not start. This process goes on.
    pub(super) async fn give_up(self: &Arc<Self>) -> Result<(), String> {
        // `ecdysis` would take a program that cannot be started for one that is being started, for ever.
        program_runs().await?;
        let sockets = Arc::clone(self);
        let upgrade = move || sockets.with(|ecdysis| ecdysis.upgrade().map_err(|e| e.to_string()));
        let begun = spawn_blocking(upgrade).await;
        begun.map_err(|error| error.to_string()).flatten()?;
        self.given_up.send_replace(true);
        self.with(|ecdysis| ecdysis.quit());
        Ok(())
    }

    /// For whoever accepts.
    pub(super) fn given_up(&self) -> GivenUp {
        GivenUp(self.given_up.subscribe())
    }

    fn with<T>(&self, work: impl FnOnce(&mut Ecdysis) -> T) -> T {
        work(&mut self.ecdysis.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whether another process accepts.
#[derive(Clone)]
pub(super) struct GivenUp(watch::Receiver<bool>);

impl GivenUp {
    /// Resolves when one does.
    pub(super) async fn wait(&mut self) {
        if self.0.wait_for(|given_up| *given_up).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Socket {
    /// Listens, or goes on where the process before did. Without the option that lets two processes listen beside
    /// each other: that one is there by mistake must be heard of.
    ///
    /// # Errors
    /// The address is taken by now, or the system has no room for it.
    fn listen(mut self) -> Result<TcpListener, ServeError> {
        let listener = self.given.take().map_or_else(|| self.bind(), Ok);
        listener.map_err(|error| self.refused(error))
    }

    fn refused(&self, error: io::Error) -> ServeError {
        ServeError::Listen {
            key: self.key,
            address: self.address,
            error,
        }
    }

    /// Whether the address can be had. Nobody can connect meanwhile.
    fn try_bind(&self) -> io::Result<()> {
        let domain = socket2::Domain::for_address(self.address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&self.address.into())
    }

    fn bind(&self) -> io::Result<TcpListener> {
        let listener = self.sockets.with(|ecdysis| {
            ecdysis.build_listen_tcp(self.address, |socket, address| {
                // As the standard library does: connections that ended a moment ago keep nobody out.
                socket.set_reuse_address(true)?;
                socket.bind(&address.into())?;
                socket.listen(BACKLOG)?;
                Ok(socket.into())
            })
        })?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// The same, for a runtime.
    ///
    /// # Errors
    /// As above.
    pub(super) fn into_tokio(self) -> Result<tokio::net::TcpListener, ServeError> {
        let (key, address) = (self.key, self.address);
        let listener = tokio::net::TcpListener::from_std(self.listen()?);
        listener.map_err(|error| ServeError::Listen {
            key,
            address,
            error,
        })
    }
}

/// Has the program say its version: whether it is there, may be run, and is one.
async fn program_runs() -> Result<(), String> {
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

/// Says it by `NOTIFY_SOCKET`, if somebody listens there (`sd_notify(3)`). On a thread of its own: who listens and does not
/// read makes whoever speaks wait, and that must be neither what accepts connections nor what ends the process.
pub(super) fn tell_supervisor(states: Vec<NotifyState<'static>>) {
    let tell = move || sd_notify::notify(&states).unwrap_or_else(|error| untold(&error));
    if let Err(error) = std::thread::Builder::new()
        .name("supervisor".into())
        .spawn(tell)
    {
        untold(&error);
    }
}

fn untold(error: &io::Error) {
    tracing::warn!(%error, "The supervisor cannot be told of the state of the process (NOTIFY_SOCKET)");
}

/// A Pingora service on a socket of ours, until that is given up.
pub(super) struct OnSocket<S> {
    service: S,
    socket: Option<Socket>,
    sockets: Arc<Sockets>,
}

impl<S> OnSocket<S> {
    /// `service` listens at the address of `socket`.
    pub(super) fn new(service: S, socket: Socket, sockets: Arc<Sockets>) -> Self {
        Self {
            service,
            socket: Some(socket),
            sockets,
        }
    }
}

#[async_trait]
impl<S: ServiceWithDependents> ServiceWithDependents for OnSocket<S> {
    async fn start_service(
        &mut self,
        fds: Option<ListenFds>,
        shutdown: ShutdownWatch,
        listeners_per_fd: usize,
        ready: ServiceReadyNotifier,
    ) {
        if let (Some(socket), Some(fds)) = (self.socket.take(), &fds) {
            let address = socket.address;
            match socket.listen() {
                Ok(listener) => fds.lock().add(address.to_string(), listener.into_raw_fd()),
                Err(error) => unopened(error).await,
            }
        }
        // What depends on it is here: rooms are made before there is a listener.
        self.sockets.ready();
        let mut given_up = self.sockets.given_up();
        let (end, ends) = watch::channel(false);
        let mut shutdown = shutdown;
        let watched = async {
            tokio::select! {
                () = given_up.wait() => {}
                _ = shutdown.wait_for(|over| *over) => {}
            }
            end.send_replace(true);
        };
        let served = self
            .service
            .start_service(fds, ends, listeners_per_fd, ready);
        tokio::join!(watched, served);
    }

    fn name(&self) -> &str {
        self.service.name()
    }

    fn threads(&self) -> Option<usize> {
        self.service.threads()
    }
}
