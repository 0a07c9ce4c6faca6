//! Answers ([`Exchange::translate_answer`]).

use super::error;
use super::exchange::Exchange;
use super::failure::{Failure, OmittedMembers};
use super::nodes::TASK;
use super::pass::{Pass, Settings};
use super::push::push_config_of_task;
use super::result::{WrittenResult, detect_form, write_outcome};
use super::rules::write_node;
use super::table::Form;
use crate::generation::Generation;
use crate::json::{Value, without_mark};
use crate::method::Method;

/// An answer for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
    /// The value of `Content-Type`; `None`: that of the agent, whose body is passed on as it came.
    pub content_type: Option<&'static str>,
    /// True if it is an error.
    pub is_error: bool,
    /// The members that were left out.
    pub left_out: OmittedMembers,
}

/// The shape of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A task or a message; with true also an update.
    Outcome(bool),
    /// A task.
    Task,
    /// A push configuration with its task.
    Push,
    /// A list of them.
    PushList,
    /// Nothing.
    Nothing,
    /// Of one form on both sides, or changed elsewhere (a card).
    Same,
}

impl Shape {
    /// Returns the shape of a method's answer; of an event's for `is_event`.
    pub(super) const fn of_method(method: Method, is_event: bool) -> Self {
        match method {
            Method::SendMessage => Self::Outcome(false),
            Method::SendStreamingMessage | Method::SubscribeToTask => Self::Outcome(is_event),
            Method::GetTask | Method::CancelTask => Self::Task,
            Method::CreatePushConfig | Method::GetPushConfig => Self::Push,
            Method::ListPushConfigs => Self::PushList,
            Method::DeletePushConfig => Self::Nothing,
            _ => Self::Same,
        }
    }
}

/// The media type of errors, in each binding and generation (A2A 1.0, 11.6).
const OF_ERRORS: &str = "application/json";

/// A result that was written, or an error in the caller's form.
type Written = Result<Result<WrittenResult, String>, Failure>;

/// The members of a JSON-RPC response, once they were walked over.
#[derive(Default)]
struct Response {
    result: Option<WrittenResult>,
    /// The bytes of the result in the buffer.
    range: (usize, usize),
    error: Option<Value>,
    has_id: bool,
    has_version: bool,
}

impl Exchange {
    /// Translates an answer of the agent: a whole body. `status` is its HTTP status.
    ///
    /// A body that is no response, with a status that is an error's, is passed on as it came to callers of
    /// JSON-RPC: it is of a proxy, or about authentication, and of no generation.
    ///
    /// The result of [`Method::GetExtendedCard`] is not translated: the card is ([`super::card`]).
    ///
    /// # Errors
    /// [`Failure::Answer`].
    pub fn translate_answer(&self, status: u16, body: &[u8]) -> Result<Answer, Failure> {
        let shape = Shape::of_method(self.method, false);
        let body = without_mark(body);
        if !self.agent.is_rpc() && status >= 400 {
            return Ok(self.error_from_http(status, body));
        }
        if self.agent.is_rpc() && status >= 400 && !is_response(body) {
            return self.pass_foreign_answer(status, body);
        }
        check_encoding(body)?;
        let mut pass = Pass::new(body, self.pass_settings());
        let told = self.write_response(&mut pass, shape);
        let (status, is_error) = match told.map_err(Failure::of_answer)? {
            Ok(told) if told.is_unknown => return Err(Failure::NO_RESULT),
            // 201 is none of JSON-RPC, 204 has no body, and a result is no error.
            Ok(_) => (200, false),
            Err(_) if self.caller.is_rpc() => (status, true),
            Err(error) => {
                let (status, body) = error::to_http_error(&error, status, self);
                pass.out = body.into_bytes();
                (status, true)
            }
        };
        Ok(Answer {
            status,
            body: pass.out,
            content_type: Some(match is_error {
                true => OF_ERRORS,
                false => self.caller.content_type(),
            }),
            is_error,
            left_out: pass.left,
        })
    }

