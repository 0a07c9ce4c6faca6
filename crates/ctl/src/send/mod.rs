//! `a2a-gateway send`: one message to a workspace, and its answer on standard output. What `task` shares with it: an
//! agent as its caller asks it.

mod answer;
mod message;

use std::time::Duration;

use gateway_client::{Registry, Request};
use http::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

pub(crate) use self::answer::{
    Refusal, extract_result, format_result, is_busy, open_task, state_of,
};
use self::message::MessageArguments;
use super::access::CallerAccess;
use super::client::{is_id, path_of};
use super::failure::Failure;
use super::sse::EventStream;
use super::{complete, print, print_note};

/// A little longer than the gateway's default for the longest stream, so that the gateway ends it with a
/// reason.
const WITHIN: Duration = Duration::from_secs(31 * 60);

/// First delay before a task is looked at again; each further one is half as long again.
const LOOK: Duration = Duration::from_millis(300);

/// Longest such delay.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// `a2a-gateway send WORKSPACE TEXT`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The workspace whose agent gets the message
    #[arg(add = complete::by_workspace())]
    workspace: String,
    #[command(flatten)]
    message: MessageArguments,
    /// Print each event of the answer as it comes
    #[arg(long)]
    stream: bool,
    /// Wait until the agent has done the task that it answers with, or asks; at most this long [default: 30m]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "30m",
        value_parser = humantime::parse_duration, conflicts_with = "stream")]
    wait: Option<Duration>,
    /// Print the agent's answer as JSON; with --stream one line for each event
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    caller: CallerAccess,
}

/// Runs `a2a-gateway send`.
pub async fn run(arguments: &Arguments) -> Result<String, Failure> {
    let agent = Agent::find(&arguments.workspace, &arguments.caller)?;
    let body = arguments.message.build_body()?;
    let mut result = match agent.open(&body, arguments.stream).await? {
        // The agent decides whether the response is a stream: it may answer a stream request with JSON.
        Reply::Stream(events) => {
            if let Some(last) = print_events(*events, arguments.json).await? {
                agent.suggest_next(&last);
            }
            return Ok(String::new());
        }
        Reply::Whole(result) => result,
    };
    if let (Some(wait), Some((task, _))) = (arguments.wait, open_task(&result)) {
        result = agent.wait_for_rest(&task, result, wait).await?;
    }
    print(&format_result(&result, arguments.json, false))?;
    agent.suggest_next(&result);
    Ok(String::new())
}

/// The agent of a workspace, as a caller asks it.
pub(crate) struct Agent {
    client: Registry,
    workspace: String,
    path: String,
}

/// The answer of an agent.
pub(crate) enum Reply {
    /// The result of the call.
    Whole(Value),
    /// Its events.
    Stream(Box<EventStream>),
}

impl Agent {
    /// Returns the agent of a workspace; nothing is sent yet.
    ///
    /// # Errors
    /// The id is none, or what was given makes no gateway.
    pub(crate) fn find(workspace: &str, caller: &CallerAccess) -> Result<Self, Failure> {
        if !is_id(workspace) {
            return Err(Failure::usage(format!(
                "{workspace:?} is no id of a workspace: it has letters, digits, `-`, `.` and `_`"
            )));
        }
        Ok(Self {
            client: caller.build_client()?,
            workspace: workspace.to_owned(),
            path: path_of("workspaces", workspace, "/a2a")?,
        })
    }

    /// Makes a call, and returns its answer once that begins.
    ///
    /// # Errors
    /// There is none, or it is a refusal.
    pub(crate) async fn open(&self, body: &Value, stream: bool) -> Result<Reply, Failure> {
        match self.ask(body, stream).await? {
            (Ok(reply), _) => Ok(reply),
            (Err(refusal), id) => Err(refusal.into_failure(id, self.client.token.as_deref())),
        }
    }

