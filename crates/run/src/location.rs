//! The agent's location: where it serves its card, and the URL at which the gateway reaches it.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use gateway_client::Request;
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use url::Url;

use super::listener;
use super::process::ProcessGroup;
use ctl::Failure;
use ctl::{is_bare, is_loopback, to_loopback};

/// Timeout of one request for the card.
pub(super) const CARD_WITHIN: Duration = Duration::from_secs(5);

/// Shortest timeout of it: the last request before a deadline has this time.
const CARD_LEAST: Duration = Duration::from_secs(1);

/// Delay between two requests while the agent starts.
const LOOK: Duration = Duration::from_millis(100);

/// Time without a card after which the log says what is waited for.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// The word for JSON-RPC in cards of every generation.
const JSON_RPC: &str = "JSONRPC";

/// The location of the agent.
pub(super) struct AgentLocation {
    /// The agent's card, on loopback.
    card: Url,
    /// Where the gateway reaches the agent or its guard. Without a path, the card has the path.
    base: Url,
    /// The processes that may listen at the agent's port; without them, any may.
    pub(super) owner: Option<ProcessGroup>,
}

/// The agent does not serve its card.
#[derive(Debug, thiserror::Error)]
pub(super) enum CardError {
    #[error("{0}")]
    Absent(String),
    #[error(
        "port {port} of 127.0.0.1 belongs to another program (process {process}), which would get the agent's calls: \
         end it, or choose another port with --port; --any-listener takes it for the agent"
    )]
    Stranger { port: u16, process: String },
}

impl AgentLocation {
    /// Finds the location of an agent that listens at `port`. `guard` is the address of its guard, and true if that has
    /// TLS.
    ///
    /// # Errors
    /// The gateway is on another machine, and only this one reaches the agent.
    pub(super) fn new(
        port: u16,
        card: &str,
        advertised: Option<Url>,
        guard: Option<(SocketAddr, bool)>,
        gateway: &Url,
    ) -> Result<Self, Failure> {
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        match guard {
            Some((address, _)) if address.port() == 0 => {
                return Err(Failure::usage("--guard needs a port"));
            }
            Some((address, _)) if to_loopback(address) == own => {
                return Err(Failure::usage(format!(
                    "--guard {address} is the agent's own address: choose another port with --guard or --port"
                )));
            }
            _ => {}
        }
        let base = match (advertised, guard) {
            (Some(url), _) if is_bare(&url) => url,
            (Some(_), _) => {
                return Err(Failure::usage(
                    "--advertise must be a URL without a user, `?` and `#`",
                ));
            }
            (None, Some((address, has_tls))) => {
                let scheme = if has_tls { "https" } else { "http" };
                local_url(scheme, to_loopback(address), gateway)?
            }
            (None, None) => local_url("http", own, gateway)?,
        };
        Ok(Self {
            card: parse_url(&format!("http://{own}{card}"))?,
            base,
            owner: None,
        })
    }

    /// Waits until the agent serves its card. The log says so once when that takes more than a moment, and once when
    /// another program has the agent's port.
    ///
    /// # Errors
    /// The last failure, when `within` has passed.
    pub(super) async fn wait_for_card(&self, within: Duration) -> Result<(), CardError> {
        let begin = Instant::now();
        let deadline = begin + within;
        let mut is_logged = [false; 2];
        loop {
            // An agent that accepts and does not answer has hardly longer than another.
            let left = deadline.saturating_duration_since(Instant::now());
            match self.fetch_card(left.clamp(CARD_LEAST, CARD_WITHIN)).await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(error) => {
                    let is_taken = matches!(error, CardError::Stranger { .. });
                    let is_logged = &mut is_logged[usize::from(is_taken)];
                    if !*is_logged && (is_taken || begin.elapsed() >= TOLD_AFTER) {
                        *is_logged = true;
                        tracing::info!(card = %self.card, within = ?within, seen = %error, "waiting for the agent's card");
                    }
                    sleep(LOOK).await;
                }
            }
        }
    }

    /// Returns the card that the agent serves now.
    ///
    /// # Errors
    /// The agent does not answer, or with something else.
    pub(super) async fn fetch_card(&self, within: Duration) -> Result<Value, CardError> {
        let request = Request::get(self.card.clone(), within);
        let asked = async { request.send().await?.read_json().await };
        let (status, card) = asked.await.map_err(|error| {
            CardError::Absent(format!(
                "{error}; the agent must listen on 127.0.0.1, at the port in PORT or --port"
            ))
        })?;
        self.check_owner().await?;
        let what = match (status, card) {
            (200, card @ Value::Object(_)) => return Ok(card),
            (200, _) => "is no JSON object".to_owned(),
            (status, _) => format!("answered {status}"),
        };
        let path = self.card.path();
        let complaint = format!("{path} {what}; --card names another path");
        Err(CardError::Absent(complaint))
    }

    /// Checks that no other program listens at the agent's port.
    ///
    /// # Errors
    /// [`CardError::Stranger`].
    pub(super) async fn check_owner(&self) -> Result<(), CardError> {
        let Some((group, port)) = self.owner.zip(self.card.port_or_known_default()) else {
            return Ok(());
        };
        let group = group.0.as_raw_pid().to_string();
        let looking = spawn_blocking(move || listener::find_stranger(port, &group)).await;
        match looking.map_err(std::io::Error::other).flatten() {
            Ok(Some(process)) => return Err(CardError::Stranger { port, process }),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "Cannot see what listens at the agent's port; --any-listener does not look");
            }
        }
        Ok(())
    }

    /// Returns the URL at which the gateway reaches the JSON-RPC of an agent with this card.
    pub(super) fn rpc_url(&self, card: &Value) -> Url {
        let mut url = self.base.clone();
        if url.path() == "/"
            && let Some(path) = rpc_path(card)
        {
            url.set_path(&path);
        }
        url
    }
}

/// Returns the path of JSON-RPC in a card of any generation.
fn rpc_path(card: &Value) -> Option<String> {
    let listed = ["supportedInterfaces", "additionalInterfaces"];
    let listed = listed.iter().filter_map(|name| card[name].as_array());
    let listed = listed.flatten().filter(|interface| {
        let spoken = ["protocolBinding", "transport"];
        spoken.iter().any(|name| interface[name] == JSON_RPC)
    });
    let urls = listed
        .chain([card])
        .filter_map(|place| place["url"].as_str());
    let mut urls = urls.filter_map(|url| Url::parse(url).ok());
    urls.next().map(|url| url.path().to_owned())
}

/// Returns the URL of `address`, if the gateway reaches it.
fn local_url(scheme: &str, address: SocketAddr, gateway: &Url) -> Result<Url, Failure> {
    if address.ip().is_loopback() && !is_loopback(gateway) {
        let gateway = gateway.origin().ascii_serialization();
        return Err(Failure::usage(format!(
            "the gateway at {gateway} is on another machine, and does not reach {address}: say with --advertise where it reaches \
             the agent, such as http://10.0.0.12:8081"
        )));
    }
    parse_url(&format!("{scheme}://{address}/"))
}

fn parse_url(text: &str) -> Result<Url, Failure> {
    let url = Url::parse(text);
    url.map_err(|why| Failure::usage(format!("{text} cannot be written as a URL: {why}")))
}
