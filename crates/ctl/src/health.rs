//! `a2a-gateway health`: asks a running gateway whether it is ready, for container health checks.

use std::fmt::Write as _;
use std::time::Duration;

use gateway_client::{Registry, Request};
use http::Method;
use serde_json::Value;
use url::Url;

use super::access::{GatewaySelection, Listener};
use super::client::{ask_admin, until_done};
use super::failure::Failure;
use super::parse_http_url;

/// What a user does if nothing listens.
const ADVICE: &str = "; is the gateway running? --admin, A2A_GATEWAY_ADMIN_URL, a context or --config say where its admin listener (admin.listen) is";

/// Timeout of the request: longer than the default `stores.timeout`, within which the gateway asks
/// its stores.
const WITHIN: Duration = Duration::from_millis(2500);

/// `a2a-gateway health`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Base URL of the admin listener [env: A2A_GATEWAY_ADMIN_URL] [default: admin.listen of --config, else of the
    /// context, else http://127.0.0.1:9090]
    #[arg(long, alias = "url", value_name = "URL", value_parser = parse_http_url, conflicts_with = "context")]
    admin: Option<Url>,
    #[command(flatten)]
    selection: GatewaySelection,
    /// Ask what a load balancer asks (/readyz/traffic): a store that went away later does not count
    #[arg(long)]
    traffic: bool,
    /// Ask again until it is ready, for at most this long [default: 60s]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "60s",
        value_parser = humantime::parse_duration)]
    wait: Option<Duration>,
}

/// Runs `a2a-gateway health`.
pub async fn run(arguments: &Arguments) -> Result<String, Failure> {
    until_done(arguments.wait, async || check_health(arguments).await).await
}

async fn check_health(arguments: &Arguments) -> Result<String, Failure> {
    let selection = &arguments.selection;
    let endpoint = selection.resolve_endpoint(Listener::Admin, arguments.admin.as_ref())?;
    let at = endpoint.url.origin().ascii_serialization();
    let client = Registry::for_user(endpoint.url, None, ADVICE);
    let path = match arguments.traffic {
        true => "/readyz/traffic",
        false => "/readyz",
    };
    let request = Request {
        within: WITHIN,
        ..client.request(Method::GET, path, &[])
    };
    let (status, body) = ask_admin(request).await?;
    // Another server may listen at this address: only a gateway's body counts.
    if status == 200 && body["status"] == "ready" {
        return Ok("ready\n".to_owned());
    }
    // The public listener has no such route, and its 404 carries the gateway's reason.
    if status == 404 && body["reason"] == "not_found" {
        return Err(Failure::new(format!(
            "{at} is the gateway's public listener; --admin takes its admin listener (admin.listen), such as http://127.0.0.1:9090"
        )));
    }
    Err(Failure::new(format!(
        "not ready:{}",
        format_parts(status, &body)
    )))
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
