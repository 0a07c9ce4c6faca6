//! `a2a-gateway agents`: the agents of all workspaces, and whether they live.

use serde_json::{Map, Value};

use super::client::ReadFlags;
use super::failure::Failure;
use super::table::{Table, format_json, format_state};
use super::workspace::all_workspaces;

const COLUMNS: Table<'_> = Table {
    columns: "ID=id NAME=name STATUS=status HEALTH=health INSTANCES=instance_count LAST_SEEN=last_seen:age ACTIVE=active_tasks TASK=current_task",
    made: &[("health", format_state)],
    none: "no agent fits",
};

/// Members of a workspace that say how its agent is.
const MEMBERS: &str = "id name org status health delivery_mode liveness instance_count last_seen active_tasks \
    current_task";

/// `a2a-gateway agents`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Only those of this org
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Only those in this status, such as online, offline or degraded
    #[arg(long)]
    status: Option<String>,
    #[command(flatten)]
    flags: ReadFlags,
}

/// Runs `a2a-gateway agents`.
pub async fn run(arguments: &Arguments) -> Result<String, Failure> {
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
    Ok(COLUMNS.show(found, flags.json))
}
