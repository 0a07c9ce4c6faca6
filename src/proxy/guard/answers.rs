//! Answers and events that guards are asked about, as their readers read them.

use std::sync::Arc;

use bytes::Bytes;
use http::header;
use pingora::http::ResponseHeader;

use crate::a2a::texts::answers_call;
use crate::config::{GuardMode, GuardPhase};
use crate::proxy::guard::document::{Document, DocumentForm};
use crate::proxy::guard::{CallGuards, Guard};
use crate::rejection::{Delivery, Reason, Rejection};

impl CallGuards {
    /// True if a verdict counts in `phase`.
    pub(super) fn is_enforced(&self, phase: GuardPhase) -> bool {
        self.guards.iter().any(|guard| {
            let settings = &guard.settings;
            settings.mode == GuardMode::Enforce && settings.phases.contains(&phase)
        })
    }

    /// Reads an answer, or the data of an event. What is no JSON is a string. `None`: it is not judged, and no verdict on
    /// it would count.
    ///
    /// # Errors
    /// `agent_protocol_error`: its reader may read something else than guards would.
    pub(super) fn read_answer(
        &self,
        phase: GuardPhase,
        body: &Bytes,
    ) -> Result<Option<Document>, Rejection> {
        match self.parse_answer(body) {
            Ok(document) => Ok(Some(document)),
            Err(why) if self.is_enforced(phase) => Err(why),
            Err(_) => Ok(None),
        }
    }

    fn parse_answer(&self, body: &Bytes) -> Result<Document, Rejection> {
        let refused = |message| {
            let refusal = Rejection::new(Reason::AgentProtocolError, message);
            Err(refusal.with_delivery(Delivery::Sent))
        };
        let json = match body.strip_prefix(b"\xef\xbb\xbf") {
            Some(json) => body.slice_ref(json),
            None => body.clone(),
        };
        if json.contains(&0) || std::str::from_utf8(&json).is_err() {
            return refused("the agent's answer is not UTF-8");
        }
        let is_rpc = self.side.is_rpc;
        if is_rpc && !answers_call(&json, self.side.rpc_id.as_deref()) {
            return refused("the agent's answer is one to another call, by its id or jsonrpc");
        }
        match Document::parse(json, DocumentForm::Answer { is_rpc }) {
            Some(document) if !document.is_broken() => Ok(document),
            _ => refused("the agent's answer looks like JSON and is none, or nests too deeply"),
        }
    }

    /// Checks the head of an answer.
    ///
    /// # Errors
    /// The reason in words: its charset is none that guards read, or it is a stream where guards are asked about
    /// answers.
    pub(in crate::proxy) fn refuse_by_head(
        &self,
        head: &ResponseHeader,
        is_stream: bool,
    ) -> Result<(), &'static str> {
        let phase = match is_stream {
            true => GuardPhase::Event,
            false => GuardPhase::Response,
        };
        if self.is_enforced(phase) && !names_utf8(head) {
            return Err("the agent's answer has another charset than UTF-8");
        }
        let only_answers = |guard: &Arc<Guard>| {
            let settings = &guard.settings;
            settings.mode == GuardMode::Enforce
                && settings.phases.contains(&GuardPhase::Response)
                && !guard.covers_events()
        };
        if is_stream && !self.streams && self.guards.iter().any(only_answers) {
            return Err("the agent answered with a stream, of which a guard would not be asked");
        }
        Ok(())
    }
}

/// True if no `Content-Type` names another charset than UTF-8.
fn names_utf8(head: &ResponseHeader) -> bool {
    let types = head.headers.get_all(header::CONTENT_TYPE);
    types.iter().all(|value| {
        let value = value.as_bytes().to_ascii_lowercase();
        let value = String::from_utf8_lossy(&value);
        let charsets = value.split("charset").skip(1).map(|said| {
            let said = said.trim_start().trim_start_matches('=').trim_start();
            said.trim_start_matches('"')
        });
        charsets.into_iter().all(|said| {
            let end = |c: char| !(c.is_ascii_alphanumeric() || c == '-');
            let said = said.split(end).next().unwrap_or_default();
            matches!(said, "utf-8" | "utf8" | "us-ascii")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_utf_8_is_read() {
        for (content_type, is) in [
            ("application/json", true),
            ("application/json; charset=utf-8", true),
            ("text/event-stream;Charset=\"UTF-8\"; x=y", true),
            ("application/json; charset=utf-16le", false),
            ("application/json; charset=utf-7", false),
            ("text/plain; charset=\"utf-8-x\"", false),
            ("text/plain; charset=utf-8; charset = utf-16", false),
        ] {
            let mut head = ResponseHeader::build(200, None).unwrap();
            head.append_header(header::CONTENT_TYPE, content_type)
                .unwrap();
            assert_eq!(names_utf8(&head), is, "{content_type}");
            head.append_header(header::CONTENT_TYPE, "a/b; charset=utf-32")
                .unwrap();
            assert!(!names_utf8(&head), "{content_type}");
        }
    }
}
