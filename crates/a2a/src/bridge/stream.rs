//! Streams ([`Stream`]): each event is translated by itself, and the beginning is made up where 1.0 requires
//! one that 0.3 does not have.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::answer::{Shape, check_encoding, is_of_a2a};
use super::error;
use super::exchange::Exchange;
use super::failure::{Failure, Fault};
use super::omitted_members::OmittedMembers;
use super::pass::Pass;
use super::result::{Kind, WrittenResult};
use crate::event::{Framing, data_value, final_event, line_end, split_lines};
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
    /// [`Failure::Answer`]: the stream ends with [`Stream::failure_event`].
    pub fn translate_block(
        &mut self,
        block: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<TranslatedEvent, Failure> {
        check_encoding(block)?;
        let (data, pieces) = join_data(block);
        if data.iter().all(u8::is_ascii_whitespace) {
            out.extend_from_slice(block);
            return Ok(TranslatedEvent::default());
        }
        let start = out.len();
        let end = line_end(block);
        let mut buffer = std::mem::take(out);
        let mut rest = split_lines(block);
        for line in rest.by_ref() {
            if data_value(line).is_some() {
                break;
            }
            put_line(&mut buffer, line, end);
        }
        buffer.extend_from_slice(b"data: ");
        let at = buffer.len();
        let mut pass = Pass::append_to(buffer, &data, self.exchange.pass_settings());
        let is_named =
            split_lines(block).any(|line| matches!(line, b"event: error" | b"event:error"));
        let written = self.write_event(&mut pass, is_named);
        let (mut buffer, mut left_out) = (pass.out, pass.left);
        if !is_named && is_filler(&data, written.is_err()) {
            buffer.truncate(start);
            *out = buffer;
            left_out.add("event", "other");
            return Ok(TranslatedEvent {
                is_skipped: true,
                left_out,
                ..TranslatedEvent::default()
            });
        }
        let Ok((outcome, is_error)) = written else {
            buffer.truncate(start);
            *out = buffer;
            return written
                .map(|_| TranslatedEvent::default())
                .map_err(Fault::of_answer);
        };
        // Some agents of 0.3 begin with the task, too.
        let snapshot = self.snapshot.take();
        let repeats = snapshot.is_some() && snapshot == self.task_hash(&buffer[at..]);
        let mut told = TranslatedEvent {
            kind: outcome.kind,
            state: outcome.state,
            is_error,
            is_skipped: outcome.is_unknown || repeats,
            left_out,
            ..TranslatedEvent::default()
        };
        if outcome.is_unknown {
            told.left_out.add("event", "other");
        }
        if told.is_skipped {
            buffer.truncate(start);
            *out = buffer;
            return Ok(told);
        }
        if pieces > 1 {
            let breaks = buffer[at..]
                .iter_mut()
                .filter(|byte| matches!(byte, b'\n' | b'\r'));
            breaks.for_each(|byte| *byte = b' ');
        }
        buffer.extend_from_slice(end);
        for line in rest.filter(|line| data_value(line).is_none()) {
            put_line(&mut buffer, line, end);
        }
        let is_rest_error = is_error && !self.exchange.caller.is_rpc();
        if is_rest_error && !split_lines(&buffer[start..at]).any(|line| line.starts_with(b"event:"))
        {
            let name = [b"event: error", end].concat();
            buffer.splice(start..start, name);
        }
        told.is_led = self.insert_first_task(&outcome, start, end, &mut buffer);
        self.began |= !is_error;
        told.ends = outcome.kind == Some(Kind::StatusUpdate)
            && outcome.state.is_some_and(TaskState::is_terminal);
        *out = buffer;
        Ok(told)
    }

    /// Writes the data of an event. Returns true with it if it is an error. `is_named`: its name says so, which
    /// is all that tells errors of HTTP+JSON 0.3 apart.
    fn write_event(
        &self,
        pass: &mut Pass<'_>,
        is_named: bool,
    ) -> Result<(WrittenResult, bool), Fault> {
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
            let id = exchange.id.as_deref().unwrap_or("null");
            lead.extend_from_slice(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"#).as_bytes());
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
            told.map_err(Fault::of_answer)?
        };
        let error = match told {
            Ok(told) if told.kind != Some(Kind::Task) => return Err(Fault::NoResult.of_answer()),
            // Agents of 0.3 say it in their own way, or leave the stream open.
            Ok(told) if told.state.is_some_and(TaskState::is_terminal) => {
                let message = "the task has ended, so nothing follows; get it by its id";
                error::new_error(UNSUPPORTED, message, exchange.caller.generation)
            }
            Ok(told) => {
                self.began = true;
                pass.put("\n\n");
                let event = flatten_lines(pass.out);
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

    /// Returns the last event of a stream that cannot be translated further.
    pub fn failure_event(&self, failure: &Failure, framing: Framing) -> bytes::Bytes {
        let generation = self.exchange.caller.generation;
        let error = error::new_error(failure.code(), &failure.to_string(), generation);
        self.error_event(&error, framing)
    }

    fn error_event(&self, error: &str, framing: Framing) -> bytes::Bytes {
        let exchange = &self.exchange;
        if exchange.caller.is_rpc() {
            let id = exchange.id.as_deref().unwrap_or("null");
            let json = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
            return final_event(None, &json, framing);
        }
        let (_, body) = error::to_http_error(error, 200, exchange);
        final_event(Some("error"), &body, framing)
    }
}

/// Returns true for data that is no message of A2A: `[DONE]`, `null`, `{}`, and, of what could not be read, an object
/// without a member of one.
fn is_filler(data: &[u8], is_unread: bool) -> bool {
    let data = data.trim_ascii();
    data.strip_prefix(b"{")
        .is_none_or(|rest| rest.trim_ascii_start() == b"}" || is_unread && !is_of_a2a(data))
}

/// Returns an event whose data is one line.
fn flatten_lines(mut event: Vec<u8>) -> Vec<u8> {
    let body = event.len().saturating_sub(2);
    let breaks = event[..body]
        .iter_mut()
        .filter(|byte| matches!(byte, b'\n' | b'\r'));
    breaks.for_each(|byte| *byte = b' ');
    event
}

fn put_line(out: &mut Vec<u8>, line: &[u8], end: &[u8]) {
    out.extend_from_slice(line);
    out.extend_from_slice(end);
}

/// Returns the `data` lines of a block, joined, and their number.
fn join_data(block: &[u8]) -> (Cow<'_, [u8]>, usize) {
    let mut data = split_lines(block).filter_map(data_value);
    let first = data.next().unwrap_or_default();
    let Some(second) = data.next() else {
        return (Cow::Borrowed(first), 1);
    };
    let mut joined = Vec::with_capacity(block.len());
    joined.extend_from_slice(first);
    let mut pieces = 1;
    for line in std::iter::once(second).chain(data) {
        joined.push(b'\n');
        joined.extend_from_slice(line);
        pieces += 1;
    }
    (Cow::Owned(joined), pieces)
}
