//! `a2a-gateway health`: asks a running gateway whether it is ready, for container health checks.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use gateway_client::{ClientError, Request};
use serde_json::Value;
use url::Url;

use super::access::{GatewaySelection, Listener};
use super::{USAGE, block_on, parse_http_url, print, print_error};

/// Timeout of the request: longer than the default `stores.timeout`, within which the gateway asks
/// its stores.
const WITHIN: Duration = Duration::from_millis(2500);

const EXAMPLES: &str = "\
Examples:
  a2a-gateway health
  a2a-gateway health --traffic
  a2a-gateway health --url http://127.0.0.1:9090";

/// `a2a-gateway health`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Base URL of the admin listener [env: A2A_GATEWAY_ADMIN_URL] [default: admin.listen of --config, else of the
    /// context, else http://127.0.0.1:9090]
    #[arg(long, value_name = "URL", value_parser = parse_http_url, conflicts_with = "context")]
    url: Option<Url>,
    #[command(flatten)]
    selection: GatewaySelection,
    /// Ask what a load balancer asks (/readyz/traffic): a store that went away later does not count
    #[arg(long)]
    traffic: bool,
}

/// The gateway is not ready, or did not answer.
#[derive(Debug, thiserror::Error)]
enum HealthError {
    #[error(
        "{0}; is the gateway running? --url, A2A_GATEWAY_ADMIN_URL, a context or --config say where its admin listener (admin.listen) is"
    )]
    Nobody(ClientError),
    #[error("cannot ask the gateway; is this the URL of its admin listener (admin.listen)?")]
    Client(#[source] ClientError),
    #[error(
        "{0} is the gateway's public listener; --url takes its admin listener (admin.listen), such as http://127.0.0.1:9090"
    )]
    Public(String),
    #[error("not ready:{0}")]
    NotReady(String),
    #[error("cannot print")]
    Output(#[from] std::io::Error),
}

impl From<ClientError> for HealthError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::NotListening { .. } => Self::Nobody(error),
            other => Self::Client(other),
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let endpoint = arguments
        .selection
        .resolve_endpoint(Listener::Admin, arguments.url.as_ref());
    let base = match endpoint {
        Ok(endpoint) => endpoint.url,
        Err(error) => {
            print_error(&error);
            return ExitCode::from(USAGE);
        }
    };
    let path = if arguments.traffic {
        "/readyz/traffic"
    } else {
        "/readyz"
    };
    match block_on(check(&base, path)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}

async fn check(base: &Url, path: &str) -> Result<(), HealthError> {
    let mut url = base.clone();
    url.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
    let (status, body) = Request::get(&url, WITHIN).send().await?.read_json().await?;
    // Another server may listen at this address: only a gateway's body counts.
    if status == 200 && body["status"] == "ready" {
        print("ready\n")?;
        return Ok(());
    }
    // The public listener has no such route, and its 404 carries the gateway's reason.
    if status == 404 && body["reason"] == "not_found" {
        let asked = url.origin().ascii_serialization();
        return Err(HealthError::Public(asked));
    }
    Err(HealthError::NotReady(format_parts(status, &body)))
}

/// Returns the failed parts (` sql unavailable, draining`), or the status if the response is not a
/// gateway's.
fn format_parts(status: u16, body: &Value) -> String {
    if body["status"] != "not_ready" {
        return format!(" status {status}, and not the answer of a gateway");
    }
    let mut text = String::new();
    for part in ["sql", "shared", "keys", "listener"] {
        if let Some(word) = body[part].as_str().filter(|word| *word != "ok") {
            let _ = write!(text, " {part} {word},");
        }
    }
    if body["draining"] == true {
        text.push_str(" draining,");
    }
    text.trim_end_matches(',').to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let body = json!({"status": "not_ready", "sql": "unavailable", "shared": "ok", "keys": "ok", "draining": true});
        assert_eq!(format_parts(503, &body), " sql unavailable, draining");
        assert!(format_parts(404, &Value::Null).contains("404"));
    }
}
