//! How a command ends: with text for standard output, or with a failure, which is a message and an exit status.

use std::error::Error;
use std::fmt::{self, Display};
use std::io;
use std::process::ExitCode;

use super::terminal::{print, print_note};
use super::{USAGE, build_runtime};
use kernel::telemetry::Chain;

/// Why a command has no result: what standard error says, with the next step, and the exit status.
#[derive(Debug)]
pub struct Failure {
    message: String,
    /// The exit status.
    pub status: u8,
}

impl Failure {
    /// The work failed: status 1.
    pub fn new(message: impl Into<String>) -> Self {
        let message = message.into();
        Self { message, status: 1 }
    }

    /// Arguments, settings or files of the user are wrong, and nothing was done.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(message).with_status(USAGE)
    }

    /// All was said already.
    pub fn quiet(status: u8) -> Self {
        Self::new("").with_status(status)
    }

    /// Replaces the exit status.
    pub fn with_status(self, status: u8) -> Self {
        Self { status, ..self }
    }

    /// Writes the message to standard error, and returns the exit status.
    pub fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            print_note(&self.message);
        }
        ExitCode::from(self.status)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let message = Chain(&error).to_string();
        match (&error as &(dyn Error + 'static)).downcast_ref::<io::Error>() {
            // The reader has enough: `a2a-gateway workspace list | head`.
            Some(io) if io.kind() == io::ErrorKind::BrokenPipe => Self::quiet(0),
            Some(_) => Self::new(format!("cannot read or write: {message}")),
            None => Self::new(message),
        }
    }
}

/// Makes a failure of an error.
pub trait OrFail<T> {
    /// Says what failed; the error is its cause.
    fn or_fail(self, what: impl Display) -> Result<T, Failure>;

    /// The error says what is wrong with the arguments or the settings.
    fn or_usage(self) -> Result<T, Failure>;
}

impl<T, E: Error + 'static> OrFail<T> for Result<T, E> {
    fn or_fail(self, what: impl Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(format!("{what}: {}", Chain(&error))))
    }

    fn or_usage(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::usage(Chain(&error).to_string()))
    }
}

/// Runs a command to its end.
pub fn run_to_end(work: impl Future<Output = Result<String, Failure>>) -> ExitCode {
    let runtime = build_runtime().map_err(Failure::from);
    finish(runtime.and_then(|runtime| runtime.block_on(work)))
}

/// Prints the text of a command, or its failure, and returns the exit status.
pub fn finish(text: Result<String, Failure>) -> ExitCode {
    match text.and_then(|text| Ok(print(&text)?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
