//! `a2a-gateway policy prove` and `access matrix`: reach between workspaces, by a policy or as it is.

use std::fmt::Write as _;
use std::path::PathBuf;

use http::Method;
use serde_json::Value;

use super::super::access::OperatorAccess;
use super::super::failure::Failure;
use super::super::print;
use super::super::table::format_json;
use super::enforce::{EnforceArguments, run_enforce};
use super::{read_policy, send_policy};
use crate::usage::pass_file;

/// `a2a-gateway policy`.
#[derive(clap::Subcommand, Debug)]
pub enum PolicyCommand {
    /// Prove the statements of a policy for the state that it leads to; exit status 1 if one does not hold
    Prove(ProveArguments),
    /// Make the observed rules of a configuration file rules in force
    Enforce(EnforceArguments),
}

/// `a2a-gateway policy prove FILE`.
#[derive(clap::Args, Debug)]
pub struct ProveArguments {
    /// The policy, in YAML or JSON; `-`: from standard input
    file: PathBuf,
    /// As if workspaces, grants and stops that the file does not have were removed
    #[arg(long)]
    prune: bool,
    /// Print the gateway's answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// `a2a-gateway access`.
#[derive(clap::Subcommand, Debug)]
pub enum AccessCommand {
    /// List the pairs that may call, and by which rule; workspaces that all reach each other as one line
    Matrix(MatrixArguments),
}

/// `a2a-gateway access matrix`.
#[derive(clap::Args, Debug)]
pub struct MatrixArguments {
    /// Print CSV
    #[arg(long)]
    csv: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// Runs `a2a-gateway policy`.
pub async fn run_policy(command: &PolicyCommand) -> Result<String, Failure> {
    let arguments = match command {
        PolicyCommand::Prove(arguments) => arguments,
        PolicyCommand::Enforce(arguments) => return run_enforce(arguments),
    };
    let policy = read_policy(&arguments.file)?;
    let client = arguments.gateway.build_client()?;
    let prune = if arguments.prune { "true" } else { "false" };
    let query = [("prune", prune)];
    let proof = send_policy(&client, (Method::POST, "/policy/prove"), &query, &policy).await?;
    let holds = proof["holds"] == true;
    let count = policy["statements"].as_array().map_or(0, Vec::len);
    let text = match arguments.json {
        true => format!("{proof}\n"),
        false if holds => format!("All {count} statements hold.\n"),
        false => format_broken(&proof),
    };
    if holds {
        return Ok(text);
    }
    print(&text)?;
    Err(Failure::quiet(1))
}

/// Returns a line for each statement that does not hold, and its counter-example.
fn format_broken(proof: &Value) -> String {
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or("?").to_owned();
    let mut lines = String::new();
    for broken in proof["broken"].as_array().into_iter().flatten() {
        let mut path = text(broken, "caller");
        for step in broken["path"].as_array().into_iter().flatten() {
            // Writing to a string cannot fail.
            let _ = write!(
                path,
                " -[{}]-> {}",
                text(step, "rule"),
                text(step, "target")
            );
        }
        if broken["denied"].is_string() {
            let why = text(broken, "denied");
            let _ = write!(path, " may not reach {}: {why}", text(broken, "target"));
        }
        let _ = writeln!(
            lines,
            "does not hold: {}\n  {path}",
            text(broken, "statement")
        );
    }
    lines
}

/// Runs `a2a-gateway access`.
pub async fn run_access(command: &AccessCommand) -> Result<String, Failure> {
    const PATH: &str = "/access/matrix";
    let AccessCommand::Matrix(arguments) = command;
    let client = arguments.gateway.build_client()?;
    if arguments.csv {
        return pass_file(&client, PATH, &[]).await;
    }
    let list = client.get_whole_list(PATH, &[], Some("access")).await?;
    if arguments.json {
        return Ok(format_json(&list.into()));
    }
    let mut lines = String::new();
    for row in &list {
        let text = |name: &str| row[name].as_str().unwrap_or("?");
        // Writing to a string cannot fail.
        let _ = match row["group"].as_array() {
            Some(group) => {
                let members: Vec<_> = group.iter().filter_map(Value::as_str).collect();
                writeln!(lines, "all of ({}): {}", text("rule"), members.join(" "))
            }
            None => writeln!(
                lines,
                "{} -> {} ({})",
                text("caller"),
                text("target"),
                text("rule")
            ),
        };
    }
    Ok(lines)
}
