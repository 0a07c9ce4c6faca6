//! `a2a-gateway usage`: calls, streams, bytes and time of workspaces and orgs, by day.

use std::time::{Duration, SystemTime};

use gateway_client::{Registry, Request};
use http::Method;
use serde_json::Value;

use super::access::OperatorAccess;
use super::client::query_of;
use super::failure::{Failure, OrFail as _};
use super::table::{Table, format_cells, format_json};
use super::{complete, print, print_note};

const PATH: &str = "/usage";

/// The file broke off.
const BROKEN: &str = "the file is not whole, ask again";

/// Columns of sums.
const SUMS: &str = "CALLS=calls STREAMS=streams REFUSED=refused FAILED=failed AGENT-FAILED=agent_failed \
    IN=bytes_in OUT=bytes_out SECONDS=seconds";

/// Timeout of a file.
const FILE_WITHIN: Duration = Duration::from_secs(600);

/// Longest line of CSV, in bytes.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// `a2a-gateway usage`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// First day [default: the first of the month of --to]
    #[arg(long, value_name = "DAY")]
    from: Option<String>,
    /// Last day [default: today]
    #[arg(long, value_name = "DAY")]
    to: Option<String>,
    /// A line for each workspace or each org
    #[arg(long, default_value = "workspace", value_parser = ["workspace", "org"])]
    by: String,
    /// A line for each day, or one for all days
    #[arg(long, default_value = "day", value_parser = ["day", "total"])]
    per: String,
    /// Calls that the workspaces made, or that were made to them
    #[arg(long, default_value = "caller", value_parser = ["caller", "target"])]
    side: String,
    /// Only of this org; '' stands for none
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Only of this workspace
    #[arg(long, value_name = "ID", add = complete::by_workspace())]
    workspace: Option<String>,
    /// Print CSV
    #[arg(long)]
    csv: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// Runs `a2a-gateway usage`.
pub async fn run(arguments: &Arguments) -> Result<String, Failure> {
    let client = arguments.gateway.build_client()?;
    let mut query = query_of(&[
        ("from", &arguments.from),
        ("to", &arguments.to),
        ("org", &arguments.org),
        ("workspace", &arguments.workspace),
    ]);
    query.extend([
        ("by", arguments.by.as_str()),
        ("per", arguments.per.as_str()),
        ("side", arguments.side.as_str()),
    ]);
    if arguments.csv {
        return pass_file(&client, PATH, &query).await;
    }
    let (mut usage, next, _) = client.get_list_page(PATH, &query, None).await?;
    if next.is_some() {
        let list = client.get_whole_list(PATH, &query, Some("usage")).await?;
        usage["usage"] = list.into();
        usage["next_cursor"] = Value::Null;
    }
    if usage["recording"] == false {
        print_note("the audit is switched off (audit.enabled), so nothing is counted");
    }
    if arguments.json {
        return Ok(format_json(&usage));
    }
    Ok(format_table(&usage))
}

/// Passes the gateway's CSV on to standard output as it comes.
pub(crate) async fn pass_file(
    client: &Registry,
    path: &str,
    query: &[(&str, &str)],
) -> Result<String, Failure> {
    let query = [query, &[("format", "csv")]].concat();
    let request = Request {
        accept: "text/csv",
        within: FILE_WITHIN,
        ..client.request(Method::GET, path, &query)
    };
    let mut answer = request.send_checked().await?;
    let mut rest = Vec::new();
    while let Some(piece) = answer.next_chunk().await.or_fail(BROKEN)? {
        rest.extend_from_slice(&piece);
        // Whole lines, so that no character is cut.
        let end = rest.iter().rposition(|byte| *byte == b'\n');
        let lines: Vec<u8> = rest.drain(..end.map_or(0, |at| at + 1)).collect();
        print(&String::from_utf8_lossy(&lines))?;
        if rest.len() > LINE_BYTES_MAX {
            let complaint = format!("a line of the file has more than {LINE_BYTES_MAX} bytes");
            return Err(Failure::new(complaint));
        }
    }
    Ok(String::from_utf8_lossy(&rest).into_owned())
}

