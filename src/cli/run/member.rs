//! The agent's membership: its registration, heartbeats and departure, as the packages in `clients/` do it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use gateway_client::{Call, Registry, RegistryError};
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use url::Url;

use super::credentials::{Credentials, is_enrolment};
use super::location::{AgentLocation, CardError};
use kernel::drain::Drain;
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::telemetry::Chain;

/// Time until the next heartbeat, until the gateway has said how long one counts.
const FIRST_THIRD: Duration = Duration::from_secs(10);

/// First pause after a failure. Each further failure doubles it, up to the time between two heartbeats.
const PAUSE: Duration = Duration::from_millis(500);

/// Number of doublings at most.
const DOUBLINGS: u32 = 8;

/// Longest pause that a gateway may ask for (`Retry-After`).
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Longest wait for one answer while the agent leaves.
const LEAVING: Duration = Duration::from_secs(3);

/// Time in which calls may still be on their way to the agent after a drain or a departure.
const ON_THEIR_WAY: Duration = Duration::from_secs(1);

/// Delay between two looks at the gateway's count of calls, and between two attempts to leave.
const LOOK: Duration = Duration::from_millis(250);

/// Delay between two looks at the guard's count of calls.
const GUARD_LOOK: Duration = Duration::from_millis(20);

/// Answers of the gateway in a row that say that no call is in progress: behind a load balancer each may be of another
/// replica.
const IDLE_ANSWERS: u32 = 3;

/// Ids of the agent.
pub(super) struct AgentIds {
    pub(super) workspace: WorkspaceId,
    pub(super) instance: InstanceId,
}

/// The count of the agent's calls in progress.
pub(super) enum CallCounter {
    /// The guard's, which sees all of them.
    Guard(Arc<Drain>),
    /// That of the replica of the gateway that answers.
    Gateway,
}

/// The gateway's view of the agent, as far as its answers tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MembershipState {
    /// It does not know the agent, and sends no calls.
    Absent,
    /// A registration is on its way.
    Joining,
    /// It may send calls. The next heartbeat is a registration: the token was refused, or an answer was lost.
    Doubtful,
    /// It sends calls while heartbeats come.
    Joined,
    /// As before, but the agent leaves: no registration follows.
    Leaving,
    /// It deregistered the agent. Calls may still be on their way.
    Left,
}

impl MembershipState {
    /// Returns the state after a registration or heartbeat that failed.
    fn after_failure(self, error: &JoinError) -> Self {
        match (self, error.status()) {
            (Self::Leaving, _) => Self::Leaving,
            (_, Some(404 | 410)) => Self::Absent,
            (Self::Joined, Some(401)) => Self::Doubtful,
            (Self::Absent, _) if error.may_have_registered() => Self::Doubtful,
            (before, _) => before,
        }
    }
}

/// The gateway's answer to an agent that leaves.
enum LeaveOutcome {
    Done,
    Failed,
    Unanswered,
}

/// An agent at a gateway.
pub(super) struct Member {
    pub(super) location: AgentLocation,
    registry: Registry,
    names: AgentIds,
    credentials: Credentials,
    is_bound: bool,
    state: watch::Sender<MembershipState>,
    /// Held while a heartbeat is on its way.
    beating: Mutex<()>,
}

/// The agent is not registered, or was not heard.
#[derive(Debug, thiserror::Error)]
enum JoinError {
    #[error(transparent)]
    Gateway(#[from] RegistryError),
    #[error(transparent)]
    Card(#[from] CardError),
    #[error(
        "the workspace has a token that is not in {0}: revoke that token, or write it into the file"
    )]
    OtherToken(String),
    #[error("{0}")]
    Local(String),
}

impl JoinError {
    fn no_gateway(route: &str) -> Self {
        Self::Local(format!(
            "{route} answers as no gateway does: name the gateway with --gateway"
        ))
    }

    fn gateway_error(&self) -> Option<&RegistryError> {
        match self {
            Self::Gateway(error) => Some(error),
            _ => None,
        }
    }

    fn status(&self) -> Option<u16> {
        self.gateway_error()?.status()
    }

    fn retry_after(&self) -> Option<Duration> {
        self.gateway_error()?.retry_after()
    }

    /// True if a registration may have had its effect: its answer was lost, here or in front of the gateway.
    fn may_have_registered(&self) -> bool {
        match self {
            Self::Gateway(error) => match error.status() {
                Some(status) => matches!(status, 502 | 504),
                None => !error.is_unsent(),
            },
            Self::OtherToken(_) => true,
            _ => false,
        }
    }
}

impl Member {
    pub(super) fn new(
        names: AgentIds,
        credentials: Credentials,
        gateway: Url,
        location: AgentLocation,
        is_bound: bool,
    ) -> Self {
        Self {
            location,
            registry: Registry::new(gateway),
            names,
            credentials,
            is_bound,
            state: watch::Sender::new(MembershipState::Absent),
            beating: Mutex::default(),
        }
    }

