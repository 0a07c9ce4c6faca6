//! `a2a-gateway exchange tail`: exchanges of all replicas as they end, from the feed of the console.

mod feed;

use std::time::{Duration, UNIX_EPOCH};

use clap::Subcommand;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use self::feed::{Feed, FeedEvent, TailError};
use super::access::AdminAccess;
use super::failure::Failure;
use super::table::{format_cell, mask_controls};
use super::{complete, print, print_note};

/// First delay before the feed is opened again; each further one is twice as long.
const AGAIN: Duration = Duration::from_secs(1);

/// Longest such delay.
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// `a2a-gateway exchange tail`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show exchanges as they end, on all replicas, until Ctrl-C
    Tail(TailArguments),
}

/// `a2a-gateway exchange tail`.
#[derive(clap::Args, Debug)]
pub struct TailArguments {
    /// Only those of this workspace, as caller or target; may be given again
    #[arg(long = "workspace", value_name = "ID", add = complete::by_workspace())]
    workspaces: Vec<String>,
    /// Only those of this caller, as logs name it: a workspace, `operator`, `canvas:<user>`, `org:<org>`,
    /// `subtree:<id>:<org>`; may be given again
    #[arg(long = "caller", value_name = "CALLER", add = complete::by_workspace())]
    callers: Vec<String>,
    /// Only those for this target; may be given again
    #[arg(long = "target", value_name = "ID", add = complete::by_workspace())]
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

/// Runs `a2a-gateway exchange`.
pub async fn run(command: &Command) -> Result<String, Failure> {
    let Command::Tail(arguments) = command;
    until_signal(tail(arguments)).await
}

/// Runs what has no end of its own until Ctrl-C, which is its good end.
pub(crate) async fn until_signal(
    work: impl Future<Output = Result<String, Failure>>,
) -> Result<String, Failure> {
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = work => ended,
        _ = interrupted.recv() => Ok(String::new()),
        _ = terminated.recv() => Ok(String::new()),
    }
}

/// Follows the feed, and opens it again when it breaks off.
async fn tail(arguments: &TailArguments) -> Result<String, Failure> {
    let mut wait = AGAIN;
    let mut was_open = false;
    loop {
        let client = arguments.gateway.build_client()?;
        if client.token.is_none() {
            return Err(Failure::usage(
                "give an operator's token with --token, in A2A_GATEWAY_ADMIN_TOKEN or by a context (`a2a-gateway login`)",
            ));
        }
        let error = match Feed::open(&client).await {
            Ok(feed) => {
                if was_open {
                    print_note("the feed is open again; what passed meanwhile is in the audit");
                }
                (was_open, wait) = (true, AGAIN);
                print_feed(feed, arguments).await
            }
            Err(error) => error,
        };
        // A gateway that was never there is an error, one that left may come back.
        if !was_open || !error.may_pass {
            return Err(error.failure);
        }
        let failure = error.failure;
        print_note(&format!("{failure}; the feed is opened again in {wait:?}"));
        sleep(wait).await;
        wait = (wait * 2).min(AGAIN_MAX);
    }
}

/// Prints what fits until the feed breaks off, and returns why.
async fn print_feed(mut feed: Feed, arguments: &TailArguments) -> TailError {
    loop {
        let (list, more) = match feed.next().await {
            Ok(FeedEvent::Exchanges { list, more }) => (list, more),
            Ok(FeedEvent::Trouble(message)) => {
                print_note(&message);
                continue;
            }
            Err(error) => return error,
        };
        let fitting = list.iter().filter(|one| matches_filter(one, arguments));
        let lines = fitting.map(|exchange| match arguments.json {
            true => format!("{exchange}\n"),
            false => format_line(exchange) + "\n",
        });
        let text: String = lines.collect();
        if let Err(error) = print(&text) {
            return TailError {
                failure: error.into(),
                may_pass: false,
            };
        }
        if more > 0 {
            print_note(&format!(
                "{more} more exchanges in this second are not listed"
            ));
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
    // RFC 3339 cannot express the year 10000.
    let millis = Some(millis).filter(|millis| *millis < 253_402_300_800_000);
    let at = UNIX_EPOCH + Duration::from_millis(millis.unwrap_or_default());
    let word = |name: &str| mask_controls(&format_cell(&exchange[name]));
    let stream = match exchange["stream"] == true {
        true => "  stream",
        false => "",
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
