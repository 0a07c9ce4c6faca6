//! `a2a-gateway workspace set|move|pause|resume|remove`.

use std::io::{self, BufRead as _, IsTerminal as _};

use clap_complete::engine::ArgValueCompleter;
use http::Method;
use serde_json::{Map, Value};

use super::super::access::OperatorAccess;
use super::super::client::{Failure, check_segment, format_json};
use super::super::complete;
use super::super::dry_run::DryRun;
use super::super::table::{format_cell, mask_controls};
use super::super::write_prompt;
use super::all_workspaces;
use super::create::parse_member;
use super::tree::Tree;

/// Workspaces that are named before a removal.
const NAMED_MAX: usize = 10;

pub(super) const SET_EXAMPLES: &str = "\
Examples:
  a2a-gateway workspace set acme-dev role=builds max_concurrent=4
  a2a-gateway workspace set acme-dev role=null               null clears
  a2a-gateway workspace set acme-dev bridge=off --json
  a2a-gateway workspace set acme-dev max_concurrent=4 --dry-run

MEMBER is one of PATCH /workspaces/{id}, VALUE is JSON or a text. All are changed, or none.";

pub(super) const MOVE_EXAMPLES: &str = "\
Examples:
  a2a-gateway workspace move acme-dev --parent acme-qa
  a2a-gateway workspace move acme-dev --root
  a2a-gateway workspace move acme-dev --parent rival-pm --org rival
  a2a-gateway workspace move acme-dev --parent acme-qa --dry-run        would it be refused?";

pub(super) const PAUSE_EXAMPLES: &str = "\
Examples:
  a2a-gateway workspace pause acme-dev
  a2a-gateway workspace pause acme-dev --dry-run";

pub(super) const RESUME_EXAMPLES: &str = "\
Examples:
  a2a-gateway workspace resume acme-dev
  a2a-gateway workspace resume acme-dev --dry-run";

pub(super) const REMOVE_EXAMPLES: &str = "\
Examples:
  a2a-gateway workspace remove acme-dev
  a2a-gateway workspace remove acme-pm --dry-run    which workspaces are below it?
  a2a-gateway workspace remove acme-pm --yes        though there are workspaces below it";

