//! Ending without breaking a call: refuse what is new, let what runs finish, cut what is left.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// Where the process is on its way out.
pub struct Drain {
    draining: AtomicBool,
    cut: watch::Sender<bool>,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            draining: AtomicBool::new(false),
            cut: watch::Sender::new(false),
        }
    }
}

impl Drain {
    /// From now on new exchanges are refused and `/readyz` fails.
    pub fn begin(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether [`Drain::begin`] was called.
    pub fn begun(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// `server.drain` has passed: streams end with their last event.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// A view for one stream.
    pub fn watch(&self) -> Cut {
        Cut(self.cut.subscribe())
    }
}

/// One stream's view of the end of a drain.
pub struct Cut(watch::Receiver<bool>);

impl Cut {
    /// Resolves when streams must end; never, if the process ends without a drain.
    pub async fn requested(&mut self) {
        if self.0.wait_for(|cut| *cut).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