    /// Returns the answer to a method that streams as one event: SDK clients read nothing else there. Errors become
    /// events for callers of 0.3 only; those of 1.0 read them from the body.
    #[must_use]
    pub fn as_event(&self, answer: Answer) -> Answer {
        let wanted = self.streams()
            && (200..300).contains(&answer.status)
            && !(answer.is_error && self.caller.generation == Generation::V1);
        if !wanted {
            return answer;
        }
        let mut body = [&b"data: "[..], &answer.body].concat();
        flatten_lines(&mut body);
        body.extend_from_slice(b"\n\n");
        Answer {
            body,
            content_type: Some("text/event-stream"),
            ..answer
        }
    }

    pub(super) fn pass_settings(&self) -> Settings<'static> {
        Settings {
            from: self.agent.wire_form(),
            to: self.caller.wire_form(),
            zero_is_all: self.caller.generation == Generation::V0,
            without_history: self.without_history,
            files: self.files,
            ..Settings::default()
        }
    }

    /// Writes the response of the agent that follows, as a whole text. Returns its error, if it is one, in the
    /// caller's form; callers of HTTP+JSON get it as another body.
    pub(super) fn write_response(&self, pass: &mut Pass<'_>, shape: Shape) -> Written {
        let told = if self.agent.is_rpc() {
            self.write_from_rpc(pass, shape)?
        } else {
            self.write_from_rest(pass, shape)?
        };
        pass.walker.expect_end()?;
        Ok(told)
    }

    fn write_from_rpc(&self, pass: &mut Pass<'_>, shape: Shape) -> Written {
        let mut response = Response::default();
        self.write_members(pass, shape, &mut response)?;
        let is_rpc = self.caller.is_rpc();
        if let Some(error) = response.error {
            let (start, end) = response.range;
            pass.out.drain(start..end);
            let error = String::from_utf8_lossy(error.raw(pass.text));
            let error = error::to_rpc_error(&error, self.caller.generation);
            if is_rpc {
                pass.put("\"error\":");
                pass.put(&error);
                pass.close();
            }
            return Ok(Err(error));
        }
        let told = match response.result {
            Some(told) => told,
            None if shape == Shape::Nothing => {
                pass.put(if is_rpc { "\"result\":" } else { "" });
                pass.put_nothing();
                WrittenResult::default()
            }
            None => return Err(Failure::NO_RESULT),
        };
        if is_rpc {
            pass.close();
        }
        Ok(Ok(told))
    }

    /// Walks over the members of a JSON-RPC response, and writes all but an error.
    fn write_members(
        &self,
        pass: &mut Pass<'_>,
        shape: Shape,
        response: &mut Response,
    ) -> Result<(), Failure> {
        let is_rpc = self.caller.is_rpc();
        if pass.walker.peek() != Some(b'{') {
            pass.walker.read_value()?;
            return Err(Failure::NO_RESULT);
        }
        if is_rpc {
            pass.out.push(b'{');
        }
        pass.walk_members(|pass, name| {
            let is_null = pass.walker.peek() == Some(b'n');
            match name {
                b"result" if !is_null => {
                    let (start, end) = std::mem::take(&mut response.range);
                    pass.out.drain(start..end);
                    let start = pass.out.len();
                    pass.put(if is_rpc { "\"result\":" } else { "" });
                    response.result = Some(write_shaped(pass, shape)?);
                    pass.put(if is_rpc { "," } else { "" });
                    response.range = (start, pass.out.len());
                }
                b"error" if !is_null => response.error = Some(pass.walker.read_value()?),
                b"result" | b"error" => drop(pass.walker.read_value()?),
                b"jsonrpc" | b"id" => {
                    let value = pass.walker.read_value()?;
                    let (has, name) = match name {
                        b"id" => (&mut response.has_id, "id"),
                        _ => (&mut response.has_version, "jsonrpc"),
                    };
                    if is_rpc && !std::mem::replace(has, true) {
                        pass.put_member(name, value);
                    }
                }
                _ => {
                    pass.walker.read_value()?;
                    pass.left.add("response", "other");
                }
            }
            Ok(())
        })
    }

    /// Writes a body of HTTP+JSON.
    fn write_from_rest(&self, pass: &mut Pass<'_>, shape: Shape) -> Written {
        let is_rpc = self.caller.is_rpc();
        let start = pass.out.len();
        if is_rpc {
            for part in self.response_start() {
                pass.put(part);
            }
            pass.put("\"result\":");
        }
        if pass.walker.peek().is_none() && shape == Shape::Nothing {
            pass.put_nothing();
            pass.put(if is_rpc { "}" } else { "" });
            return Ok(Ok(WrittenResult::default()));
        }
        let text = pass.text;
        let open = pass.walker.position();
        if is_status(&text[open..]) {
            pass.out.truncate(start);
            pass.walker.read_value()?;
            let (_, error) =
                error::from_http_error(500, &text[open..], self.method, self.caller.generation);
            if is_rpc {
                self.put_error(pass, &error);
            }
            return Ok(Err(error));
        }
        let told = write_shaped(pass, shape)?;
        pass.put(if is_rpc { "}" } else { "" });
        Ok(Ok(told))
    }

    /// Writes an error in the caller's form.
    pub(super) fn put_error(&self, pass: &mut Pass<'_>, error: &str) {
        pass.put(&self.error_body(error, 200).1);
    }

    /// Returns the status and the body for an error of JSON-RPC, in the caller's form.
    pub(super) fn error_body(&self, error: &str, status: u16) -> (u16, String) {
        if self.caller.is_rpc() {
            (
                status,
                self.response_start().concat() + "\"error\":" + error + "}",
            )
        } else {
            error::to_http_error(error, status, self)
        }
    }

    /// Returns the beginning of a response of JSON-RPC.
    pub(super) fn response_start(&self) -> [&str; 3] {
        let id = self.id.as_deref().unwrap_or("null");
        [r#"{"jsonrpc":"2.0","id":"#, id, ","]
    }

    /// Returns the answer for an error of HTTP+JSON.
    fn error_from_http(&self, status: u16, body: &[u8]) -> Answer {
        let (status, error) =
            error::from_http_error(status, body, self.method, self.caller.generation);
        self.with_error(status, &error)
    }

    pub(super) fn with_error(&self, status: u16, error: &str) -> Answer {
        let (status, body) = self.error_body(error, status);
        Answer {
            status,
            body: body.into_bytes(),
            content_type: Some(OF_ERRORS),
            is_error: true,
            left_out: OmittedMembers::default(),
        }
    }

    /// Returns the answer for a body that is no response.
    ///
    /// # Errors
    /// [`Failure::Answer`] for one that looks like an answer of the agent's generation.
    fn pass_foreign_answer(&self, status: u16, body: &[u8]) -> Result<Answer, Failure> {
        if !self.caller.is_rpc() {
            return Ok(self.error_from_http(status, body));
        }
        if is_of_a2a(body) {
            return Err(Failure::NO_RESULT);
        }
        Ok(Answer {
            status,
            body: body.to_vec(),
            content_type: None,
            is_error: true,
            left_out: OmittedMembers::default(),
        })
    }
}

