//! The one way of all commands to standard output and standard error (`tests/tidy/walls.rs`). Text of an agent, a
//! server, a file or an argument may hold characters that steer a terminal or change the order in which it shows
//! others: they are written as `\u001b`. That is how JSON has them, so what `--json` prints stays JSON, and says the
//! same.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write};

use kernel::telemetry::Chain;

/// Longest line that a user writes, in bytes.
const LINE_MAX: u64 = 4096;

/// True for characters that a terminal obeys, or that hide or reorder others. Joiners are none: scripts and emoji need
/// them.
pub(crate) fn is_control(c: char) -> bool {
    let marks = matches!(
        c,
        '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{feff}'
    );
    marks || c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
}

/// Returns the text as it is printed. Ends of lines and tabs stay.
pub fn escape_controls(text: &str) -> Cow<'_, str> {
    let is_shown = |at: usize, c: char| match c {
        '\n' | '\t' => true,
        '\r' => text.as_bytes().get(at + 1) == Some(&b'\n'),
        other => !is_control(other),
    };
    if text.char_indices().all(|(at, c)| is_shown(at, c)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 64);
    for (at, c) in text.char_indices() {
        if is_shown(at, c) {
            shown.push(c);
        } else {
            // Writing to a string cannot fail.
            let _ = write!(shown, "\\u{:04x}", u32::from(c));
        }
    }
    Cow::Owned(shown)
}

/// Writes to standard output and flushes it, for readers that wait for each line.
pub fn print(text: &str) -> io::Result<()> {
    write_to(&mut io::stdout().lock(), text)
}

/// Writes a question to standard error.
pub fn write_prompt(question: &str) -> io::Result<()> {
    write_to(&mut io::stderr().lock(), question)
}

fn write_to(out: &mut impl Write, text: &str) -> io::Result<()> {
    out.write_all(escape_controls(text).as_bytes())?;
    out.flush()
}

/// True if standard output is a terminal.
pub fn is_on_screen() -> bool {
    io::stdout().is_terminal()
}

/// Clears the terminal, if standard output is one.
pub(crate) fn clear_screen() -> io::Result<()> {
    match is_on_screen() {
        true => io::stdout().write_all(b"\x1b[H\x1b[J"),
        false => Ok(()),
    }
}

/// Asks on standard error, and returns the line that a user writes, without the white space around it; `None` at the
/// end of standard input.
pub fn ask_line(question: &str) -> io::Result<Option<String>> {
    write_prompt(question)?;
    let mut line = String::new();
    let read = io::stdin().lock().take(LINE_MAX).read_line(&mut line)?;
    Ok((read > 0).then(|| line.trim().to_owned()))
}

/// Returns standard input as text, up to `max` bytes.
pub(crate) fn read_input(max: u64) -> io::Result<String> {
    let mut text = String::new();
    io::stdin().lock().take(max).read_to_string(&mut text)?;
    Ok(text)
}

/// Writes a note to standard error.
pub fn print_note(text: &str) {
    // A failed write to standard error cannot be reported.
    let _ = write_prompt(&format!("a2a-gateway: {text}\n"));
}

/// Writes an error and its causes to standard error.
pub fn print_error(error: &dyn Error) {
    print_note(&Chain(error).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_steers_no_terminal_and_json_says_the_same() {
        for (text, shown) in [
            ("plain \u{e4} \u{1f469}\u{200d}\u{1f4bb}\n\tx\r\ny", None),
            ("\u{1b}]52;c;eA==\u{7}", Some(r"\u001b]52;c;eA==\u0007")),
            ("a\rb\u{8}\u{7f}\u{0}", Some(r"a\u000db\u0008\u007f\u0000")),
            ("\u{9b}2J\u{85}", Some(r"\u009b2J\u0085")),
            (
                "\u{202e}\u{2066}\u{200f}\u{61c}\u{feff}\u{2028}",
                Some(r"\u202e\u2066\u200f\u061c\ufeff\u2028"),
            ),
        ] {
            let mut written = Vec::new();
            write_to(&mut written, text).unwrap();
            assert_eq!(written, shown.unwrap_or(text).as_bytes());
            let json = serde_json::to_string(text).unwrap();
            let read: String = serde_json::from_str(&escape_controls(&json)).unwrap();
            assert_eq!(read, text);
        }
    }
}
