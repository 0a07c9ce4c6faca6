//! Streams ([`Stream`]): each event is translated by itself, and the beginning is made up where 1.0 requires
//! one that 0.3 does not have.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::answer::{Shape, check_encoding, flatten_lines, is_of_a2a};
use super::error;
use super::exchange::Exchange;
use super::failure::{Failure, OmittedMembers};
use super::pass::Pass;
use super::result::{Kind, WrittenResult};
use crate::event::{Framing, data_value, final_event, join_data, line_end, split_lines};
use crate::fields::Fields;
use crate::generation::Generation;
use crate::json::without_mark;
use crate::state::TaskState;

/// The code of `UnsupportedOperationError`.
const UNSUPPORTED: i64 = -32_004;

/// A stream of an agent, translated for the caller.
#[derive(Clone, Debug)]
pub struct Stream {
    exchange: Exchange,
    /// True once an event was passed on.
    began: bool,
    /// The hash of the task with which the gateway began it, until the agent's first event.
    snapshot: Option<u64>,
}

/// The content of a block that was translated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TranslatedEvent {
    /// The kind of the event; `None`: a comment, an error, or one that is not read (within 1.0).
    pub kind: Option<Kind>,
    /// The state of its task.
    pub state: Option<TaskState>,
    /// True if it is an error.
    pub is_error: bool,
    /// True if the event was left out: it is no message of A2A, neither generation knows its kind, or it repeats the
    /// snapshot.
    pub is_skipped: bool,
    /// True if a task was put in front of it.
    pub is_led: bool,
    /// True if it ends the stream: an update to a terminal state. The caller's stream is closed then, since
    /// some agents of 0.3 leave theirs open.
    pub ends: bool,
    /// The members that were left out.
    pub left_out: OmittedMembers,
}

impl Exchange {
    /// Begins to translate a stream that answers the call.
    pub fn start_stream(&self) -> Stream {
        Stream {
            exchange: self.clone(),
            began: false,
            snapshot: None,
        }
    }
}

