//! Words and times of each form: roles, states, timestamps.

use std::borrow::Cow;

use super::table::Form;
use crate::state::TaskState;

/// The author of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    User,
    Agent,
    Unspecified,
}

impl Role {
    /// Reads the token of a value: a word of either generation, or its number.
    pub(super) fn read(said: &[u8]) -> Self {
        match said {
            b"user" | b"ROLE_USER" | b"1" => Self::User,
            b"agent" | b"ROLE_AGENT" | b"2" => Self::Agent,
            _ => Self::Unspecified,
        }
    }

    /// Returns the word as JSON. 0.3 has no third one: its SDKs say `agent`.
    pub(super) const fn as_json(self, form: Form) -> &'static str {
        match (form, self) {
            (Form::V0, Self::User) => r#""user""#,
            (Form::V0, _) => r#""agent""#,
            (_, Self::User) => r#""ROLE_USER""#,
            (_, Self::Agent) => r#""ROLE_AGENT""#,
            (_, Self::Unspecified) => r#""ROLE_UNSPECIFIED""#,
        }
    }
}

/// The states by their number, which parsers of `ProtoJSON` take, too.
const NUMBERED: [Option<TaskState>; 9] = [
    None,
    Some(TaskState::Submitted),
    Some(TaskState::Working),
    Some(TaskState::Completed),
    Some(TaskState::Failed),
    Some(TaskState::Canceled),
    Some(TaskState::InputRequired),
    Some(TaskState::Rejected),
    Some(TaskState::AuthRequired),
];

/// Reads a state: a word of either generation, or its number. `None`: unknown.
pub(super) fn parse_state(said: &[u8]) -> Option<TaskState> {
    let said = std::str::from_utf8(said).ok()?;
    match said.parse::<usize>() {
        Ok(number) => NUMBERED.get(number).copied().flatten(),
        Err(_) => TaskState::parse(said),
    }
}

/// Returns the word of a state in this form.
pub(super) const fn state_word(state: Option<TaskState>, form: Form) -> &'static str {
    match (state, form) {
        (Some(TaskState::Canceled), Form::V0Rest) => "TASK_STATE_CANCELLED",
        (Some(state), Form::V0) => state.as_str(),
        (Some(state), _) => state.as_v1_str(),
        (None, Form::V0) => "unknown",
        (None, _) => "TASK_STATE_UNSPECIFIED",
    }
}

/// Returns true if `said`, which was read as `state`, is as a form of A2A spells it, or its number.
pub(super) fn is_state_word(said: &[u8], state: Option<TaskState>) -> bool {
    let mut forms = [Form::V0, Form::V1, Form::V0Rest].into_iter();
    forms.any(|form| state_word(state, form).as_bytes() == said)
        || state.is_some() && said.iter().all(u8::is_ascii_digit)
}

/// Returns a time of 0.3 (any ISO 8601) as 1.0 requires it (RFC 3339 in UTC, with `Z` and at most nine
/// digits after the second; A2A 1.0, 5.6.1). `None`: it is none, and a parser would refuse the whole
/// body for it.
pub(super) fn to_v1_time(said: &str) -> Option<Cow<'_, str>> {
    let date = said.get(..10)?;
    let clock = said.get(11..19)?;
    if !matches!(said.as_bytes()[10], b'T' | b't' | b' ') {
        return None;
    }
    let (year, month, day) = parse_date(date)?;
    let (hour, minute, second) = parse_clock(clock)?;
    let rest = &said[19..];
    let digits = rest.strip_prefix('.').map_or(0, |fraction| {
        1 + fraction.bytes().take_while(u8::is_ascii_digit).count()
    });
    let (fraction, zone) = rest.split_at(digits);
    if fraction == "." {
        return None;
    }
    let offset = parse_offset(zone)?;
    let fraction = &fraction[..fraction.len().min(10)];
    if offset == 0 {
        let kept = fraction.len() == digits && zone == "Z" && said.as_bytes()[10] == b'T';
        return Some(if kept {
            Cow::Borrowed(said)
        } else {
            Cow::Owned(format!("{date}T{clock}{fraction}Z"))
        });
    }
    let minutes = days_since_epoch(year, month, day) * 1440 + hour * 60 + minute - offset;
    let (year, month, day) = date_of_days(minutes.div_euclid(1440));
    if !(1..=9999).contains(&year) {
        return None;
    }
    let (hour, minute) = (minutes.rem_euclid(1440) / 60, minutes.rem_euclid(60));
    Some(Cow::Owned(format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z"
    )))
}

