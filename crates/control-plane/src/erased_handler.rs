//! Handlers of routes behind one type.

use std::sync::Arc;

use axum::extract::Request;
use axum::handler::Handler;
use axum::response::Response;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

/// A handler with the state `S`. With a type of its own each handler is compiled once for each layer of the router, and
/// for each of them the compiler proves again that all that its future holds is `Send`.
pub(crate) struct ErasedHandler<S>(Arc<HandlerFn<S>>);

type HandlerFn<S> = dyn Fn(Request, S) -> BoxFuture<'static, Response> + Send + Sync;

impl<S> ErasedHandler<S> {
    /// Erases the type of a handler.
    pub(crate) fn new<H: Handler<T, S>, T>(handler: H) -> Self {
        Self(Arc::new(move |request, state| {
            handler.clone().call(request, state).boxed()
        }))
    }
}

impl<S> Clone for ErasedHandler<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: 'static> Handler<(), S> for ErasedHandler<S> {
    type Future = BoxFuture<'static, Response>;

    fn call(self, request: Request, state: S) -> Self::Future {
        (self.0)(request, state)
    }
}
