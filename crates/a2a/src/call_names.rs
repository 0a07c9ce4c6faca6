//! The run, the context and the task that a call names: by what counts of a call are kept ([`CallNames`]).
//!
//! A pass of its own, made only where something is counted by them. Of a member that stands twice the first counts.

use super::json::{Kind, Value};
use super::walker::{WalkError, Walker};

/// Longest name of a run, in bytes.
pub const RUN_BYTES_MAX: usize = 128;

/// Bytes of an id that count. Ids that begin with the same ones count as one.
const ID_BYTES_MAX: usize = super::refs::TASK_ID_BYTES_MAX;

/// The names in a call that sends a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallNames {
    /// `metadata.run_id` of the params, else of the message: 1 to [`RUN_BYTES_MAX`] visible ASCII characters.
    pub run: Option<String>,
    /// `contextId` of the message.
    pub context: Option<String>,
    /// True if the message continues a task: its `taskId` is a text that is not blank.
    pub continues_task: bool,
}

/// Names in an object that may be the params: of an envelope `params`, else the body.
#[derive(Default)]
struct Params {
    run: Option<String>,
    /// `message`, and `request`, by which some clients call it. The first is what agents read.
    messages: [Option<Message>; 2],
}

#[derive(Default)]
struct Message {
    run: Option<String>,
    /// `contextId`, `context_id`, `taskId` and `task_id`.
    ids: [Option<String>; 4],
}

impl CallNames {
    /// Reads a JSON-RPC call, or the body of an HTTP+JSON request. Empty for one that cannot be read. Of members that
    /// no agent reads, such as a message beside the params of an envelope, none counts.
    pub fn from_body(body: &[u8]) -> Self {
        let (mut params, mut bare) = (Params::default(), Params::default());
        let mut is_envelope = false;
        // A broken end leaves what was read before it: the call is checked elsewhere.
        let _ = Walker::new(body).walk_members(|walker, name| match &*name.unescaped {
            b"params" => params.read(walker, body),
            b"jsonrpc" | b"method" => {
                is_envelope = true;
                walker.read_value()
            }
            name => bare.read_member(walker, body, name),
        });
        let Params { run, messages } = if is_envelope { params } else { bare };
        let message = messages.into_iter().flatten().next().unwrap_or_default();
        let [context, snake_context, task, snake_task] = message.ids;
        Self {
            run: run.or(message.run),
            context: context.or(snake_context),
            continues_task: task.or(snake_task).is_some(),
        }
    }

    /// True if `name` may name a run.
    pub fn is_run(name: &str) -> bool {
        (1..=RUN_BYTES_MAX).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic())
    }
}

impl Params {
    fn read(&mut self, walker: &mut Walker<'_>, text: &[u8]) -> Result<Value, WalkError> {
        let walked =
            walker.walk_members(|walker, name| self.read_member(walker, text, &name.unescaped));
        walked.map(|(value, _)| value)
    }

    fn read_member(
        &mut self,
        walker: &mut Walker<'_>,
        text: &[u8],
        name: &[u8],
    ) -> Result<Value, WalkError> {
        let place = match name {
            b"metadata" => return read_run_id(walker, text, &mut self.run),
            b"message" => 0,
            b"request" => 1,
            _ => return walker.read_value(),
        };
        let mut message = Message::default();
        let walked = message.read(walker, text);
        self.messages[place].get_or_insert(message);
        walked
    }
}

impl Message {
    fn read(&mut self, walker: &mut Walker<'_>, text: &[u8]) -> Result<Value, WalkError> {
        let walked = walker.walk_members(|walker, name| {
            let place = match &*name.unescaped {
                b"metadata" => return read_run_id(walker, text, &mut self.run),
                b"contextId" => 0,
                b"context_id" => 1,
                b"taskId" => 2,
                b"task_id" => 3,
                _ => return walker.read_value(),
            };
            let value = walker.read_value()?;
            let found = &mut self.ids[place];
            *found = found
                .take()
                .or_else(|| read_prefix(value, text, ID_BYTES_MAX));
            Ok(value)
        });
        walked.map(|(value, _)| value)
    }
}

