//! `a2a-gateway init`: writes what a gateway starts with, from the answers to four questions: a configuration, an
//! operator's token, and a unit for systemd or a compose file. It starts nothing.

mod files;
mod questions;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use url::{Url, form_urlencoded};

use ctl::{Failure, parse_http_url};
use kernel::config::load::{Layers, load};
use kernel::telemetry::Chain;

/// `a2a-gateway init`.
#[derive(clap::Args, Debug)]
pub(super) struct Arguments {
    /// Folder of the files; made if it is missing
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// The supervisor of the gateway [default: systemd]
    #[arg(long = "for", value_name = "KIND")]
    kind: Option<Supervisor>,
    /// Address and port for callers, on this machine [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Address and port for metrics, health and the console, on this machine
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9090")]
    admin_listen: SocketAddr,
    /// Base URL that callers use; needed if they come from other machines [default: that of --listen]
    #[arg(long, value_name = "URL", value_parser = parse_http_url)]
    public_url: Option<Url>,
    /// PostgreSQL (stores.sql), for several gateways; its password is in a file [default: SQLite in ./data]
    #[arg(long, value_name = "URL", requires = "shared")]
    sql: Option<String>,
    /// Redis (stores.shared) [default: memory]
    #[arg(long, value_name = "URL", requires = "sql")]
    shared: Option<String>,
    /// Ask nothing
    #[arg(long, short)]
    yes: bool,
    /// Replace files that exist, the operator's token too
    #[arg(long)]
    force: bool,
}

/// A supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Supervisor {
    /// A compose file
    Compose,
    /// A unit for systemd
    Systemd,
}

/// Contents of the files, as they were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answers {
    kind: Supervisor,
    listen: SocketAddr,
    admin_listen: SocketAddr,
    public_url: Url,
    stores: Stores,
}

/// The two stores.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stores {
    /// SQLite and memory, for one gateway.
    Embedded,
    /// PostgreSQL and Redis.
    Servers { sql: String, shared: String },
}

pub(super) fn run(arguments: &Arguments) -> Result<String, Failure> {
    // Before any question: an answer would be in vain.
    let folder = files::create_folder(&arguments.dir)?;
    if !arguments.force {
        files::refuse_existing(&folder, arguments.kind)?;
    }
    let answers = questions::collect_answers(arguments)?;
    answers.check()?;
    files::write_files(&answers, &folder, arguments.force)
}

impl Answers {
    /// Checks them as the start of a gateway does.
    fn check(&self) -> Result<(), Failure> {
        for (flag, address) in [
            ("--listen", self.listen),
            ("--admin-listen", self.admin_listen),
        ] {
            if address.port() == 0 {
                return Err(Failure::usage(format!("{flag} needs a port that is not 0")));
            }
        }
        let mut overrides = vec![
            format!("server.listen={}", self.listen),
            format!("admin.listen={}", self.admin_listen),
            format!(
                "server.public_url={}",
                files::format_base_url(&self.public_url)
            ),
        ];
        if let Stores::Servers { sql, shared } = &self.stores {
            if has_password(sql) || has_password(shared) {
                return Err(Failure::usage(
                    "a password does not belong into the configuration: write the URL without it, and name a file with \
                     `?password_file=FILE`",
                ));
            }
            overrides.push(format!("stores.sql={sql}"));
            overrides.push(format!("stores.shared={shared}"));
        }
        let layers = Layers {
            overrides,
            ..Layers::default()
        };
        load(&layers).map(drop).map_err(|error| {
            let why = Chain(&error);
            Failure::usage(format!("no gateway can start with these answers: {why}"))
        })
    }
}

/// True if the URL of a store has a password, also one that names several hosts.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let user = rest[..end].rsplit_once('@').map(|(user, _)| user);
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let mut names = form_urlencoded::parse(query.as_bytes());
    let in_query = names.any(|(name, _)| name.to_ascii_lowercase().ends_with("password"));
    in_query || user.is_some_and(|user| user.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_seen() {
        for (url, expected) in [
            ("postgres://u:secret@h/d", true),
            ("postgres://u:secret@a:1,b:2/d", true),
            ("postgres://u@h/d?password=secret", true),
            ("redis://:secret@h", true),
            ("redis+sentinel://h/s?sentinel_password=secret", true),
            ("postgres://u@h/d?a=b&PASSWORD=secret", true),
            ("postgres://u@h/d?passw%6Frd=secret", true),
            ("postgres://u@h/d?sslpassword=secret", true),
            ("postgres://u@h:5432/d?password_file=/etc/p", false),
            ("redis://h:6379/0", false),
        ] {
            assert_eq!(has_password(url), expected, "{url}");
        }
    }
}
