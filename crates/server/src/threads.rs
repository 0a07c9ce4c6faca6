//! The threads that serve callers. Each has a runtime of its own, accepts from the one listening socket, and keeps a
//! connection until it ends, so that a call wakes no other thread.
//!
//! The threads share one queue of connections, so whichever is free accepts, a new process takes over one socket
//! however many threads it has, and no connection waits for a thread that has ended. A thread that has clearly more
//! connections than another one gives it what it accepts.

use std::io::{self, ErrorKind};
use std::net::{self, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use pingora::server::Server;
use pingora::services::{ServiceHandle, ServiceReadyNotifier};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::ServeError;
use super::accept_failures::AcceptFailures;
use super::background::{Background, exit_unopened};
use super::sockets::{Socket, Sockets};
use data_plane::{Connections, Service};
use http1::serve_on_this_thread;

/// Maximum connections that wait to be taken by the thread that they were given to. Beyond it the thread that accepted
/// serves.
const HANDOFF_MAX: usize = 256;

/// The part of its connections by which a thread may have more than another one. They come and go, and each that is
/// given away wakes a thread.
const MORE: usize = 8;

/// The threads of one listener.
struct ThreadPool<S> {
    connections: Arc<Connections<S>>,
    workers: Box<[Worker<S>]>,
    sockets: Arc<Sockets>,
    socket: Mutex<Socket>,
    /// The listening socket, once for each thread that has not started yet. Empty until the first one opened it.
    listeners: Mutex<Vec<net::TcpListener>>,
    failures: AcceptFailures,
}

/// State of one thread, which all threads read.
struct Worker<S> {
    /// Its connections, with those that it is given.
    open: AtomicUsize,
    given: mpsc::Sender<HandoffConnection<S>>,
}

/// An accepted connection for another thread. No byte of it was read.
struct HandoffConnection<S> {
    socket: net::TcpStream,
    peer: SocketAddr,
    guard: ConnectionGuard<S>,
}

/// A connection that is counted at a thread, until it ends.
struct ConnectionGuard<S> {
    threads: Arc<ThreadPool<S>>,
    number: usize,
}

/// The service of one thread.
struct ThreadService<S> {
    threads: Arc<ThreadPool<S>>,
    number: usize,
}

/// Adds a service for each of `number` threads, which serve the connections of `socket`. Returns the first one, which
/// opens the socket: the others follow what it depends on.
pub(super) fn add_threads<S: Service>(
    server: &mut Server,
    name: &'static str,
    number: usize,
    connections: Connections<S>,
    socket: Socket,
    sockets: Arc<Sockets>,
) -> ServiceHandle {
    let (workers, given): (Vec<_>, Vec<_>) = (0..number).map(|_| Worker::new()).unzip();
    let threads = Arc::new(ThreadPool {
        connections: Arc::new(connections),
        workers: workers.into(),
        sockets,
        socket: Mutex::new(socket),
        listeners: Mutex::default(),
        failures: AcceptFailures::new(name),
    });
    let mut services = given.into_iter().enumerate().map(|(number, given)| {
        let threads = Arc::clone(&threads);
        let thread = ThreadService { threads, number };
        server.add_service(Background::notifying_service(name, move |ready| {
            thread.serve(given, ready)
        }))
    });
    let first = services.next().expect("at least one thread");
    services.for_each(|other| other.add_dependency(&first));
    first
}

impl<S> Worker<S> {
    fn new() -> (Self, mpsc::Receiver<HandoffConnection<S>>) {
        let (sender, given) = mpsc::channel(HANDOFF_MAX);
        let open = AtomicUsize::new(0);
        let given_to = Self {
            open,
            given: sender,
        };
        (given_to, given)
    }
}

impl<S: Service> ThreadPool<S> {
    /// Counts a connection at a thread.
    fn count_connection(self: &Arc<Self>, number: usize) -> ConnectionGuard<S> {
        self.workers[number].open.fetch_add(1, Ordering::Relaxed);
        ConnectionGuard {
            threads: Arc::clone(self),
            number,
        }
    }

    /// Serves a connection that the thread `number` accepted, on that thread or on one that has clearly fewer.
    fn assign_connection(self: &Arc<Self>, number: usize, socket: TcpStream, peer: SocketAddr) {
        let Some(other) = self.find_less_loaded(number) else {
            let guard = self.count_connection(number);
            return self.connections.spawn_connection(socket, peer, guard);
        };
        // The runtime of the other thread is to watch the socket.
        let socket = match socket.into_std() {
            Ok(socket) => socket,
            Err(error) => return log_lost(&error),
        };
        let guard = self.count_connection(other);
        let given = HandoffConnection {
            socket,
            peer,
            guard,
        };
        if let Err(refused) = self.workers[other].given.try_send(given) {
            let mut given = refused.into_inner();
            given.guard = self.count_connection(number);
            self.serve_handoff(given);
        }
    }

    /// Serves a connection that no runtime watches, on this thread.
    fn serve_handoff(&self, given: HandoffConnection<S>) {
        match TcpStream::from_std(given.socket) {
            Ok(socket) => self
                .connections
                .spawn_connection(socket, given.peer, given.guard),
            Err(error) => log_lost(&error),
        }
    }

    /// Returns the thread to give a connection to, which the thread `number` accepted.
    fn find_less_loaded(&self, number: usize) -> Option<usize> {
        let open = |worker: &Worker<S>| worker.open.load(Ordering::Relaxed);
        find_less_loaded(self.workers.iter().map(open), number)
    }
}

impl<S> Drop for ConnectionGuard<S> {
    fn drop(&mut self) {
        self.threads.workers[self.number]
            .open
            .fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S: Service> ThreadService<S> {
    /// Listens. The first thread opens the socket for all.
    ///
    /// # Errors
    /// As [`Socket::listen`].
    fn listen(&self) -> Result<TcpListener, ServeError> {
        let ThreadPool {
            socket,
            listeners,
            workers,
            ..
        } = &*self.threads;
        let (mut socket, mut listeners) = (socket.lock(), listeners.lock());
        let listener = match listeners.pop() {
            Some(listener) => listener,
            None => {
                let listener = socket.listen()?;
                let others = (1..workers.len()).map(|_| listener.try_clone());
                let others: Result<Vec<_>, _> = others.collect();
                *listeners = others.map_err(|error| socket.listen_error(error))?;
                listener
            }
        };
        TcpListener::from_std(listener).map_err(|error| socket.listen_error(error))
    }

    /// Accepts until a new process does.
    async fn accept(&self, listener: TcpListener) {
        let mut handover = self.threads.sockets.watch_handover();
        loop {
            let accepted = tokio::select! {
                biased;
                () = handover.wait() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((socket, peer)) => self.threads.assign_connection(self.number, socket, peer),
                // The caller closed it before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => self.threads.failures.log_and_pause(&error).await,
            }
        }
    }

    /// Serves connections. Notifies `ready` when the socket listens.
    async fn serve(
        self,
        mut given: mpsc::Receiver<HandoffConnection<S>>,
        ready: ServiceReadyNotifier,
    ) {
        // The service has one thread, and a runtime of its own on it.
        serve_on_this_thread(self.number);
        let listener = match self.listen() {
            Ok(listener) => listener,
            Err(error) => exit_unopened(error).await,
        };
        if self.number == 0 {
            self.threads.connections.mark_open();
            // What it depends on is ready: background work starts before the listener.
            self.threads.sockets.report_ready();
        }
        ready.notify_ready();
        let serve = async {
            while let Some(given) = given.recv().await {
                self.threads.serve_handoff(given);
            }
        };
        tokio::join!(self.accept(listener), serve);
    }
}

/// Returns the thread with the fewest connections, if `number` has clearly more. `open`: the connections of each.
fn find_less_loaded(open: impl Iterator<Item = usize> + Clone, number: usize) -> Option<usize> {
    let own = open.clone().nth(number)?;
    let (fewest, other) = open.zip(0..).min()?;
    (own > fewest + fewest / MORE).then_some(other)
}

fn log_lost(error: &io::Error) {
    tracing::warn!(%error, "failed to give an accepted connection to another thread; it is closed");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_connections_are_even_and_of_many_only_a_clear_surplus_is_given_away() {
        for (open, number, given) in [
            (&[7][..], 0, None),
            (&[0, 0], 0, None),
            (&[1, 0], 0, Some(1)),
            (&[1, 0], 1, None),
            (&[4, 3], 0, Some(1)),
            (&[80, 80], 0, None),
            (&[90, 80], 0, None),
            (&[91, 80], 0, Some(1)),
            (&[5, 3, 9, 3], 2, Some(1)),
            (&[5, 3, 9, 3], 3, None),
        ] {
            let chosen = find_less_loaded(open.iter().copied(), number);
            assert_eq!(chosen, given, "{open:?}, accepted by {number}");
        }
    }

    #[test]
    fn however_they_are_accepted_no_thread_has_clearly_more_than_another_one() {
        let mut open = [0_usize; 5];
        for n in 0..1000 {
            // One thread accepts most of them.
            let number = if n % 10 == 0 { n / 10 % open.len() } else { 0 };
            let chosen = find_less_loaded(open.iter().copied(), number);
            open[chosen.unwrap_or(number)] += 1;
            let (fewest, most) = (open.iter().min().unwrap(), open.iter().max().unwrap());
            assert!(most - fewest <= 1 + fewest / MORE, "{open:?}");
        }
    }
}