/// Reads `run_id` in the metadata that follows.
fn read_run_id(
    walker: &mut Walker<'_>,
    text: &[u8],
    found: &mut Option<String>,
) -> Result<Value, WalkError> {
    let walked = walker.walk_members(|walker, name| {
        let value = walker.read_value()?;
        if *name.unescaped == *b"run_id" && found.is_none() {
            *found =
                read_prefix(value, text, RUN_BYTES_MAX + 1).filter(|name| CallNames::is_run(name));
        }
        Ok(value)
    });
    walked.map(|(value, _)| value)
}

/// Returns the first `max` bytes of a string that is not blank.
fn read_prefix(value: Value, text: &[u8], max: usize) -> Option<String> {
    let said = (value.kind == Kind::String).then(|| value.unescaped(text))?;
    let said = &said[..said.len().min(max)];
    (!said.trim_ascii().is_empty()).then(|| String::from_utf8_lossy(said).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(run: Option<&str>, context: Option<&str>, continues_task: bool) -> CallNames {
        CallNames {
            run: run.map(str::to_owned),
            context: context.map(str::to_owned),
            continues_task,
        }
    }

    #[test]
    fn a_run_is_named_by_the_params_or_the_message() {
        for (params, expected) in [
            (
                r#"{"metadata":{"run_id":"r"},"message":{"contextId":"c","metadata":{"run_id":"q"}}}"#,
                named(Some("r"), Some("c"), false),
            ),
            (
                r#"{"message":{"metadata":{"x":{"run_id":"deep"},"run_id":"q\u002d1"},"taskId":"t"}}"#,
                named(Some("q-1"), None, true),
            ),
            (
                r#"{"message":{"task_id":"","taskId":null,"parts":[{"text":"{\"run_id\":1}"}]}}"#,
                named(None, None, false),
            ),
            (
                r#"{"metadata":{"run_id":"a","run_id":"b"}}"#,
                named(Some("a"), None, false),
            ),
            (
                r#"{"metadata":{"run_id":7},"message":[1]}"#,
                named(None, None, false),
            ),
            (
                r#"{"metadata":{"run_id":"two words"}}"#,
                named(None, None, false),
            ),
            (
                r#"{"metadata":{"run_id":"r"},"message":{"contextId":"c""#,
                named(Some("r"), Some("c"), false),
            ),
            ("[]", named(None, None, false)),
            ("", named(None, None, false)),
        ] {
            assert_eq!(
                CallNames::from_body(params.as_bytes()),
                expected,
                "{params}"
            );
            let call =
                format!(r#"{{"jsonrpc":"2.0","id":1,"params":{params},"method":"message/send"}}"#);
            assert_eq!(CallNames::from_body(call.as_bytes()), expected, "{call}");
        }
        for (call, expected) in [
            (
                r#"{"jsonrpc":"2.0","message":{"taskId":"x"},"params":{"request":{"taskId":"x"},"message":{"contextId":"c"}}}"#,
                named(None, Some("c"), false),
            ),
            (
                r#"{"message":{"context_id":"d","contextId":"c"},"request":{"taskId":"x"},"params":{"message":{"taskId":"x"}}}"#,
                named(None, Some("c"), false),
            ),
            (
                r#"{"request":{"task_id":"x","contextId":" "}}"#,
                named(None, None, true),
            ),
            (
                r#"{"message":{"taskId":" ","task_id":0}}"#,
                named(None, None, false),
            ),
        ] {
            assert_eq!(CallNames::from_body(call.as_bytes()), expected, "{call}");
        }
        let long = format!(r#"{{"message":{{"contextId":"{}"}}}}"#, "c".repeat(9999));
        let context = CallNames::from_body(long.as_bytes()).context.unwrap();
        assert_eq!(context.len(), ID_BYTES_MAX);
        let long = "r".repeat(RUN_BYTES_MAX + 1);
        assert!(
            !CallNames::is_run(&long) && CallNames::is_run(&long[1..]) && !CallNames::is_run("")
        );
    }
}
