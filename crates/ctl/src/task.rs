//! `a2a-gateway task get|list|cancel|follow`: the tasks of an agent, as the caller that started them asks for them.

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};

use super::access::CallerAccess;
use super::client::body_of;
use super::complete;
use super::failure::Failure;
use super::print;
use super::send::{Agent, Reply, format_result, is_busy, open_task, print_events, state_of};
use super::table::Table;

/// Most pages of one list: agents choose how long they are.
const PAGES_MAX: usize = 100;

/// Longest time for which a task is followed whose agent has no streams.
const FOLLOW_MAX: Duration = Duration::from_secs(24 * 60 * 60);

const COLUMNS: Table<'_> = Table {
    columns: "ID=id STATE=state UPDATED=updated:age CONTEXT=contextId",
    made: &[],
    none: "no task fits",
};

/// `a2a-gateway task get|list|cancel|follow`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a task as it is now
    Get(TaskArguments),
    /// List the tasks that the caller started (agents of A2A 1.0, and those that poll)
    List(ListArguments),
    /// Ask the agent to cancel a task
    Cancel(TaskArguments),
    /// Show a task, then each event of it until it is over or its agent asks
    Follow(TaskArguments),
}

/// One task.
#[derive(clap::Args, Debug)]
pub struct TaskArguments {
    /// The workspace of the agent
    #[arg(add = complete::by_workspace())]
    workspace: String,
    /// The task's id, as an answer has it
    task: String,
    /// Print JSON; of `follow` one line for each event
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    caller: CallerAccess,
}

/// `a2a-gateway task list`.
#[derive(clap::Args, Debug)]
pub struct ListArguments {
    /// The workspace of the agent
    #[arg(add = complete::by_workspace())]
    workspace: String,
    /// Only those of this conversation
    #[arg(long, value_name = "ID")]
    context_id: Option<String>,
    /// Only those in this state, such as working or input-required
    #[arg(long)]
    state: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    caller: CallerAccess,
}

/// Runs `a2a-gateway task`.
pub async fn run(command: &Command) -> Result<String, Failure> {
    match command {
        Command::Get(arguments) => call_about(arguments, "tasks/get").await,
        Command::Cancel(arguments) => call_about(arguments, "tasks/cancel").await,
        Command::Follow(arguments) => follow(arguments).await,
        Command::List(arguments) => list(arguments).await,
    }
}

async fn call_about(arguments: &TaskArguments, method: &str) -> Result<String, Failure> {
    let agent = Agent::find(&arguments.workspace, &arguments.caller)?;
    let task = agent.call(method, json!({"id": arguments.task})).await?;
    print(&format_result(&task, arguments.json, false))?;
    agent.suggest_next(&task);
    Ok(String::new())
}

async fn follow(arguments: &TaskArguments) -> Result<String, Failure> {
    let agent = Agent::find(&arguments.workspace, &arguments.caller)?;
    let params = json!({"id": arguments.task});
    let task = agent.call("tasks/get", params.clone()).await?;
    print(&format_result(&task, arguments.json, true))?;
    let mut last = task;
    if state_of(&last).is_some_and(|state| is_busy(&state)) {
        let body = json!({"method": "tasks/resubscribe", "params": params});
        let (reply, _) = agent.ask(&body, true).await?;
        // An agent without streams refuses; so does one whose task has ended meanwhile.
        if let Ok(Reply::Stream(events)) = reply
            && let Some(event) = print_events(*events, arguments.json).await?
        {
            last = event;
        }
        if open_task(&last).is_some_and(|(_, state)| is_busy(&state)) {
            let id = &arguments.task;
            last = agent.wait_for_rest(id, last, FOLLOW_MAX).await?;
            print(&format_result(&last, arguments.json, true))?;
        }
    }
    agent.suggest_next(&last);
    Ok(String::new())
}

async fn list(arguments: &ListArguments) -> Result<String, Failure> {
    let agent = Agent::find(&arguments.workspace, &arguments.caller)?;
    let state = arguments.state.as_ref().map(|state| {
        let state = state.to_uppercase().replace('-', "_");
        format!("TASK_STATE_{}", state.trim_start_matches("TASK_STATE_"))
    });
    let mut params = body_of(json!({"contextId": arguments.context_id, "status": state}));
    let mut tasks = Vec::new();
    for _ in 0..PAGES_MAX {
        let mut page = agent.call("ListTasks", params.clone()).await?;
        if let Value::Array(list) = page["tasks"].take() {
            tasks.extend(list);
        }
        let next = page["nextPageToken"].take();
        match next.as_str() {
            Some(token) if !token.is_empty() => params["pageToken"] = next,
            _ => return Ok(show_tasks(tasks, arguments.json)),
        }
    }
    Err(Failure::new(format!(
        "the list has more than {PAGES_MAX} pages; ask for a part of it with --state or --context-id"
    )))
}

/// Returns tasks as JSON as they are, or as a table.
fn show_tasks(mut tasks: Vec<Value>, json: bool) -> String {
    if !json {
        for task in &mut tasks {
            let updated = task["status"]["timestamp"].clone();
            task["state"] = json!(state_of(task));
            task["updated"] = updated;
        }
    }
    COLUMNS.show(tasks, json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_tasks_is_a_table() {
        let tasks = json!([{"id": "t-1", "contextId": "c", "status": {"state": "TASK_STATE_INPUT_REQUIRED"}}]);
        let tasks = tasks.as_array().unwrap().clone();
        assert_eq!(
            show_tasks(tasks.clone(), false),
            "ID   STATE           UPDATED  CONTEXT\nt-1  input-required  -        c\n"
        );
        assert!(!show_tasks(tasks, true).contains("updated"));
    }
}
