//! Sentinels: asking for the master of a service.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::{Client, RedisResult, cmd};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::server::{Address, config_without_timeouts};
use crate::store::{Cause, cause};

/// Limit for the answers of all sentinels, or nodes of a cluster. Below the limit for a connection, which comes after it.
const ASK_MAX: Duration = Duration::from_millis(400);

/// Interval of questions for the master while a connection to one is up.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// User and password for the sentinels.
pub(super) type Credential = (Option<String>, Option<String>);

/// The sentinels of a service.
pub(super) struct Sentinels {
    pub(super) addresses: Vec<Address>,
    pub(super) service: String,
    credential: Credential,
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
    pub(super) fn new(addresses: Vec<Address>, service: String, credential: Credential) -> Self {
        Self {
            addresses,
            service,
            credential,
            named: Mutex::default(),
        }
    }

    /// Asks all sentinels at once. Returns the address that more than half of them name, or else the one that most name
    /// in time: one that was cut off from the others may name an old master.
    ///
    /// # Errors
    /// When none names a master.
    pub(super) async fn find_master(
        &self,
        client: impl Fn(&Address, &Credential) -> RedisResult<Client>,
    ) -> Result<Address, Cause> {
        self.count_votes(client).await.map(|(master, _)| master)
    }

    /// Returns the master that more than half of the sentinels name. They are asked if that is [`ASK_EVERY`] ago.
    pub(super) async fn agreed_master(
        &self,
        client: impl Fn(&Address, &Credential) -> RedisResult<Client>,
    ) -> Option<Address> {
        let mut named = self.named.lock().await;
        let (master, asked) = &mut *named;
        if asked.is_none_or(|asked| ASK_EVERY <= asked.elapsed()) {
            *master = match self.count_votes(client).await {
                Ok((master, true)) => Some(master),
                Ok((_, false)) | Err(_) => None,
            };
            *asked = Some(Instant::now());
        }
        master.clone()
    }

    /// Returns the address that most of the sentinels name, and true if more than half of them do.
    async fn count_votes(
        &self,
        client: impl Fn(&Address, &Credential) -> RedisResult<Client>,
    ) -> Result<(Address, bool), Cause> {
        let asked = self.addresses.iter().map(|address| {
            let client = client(address, &self.credential);
            self.ask_sentinel(client)
        });
        let mut votes: HashMap<Address, usize> = HashMap::new();
        let mut agreed = None;
        let is_enough = |address: Address| {
            let count = votes.entry(address.clone()).or_default();
            *count += 1;
            agreed = (*count * 2 > self.addresses.len()).then_some(address);
            agreed.is_some()
        };
        let last = ask_each(asked, is_enough).await;
        if let Some(address) = agreed {
            return Ok((address, true));
        }
        let most = votes.into_iter().max_by_key(|(_, count)| *count);
        most.map(|(address, _)| (address, false)).ok_or_else(|| {
            cause(NoMaster {
                asked: self.addresses.len(),
                service: self.service.clone(),
                last,
            })
        })
    }

    async fn ask_sentinel(&self, client: RedisResult<Client>) -> Result<Address, Cause> {
        let config = config_without_timeouts();
        let client = client.map_err(cause)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await.map_err(cause)?;
        let mut ask = cmd("SENTINEL");
        ask.arg(("GET-MASTER-ADDR-BY-NAME", &self.service));
        let named = ask.query_async::<Option<Address>>(&mut connection).await;
        named.map_err(cause)?.ok_or_else(|| cause(NoService))
    }
}

/// Asks several servers at once, until their answers are enough or the time is over. Returns the last error.
pub(super) async fn ask_each<T>(
    asked: impl Iterator<Item = impl Future<Output = Result<T, Cause>>>,
    mut is_enough: impl FnMut(T) -> bool,
) -> String {
    let deadline = Instant::now() + ASK_MAX;
    let mut answers: FuturesUnordered<_> = asked.map(|one| timeout_at(deadline, one)).collect();
    let mut last = "no answer in time".to_owned();
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(Ok(answer)) => {
                if is_enough(answer) {
                    break;
                }
            }
            Ok(Err(error)) => last = error.to_string(),
            Err(_) => {}
        }
    }
    last
}
