//! A strict walk over JSON text (RFC 8259) that keeps byte offsets ([`Walker`]), so that members
//! can be edited in place and everything else is forwarded unchanged.
//!
//! Strict, because an agent with a laxer parser must not see a call that the gateway did not see.
//! The walker allocates nothing, except for a name with escapes.

use std::borrow::Cow;

use super::json::{Kind, Name, Object, Value, code_unit, unescape};

/// Deepest nesting of objects and arrays that is accepted: agents of the official SDKs fail between
/// 100 and 1,000.
pub const DEPTH_MAX: usize = 512;

/// The reason that the walk stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkError {
    /// Not JSON, at this offset.
    Syntax(usize),
    /// Nested deeper than [`DEPTH_MAX`].
    TooDeep,
}

/// Callbacks of a walk through nested containers. Levels count from 0.
pub(super) trait Visit<'a> {
    /// Called when a container opens.
    fn open(&mut self, _level: usize) {}

    /// Walks over a name of an object at `level`, and its colon.
    fn walk_name(&mut self, walker: &mut Walker<'a>, _level: usize) -> Result<(), WalkError> {
        walker.skip_name()
    }
}

/// Skips names without comparing them.
struct SkipNames;

impl Visit<'_> for SkipNames {}

/// The cursor.
#[derive(Debug)]
pub(super) struct Walker<'a> {
    text: &'a [u8],
    at: usize,
    depth: usize,
}

