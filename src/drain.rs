//! Ending without breaking a call: refuse what is new, let what runs finish, cut what is left.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::watch;

/// Where the process is on its way out.
pub struct Drain {
    draining: AtomicBool,
    running: AtomicUsize,
    began: watch::Sender<bool>,
    cut: watch::Sender<bool>,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            draining: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            began: watch::Sender::new(false),
            cut: watch::Sender::new(false),
        }
    }
}

impl Drain {
    /// From now on new exchanges are refused and `/readyz` fails.
    pub fn begin(&self) {
        self.draining.store(true, Ordering::Release);
        self.began.send_replace(true);
    }

    /// Resolves when [`Drain::begin`] is called: for what would never end by itself.
    pub async fn begins(&self) {
        // The sender is ours, so the wait cannot fail.
        let _ = self.began.subscribe().wait_for(|began| *began).await;
    }

    /// Whether [`Drain::begin`] was called.
    pub fn begun(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Something that must not be broken off begins.
    pub fn enter(&self) -> Running<'_> {
        self.running.fetch_add(1, Ordering::AcqRel);
        Running(self)
    }

    /// How many that [`Drain::enter`] counted are not over.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    /// `server.drain` has passed: what is left ends now, in words.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// A view for one exchange.
    pub fn watch(&self) -> Cut {
        Cut(self.cut.subscribe())
    }
}

/// Something in progress. Dropping it says that it is over.
pub struct Running<'a>(&'a Drain);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One exchange's view of the end of a drain.
pub struct Cut(watch::Receiver<bool>);

impl Cut {
    /// Resolves when exchanges must end; never, if the process ends without a drain.
    pub async fn requested(&mut self) {
        if self.0.wait_for(|cut| *cut).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
