//! The second check of the caller of a request. A look-up of a name takes up to two seconds, in which a credential may be
//! revoked and a workspace moved or removed, and the caller chooses the names.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::rejection::Rejection;

type Check = dyn Fn() -> BoxFuture<'static, Result<(), Rejection>> + Send + Sync;

/// A check that runs after the look-ups of a request, and before anything is written.
#[derive(Clone)]
pub struct Recheck(Arc<Check>);

impl Recheck {
    /// Returns one. It may run twice for one request.
    pub fn new(
        check: impl Fn() -> BoxFuture<'static, Result<(), Rejection>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(check))
    }

    /// Runs the check, if there is one.
    ///
    /// # Errors
    /// Those of the check.
    pub(super) async fn run(check: Option<&Self>) -> Result<(), Rejection> {
        match check {
            Some(check) => (check.0)().await,
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Recheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recheck")
    }
}