    fn state(&self) -> MembershipState {
        *self.state.borrow()
    }

    /// Registers and sends heartbeats. A failure is tried again.
    pub(super) async fn stay_registered(&self, calls: &CallCounter) -> Infallible {
        let (mut failures, mut third) = (0, FIRST_THIRD);
        loop {
            let pause = match self.send_heartbeat(calls).await {
                Ok(next) => {
                    if failures > 0 {
                        tracing::info!("the gateway hears the agent again");
                    }
                    (failures, third) = (0, next);
                    third
                }
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "The gateway does not hear the agent; trying again");
                    let pause = third.min(PAUSE * 2_u32.pow(failures.min(DOUBLINGS)));
                    failures += 1;
                    let asked = error.retry_after().unwrap_or_default();
                    pause.max(asked.min(RETRY_AFTER_MAX))
                }
            };
            sleep(pause.mul_f64(rand::random_range(0.8..1.2))).await;
        }
    }

    /// Registers if needed, and sends a heartbeat. Returns the time until the next one.
    async fn send_heartbeat(&self, calls: &CallCounter) -> Result<Duration, JoinError> {
        // Without heartbeats its lease ends: another program would get calls with callers' tokens.
        self.location.check_owner().await?;
        if matches!(
            self.state(),
            MembershipState::Absent | MembershipState::Doubtful
        ) {
            self.register().await?;
        }
        let mut body = self.ids_json();
        if let CallCounter::Guard(drain) = calls {
            body["active_tasks"] = json!(drain.work_count());
        }
        let beating = self.beating.lock().await;
        let heard = self.post("/registry/heartbeat", &body).await;
        drop(beating);
        let heard = heard.map_err(JoinError::from).inspect_err(|error| {
            self.state
                .send_modify(|state| *state = state.after_failure(error));
        })?;
        let counts = heard["expires_in"].as_f64();
        let counts = counts.ok_or_else(|| JoinError::no_gateway("POST /registry/heartbeat"))?;
        Ok(Duration::try_from_secs_f64(counts / 3.0)
            .unwrap_or(FIRST_THIRD)
            .clamp(PAUSE, Duration::from_secs(3600)))
    }

    async fn register(&self) -> Result<(), JoinError> {
        let card = self.location.fetch_card().await?;
        let url = self.location.rpc_url(&card);
        let mut body = self.ids_json();
        body["id"] = json!(self.names.workspace.as_str());
        body["url"] = json!(url.as_str());
        body["agent_card"] = card;
        if self.is_bound {
            body["proof"] = json!("request");
        }
        let before = self.state();
        if before == MembershipState::Leaving {
            // Since the card was asked for.
            return Ok(());
        }
        self.state.send_replace(MembershipState::Joining);
        let joined = self.register_with_token(&body).await;
        self.state.send_replace(match &joined {
            Ok(_) => MembershipState::Joined,
            Err(error) => before.after_failure(error),
        });
        self.log_joined(&url, joined?["warning"].as_str());
        Ok(())
    }

    /// Registers with the first good token. The workspace's own token replaces an enrolment token in the file.
    async fn register_with_token(&self, body: &Value) -> Result<Value, JoinError> {
        let file = self.credentials.file_name();
        self.credentials.warn_of_readers();
        let tokens = self.credentials.read_tokens().await;
        for token in &tokens.all {
            // An enrolment token counts once: the new token must find a place.
            let slot = is_enrolment(token).then(|| self.credentials.reserve_slot());
            let slot = slot.transpose().map_err(|error| {
                JoinError::Local(format!(
                    "cannot write {file}, so the enrolment token would be used up in vain: {error}"
                ))
            })?;
            let path = "/registry/register";
            let answer = match self.registry.post(path, token, body).await {
                Ok(answer) => answer,
                Err(refused) if refused.status() == Some(401) => continue,
                Err(error) => return Err(error.into()),
            };
            if answer["status"] != "registered" {
                return Err(JoinError::no_gateway("POST /registry/register"));
            }
            match answer["token"].as_str() {
                Some(own) => self.credentials.store_token(own, slot),
                None if is_enrolment(token) => return Err(JoinError::OtherToken(file)),
                None => {}
            }
            return Ok(answer);
        }
        Err(JoinError::Local(match tokens.unread {
            Some(error) => format!(
                "cannot read a token from {file}: make it a file that this user may read, with the token alone: {error}"
            ),
            None => format!(
                "no good token in {file}: ask an operator for one (POST /workspaces/{}/enrolment)",
                self.names.workspace
            ),
        }))
    }

    fn log_joined(&self, url: &Url, warning: Option<&str>) {
        let (workspace, instance) = (self.names.workspace.as_str(), self.names.instance.as_str());
        tracing::info!(workspace.id = workspace, instance.id = instance, %url, "the agent has joined");
        if let Some(warning) = warning {
            tracing::warn!(warning, "The gateway warns");
        }
    }

    /// Polls [`Self::stay_registered`] while a registration is on its way, which may bring the workspace's own token.
    pub(super) async fn await_registration(&self, staying: impl Future) {
        if self.state() == MembershipState::Joining {
            let mut watched = self.state.subscribe();
            tokio::select! {
                _ = staying => {}
                _ = watched.wait_for(|state| *state != MembershipState::Joining) => {}
            }
        }
    }

    /// Lets no registration follow. True if the gateway may send calls.
    pub(super) fn start_leaving(&self) -> bool {
        let may_call = self.state() != MembershipState::Absent;
        if may_call {
            self.state.send_replace(MembershipState::Leaving);
        }
        may_call
    }

    /// Has the gateway send no new calls, and waits until those in progress are over. False if the gateway does not
    /// answer.
    pub(super) async fn drain(&self, calls: &CallCounter) -> bool {
        let outcome = self.report_leaving("/registry/drain").await;
        let answers = !matches!(outcome, LeaveOutcome::Unanswered);
        if answers || matches!(calls, CallCounter::Guard(_)) {
            self.await_calls(calls).await && answers
        } else {
            false
        }
    }

    /// Takes the agent's place away. Polls [`Self::stay_registered`] while a heartbeat is on its way: one that the
    /// gateway gets afterwards would register the agent again.
    pub(super) async fn deregister(&self, staying: impl Future) {
        if matches!(
            self.state(),
            MembershipState::Absent | MembershipState::Left
        ) {
            return;
        }
        let _last_beat = tokio::select! {
            biased;
            beating = self.beating.lock() => Some(beating),
            _ = staying => None,
        };
        if let LeaveOutcome::Done = self.report_leaving("/registry/deregister").await {
            self.state.send_replace(MembershipState::Left);
        }
    }

    /// A token that is refused is tried again: its file may be about to change.
    async fn report_leaving(&self, path: &str) -> LeaveOutcome {
        let deadline = Instant::now() + LEAVING;
        loop {
            let error = match timeout_at(deadline, self.post(path, &self.ids_json())).await {
                Ok(Ok(_)) => return LeaveOutcome::Done,
                Ok(Err(error)) => error,
                Err(_) => {
                    tracing::warn!(path, "The gateway does not answer within {LEAVING:?}");
                    return LeaveOutcome::Unanswered;
                }
            };
            let is_passing = matches!(error.status(), Some(401 | 429 | 503));
            if !is_passing || Instant::now() + LOOK >= deadline {
                tracing::warn!(%error, path, "The gateway does not know that the agent leaves");
                return LeaveOutcome::Failed;
            }
            sleep(LOOK).await;
        }
    }

    /// Waits until calls on their way have come and those in progress are over. False if the gateway does not answer.
    pub(super) async fn await_calls(&self, calls: &CallCounter) -> bool {
        let least = Instant::now() + ON_THEIR_WAY;
        let mut idle = 0;
        loop {
            let (is_idle, pause, enough) = match calls {
                CallCounter::Guard(drain) => (drain.work_count() == 0, GUARD_LOOK, 1),
                CallCounter::Gateway => match timeout(LEAVING, self.is_idle()).await {
                    Ok(is_idle) => (is_idle, LOOK, IDLE_ANSWERS),
                    // It sends none.
                    Err(_) => return false,
                },
            };
            idle = if is_idle { idle + 1 } else { 0 };
            if idle >= enough && Instant::now() >= least {
                return true;
            }
            sleep(pause).await;
        }
    }

    /// True if the replica that answers has no call in progress, if the gateway does not know the workspace, or is not
    /// there.
    async fn is_idle(&self) -> bool {
        let path = format!("/workspaces/{}", self.names.workspace);
        let token = self.best_token().await;
        let call = Call {
            token: Some(&token),
            ..Call::get(&path)
        };
        match self.registry.request(&call).await {
            Ok(workspace) => in_flight(&workspace, &self.names.instance) == 0,
            Err(error) => matches!(error.status(), Some(404 | 410)) || error.is_unsent(),
        }
    }

    fn ids_json(&self) -> Value {
        json!({
            "workspace_id": self.names.workspace.as_str(),
            "instance_id": self.names.instance.as_str(),
        })
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, RegistryError> {
        self.registry
            .post(path, &self.best_token().await, body)
            .await
    }

    /// Returns the best token; empty without one.
    async fn best_token(&self) -> String {
        let tokens = self.credentials.read_tokens().await;
        tokens.all.into_iter().next().unwrap_or_default()
    }
}

/// Returns the calls in progress of an instance.
fn in_flight(workspace: &Value, instance: &InstanceId) -> u64 {
    let all = workspace["instances"].as_array();
    let mut own = all.into_iter().flatten();
    let own = own.find(|one| one["instance_id"] == instance.as_str());
    own.and_then(|one| one["in_flight"].as_u64()).unwrap_or(0)
}
