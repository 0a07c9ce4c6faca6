//! Document that a guard is asked about: a body, with the range of its message, result, error or event in it.

use bytes::Bytes;

use super::{
    Payload, Root, StringKind, find_answer_payload, find_request_payload, is_last_event,
    keeps_names, malformed_ids, walk_strings,
};

/// The form of a body: where its payload is.
#[derive(Clone, Copy, Debug)]
pub enum DocumentForm {
    /// A call: of JSON-RPC, or the body of a route. `sends`: it carries a message.
    Request {
        /// True for JSON-RPC.
        is_rpc: bool,
        /// True if it carries a message.
        sends: bool,
    },
    /// An answer, or the data of an event.
    Answer {
        /// True for JSON-RPC.
        is_rpc: bool,
    },
}

/// A body that guards judge.
#[derive(Clone, Debug)]
pub struct Document {
    /// The body; of one that is no JSON, its text as a JSON string.
    body: Bytes,
    form: DocumentForm,
    payload: Payload,
    /// True if the body is no JSON.
    is_text: bool,
    changed: bool,
}

impl Document {
    /// Finds the payload of a body. `None`: a request that cannot be read, which would have been rejected before.
    pub fn parse(body: Bytes, form: DocumentForm) -> Option<Self> {
        let payload = locate_payload(&body, form);
        let is_text = payload.is_none();
        if is_text && matches!(form, DocumentForm::Request { .. }) {
            return None;
        }
        let (body, payload) = match payload {
            Some(payload) => (body, payload),
            None => {
                let text = String::from_utf8_lossy(&body);
                let body = Bytes::from(serde_json::Value::from(text).to_string());
                let payload = locate_payload(&body, form)?;
                (body, payload)
            }
        };
        Some(Self {
            body,
            form,
            payload,
            is_text,
            changed: false,
        })
    }

    /// True if it is no JSON and looks like it: a reader that is less strict may find strings in it.
    pub fn is_broken(&self) -> bool {
        let text = || serde_json::from_slice::<String>(&self.body).unwrap_or_default();
        let is_blank = |c: char| c.is_whitespace() || c == '\u{feff}';
        self.is_text && text().trim_start_matches(is_blank).starts_with(['{', '['])
    }

    /// Returns the JSON that holds the payload.
    pub fn as_json(&self) -> &Bytes {
        &self.body
    }

    /// Returns the kind of the whole JSON.
    pub fn root(&self) -> Root {
        match self.payload.range.len() == self.body.len() {
            true => self.payload.root,
            false => Root::Typed,
        }
    }

    /// Returns the payload.
    pub fn payload(&self) -> &[u8] {
        &self.body[self.payload.range.clone()]
    }

    /// Returns `metadata` beside the message.
    pub fn metadata(&self) -> Option<&[u8]> {
        self.payload.metadata.clone().map(|range| &self.body[range])
    }

    /// Returns the members beside the message and its `metadata`, as an object.
    pub fn other_members(&self) -> Option<String> {
        let ranges = self.payload.beside.iter().cloned();
        let members: Vec<_> = ranges
            .map(|range| String::from_utf8_lossy(&self.body[range]))
            .collect();
        (!members.is_empty()).then(|| format!("{{{}}}", members.join(",")))
    }

    /// Returns the texts of the payload, all strings beside a message, and those of the envelope of a call that are no
    /// identifiers.
    pub fn texts(&self) -> Vec<String> {
        let mut texts = Vec::new();
        let mut add = |json: &[u8], root| {
            // It was walked before.
            let _ = walk_strings(json, root, |found| {
                if found.place == StringKind::Text {
                    texts.push(found.text.into_owned());
                }
            });
        };
        add(self.payload(), self.payload.root);
        if let Some(beside) = self.other_members() {
            add(beside.as_bytes(), Root::Free);
        }
        if matches!(self.form, DocumentForm::Request { is_rpc: true, .. }) {
            texts.extend(malformed_ids(&self.body));
        }
        texts
    }

    /// Returns the number of bytes that guards are asked about.
    pub fn judged_len(&self) -> usize {
        let beside = self.payload.beside.iter().map(ExactSizeIterator::len);
        let metadata = self.metadata().map_or(0, <[u8]>::len);
        self.payload().len() + metadata + beside.sum::<usize>()
    }

    /// True if it has a string that a sender chooses.
    pub fn has_content(&self) -> bool {
        let mut said = false;
        let walked = walk_strings(&self.body, self.root(), |_| said = true);
        said || walked.is_err()
    }

    /// True if it is the last event of a turn.
    pub fn is_last(&self) -> bool {
        is_last_event(&self.body, self.payload())
    }

