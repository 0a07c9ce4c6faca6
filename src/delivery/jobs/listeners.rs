//! Callbacks of other modules for the ends and the replies of jobs.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use super::{Job, ReplyFilter};
use crate::rejection::Rejection;

/// A listener for jobs that are given up here, with the reason.
type GiveUpListener = Box<dyn Fn(&Job, &Rejection) + Send + Sync>;

/// The listeners of jobs. None until they are set.
#[derive(Default)]
pub struct Listeners(ArcSwapOption<ListenerSet>);

/// The listeners that are set.
pub(super) struct ListenerSet {
    pub(super) given_up: GiveUpListener,
    /// Judges what agents that poll reply.
    pub(super) judge: ReplyFilter,
}

impl Listeners {
    /// Sets the listener for jobs that end without a further attempt to send (too late, or lost), and the judge of what
    /// agents that poll reply to jobs.
    pub fn set(
        &self,
        given_up: impl Fn(&Job, &Rejection) + Send + Sync + 'static,
        judge: ReplyFilter,
    ) {
        let given_up = Box::new(given_up);
        self.0
            .store(Some(Arc::new(ListenerSet { given_up, judge })));
    }

    /// Drops them.
    pub fn clear(&self) {
        self.0.store(None);
    }

    pub(super) fn get(&self) -> Option<Arc<ListenerSet>> {
        self.0.load_full()
    }
}
