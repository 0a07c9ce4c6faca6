//! Errors of Pingora, as errors of the standard library.

use pingora::{Error, ErrorType};
use std::fmt;

/// Pingora's error as a standard one, for the chain of causes. Without its context, which may contain the
/// server's bytes, unless the connection was not made yet.
pub struct Failure(pub Box<Error>);

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

/// True if a connection failed for want of something on this machine, which tells nothing of the server.
pub fn is_local_failure(error: &Error) -> bool {
    const WANTS: [i32; 5] = [
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOBUFS,
        libc::ENOMEM,
        libc::EADDRNOTAVAIL,
    ];
    let cause = error.cause.as_ref();
    let io = cause.and_then(|cause| cause.downcast_ref::<std::io::Error>());
    let code = io.and_then(std::io::Error::raw_os_error);
    *error.etype() == ErrorType::SocketError || code.is_some_and(|code| WANTS.contains(&code))
}
