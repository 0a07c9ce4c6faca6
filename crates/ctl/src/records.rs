//! `a2a-gateway call list`, `audit list` and `audit chain`: what passed and what was changed, from the audit of a
//! running gateway.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use clap::Subcommand;
use gateway_client::Registry;
use serde_json::Value;
use tokio::time::sleep;

use super::access::AdminAccess;
use super::client::query_of;
use super::exchange::until_signal;
use super::failure::Failure;
use super::table::{format_cell, format_json, mask_controls};
use super::{complete, print};

/// Records of one page: the most that the gateway gives.
const PAGE: usize = 500;

/// Most records of one list: a file takes more (`audit export`).
const LIMIT_MAX: u64 = 100_000;

/// Delay before `--follow` looks again.
const LOOK: Duration = Duration::from_secs(1);

/// Time within which a record is there for sure: replicas write on their own.
const LATE: Duration = Duration::from_secs(10);

/// `a2a-gateway call list`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List calls that are over, the newest last
    List(ListArguments),
}

/// Which records are listed.
#[derive(clap::Args, Debug)]
pub struct ListArguments {
    /// Only those of this workspace, as caller or target
    #[arg(long, value_name = "ID", add = complete::by_workspace())]
    workspace: Option<String>,
    /// Only those of this caller, as logs name it: a workspace, `operator`, `canvas:<user>`, `org:<org>`
    #[arg(long, add = complete::by_workspace())]
    caller: Option<String>,
    /// Only those for this target
    #[arg(long, value_name = "ID", add = complete::by_workspace())]
    target: Option<String>,
    /// Only those with this outcome: `answered`, `done`, or a reason
    #[arg(long, value_name = "WORD")]
    outcome: Option<String>,
    /// Only calls of this method, such as send_message or message/send
    #[arg(long)]
    method: Option<String>,
    /// Only those of this request
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// Only those of this run of a root, as records name it
    #[arg(long, value_name = "ID")]
    txn: Option<String>,
    /// Only those of this replica
    #[arg(long, value_name = "NAME")]
    replica: Option<String>,
    /// Only those since then: a time (RFC 3339), or how long ago, such as 1h
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<String>,
    /// Only those before then, written likewise
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<String>,
    /// At most so many, the newest
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=LIMIT_MAX))]
    limit: u64,
    /// Go on with what comes, until Ctrl-C
    #[arg(long, conflicts_with = "until")]
    follow: bool,
    /// Print JSON; with --follow one line for each
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: AdminAccess,
}

/// Runs `a2a-gateway call`.
pub async fn run_call(command: &Command) -> Result<String, Failure> {
    let Command::List(arguments) = command;
    list(arguments, &Some("A2A_CALL".to_owned())).await
}

/// Runs `a2a-gateway audit list`, of records of one type if it is given.
pub async fn run_audit_list(
    arguments: &ListArguments,
    event_type: &Option<String>,
) -> Result<String, Failure> {
    list(arguments, event_type).await
}

/// Of which request.
#[derive(clap::Args, Debug)]
pub struct ChainArguments {
    /// The id of a request: X-Request-Id of any call of the run
    #[arg(value_name = "REQUEST_ID")]
    request_id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: AdminAccess,
}

/// Runs `a2a-gateway audit chain`.
pub async fn run_audit_chain(arguments: &ChainArguments) -> Result<String, Failure> {
    let client = arguments.gateway.build_client()?;
    let query = [("request_id", &*arguments.request_id)];
    let tree = client.get("/audit/chain", &query).await?;
    Ok(match arguments.json {
        true => format_json(&tree),
        false => format_tree(&tree),
    })
}

/// Returns a tree of calls, two columns to the right for each level.
fn format_tree(tree: &Value) -> String {
    fn write_calls(calls: &Value, level: usize, to: &mut String) {
        for call in calls.as_array().into_iter().flatten() {
            to.push_str(&"  ".repeat(level));
            if call["tampered"] == true {
                let word = |name: &str| mask_controls(&format_cell(&call[name]));
                to.push_str(&format!("TAMPERED {} {}: ", word("replica"), word("seq")));
            }
            to.push_str(&format_line(call, true));
            write_calls(&call["calls"], level + 1, to);
        }
    }
    let word = |name: &str| mask_controls(&format_cell(&tree[name]));
    let mut text = match tree["txn"].is_null() {
        true => "the call is on no chain\n".to_owned(),
        false => format!("for {}, run {}\n", word("root"), word("txn")),
    };
    write_calls(&tree["calls"], 0, &mut text);
    if tree["truncated"] == true {
        text.push_str("the run has older calls, too\n");
    }
    text
}

async fn list(arguments: &ListArguments, event_type: &Option<String>) -> Result<String, Failure> {
    let client = arguments.gateway.build_client()?;
    let is_of_calls = event_type.as_deref() == Some("A2A_CALL");
    let mut query = query_of(&[
        ("workspace", &arguments.workspace),
        ("caller", &arguments.caller),
        ("target", &arguments.target),
        ("outcome", &arguments.outcome),
        ("method", &arguments.method),
        ("request_id", &arguments.request_id),
        ("txn", &arguments.txn),
        ("replica", &arguments.replica),
        ("until", &arguments.until),
        ("event_type", event_type),
    ]);
    let since = query_of(&[("since", &arguments.since)]);
    let limit = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
    let started = SystemTime::now();
    let records = fetch(&client, &[&query[..], &since].concat(), limit).await?;
    if !arguments.follow {
        return Ok(match (arguments.json, records.is_empty()) {
            (true, _) => format_json(&records.into()),
            (false, true) => "no record fits\n".to_owned(),
            (false, false) => records
                .iter()
                .map(|one| format_line(one, is_of_calls))
                .collect(),
        });
    }
    query.retain(|(name, _)| *name != "until");
    let follow = follow(&client, &query, (records, started), |one| {
        match arguments.json {
            true => format!("{one}\n"),
            false => format_line(one, is_of_calls),
        }
    });
    until_signal(follow).await
}

