//! `a2a-gateway grant`: permissions for one workspace to message another besides what the hierarchy permits.

use std::time::Duration;

use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};

use super::client::{ChangeFlags, ReadFlags, body_of, end_of, format_end, path_of, query_of};
use super::complete;
use super::failure::Failure;
use super::table::{Table, format_cells};

const COLUMNS: Table<'_> = Table {
    columns: "ID=id CALLER=caller_id TARGET=target_id AGE=created_at:age EXPIRES=expires_at NOTE=note",
    made: &[],
    none: "no grant fits",
};

/// `a2a-gateway grant create|list|remove`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Let one workspace message another; needs an operator's token (role operate)
    Create(CreateArguments),
    /// List grants, the oldest first, expired ones too
    List(ListArguments),
    /// Take a grant back: it ends on every replica within 1 s
    Remove(RemoveArguments),
}

/// `a2a-gateway grant create`.
#[derive(clap::Args, Debug)]
pub struct CreateArguments {
    /// The workspace that may call
    #[arg(add = complete::by_workspace())]
    caller: String,
    /// The workspace that may be called
    #[arg(add = complete::by_workspace())]
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

/// `a2a-gateway grant list`.
#[derive(clap::Args, Debug)]
pub struct ListArguments {
    /// Only those of this caller
    #[arg(long, value_name = "ID", add = complete::by_workspace())]
    caller: Option<String>,
    /// Only those for this target
    #[arg(long, value_name = "ID", add = complete::by_workspace())]
    target: Option<String>,
    #[command(flatten)]
    flags: ReadFlags,
}

/// `a2a-gateway grant remove`.
#[derive(clap::Args, Debug)]
pub struct RemoveArguments {
    /// Id of the grant, as `grant list` has it
    #[arg(add = complete::by_grant())]
    grant: String,
    #[command(flatten)]
    flags: ChangeFlags,
}

/// Runs `a2a-gateway grant`.
pub async fn run(command: &Command) -> Result<String, Failure> {
    match command {
        Command::Create(arguments) => create_grant(arguments).await,
        Command::List(ListArguments {
            caller,
            target,
            flags,
        }) => {
            let query = query_of(&[("caller_id", caller), ("target_id", target)]);
            let name = Some("grants");
            flags.show_list("/grants", &query, name, COLUMNS).await
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
        let [id, caller, target] = format_cells(grant, ["id", "caller_id", "target_id"]);
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
