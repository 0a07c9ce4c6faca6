//! The command line: the commands that ask a gateway over HTTP, and what all commands share, which is how they choose a
//! gateway, ask it, print and fail.
//!
//! The result of a command goes to standard output; errors and the log go to standard error.
//! Exit status: 0 done, 1 failed, 64 wrong arguments or configuration.

mod access;
pub mod agents;
pub mod caps;
mod client;
mod complete;
pub mod context;
pub mod exchange;
pub mod explain;
mod failure;
pub mod grants;
pub mod health;
pub mod policy;
pub mod records;
pub mod revocations;
pub mod send;
mod settings;
mod sse;
pub mod stops;
mod table;
pub mod task;
mod terminal;
pub mod token;
mod token_file;
pub mod usage;
pub mod who;
pub mod workspace;

use std::io;

use url::Url;

pub use self::access::{is_bare, is_loopback, to_loopback, token_alone};
pub use self::client::ReadFlags;
pub use self::complete::VARIABLE as COMPLETION_VARIABLE;
pub use self::failure::{Failure, OrFail, finish, run_to_end};
pub use self::settings::ConfigFlags;
pub use self::table::Table;
pub use self::terminal::{
    ask_line, escape_controls, is_on_screen, print, print_error, print_note, write_prompt,
};

/// `EX_USAGE` of sysexits.h: arguments or configuration are wrong, and nothing was started.
pub const USAGE: u8 = 64;

/// Parses the http or https URL of a gateway.
///
/// # Errors
/// The advice for another text.
pub fn parse_http_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https"));
    url.ok_or_else(|| {
        let whole = format!("http://{text}");
        let meant = Url::parse(&whole).ok().filter(|_| !text.contains("//"));
        match meant.and_then(|url| url.host_str().map(|_| whole)) {
            Some(whole) => format!("write it with its scheme: {whole}"),
            None => "write a URL with its scheme, such as http://127.0.0.1:9090".to_owned(),
        }
    })
}

/// Makes a runtime on this thread.
///
/// # Errors
/// The system has no resources for it.
pub fn build_runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_scheme_is_told_how_to_be_written() {
        assert!(parse_http_url("http://localhost:9090").is_ok());
        for typed in ["127.0.0.1:9090", "localhost:9090", "/readyz", ""] {
            assert!(
                parse_http_url(typed).unwrap_err().contains("http://"),
                "{typed}"
            );
        }
    }
}
