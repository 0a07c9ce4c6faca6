//! Report of a verification, for people.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use super::Report;

/// A file of signed chain heads that the chains were checked against.
pub struct AnchorUse {
    /// The file.
    pub path: PathBuf,
    /// Heads that had to be in the chains.
    pub checked: u64,
    /// Heads that were skipped: older than `audit.retention`, or of a chain without a record.
    pub old: u64,
}

/// Returns the report as text for a terminal. `took`: the time of the verification.
pub fn format_report(report: &Report, anchors: &[AnchorUse], took: Duration) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for problem in &report.problems {
        let (replica, what) = (escape_text(&problem.replica), escape_text(&problem.what));
        let _ = match problem.seq {
            Some(seq) => writeln!(text, "{replica}: record {seq} {what}"),
            None => writeln!(text, "{replica}: {what}"),
        };
    }
    for anchor in anchors {
        let path = escape_text(&anchor.path.display().to_string());
        let checked = format_count(anchor.checked, "signed end");
        let _ = write!(text, "{checked} of the anchor {path} checked");
        if anchor.old > 0 {
            let _ = write!(
                text,
                ", {} older than audit.retention passed over",
                anchor.old
            );
        }
        text.push('\n');
    }
    if report.outside > 0 {
        let rows = format_count(report.outside, "row");
        let _ = writeln!(
            text,
            "{rows} before the signed beginning of their chain: retention removes them, and they prove nothing"
        );
    }
    let _ = write!(
        text,
        "{} in {}, {}",
        format_count(report.records, "record"),
        format_count(report.chains as u64, "chain"),
        format_count(report.checkpoints, "signed checkpoint"),
    );
    if report.unknown > 0 {
        let unknown = format_count(report.unknown, "more");
        let _ = write!(text, " and {unknown} by keys that are not known here");
    }
    let _ = writeln!(
        text,
        ", read in {:.1} s: {}",
        took.as_secs_f64(),
        format_verdict(report)
    );
    text
}

fn format_verdict(report: &Report) -> String {
    let (without_key, wrong): (Vec<_>, Vec<_>) = report
        .problems
        .iter()
        .partition(|problem| problem.key_missing);
    if !wrong.is_empty() {
        format!(
            "{} not as written",
            format_count(wrong.len() as u64, "chain")
        )
    } else if !without_key.is_empty() {
        let chains = format_count(without_key.len() as u64, "chain");
        format!("{chains} not proven, for want of the keys of their time")
    } else if report.records == 0 {
        "there is no record, so nothing is proven; is it the right place, and is audit.enabled on?"
            .to_owned()
    } else if report.unproven_chains == report.chains as u64 {
        "no record in it is before a signed checkpoint, so nothing is proven".to_owned()
    } else if report.unproven_chains > 0 {
        let chains = format_count(report.unproven_chains, "chain");
        format!("{chains} with no record before a signed checkpoint, so nothing of that is proven")
    } else if report.unproven > 0 {
        let last = format_count(report.unproven, "record");
        format!("all as they were written, but for the last {last}, behind which nothing is signed")
    } else {
        "all as they were written".to_owned()
    }
}

/// Escapes the text of records for a terminal: it may come from any caller, so control characters are written
/// out.
fn escape_text(text: &str) -> String {
    let written = |c: char| match c {
        '"' | '\'' | '\\' => c.to_string(),
        _ => c.escape_debug().to_string(),
    };
    text.chars().map(written).collect()
}

fn format_count(count: u64, what: &str) -> String {
    let ending = if count == 1 || what == "more" {
        ""
    } else {
        "s"
    };
    format!("{count} {what}{ending}")
}
