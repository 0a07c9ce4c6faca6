//! Tasks of an example agent: their state, the work on them, and who follows it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::sync::{Notify, broadcast};

use super::message::Prompt;
use super::rpc::Fault;

/// Tasks that are remembered at most; the oldest that have ended make room.
const TASKS_MAX: usize = 256;

/// Between two events of progress.
const STEP: Duration = Duration::from_millis(300);

/// What the slow agent says that it does; with [`STEP`], three seconds of work.
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

/// What an agent will say: progress, then the answer.
pub(super) struct Script {
    steps: &'static [&'static str],
    /// The text of the artifact, or of the message.
    pub(super) answer: String,
}

impl Script {
    /// An answer without work.
    pub(super) fn at_once(answer: String) -> Self {
        Self { steps: &[], answer }
    }

    /// The slow agent's.
    pub(super) fn in_steps(text: &str) -> Self {
        let answer = format!("done in {} steps: {text}", STEPS.len());
        Self {
            steps: &STEPS,
            answer,
        }
    }
}

/// One task.
pub(super) struct Task {
    id: String,
    context_id: String,
    message: Value,
    now: Mutex<Now>,
    events: broadcast::Sender<Arc<Value>>,
    canceled: Notify,
}

/// How far a task is.
struct Now {
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
            now: Mutex::new(Now {
                status: json!({"state": "submitted", "timestamp": timestamp()}),
                artifacts: Vec::new(),
                ended: false,
            }),
            // All events of a script fit, so that a slow reader still gets the last one.
            events: broadcast::Sender::new(STEPS.len() + 6),
            canceled: Notify::new(),
        }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        // A panic elsewhere cannot leave it half written: each change is one assignment.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task as A2A shows it.
    pub(super) fn snapshot(&self) -> Value {
        self.shown(&self.now())
    }

    fn shown(&self, now: &Now) -> Value {
        json!({
            "kind": "task",
            "id": self.id,
            "contextId": self.context_id,
            "status": now.status,
            "artifacts": now.artifacts,
            "history": [self.message],
        })
    }

    /// The task as it is, whether it has ended, and everything that happens from now on.
    pub(super) fn subscribe(&self) -> (Value, bool, broadcast::Receiver<Arc<Value>>) {
        let now = self.now();
        (self.shown(&now), now.ended, self.events.subscribe())
    }

    /// Ends the task before its time.
    ///
    /// # Errors
    /// When it has ended already.
    pub(super) fn cancel(&self) -> Result<(), Fault> {
        if !self.reach("canceled", None, true) {
            return Err(Fault::NOT_CANCELABLE);
        }
        self.canceled.notify_one();
        Ok(())
    }

    /// Does what the script says, at its pace, until the end or until it is canceled.
    pub(super) async fn work(self: Arc<Self>, script: Script) {
        for (i, step) in script.steps.iter().enumerate() {
            tokio::select! {
                () = tokio::time::sleep(STEP) => {}
                () = self.canceled.notified() => return,
            }
            let text = format!("step {} of {}: {step}", i + 1, script.steps.len());
            if !self.reach("working", Some(&text), false) {
                return;
            }
        }
        if self.hand_over(&script.answer) {
            self.reach("completed", None, true);
        }
    }

    /// Moves the task to a state and tells who follows it; `false` when it has ended before.
    fn reach(&self, state: &str, text: Option<&str>, last: bool) -> bool {
        let mut now = self.now();
        if now.ended {
            return false;
        }
        let mut status = json!({"state": state, "timestamp": timestamp()});
        if let Some(text) = text {
            status["message"] = json!({
                "kind": "message",
                "messageId": uuid::Uuid::new_v4().to_string(),
                "taskId": self.id,
                "contextId": self.context_id,
                "role": "agent",
                "parts": [{"kind": "text", "text": text}],
            });
        }
        now.status = status;
        now.ended = last;
        self.tell(json!({
            "kind": "status-update",
            "taskId": self.id,
            "contextId": self.context_id,
            "status": now.status,
            "final": last,
        }));
        true
    }

    fn hand_over(&self, text: &str) -> bool {
        let mut now = self.now();
        if now.ended {
            return false;
        }
        let artifact = json!({
            "artifactId": uuid::Uuid::new_v4().to_string(),
            "name": "answer",
            "parts": [{"kind": "text", "text": text}],
        });
        now.artifacts.push(artifact.clone());
        self.tell(json!({
            "kind": "artifact-update",
            "taskId": self.id,
            "contextId": self.context_id,
            "artifact": artifact,
            "append": false,
            "lastChunk": true,
        }));
        true
    }

    /// Called with the state locked, so that events keep the order of the changes.
    fn tell(&self, event: Value) {
        // Nobody follows: then nobody misses it.
        let _ = self.events.send(Arc::new(event));
    }
}

/// The last tasks, oldest first.
#[derive(Default)]
pub(super) struct Tasks(Mutex<VecDeque<Arc<Task>>>);

impl Tasks {
    fn all(&self) -> MutexGuard<'_, VecDeque<Arc<Task>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new task.
    ///
    /// # Errors
    /// When all that are remembered are still in progress.
    pub(super) fn open(&self, prompt: &Prompt) -> Result<Arc<Task>, Fault> {
        let mut all = self.all();
        if all.len() >= TASKS_MAX {
            let ended = all.iter().position(|task| task.now().ended);
            all.remove(ended.ok_or(Fault::BUSY)?);
        }
        let task = Arc::new(Task::new(prompt));
        all.push_back(Arc::clone(&task));
        Ok(task)
    }

    /// The task with this id.
    pub(super) fn find(&self, id: &str) -> Option<Arc<Task>> {
        self.all().iter().find(|task| task.id == id).cloned()
    }

    /// The task that `params.id` names.
    ///
    /// # Errors
    /// When there is no id, or no such task.
    pub(super) fn named(&self, params: &Value) -> Result<Arc<Task>, Fault> {
        let id = params["id"]
            .as_str()
            .ok_or(Fault::params("params.id is required, and is a string"))?;
        self.find(id).ok_or(Fault::TASK)
    }
}

/// RFC 3339 in UTC, with milliseconds.
fn timestamp() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}
