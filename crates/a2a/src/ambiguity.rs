//! Members that parsers read differently: duplicate names, and names that differ only in case,
//! which Go's decoder accepts.

use super::envelope::Fault;

/// Longest name that is compared, in bytes: all relevant ones are shorter.
const NAME_BYTES_MAX: usize = 48;

/// The reason that a member which the gateway reads is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ambiguity {
    /// A duplicate name.
    Twice(&'static str),
    /// A name that equals this one except for its case.
    OtherCase(&'static str),
}

impl Ambiguity {
    /// Returns the one of `words` from which the name differs only in case. `None`: it is exactly
    /// one of them, or none.
    pub(super) fn of_name(name: &[u8], words: &[&'static str]) -> Option<Self> {
        if words.iter().any(|word| word.as_bytes() == name) {
            return None;
        }
        let mut folded = [0; NAME_BYTES_MAX];
        let folded = fold_name(name, &mut folded)?;
        let word = words
            .iter()
            .find(|word| word.as_bytes().eq_ignore_ascii_case(folded));
        word.map(|word| Self::OtherCase(word))
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Twice(word) | Self::OtherCase(word) => word,
        }
    }

    pub(super) fn to_fault(self) -> Fault {
        match self {
            Self::Twice(word) => Fault::duplicate_member(word),
            Self::OtherCase(word) => Fault::invalid_request(format!(
                "a name differs from \"{word}\" in case only; send it as \"{word}\""
            )),
        }
    }
}

/// Returns the name in lower case. Like Go, it also folds two characters that are not ASCII: `ſ` to
/// `s`, and the Kelvin sign to `k`. `None`: it is longer than `room`.
pub(super) fn fold_name<'r>(name: &[u8], room: &'r mut [u8]) -> Option<&'r [u8]> {
    let mut len = 0;
    let mut rest = name;
    loop {
        let (byte, behind) = match rest {
            [] => return room.get(..len),
            [0xc5, 0xbf, behind @ ..] => (b's', behind),
            [0xe2, 0x84, 0xaa, behind @ ..] => (b'k', behind),
            [byte, behind @ ..] => (byte.to_ascii_lowercase(), behind),
        };
        *room.get_mut(len)? = byte;
        len += 1;
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_compared_as_the_laxest_decoder_does() {
        const WORDS: [&str; 2] = ["params", "task_id"];
        let of = |name: &str| Ambiguity::of_name(name.as_bytes(), &WORDS).map(Ambiguity::as_str);
        for (name, expected) in [
            ("Params", Some("params")),
            ("PARAMS", Some("params")),
            ("paramſ", Some("params")),
            ("tas\u{212a}_id", Some("task_id")),
            ("Task_ID", Some("task_id")),
            ("params", None),
            ("param", None),
            ("taskId", None),
            ("", None),
        ] {
            assert_eq!(of(name), expected, "{name}");
        }
        assert_eq!(of(&"p".repeat(1000)), None);
    }
}