impl Stream {
    /// Translates a block: the lines up to a blank one, and that one ([`crate::event::split_blocks`]). Appends it to
    /// `out`, which keeps what it has if the block cannot be translated.
    ///
    /// Comments and the fields `id`, `event` and `retry` stay where they are; the data is written in one line.
    ///
    /// # Errors
    /// [`Failure::Answer`]: the stream ends.
    pub fn translate_block(
        &mut self,
        block: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<TranslatedEvent, Failure> {
        check_encoding(block)?;
        let data = join_data(block, usize::MAX).unwrap_or_default();
        if data.iter().all(u8::is_ascii_whitespace) {
            out.extend_from_slice(block);
            return Ok(TranslatedEvent::default());
        }
        let start = out.len();
        let told = self.write_block(block, &data, matches!(data, Cow::Owned(_)), out);
        if told.as_ref().map_or(true, |told| told.is_skipped) {
            out.truncate(start);
        }
        told
    }

    /// Writes a block with this data, which `is_joined` of several lines. What is written of one that is left out, or
    /// that cannot be translated, does not count.
    fn write_block(
        &mut self,
        block: &[u8],
        data: &[u8],
        is_joined: bool,
        out: &mut Vec<u8>,
    ) -> Result<TranslatedEvent, Failure> {
        let (start, end) = (out.len(), line_end(block));
        let mut rest = split_lines(block);
        for line in rest.by_ref().take_while(|line| data_value(line).is_none()) {
            put_line(out, line, end);
        }
        out.extend_from_slice(b"data: ");
        let at = out.len();
        let settings = self.exchange.pass_settings();
        let mut pass = Pass::append_to(std::mem::take(out), data, settings);
        let is_named =
            split_lines(block).any(|line| matches!(line, b"event: error" | b"event:error"));
        let written = self.write_event(&mut pass, is_named);
        *out = pass.out;
        let mut told = TranslatedEvent {
            left_out: pass.left,
            ..TranslatedEvent::default()
        };
        if !is_named && is_filler(data, written.is_err()) {
            told.is_skipped = true;
            told.left_out.add("event", "other");
            return Ok(told);
        }
        let outcome;
        (outcome, told.is_error) = written.map_err(Failure::of_answer)?;
        (told.kind, told.state) = (outcome.kind, outcome.state);
        // Some agents of 0.3 begin with the task, too.
        let snapshot = self.snapshot.take();
        let repeats = snapshot.is_some() && snapshot == self.task_hash(&out[at..]);
        if outcome.is_unknown {
            told.left_out.add("event", "other");
        }
        told.is_skipped = outcome.is_unknown || repeats;
        if told.is_skipped {
            return Ok(told);
        }
        if is_joined {
            flatten_lines(&mut out[at..]);
        }
        out.extend_from_slice(end);
        for line in rest.filter(|line| data_value(line).is_none()) {
            put_line(out, line, end);
        }
        let is_rest_error = told.is_error && !self.exchange.caller.is_rpc();
        if is_rest_error && !split_lines(&out[start..at]).any(|line| line.starts_with(b"event:")) {
            let name = [b"event: error", end].concat();
            out.splice(start..start, name);
        }
        told.is_led = self.insert_first_task(&outcome, start, end, out);
        self.began |= !told.is_error;
        told.ends = outcome.kind == Some(Kind::StatusUpdate)
            && outcome.state.is_some_and(TaskState::is_terminal);
        Ok(told)
    }

    /// Writes the data of an event. Returns true with it if it is an error. `is_named`: its name says so, which
    /// is all that tells errors of HTTP+JSON 0.3 apart.
    fn write_event(
        &self,
        pass: &mut Pass<'_>,
        is_named: bool,
    ) -> Result<(WrittenResult, bool), Failure> {
        let exchange = &self.exchange;
        if is_named && !exchange.agent.is_rpc() {
            let generation = exchange.caller.generation;
            let (_, error) = error::from_http_error(500, pass.text, exchange.method, generation);
            exchange.put_error(pass, &error);
            return Ok((WrittenResult::default(), true));
        }
        let settings = pass.settings;
        let shape = if settings.from == settings.to {
            Shape::Same
        } else {
            Shape::of_method(exchange.method, true)
        };
        match exchange.write_response(pass, shape)? {
            Ok(outcome) => Ok((outcome, false)),
            Err(error) => {
                if !exchange.caller.is_rpc() {
                    exchange.put_error(pass, &error);
                }
                Ok((WrittenResult::default(), true))
            }
        }
    }

    /// Puts a task in front of the first event if that is an update: streams of 1.0 begin with a task or a
    /// message (A2A 1.0, 3.1.2). It is never in a terminal state, at which some clients stop reading.
    fn insert_first_task(
        &self,
        outcome: &WrittenResult,
        at: usize,
        end: &[u8],
        buffer: &mut Vec<u8>,
    ) -> bool {
        let exchange = &self.exchange;
        let is_up = exchange.caller.generation == Generation::V1
            && exchange.agent.generation == Generation::V0;
        let is_update = matches!(
            outcome.kind,
            Some(Kind::StatusUpdate | Kind::ArtifactUpdate)
        );
        if self.began || !is_up || !is_update {
            return false;
        }
        let mut lead = b"data: ".to_vec();
        let is_rpc = exchange.caller.is_rpc();
        if is_rpc {
            lead.extend_from_slice(exchange.response_start().concat().as_bytes());
            lead.extend_from_slice(b"\"result\":");
        }
        lead.extend_from_slice(br#"{"task":{"#);
        lead.extend_from_slice(&outcome.ids);
        lead.extend_from_slice(br#""status":{"state":"TASK_STATE_WORKING"}}}"#);
        lead.extend_from_slice(if is_rpc { b"}" } else { b"" });
        lead.extend_from_slice(end);
        lead.extend_from_slice(end);
        buffer.splice(at..at, lead);
        true
    }

    /// Translates the answer to [`super::Bridge::snapshot_request`] into the event with which a subscription of 1.0
    /// begins. Later events of the subscription follow it. A task that has ended is an error (A2A 1.0,
    /// 3.1.6).
    ///
    /// # Errors
    /// [`Failure::Answer`].
    pub fn translate_snapshot(
        &mut self,
        status: u16,
        body: &[u8],
    ) -> Result<(Vec<u8>, TranslatedEvent), Failure> {
        let body = without_mark(body);
        check_encoding(body)?;
        let exchange = &self.exchange;
        let mut pass = Pass::new(body, exchange.pass_settings());
        pass.put("data: ");
        let is_failed = status >= 400 && !exchange.agent.is_rpc();
        let told = if is_failed {
            let generation = exchange.caller.generation;
            let (_, error) = error::from_http_error(status, body, exchange.method, generation);
            Err(error)
        } else {
            let told = exchange.write_response(&mut pass, Shape::Outcome(false));
            told.map_err(Failure::of_answer)?
        };
        let error = match told {
            Ok(told) if told.kind != Some(Kind::Task) => return Err(Failure::NO_RESULT),
            // Agents of 0.3 say it in their own way, or leave the stream open.
            Ok(told) if told.state.is_some_and(TaskState::is_terminal) => {
                let message = "the task has ended, so nothing follows; get it by its id";
                error::new_error(UNSUPPORTED, message, exchange.caller.generation)
            }
            Ok(told) => {
                self.began = true;
                let mut event = pass.out;
                flatten_lines(&mut event);
                event.extend_from_slice(b"\n\n");
                self.snapshot = self.task_hash(&event["data: ".len()..]);
                let told = TranslatedEvent {
                    kind: told.kind,
                    state: told.state,
                    left_out: pass.left,
                    ..TranslatedEvent::default()
                };
                return Ok((event, told));
            }
            Err(error) => error,
        };
        let told = TranslatedEvent {
            is_error: true,
            ..TranslatedEvent::default()
        };
        Ok((self.error_event(&error, Framing::Lf).to_vec(), told))
    }

    /// Returns the hash of the task in the data of an event, without its history: some agents of 0.3 leave that out of
    /// the answer to `tasks/get`.
    fn task_hash(&self, data: &[u8]) -> Option<u64> {
        let mut text = std::str::from_utf8(data).ok()?.trim();
        if self.exchange.caller.is_rpc() {
            text = Fields::parse(text)?.get_borrowed("result")?;
        }
        let task = Fields::parse(Fields::parse(text)?.get_borrowed("task")?)?;
        let members = task.iter().filter(|(name, _)| *name != r#""history""#);
        let hashes = members.map(|member| {
            let mut hasher = DefaultHasher::new();
            member.hash(&mut hasher);
            hasher.finish()
        });
        Some(hashes.fold(0, u64::wrapping_add))
    }

    /// Returns an error of JSON-RPC as the last event of a stream.
    pub(super) fn error_event(&self, error: &str, framing: Framing) -> bytes::Bytes {
        let name = (!self.exchange.caller.is_rpc()).then_some("error");
        final_event(name, &self.exchange.error_body(error, 200).1, framing)
    }
}

/// Returns true for data that is no message of A2A: `[DONE]`, `null`, `{}`, and, of what could not be read, an object
/// without a member of one.
fn is_filler(data: &[u8], is_unread: bool) -> bool {
    let data = data.trim_ascii();
    data.strip_prefix(b"{")
        .is_none_or(|rest| rest.trim_ascii_start() == b"}" || is_unread && !is_of_a2a(data))
}

fn put_line(out: &mut Vec<u8>, line: &[u8], end: &[u8]) {
    out.extend_from_slice(line);
    out.extend_from_slice(end);
}
