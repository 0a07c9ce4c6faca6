//! `a2a-gateway grant`: permissions for one workspace to message another besides what the hierarchy permits.

use std::time::Duration;

use clap::Subcommand;
use clap_complete::engine::ArgValueCompleter;
use http::Method;
use serde_json::{Value, json};

use super::client::{ChangeFlags, ReadFlags, body_of, end_of, format_end, path_of, query_of};
use super::complete;
use super::failure::Failure;
use super::table::{Cell, Column, format_cell};

const COLUMNS: [Column; 6] = [
    ("ID", Cell::Member("id")),
    ("CALLER", Cell::Member("caller_id")),
    ("TARGET", Cell::Member("target_id")),
    ("AGE", Cell::Age("created_at")),
    ("EXPIRES", Cell::Member("expires_at")),
    ("NOTE", Cell::Member("note")),
];

pub(super) const EXAMPLES: &str = "\
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
#[derive(Debug, Subcommand)]
pub(super) enum Command {
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
pub(super) struct CreateArguments {
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
    #[command(flatten)]
    flags: ChangeFlags,
}

#[derive(clap::Args, Debug)]
pub(super) struct ListArguments {
    /// Only those of this caller
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(complete::complete_workspaces))]
    caller: Option<String>,
    /// Only those for this target
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(complete::complete_workspaces))]
    target: Option<String>,
    #[command(flatten)]
    flags: ReadFlags,
}

#[derive(clap::Args, Debug)]
pub(super) struct RemoveArguments {
    /// Id of the grant, as `grant list` has it
    #[arg(add = ArgValueCompleter::new(complete::complete_grants))]
    grant: String,
    #[command(flatten)]
    flags: ChangeFlags,
}

pub(super) async fn run(command: &Command) -> Result<String, Failure> {
    match command {
        Command::Create(arguments) => create_grant(arguments).await,
        Command::List(ListArguments {
            caller,
            target,
            flags,
        }) => {
            let query = query_of(&[("caller_id", caller), ("target_id", target)]);
            let client = flags.gateway.build_client()?;
            let grants = client.list("/grants", &query, Some("grants")).await?;
            Ok(flags.format_list(grants, &COLUMNS, "no grant fits"))
        }
        Command::Remove(RemoveArguments { grant, flags }) => {
            let path = path_of("grants", grant, "")?;
            let is = flags.dry_run.choose("is", "would be");
            let tell = |_: &Value| format!("{grant} {is} removed");
            flags.make(Method::DELETE, &path, &Value::Null, tell).await
        }
    }
}

async fn create_grant(arguments: &CreateArguments) -> Result<String, Failure> {
    let body = body_of(json!({
        "caller_id": arguments.caller,
        "target_id": arguments.target,
        "note": arguments.note,
        "expires_at": end_of(arguments.expires_in),
    }));
    let flags = &arguments.flags;
    let tell = |grant: &Value| {
        let [id, caller, target] =
            ["id", "caller_id", "target_id"].map(|name| format_cell(&grant[name]));
        let until = format_end(grant);
        match flags.dry_run.is_set {
            true => format!("{caller} would get leave to message {target}{until}"),
            false => format!(
                "{caller} may message {target}{until}\nTake it back with: a2a-gateway grant remove {id}"
            ),
        }
    };
    flags.make(Method::POST, "/grants", &body, tell).await
}