impl<'a> Walker<'a> {
    /// Creates a walker at the start of `text`.
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self::from(text, 0)
    }

    /// Creates a walker at `at`, the first byte of a value that was read before.
    pub(super) fn from(text: &'a [u8], at: usize) -> Self {
        Self { text, at, depth: 0 }
    }

    /// Skips white space and returns the next byte, which determines the kind of the value.
    pub(super) fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.text.get(self.at) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    /// Walks over one value of any kind.
    ///
    /// # Errors
    /// [`WalkError`], also for the two functions below.
    pub(super) fn read_value(&mut self) -> Result<Value, WalkError> {
        self.visit_value(&mut SkipNames)
    }

    /// Like [`Walker::read_value`], with callbacks.
    pub(super) fn visit_value(&mut self, visit: &mut impl Visit<'a>) -> Result<Value, WalkError> {
        let first = self.peek();
        let start = self.at;
        let kind = match first {
            Some(b'{') => {
                self.walk_nested(visit)?;
                Kind::Object
            }
            Some(b'[') => {
                self.walk_nested(visit)?;
                Kind::Array
            }
            _ => self.read_scalar(first)?,
        };
        Ok(Value {
            kind,
            start,
            end: self.at,
        })
    }

    /// Walks over the object that follows. Calls `each` after each name and its colon; `each` walks
    /// over the value.
    pub(super) fn walk_object(
        &mut self,
        mut each: impl FnMut(&mut Self, Name<'a>) -> Result<Value, WalkError>,
    ) -> Result<Object, WalkError> {
        self.peek();
        let open = self.at;
        let mut last_end = None;
        let mut more = self.enter_container(b'{', b'}')?;
        while more {
            let name = self.read_name()?;
            last_end = Some(each(self, name)?.end);
            more = self.has_more(b'}')?;
        }
        Ok(Object {
            open,
            last_end,
            end: self.at,
        })
    }

    /// Walks over the value that follows, and over its members if it is an object, which is returned, too.
    pub(super) fn walk_members(
        &mut self,
        each: impl FnMut(&mut Self, Name<'a>) -> Result<Value, WalkError>,
    ) -> Result<(Value, Object), WalkError> {
        if self.peek() != Some(b'{') {
            return Ok((self.read_value()?, Object::default()));
        }
        let object = self.walk_object(each)?;
        Ok((object.to_value(), object))
    }

    /// Walks over the array that follows; `each` walks over one element.
    pub(super) fn walk_array(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<(), WalkError>,
    ) -> Result<Value, WalkError> {
        self.peek();
        let start = self.at;
        let mut more = self.enter_container(b'[', b']')?;
        while more {
            each(self)?;
            more = self.has_more(b']')?;
        }
        Ok(Value {
            kind: Kind::Array,
            start,
            end: self.at,
        })
    }

    /// Enters the container that follows. Returns true if it has an element, which is next.
    pub(super) fn enter_container(&mut self, open: u8, close: u8) -> Result<bool, WalkError> {
        self.peek();
        self.enter(open)?;
        if self.peek() != Some(close) {
            return Ok(true);
        }
        self.at += 1;
        self.depth -= 1;
        Ok(false)
    }

    /// Walks over the separator after an element. Returns true if another one follows, and leaves
    /// the container otherwise.
    pub(super) fn has_more(&mut self, close: u8) -> Result<bool, WalkError> {
        let ended = self.read_separator(close)?;
        self.depth -= usize::from(ended);
        Ok(!ended)
    }

    /// Returns the offset of the next byte.
    pub(super) const fn position(&self) -> usize {
        self.at
    }

    /// Checks that only white space is left.
    pub(super) fn expect_end(&mut self) -> Result<(), WalkError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.syntax_error()),
        }
    }

    fn syntax_error(&self) -> WalkError {
        WalkError::Syntax(self.at)
    }

    fn enter(&mut self, open: u8) -> Result<(), WalkError> {
        self.expect_byte(open)?;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(WalkError::TooDeep);
        }
        Ok(())
    }

    /// Reads the separator after a value: a comma (false) or the closing `close` (true).
    fn read_separator(&mut self, close: u8) -> Result<bool, WalkError> {
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(false)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(true)
            }
            _ => Err(self.syntax_error()),
        }
    }

    fn expect_byte(&mut self, byte: u8) -> Result<(), WalkError> {
        if self.text.get(self.at) == Some(&byte) {
            self.at += 1;
            Ok(())
        } else {
            Err(self.syntax_error())
        }
    }

    /// Reads a name and its colon.
    pub(super) fn read_name(&mut self) -> Result<Name<'a>, WalkError> {
        self.peek();
        let start = self.at;
        let escaped = self.read_string()?;
        let end = self.at;
        self.peek();
        self.expect_byte(b':')?;
        let inner = &self.text[start + 1..end - 1];
        let unescaped = if escaped {
            unescape(inner)
        } else {
            Cow::Borrowed(inner)
        };
        Ok(Name {
            start,
            end,
            unescaped,
        })
    }

    /// Walks over a container without recursion: one bit per level records if it is an object.
    fn walk_nested(&mut self, visit: &mut impl Visit<'a>) -> Result<(), WalkError> {
        let floor = self.depth;
        let mut objects = [0_u64; DEPTH_MAX / 64];
        loop {
            match self.peek() {
                Some(open @ (b'{' | b'[')) => {
                    self.enter(open)?;
                    let level = self.depth - 1;
                    visit.open(level);
                    let bit = 1 << (level % 64);
                    let close = if open == b'{' {
                        objects[level / 64] |= bit;
                        b'}'
                    } else {
                        objects[level / 64] &= !bit;
                        b']'
                    };
                    if self.peek() == Some(close) {
                        self.at += 1;
                        self.depth -= 1;
                    } else {
                        if open == b'{' {
                            visit.walk_name(self, level)?;
                        }
                        continue;
                    }
                }
                first => {
                    self.read_scalar(first)?;
                }
            }
            // A value has ended, and possibly the containers in which it was the last.
            loop {
                if self.depth == floor {
                    return Ok(());
                }
                let level = self.depth - 1;
                let object = objects[level / 64] & (1 << (level % 64)) != 0;
                if !self.read_separator(if object { b'}' } else { b']' })? {
                    if object {
                        visit.walk_name(self, level)?;
                    }
                    break;
                }
                self.depth -= 1;
            }
        }
    }

    /// Skips a name that is not compared, and its colon.
    fn skip_name(&mut self) -> Result<(), WalkError> {
        self.peek();
        self.read_string()?;
        self.peek();
        self.expect_byte(b':')
    }

    fn read_scalar(&mut self, first: Option<u8>) -> Result<Kind, WalkError> {
        match first {
            Some(b'"') => self.read_string().map(|_| Kind::String),
            Some(b'-' | b'0'..=b'9') => self.read_number().map(|()| Kind::Number),
            Some(b't') => self.read_literal(b"true", Kind::Bool),
            Some(b'f') => self.read_literal(b"false", Kind::Bool),
            Some(b'n') => self.read_literal(b"null", Kind::Null),
            _ => Err(self.syntax_error()),
        }
    }

    fn read_literal(&mut self, word: &[u8], kind: Kind) -> Result<Kind, WalkError> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(kind)
        } else {
            Err(self.syntax_error())
        }
    }

    /// Walks over a number (RFC 8259, 6). The receiver checks the range: `1e400` and 30 digits
    /// pass.
    fn read_number(&mut self) -> Result<(), WalkError> {
        if self.text.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        if self.text.get(self.at) == Some(&b'0') {
            self.at += 1;
        } else {
            self.read_digits()?;
        }
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.read_digits()?;
        }
        if let Some(b'e' | b'E') = self.text.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.text.get(self.at) {
                self.at += 1;
            }
            self.read_digits()?;
        }
        Ok(())
    }

    /// Walks over one digit or more.
    fn read_digits(&mut self) -> Result<(), WalkError> {
        let start = self.at;
        while self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.syntax_error());
        }
        Ok(())
    }

    /// Walks over a string. Returns true if it has escapes. Lone surrogates and `\u0000` pass: the
    /// grammar allows them (RFC 8259, 8.2).
    fn read_string(&mut self) -> Result<bool, WalkError> {
        self.expect_byte(b'"')?;
        let mut escaped = false;
        loop {
            self.at += plain_len(&self.text[self.at..]);
            match self.text.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(escaped);
                }
                Some(b'\\') => {
                    escaped = true;
                    self.read_escape()?;
                }
                _ => return Err(self.syntax_error()),
            }
        }
    }

    fn read_escape(&mut self) -> Result<(), WalkError> {
        match self.text.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') if code_unit(&self.text[self.at + 2..]).is_some() => self.at += 6,
            _ => return Err(self.syntax_error()),
        }
        Ok(())
    }
}

/// Returns the number of bytes before the first quote, backslash or control character.
///
/// Scans eight at a time, since most of a body is the content of strings. Subtracting from each
/// byte borrows into its high bit where it was smaller. A borrow can only disturb bytes after the
/// first match, and only the first match is used.
fn plain_len(text: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGHS: u64 = ONES << 7;
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGHS;
    let mut at = 0;
    while let Some(chunk) = text[at..].first_chunk::<8>() {
        let word = u64::from_le_bytes(*chunk);
        let quote = below(word ^ (ONES * u64::from(b'"')), 1);
        let backslash = below(word ^ (ONES * u64::from(b'\\')), 1);
        let stop = quote | backslash | below(word, 0x20);
        if stop != 0 {
            return at + (stop.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    text[at..]
        .iter()
        .position(|b| matches!(b, b'"' | b'\\' | ..0x20))
        .map_or(text.len(), |more| at + more)
}