    /// Makes a call, and returns its result or refusal, and the id of the request.
    ///
    /// # Errors
    /// There is no answer, or none in JSON.
    pub(crate) async fn ask(
        &self,
        body: &Value,
        stream: bool,
    ) -> Result<(Result<Reply, Refusal>, Option<String>), Failure> {
        let request = Request {
            accept: match stream {
                true => "text/event-stream",
                false => "application/json",
            },
            within: WITHIN,
            ..self.client.request(Method::POST, &self.path, &[])
        };
        let answer = request.with_body(body).send().await?;
        let id = answer.request_id().map(str::to_owned);
        if answer.is_stream() {
            return Ok((Ok(Reply::Stream(Box::new(EventStream::new(answer)))), id));
        }
        let status = answer.status().as_u16();
        let body = answer.read_body().await?;
        let Ok(answer) = serde_json::from_slice(&body) else {
            let advice = answer::credential_advice(status);
            return Err(Failure::new(format!(
                "the answer has status {status} and is not JSON{advice}"
            )));
        };
        Ok((extract_result(answer, status).map(Reply::Whole), id))
    }

    /// Makes a call of a method about a task, and returns its result.
    ///
    /// # Errors
    /// As [`Self::open`]; the answer is a stream.
    pub(crate) async fn call(&self, method: &str, params: Value) -> Result<Value, Failure> {
        // Without `jsonrpc`, the method is spelled as the agent's generation has it.
        let body = json!({"method": method, "params": params});
        match self.open(&body, false).await? {
            Reply::Whole(result) => Ok(result),
            Reply::Stream(_) => Err(Failure::new(format!(
                "the agent answers {method} with a stream"
            ))),
        }
    }

    /// Looks at a task until it is over, or its agent asks, and returns it; also as it stands at the end of `wait`,
    /// with a note.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn wait_for_rest(
        &self,
        task: &str,
        first: Value,
        wait: Duration,
    ) -> Result<Value, Failure> {
        let (mut seen, mut delay) = (first, LOOK);
        let deadline = Instant::now() + wait;
        while state_of(&seen).is_some_and(|state| is_busy(&state)) {
            if Instant::now() + delay > deadline {
                let wait = humantime::format_duration(wait);
                print_note(&format!("the task is not over after {wait}"));
                break;
            }
            sleep(delay).await;
            delay = (delay * 3 / 2).min(LOOK_MAX);
            seen = self.call("tasks/get", json!({"id": task})).await?;
        }
        Ok(seen)
    }

    /// Says on standard error which command goes on with a task that is not over.
    pub(crate) fn suggest_next(&self, result: &Value) {
        let Some((task, state)) = open_task(result) else {
            return;
        };
        let (workspace, task) = (&self.workspace, quote(&task));
        print_note(&match state.as_str() {
            "input-required" => format!(
                "the agent asks; to reply: a2a-gateway send {workspace} --reply-to {task} 'TEXT'"
            ),
            "auth-required" => format!(
                "the agent needs a sign-in; then: a2a-gateway task follow {workspace} {task}"
            ),
            _ => format!("the task goes on; to see it: a2a-gateway task follow {workspace} {task}"),
        });
    }
}

/// Prints the events of a stream as they come, and returns the last one that has a state.
///
/// # Errors
/// The stream breaks off, or has a refusal.
pub(crate) async fn print_events(
    mut events: EventStream,
    json: bool,
) -> Result<Option<Value>, Failure> {
    let mut last = None;
    while let Some(event) = events.next_event().await? {
        let event: Value = serde_json::from_str(&event).unwrap_or(Value::String(event));
        let result = extract_result(event, 200)?;
        print(&format_result(&result, json, true))?;
        if state_of(&result).is_some() {
            last = Some(result);
        }
    }
    Ok(last)
}

/// Returns an id as a shell takes it: an agent chooses the ids of tasks.
fn quote(id: &str) -> String {
    match is_id(id) {
        true => id.to_owned(),
        false => format!("'{}'", id.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_an_agent_chose_runs_no_command() {
        assert_eq!(quote("t-1"), "t-1");
        assert_eq!(quote("a; rm x"), "'a; rm x'");
        assert_eq!(quote("a'$(b)"), r"'a'\''$(b)'");
    }
}