fn parse_number(text: &str) -> Option<i64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

fn parse_date(text: &str) -> Option<(i64, i64, i64)> {
    let (year, rest) = text.split_once('-')?;
    let (month, day) = rest.split_once('-')?;
    if [year.len(), month.len(), day.len()] != [4, 2, 2] {
        return None;
    }
    let (year, month, day) = (
        parse_number(year)?,
        parse_number(month)?,
        parse_number(day)?,
    );
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    (year > 0 && (1..=last).contains(&day)).then_some((year, month, day))
}

fn parse_clock(text: &str) -> Option<(i64, i64, i64)> {
    let mut fields = text.split(':').map(|field| {
        let two = field.len() == 2;
        parse_number(field).filter(|_| two)
    });
    let (hour, minute, second) = (fields.next()??, fields.next()??, fields.next()??);
    let whole = fields.next().is_none() && hour < 24 && minute < 60 && second < 60;
    whole.then_some((hour, minute, second))
}

/// Returns the offset of a zone in minutes. A time without one is in UTC.
fn parse_offset(zone: &str) -> Option<i64> {
    if matches!(zone, "" | "Z" | "z") {
        return Some(0);
    }
    let sign = match zone.as_bytes()[0] {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = match (zone.len(), zone.get(3..4)) {
        (6, Some(":")) => (zone.get(1..3)?, zone.get(4..6)?),
        (5, _) => (zone.get(1..3)?, zone.get(3..5)?),
        (3, _) => (zone.get(1..3)?, "0"),
        _ => return None,
    };
    let (hours, minutes) = (parse_number(hours)?, parse_number(minutes)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

/// Returns the days from 1970-01-01 to a date (Howard Hinnant, "chrono-compatible low-level date
/// algorithms").
const fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The reverse of [`days_since_epoch`].
const fn date_of_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days - era * 146_097;
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + (month <= 2) as i64;
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_0_3_are_told_in_utc_or_not_at_all() {
        for (said, expected) in [
            ("2026-08-18T10:00:00Z", Some("2026-08-18T10:00:00Z")),
            (
                "2026-08-18T10:00:00.123456+00:00",
                Some("2026-08-18T10:00:00.123456Z"),
            ),
            ("2026-08-18T10:00:00-00:00", Some("2026-08-18T10:00:00Z")),
            (
                "2026-08-18T10:00:00.5+02:00",
                Some("2026-08-18T08:00:00.5Z"),
            ),
            ("2026-03-01T00:30:00+0130", Some("2026-02-28T23:00:00Z")),
            ("2024-03-01T00:30:00+01", Some("2024-02-29T23:30:00Z")),
            ("2026-12-31T23:30:00-05:30", Some("2027-01-01T05:00:00Z")),
            ("2026-08-18T10:00:00", Some("2026-08-18T10:00:00Z")),
            ("2026-08-18 10:00:00.1", Some("2026-08-18T10:00:00.1Z")),
            ("2026-08-18t10:00:00z", Some("2026-08-18T10:00:00Z")),
            (
                "2026-08-18T10:00:00.1234567891Z",
                Some("2026-08-18T10:00:00.123456789Z"),
            ),
            ("0001-01-01T00:30:00+01:00", None),
            ("9999-12-31T23:30:00-01:00", None),
            ("2026-02-29T10:00:00Z", None),
            ("2026-13-01T10:00:00Z", None),
            ("2026-08-18T24:00:00Z", None),
            ("2026-08-18T10:00:00.Z", None),
            ("2026-08-18T10:00:00+2:00", None),
            ("2026-08-18T10:00:00 UTC", None),
            ("2026-08-18", None),
            ("yesterday at noon", None),
            ("2026-08-18é10:00:00Z", None),
            ("", None),
        ] {
            assert_eq!(to_v1_time(said).as_deref(), expected, "{said}");
        }
    }

    #[test]
    fn a_date_is_the_one_of_its_day() {
        for day in (-719_162..2_932_896).step_by(97) {
            let (year, month, date) = date_of_days(day);
            assert_eq!(
                days_since_epoch(year, month, date),
                day,
                "{year}-{month}-{date}"
            );
        }
        assert_eq!(date_of_days(0), (1970, 1, 1));
        assert_eq!(date_of_days(19_782), (2024, 2, 29));
    }
}
