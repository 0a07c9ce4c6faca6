//! Tasks of an example agent: their state, the work on them and their subscribers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, broadcast};

use super::rpc::Fault;

/// Maximum tasks in memory; the oldest finished task is evicted for a new one.
const TASKS_MAX: usize = 256;

/// Interval between two progress events.
const STEP: Duration = Duration::from_millis(300);

/// Progress texts of the slow agent; with [`STEP`], three seconds of work.
pub(super) const STEPS: [&str; 10] = [
    "reading the request",
    "looking at what is there",
    "asking a colleague",
    "making a plan",
    "throwing the plan away",
    "making a better plan",
    "doing the work",
    "checking the work",
    "writing it down",
    "reading it once more",
];

/// One task.
pub(super) struct Task {
    id: String,
    context_id: String,
    now: Mutex<TaskState>,
    events: broadcast::Sender<Arc<Value>>,
    canceled: Notify,
}

/// The current state of a task, as an A2A object.
struct TaskState {
    task: Value,
    ended: bool,
}

impl Task {
    fn new(prompt: &Prompt) -> Self {
        let id = uuid::Uuid::new_v4().to_string();
        let task = json!({
            "kind": "task",
            "id": id,
            "contextId": prompt.context_id,
            "status": {"state": "submitted", "timestamp": timestamp()},
            "artifacts": [],
            "history": [prompt.message],
        });
        Self {
            id,
            context_id: prompt.context_id.clone(),
            now: Mutex::new(TaskState { task, ended: false }),
            // Holds all events of a script, so that a slow reader still gets the last one.
            events: broadcast::Sender::new(STEPS.len() + 6),
            canceled: Notify::new(),
        }
    }

    /// Returns the task as an A2A object.
    pub(super) fn snapshot(&self) -> Value {
        self.now.lock().task.clone()
    }

    /// Returns the current task, whether it has ended, and a receiver of its later events.
    pub(super) fn subscribe(&self) -> (Value, bool, broadcast::Receiver<Arc<Value>>) {
        let now = self.now.lock();
        (now.task.clone(), now.ended, self.events.subscribe())
    }

    /// Cancels the task.
    ///
    /// # Errors
    /// If the task has ended already.
    pub(super) fn cancel(&self) -> Result<(), Fault> {
        if !self.move_to("canceled", None, true) {
            return Err(Fault::NOT_CANCELABLE);
        }
        self.canceled.notify_one();
        Ok(())
    }

    /// Goes through the steps of the work, until its answer or until the task is canceled.
    pub(super) async fn run_steps(self: Arc<Self>, steps: &[&str], answer: String) {
        for (i, step) in steps.iter().enumerate() {
            tokio::select! {
                () = tokio::time::sleep(STEP) => {}
                () = self.canceled.notified() => return,
            }
            let text = format!("step {} of {}: {step}", i + 1, steps.len());
            if !self.move_to("working", Some(&text), false) {
                return;
            }
        }
        if self.add_artifact(&answer) {
            self.move_to("completed", None, true);
        }
    }

    /// Moves the task to a state and sends the event to its subscribers; `false` if the task had
    /// ended.
    fn move_to(&self, state: &str, text: Option<&str>, last: bool) -> bool {
        let mut now = self.now.lock();
        if now.ended {
            return false;
        }
        let mut status = json!({"state": state, "timestamp": timestamp()});
        if let Some(text) = text {
            status["message"] = agent_message(&self.context_id, text);
            status["message"]["taskId"] = json!(self.id);
        }
        self.publish(json!({"kind": "status-update", "status": status, "final": last}));
        now.task["status"] = status;
        now.ended = last;
        true
    }

    fn add_artifact(&self, text: &str) -> bool {
        let mut now = self.now.lock();
        if now.ended {
            return false;
        }
        let artifact = json!({
            "artifactId": uuid::Uuid::new_v4().to_string(),
            "name": "answer",
            "parts": [{"kind": "text", "text": text}],
        });
        self.publish(json!({
            "kind": "artifact-update",
            "artifact": artifact,
            "append": false,
            "lastChunk": true,
        }));
        now.task["artifacts"] = json!([artifact]);
        true
    }

    /// Sends an event to all subscribers. Called with the state locked, so that events keep the
    /// order of the changes.
    fn publish(&self, mut event: Value) {
        event["taskId"] = json!(self.id);
        event["contextId"] = json!(self.context_id);
        // An error means that there are no subscribers.
        let _ = self.events.send(Arc::new(event));
    }
}

/// The newest tasks, oldest first.
#[derive(Default)]
pub(super) struct Tasks(Mutex<VecDeque<Arc<Task>>>);

impl Tasks {
    /// Creates a task.
    ///
    /// # Errors
    /// If all tasks in memory are still in progress.
    pub(super) fn create(&self, prompt: &Prompt) -> Result<Arc<Task>, Fault> {
        let mut all = self.0.lock();
        if all.len() >= TASKS_MAX {
            let ended = all.iter().position(|task| task.now.lock().ended);
            all.remove(ended.ok_or(Fault::BUSY)?);
        }
        let task = Arc::new(Task::new(prompt));
        all.push_back(Arc::clone(&task));
        Ok(task)
    }

    /// Returns the task with this id.
    pub(super) fn find(&self, id: &str) -> Option<Arc<Task>> {
        self.0.lock().iter().find(|task| task.id == id).cloned()
    }

    /// Returns the task that `params.id` names.
    ///
    /// # Errors
    /// If there is no id, or no such task.
    pub(super) fn find_in_params(&self, params: &Value) -> Result<Arc<Task>, Fault> {
        let id = params["id"].as_str().ok_or(Fault::invalid_params(
            "params.id is required, and is a string",
        ))?;
        self.find(id).ok_or(Fault::TASK)
    }
}

/// Returns a message of an agent.
pub(super) fn agent_message(context_id: &str, text: &str) -> Value {
    json!({
        "kind": "message",
        "messageId": uuid::Uuid::new_v4().to_string(),
        "contextId": context_id,
        "role": "agent",
        "parts": [{"kind": "text", "text": text}],
    })
}

/// Returns the current time in RFC 3339, in UTC with milliseconds.
fn timestamp() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

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
