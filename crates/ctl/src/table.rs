//! Plain tables for terminals: columns side by side, one line for each row, and times as ages.

use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::terminal::is_control;

/// Stands for a value that there is not.
const NONE: &str = "-";

/// Makes the text of a cell from its entry.
type MakeCell = fn(&Value) -> String;

/// A table of a list.
#[derive(Clone, Copy, Default)]
pub struct Table<'a> {
    /// A word for each column: its title, `=`, and the member of an entry below it; with `:age`, how long ago that was.
    pub columns: &'a str,
    /// What is made of an entry, in the place of a member.
    pub made: &'a [(&'a str, MakeCell)],
    /// The line for a list without an entry.
    pub none: &'a str,
}

impl Table<'_> {
    /// Returns a list as JSON, or as text.
    pub fn show(&self, list: Vec<Value>, json: bool) -> String {
        match list.is_empty() {
            _ if json => format_json(&list.into()),
            true => format!("{}\n", self.none),
            false => self.format_list(&list, SystemTime::now()),
        }
    }

    /// Returns a list as text.
    pub(crate) fn format_list(&self, list: &[Value], now: SystemTime) -> String {
        let columns = self.columns.split(' ');
        let columns: Vec<_> = columns
            .filter_map(|column| column.split_once('='))
            .collect();
        let fill_cell = |entry: &Value, member: &str| {
            if let Some((_, make)) = self.made.iter().find(|(name, _)| *name == member) {
                return make(entry);
            }
            match member.strip_suffix(":age") {
                Some(time) => format_age(&entry[time], now),
                None => format_cell(&entry[member]),
            }
        };
        let titles = columns.iter().map(|(title, _)| title.replace('_', " "));
        let titles = std::iter::once(titles.collect());
        let rows = list.iter().map(|entry| {
            let cells = columns.iter().map(|(_, member)| fill_cell(entry, member));
            cells.collect()
        });
        align_rows(&titles.chain(rows).collect::<Vec<_>>())
    }
}

/// Returns a document as `--json` prints it.
pub(crate) fn format_json(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Returns rows in columns. The last column is not padded.
pub(crate) fn align_rows<'a>(rows: impl IntoIterator<Item = &'a Vec<String>>) -> String {
    let mask_row = |row: &Vec<String>| row.iter().map(|cell| mask_controls(cell)).collect();
    let rows: Vec<Vec<String>> = rows.into_iter().map(mask_row).collect();
    let mut widths = Vec::new();
    for row in &rows {
        widths.resize(row.len().max(widths.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(cell, &width)| format!("{cell:width$}"))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Returns the text of a cell: control characters, which could steer a terminal, as `?`; nothing as `-`.
pub(crate) fn mask_controls(text: &str) -> String {
    if text.is_empty() {
        return NONE.to_owned();
    }
    text.chars()
        .map(|c| if is_control(c) { '?' } else { c })
        .collect()
}

/// Returns the texts of some members of an entry.
pub(crate) fn format_cells<const N: usize>(entry: &Value, names: [&str; N]) -> [String; N] {
    names.map(|name| format_cell(&entry[name]))
}

/// Returns the text of a member: strings as they are, other values as JSON, null as nothing.
pub(crate) fn format_cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the state of a workspace's health; that of a gateway of an earlier release has none.
pub(crate) fn format_state(workspace: &Value) -> String {
    format_cell(&workspace["health"]["state"])
}

/// Returns how long ago a time in RFC 3339 was, such as `12s`, `3m`, `5h`, `9d`; nothing for null.
pub(crate) fn format_age(value: &Value, now: SystemTime) -> String {
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
        let titles = row(["ID", "NAME", "LAST"]);
        let rows = [
            titles,
            row(["a", "Ä\u{1b}[2J", "x"]),
            row(["longer", "", ""]),
        ];
        let expected = "ID      NAME   LAST\na       Ä?[2J  x\nlonger  -      -\n";
        assert_eq!(align_rows(&rows), expected);
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
