//! The outcomes of an exchange, which every stage may end.

use std::fmt;
use std::pin::Pin;

use pingora::{Error, ErrorType};

use crate::rejection::Rejection;

/// Boxes the future of a step that is rarely taken. An inline one would enlarge the future of every exchange.
pub(in crate::proxy) fn box_cold_path<F: Future>(step: F) -> Pin<Box<F>> {
    Box::pin(step)
}

/// Boxes the future that `make` returns. It is made in its box: `Box::pin` makes it on the stack and copies all of it,
/// its states to come included.
pub(in crate::proxy) fn box_in_place<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}

/// The outcome of a relayed exchange.
pub(in crate::proxy) enum ExchangeOutcome {
    /// The whole answer was sent.
    Answered,
    /// No byte of an answer was sent: the caller gets the rejection.
    Refused(Rejection),
    /// Part of the answer was sent. The connection must be aborted, so that the caller does not take the part for the
    /// whole.
    BrokenOff(Rejection),
    /// The caller left, and the call was cancelled.
    CallerLeft,
}

impl From<Rejection> for ExchangeOutcome {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(rejection)
    }
}

/// Reasons for having no body.
pub(in crate::proxy) enum BodyError {
    /// The request is rejected, and the caller gets an answer.
    Refused(Rejection),
    /// The caller left, so there is no answer.
    CallerLeft,
}

impl From<Rejection> for BodyError {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(rejection)
    }
}

impl From<BodyError> for ExchangeOutcome {
    fn from(none: BodyError) -> Self {
        match none {
            BodyError::Refused(rejection) => Self::Refused(rejection),
            BodyError::CallerLeft => Self::CallerLeft,
        }
    }
}

/// The connection (of HTTP/2, the stream) had to be aborted.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) enum AbortCause {
    /// The caller left, or does not read.
    CallerLeft,
    /// The gateway aborted it: the agent broke off, or timed out, after part of its answer was sent.
    Ours,
}

impl AbortCause {
    /// Returns the outcome of sending the gateway's own answer: it fails only because of the caller.
    pub(in crate::proxy) fn from_write<E>(answered: Result<(), E>) -> Result<(), Self> {
        answered.map_err(|_| Self::CallerLeft)
    }
}

/// Pingora's error as a standard one, for the chain of causes. Without its context, which may contain the
/// agent's bytes, unless the connection was not made yet.
pub(in crate::proxy) struct Failure(pub(in crate::proxy) Box<Error>);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut error = &*self.0;
        loop {
            f.write_str(error.etype().as_str())?;
            if let Some(context) = error
                .context
                .as_ref()
                .filter(|_| before_http(error.etype()))
            {
                write!(f, " ({})", context.as_str())?;
            }
            let Some(cause) = &error.cause else {
                return Ok(());
            };
            f.write_str(": ")?;
            match cause.downcast_ref::<Box<Error>>() {
                Some(inner) => error = inner,
                None => return write!(f, "{cause}"),
            }
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

/// True if such an error occurs before a byte of HTTP.
fn before_http(kind: &ErrorType) -> bool {
    matches!(
        kind,
        ErrorType::ConnectTimedout
            | ErrorType::ConnectRefused
            | ErrorType::ConnectNoRoute
            | ErrorType::ConnectError
            | ErrorType::TLSHandshakeFailure
            | ErrorType::TLSHandshakeTimedout
            | ErrorType::InvalidCert
            | ErrorType::HandshakeError
            | ErrorType::SocketError
    )
}
