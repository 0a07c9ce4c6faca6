//! `a2a-gateway caps`: the caps of the configuration, and how much of each is used.

use serde_json::Value;

use super::client::{ReadFlags, format_json, query_of};
use super::failure::Failure;
use super::table::{align_columns, format_cell};

/// Subjects of one cap: the most that the gateway gives.
const SUBJECTS: &str = "500";

const EXAMPLES: &str = "\
Examples:
  a2a-gateway caps
  a2a-gateway caps --org acme
  a2a-gateway caps --cap run-messages --subject run-17 --json

Caps are settings of the gateway ([[cap]], docs/guide/budget-a-run.md). Subjects are those of the last 1,000
that were used, the greatest use first, up to 500 of each cap. Exit status: 0, 1 refused or failed, 64 wrong
arguments.";

/// `a2a-gateway caps`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Only this cap
    #[arg(long, value_name = "NAME")]
    cap: Option<String>,
    /// Only this run, context, workspace, pair (`caller>target`) or org
    #[arg(long)]
    subject: Option<String>,
    /// Only what counts in this org
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    #[command(flatten)]
    flags: ReadFlags,
}

pub(super) async fn run(arguments: &Arguments) -> Result<String, Failure> {
    let mut query = query_of(&[("cap", &arguments.cap), ("subject", &arguments.subject)]);
    query.push(("limit", SUBJECTS));
    let client = arguments.flags.gateway.build_client()?;
    let mut body = client.get("/caps", &query).await?;
    if let Some(org) = &arguments.org {
        for cap in body["caps"].as_array_mut().into_iter().flatten() {
            if let Some(subjects) = cap["subjects"].as_array_mut() {
                subjects.retain(|subject| subject["org"] == org.as_str());
            }
        }
    }
    let caps = body["caps"].take();
    if arguments.flags.json {
        return Ok(format_json(&caps));
    }
    Ok(format_table(&caps))
}

/// Returns a line for each subject, and one for a cap that none has used.
fn format_table(caps: &Value) -> String {
    let mut rows = Vec::new();
    for cap in caps.as_array().into_iter().flatten() {
        let window = cap["window_seconds"].as_u64();
        let window = window.map(|seconds| format!("{seconds}s"));
        let about = vec![
            format_cell(&cap["name"]),
            format!(
                "{} per {}",
                format_cell(&cap["count"]),
                format_cell(&cap["per"])
            ),
            format_cell(&cap["limit"]),
            window.unwrap_or_default(),
        ];
        let subjects = cap["subjects"].as_array().map_or(&[][..], Vec::as_slice);
        if subjects.is_empty() {
            let unused = ["", "", "0", "", ""].map(str::to_owned);
            rows.push([about.as_slice(), &unused].concat());
        }
        for subject in subjects {
            let is_reached = subject["reached"] == true;
            let of_subject = [
                format_cell(&subject["subject"]),
                format_cell(&subject["org"]),
                format_cell(&subject["used"]),
                if is_reached { "yes" } else { "no" }.to_owned(),
                format_cell(&subject["resets_at"]),
            ];
            rows.push([about.as_slice(), &of_subject].concat());
        }
    }
    if rows.is_empty() {
        return "no cap is set, or none fits\n".to_owned();
    }
    let titles = [
        "CAP", "COUNTS", "LIMIT", "WINDOW", "SUBJECT", "ORG", "USED", "REACHED", "RESETS",
    ];
    align_columns(&titles, &rows)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_subject_has_a_line() {
        let caps = json!([{"name": "run", "per": "run", "count": "messages", "limit": 5, "window_seconds": 60,
            "subjects": [{"org": "acme", "subject": "r-1", "used": 5, "reached": true, "resets_at": "2026"}]},
            {"name": "idle", "per": "org", "count": "bytes", "limit": 9, "subjects": []}]);
        let expected = "\
CAP   COUNTS            LIMIT  WINDOW  SUBJECT  ORG   USED  REACHED  RESETS
run   messages per run  5      60s     r-1      acme  5     yes      2026
idle  bytes per org     9      -       -        -     0     -        -
";
        assert_eq!(format_table(&caps), expected);
    }
}
