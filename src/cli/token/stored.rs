//! `a2a-gateway token create|operator|list|revoke`: tokens of workspaces, orgs and operators, which the gateway stores as
//! hashes.

use std::time::Duration;

use clap_complete::engine::ArgValueCompleter;
use http::Method;
use serde_json::{Value, json};

use super::super::access::OperatorAccess;
use super::super::client::{
    ChangeFlags, DryRun, ReadFlags, body_of, format_end, format_json, path_of,
};
use super::super::complete;
use super::super::failure::Failure;
use super::super::table::{Cell, Column, format_cell};
use super::super::token_file::TokenOutput;

const COLUMNS: [Column; 6] = [
    ("ID", Cell::Member("id")),
    ("BEGINS WITH", Cell::Member("prefix")),
    ("LABEL", Cell::Member("label")),
    ("AGE", Cell::Age("created_at")),
    ("LAST USED", Cell::Age("last_used_at")),
    ("EXPIRES", Cell::Member("expires_at")),
];

const ORG_COLUMNS: [Column; 5] = [
    ("ID", Cell::Member("id")),
    ("BEGINS WITH", Cell::Member("prefix")),
    ("NOTE", Cell::Member("note")),
    ("AGE", Cell::Age("created_at")),
    ("SUBTREE", Cell::Member("subtree")),
];

const OPERATOR_COLUMNS: [Column; 7] = [
    ("ID", Cell::Member("id")),
    ("BEGINS WITH", Cell::Member("prefix")),
    ("ROLE", Cell::Member("role")),
    ("LABEL", Cell::Member("label")),
    ("PERSON", Cell::Made(name_person)),
    ("AGE", Cell::Age("created_at")),
    ("EXPIRES", Cell::Member("expires_at")),
];

pub(super) const CREATE_EXAMPLES: &str = "\
Examples:
  a2a-gateway token create acme-dev --label laptop --expires-in 90days
  a2a-gateway token create acme-dev --enrolment > token        for `a2a-gateway run --token-file token`
  a2a-gateway token create acme-dev --label laptop --token-file laptop-token
  a2a-gateway token create --org acme --note 'ticket 12' --json
  a2a-gateway token create --org acme --subtree acme-pm        looks after acme-pm and those below it
  a2a-gateway token create acme-dev --dry-run

Only the token is printed. It is shown once.";

pub(super) const OPERATOR_EXAMPLES: &str = "\
Examples:
  a2a-gateway token operator --role operate --label 'night shift' --expires-in 90days --token-file night-token
  a2a-gateway token operator --role read --label dashboard --json

Only the token is printed, or with --token-file its id. It is shown once.";

pub(super) const CANVAS_EXAMPLES: &str = "\
Examples:
  a2a-gateway token canvas --user ada --org acme
  a2a-gateway token canvas --user ada --workspace acme-dev --ttl 10min
  a2a-gateway token canvas --user ada --org acme --json          with its end

Only the token is printed. It is shown once.";

pub(super) const LIST_EXAMPLES: &str = "\
Examples:
  a2a-gateway token list acme-dev
  a2a-gateway token list --org acme --json
  a2a-gateway token list --operators";

pub(super) const REVOKE_EXAMPLES: &str = "\
Examples:
  a2a-gateway token revoke acme-dev 019aa9d2-6c1e-7b3a-9d52-0f7d4a1e2c33        an id of `token list`
  a2a-gateway token revoke --org acme 019aa9d2-6c1e-7b3a-9d52-0f7d4a1e2c33
  a2a-gateway token revoke --operator 019aa9d2-6c1e-7b3a-9d52-0f7d4a1e2c33
  a2a-gateway token revoke acme-dev 019aa9d2-6c1e-7b3a-9d52-0f7d4a1e2c33 --dry-run";

/// Path of the tokens of operators.
const OPERATORS: &str = "/operators/tokens";

