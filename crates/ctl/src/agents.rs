//! `a2a-gateway agents`: the agents of all workspaces, and whether they live.

use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::sleep;

use super::client::{ReadFlags, until_done};
use super::failure::Failure;
use super::table::{Table, format_cell, format_json, format_state};
use super::terminal::clear_screen;
use super::workspace::all_workspaces;
use super::{complete, print};

const COLUMNS: Table<'_> = Table {
    columns: "ID=id NAME=name STATUS=status HEALTH=health INSTANCES=instance_count LAST_SEEN=last_seen:age ACTIVE=active_tasks TASK=current_task",
    made: &[("health", format_state)],
    none: "no agent fits",
};

/// Longest wait for agents.
const WAIT: Duration = Duration::from_secs(60);

/// Delay before they are shown again.
const WATCH: Duration = Duration::from_secs(2);

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
    /// Wait until this workspace's agent is online, for at most 60s; may be given again
    #[arg(long, value_name = "ID", add = complete::by_workspace())]
    wait: Vec<String>,
    /// Show them again each two seconds, until Ctrl-C
    #[arg(long, conflicts_with = "wait")]
    watch: bool,
    #[command(flatten)]
    flags: ReadFlags,
}

/// Runs `a2a-gateway agents`.
pub async fn run(arguments: &Arguments) -> Result<String, Failure> {
    if !arguments.wait.is_empty() {
        return until_done(Some(WAIT), async || find_online(arguments).await).await;
    }
    loop {
        let table = show_agents(arguments).await?;
        if !arguments.watch {
            return Ok(table);
        }
        clear_screen()?;
        print(&table)?;
        sleep(WATCH).await;
    }
}

/// Succeeds once the agents that are waited for are online.
async fn find_online(arguments: &Arguments) -> Result<String, Failure> {
    let client = arguments.flags.gateway.build_client()?;
    let found = all_workspaces(&client, None, &[("status", &None)]).await?;
    for id in &arguments.wait {
        let found = found
            .iter()
            .find(|workspace| workspace["id"] == id.as_str());
        match found.map(|workspace| format_cell(&workspace["status"])) {
            Some(status) if status == "online" => {}
            Some(status) => return Err(Failure::new(format!("{id} is {status} after {WAIT:?}"))),
            None => {
                return Err(Failure::new(format!(
                    "there is no workspace {id} after {WAIT:?}"
                )));
            }
        }
    }
    show_agents(arguments).await
}

async fn show_agents(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments {
        org, status, flags, ..
    } = arguments;
    let client = flags.gateway.build_client()?;
    let mut found = all_workspaces(&client, org.as_deref(), &[("status", status)]).await?;
    if !arguments.wait.is_empty() {
        found.retain(|workspace| {
            arguments
                .wait
                .iter()
                .any(|id| workspace["id"] == id.as_str())
        });
    }
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
