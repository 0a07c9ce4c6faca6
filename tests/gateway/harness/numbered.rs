//! The `id` lines that the gateway adds to the events of a stream: checked and removed.

use super::client::Answer;

/// A stream without the gateway's numbers, and its name. Every event must have one, as the last line of its
/// block: `id: <stream>-<n>`, from 1 with none left out. An unfinished block is not checked.
pub(crate) fn unnumbered(text: &str) -> (String, String) {
    let (mut plain, mut name, mut last) = (String::new(), String::new(), 0);
    let (mut is_event, mut is_numbered) = (false, false);
    let mut lines = text.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        let said = line.trim_end_matches(['\r', '\n']);
        if said.is_empty() {
            assert!(is_numbered || !is_event, "an event has no number: {text:?}");
            (is_event, is_numbered) = (false, false);
        } else if said.starts_with("data") {
            is_event = true;
        }
        let blank_follows = lines.peek().is_some_and(|next| next.trim_end().is_empty());
        let ours = said.strip_prefix("id: ").filter(|_| blank_follows);
        let ours = ours.and_then(|id| id.split_once('-'));
        if let Some((stream, number)) = ours.filter(|(stream, _)| stream.len() == 32) {
            last += 1;
            assert_eq!(
                number,
                last.to_string(),
                "numbers follow each other: {text:?}"
            );
            assert!(name.is_empty() || name == stream, "one stream: {text:?}");
            name = stream.to_owned();
            is_numbered = true;
            continue;
        }
        plain.push_str(line);
    }
    (plain, name)
}

impl Answer {
    /// A stream as its agent sent it: without the numbers, which must be there.
    pub(crate) fn unnumbered(mut self) -> Self {
        self.body = unnumbered(&self.text()).0.into_bytes();
        self
    }
}