/// Writes a result, in the form that it has, whatever the agent's card says.
pub(super) fn write_shaped(pass: &mut Pass<'_>, shape: Shape) -> Result<WrittenResult, Failure> {
    let said = match shape {
        Shape::Outcome(_) | Shape::Task => detect_form(pass),
        Shape::Push | Shape::PushList | Shape::Nothing | Shape::Same => pass.settings.from,
    };
    let of_card = std::mem::replace(&mut pass.settings.from, said);
    let written = write_as_said(pass, shape, of_card != said);
    pass.settings.from = of_card;
    written
}

/// As [`write_shaped`], in the form of the settings. `is_other`: that is not the one of the agent's card, and the kind
/// of the result is needed also where both sides have one form.
fn write_as_said(
    pass: &mut Pass<'_>,
    shape: Shape,
    is_other: bool,
) -> Result<WrittenResult, Failure> {
    let is_same = pass.settings.from == pass.settings.to
        && !(is_other && pass.settings.to == Form::V1)
        || shape == Shape::Same;
    match shape {
        Shape::Nothing => {
            pass.walker.read_value()?;
            pass.put_nothing();
        }
        _ if is_same => {
            let value = pass.walker.read_value()?;
            pass.copy(value);
            return Ok(WrittenResult::default());
        }
        Shape::Outcome(updates) => return write_outcome(pass, updates),
        Shape::Push => push_config_of_task(pass, None)?,
        Shape::PushList => push_list(pass)?,
        Shape::Task | Shape::Same => write_node(pass, &TASK)?,
    }
    Ok(WrittenResult::default())
}

