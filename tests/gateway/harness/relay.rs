//! A TCP relay that can be cut, delayed, turned into a black hole, and restored.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Relays every connection to one server. Dropping it cuts them all.
pub(crate) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    mode: Mode,
    /// Connections are numbered; those below this pass nothing any more.
    stranded: u64,
    next: u64,
    open: Vec<(u64, TcpStream)>,
    closed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Pass,
    Delay(Duration),
    BlackHole,
    Cut,
}

impl Relay {
    /// Listens on a free port.
    pub(crate) fn to(server: SocketAddr) -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), server)
    }

    /// As [`Relay::to`], at an address that the server is told of before.
    pub(crate) fn at(address: SocketAddr, server: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let state = State {
            mode: Mode::Pass,
            stranded: 0,
            next: 0,
            open: Vec::new(),
            closed: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || accept(&listener, server, &accepting));
        Self { address, shared }
    }

    /// The address to connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections, and new ones at once.
    pub(crate) fn cut(&self) {
        self.change(|state| {
            state.mode = Mode::Cut;
            close_all(state);
        });
    }

    /// Holds each piece for this long, in both directions.
    pub(crate) fn delay(&self, delay: Duration) {
        self.change(|state| state.mode = Mode::Delay(delay));
    }

    /// Accepts, keeps everything open, passes nothing until [`Relay::resume`].
    pub(crate) fn black_hole(&self) {
        self.change(|state| state.mode = Mode::BlackHole);
    }

    /// Makes a black hole of the connections that are open now, for good. New ones pass.
    pub(crate) fn strand(&self) {
        self.change(|state| state.stranded = state.next);
    }

    /// Passes again, including what was held.
    pub(crate) fn resume(&self) {
        self.change(|state| state.mode = Mode::Pass);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let state = self.shared.state.lock();
        change(&mut state.unwrap_or_else(PoisonError::into_inner));
        self.shared.changed.notify_all();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.change(|state| {
            state.closed = true;
            state.mode = Mode::Cut;
            close_all(state);
        });
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn close_all(state: &mut State) {
    for (_, stream) in state.open.drain(..) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn accept(listener: &TcpListener, server: SocketAddr, shared: &Arc<Shared>) {
    for caller in listener.incoming().flatten() {
        let mut state = shared.state.lock().unwrap();
        if state.closed {
            return;
        }
        if state.mode == Mode::Cut {
            continue;
        }
        let Ok(upstream) = TcpStream::connect(server) else {
            continue;
        };
        let _ = (caller.set_nodelay(true), upstream.set_nodelay(true));
        let number = state.next;
        state.next += 1;
        let ends = [(&caller, &upstream), (&upstream, &caller)];
        for (from, to) in ends {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let shared = shared.clone();
            std::thread::spawn(move || pass(number, from, to, &shared));
        }
        state.open.extend([(number, caller), (number, upstream)]);
    }
}

fn pass(number: u64, mut from: TcpStream, mut to: TcpStream, shared: &Shared) {
    let mut piece = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        if !shared.may_pass(number) || to.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    // A close of one side is passed to the other, unless nothing passes.
    if shared.may_pass(number) {
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
    let mut state = shared.state.lock().unwrap();
    state.open.retain(|(open, _)| *open != number);
}

impl Shared {
    /// Waits until a piece of this connection may pass. False when it never may.
    fn may_pass(&self, number: u64) -> bool {
        let mut state = self.state.lock().unwrap();
        loop {
            let hole = state.mode == Mode::BlackHole || number < state.stranded;
            match state.mode {
                Mode::Cut => return false,
                Mode::Delay(delay) if !hole => {
                    drop(state);
                    std::thread::sleep(delay);
                    return true;
                }
                Mode::Pass if !hole => return true,
                _ => state = self.changed.wait(state).unwrap(),
            }
        }
    }
}
