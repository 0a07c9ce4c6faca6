//! Words and times of each form: roles, states, timestamps.

use std::borrow::Cow;

use time::{Date, Duration, Month, PrimitiveDateTime, Time};

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

/// Reads a state: a word of either generation, or its number. `None`: unknown.
pub(super) fn parse_state(said: &[u8]) -> Option<TaskState> {
    let said = std::str::from_utf8(said).ok()?;
    let Ok(number) = said.parse::<usize>() else {
        return TaskState::parse(said);
    };
    // The order of the enum in the proto, whose numbers parsers of `ProtoJSON` take, too.
    [
        TaskState::Submitted,
        TaskState::Working,
        TaskState::Completed,
        TaskState::Failed,
        TaskState::Canceled,
        TaskState::InputRequired,
        TaskState::Rejected,
        TaskState::AuthRequired,
    ]
    .get(number.checked_sub(1)?)
    .copied()
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
    let (date, clock) = (said.get(..10)?, said.get(11..19)?);
    if !matches!(said.as_bytes()[10], b'T' | b't' | b' ') {
        return None;
    }
    let [year, month, day] = parse_numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = parse_numbers(clock, ':', [2, 2, 2])?;
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let day = Date::from_calendar_date(i32::from(year), month, u8::try_from(day).ok()?).ok()?;
    let [hour, minute, second] = [hour, minute, second].map(u8::try_from);
    let time = Time::from_hms(hour.ok()?, minute.ok()?, second.ok()?).ok()?;
    let rest = &said[19..];
    let digits = rest.strip_prefix('.').map_or(0, |fraction| {
        1 + fraction.bytes().take_while(u8::is_ascii_digit).count()
    });
    let (fraction, zone) = rest.split_at(digits);
    if fraction == "." || year == 0 {
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
    let in_zone = PrimitiveDateTime::new(day, time);
    let utc = in_zone.checked_sub(Duration::minutes(offset))?;
    if !(1..=9999).contains(&utc.year()) {
        return None;
    }
    let (year, month, day) = utc.to_calendar_date();
    let (hour, minute, second) = utc.as_hms();
    Some(Cow::Owned(format!(
        "{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z",
        u8::from(month)
    )))
}

/// Parses numbers of so many digits between separators.
fn parse_numbers<const N: usize>(
    text: &str,
    separator: char,
    digits: [usize; N],
) -> Option<[u16; N]> {
    let mut fields = text.split(separator);
    let mut numbers = [0; N];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let field = fields.next().filter(|field| field.len() == digits)?;
        *number = parse_number(field)?;
    }
    fields.next().is_none().then_some(numbers)
}

fn parse_number(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
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
    let minutes = match (zone.len(), zone.get(3..4)) {
        (6, Some(":")) => zone.get(4..6)?,
        (5, _) => zone.get(3..5)?,
        (3, _) => "0",
        _ => return None,
    };
    let (hours, minutes) = (parse_number(zone.get(1..3)?)?, parse_number(minutes)?);
    (hours < 24 && minutes < 60).then_some(sign * i64::from(hours * 60 + minutes))
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
            ("1970-01-01T00:00:00+00:01", Some("1969-12-31T23:59:00Z")),
            ("2024-02-29T00:00:00-01:00", Some("2024-02-29T01:00:00Z")),
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
}
