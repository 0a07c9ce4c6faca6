//! Parses the values of audit filters into the spelling of records. A value that no record can have is an
//! error that lists the valid ones: an empty result would be misleading.

use super::{DONE, EventType};
use a2a::method::Method;
use kernel::metrics::Outcome;
use kernel::rejection::Reason;

/// The name of operators in a filter. Records write `operator:`, which no workspace can be named.
const OPERATOR: &str = "operator";

/// Checks a value that is searched for literally.
///
/// # Errors
/// The reason why no record can have it: databases reject control characters, and an empty value is a
/// mistake.
pub fn parse_text(text: &str) -> Result<String, &'static str> {
    if text.is_empty() {
        return Err("empty: leave it out, or give it a value");
    }
    if text.chars().any(char::is_control) {
        return Err("with control characters, which no record has");
    }
    Ok(text.to_owned())
}

/// Returns the caller in the spelling of records; `operator` becomes `operator:`.
pub fn parse_caller(text: &str) -> String {
    if text == OPERATOR {
        return format!("{OPERATOR}:");
    }
    text.to_owned()
}

/// Parses an outcome. A reason may be in upper case, as in A2A.
///
/// # Errors
/// The valid outcomes.
pub fn parse_outcome(text: &str) -> Result<String, String> {
    let own = [
        DONE,
        Outcome::Answered.as_str(),
        Outcome::CallerLeft.as_str(),
    ];
    let words = own
        .into_iter()
        .chain(Reason::ALL.iter().map(|reason| reason.as_str()));
    let is_reason = |word: &str| !own.contains(&word);
    find_word(words, |word| {
        word == text || (is_reason(word) && word.to_ascii_uppercase() == text)
    })
}

/// Parses a method in the spelling of records, or its name in any A2A version.
///
/// # Errors
/// The valid methods.
pub fn parse_method(text: &str) -> Result<String, String> {
    let named = match Method::parse(text) {
        Method::Other => text,
        named => named.label(),
    };
    find_word(Method::ALL.map(Method::label).into_iter(), |word| {
        word == named
    })
}

/// Parses an event type.
///
/// # Errors
/// The valid event types.
pub fn parse_event_type(text: &str) -> Result<String, String> {
    let words = EventType::ALL.iter().map(|event| event.as_str());
    find_word(words, |word| word == text)
}

fn find_word(
    words: impl Iterator<Item = &'static str> + Clone,
    fits: impl Fn(&str) -> bool,
) -> Result<String, String> {
    let found = words.clone().find(|word| fits(word));
    found.map(str::to_owned).ok_or_else(|| {
        let words: Vec<_> = words.collect();
        format!("one of {}", words.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_what_records_have() {
        assert_eq!(parse_caller("operator"), "operator:");
        assert_eq!(parse_caller("operator:"), "operator:");
        assert_eq!(parse_caller("acme-pm"), "acme-pm");
        for (asked, found) in [
            (parse_outcome("not_permitted"), "not_permitted"),
            (parse_outcome("NOT_PERMITTED"), "not_permitted"),
            (parse_outcome("caller_left"), "caller_left"),
            (parse_outcome("done"), "done"),
            (parse_method("send_message"), "send_message"),
            (parse_method("message/send"), "send_message"),
            (
                parse_method("SendStreamingMessage"),
                "send_streaming_message",
            ),
            (parse_method("other"), "other"),
            (parse_event_type("A2A_CALL"), "A2A_CALL"),
        ] {
            assert_eq!(asked.as_deref(), Ok(found));
        }
    }

    #[test]
    fn what_no_record_has_is_told_with_what_they_have() {
        for (asked, word) in [
            (parse_outcome("bogus"), "answered"),
            (parse_outcome("ANSWERED"), "not_permitted"),
            (parse_method("message/sent"), "get_task"),
            (parse_event_type("a2a_call"), "TOKEN_REVOKED"),
        ] {
            let words = asked.unwrap_err();
            assert!(
                words.starts_with("one of ") && words.contains(word),
                "{words}"
            );
        }
    }
}