/// Prints records, then those that come, each once.
async fn follow(
    client: &Registry,
    query: &[(&str, &str)],
    (mut records, mut looked): (Vec<Value>, SystemTime),
    format: impl Fn(&Value) -> String,
) -> Result<String, Failure> {
    let key = |one: &Value| format!("{}/{}", one["replica"], one["seq"]);
    let mut printed = HashSet::new();
    loop {
        let fresh = records.iter().filter(|one| !printed.contains(&key(one)));
        print(&fresh.map(&format).collect::<String>())?;
        // What the next look can find again.
        printed = records.iter().map(key).collect();
        sleep(LOOK).await;
        let since = humantime::format_rfc3339_millis(looked - LATE).to_string();
        looked = SystemTime::now();
        let query = [query, &[("since", &since)]].concat();
        records = fetch(
            client,
            &query,
            usize::try_from(LIMIT_MAX).unwrap_or(usize::MAX),
        )
        .await?;
    }
}

/// Returns the newest records that fit, the newest last.
async fn fetch(
    client: &Registry,
    query: &[(&str, &str)],
    limit: usize,
) -> Result<Vec<Value>, Failure> {
    let mut records = Vec::new();
    let mut cursor: Option<String> = None;
    while records.len() < limit {
        let size = (limit - records.len()).min(PAGE).to_string();
        let mut query = [query, &[("limit", &size)]].concat();
        query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let mut page = client.get("/audit", &query).await?;
        if let Value::Array(list) = page["records"].take() {
            records.extend(list);
        }
        match page["next_cursor"].as_str() {
            Some(next) if cursor.as_deref() != Some(next) => cursor = Some(next.to_owned()),
            _ => break,
        }
    }
    records.reverse();
    Ok(records)
}

/// Returns a time in RFC 3339 for one, or for a span before now.
fn parse_time(text: &str) -> Result<String, &'static str> {
    if humantime::parse_rfc3339(text).is_ok() {
        return Ok(text.to_owned());
    }
    let span = humantime::parse_duration(text).ok();
    let time = span.and_then(|span| SystemTime::now().checked_sub(span));
    time.filter(|time| *time >= SystemTime::UNIX_EPOCH)
        .map(|time| humantime::format_rfc3339_millis(time).to_string())
        .ok_or("write a time such as 2026-11-21T10:00:00Z, or how long ago, such as 90m, 12h or 7d")
}

/// Returns a record in one line: of calls method, status and time, of others their type.
fn format_line(record: &Value, is_of_calls: bool) -> String {
    let word = |name: &str| mask_controls(&format_cell(&record[name]));
    // To the second.
    let time = word("time");
    let time = time.split_once('.').map_or(time.as_str(), |(time, _)| time);
    let ends = format!("{} -> {}", word("caller"), word("target"));
    let (outcome, id) = (word("outcome"), word("request_id"));
    match is_of_calls {
        true => format!(
            "{time}  {ends}  {}  {} {outcome}  {} ms  {id}\n",
            word("method"),
            word("status"),
            word("duration_ms")
        ),
        false => format!("{time}  {}  {ends}  {outcome}  {id}\n", word("event_type")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tree_is_drawn_and_names_what_was_tampered_with() {
        let call = |target: &str, tampered: bool, calls: Value| {
            json!({"time": "2026-11-22T23:26:08.784Z", "caller": "pm", "target": target, "method": "send_message",
                "status": 200, "outcome": "answered", "duration_ms": 6, "request_id": "r-1", "replica": "gw-1", "seq": 7,
                "tampered": tampered, "calls": calls})
        };
        let inner = call("qa", true, json!([]));
        let tree = json!({"root": "canvas:ada", "txn": "q7", "calls": [call("dev", false, json!([inner]))], "truncated": true});
        let line = |target: &str| {
            format!("2026-11-22T23:26:08  pm -> {target}  send_message  200 answered  6 ms  r-1\n")
        };
        assert_eq!(
            format_tree(&tree),
            format!(
                "for canvas:ada, run q7\n{}  TAMPERED gw-1 7: {}the run has older calls, too\n",
                line("dev"),
                line("qa")
            )
        );
    }

    #[test]
    fn a_record_is_one_line_and_a_time_is_one_or_a_span() {
        let record = json!({"time": "2026-11-22T23:26:08.784Z", "event_type": "A2A_CALL", "caller": "pm", "target": "dev",
            "method": "send_message", "status": 200, "outcome": "answered", "duration_ms": 6, "request_id": "r-1"});
        assert_eq!(
            format_line(&record, true),
            "2026-11-22T23:26:08  pm -> dev  send_message  200 answered  6 ms  r-1\n"
        );
        assert_eq!(
            format_line(&record, false),
            "2026-11-22T23:26:08  A2A_CALL  pm -> dev  answered  r-1\n"
        );
        assert_eq!(
            parse_time("2026-11-22T23:26:08Z").unwrap(),
            "2026-11-22T23:26:08Z"
        );
        assert!(parse_time("1h").unwrap().ends_with('Z'));
        for wrong in ["yesterday", "", "99999999y"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
