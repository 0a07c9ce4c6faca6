//! `a2a-gateway token create|operator|list|revoke`: tokens of workspaces, orgs and operators, which the gateway stores as
//! hashes.

use std::time::{Duration, SystemTime};

use clap_complete::engine::ArgValueCompleter;
use http::Method;
use serde_json::{Value, json};

use super::super::access::OperatorAccess;
use super::super::client::{Client, Failure, check_segment, format_json};
use super::super::complete;
use super::super::dry_run::DryRun;
use super::super::table::{align_columns, format_age, format_cell};
use super::super::token_file::TokenOutput;
use crate::identity::Role;

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
pub(super) struct CreateArguments {
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
pub(super) struct OperatorArguments {
    /// Role of its holder: read; operate (besides pauses, stops and grants); admin (everything)
    #[arg(long, value_parser = Role::ALL.iter().map(|role| role.as_str()).collect::<Vec<_>>())]
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
pub(super) struct ListArguments {
    /// The workspace
    #[arg(add = ArgValueCompleter::new(complete::complete_workspaces))]
    id: Option<String>,
    /// The tokens of this org instead
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// The tokens of operators instead, and the sessions of people at the console
    #[arg(long)]
    operators: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// `a2a-gateway token revoke`.
#[derive(clap::Args, Debug)]
pub(super) struct RevokeArguments {
    /// The workspace, and the id of its token; with --org or --operator, the id alone
    #[arg(required = true, num_args = 1..=2, value_names = ["ID", "TOKEN"], add = ArgValueCompleter::new(complete::complete_workspaces_or_tokens))]
    ids: Vec<String>,
    /// A token of this org instead
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// A token of an operator instead, or the session of a person
    #[arg(long = "operator", conflicts_with = "org")]
    of_operator: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// Returns the body that asks for a token of a workspace.
pub(super) fn request_body(label: Option<&str>, expires_in: Option<Duration>) -> Value {
    let mut wanted = json!({});
    if let Some(label) = label {
        wanted["label"] = label.into();
    }
    if let Some(expires_in) = expires_in {
        wanted["expires_in"] = expires_in.as_secs().into();
    }
    wanted
}

/// Returns the path of the tokens of a workspace or an org.
fn tokens_path(id: Option<&str>, org: Option<&str>) -> Result<String, Failure> {
    match (id, org) {
        (_, Some(org)) => Ok(format!("/orgs/{}/tokens", check_segment(org)?)),
        (Some(id), None) => Ok(format!("/workspaces/{}/tokens", check_segment(id)?)),
        (None, None) => Err(Failure::Usage("say a workspace, or --org".to_owned())),
    }
}

pub(super) async fn create_operator_token(
    arguments: &OperatorArguments,
) -> Result<String, Failure> {
    let client = arguments.gateway.build_client()?;
    let mut wanted = request_body(arguments.label.as_deref(), arguments.expires_in);
    wanted["role"] = arguments.role.as_str().into();
    let file = arguments.output.open()?;
    let made = client.post(OPERATORS, &wanted).await?;
    arguments.output.hand_over(made, file)
}

/// Takes a token back that a release without subtrees made: it ignores the member, so it is one of the whole org.
async fn require_subtree(client: &Client, path: &str, made: &Value) -> Result<(), Failure> {
    if !made["subtree"].is_null() {
        return Ok(());
    }
    let id = check_segment(made["id"].as_str().unwrap_or_default())?;
    let path = format!("{path}/{id}");
    client
        .send_change(Method::DELETE, &path, &[], &Value::Null)
        .await?;
    let complaint = "the gateway is of a release without subtrees: update it. No token was made";
    Err(Failure::Failed(complaint.to_owned()))
}

pub(super) async fn create_token(arguments: &CreateArguments) -> Result<String, Failure> {
    let CreateArguments { id, org, note, .. } = arguments;
    let (client, dry_run) = (arguments.gateway.build_client()?, arguments.dry_run);
    let output = &arguments.output;
    let file = output.open()?;
    let (path, wanted) = match id {
        Some(id) if arguments.enrolment => {
            let path = format!("/workspaces/{}/enrolment", check_segment(id)?);
            (path, json!({}))
        }
        id => {
            let path = tokens_path(id.as_deref(), org.as_deref())?;
            let mut wanted = request_body(arguments.label.as_deref(), arguments.expires_in);
            if let Some(note) = note {
                wanted["note"] = note.as_str().into();
            }
            if let Some(subtree) = &arguments.subtree {
                wanted["subtree"] = subtree.as_str().into();
            }
            (path, wanted)
        }
    };
    let route = (Method::POST, path.as_str());
    let made = dry_run.send(&client, route, &wanted).await?;
    if arguments.subtree.is_some() {
        require_subtree(&client, &path, &made).await?;
    }
    if dry_run.is_set() && output.is_json() {
        return Ok(format_json(&made));
    }
    if dry_run.is_set() {
        let kind = if arguments.enrolment {
            "an enrolment token"
        } else {
            "a token"
        };
        let holder = match (id, org) {
            (Some(id), _) => id.clone(),
            (None, org) => format!("the org {}", org.as_deref().unwrap_or_default()),
        };
        let holder = match &arguments.subtree {
            Some(root) => format!("the subtree of {root} in {holder}"),
            None => holder,
        };
        let until = match made["expires_at"].as_str() {
            Some(at) => format!(" until {at}"),
            None => String::new(),
        };
        return Ok(format!("{kind} of {holder} would be made{until}\n"));
    }
    output.hand_over(made, file)
}

pub(super) async fn list_tokens(arguments: &ListArguments) -> Result<String, Failure> {
    let path = match arguments.operators {
        true => OPERATORS.to_owned(),
        false => tokens_path(arguments.id.as_deref(), arguments.org.as_deref())?,
    };
    let client = arguments.gateway.build_client()?;
    let tokens = client.list(&path, &[], Some("tokens")).await?;
    if arguments.json {
        return Ok(format_json(&tokens.into()));
    }
    if tokens.is_empty() {
        return Ok("no token is live\n".to_owned());
    }
    if arguments.operators {
        return Ok(format_operator_tokens(&tokens));
    }
    let now = SystemTime::now();
    let of_org = arguments.org.is_some();
    let rows: Vec<_> = tokens
        .iter()
        .map(|token| {
            let (id, prefix) = (format_cell(&token["id"]), format_cell(&token["prefix"]));
            let age_of = |member: &str| format_age(&token[member], now);
            if of_org {
                let (note, subtree) = (format_cell(&token["note"]), format_cell(&token["subtree"]));
                return vec![id, prefix, note, age_of("created_at"), subtree];
            }
            let (label, end) = (
                format_cell(&token["label"]),
                format_cell(&token["expires_at"]),
            );
            let (made, used) = (age_of("created_at"), age_of("last_used_at"));
            vec![id, prefix, label, made, used, end]
        })
        .collect();
    let titles: &[&str] = if of_org {
        &["ID", "BEGINS WITH", "NOTE", "AGE", "SUBTREE"]
    } else {
        &["ID", "BEGINS WITH", "LABEL", "AGE", "LAST USED", "EXPIRES"]
    };
    Ok(align_columns(titles, &rows))
}

/// Returns the tokens of operators as a table; a session of a person has its provider's name for them.
fn format_operator_tokens(tokens: &[Value]) -> String {
    let now = SystemTime::now();
    let rows: Vec<_> = tokens
        .iter()
        .map(|token| {
            let person = token["name"].as_str().or(token["subject"].as_str());
            vec![
                format_cell(&token["id"]),
                format_cell(&token["prefix"]),
                format_cell(&token["role"]),
                format_cell(&token["label"]),
                person.unwrap_or_default().to_owned(),
                format_age(&token["created_at"], now),
                format_cell(&token["expires_at"]),
            ]
        })
        .collect();
    let titles = [
        "ID",
        "BEGINS WITH",
        "ROLE",
        "LABEL",
        "PERSON",
        "AGE",
        "EXPIRES",
    ];
    align_columns(&titles, &rows)
}

pub(super) async fn revoke_token(arguments: &RevokeArguments) -> Result<String, Failure> {
    let org = arguments.org.as_deref();
    let (holder, token) = match (arguments.ids.as_slice(), org, arguments.of_operator) {
        ([token], None, true) => (OPERATORS.to_owned(), token),
        ([token], Some(_), false) => (tokens_path(None, org)?, token),
        ([id, token], None, false) => (tokens_path(Some(id), None)?, token),
        _ => {
            let complaint = "say a workspace and the id of its token, or --org NAME or --operator and the id alone";
            return Err(Failure::Usage(complaint.to_owned()));
        }
    };
    let path = format!("{holder}/{}", check_segment(token)?);
    let (client, dry_run) = (arguments.gateway.build_client()?, arguments.dry_run);
    let route = (Method::DELETE, path.as_str());
    let revoked = dry_run.send(&client, route, &Value::Null).await?;
    if arguments.json {
        return Ok(format_json(&revoked));
    }
    let is = dry_run.choose("is", "would be");
    let mut said = format!("{token} {is} revoked\n");
    for id in revoked["ended"].as_array().into_iter().flatten() {
        let id = format_cell(id);
        said += &format!("{id} {is} revoked with it: enrolment tokens end with the last token\n");
    }
    Ok(said)
}
