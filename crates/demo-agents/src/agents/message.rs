//! The message of a send or stream call, validated strictly against A2A 0.3.

use serde_json::Value;

use super::rpc::Fault;
use super::task::Tasks;

/// A validated message.
pub(super) struct Prompt {
    /// All text parts, one per line.
    pub(super) text: String,
    /// The caller's context id, or a new one.
    pub(super) context_id: String,
    /// True if the response waits for the end of the work.
    pub(super) blocking: bool,
    /// The message itself, for the history of the task.
    pub(super) message: Value,
}

impl Prompt {
    /// Validates `params` of `message/send` and `message/stream`.
    ///
    /// # Errors
    /// Returns the fault that names the missing or wrong member.
    pub(super) fn from_params(params: &Value, tasks: &Tasks) -> Result<Self, Fault> {
        let message = &params["message"];
        let is_of_message = message["kind"].is_null() || message["kind"] == "message";
        let wrong = if !message.is_object() {
            "params.message is required, and is an object"
        } else if message["messageId"].as_str().is_none_or(str::is_empty) {
            "message.messageId is required, and is a string"
        } else if !matches!(message["role"].as_str(), Some("user" | "agent")) {
            "message.role is required: `user` or `agent`"
        } else if !is_of_message {
            "message.kind must be `message`"
        } else {
            ""
        };
        if !wrong.is_empty() {
            return Err(Fault::invalid_params(wrong));
        }
        let text = join_texts(&message["parts"])?;
        // These agents never ask the caller for input, so no task takes a second message.
        match &message["taskId"] {
            Value::Null => {}
            Value::String(id) if tasks.find(id).is_some() => {
                return Err(Fault::invalid_params("the task takes no further messages"));
            }
            Value::String(_) => return Err(Fault::TASK),
            _ => return Err(Fault::invalid_params("message.taskId must be a string")),
        }
        let context_id = message["contextId"]
            .as_str()
            .map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
        Ok(Self {
            text,
            context_id,
            blocking: params["configuration"]["blocking"] != false,
            message: message.clone(),
        })
    }
}

fn join_texts(parts: &Value) -> Result<String, Fault> {
    let parts = parts.as_array().filter(|parts| !parts.is_empty());
    let wrong = Fault::invalid_params("message.parts is required, and is not empty");
    let texts = parts.ok_or(wrong)?.iter().map(|part| {
        let wrong = match part["kind"].as_str() {
            Some("text") => match part["text"].as_str() {
                Some(text) => return Ok(text),
                None => "a text part needs `text`",
            },
            Some("file") if part["file"].is_object() => return Ok("(a file)"),
            Some("data") if part["data"].is_object() => return Ok("(data)"),
            _ => "a part has `kind`: `text`, `file` or `data`, and the member of that name",
        };
        Err(Fault::invalid_params(wrong))
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}