/// `a2a-gateway workspace set ID MEMBER=VALUE…`.
#[derive(clap::Args, Debug)]
pub(super) struct SetArguments {
    /// The workspace
    #[arg(add = ArgValueCompleter::new(complete::complete_workspaces))]
    id: String,
    /// Settings to change
    #[arg(required = true, value_name = "MEMBER=VALUE", value_parser = parse_member)]
    members: Vec<(String, Value)>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// `a2a-gateway workspace move ID`.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("place").required(true).multiple(true).args(["parent", "root", "org", "no_org"]))]
pub(super) struct MoveArguments {
    /// The workspace
    #[arg(add = ArgValueCompleter::new(complete::complete_workspaces))]
    id: String,
    /// The workspace that it is to be below
    #[arg(long, value_name = "ID", conflicts_with = "root", add = ArgValueCompleter::new(complete::complete_workspaces))]
    parent: Option<String>,
    /// Below none
    #[arg(long)]
    root: bool,
    /// Into this org
    #[arg(long, value_name = "NAME", conflicts_with = "no_org")]
    org: Option<String>,
    /// Out of its org, into none
    #[arg(long)]
    no_org: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// `a2a-gateway workspace pause|resume ID`.
#[derive(clap::Args, Debug)]
pub(super) struct OneArguments {
    /// The workspace
    #[arg(add = ArgValueCompleter::new(complete::complete_workspaces))]
    id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// `a2a-gateway workspace remove ID`.
#[derive(clap::Args, Debug)]
pub(super) struct RemoveArguments {
    /// The workspace
    #[arg(add = ArgValueCompleter::new(complete::complete_workspaces))]
    id: String,
    /// Do not ask, though there are workspaces below it
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    gateway: OperatorAccess,
}

pub(super) async fn set_members(arguments: &SetArguments) -> Result<String, Failure> {
    let changes: Map<String, Value> = arguments.members.iter().cloned().collect();
    let path = format!("/workspaces/{}", check_segment(&arguments.id)?);
    let (client, dry_run) = (arguments.gateway.build_client()?, arguments.dry_run);
    let route = (Method::PATCH, path.as_str());
    let body = changes.clone().into();
    let changed = dry_run.send(&client, route, &body).await?;
    if arguments.json {
        return Ok(format_json(&changed));
    }
    let was = dry_run.choose("was", "would be");
    let mut told = format!("{} {was} changed", arguments.id);
    for name in changes.keys() {
        // A credential is written only.
        if changed.get(name).is_some() {
            told.push_str(&format!(
                ", {name}: {}",
                mask_controls(&format_cell(&changed[name]))
            ));
        }
    }
    Ok(told + "\n")
}

pub(super) async fn move_to(arguments: &MoveArguments) -> Result<String, Failure> {
    let mut changes = Map::new();
    if let Some(parent) = &arguments.parent {
        changes.insert("parent_id".to_owned(), parent.as_str().into());
    }
    if arguments.root {
        changes.insert("parent_id".to_owned(), Value::Null);
    }
    if let Some(org) = &arguments.org {
        changes.insert("org".to_owned(), org.as_str().into());
    }
    if arguments.no_org {
        changes.insert("org".to_owned(), Value::Null);
    }
    let path = format!("/workspaces/{}", check_segment(&arguments.id)?);
    let (client, dry_run) = (arguments.gateway.build_client()?, arguments.dry_run);
    let route = (Method::PATCH, path.as_str());
    let moved = dry_run.send(&client, route, &changes.into()).await?;
    if arguments.json {
        return Ok(format_json(&moved));
    }
    let place = match moved["parent_id"].as_str() {
        Some(parent) => format!("below {parent}"),
        None => "a root".to_owned(),
    };
    let org = match moved["org"].as_str() {
        Some(org) => format!("in the org {org}"),
        None => "in no org".to_owned(),
    };
    Ok(match dry_run.is_set() {
        true => format!("{} would be {place}, {org}\n", arguments.id),
        false => format!("{} is {place} now, {org}\n", arguments.id),
    })
}

pub(super) async fn pause_workspace(arguments: &OneArguments) -> Result<String, Failure> {
    change_state(arguments, "pause").await
}

pub(super) async fn resume_workspace(arguments: &OneArguments) -> Result<String, Failure> {
    change_state(arguments, "resume").await
}

async fn change_state(arguments: &OneArguments, verb: &str) -> Result<String, Failure> {
    let path = format!("/workspaces/{}/{verb}", check_segment(&arguments.id)?);
    let (client, dry_run) = (arguments.gateway.build_client()?, arguments.dry_run);
    let route = (Method::POST, path.as_str());
    let turned = dry_run.send(&client, route, &Value::Null).await?;
    if arguments.json {
        return Ok(format_json(&turned));
    }
    let is = dry_run.choose("is", "would be");
    let status = format_cell(&turned["status"]);
    Ok(format!("{} {is} {status}\n", arguments.id))
}

pub(super) async fn remove_workspace(arguments: &RemoveArguments) -> Result<String, Failure> {
    let id = check_segment(&arguments.id)?;
    let (client, dry_run) = (arguments.gateway.build_client()?, arguments.dry_run);
    let mut about = String::new();
    if !arguments.yes {
        let tree = Tree::new(all_workspaces(&client, None, None, None).await?);
        let below = tree.descendants(id);
        if !below.is_empty() {
            about = describe_consequences(id, &below);
            if !dry_run.is_set() {
                confirm_removal(id, &about)?;
            }
        }
    }
    let path = format!("/workspaces/{id}");
    let route = (Method::DELETE, path.as_str());
    let removed = dry_run.send(&client, route, &Value::Null).await?;
    if arguments.json {
        return Ok(format_json(&removed));
    }
    Ok(match (dry_run.is_set(), about.as_str()) {
        (false, _) => format!("{id} is removed\n"),
        (true, "") => format!("{id} would be removed\n"),
        (true, about) => format!("{id} would be removed. {about}\n"),
    })
}

/// Says what a removal does to the workspaces below.
fn describe_consequences(id: &str, below: &[&str]) -> String {
    let named = below[..below.len().min(NAMED_MAX)].join(", ");
    let further = match below.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "{id} has {} below it ({named}{further}). They stay, and lose their relation to it and to what is above it; its \
         tokens end within 1 s, and its id comes back only with `recreate`",
        match below.len() {
            1 => "1 workspace".to_owned(),
            count => format!("{count} workspaces"),
        }
    )
}

/// Asks on a terminal whether to remove a workspace with others below it.
///
/// # Errors
/// [`Failure::Usage`] without a terminal, [`Failure::Failed`] without a yes.
fn confirm_removal(id: &str, about: &str) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        let complaint = format!("{about}. Nothing was removed: --yes removes it all the same");
        return Err(Failure::Usage(complaint));
    }
    write_prompt(&format!("{about}.\nRemove {id}? [y/N] "))?;
    let mut said = String::new();
    io::stdin().lock().read_line(&mut said)?;
    if matches!(said.trim().to_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(Failure::Failed("nothing was removed".to_owned()))
}
