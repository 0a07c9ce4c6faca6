//! Parsed call to a polling agent, as far as the gateway answers it itself.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use a2a::Generation;
use kernel::rejection::{Reason, Rejection};

/// A parsed call.
pub(super) struct InboxCall<'a> {
    /// Its id as spelled in the request; `null` if it has none.
    pub(super) id: &'a str,
    /// Name of its method.
    pub(super) name: Cow<'a, str>,
    /// Params of the call.
    pub(super) params: Params,
}

/// Members that matter, of any method. Members of both generations are spelled alike.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Params {
    /// Task id.
    id: Value,
    /// Messages of its history to return.
    history_length: Option<u32>,
    /// Message to send.
    message: Message,
    /// Of a list: conversation of the tasks.
    pub(super) context_id: Option<String>,
    /// Of a list: state of the tasks.
    pub(super) status: Option<String>,
    /// Of a list: page size.
    pub(super) page_size: Option<u32>,
    /// Of a list: token of the page.
    pub(super) page_token: Option<String>,
    /// Of a list: true if artifacts are to be included.
    pub(super) include_artifacts: Option<bool>,
    /// Configuration of a send call.
    configuration: Configuration,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Message {
    task_id: Value,
    context_id: Value,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Configuration {
    history_length: Option<u32>,
    /// 0.3: true if the response waits for the end of the agent's turn.
    blocking: Value,
    /// 1.0: true if it does not wait.
    return_immediately: Value,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

impl<'a> InboxCall<'a> {
    /// Reads a completed call. `known`: true for a method of A2A; the params of other methods are not parsed.
    ///
    /// # Errors
    /// `invalid_params`, `invalid_request`.
    pub(super) fn parse(body: &'a [u8], known: bool) -> Result<Self, Rejection> {
        let envelope: Envelope<'a> = serde_json::from_slice(body).map_err(|_| {
            let message =
                "the call has a `method` that is no string, or a member that stands twice";
            Rejection::new(Reason::InvalidRequest, message)
        })?;
        let params = match envelope.params {
            Some(params) if known => serde_json::from_str(params.get()).map_err(|_| {
                let message = "a member of `params` has the wrong type, or stands twice";
                Rejection::new(Reason::InvalidParams, message)
            })?,
            _ => Params::default(),
        };
        Ok(Self {
            id: envelope.id.map_or("null", RawValue::get),
            name: envelope.method.unwrap_or_default(),
            params,
        })
    }

    /// True if the caller waits for the end of the agent's turn: in 0.3 if the call asks for it, in 1.0 unless
    /// it asks for the opposite.
    pub(super) fn is_blocking(&self) -> bool {
        let configuration = &self.params.configuration;
        match self.generation() {
            Generation::V0 => configuration.blocking == true,
            Generation::V1 => configuration.return_immediately != true,
        }
    }

    /// Returns the generation of the response, from the method's name, which differs for each method.
    pub(super) fn generation(&self) -> Generation {
        Generation::of_method(&self.name)
    }
}

impl Params {
    /// Returns the id of the requested task.
    ///
    /// # Errors
    /// `invalid_params`.
    pub(super) fn task_id(&self) -> Result<&str, Rejection> {
        let id = self.id.as_str().filter(|id| !id.is_empty());
        id.ok_or_else(|| {
            let message = "`params.id` is the id of a task, a string";
            Rejection::new(Reason::InvalidParams, message)
        })
    }

    /// Returns the id of the task that a message continues.
    pub(super) fn continued_task(&self) -> Option<&str> {
        self.message.task_id.as_str().filter(|id| !id.is_empty())
    }

    /// Returns the conversation of a message.
    pub(super) fn message_context(&self) -> Option<&str> {
        self.message.context_id.as_str().filter(|id| !id.is_empty())
    }

    /// Returns the messages of a task's history to include; `None`: all.
    pub(super) fn history_limit(&self) -> Option<u32> {
        self.history_length.or(self.configuration.history_length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_in_either_generation() {
        let read = |text: &'static str| InboxCall::parse(text.as_bytes(), true);
        let call = read(
            r#"{"jsonrpc":"2.0","id":1.0,"method":"GetTask","params":{"id":"t","historyLength":3}}"#,
        );
        let call = call.unwrap_or_else(|_| panic!("it can be read"));
        assert_eq!((call.id, &*call.name), ("1.0", "GetTask"));
        assert_eq!(call.generation(), Generation::V1);
        assert_eq!(call.params.task_id().ok(), Some("t"));
        assert_eq!(call.params.history_limit(), Some(3));
        let call = read(
            r#"{"method":"message/send","params":{"message":{"taskId":"t","contextId":"c","parts":[]},"x":1}}"#,
        );
        let call = call.unwrap_or_else(|_| panic!("it can be read"));
        assert_eq!((call.id, call.generation()), ("null", Generation::V0));
        assert!(!call.is_blocking());
        let said = (call.params.continued_task(), call.params.message_context());
        assert_eq!(said, (Some("t"), Some("c")));
        assert!(call.params.task_id().is_err());
        for (text, blocks) in [
            (
                r#"{"method":"message/send","params":{"configuration":{"blocking":true}}}"#,
                true,
            ),
            (
                r#"{"method":"message/send","params":{"configuration":{"blocking":"true"}}}"#,
                false,
            ),
            (r#"{"method":"SendMessage","params":{}}"#, true),
            (
                r#"{"method":"SendMessage","params":{"configuration":{"returnImmediately":false}}}"#,
                true,
            ),
            (
                r#"{"method":"SendMessage","params":{"configuration":{"returnImmediately":true}}}"#,
                false,
            ),
        ] {
            let call = read(text).unwrap_or_else(|_| panic!("{text}"));
            assert_eq!(call.is_blocking(), blocks, "{text}");
        }
        for wrong in [
            r#"{"method":"tasks/get","params":{"id":"a","id":"b"}}"#,
            r#"{"method":"tasks/get","params":{"historyLength":-1}}"#,
            r#"{"method":1}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