/// Makes one line of the data of an event.
pub(super) fn flatten_lines(data: &mut [u8]) {
    let breaks = data.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r'));
    breaks.for_each(|byte| *byte = b' ');
}

/// Writes a list of push configurations: 0.3's JSON-RPC has an array, the others have it in an object.
fn push_list(pass: &mut Pass<'_>) -> Result<(), Failure> {
    if pass.settings.to != Form::V0 {
        pass.put("{\"configs\":");
    }
    let start = pass.out.len();
    if pass.settings.from == Form::V0 {
        pass.put_list("configs", |pass| push_config_of_task(pass, None))?;
    } else if pass.is_object()? {
        pass.walk_members(|pass, name| {
            if name == b"configs" && pass.walker.peek() == Some(b'[') {
                pass.out.truncate(start);
                pass.put_list("configs", |pass| push_config_of_task(pass, None))?;
            } else if !pass.walker.read_value()?.is_void() {
                pass.left.add("push_list", "other");
            }
            Ok(())
        })?;
    } else {
        return Err(Failure::NO_RESULT);
    }
    if pass.out.len() == start {
        pass.put("[]");
    }
    if pass.settings.to != Form::V0 {
        pass.out.push(b'}');
    }
    Ok(())
}

/// Rejects a text of the agent that is not UTF-8.
///
/// # Errors
/// [`Failure::Answer`].
pub(super) fn check_encoding(text: &[u8]) -> Result<(), Failure> {
    std::str::from_utf8(text)
        .map(drop)
        .or(Err(Failure::NOT_UTF8))
}

/// Returns true for JSON with a member of a response or a result, and for what only begins like JSON. The errors of
/// proxies and frameworks are objects with other members, or no JSON; so are heartbeats in a stream.
pub(super) fn is_of_a2a(body: &[u8]) -> bool {
    const MEMBERS: &str =
        "jsonrpc result kind task parts contextId taskId statusUpdate artifactUpdate artifacts";
    let text = String::from_utf8_lossy(body);
    let text = text.trim_start_matches('\u{feff}').trim();
    let fields = crate::fields::Fields::parse(text);
    match fields {
        Some(fields) => MEMBERS.split(' ').any(|member| fields.contains(member)),
        None => text.starts_with(['{', '[']),
    }
}

/// Returns true for an object with the member `result` or `error`.
fn is_response(body: &[u8]) -> bool {
    let text = std::str::from_utf8(body).ok();
    let fields = text.and_then(|text| crate::fields::Fields::parse(text.trim()));
    fields.is_some_and(|fields| fields.contains("result") || fields.contains("error"))
}

/// Returns true for a google.rpc.Status, which a stream of HTTP+JSON ends with: an object with `error` alone.
fn is_status(text: &[u8]) -> bool {
    let mut walker = crate::walker::Walker::new(text);
    walker.peek() == Some(b'{')
        && walker.enter_container(b'{', b'}') == Ok(true)
        && walker
            .read_name()
            .is_ok_and(|name| *name.unescaped == *b"error")
        && walker.peek() == Some(b'{')
}
