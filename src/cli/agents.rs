//! `a2a-gateway agents`: the agents of all workspaces, and whether they live.

use serde_json::{Map, Value};

use super::client::{ReadFlags, format_json};
use super::failure::Failure;
use super::table::{Cell, Column};
use super::workspace::all_workspaces;

const COLUMNS: [Column; 7] = [
    ("ID", Cell::Member("id")),
    ("NAME", Cell::Member("name")),
    ("STATUS", Cell::Member("status")),
    ("INSTANCES", Cell::Member("instance_count")),
    ("LAST SEEN", Cell::Age("last_seen")),
    ("ACTIVE", Cell::Member("active_tasks")),
    ("TASK", Cell::Member("current_task")),
];

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
    #[command(flatten)]
    flags: ReadFlags,
}

pub(super) async fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { org, status, flags } = arguments;
    let client = flags.gateway.build_client()?;
    let found = all_workspaces(&client, org.as_deref(), &[("status", status)]).await?;
    if flags.json {
        let members = |workspace: &Value| {
            let members = MEMBERS.split_whitespace();
            let members = members.map(|name| (name.to_owned(), workspace[name].clone()));
            Value::from(members.collect::<Map<_, _>>())
        };
        return Ok(format_json(&found.iter().map(members).collect()));
    }
    Ok(flags.format_list(found, &COLUMNS, "no agent fits"))
}
