//! Begin and end of the traffic. The listener opens last. Graceful shutdown: reject new requests, let running ones
//! finish, then cut the rest. In a hand-over to another process nothing is rejected: requests on open connections are
//! served, and the connections closed with their next response.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::watch;

/// The state of the listener and of the shutdown.
#[derive(Default)]
pub struct Drain {
    listening: AtomicBool,
    draining: Arc<AtomicBool>,
    leaving: AtomicBool,
    closed: AtomicBool,
    running: AtomicUsize,
    connections: AtomicUsize,
    began: watch::Sender<bool>,
    left: watch::Sender<bool>,
    cut: watch::Sender<CutState>,
}

/// The state that all exchanges watch.
#[derive(Clone, Copy, Default)]
struct CutState {
    cut: bool,
    /// Grows with each [`Drain::request_recheck`].
    rechecks: u64,
}

impl Drain {
    /// Notes that connections are accepted: `/readyz` may succeed.
    pub fn open(&self) {
        self.listening.store(true, Ordering::Release);
    }

    /// True if [`Drain::open`] was called.
    pub fn is_open(&self) -> bool {
        self.listening.load(Ordering::Acquire)
    }

    /// Begins the drain: new exchanges are rejected, and `/readyz` fails.
    pub fn begin(&self) {
        self.draining.store(true, Ordering::Release);
        self.began.send_replace(true);
        self.begin_hand_over();
    }

    /// Begins the hand-over: another process has the listeners, and each connection closes with its next
    /// response.
    pub fn begin_hand_over(&self) {
        self.leaving.store(true, Ordering::Release);
        self.left.send_replace(true);
    }

    /// Resolves when [`Drain::begin`] is called. For work that only waits.
    pub async fn wait_for_begin(&self) {
        // `self` holds the sender, so the wait cannot fail.
        let _ = self.began.subscribe().wait_for(|began| *began).await;
    }

    /// Resolves when [`Drain::begin`] or [`Drain::begin_hand_over`] is called. For endless work that can start again
    /// elsewhere.
    pub async fn wait_for_leave(&self) {
        let _ = self.left.subscribe().wait_for(|left| *left).await;
    }

    /// True if [`Drain::begin`] was called.
    pub fn has_begun(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Returns the flag that [`Drain::begin`] sets, for code that knows no drain.
    pub fn begun_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.draining)
    }

    /// True if [`Drain::begin`] or [`Drain::begin_hand_over`] was called.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Closes the process to requests, since the audit is closed. Connections are closed without a
    /// response.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// True if [`Drain::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Counts a request, as [`Drain::count_work`]; `None` if the process is closed to requests. In this order, and with
    /// one order of both atomics for all threads, a request is either counted before the audit closes or not served.
    pub fn try_count_work(self: &Arc<Self>) -> Option<WorkGuard> {
        let running = self.count_work();
        (!self.is_closed()).then_some(running)
    }

    /// Counts an open connection until the guard is dropped.
    pub fn count_connection(self: &Arc<Self>) -> WorkGuard {
        WorkGuard::new(self, |drain| &drain.connections)
    }

    /// Returns the number of open connections.
    pub fn connection_count(&self) -> usize {
        self.connections.load(Ordering::Acquire)
    }

    /// Counts work that must not be interrupted, until the guard is dropped. A task is counted before it is
    /// spawned, or the process could exit in between.
    pub fn count_work(self: &Arc<Self>) -> WorkGuard {
        WorkGuard::new(self, |drain| &drain.running)
    }

    /// Returns the number of guards of [`Drain::count_work`].
    pub fn work_count(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    /// Cuts remaining exchanges, each with an error, since `server.drain` has passed.
    pub fn cut_all(&self) {
        self.cut.send_modify(|signal| signal.cut = true);
    }

    /// Has each exchange look whether it may go on.
    pub fn request_recheck(&self) {
        self.cut.send_modify(|signal| signal.rechecks += 1);
    }

    /// True if [`Drain::cut_all`] was called. [`DrainWatch::next_signal`] may resolve a moment later.
    pub fn is_cut(&self) -> bool {
        self.cut.borrow().cut
    }

    /// Returns the view of one exchange.
    pub fn watch(&self) -> DrainWatch {
        let signals = self.cut.subscribe();
        let seen = signals.borrow().rechecks;
        DrainWatch { signals, seen }
    }
}

/// Work in progress. Dropping it ends the count.
pub struct WorkGuard {
    drain: Arc<Drain>,
    count: fn(&Drain) -> &AtomicUsize,
}

impl WorkGuard {
    fn new(drain: &Arc<Drain>, count: fn(&Drain) -> &AtomicUsize) -> Self {
        count(drain).fetch_add(1, Ordering::SeqCst);
        Self {
            drain: Arc::clone(drain),
            count,
        }
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        (self.count)(&self.drain).fetch_sub(1, Ordering::AcqRel);
    }
}

/// The view of one exchange on the end of the drain.
pub struct DrainWatch {
    signals: watch::Receiver<CutState>,
    /// The rechecks that the exchange has made.
    seen: u64,
}

/// The next step that the drain asks of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainSignal {
    /// End now.
    End,
    /// Look whether it may go on, then call [`DrainWatch::mark_checked`] with this number.
    Recheck(u64),
}

impl DrainWatch {
    /// True if exchanges must end now.
    pub fn is_requested(&self) -> bool {
        self.signals.borrow().cut
    }

    /// Resolves when the exchange must do something; never, if the process exits without a drain. Until
    /// [`DrainWatch::mark_checked`] is called, a recheck is signalled again: it may be dropped before it is made.
    pub async fn next_signal(&mut self) -> DrainSignal {
        let seen = self.seen;
        let is_news = |signal: &CutState| signal.cut || signal.rechecks != seen;
        let signal = self
            .signals
            .wait_for(is_news)
            .await
            .ok()
            .map(|signal| *signal);
        match signal {
            Some(signal) if signal.cut => DrainSignal::End,
            Some(signal) => DrainSignal::Recheck(signal.rechecks),
            None => std::future::pending().await,
        }
    }

    /// Has the exchange make a recheck now.
    pub fn check_once(&mut self) {
        self.seen = self.seen.wrapping_sub(1);
    }

    /// Notes that the exchange made a recheck.
    pub fn mark_checked(&mut self, recheck: u64) {
        self.seen = recheck;
    }
}