/// `a2a-gateway token create`.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("holder").required(true).args(["id", "org"]))]
pub(in crate::cli) struct CreateArguments {
    /// The workspace
    #[arg(add = ArgValueCompleter::new(complete::complete_workspaces))]
    id: Option<String>,
    /// A token of this org instead
    #[arg(long, value_name = "NAME", conflicts_with_all = ["label", "expires_in", "enrolment"])]
    org: Option<String>,
    /// Name of the workspace's token in lists
    #[arg(long)]
    label: Option<String>,
    /// Note on the org's token in lists
    #[arg(long, requires = "org")]
    note: Option<String>,
    /// The org's token is to look after this workspace and those below it, not after all of the org
    #[arg(long, requires = "org", value_name = "ID", add = ArgValueCompleter::new(complete::complete_workspaces))]
    subtree: Option<String>,
    /// How long it lasts, such as 90days; without it, until it is revoked
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    expires_in: Option<Duration>,
    /// An enrolment token: for one registration of the workspace, within 24 h
    #[arg(long, conflicts_with_all = ["label", "expires_in"])]
    enrolment: bool,
    #[command(flatten)]
    output: TokenOutput,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// `a2a-gateway token operator`.
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct OperatorArguments {
    /// Role of its holder: read; operate (besides pauses, stops and grants); admin (everything)
    #[arg(long, value_parser = ["read", "operate", "admin"])]
    role: String,
    /// Name of the token in lists and records
    #[arg(long)]
    label: Option<String>,
    /// How long it lasts, such as 90days; without it, until it is revoked
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    expires_in: Option<Duration>,
    #[command(flatten)]
    output: TokenOutput,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// `a2a-gateway token list`.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("holder").required(true).args(["id", "org", "operators"]))]
pub(in crate::cli) struct ListArguments {
    /// The workspace
    #[arg(add = ArgValueCompleter::new(complete::complete_workspaces))]
    id: Option<String>,
    /// The tokens of this org instead
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// The tokens of operators instead, and the sessions of people at the console
    #[arg(long)]
    operators: bool,
    #[command(flatten)]
    flags: ReadFlags,
}

/// `a2a-gateway token revoke`.
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct RevokeArguments {
    /// The workspace, and the id of its token; with --org or --operator, the id alone
    #[arg(required = true, num_args = 1..=2, value_names = ["ID", "TOKEN"], add = ArgValueCompleter::new(complete::complete_workspaces_or_tokens))]
    ids: Vec<String>,
    /// A token of this org instead
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// A token of an operator instead, or the session of a person
    #[arg(long = "operator", conflicts_with = "org")]
    of_operator: bool,
    #[command(flatten)]
    flags: ChangeFlags,
}

/// `a2a-gateway token canvas`.
#[derive(clap::Args, Debug)]
pub(in crate::cli) struct CanvasArguments {
    /// Name of the user in audit records and logs
    #[arg(long)]
    user: String,
    /// The org of the workspaces that the user may message
    #[arg(long)]
    org: Option<String>,
    /// Only this workspace; may be given again
    #[arg(long = "workspace", value_name = "ID", add = ArgValueCompleter::new(complete::complete_workspaces))]
    workspaces: Vec<String>,
    /// How long it lasts, at most 24h
    #[arg(long, default_value = "1h", value_parser = humantime::parse_duration)]
    ttl: Duration,
    #[command(flatten)]
    output: TokenOutput,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// Returns the path of the tokens of a workspace or an org.
fn tokens_path(id: Option<&str>, org: Option<&str>) -> Result<String, Failure> {
    match (id, org) {
        (_, Some(org)) => path_of("orgs", org, "/tokens"),
        (Some(id), None) => path_of("workspaces", id, "/tokens"),
        (None, None) => Err(Failure::usage("say a workspace, or --org")),
    }
}

/// Asks for a token, and returns what is printed of it. Its file is opened before there is one.
async fn ask_for_token(
    path: &str,
    body: &Value,
    output: &TokenOutput,
    gateway: &OperatorAccess,
) -> Result<String, Failure> {
    let client = gateway.build_client()?;
    let file = output.open()?;
    let made = client.change((Method::POST, path), &[], body).await?;
    output.hand_over(made, file)
}

pub(super) async fn create_operator_token(
    arguments: &OperatorArguments,
) -> Result<String, Failure> {
    let body = body_of(json!({
        "role": arguments.role,
        "label": arguments.label,
        "expires_in": arguments.expires_in.map(|span| span.as_secs()),
    }));
    ask_for_token(OPERATORS, &body, &arguments.output, &arguments.gateway).await
}

pub(super) async fn create_canvas_token(arguments: &CanvasArguments) -> Result<String, Failure> {
    let workspaces = Some(&arguments.workspaces).filter(|workspaces| !workspaces.is_empty());
    let body = body_of(json!({
        "user": arguments.user,
        "org": arguments.org,
        "workspaces": workspaces,
        "ttl_seconds": arguments.ttl.as_secs(),
    }));
    ask_for_token(
        "/canvas/tokens",
        &body,
        &arguments.output,
        &arguments.gateway,
    )
    .await
}

pub(super) async fn create_token(arguments: &CreateArguments) -> Result<String, Failure> {
    let CreateArguments {
        id,
        org,
        output,
        gateway,
        ..
    } = arguments;
    let (path, body) = match id {
        Some(id) if arguments.enrolment => (path_of("workspaces", id, "/enrolment")?, json!({})),
        id => {
            let body = json!({
                "label": arguments.label,
                "expires_in": arguments.expires_in.map(|span| span.as_secs()),
                "note": arguments.note,
                "subtree": arguments.subtree,
            });
            (tokens_path(id.as_deref(), org.as_deref())?, body_of(body))
        }
    };
    if !arguments.dry_run.is_set {
        return ask_for_token(&path, &body, output, gateway).await;
    }
    let _file = output.open()?;
    let client = gateway.build_client()?;
    let route = (Method::POST, path.as_str());
    let made = arguments.dry_run.send(&client, route, &body).await?;
    if output.json {
        return Ok(format_json(&made));
    }
    let kind = match arguments.enrolment {
        true => "an enrolment token",
        false => "a token",
    };
    let holder = match (id, org) {
        (Some(id), _) => id.clone(),
        (None, org) => format!("the org {}", org.as_deref().unwrap_or_default()),
    };
    let subtree = arguments.subtree.as_ref();
    let subtree = subtree.map_or_else(String::new, |root| format!("the subtree of {root} in "));
    let until = format_end(&made);
    Ok(format!(
        "{kind} of {subtree}{holder} would be made{until}\n"
    ))
}

pub(super) async fn list_tokens(arguments: &ListArguments) -> Result<String, Failure> {
    let ListArguments {
        id,
        org,
        operators,
        flags,
    } = arguments;
    let columns: &[Column] = match (operators, org) {
        (true, _) => &OPERATOR_COLUMNS,
        (false, Some(_)) => &ORG_COLUMNS,
        (false, None) => &COLUMNS,
    };
    let path = match operators {
        true => OPERATORS.to_owned(),
        false => tokens_path(id.as_deref(), org.as_deref())?,
    };
    let client = flags.gateway.build_client()?;
    let tokens = client.list(&path, &[], Some("tokens")).await?;
    Ok(flags.format_list(tokens, columns, "no token is live"))
}

/// Returns the person of a session: the provider's name for them.
fn name_person(token: &Value) -> String {
    let person = token["name"].as_str().or(token["subject"].as_str());
    person.unwrap_or_default().to_owned()
}

pub(super) async fn revoke_token(arguments: &RevokeArguments) -> Result<String, Failure> {
    let (org, flags) = (arguments.org.as_deref(), &arguments.flags);
    let (holder, token) = match (arguments.ids.as_slice(), org, arguments.of_operator) {
        ([token], None, true) => (OPERATORS.to_owned(), token),
        ([token], Some(_), false) => (tokens_path(None, org)?, token),
        ([id, token], None, false) => (tokens_path(Some(id), None)?, token),
        _ => {
            return Err(Failure::usage(
                "say a workspace and the id of its token, or --org NAME or --operator and the id alone",
            ));
        }
    };
    let path = path_of(holder.trim_start_matches('/'), token, "")?;
    let is = flags.dry_run.choose("is", "would be");
    let tell = |revoked: &Value| {
        let mut said = format!("{token} {is} revoked");
        for id in revoked["ended"].as_array().into_iter().flatten() {
            let id = format_cell(id);
            said +=
                &format!("\n{id} {is} revoked with it: enrolment tokens end with the last token");
        }
        said
    };
    flags.make(Method::DELETE, &path, &Value::Null, tell).await
}
