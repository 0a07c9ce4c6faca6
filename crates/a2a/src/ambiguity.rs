//! Members that two parsers read differently: one that stands twice, and one whose name differs in case only, which Go's
//! decoder takes for it.

use super::envelope::Refusal;

/// Longest name that is compared: all that matter are shorter.
const NAME_BYTES_MAX: usize = 48;

/// Why a member that the gateway reads is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ambiguity {
    /// It stands twice.
    Twice(&'static str),
    /// Another name stands there that is the same without case.
    OtherCase(&'static str),
}

impl Ambiguity {
    /// Which of `words` a name is but for its case; `None`: it is one of them as it is, or none.
    pub(super) fn of_name(name: &[u8], words: &[&'static str]) -> Option<Self> {
        if words.iter().any(|word| word.as_bytes() == name) {
            return None;
        }
        let mut folded = [0; NAME_BYTES_MAX];
        let folded = fold(name, &mut folded)?;
        let word = words
            .iter()
            .find(|word| word.as_bytes().eq_ignore_ascii_case(folded));
        word.map(|word| Self::OtherCase(word))
    }

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Twice(word) | Self::OtherCase(word) => word,
        }
    }

    pub(super) fn refusal(self) -> Refusal {
        match self {
            Self::Twice(word) => Refusal::twice(word),
            Self::OtherCase(word) => Refusal::request(format!(
                "a name differs from \"{word}\" in case only; send it as \"{word}\""
            )),
        }
    }
}

/// The name in small letters. Go folds two that are not ASCII, too: `ſ` is an `s`, and the sign for Kelvin a `k`.
/// `None`: it is longer than `room`.
pub(super) fn fold<'r>(name: &[u8], room: &'r mut [u8]) -> Option<&'r [u8]> {
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
        let of = |name: &str| Ambiguity::of_name(name.as_bytes(), &WORDS).map(Ambiguity::word);
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