/// Returns a line for each sum, and one for all of them.
fn format_table(usage: &Value) -> String {
    let lines = usage["usage"].as_array().map_or(&[][..], Vec::as_slice);
    if lines.is_empty() {
        let [from, to] = format_cells(usage, ["from", "to"]);
        return format!("no call from {from} to {to} fits\n");
    }
    let (day, first) = match usage["per"] == "day" {
        true => ("DAY=day ", "day"),
        false => ("", "org"),
    };
    let workspace = match usage["by"] == "workspace" {
        true => " WORKSPACE=workspace",
        false => "",
    };
    let mut total = usage["total"].clone();
    total[first] = "TOTAL".into();
    let table = Table {
        columns: &format!("{day}ORG=org{workspace} {SUMS}"),
        made: &[
            ("bytes_in", |line| format_bytes(&line["bytes_in"])),
            ("bytes_out", |line| format_bytes(&line["bytes_out"])),
            ("seconds", |line| format_seconds(&line["seconds"])),
        ],
        none: "",
    };
    table.format_list(&[lines, &[total]].concat(), SystemTime::now())
}

fn format_seconds(seconds: &Value) -> String {
    format!("{:.1}", seconds.as_f64().unwrap_or_default())
}

/// Returns a number of bytes in four figures at most.
fn format_bytes(bytes: &Value) -> String {
    let bytes = bytes.as_u64().unwrap_or_default();
    if bytes < 1024 {
        return bytes.to_string();
    }
    let units = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut tenths = u128::from(bytes) * 10 / 1024;
    let mut unit = 0;
    while tenths >= 10_240 && unit + 1 < units.len() {
        tenths /= 1024;
        unit += 1;
    }
    let unit = units.get(unit).copied().unwrap_or_default();
    match tenths {
        small @ 0..1000 => format!("{}.{}{unit}", small / 10, small % 10),
        large => format!("{}{unit}", large / 10),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(names: &Value, calls: u64) -> Value {
        let mut line = json!({"calls": calls, "streams": 1, "refused": 2, "failed": 0, "bytes_in": 18211,
            "bytes_out": 90, "seconds": 61.25, "agent_failed": 3});
        for (name, value) in names.as_object().into_iter().flatten() {
            line[name] = value.clone();
        }
        line
    }

    #[test]
    fn each_sum_has_a_line_and_all_have_one() {
        let usage = json!({"per": "day", "by": "workspace", "usage": [
            line(&json!({"day": "2026-11-28", "org": "acme", "workspace": "acme-pm"}), 42),
            line(&json!({"day": "2026-11-28", "org": null, "workspace": "operator:"}), 1),
        ], "total": line(&json!({}), 43)});
        let expected = "\
DAY         ORG   WORKSPACE  CALLS  STREAMS  REFUSED  FAILED  AGENT-FAILED  IN      OUT  SECONDS
2026-11-28  acme  acme-pm    42     1        2        0       3             17.7Ki  90   61.2
2026-11-28  -     operator:  1      1        2        0       3             17.7Ki  90   61.2
TOTAL       -     -          43     1        2        0       3             17.7Ki  90   61.2
";
        assert_eq!(format_table(&usage), expected);
        let usage = json!({"per": "total", "by": "org", "usage": [line(&json!({"org": "acme"}), 42)],
            "total": line(&json!({}), 42)});
        let rows = format_table(&usage);
        assert!(rows.starts_with("ORG    CALLS"), "{rows}");
        assert!(rows.contains("\nTOTAL  42"), "{rows}");
        let none = json!({"usage": [], "from": "2026-11-01", "to": "2026-11-28"});
        assert_eq!(
            format_table(&none),
            "no call from 2026-11-01 to 2026-11-28 fits\n"
        );
    }

    #[test]
    fn bytes_are_told_in_few_figures() {
        for (bytes, told) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0Ki"),
            (102_399, "99.9Ki"),
            (102_400, "100Ki"),
            (1_048_575, "1023Ki"),
            (1_048_576, "1.0Mi"),
            (u64::MAX, "15.9Ei"),
        ] {
            assert_eq!(format_bytes(&json!(bytes)), told);
        }
    }
}
