//! `a2a-gateway workspace`: makes, shows, changes and removes workspaces at a running gateway.

mod change;
mod create;
mod tree;

use std::process::ExitCode;
use std::time::SystemTime;

use clap::Subcommand;
use clap_complete::engine::ArgValueCompleter;
use serde_json::Value;

use super::access::OperatorAccess;
use super::client::{Client, Failure, check_segment, format_json, run as run_to_end};
use super::complete;
use super::table::{align_columns, format_age, format_cell, mask_controls};

const EXAMPLES: &str = "\
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
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
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
    Pause(change::OneArguments),
    /// Resume a workspace that is paused
    #[command(after_help = change::RESUME_EXAMPLES)]
    Resume(change::OneArguments),
    /// Remove a workspace for good: its tokens end, and its id comes back only with `recreate`
    #[command(after_help = change::REMOVE_EXAMPLES)]
    Remove(change::RemoveArguments),
}

#[derive(clap::Args, Debug)]
struct ListArguments {
    /// Only workspaces of this org
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Only workspaces in this status; `removed` ones are listed on request alone
    #[arg(long)]
    status: Option<String>,
    /// Only workspaces with this text in their name or role
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: OperatorAccess,
}

#[derive(clap::Args, Debug)]
struct ShowArguments {
    /// The workspace
    #[arg(add = ArgValueCompleter::new(complete::complete_workspaces))]
    id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: OperatorAccess,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    run_to_end(run_command(&arguments.command))
}

async fn run_command(command: &Command) -> Result<String, Failure> {
    match command {
        Command::Create(arguments) => create::create_workspace(arguments).await,
        Command::List(arguments) => list_workspaces(arguments).await,
        Command::Show(arguments) => show_workspace(arguments).await,
        Command::Tree(arguments) => tree::draw_tree(arguments).await,
        Command::Set(arguments) => change::set_members(arguments).await,
        Command::Move(arguments) => change::move_to(arguments).await,
        Command::Pause(arguments) => change::pause_workspace(arguments).await,
        Command::Resume(arguments) => change::resume_workspace(arguments).await,
        Command::Remove(arguments) => change::remove_workspace(arguments).await,
    }
}

/// Returns all workspaces that fit, in order of id.
///
/// # Errors
/// The gateway refuses, or does not answer.
pub(super) async fn all_workspaces(
    client: &Client,
    org: Option<&str>,
    status: Option<&str>,
    search: Option<&str>,
) -> Result<Vec<Value>, Failure> {
    let mut query = Vec::new();
    query.extend(status.map(|status| ("status", status)));
    query.extend(search.map(|search| ("q", search)));
    let mut found = client.list("/workspaces", &query, None).await?;
    if let Some(org) = org {
        found.retain(|workspace| workspace["org"] == org);
    }
    Ok(found)
}

async fn list_workspaces(arguments: &ListArguments) -> Result<String, Failure> {
    let client = arguments.gateway.build_client()?;
    let found = all_workspaces(
        &client,
        arguments.org.as_deref(),
        arguments.status.as_deref(),
        arguments.search.as_deref(),
    )
    .await?;
    if arguments.json {
        return Ok(format_json(&found.into()));
    }
    if found.is_empty() {
        return Ok("no workspace fits\n".to_owned());
    }
    let rows: Vec<_> = found
        .iter()
        .map(|workspace| {
            ["id", "name", "parent_id", "org", "status", "delivery_mode"]
                .map(|member| format_cell(&workspace[member]))
                .to_vec()
        })
        .collect();
    let titles = ["ID", "NAME", "PARENT", "ORG", "STATUS", "DELIVERY"];
    Ok(align_columns(&titles, &rows))
}

async fn show_workspace(arguments: &ShowArguments) -> Result<String, Failure> {
    let client = arguments.gateway.build_client()?;
    let path = format!("/workspaces/{}", check_segment(&arguments.id)?);
    let workspace = client.get(&path).await?;
    if arguments.json {
        return Ok(format_json(&workspace));
    }
    Ok(format_workspace(&workspace, SystemTime::now()))
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
        rows.push((format!("{}:", member.replace('_', " ")), told));
    }
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text: String = rows
        .iter()
        .map(|(name, told)| format!("{name:width$}  {}\n", mask_controls(told)))
        .collect();
    if let Some(instances) = workspace["instances"].as_array() {
        let rows: Vec<_> = instances
            .iter()
            .map(|one| {
                vec![
                    format_cell(&one["instance_id"]),
                    format_cell(&one["status"]),
                    format_age(&one["last_seen"], now),
                    format_cell(&one["in_flight"]),
                    format_cell(&one["breaker"]),
                    format_cell(&one["url"]),
                ]
            })
            .collect();
        let titles = ["INSTANCE", "STATUS", "LAST SEEN", "CALLS", "BREAKER", "URL"];
        text.push('\n');
        text.push_str(&align_columns(&titles, &rows));
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
