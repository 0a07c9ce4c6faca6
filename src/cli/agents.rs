//! `a2a-gateway agents`: the agents of all workspaces, and whether they live.

use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::access::Operating;
use super::client::{Failure, document, run as run_to_end};
use super::table::{age, aligned, cell};
use super::workspace::all_workspaces;

const EXAMPLES: &str = "\
Examples:
  a2a-gateway agents
  a2a-gateway agents --org acme --status online
  a2a-gateway agents --json

Exit status: 0 listed, 1 refused or failed, 64 wrong arguments.";

/// Members of a workspace that say how its agent is.
const MEMBERS: [&str; 10] = [
    "id",
    "name",
    "org",
    "status",
    "delivery_mode",
    "liveness",
    "instance_count",
    "last_seen",
    "active_tasks",
    "current_task",
];

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
    gateway: Operating,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    run_to_end(list(arguments))
}

async fn list(arguments: &Arguments) -> Result<String, Failure> {
    let client = arguments.gateway.client()?;
    let (org, status) = (arguments.org.as_deref(), arguments.status.as_deref());
    let found = all_workspaces(&client, org, status, None).await?;
    if arguments.json {
        let agents = found.iter().map(|workspace| {
            let members = MEMBERS.iter();
            members
                .map(|name| ((*name).to_owned(), workspace[name].clone()))
                .collect::<serde_json::Map<_, _>>()
        });
        return Ok(document(&json!(agents.collect::<Vec<_>>())));
    }
    if found.is_empty() {
        return Ok("no agent fits\n".to_owned());
    }
    let now = SystemTime::now();
    let rows: Vec<_> = found.iter().map(|workspace| row(workspace, now)).collect();
    let titles = [
        "ID",
        "NAME",
        "STATUS",
        "INSTANCES",
        "LAST SEEN",
        "ACTIVE",
        "TASK",
    ];
    Ok(aligned(&titles, &rows))
}

fn row(workspace: &Value, now: SystemTime) -> Vec<String> {
    vec![
        cell(&workspace["id"]),
        cell(&workspace["name"]),
        cell(&workspace["status"]),
        cell(&workspace["instance_count"]),
        age(&workspace["last_seen"], now),
        cell(&workspace["active_tasks"]),
        cell(&workspace["current_task"]),
    ]
}
