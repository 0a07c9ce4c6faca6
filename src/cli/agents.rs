//! `a2a-gateway agents`: the agents of all workspaces, and whether they live.

use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::access::OperatorAccess;
use super::client::{Failure, format_json, run as run_to_end};
use super::table::{align_columns, format_age, format_cell};
use super::workspace::all_workspaces;

const EXAMPLES: &str = "\
Examples:
  a2a-gateway agents
  a2a-gateway agents --org acme --status online
  a2a-gateway agents --json

Exit status: 0 listed, 1 refused or failed, 64 wrong arguments.";

/// Members of a workspace that say how its agent is.
const MEMBERS: &str = "id name org status delivery_mode liveness instance_count last_seen active_tasks \
    current_task";

/// `a2a-gateway agents`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Only those of this org
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Only those in this status, such as online, offline or degraded
    #[arg(long)]
    status: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: OperatorAccess,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    run_to_end(list(arguments))
}

async fn list(arguments: &Arguments) -> Result<String, Failure> {
    let client = arguments.gateway.build_client()?;
    let (org, status) = (arguments.org.as_deref(), arguments.status.as_deref());
    let found = all_workspaces(&client, org, status, None).await?;
    if arguments.json {
        let agents = found.iter().map(|workspace| {
            let members = MEMBERS.split(' ');
            members
                .map(|name| (name.to_owned(), workspace[name].clone()))
                .collect::<serde_json::Map<_, _>>()
        });
        return Ok(format_json(&json!(agents.collect::<Vec<_>>())));
    }
    if found.is_empty() {
        return Ok("no agent fits\n".to_owned());
    }
    let now = SystemTime::now();
    let rows: Vec<_> = found
        .iter()
        .map(|workspace| format_row(workspace, now))
        .collect();
    let titles = [
        "ID",
        "NAME",
        "STATUS",
        "INSTANCES",
        "LAST SEEN",
        "ACTIVE",
        "TASK",
    ];
    Ok(align_columns(&titles, &rows))
}

fn format_row(workspace: &Value, now: SystemTime) -> Vec<String> {
    vec![
        format_cell(&workspace["id"]),
        format_cell(&workspace["name"]),
        format_cell(&workspace["status"]),
        format_cell(&workspace["instance_count"]),
        format_age(&workspace["last_seen"], now),
        format_cell(&workspace["active_tasks"]),
        format_cell(&workspace["current_task"]),
    ]
}
