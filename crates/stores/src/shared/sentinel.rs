//! Sentinels: asking for the master of a service.

use std::collections::HashMap;
use std::time::Duration;

use redis::{Client, cmd};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::node::{Address, ask_each, config_without_timeouts};
use crate::store::{Cause, as_cause};

/// Interval of questions for the master while a connection to one is up.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// The sentinels of a service.
pub(super) struct Sentinels {
    pub(super) clients: Vec<Client>,
    pub(super) service: String,
    /// The master that more than half of them named last, and the time at which they were asked.
    named: Mutex<(Option<Address>, Option<Instant>)>,
}

/// A sentinel knows no such service.
#[derive(Debug, thiserror::Error)]
#[error("no such service")]
struct NoService;

/// The sentinels name no master.
#[derive(Debug, thiserror::Error)]
#[error("none of {asked} sentinels names a master of `{service}` in time; the last error: {last}")]
struct NoMaster {
    asked: usize,
    service: String,
    last: String,
}

impl Sentinels {
    pub(super) fn new(clients: Vec<Client>, service: String) -> Self {
        Self {
            clients,
            service,
            named: Mutex::default(),
        }
    }

    /// Asks all sentinels at once. Returns the address that more than half of them name, or else the one that most name
    /// in time: one that was cut off from the others may name an old master.
    ///
    /// # Errors
    /// When none names a master.
    pub(super) async fn find_master(&self) -> Result<Address, Cause> {
        self.count_votes().await.map(|(master, _)| master)
    }

    /// Returns the master that more than half of the sentinels name. They are asked if that is [`ASK_EVERY`] ago.
    pub(super) async fn agreed_master(&self) -> Option<Address> {
        let mut named = self.named.lock().await;
        let (master, asked) = &mut *named;
        if asked.is_none_or(|asked| ASK_EVERY <= asked.elapsed()) {
            *master = match self.count_votes().await {
                Ok((master, true)) => Some(master),
                Ok((_, false)) | Err(_) => None,
            };
            *asked = Some(Instant::now());
        }
        master.clone()
    }

    /// Returns the address that most of the sentinels name, and true if more than half of them do.
    async fn count_votes(&self) -> Result<(Address, bool), Cause> {
        let asked = self.clients.iter().map(|client| self.ask_sentinel(client));
        let mut votes: HashMap<Address, usize> = HashMap::new();
        let mut agreed = None;
        let is_enough = |address: Address| {
            let count = votes.entry(address.clone()).or_default();
            *count += 1;
            agreed = (*count * 2 > self.clients.len()).then_some(address);
            agreed.is_some()
        };
        let last = ask_each(asked, is_enough).await;
        if let Some(address) = agreed {
            return Ok((address, true));
        }
        let most = votes.into_iter().max_by_key(|(_, count)| *count);
        most.map(|(address, _)| (address, false)).ok_or_else(|| {
            as_cause(NoMaster {
                asked: self.clients.len(),
                service: self.service.clone(),
                last,
            })
        })
    }

    async fn ask_sentinel(&self, client: &Client) -> Result<Address, Cause> {
        let config = config_without_timeouts();
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await.map_err(as_cause)?;
        let mut ask = cmd("SENTINEL");
        ask.arg(("GET-MASTER-ADDR-BY-NAME", &self.service));
        let named = ask.query_async::<Option<Address>>(&mut connection).await;
        named.map_err(as_cause)?.ok_or_else(|| as_cause(NoService))
    }
}
