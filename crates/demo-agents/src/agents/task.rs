//! Tasks of an example agent: their state, the work on them and their subscribers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, broadcast};

use super::message::Prompt;
use super::rpc::Fault;

/// Maximum tasks in memory; the oldest finished task is evicted for a new one.
const TASKS_MAX: usize = 256;

/// Interval between two progress events.
const STEP: Duration = Duration::from_millis(300);

/// Progress texts of the slow agent; with [`STEP`], three seconds of work.
const STEPS: [&str; 10] = [
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

/// The texts of an agent's work: progress, then the answer.
pub(super) struct Script {
    steps: &'static [&'static str],
    /// The text of the artifact, or of the message.
    pub(super) answer: String,
}

impl Script {
    /// Returns a script, with the progress of the slow agent if it `is_slow`.
    pub(super) fn new(is_slow: bool, answer: String) -> Self {
        let steps: &[&str] = if is_slow { &STEPS } else { &[] };
        Self { steps, answer }
    }
}

/// One task.
pub(super) struct Task {
    id: String,
    context_id: String,
    message: Value,
    now: Mutex<TaskState>,
    events: broadcast::Sender<Arc<Value>>,
    canceled: Notify,
}

/// The current state of a task.
struct TaskState {
    status: Value,
    artifacts: Vec<Value>,
    ended: bool,
}

impl Task {
    fn new(prompt: &Prompt) -> Self {
        Self {
            id: uuid::Uuid::new_v4().to_string(),
            context_id: prompt.context_id.clone(),
            message: prompt.message.clone(),
            now: Mutex::new(TaskState {
                status: json!({"state": "submitted", "timestamp": timestamp()}),
                artifacts: Vec::new(),
                ended: false,
            }),
            // Holds all events of a script, so that a slow reader still gets the last one.
            events: broadcast::Sender::new(STEPS.len() + 6),
            canceled: Notify::new(),
        }
    }

    /// Returns the task as an A2A object.
    pub(super) fn snapshot(&self) -> Value {
        self.to_json(&self.now.lock())
    }

    fn to_json(&self, now: &TaskState) -> Value {
        json!({
            "kind": "task",
            "id": self.id,
            "contextId": self.context_id,
            "status": now.status,
            "artifacts": now.artifacts,
            "history": [self.message],
        })
    }

    /// Returns the current task, whether it has ended, and a receiver of its later events.
    pub(super) fn subscribe(&self) -> (Value, bool, broadcast::Receiver<Arc<Value>>) {
        let now = self.now.lock();
        (self.to_json(&now), now.ended, self.events.subscribe())
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

    /// Runs the script step by step, until its end or until the task is canceled.
    pub(super) async fn run_script(self: Arc<Self>, script: Script) {
        for (i, step) in script.steps.iter().enumerate() {
            tokio::select! {
                () = tokio::time::sleep(STEP) => {}
                () = self.canceled.notified() => return,
            }
            let text = format!("step {} of {}: {step}", i + 1, script.steps.len());
            if !self.move_to("working", Some(&text), false) {
                return;
            }
        }
        if self.add_artifact(&script.answer) {
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
        now.status = status;
        now.ended = last;
        self.publish(json!({
            "kind": "status-update",
            "taskId": self.id,
            "contextId": self.context_id,
            "status": now.status,
            "final": last,
        }));
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
        now.artifacts.push(artifact.clone());
        self.publish(json!({
            "kind": "artifact-update",
            "taskId": self.id,
            "contextId": self.context_id,
            "artifact": artifact,
            "append": false,
            "lastChunk": true,
        }));
        true
    }

    /// Sends an event to all subscribers. Called with the state locked, so that events keep the
    /// order of the changes.
    fn publish(&self, event: Value) {
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
