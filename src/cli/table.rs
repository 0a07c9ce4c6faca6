//! Plain tables for terminals: columns side by side, one line for each row, and times as ages.

use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::terminal::is_control;

/// Stands for a value that there is not.
const NONE: &str = "-";

/// Returns rows under their titles, in columns. The last column is not padded.
pub(super) fn align_columns(titles: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = titles.iter().map(|title| title.chars().count()).collect();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| mask_controls(cell)).collect())
        .collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let titles = titles.iter().map(|title| (*title).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&titles).chain(&rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            if !line.is_empty() {
                line.push_str("  ");
            }
            line.push_str(cell);
            let missing = width.saturating_sub(cell.chars().count());
            line.extend(std::iter::repeat_n(' ', missing));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Returns the text of a cell: control characters, which could steer a terminal, as `?`; nothing as `-`.
pub(super) fn mask_controls(text: &str) -> String {
    if text.is_empty() {
        return NONE.to_owned();
    }
    text.chars()
        .map(|c| if is_control(c) { '?' } else { c })
        .collect()
}

/// Returns the text of a member: strings as they are, other values as JSON, null as nothing.
pub(super) fn format_cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns how long ago a time in RFC 3339 was, such as `12s`, `3m`, `5h`, `9d`; nothing for null.
pub(super) fn format_age(value: &Value, now: SystemTime) -> String {
    let Some(at) = value
        .as_str()
        .and_then(|text| humantime::parse_rfc3339(text).ok())
    else {
        return format_cell(value);
    };
    // A clock that is behind the gateway's.
    format_duration(now.duration_since(at).unwrap_or_default())
}

fn format_duration(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_stand_side_by_side_and_steer_no_terminal() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["a", "Ä\u{1b}[2J", "x"]), row(["longer", "", ""])];
        let expected = "ID      NAME   LAST\na       Ä?[2J  x\nlonger  -      -\n";
        assert_eq!(align_columns(&["ID", "NAME", "LAST"], &rows), expected);
    }

    #[test]
    fn times_are_told_as_ages() {
        let at = humantime::parse_rfc3339("2026-11-28T10:00:00.000Z").unwrap();
        let told = |seconds| {
            let at = at + Duration::from_secs(seconds);
            format_age(&json!("2026-11-28T10:00:00.000Z"), at)
        };
        for (seconds, expected) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7_200, "2h"),
            (172_800, "2d"),
        ] {
            assert_eq!(told(seconds), expected);
        }
        assert_eq!(format_age(&Value::Null, at), "");
        assert_eq!(format_age(&json!("2027-01-01T00:00:00Z"), at), "0s");
    }
}
