//! `a2a-gateway workspace set|move|pause|resume|remove`.

use std::io::{self, IsTerminal as _};

use http::Method;
use serde_json::{Map, Value};

use super::super::client::{ChangeFlags, path_of};
use super::super::complete;
use super::super::failure::Failure;
use super::super::table::{format_cell, mask_controls};
use super::super::terminal::ask_line;
use super::all_workspaces;
use super::create::parse_member;
use super::tree::Tree;

/// Workspaces that are named before a removal.
const NAMED_MAX: usize = 10;

/// `a2a-gateway workspace set ID MEMBER=VALUE…`.
#[derive(clap::Args, Debug)]
pub struct SetArguments {
    /// The workspace
    #[arg(add = complete::by_workspace())]
    id: String,
    /// Settings to change
    #[arg(required = true, value_name = "MEMBER=VALUE", value_parser = parse_member)]
    members: Vec<(String, Value)>,
    #[command(flatten)]
    flags: ChangeFlags,
}

/// `a2a-gateway workspace move ID`.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("place").required(true).multiple(true).args(["parent", "root", "org", "no_org"]))]
pub struct MoveArguments {
    /// The workspace
    #[arg(add = complete::by_workspace())]
    id: String,
    /// The workspace that it is to be below
    #[arg(long, value_name = "ID", conflicts_with = "root", add = complete::by_workspace())]
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
    #[command(flatten)]
    flags: ChangeFlags,
}

/// `a2a-gateway workspace pause|resume ID`.
#[derive(clap::Args, Debug)]
pub struct StateArguments {
    /// The workspace
    #[arg(add = complete::by_workspace())]
    id: String,
    #[command(flatten)]
    flags: ChangeFlags,
}

/// `a2a-gateway workspace remove ID`.
#[derive(clap::Args, Debug)]
pub struct RemoveArguments {
    /// The workspace
    #[arg(add = complete::by_workspace())]
    id: String,
    /// Do not ask, though there are workspaces below it
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    flags: ChangeFlags,
}

pub(super) async fn set_members(arguments: &SetArguments) -> Result<String, Failure> {
    let SetArguments { id, members, flags } = arguments;
    let changes: Map<String, Value> = members.iter().cloned().collect();
    let names: Vec<String> = changes.keys().cloned().collect();
    let was = flags.dry_run.choose("was", "would be");
    let tell = |changed: &Value| {
        let mut told = format!("{id} {was} changed");
        for name in names {
            // A credential is written only.
            if let Some(value) = changed.get(&name) {
                let value = mask_controls(&format_cell(value));
                told.push_str(&format!(", {name}: {value}"));
            }
        }
        told
    };
    let path = path_of("workspaces", id, "")?;
    flags
        .make(Method::PATCH, &path, &changes.into(), tell)
        .await
}

pub(super) async fn move_to(arguments: &MoveArguments) -> Result<String, Failure> {
    let MoveArguments { id, flags, .. } = arguments;
    let mut changes = Map::new();
    for (name, value, is_cleared) in [
        ("parent_id", &arguments.parent, arguments.root),
        ("org", &arguments.org, arguments.no_org),
    ] {
        if value.is_some() || is_cleared {
            changes.insert(name.to_owned(), value.clone().into());
        }
    }
    let (is, now) = match flags.dry_run.is_set {
        true => ("would be", ""),
        false => ("is", " now"),
    };
    let tell = |moved: &Value| {
        let parent = moved["parent_id"].as_str();
        let place = parent.map_or_else(|| "a root".to_owned(), |parent| format!("below {parent}"));
        let org = moved["org"].as_str();
        let org = org.map_or_else(|| "in no org".to_owned(), |org| format!("in the org {org}"));
        format!("{id} {is} {place}{now}, {org}")
    };
    let path = path_of("workspaces", id, "")?;
    flags
        .make(Method::PATCH, &path, &changes.into(), tell)
        .await
}

/// Pauses or resumes a workspace, by the end of the path for it.
pub(super) async fn change_state(
    arguments: &StateArguments,
    verb: &str,
) -> Result<String, Failure> {
    let StateArguments { id, flags } = arguments;
    let is = flags.dry_run.choose("is", "would be");
    let tell = |turned: &Value| format!("{id} {is} {}", format_cell(&turned["status"]));
    let path = path_of("workspaces", id, verb)?;
    flags.make(Method::POST, &path, &Value::Null, tell).await
}

pub(super) async fn remove_workspace(arguments: &RemoveArguments) -> Result<String, Failure> {
    let RemoveArguments { id, yes, flags } = arguments;
    let path = path_of("workspaces", id, "")?;
    let mut about = String::new();
    if !yes {
        let client = flags.gateway.build_client()?;
        let tree = Tree::new(all_workspaces(&client, None, &[]).await?);
        let below = tree.descendants(id);
        if !below.is_empty() {
            about = describe_consequences(id, &below);
            if !flags.dry_run.is_set {
                confirm_removal(id, &about)?;
            }
        }
    }
    let tell = |_: &Value| match (flags.dry_run.is_set, about.as_str()) {
        (false, _) => format!("{id} is removed"),
        (true, "") => format!("{id} would be removed"),
        (true, about) => format!("{id} would be removed. {about}"),
    };
    flags.make(Method::DELETE, &path, &Value::Null, tell).await
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
/// There is no terminal, or no yes.
fn confirm_removal(id: &str, about: &str) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        let complaint = format!("{about}. Nothing was removed: --yes removes it all the same");
        return Err(Failure::usage(complaint));
    }
    let said = ask_line(&format!("{about}.\nRemove {id}? [y/N] "))?;
    match said.unwrap_or_default().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new("nothing was removed")),
    }
}
