//! `a2a-gateway workspace`: makes, shows, changes and removes workspaces at a running gateway.

mod change;
mod create;
mod tree;

use std::time::SystemTime;

use clap::Subcommand;
use gateway_client::Registry;
use serde_json::Value;

use super::client::{ReadFlags, path_of, query_of};
use super::complete;
use super::failure::Failure;
use super::table::{Table, align_rows, format_age, format_cell, format_json};

const COLUMNS: Table<'_> = Table {
    columns: "ID=id NAME=name PARENT=parent_id ORG=org STATUS=status DELIVERY=delivery_mode",
    made: &[],
    none: "no workspace fits",
};

const INSTANCES: Table<'_> = Table {
    columns: "INSTANCE=instance_id STATUS=status LAST_SEEN=last_seen:age CALLS=in_flight BREAKER=breaker URL=url",
    made: &[],
    none: "no instance is there",
};

/// `a2a-gateway workspace create|list|show|tree|set|move|pause|resume|remove`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a workspace, and an enrolment token for its agent
    Create(Box<create::Arguments>),
    /// List workspaces
    List(ListArguments),
    /// Show a workspace, with the instances of its agent
    Show(ShowArguments),
    /// Show the hierarchy, or the part of it below a workspace
    Tree(tree::Arguments),
    /// Change settings of a workspace
    Set(change::SetArguments),
    /// Move a workspace, and with it all below it, to another parent or org
    Move(change::MoveArguments),
    /// Pause a workspace: no calls of it and to it, until it is resumed
    Pause(change::StateArguments),
    /// Resume a workspace that is paused
    Resume(change::StateArguments),
    /// Remove a workspace for good: its tokens end, and its id comes back only with `recreate`
    Remove(change::RemoveArguments),
}

/// `a2a-gateway workspace list`.
#[derive(clap::Args, Debug)]
pub struct ListArguments {
    /// Only workspaces of this org
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Only workspaces in this status; `removed` ones are listed on request alone
    #[arg(long)]
    status: Option<String>,
    /// Only workspaces with this text in their name or role
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    #[command(flatten)]
    flags: ReadFlags,
}

/// `a2a-gateway workspace show`.
#[derive(clap::Args, Debug)]
pub struct ShowArguments {
    /// The workspace
    #[arg(add = complete::by_workspace())]
    id: String,
    #[command(flatten)]
    flags: ReadFlags,
}

/// Runs `a2a-gateway workspace`.
pub async fn run(command: &Command) -> Result<String, Failure> {
    match command {
        Command::Create(arguments) => create::create_workspace(arguments).await,
        Command::List(arguments) => list_workspaces(arguments).await,
        Command::Show(ShowArguments { id, flags }) => {
            let client = flags.gateway.build_client()?;
            let workspace = client.get(&path_of("workspaces", id, "")?, &[]).await?;
            Ok(match flags.json {
                true => format_json(&workspace),
                false => format_workspace(&workspace, SystemTime::now()),
            })
        }
        Command::Tree(arguments) => tree::draw_tree(arguments).await,
        Command::Set(arguments) => change::set_members(arguments).await,
        Command::Move(arguments) => change::move_to(arguments).await,
        Command::Pause(arguments) => change::change_state(arguments, "/pause").await,
        Command::Resume(arguments) => change::change_state(arguments, "/resume").await,
        Command::Remove(arguments) => change::remove_workspace(arguments).await,
    }
}

/// Returns all workspaces of an org, if one is named, that fit a query, in order of id.
///
/// # Errors
/// The gateway refuses, or does not answer.
pub(crate) async fn all_workspaces(
    client: &Registry,
    org: Option<&str>,
    query: &[(&str, &Option<String>)],
) -> Result<Vec<Value>, Failure> {
    let query = query_of(query);
    let mut found = client.get_whole_list("/workspaces", &query, None).await?;
    found.retain(|workspace| org.is_none_or(|org| workspace["org"] == org));
    Ok(found)
}

async fn list_workspaces(arguments: &ListArguments) -> Result<String, Failure> {
    let (org, flags) = (&arguments.org, &arguments.flags);
    let client = flags.gateway.build_client()?;
    let query = [("status", &arguments.status), ("q", &arguments.search)];
    let found = all_workspaces(&client, org.as_deref(), &query).await?;
    Ok(COLUMNS.show(found, flags.json))
}

/// Returns a workspace as lines of members and values.
fn format_workspace(workspace: &Value, now: SystemTime) -> String {
    let mut rows = Vec::new();
    for (member, value) in workspace.as_object().into_iter().flatten() {
        let told = match member.as_str() {
            "instances" => continue,
            // The card is the agent's, and long: --json has it.
            "agent_card" if value.is_object() => {
                let skills = value["skills"].as_array().map_or(0, Vec::len);
                format!(
                    "{} ({skills} skills; --json shows it)",
                    format_cell(&value["name"])
                )
            }
            "health" => {
                let since = value["since"].as_str().map(|at| format!(" since {at}"));
                let why = value["why"].as_str().map(|why| format!(": {why}"));
                let [since, why] = [since, why].map(Option::unwrap_or_default);
                format!("{}{since}{why}", format_cell(&value["state"]))
            }
            "last_seen" if value.is_string() => {
                format!("{} ({} ago)", format_cell(value), format_age(value, now))
            }
            _ => format_cell(value),
        };
        rows.push(vec![format!("{}:", member.replace('_', " ")), told]);
    }
    let mut text = align_rows(&rows);
    if let Some(instances) = workspace["instances"].as_array() {
        text.push('\n');
        text.push_str(&INSTANCES.format_list(instances, now));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_workspace_is_shown_with_its_instances() {
        let now = humantime::parse_rfc3339("2026-11-28T10:00:30Z").unwrap();
        let workspace = json!({"id": "acme-dev", "parent_id": null, "agent_card": {"name": "Dev", "skills": [1, 2]},
            "last_seen": "2026-11-28T10:00:00Z", "instances": [{"instance_id": "one", "status": "online",
            "last_seen": "2026-11-28T10:00:10Z", "in_flight": 3, "breaker": "closed", "url": "http://a/"}]});
        let text = format_workspace(&workspace, now);
        for line in [
            "id:          acme-dev\n",
            "parent id:   -\n",
            "agent card:  Dev (2 skills; --json shows it)\n",
            "last seen:   2026-11-28T10:00:00Z (30s ago)\n",
            "\nINSTANCE  STATUS  LAST SEEN  CALLS  BREAKER  URL\none       online  20s        3      closed   http://a/\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
