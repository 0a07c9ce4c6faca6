//! `a2a-gateway workspace create`.

use http::Method;
use serde_json::{Value, json};
use url::Url;

use super::super::access::OperatorAccess;
use super::super::client::{DryRun, body_of};
use super::super::failure::Failure;
use super::super::table::{format_cell, format_json};
use super::super::token_file::TokenOutput;
use super::super::{complete, parse_http_url};

/// `a2a-gateway workspace create ID`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Its id: letters, digits, `-`, `.` and `_`. After a removal it comes back only with `recreate`
    id: String,
    /// Its name for people [default: the id]
    #[arg(long)]
    name: Option<String>,
    /// The workspace that it is below
    #[arg(long, value_name = "ID", add = complete::by_workspace())]
    parent: Option<String>,
    /// Its org; below a parent, that of the parent
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Its role, in a few words
    #[arg(long)]
    role: Option<String>,
    /// Where its agent listens, if it does not register by itself
    #[arg(long, value_name = "URL", value_parser = parse_http_url)]
    agent_url: Option<Url>,
    /// Its agent sends no heartbeats: it counts as online
    #[arg(long)]
    assumed: bool,
    /// Its agent fetches its messages (delivery mode `poll`)
    #[arg(long)]
    poll: bool,
    /// Another member of the body of POST /workspaces: JSON, or a text; may be given again
    #[arg(long, value_name = "MEMBER=VALUE", value_parser = parse_member)]
    set: Vec<(String, Value)>,
    #[command(flatten)]
    output: TokenOutput,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// Parses `MEMBER=VALUE`: JSON, else a text.
pub(super) fn parse_member(text: &str) -> Result<(String, Value), &'static str> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = parts.ok_or("write MEMBER=VALUE, such as max_concurrent=4")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    Ok((name.to_owned(), value))
}

fn request_body(arguments: &Arguments) -> Value {
    let mut body = body_of(json!({
        "id": arguments.id,
        "name": arguments.name.as_ref().unwrap_or(&arguments.id),
        "parent_id": arguments.parent,
        "org": arguments.org,
        "role": arguments.role,
        "url": arguments.agent_url,
        "liveness": arguments.assumed.then_some("assumed"),
        "delivery_mode": arguments.poll.then_some("poll"),
    }));
    for (name, value) in &arguments.set {
        body[name] = value.clone();
    }
    body
}

pub(super) async fn create_workspace(arguments: &Arguments) -> Result<String, Failure> {
    let (client, dry_run) = (arguments.gateway.build_client()?, arguments.dry_run);
    let output = &arguments.output;
    let file = output.open()?;
    let route = (Method::POST, "/workspaces");
    let mut made = dry_run
        .send(&client, route, &request_body(arguments))
        .await?;
    if !dry_run.is_set {
        TokenOutput::store_token(&mut made, file)?;
    }
    if output.json {
        return Ok(format_json(&made));
    }
    let mut told = format!(
        "{} {} created: {}",
        format_cell(&made["id"]),
        dry_run.choose("was", "would be"),
        format_cell(&made["status"])
    );
    for (member, words) in [("parent_id", "below"), ("org", "in the org")] {
        if let Some(value) = made[member].as_str() {
            told.push_str(&format!(", {words} {value}"));
        }
    }
    if dry_run.is_set {
        return Ok(told + "\n");
    }
    let kept = match (made["enrolment_token"].as_str(), &output.token_file) {
        (Some(token), _) => format!("enrolment token, shown once, good for 24 h: {token}"),
        (None, Some(path)) => format!("enrolment token, good for 24 h: in {}", path.display()),
        (None, None) => String::new(),
    };
    Ok(format!("{told}\n{kept}\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_are_json_or_a_text() {
        for (typed, name, value) in [
            ("max_concurrent=4", "max_concurrent", json!(4)),
            ("role=builds", "role", json!("builds")),
            ("bridge=\"off\"", "bridge", json!("off")),
            (
                "wake={\"url\":\"http://w/?a=b\"}",
                "wake",
                json!({"url": "http://w/?a=b"}),
            ),
            ("url=http://h/?a=b", "url", json!("http://h/?a=b")),
            ("role=null", "role", Value::Null),
        ] {
            assert_eq!(parse_member(typed), Ok((name.to_owned(), value)));
        }
        assert!(parse_member("role").is_err() && parse_member("=x").is_err());
    }
}
