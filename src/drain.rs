//! Ending without breaking a call: refuse what is new, let what runs finish, cut what is left. Where another process
//! has taken the listeners over nothing is refused: what comes by connections that are open is served, and told to close.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::watch;

/// Where the process is on its way out.
pub struct Drain {
    draining: AtomicBool,
    leaving: AtomicBool,
    closed: AtomicBool,
    running: AtomicUsize,
    connections: AtomicUsize,
    began: watch::Sender<bool>,
    left: watch::Sender<bool>,
    cut: watch::Sender<bool>,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            draining: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            began: watch::Sender::new(false),
            left: watch::Sender::new(false),
            cut: watch::Sender::new(false),
        }
    }
}

impl Drain {
    /// From now on new exchanges are refused and `/readyz` fails.
    pub fn begin(&self) {
        self.draining.store(true, Ordering::Release);
        self.began.send_replace(true);
        self.leave();
    }

    /// Another process has the listeners: from now on each connection is told to close with its next answer.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        self.left.send_replace(true);
    }

    /// Resolves when [`Drain::begin`] is called: for what would only wait.
    pub async fn begins(&self) {
        // The sender is ours, so the wait cannot fail.
        let _ = self.began.subscribe().wait_for(|began| *began).await;
    }

    /// Resolves when [`Drain::begin`] or [`Drain::leave`] is called: for what would never end by itself, and begins
    /// again elsewhere.
    pub async fn leaves(&self) {
        let _ = self.left.subscribe().wait_for(|left| *left).await;
    }

    /// Whether [`Drain::begin`] was called.
    pub fn begun(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether [`Drain::begin`] or [`Drain::leave`] was called.
    pub fn leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Nothing is written down any more: from now on nobody is answered, who asks finds the connection closed.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether [`Drain::close`] was called.
    pub fn closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// A connection is open.
    pub fn connect(self: &Arc<Self>) -> Running {
        Running::of(self, |drain| &drain.connections)
    }

    /// How many that [`Drain::connect`] counted are not over.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Acquire)
    }

    /// Something that must not be broken off begins. It counts from here on: whoever goes on in a task of its own enters
    /// before that is spawned, or the process could end in between.
    pub fn enter(self: &Arc<Self>) -> Running {
        Running::of(self, |drain| &drain.running)
    }

    /// How many that [`Drain::enter`] counted are not over.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    /// `server.drain` has passed: what is left ends now, in words.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Whether [`Drain::cut`] was called. Who waits on [`Cut::requested`] may hear of it a moment later.
    pub fn is_cut(&self) -> bool {
        *self.cut.borrow()
    }

    /// A view for one exchange.
    pub fn watch(&self) -> Cut {
        Cut(self.cut.subscribe())
    }
}

/// Something in progress. Dropping it says that it is over.
pub struct Running {
    drain: Arc<Drain>,
    count: fn(&Drain) -> &AtomicUsize,
}

impl Running {
    fn of(drain: &Arc<Drain>, count: fn(&Drain) -> &AtomicUsize) -> Self {
        count(drain).fetch_add(1, Ordering::AcqRel);
        Self {
            drain: Arc::clone(drain),
            count,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        (self.count)(&self.drain).fetch_sub(1, Ordering::AcqRel);
    }
}

/// One exchange's view of the end of a drain.
pub struct Cut(watch::Receiver<bool>);

impl Cut {
    /// Whether exchanges must end now.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves when exchanges must end; never, if the process ends without a drain.
    pub async fn requested(&mut self) {
        if self.0.wait_for(|cut| *cut).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
