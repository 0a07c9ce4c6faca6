//! `a2a-gateway exchange tail`: exchanges of all replicas as they end, from the feed of the console.

mod feed;

use std::io;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use clap::Subcommand;
use clap_complete::engine::ArgValueCompleter;
use gateway_client::ClientError;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use self::feed::{Feed, FeedEvent};
use super::access::{AccessError, AdminAccess};
use super::table::{format_cell, mask_controls};
use super::{USAGE, block_on, complete, print, print_error, print_note};

/// First delay before the feed is opened again; each further one is twice as long.
const AGAIN: Duration = Duration::from_secs(1);

/// Longest such delay.
const AGAIN_MAX: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "\
Examples:
  a2a-gateway exchange tail
  a2a-gateway exchange tail --workspace acme-dev --refused";

const TAIL_EXAMPLES: &str = "\
Examples:
  a2a-gateway exchange tail
  a2a-gateway exchange tail --workspace acme-dev --workspace acme-pm
  a2a-gateway exchange tail --caller acme-pm --outcome not_permitted --outcome stopped
  a2a-gateway exchange tail --refused --json

It asks the admin listener, with an operator's token, and needs admin.console. Ctrl-C ends it with status 0;
it opens the feed again when that breaks off. The feed has up to 200 exchanges a second of each replica and 50
more refusals; how many more there were is told on standard error, and all of them are in the audit.
Exit status: 0 ended by Ctrl-C or by its reader, 1 refused, 64 wrong arguments.";

/// `a2a-gateway exchange tail`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show exchanges as they end, on all replicas, until Ctrl-C
    #[command(after_help = TAIL_EXAMPLES)]
    Tail(TailArguments),
}

#[derive(clap::Args, Debug)]
struct TailArguments {
    /// Only those of this workspace, as caller or target; may be given again
    #[arg(long = "workspace", value_name = "ID", add = ArgValueCompleter::new(complete::complete_workspaces))]
    workspaces: Vec<String>,
    /// Only those of this caller, as logs name it: a workspace, `operator`, `canvas:<user>`, `org:<org>`, `subtree:<id>:<org>`; may be given
    /// again
    #[arg(long = "caller", value_name = "CALLER", add = ArgValueCompleter::new(complete::complete_workspaces))]
    callers: Vec<String>,
    /// Only those for this target; may be given again
    #[arg(long = "target", value_name = "ID", add = ArgValueCompleter::new(complete::complete_workspaces))]
    targets: Vec<String>,
    /// Only those with this outcome: `answered`, `caller_left` or a reason; may be given again
    #[arg(long = "outcome", value_name = "WORD")]
    outcomes: Vec<String>,
    /// Only those that the gateway refused or broke off
    #[arg(long)]
    refused: bool,
    /// Print one line of JSON for each
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: AdminAccess,
}

/// The feed ended, or was not opened.
#[derive(Debug, thiserror::Error)]
enum TailError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("give an operator's token with --token, in A2A_GATEWAY_ADMIN_TOKEN or by a context")]
    NoCredential,
    #[error(
        "{0}; is the gateway running? --admin, A2A_GATEWAY_ADMIN_URL, a context or --config say where its admin listener (admin.listen) is"
    )]
    Nobody(ClientError),
    #[error("{0}")]
    Client(ClientError),
    #[error("{reason}: {message}")]
    Refused { reason: String, message: String },
    #[error(
        "status {0}, and not the feed of a console: --admin takes admin.listen, such as http://127.0.0.1:9090, of a gateway with admin.console"
    )]
    Elsewhere(u16),
    #[error("cannot print")]
    Output(#[from] io::Error),
}

