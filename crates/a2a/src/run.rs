//! The run, the context and the task that a call names: by what counts of a call are kept ([`Named`]).
//!
//! A pass of its own, made only where something is counted by them. Of a member that stands twice the first counts.

use super::json::{Kind, Object, Value};
use super::walker::{Broken, Walker};

/// Longest name of a run, in bytes.
pub const RUN_BYTES_MAX: usize = 128;

/// Longest id of a context, in bytes.
const CONTEXT_BYTES_MAX: usize = super::refs::TASK_ID_BYTES_MAX;

/// The names in a call that sends a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// `metadata.run_id` of the params, else of the message: 1 to [`RUN_BYTES_MAX`] visible ASCII characters.
    pub run: Option<String>,
    /// `contextId` of the message.
    pub context: Option<String>,
    /// True if the message continues a task (`taskId`).
    pub continues_task: bool,
}

impl Named {
    /// Reads a JSON-RPC call, or the body of an HTTP+JSON request. Empty for one that cannot be read.
    pub fn of(body: &[u8]) -> Self {
        let (mut named, mut bare) = (Self::default(), Self::default());
        let (mut run, mut run_of_message) = (None, None);
        let mut walker = Walker::new(body);
        // A broken end leaves what was read before it: the call is checked elsewhere.
        let _ = object(&mut walker, |walker, name| match name {
            b"params" => named.params(walker, body),
            b"metadata" => run_in(walker, body, &mut run),
            b"message" | b"request" => bare.message(walker, body, &mut run_of_message),
            _ => walker.value(),
        });
        bare.run = run.or(run_of_message);
        if named == Self::default() {
            bare
        } else {
            named
        }
    }

    /// True if `name` may name a run.
    pub fn is_run(name: &str) -> bool {
        (1..=RUN_BYTES_MAX).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic())
    }

    fn params(&mut self, walker: &mut Walker<'_>, text: &[u8]) -> Result<Value, Broken> {
        let (mut of_params, mut of_message) = (None, None);
        let walked = object(walker, |walker, name| match name {
            b"metadata" => run_in(walker, text, &mut of_params),
            b"message" | b"request" => self.message(walker, text, &mut of_message),
            _ => walker.value(),
        });
        self.run = of_params.or(of_message);
        walked
    }

    fn message(
        &mut self,
        walker: &mut Walker<'_>,
        text: &[u8],
        found: &mut Option<String>,
    ) -> Result<Value, Broken> {
        object(walker, |walker, name| match name {
            b"metadata" => run_in(walker, text, found),
            b"contextId" | b"context_id" => {
                let value = walker.value()?;
                let id = string(value, text, CONTEXT_BYTES_MAX);
                self.context = self.context.take().or(id);
                Ok(value)
            }
            b"taskId" | b"task_id" => {
                let value = walker.value()?;
                self.continues_task |= !value.is_void();
                Ok(value)
            }
            _ => walker.value(),
        })
    }
}

/// Reads `run_id` in the metadata that follows.
fn run_in(
    walker: &mut Walker<'_>,
    text: &[u8],
    found: &mut Option<String>,
) -> Result<Value, Broken> {
    object(walker, |walker, name| {
        let value = walker.value()?;
        if name == b"run_id" && found.is_none() {
            *found = string(value, text, RUN_BYTES_MAX).filter(|name| Named::is_run(name));
        }
        Ok(value)
    })
}

/// Returns a string of 1 to `max` bytes.
fn string(value: Value, text: &[u8], max: usize) -> Option<String> {
    let said = (value.kind == Kind::String).then(|| value.said(text))?;
    let fits = (1..=max).contains(&said.len());
    fits.then(|| String::from_utf8_lossy(&said).into_owned())
}

/// Walks over the value that follows; over its members if it is an object.
fn object(
    walker: &mut Walker<'_>,
    mut each: impl FnMut(&mut Walker<'_>, &[u8]) -> Result<Value, Broken>,
) -> Result<Value, Broken> {
    if walker.peek() != Some(b'{') {
        return walker.value();
    }
    let walked: Object = walker.object(|walker, name| each(walker, &name.said))?;
    Ok(walked.value())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(run: Option<&str>, context: Option<&str>, continues_task: bool) -> Named {
        Named {
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
            assert_eq!(Named::of(params.as_bytes()), expected, "{params}");
            let call =
                format!(r#"{{"jsonrpc":"2.0","id":1,"params":{params},"method":"message/send"}}"#);
            assert_eq!(Named::of(call.as_bytes()), expected, "{call}");
        }
        let long = "r".repeat(RUN_BYTES_MAX + 1);
        assert!(!Named::is_run(&long) && Named::is_run(&long[1..]) && !Named::is_run(""));
    }
}
