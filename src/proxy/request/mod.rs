//! The request: its route, checks of its head, its body, and the bindings.

pub(in crate::proxy) mod body;
pub(in crate::proxy) mod call;
pub(in crate::proxy) mod checked_call;
pub(in crate::proxy) mod instance;
pub(in crate::proxy) mod origin;
pub(in crate::proxy) mod ownership;
pub(in crate::proxy) mod prefer;
pub(in crate::proxy) mod rest;
pub(in crate::proxy) mod route;
pub(in crate::proxy) mod validate;

use bytes::Bytes;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::ServerSession;

use super::admit::AdmittedCall;
use super::context::Context;
use super::record::Exchange;
use super::respond::respond;
use crate::a2a::Generation;
use crate::a2a::completion_steps::CompletionSteps;
use crate::proxy::outcome::ExchangeOutcome;
use crate::rejection::{Reason, Rejection};

/// A request in progress: each stage takes it, reads from the session, and notes in the record.
pub(in crate::proxy) struct Request<'a> {
    /// The shared state.
    pub(in crate::proxy) context: &'a Context,
    /// The caller's side.
    pub(in crate::proxy) session: &'a mut ServerSession,
    /// The record.
    pub(in crate::proxy) exchange: &'a mut Exchange,
}

impl Request<'_> {
    /// Returns the head of the request.
    pub(in crate::proxy) fn head(&self) -> &RequestHeader {
        self.session.req_header()
    }

    /// Returns the generation that the target speaks. `is_bare`: the call is built in it.
    ///
    /// # Errors
    /// The caller left, or the process shuts down.
    pub(in crate::proxy) async fn target_generation(
        &mut self,
        admitted: &AdmittedCall,
        is_bare: bool,
    ) -> Result<Generation, ExchangeOutcome> {
        let (caller, exchange) = (Some(&mut *self.session), &*self.exchange);
        let cards = &self.context.cards;
        cards.generation(caller, exchange, admitted, is_bare).await
    }

    /// Adds the fields of every answer to a head.
    ///
    /// # Errors
    /// As [`Context::response_head`].
    pub(in crate::proxy) fn response_head(
        &self,
        head: ResponseHeader,
        done: CompletionSteps,
    ) -> Result<ResponseHeader, Rejection> {
        let (session, exchange) = (&*self.session, &*self.exchange);
        self.context.response_head(session, exchange, head, done)
    }

    /// Sends an answer in one body.
    ///
    /// # Errors
    /// The caller left.
    pub(in crate::proxy) async fn respond(
        &mut self,
        head: ResponseHeader,
        body: Bytes,
    ) -> Result<ExchangeOutcome, ExchangeOutcome> {
        respond(self.session, self.exchange, head, body).await
    }
}

/// Builds `method_not_allowed`, with the allowed methods.
pub(in crate::proxy) fn method_not_allowed(
    message: &'static str,
    allow: &'static str,
) -> Rejection {
    let mut rejection = Rejection::new(Reason::MethodNotAllowed, message);
    rejection.allow = Some(allow);
    rejection
}