impl TailError {
    /// True if another try may succeed.
    fn may_pass(&self) -> bool {
        match self {
            Self::Nobody(_) | Self::Client(_) => true,
            Self::Refused { reason, .. } => {
                let passing = [
                    "shutting_down",
                    "too_slow",
                    "overloaded",
                    "store_unavailable",
                    "rate_limited",
                ];
                passing.contains(&reason.as_str())
            }
            // Of a load balancer whose gateways are away.
            Self::Elsewhere(status) => *status >= 500,
            Self::Access(_) | Self::NoCredential | Self::Output(_) => false,
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let Command::Tail(arguments) = &arguments.command;
    match block_on(tail_until_signal(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has enough.
        Err(TailError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            print_error(&error);
            match error {
                TailError::Access(_) | TailError::NoCredential => ExitCode::from(USAGE),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

async fn tail_until_signal(arguments: &TailArguments) -> Result<(), TailError> {
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = tail(arguments) => ended,
        _ = interrupted.recv() => Ok(()),
        _ = terminated.recv() => Ok(()),
    }
}

/// Follows the feed, and opens it again when it breaks off.
async fn tail(arguments: &TailArguments) -> Result<(), TailError> {
    let mut wait = AGAIN;
    let mut was_open = false;
    loop {
        let (url, token) = arguments.gateway.resolve()?;
        let token = token.ok_or(TailError::NoCredential)?;
        let followed = match Feed::open(&url, &token).await {
            Ok(feed) => {
                if was_open {
                    print_note("the feed is open again; what passed meanwhile is in the audit");
                }
                (was_open, wait) = (true, AGAIN);
                print_feed(feed, arguments).await
            }
            Err(error) => Err(error),
        };
        let Err(error) = followed else {
            continue;
        };
        // A gateway that was never there is an error, one that left may come back.
        if !was_open || !error.may_pass() {
            return Err(error);
        }
        print_note(&format!("{error}; the feed is opened again in {wait:?}"));
        sleep(wait).await;
        wait = (wait * 2).min(AGAIN_MAX);
    }
}

/// Prints what fits until the feed breaks off.
async fn print_feed(mut feed: Feed, arguments: &TailArguments) -> Result<(), TailError> {
    loop {
        match feed.next().await? {
            FeedEvent::Exchanges { list, more } => {
                let mut text = String::new();
                for exchange in list
                    .iter()
                    .filter(|exchange| matches_filter(exchange, arguments))
                {
                    if arguments.json {
                        text.push_str(&exchange.to_string());
                    } else {
                        text.push_str(&format_line(exchange));
                    }
                    text.push('\n');
                }
                print(&text)?;
                if more > 0 {
                    print_note(&format!(
                        "{more} more exchanges in this second are not listed"
                    ));
                }
            }
            FeedEvent::Trouble(message) => print_note(&message),
        }
    }
}

/// True if no filter excludes the exchange.
fn matches_filter(exchange: &Value, arguments: &TailArguments) -> bool {
    let is_one_of = |list: &[String], members: &[&str]| {
        let any = |word: &String| members.iter().any(|name| exchange[name] == word.as_str());
        list.is_empty() || list.iter().any(any)
    };
    is_one_of(&arguments.workspaces, &["caller", "target"])
        && is_one_of(&arguments.callers, &["caller"])
        && is_one_of(&arguments.targets, &["target"])
        && is_one_of(&arguments.outcomes, &["outcome"])
        && (!arguments.refused || exchange["refused"] == true)
}

/// Returns an exchange in one line.
fn format_line(exchange: &Value) -> String {
    let millis = exchange["at"].as_u64().unwrap_or_default();
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(millis));
    let at = at
        .filter(|_| millis < 253_402_300_800_000)
        .unwrap_or(UNIX_EPOCH);
    let word = |name: &str| mask_controls(&format_cell(&exchange[name]));
    let stream = if exchange["stream"] == true {
        "  stream"
    } else {
        ""
    };
    format!(
        "{}  {} -> {}  {}  {} {}  {} ms{stream}  {}",
        humantime::format_rfc3339_millis(at),
        word("caller"),
        word("target"),
        word("method"),
        word("status"),
        word("outcome"),
        word("ms"),
        word("id"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_exchange_is_told_in_one_line() {
        let exchange = json!({"id": "r-1", "at": 1_764_324_000_123_u64, "caller": null, "target": "dev",
            "method": "send_message", "outcome": "unauthenticated", "refused": true, "status": 401, "ms": 2, "stream": true});
        assert_eq!(
            format_line(&exchange),
            "2025-11-28T10:00:00.123Z  - -> dev  send_message  401 unauthenticated  2 ms  stream  r-1"
        );
    }

    #[test]
    fn filters_of_one_kind_add_up_and_kinds_exclude() {
        let parsed = |typed: &[&str]| {
            let command = <TailArguments as clap::Args>::augment_args(clap::Command::new("tail"));
            let matches = command
                .no_binary_name(true)
                .try_get_matches_from(typed)
                .unwrap();
            <TailArguments as clap::FromArgMatches>::from_arg_matches(&matches).unwrap()
        };
        let exchange =
            json!({"caller": "pm", "target": "dev", "outcome": "stopped", "refused": true});
        for (typed, expected) in [
            (&[][..], true),
            (&["--workspace", "pm"], true),
            (&["--workspace", "qa", "--workspace", "dev"], true),
            (&["--workspace", "qa"], false),
            (&["--caller", "dev"], false),
            (
                &["--target", "dev", "--outcome", "stopped", "--refused"],
                true,
            ),
            (&["--outcome", "answered"], false),
        ] {
            assert_eq!(
                matches_filter(&exchange, &parsed(typed)),
                expected,
                "{typed:?}"
            );
        }
    }
}
