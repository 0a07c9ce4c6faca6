//! `a2a-gateway caps`: the caps of the configuration, and how much of each is used.

use serde_json::{Value, json};

use super::client::{ReadFlags, query_of};
use super::failure::Failure;
use super::table::{Table, format_cells, format_json};

const COLUMNS: Table<'_> = Table {
    columns: "CAP=name COUNTS=counts LIMIT=limit WINDOW=window SUBJECT=subject ORG=org USED=used REACHED=reached RESETS=resets_at",
    made: &[],
    none: "no cap is set, or none fits",
};

/// Subjects of one cap: the most that the gateway gives.
const SUBJECTS: &str = "500";

/// `a2a-gateway caps`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
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

/// Runs `a2a-gateway caps`.
pub async fn run(arguments: &Arguments) -> Result<String, Failure> {
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
    let (mut rows, unused) = (Vec::new(), vec![json!({"used": 0})]);
    for cap in caps.as_array().into_iter().flatten() {
        let subjects = cap["subjects"].as_array().filter(|list| !list.is_empty());
        for subject in subjects.unwrap_or(&unused) {
            let window = cap["window_seconds"].as_u64();
            let reached = subject["reached"].as_bool();
            let [count, per] = format_cells(cap, ["count", "per"]);
            rows.push(json!({
                "name": cap["name"],
                "counts": format!("{count} per {per}"),
                "limit": cap["limit"],
                "window": window.map(|seconds| format!("{seconds}s")),
                "subject": subject["subject"],
                "org": subject["org"],
                "used": subject["used"],
                "reached": reached.map(|reached| if reached { "yes" } else { "no" }),
                "resets_at": subject["resets_at"],
            }));
        }
    }
    COLUMNS.show(rows, false)
}

#[cfg(test)]
mod tests {
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
