//! `a2a-gateway grant`: permissions for one workspace to message another besides what the hierarchy permits.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Subcommand;
use clap_complete::engine::ArgValueCompleter;
use http::Method;
use serde_json::{Value, json};

use super::access::OperatorAccess;
use super::client::{Failure, check_segment, format_json, run as run_to_end};
use super::complete;
use super::dry_run::DryRun;
use super::table::{align_columns, format_age, format_cell};

const EXAMPLES: &str = "\
Examples:
  a2a-gateway grant create rival-spy acme-dev --note 'ticket 7' --expires-in 7days
  a2a-gateway grant list
  a2a-gateway grant remove 019aa9d2-6c1e-7b3a-9d52-0f7d4a1e2c33        an id of `grant list`";

const CREATE_EXAMPLES: &str = "\
Examples:
  a2a-gateway grant create rival-spy acme-dev
  a2a-gateway grant create rival-spy acme-dev --note 'ticket 7' --expires-in 7days --json
  a2a-gateway grant create rival-spy acme-dev --dry-run

One way, across orgs too. Asking again while it holds changes its end and its note.";

const LIST_EXAMPLES: &str = "\
Examples:
  a2a-gateway grant list
  a2a-gateway grant list --target acme-dev --json";

const REMOVE_EXAMPLES: &str = "\
Examples:
  a2a-gateway grant remove 019aa9d2-6c1e-7b3a-9d52-0f7d4a1e2c33        an id of `grant list`
  a2a-gateway grant remove 019aa9d2-6c1e-7b3a-9d52-0f7d4a1e2c33 --dry-run";

/// `a2a-gateway grant create|list|remove`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Let one workspace message another; needs an operator's token (role operate)
    #[command(after_help = CREATE_EXAMPLES)]
    Create(CreateArguments),
    /// List grants, the oldest first, expired ones too
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArguments),
    /// Take a grant back: it ends on every replica within 1 s
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove(RemoveArguments),
}

#[derive(clap::Args, Debug)]
struct CreateArguments {
    /// The workspace that may call
    #[arg(add = ArgValueCompleter::new(complete::complete_workspaces))]
    caller: String,
    /// The workspace that may be called
    #[arg(add = ArgValueCompleter::new(complete::complete_workspaces))]
    target: String,
    /// Why, in up to 256 characters
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// How long it lasts, such as 7days; without it, until it is removed
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    expires_in: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    gateway: OperatorAccess,
}

#[derive(clap::Args, Debug)]
struct ListArguments {
    /// Only those of this caller
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(complete::complete_workspaces))]
    caller: Option<String>,
    /// Only those for this target
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(complete::complete_workspaces))]
    target: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: OperatorAccess,
}

#[derive(clap::Args, Debug)]
struct RemoveArguments {
    /// Id of the grant, as `grant list` has it
    #[arg(add = ArgValueCompleter::new(complete::complete_grants))]
    grant: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    gateway: OperatorAccess,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    match &arguments.command {
        Command::Create(arguments) => run_to_end(create_grant(arguments)),
        Command::List(arguments) => run_to_end(list_grants(arguments)),
        Command::Remove(arguments) => run_to_end(remove_grant(arguments)),
    }
}

async fn create_grant(arguments: &CreateArguments) -> Result<String, Failure> {
    let mut body = json!({"caller_id": arguments.caller, "target_id": arguments.target});
    if let Some(note) = &arguments.note {
        body["note"] = note.as_str().into();
    }
    if let Some(span) = arguments.expires_in {
        let at = humantime::format_rfc3339_millis(SystemTime::now() + span);
        body["expires_at"] = at.to_string().into();
    }
    let (client, dry_run) = (arguments.gateway.build_client()?, arguments.dry_run);
    let route = (Method::POST, "/grants");
    let grant = dry_run.send(&client, route, &body).await?;
    if arguments.json {
        return Ok(format_json(&grant));
    }
    let until = match grant["expires_at"].as_str() {
        Some(at) => format!(" until {at}"),
        None => String::new(),
    };
    let [id, caller, target] =
        ["id", "caller_id", "target_id"].map(|name| format_cell(&grant[name]));
    if dry_run.is_set() {
        return Ok(format!(
            "{caller} would get leave to message {target}{until}\n"
        ));
    }
    Ok(format!(
        "{caller} may message {target}{until}\nTake it back with: a2a-gateway grant remove {id}\n"
    ))
}

async fn list_grants(arguments: &ListArguments) -> Result<String, Failure> {
    let mut query = Vec::new();
    query.extend(arguments.caller.as_deref().map(|id| ("caller_id", id)));
    query.extend(arguments.target.as_deref().map(|id| ("target_id", id)));
    let client = arguments.gateway.build_client()?;
    let grants = client.list("/grants", &query, Some("grants")).await?;
    if arguments.json {
        return Ok(format_json(&grants.into()));
    }
    if grants.is_empty() {
        return Ok("no grant fits\n".to_owned());
    }
    let now = SystemTime::now();
    let rows: Vec<_> = grants.iter().map(|grant| format_row(grant, now)).collect();
    let titles = ["ID", "CALLER", "TARGET", "AGE", "EXPIRES", "NOTE"];
    Ok(align_columns(&titles, &rows))
}

fn format_row(grant: &Value, now: SystemTime) -> Vec<String> {
    vec![
        format_cell(&grant["id"]),
        format_cell(&grant["caller_id"]),
        format_cell(&grant["target_id"]),
        format_age(&grant["created_at"], now),
        format_cell(&grant["expires_at"]),
        format_cell(&grant["note"]),
    ]
}

async fn remove_grant(arguments: &RemoveArguments) -> Result<String, Failure> {
    let path = format!("/grants/{}", check_segment(&arguments.grant)?);
    let (client, dry_run) = (arguments.gateway.build_client()?, arguments.dry_run);
    let route = (Method::DELETE, path.as_str());
    let removed = dry_run.send(&client, route, &Value::Null).await?;
    if arguments.json {
        return Ok(format_json(&removed));
    }
    let is = dry_run.choose("is", "would be");
    Ok(format!("{} {is} removed\n", arguments.grant))
}
