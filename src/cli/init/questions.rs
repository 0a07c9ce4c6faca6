//! The four questions, and the flags that answer them.

use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;

use clap::ValueEnum as _;

use super::{Answers, Arguments, Stores, Supervisor};
use ctl::{Failure, ask_line, parse_http_url, write_prompt};
use kernel::ids::host_name;

/// Callers on the network need a name.
const NO_PUBLIC_URL: &str =
    "callers on the network call the gateway by a name: give its URL with --public-url";

/// Wrong answers to one question, at most.
const TRIES: usize = 5;

/// Address and port for callers, where none were given.
const LISTEN: &str = "127.0.0.1:8080";

/// The word for SQLite and memory.
const EMBEDDED: &str = "embedded";

/// Returns the answers of the flags; for the others, those of the terminal, or defaults.
pub(super) fn collect_answers(arguments: &Arguments) -> Result<Answers, Failure> {
    let asks = !arguments.yes && io::stdin().is_terminal();
    let kind = arguments.kind.map_or_else(
        || {
            answer_question(
                asks,
                "Run it by systemd or compose?",
                "systemd",
                parse_supervisor,
            )
        },
        Ok,
    )?;
    let listen = arguments.listen.map_or_else(
        || answer_question(asks, "Address and port for callers?", LISTEN, parse_address),
        Ok,
    )?;
    let public_url = match &arguments.public_url {
        Some(url) => url.clone(),
        None if !asks && listen.ip().is_unspecified() => return Err(Failure::usage(NO_PUBLIC_URL)),
        None => answer_question(
            asks,
            "URL that callers use?",
            &likely_url(listen),
            parse_http_url,
        )?,
    };
    let stores = match (&arguments.sql, &arguments.shared) {
        (Some(sql), Some(shared)) => Stores::Servers {
            sql: sql.clone(),
            shared: shared.clone(),
        },
        _ => answer_question(
            asks,
            "State: embedded (one gateway), or the URLs of PostgreSQL and Redis?",
            EMBEDDED,
            parse_stores,
        )?,
    };
    Ok(Answers {
        kind,
        listen,
        admin_listen: arguments.admin_listen,
        public_url,
        stores,
    })
}

/// Returns the likely URL of a gateway at `listen`.
fn likely_url(listen: SocketAddr) -> String {
    if listen.ip().is_unspecified() {
        format!("http://{}:{}", host_name(), listen.port())
    } else {
        format!("http://{listen}")
    }
}

fn parse_supervisor(text: &str) -> Result<Supervisor, String> {
    Supervisor::from_str(text, true)
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "write an address and a port, such as 127.0.0.1:8080".to_owned())
}

fn parse_stores(text: &str) -> Result<Stores, String> {
    let words: Vec<_> = text.split_whitespace().collect();
    match words[..] {
        [EMBEDDED] => Ok(Stores::Embedded),
        [sql, shared] => Ok(Stores::Servers {
            sql: sql.to_owned(),
            shared: shared.to_owned(),
        }),
        _ => Err("write `embedded`, or two URLs: postgres://… redis://…".to_owned()),
    }
}

/// Returns the default, or `asks` on the terminal until an answer can be read. An empty one is the default.
fn answer_question<T>(
    asks: bool,
    question: &'static str,
    default: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<T, Failure> {
    for _ in 0..TRIES {
        let line = match asks {
            true => ask_line(&format!("{question} [{default}] "))?,
            false => Some(String::new()),
        };
        let Some(line) = line else { break };
        let answer = if line.is_empty() { default } else { &line };
        match read(answer) {
            Ok(value) => return Ok(value),
            Err(why) => write_prompt(&format!("{why}\n"))?,
        }
    }
    Err(Failure::new(format!("no answer: {question}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_they_are_typed() {
        assert_eq!(parse_supervisor("Compose"), Ok(Supervisor::Compose));
        assert!(parse_supervisor("docker").is_err());
        assert!(parse_address("8080").is_err());
        assert_eq!(parse_stores("embedded"), Ok(Stores::Embedded));
        let servers = Stores::Servers {
            sql: "postgres://h/d".into(),
            shared: "redis://h".into(),
        };
        assert_eq!(parse_stores("postgres://h/d  redis://h"), Ok(servers));
        assert!(parse_stores("postgres://h/d").is_err());
        assert_eq!(
            likely_url(parse_address(LISTEN).unwrap()),
            "http://127.0.0.1:8080"
        );
    }
}
