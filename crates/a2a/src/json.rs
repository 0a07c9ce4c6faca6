//! Positions in JSON text: values, members and objects, and the unescaping of strings.

use std::borrow::Cow;

/// The byte order mark in UTF-8.
pub(super) const MARK: &[u8] = b"\xef\xbb\xbf";

/// Returns a text without a byte order mark at its start, which some agents write.
pub fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(MARK).unwrap_or(text)
}

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `[…]`
    Array,
    /// `true`, `false`
    Bool,
    /// `null`
    Null,
    /// `-1.5e3`
    Number,
    /// `{…}`
    Object,
    /// `"…"`
    String,
}

/// The position of a value in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    /// The kind of the value.
    pub(super) kind: Kind,
    /// Offset of its first byte.
    pub(super) start: usize,
    /// Offset after its last byte.
    pub(super) end: usize,
}

impl Value {
    /// Returns the token as it is spelled.
    pub(super) fn raw(self, text: &[u8]) -> &[u8] {
        &text[self.start..self.end]
    }

    /// Returns the token as it is spelled, of text that is valid UTF-8.
    pub(super) fn raw_str(self, text: &str) -> &str {
        &text[self.start..self.end]
    }

    /// Returns a string unescaped. Empty for other kinds: check `kind` first.
    pub(super) fn unescaped(self, text: &[u8]) -> Cow<'_, [u8]> {
        if self.kind == Kind::String {
            unescape(&text[self.start + 1..self.end - 1])
        } else {
            Cow::Borrowed(&[])
        }
    }

    /// Returns true if it can be the id of a call that is answered: a number or a string.
    pub(super) fn is_rpc_id(self) -> bool {
        matches!(self.kind, Kind::Number | Kind::String)
    }

    /// Returns the unescaped value of a string, the token of another value.
    pub(super) fn token(self, text: &[u8]) -> Cow<'_, [u8]> {
        match self.kind {
            Kind::String => self.unescaped(text),
            _ => Cow::Borrowed(self.raw(text)),
        }
    }

    /// Returns true if it is a string with the unescaped value `word`.
    pub(super) fn equals(self, text: &[u8], word: &str) -> bool {
        self.kind == Kind::String && *self.unescaped(text) == *word.as_bytes()
    }

    /// Returns true if it is `null` or `""`, which count as missing.
    pub(super) fn is_void(self) -> bool {
        self.kind == Kind::Null || self.kind == Kind::String && self.end - self.start == 2
    }
}

/// One member of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Offset of the name's opening quote.
    pub(super) start: usize,
    /// Offset after the name's closing quote.
    pub(super) name_end: usize,
    /// Its value.
    pub(super) value: Value,
}

impl Member {
    /// Returns name, colon and value as they are spelled.
    pub(super) fn raw_str<'a>(&self, text: &'a str) -> &'a str {
        &text[self.start..self.value.end]
    }
}

/// The name of a member during the walk.
#[derive(Debug)]
pub(super) struct Name<'a> {
    /// Offset of the opening quote.
    pub(super) start: usize,
    /// Offset after the closing quote.
    pub(super) end: usize,
    /// The unescaped name: `\u0069d` is `id`.
    pub(super) unescaped: Cow<'a, [u8]>,
}

impl Name<'_> {
    /// Returns the member with this name and `value`.
    pub(super) fn with_value(&self, value: Value) -> Member {
        Member {
            start: self.start,
            name_end: self.end,
            value,
        }
    }
}

/// The position of an object in the text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Object {
    /// Offset of `{`.
    pub(super) open: usize,
    /// Offset after the last member's value; `None` if it is empty.
    pub(super) last_end: Option<usize>,
    /// Offset after `}`.
    pub(super) end: usize,
}

impl Object {
    /// Returns the object as a value.
    pub(super) fn to_value(self) -> Value {
        Value {
            kind: Kind::Object,
            start: self.open,
            end: self.end,
        }
    }
}

/// Parses four hexadecimal digits as a code unit.
pub(super) fn code_unit(text: &[u8]) -> Option<u32> {
    let digits = text.first_chunk::<4>()?;
    digits.iter().try_fold(0, |unit, digit| {
        Some(unit << 4 | char::from(*digit).to_digit(16)?)
    })
}

/// Unescapes the content of a valid string to generalized UTF-8: a lone surrogate becomes its three
/// bytes, so that different strings stay different.
pub(super) fn unescape(inner: &[u8]) -> Cow<'_, [u8]> {
    if !inner.contains(&b'\\') {
        return Cow::Borrowed(inner);
    }
    let mut said = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte != b'\\' {
            said.push(byte);
            continue;
        }
        let Some((&escape, behind)) = rest.split_first() else {
            break;
        };
        rest = behind;
        match escape {
            b'b' => said.push(0x08),
            b'f' => said.push(0x0c),
            b'n' => said.push(b'\n'),
            b'r' => said.push(b'\r'),
            b't' => said.push(b'\t'),
            b'u' => rest = push_code_point(&mut said, rest),
            literal => said.push(literal),
        }
    }
    Cow::Owned(said)
}

/// Decodes the digits after `\u`, including a surrogate pair, and returns the rest.
fn push_code_point<'a>(said: &mut Vec<u8>, digits: &'a [u8]) -> &'a [u8] {
    let Some(unit) = code_unit(digits) else {
        return digits;
    };
    let mut rest = &digits[4..];
    let mut point = unit;
    if (0xd800..0xdc00).contains(&unit)
        && let Some(low) = rest.strip_prefix(b"\\u").and_then(code_unit)
        && (0xdc00..0xe000).contains(&low)
    {
        point = 0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
        rest = &rest[6..];
    }
    match char::from_u32(point) {
        Some(char) => said.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        // A lone surrogate, U+D800 to U+DFFF: 1110xxxx 10xxxxxx 10xxxxxx.
        None => said.extend([12, 6, 0].map(|shift| {
            let bits = (point >> shift) as u8;
            if shift == 12 {
                0xe0 | bits & 0x0f
            } else {
                0x80 | bits & 0x3f
            }
        })),
    }
    rest
}