    /// Replaces the payload. False if that is not allowed: it loses a name, or is not a message of a call.
    pub fn replace(&mut self, payload: &[u8]) -> bool {
        if matches!(self.form, DocumentForm::Request { .. }) && !self.payload.is_message {
            return false;
        }
        if !keeps_names(self.payload(), payload) {
            return false;
        }
        let range = self.payload.range.clone();
        let parts = [&self.body[..range.start], payload, &self.body[range.end..]];
        self.replace_json(parts.concat())
    }

    /// Replaces the whole JSON. False if its payload cannot be found any more.
    pub fn replace_json(&mut self, json: Vec<u8>) -> bool {
        let Some(payload) = locate_payload(&json, self.form) else {
            return false;
        };
        (self.body, self.payload, self.changed) = (json.into(), payload, true);
        true
    }

    /// Returns the body if it has changed.
    pub fn into_changed(self) -> Option<Bytes> {
        if !self.changed {
            return None;
        }
        if !self.is_text {
            return Some(self.body);
        }
        let text: String = serde_json::from_slice(&self.body).unwrap_or_default();
        Some(text.into())
    }
}

fn locate_payload(body: &[u8], form: DocumentForm) -> Option<Payload> {
    match form {
        DocumentForm::Request { is_rpc, sends } => find_request_payload(body, is_rpc, sends),
        DocumentForm::Answer { is_rpc } => {
            // What is passed to others as JSON is UTF-8.
            std::str::from_utf8(body).ok()?;
            find_answer_payload(body, is_rpc)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &'static str) -> Document {
        let form = DocumentForm::Answer { is_rpc: true };
        Document::parse(Bytes::from_static(body.as_bytes()), form).unwrap()
    }

    #[test]
    fn a_payload_is_replaced_in_its_body() {
        let mut document =
            answer(r#"{"id": 1.0,"result":{"messageId":"m","parts":[{"text":"a"}]} }"#);
        assert_eq!(document.texts(), ["a"]);
        assert!(!document.replace(br#"{"parts":[]}"#));
        assert!(document.replace(br#"{"messageId":"m","parts":[]}"#));
        assert_eq!(document.payload(), br#"{"messageId":"m","parts":[]}"#);
        let changed = document.into_changed().unwrap();
        assert_eq!(
            changed,
            r#"{"id": 1.0,"result":{"messageId":"m","parts":[]} }"#
        );
        assert!(answer("{}").into_changed().is_none());
    }

    #[test]
    fn text_that_is_no_json_is_judged_as_one_string() {
        let mut document = answer("<p>\"secret\"</p>");
        assert_eq!(document.texts(), ["<p>\"secret\"</p>"]);
        assert!(document.replace(br#""<p></p>""#));
        assert_eq!(document.into_changed().unwrap(), "<p></p>");
        assert!(
            Document::parse(
                Bytes::from_static(b"x"),
                DocumentForm::Request {
                    is_rpc: true,
                    sends: true
                }
            )
            .is_none()
        );
    }

    #[test]
    fn what_stands_beside_a_message_is_asked_about() {
        let body = r#"{"jsonrpc":"2.0","id":"my id","params":{"note":["a"],"message":{"parts":[{"text":"b"}]},"configuration":{"x":"c"},"metadata":{"k":1}}}"#;
        let form = DocumentForm::Request {
            is_rpc: true,
            sends: true,
        };
        let call = Document::parse(Bytes::from_static(body.as_bytes()), form).unwrap();
        let beside = r#"{"note":["a"],"configuration":{"x":"c"}}"#;
        assert_eq!(call.other_members().as_deref(), Some(beside));
        assert_eq!(call.texts(), ["b", "a", "c", "my id"]);
        assert!(call.judged_len() > beside.len());
    }

    #[test]
    fn protocol_words_say_nothing() {
        let says = |body| answer(body).has_content();
        assert!(!says(
            r#"{"id":1,"result":{"kind":"status-update","taskId":"t","status":{"state":"working"}}}"#
        ));
        for body in [
            r#"{"id":1,"result":{"kind":"status-update","metadata":{"a":1}}}"#,
            r#"{"id":1,"result":{"parts":[{"text":"a"}]}}"#,
            "secret",
        ] {
            assert!(says(body), "{body}");
        }
    }

    #[test]
    fn only_the_message_of_a_call_is_replaced() {
        let form = |sends| DocumentForm::Request {
            is_rpc: true,
            sends,
        };
        let body = Bytes::from_static(
            br#"{"params":{"metadata":{"run_id":"r"},"message":{"messageId":"m"}}}"#,
        );
        let mut call = Document::parse(body.clone(), form(true)).unwrap();
        assert_eq!(call.metadata(), Some(&br#"{"run_id":"r"}"#[..]));
        assert!(call.replace(br#"{"messageId":"m","x":1}"#));
        let mut other = Document::parse(body, form(false)).unwrap();
        assert!(!other.replace(other.clone().payload()));
    }
}
