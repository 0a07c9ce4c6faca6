//! `a2a-gateway token create|operator|list|revoke`: tokens of workspaces, orgs and operators, which the gateway stores
//! as hashes.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::super::access::OperatorAccess;
use super::super::client::{ChangeFlags, DryRun, ReadFlags, body_of, format_end, path_of};
use super::super::complete;
use super::super::failure::Failure;
use super::super::table::{Table, format_cell, format_json};
use super::super::token_file::TokenOutput;

const COLUMNS: Table<'_> = Table {
    columns: "ID=id BEGINS_WITH=prefix LABEL=label AGE=created_at:age LAST_USED=last_used_at:age EXPIRES=expires_at",
    made: &[],
    none: "no token is live",
};

const ORG_COLUMNS: Table<'_> = Table {
    columns: "ID=id BEGINS_WITH=prefix NOTE=note AGE=created_at:age SUBTREE=subtree",
    made: &[],
    none: "no token is live",
};

const OPERATOR_COLUMNS: Table<'_> = Table {
    columns: "ID=id BEGINS_WITH=prefix ROLE=role LABEL=label PERSON=person AGE=created_at:age EXPIRES=expires_at",
    made: &[("person", name_person)],
    none: "no token is live",
};

/// Path of the tokens of operators.
const OPERATORS: &str = "/operators/tokens";

/// `a2a-gateway token create`.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("holder").required(true).args(["id", "org"]))]
pub struct CreateArguments {
    /// The workspace
    #[arg(add = complete::by_workspace())]
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
    #[arg(long, requires = "org", value_name = "ID", add = complete::by_workspace())]
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
pub struct OperatorArguments {
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
pub struct ListArguments {
    /// The workspace
    #[arg(add = complete::by_workspace())]
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
pub struct RevokeArguments {
    /// The workspace, and the id of its token; with --org or --operator, the id alone
    #[arg(required = true, num_args = 1..=2, value_names = ["ID", "TOKEN"], add = complete::by_workspace_or_token())]
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
pub struct CanvasArguments {
    /// Name of the user in audit records and logs
    #[arg(long)]
    user: String,
    /// The org of the workspaces that the user may message
    #[arg(long)]
    org: Option<String>,
    /// Only this workspace; may be given again
    #[arg(long = "workspace", value_name = "ID", add = complete::by_workspace())]
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
pub(super) async fn make_token(
    path: &str,
    body: &Value,
    output: &TokenOutput,
    gateway: &OperatorAccess,
) -> Result<String, Failure> {
    let client = gateway.build_client()?;
    let file = output.open()?;
    let request = client.request(Method::POST, path, &[]);
    let made = request.with_body(body).fetch_json().await?;
    output.hand_over(made, file)
}

pub(super) async fn create_operator_token(
    arguments: &OperatorArguments,
) -> Result<String, Failure> {
    let body = json!({
        "role": arguments.role,
        "label": arguments.label,
        "expires_in": arguments.expires_in.map(|span| span.as_secs()),
    });
    make_token(
        OPERATORS,
        &body_of(body),
        &arguments.output,
        &arguments.gateway,
    )
    .await
}

pub(super) async fn create_canvas_token(arguments: &CanvasArguments) -> Result<String, Failure> {
    let (output, gateway) = (&arguments.output, &arguments.gateway);
    let workspaces = Some(&arguments.workspaces).filter(|workspaces| !workspaces.is_empty());
    let body = body_of(json!({
        "user": arguments.user,
        "org": arguments.org,
        "workspaces": workspaces,
        "ttl_seconds": arguments.ttl.as_secs(),
    }));
    make_token("/canvas/tokens", &body, output, gateway).await
}

pub(super) async fn create_token(arguments: &CreateArguments) -> Result<String, Failure> {
    let (id, org) = (&arguments.id, &arguments.org);
    let (output, gateway) = (&arguments.output, &arguments.gateway);
    let body = body_of(json!({
        "label": arguments.label,
        "expires_in": arguments.expires_in.map(|span| span.as_secs()),
        "note": arguments.note,
        "subtree": arguments.subtree,
    }));
    let (path, kind) = match id {
        Some(id) if arguments.enrolment => {
            let path = path_of("workspaces", id, "/enrolment")?;
            (path, "an enrolment token")
        }
        id => (tokens_path(id.as_deref(), org.as_deref())?, "a token"),
    };
    if !arguments.dry_run.is_set {
        return make_token(&path, &body, output, gateway).await;
    }
    let _file = output.open()?;
    let client = gateway.build_client()?;
    let route = (Method::POST, path.as_str());
    let made = arguments.dry_run.send(&client, route, &body).await?;
    if output.json {
        return Ok(format_json(&made));
    }
    let org = || format!("the org {}", org.as_deref().unwrap_or_default());
    let holder = id.clone().unwrap_or_else(org);
    let subtree = arguments.subtree.as_ref();
    let subtree = subtree.map_or_else(String::new, |root| format!("the subtree of {root} in "));
    let until = format_end(&made);
    Ok(format!(
        "{kind} of {subtree}{holder} would be made{until}\n"
    ))
}

pub(super) async fn list_tokens(arguments: &ListArguments) -> Result<String, Failure> {
    let (id, org, flags) = (&arguments.id, &arguments.org, &arguments.flags);
    let (path, table) = match (arguments.operators, org) {
        (true, _) => (OPERATORS.to_owned(), OPERATOR_COLUMNS),
        (false, Some(_)) => (tokens_path(None, org.as_deref())?, ORG_COLUMNS),
        (false, None) => (tokens_path(id.as_deref(), None)?, COLUMNS),
    };
    flags.show_list(&path, &[], Some("tokens"), table).await
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
            said += &format!(
                "\n{} {is} revoked with it: enrolment tokens end with the last token",
                format_cell(id)
            );
        }
        said
    };
    flags.make(Method::DELETE, &path, &Value::Null, tell).await
}
