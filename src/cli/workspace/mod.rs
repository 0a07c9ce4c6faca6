//! `a2a-gateway workspace`: makes, shows, changes and removes workspaces at a running gateway.

mod change;
mod create;
mod tree;

use std::time::SystemTime;

use clap::Subcommand;
use clap_complete::engine::ArgValueCompleter;
use serde_json::Value;

use super::client::{Client, ReadFlags, format_json, path_of, query_of};
use super::complete;
use super::failure::Failure;
use super::table::{Cell, Column, align_columns, align_rows, fill_rows, format_age, format_cell};

const COLUMNS: [Column; 6] = [
    ("ID", Cell::Member("id")),
    ("NAME", Cell::Member("name")),
    ("PARENT", Cell::Member("parent_id")),
    ("ORG", Cell::Member("org")),
    ("STATUS", Cell::Member("status")),
    ("DELIVERY", Cell::Member("delivery_mode")),
];

const INSTANCES: [Column; 6] = [
    ("INSTANCE", Cell::Member("instance_id")),
    ("STATUS", Cell::Member("status")),
    ("LAST SEEN", Cell::Age("last_seen")),
    ("CALLS", Cell::Member("in_flight")),
    ("BREAKER", Cell::Member("breaker")),
    ("URL", Cell::Member("url")),
];

pub(super) const EXAMPLES: &str = "\
Examples:
  a2a-gateway workspace create acme-qa --name QA --parent acme-pm
  a2a-gateway workspace list --org acme
  a2a-gateway workspace tree
  a2a-gateway workspace show acme-dev
  a2a-gateway workspace set acme-dev role=builds max_concurrent=4
  a2a-gateway workspace move acme-dev --parent acme-qa
  a2a-gateway workspace pause acme-dev
  a2a-gateway workspace resume acme-dev
  a2a-gateway workspace remove acme-qa

Exit status: 0 done, 1 refused or failed, 64 wrong arguments. docs/reference/command-line.md has more.";

const LIST_EXAMPLES: &str = "\
Examples:
  a2a-gateway workspace list
  a2a-gateway workspace list --org acme --status online
  a2a-gateway workspace list --search builds --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  a2a-gateway workspace show acme-dev
  a2a-gateway workspace show acme-dev --json";

/// `a2a-gateway workspace create|list|show|tree|set|move|pause|resume|remove`.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Make a workspace, and an enrolment token for its agent
    #[command(after_help = create::EXAMPLES)]
    Create(Box<create::Arguments>),
    /// List workspaces
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArguments),
    /// Show a workspace, with the instances of its agent
    #[command(after_help = SHOW_EXAMPLES)]
    Show(ShowArguments),
    /// Show the hierarchy, or the part of it below a workspace
    #[command(after_help = tree::EXAMPLES)]
    Tree(tree::Arguments),
    /// Change settings of a workspace
    #[command(after_help = change::SET_EXAMPLES)]
    Set(change::SetArguments),
    /// Move a workspace, and with it all below it, to another parent or org
    #[command(after_help = change::MOVE_EXAMPLES)]
    Move(change::MoveArguments),
    /// Pause a workspace: no calls of it and to it, until it is resumed
    #[command(after_help = change::PAUSE_EXAMPLES)]
    Pause(change::StateArguments),
    /// Resume a workspace that is paused
    #[command(after_help = change::RESUME_EXAMPLES)]
    Resume(change::StateArguments),
    /// Remove a workspace for good: its tokens end, and its id comes back only with `recreate`
    #[command(after_help = change::REMOVE_EXAMPLES)]
    Remove(change::RemoveArguments),
}

#[derive(clap::Args, Debug)]
pub(super) struct ListArguments {
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

#[derive(clap::Args, Debug)]
pub(super) struct ShowArguments {
    /// The workspace
    #[arg(add = ArgValueCompleter::new(complete::complete_workspaces))]
    id: String,
    #[command(flatten)]
    flags: ReadFlags,
}

pub(super) async fn run(command: &Command) -> Result<String, Failure> {
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
pub(super) async fn all_workspaces(
    client: &Client,
    org: Option<&str>,
    query: &[(&str, &Option<String>)],
) -> Result<Vec<Value>, Failure> {
    let mut found = client.list("/workspaces", &query_of(query), None).await?;
    found.retain(|workspace| org.is_none_or(|org| workspace["org"] == org));
    Ok(found)
}

async fn list_workspaces(arguments: &ListArguments) -> Result<String, Failure> {
    let ListArguments {
        org,
        status,
        search,
        flags,
    } = arguments;
    let client = flags.gateway.build_client()?;
    let query = [("status", status), ("q", search)];
    let found = all_workspaces(&client, org.as_deref(), &query).await?;
    Ok(flags.format_list(found, &COLUMNS, "no workspace fits"))
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
        let titles = INSTANCES.map(|(title, _)| title);
        text.push_str(&align_columns(
            &titles,
            &fill_rows(instances, &INSTANCES, now),
        ));
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
