//! Checks cards and labels of registrations and creations.

use serde_json::value::RawValue;

use crate::rejections::invalid;
use kernel::rejection::Rejection;

/// Longest agent card, in bytes.
pub const AGENT_CARD_BYTES_MAX: usize = 256 * 1024;
/// Longest name, role and org, in characters.
const LABEL_CHARS_MAX: usize = 256;

/// Checks an agent card: an object within the limit.
pub(super) fn check_card(card: &RawValue) -> Result<(), Rejection> {
    if !card.get().starts_with('{') {
        return Err(invalid("agent_card must be a JSON object"));
    }
    if card.get().len() > AGENT_CARD_BYTES_MAX {
        return Err(invalid("agent_card is longer than 256 KiB"));
    }
    Ok(())
}

/// Checks a label: not empty, within the limit, without invisible characters.
pub(super) fn check_label(name: &'static str, text: &str) -> Result<(), Rejection> {
    let bad = text.trim().is_empty()
        || text.chars().count() > LABEL_CHARS_MAX
        || text.chars().any(char::is_control);
    if bad {
        return Err(invalid(format!(
            "{name} must have 1 to {LABEL_CHARS_MAX} characters, none of them a control character"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn a_card_is_an_object_of_at_most_256_kib() {
        let of_length = |bytes: usize| card(&format!("{{\"a\":\"{}\"}}", "x".repeat(bytes - 8)));
        assert!(check_card(&card(" {} ")).is_ok());
        assert!(check_card(&of_length(AGENT_CARD_BYTES_MAX)).is_ok());
        assert!(check_card(&of_length(AGENT_CARD_BYTES_MAX + 1)).is_err());
        for wrong in ["null", "[]", "\"{}\"", "1"] {
            assert!(check_card(&card(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn labels_are_visible_text() {
        assert!(check_label("name", "Développeur 1").is_ok());
        for wrong in ["", "  ", "a\0b", "a\nb", &"x".repeat(257)] {
            assert!(check_label("name", wrong).is_err(), "{wrong:?}");
        }
    }
}
