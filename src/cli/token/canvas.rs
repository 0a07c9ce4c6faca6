//! `a2a-gateway token canvas`: a token for a browser user.

use std::time::Duration;

use clap_complete::engine::ArgValueCompleter;
use serde_json::json;

use super::super::access::OperatorAccess;
use super::super::client::Failure;
use super::super::complete;
use super::super::token_file::TokenOutput;

pub(super) const EXAMPLES: &str = "\
Examples:
  a2a-gateway token canvas --user ada --org acme
  a2a-gateway token canvas --user ada --workspace acme-dev --ttl 10min
  a2a-gateway token canvas --user ada --org acme --json          with its end

Only the token is printed. It is shown once.";

/// `a2a-gateway token canvas`.
#[derive(clap::Args, Debug)]
pub(super) struct CanvasArguments {
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

/// Makes the token, and returns what is printed.
pub(super) async fn create_canvas_token(arguments: &CanvasArguments) -> Result<String, Failure> {
    let client = arguments.gateway.build_client()?;
    let mut wanted = json!({"user": arguments.user, "ttl_seconds": arguments.ttl.as_secs()});
    if let Some(org) = &arguments.org {
        wanted["org"] = org.as_str().into();
    }
    if !arguments.workspaces.is_empty() {
        wanted["workspaces"] = json!(arguments.workspaces);
    }
    let file = arguments.output.open()?;
    let made = client.post("/canvas/tokens", &wanted).await?;
    arguments.output.hand_over(made, file)
}
