//! The agent's membership: its registration, heartbeats and departure, as the packages in `clients/` do it.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use gateway_client::{Registry, RegistryError, Request};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::credentials::{Credentials, is_enrolment};
use super::location::{AgentLocation, CARD_WITHIN, CardError};
use ctl::Failure;
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::telemetry::Chain;
use server::in_process::ServerHandle;

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

/// Longest wait for the guard to end its last streams and to send its last spans.
const GUARD_END: Duration = Duration::from_millis(2500);

/// The gateway's view of the agent, as far as its answers tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MembershipState {
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
        match (self, error.status) {
            (Self::Leaving, _) => Self::Leaving,
            (_, Some(404 | 410)) => Self::Absent,
            (Self::Joined, Some(401)) => Self::Doubtful,
            (Self::Absent, _) if error.is_doubtful => Self::Doubtful,
            (before, _) => before,
        }
    }
}

/// An agent at a gateway.
pub(super) struct Member {
    pub(super) location: AgentLocation,
    /// The sidecar in front of the agent: it sees all calls.
    pub(super) guard: Option<ServerHandle>,
    pub(super) registry: Registry,
    pub(super) workspace: WorkspaceId,
    pub(super) instance: InstanceId,
    pub(super) credentials: Credentials,
    pub(super) is_bound: bool,
    pub(super) state: watch::Sender<MembershipState>,
    /// Held while a heartbeat is on its way.
    pub(super) beating: Mutex<()>,
}

/// The agent is not registered, or was not heard.
#[derive(Default)]
struct JoinError {
    message: String,
    status: Option<u16>,
    retry_after: Option<Duration>,
    /// True if a registration may have had its effect: its answer was lost, here or in front of the gateway.
    is_doubtful: bool,
}

impl JoinError {
    fn new(message: String) -> Self {
        Self {
            message,
            ..Self::default()
        }
    }

    fn no_gateway(route: &str) -> Self {
        Self::new(format!(
            "{route} answers as no gateway does: name the gateway with --gateway"
        ))
    }
}

impl From<RegistryError> for JoinError {
    fn from(error: RegistryError) -> Self {
        Self {
            message: Chain(&error).to_string(),
            status: error.status(),
            retry_after: error.retry_after(),
            is_doubtful: error
                .status()
                .map_or(!error.is_unsent(), |status| matches!(status, 502 | 504)),
        }
    }
}

impl From<CardError> for JoinError {
    fn from(error: CardError) -> Self {
        Self::new(error.to_string())
    }
}

impl Member {
    fn state(&self) -> MembershipState {
        *self.state.borrow()
    }

    /// Waits until the agent serves its card, registers it, and sends heartbeats. A failure of these is tried again.
    ///
    /// # Errors
    /// If the agent does not serve its card in time.
    pub(super) async fn stay_registered(&self, within: Duration) -> Result<Infallible, Failure> {
        self.location.wait_for_card(within).await.map_err(|why| {
            Failure::new(format!(
                "the agent did not serve its card within {within:?} (--ready-within): {why}"
            ))
        })?;
        let (mut failures, mut third) = (0, FIRST_THIRD);
        loop {
            let pause = match self.send_heartbeat().await {
                Ok(next) => {
                    if failures > 0 {
                        tracing::info!("the gateway hears the agent again");
                    }
                    (failures, third) = (0, next);
                    third
                }
                Err(error) => {
                    tracing::warn!(
                        error = error.message,
                        "The gateway does not hear the agent; trying again"
                    );
                    let pause = third.min(PAUSE * 2_u32.pow(failures.min(DOUBLINGS)));
                    failures += 1;
                    let asked = error.retry_after.unwrap_or_default();
                    pause.max(asked.min(RETRY_AFTER_MAX))
                }
            };
            sleep(pause.mul_f64(rand::random_range(0.8..1.2))).await;
        }
    }

    /// Registers if needed, and sends a heartbeat. Returns the time until the next one.
    async fn send_heartbeat(&self) -> Result<Duration, JoinError> {
        // Without heartbeats its lease ends: another program would get calls with callers' tokens.
        self.location.check_owner().await?;
        if matches!(
            self.state(),
            MembershipState::Absent | MembershipState::Doubtful
        ) {
            self.register().await?;
        }
        let mut body = self.ids_json();
        if let Some(guard) = &self.guard {
            body["active_tasks"] = json!(guard.drain.work_count());
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
        let card = self.location.fetch_card(CARD_WITHIN).await?;
        let url = self.location.rpc_url(&card);
        let mut body = self.ids_json();
        body["id"] = json!(self.workspace.as_str());
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
        let (workspace, instance) = (self.workspace.as_str(), self.instance.as_str());
        let joined = joined?;
        tracing::info!(workspace.id = workspace, instance.id = instance, %url, "the agent has joined");
        if let Some(warning) = joined["warning"].as_str() {
            tracing::warn!(warning, "The gateway warns");
        }
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
                JoinError::new(format!(
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
                None if is_enrolment(token) => {
                    let error = JoinError::new(format!(
                        "the workspace has a token that is not in {file}: revoke that token, or write it into the file"
                    ));
                    let is_doubtful = true;
                    return Err(JoinError {
                        is_doubtful,
                        ..error
                    });
                }
                None => {}
            }
            return Ok(answer);
        }
        Err(JoinError::new(match tokens.unread {
            Some(error) => format!(
                "cannot read a token from {file}: make it a file that this user may read, with the token alone: {error}"
            ),
            None => format!(
                "no good token in {file}: ask an operator for one (POST /workspaces/{}/enrolment)",
                self.workspace
            ),
        }))
    }

    /// Drains and deregisters the agent, and ends its guard. Each time it waits for calls. `staying` is
    /// [`Self::stay_registered`].
    pub(super) async fn drain_and_leave(&self, mut staying: Pin<&mut impl Future>) {
        self.await_registration(staying.as_mut()).await;
        if self.state() != MembershipState::Absent {
            // No registration follows.
            self.state.send_replace(MembershipState::Leaving);
            let answers = tokio::select! {
                // Heartbeats go on, and have no end.
                _ = staying.as_mut() => false,
                answers = self.drain() => answers,
            };
            if answers {
                self.deregister(staying).await;
                self.await_calls().await;
            }
        } else if self.guard.is_some() {
            self.await_calls().await;
        }
        self.end_guard().await;
    }

    /// Takes the agent's place away and ends its guard, where that is left to do. A registration on its way is waited
    /// for: it may bring the workspace's own token.
    pub(super) async fn finish_leaving(&self, mut staying: Pin<&mut impl Future>, until: Instant) {
        let parted = async {
            self.await_registration(staying.as_mut()).await;
            self.deregister(staying).await;
            self.end_guard().await;
        };
        // What is left then ends with this process.
        let _ = timeout_at(until, parted).await;
    }

    /// Resolves when the guard's threads have ended; never without a guard.
    pub(super) async fn guard_ended(&self) {
        match &self.guard {
            Some(guard) => guard.wait().await,
            None => std::future::pending().await,
        }
    }

    /// Ends the guard: its streams get their last event.
    async fn end_guard(&self) {
        if let Some(guard) = &self.guard {
            guard.shut_down();
            // After that its connections end with this process.
            let _ = timeout(GUARD_END, guard.wait()).await;
        }
    }

    /// Polls `staying` while a registration is on its way, which may bring the workspace's own token.
    async fn await_registration(&self, staying: impl Future) {
        if self.state() == MembershipState::Joining {
            let mut watched = self.state.subscribe();
            tokio::select! {
                _ = staying => {}
                _ = watched.wait_for(|state| *state != MembershipState::Joining) => {}
            }
        }
    }

    /// Has the gateway send no new calls, and waits until those in progress are over. False if the gateway does not
    /// answer.
    async fn drain(&self) -> bool {
        let answers = self.report_leaving("/registry/drain").await.is_some();
        if !answers && self.guard.is_none() {
            return false;
        }
        let idle = self.await_calls().await;
        answers && idle
    }

    /// Takes the agent's place away. Polls `staying` while a heartbeat is on its way: one that the
    /// gateway gets afterwards would register the agent again.
    async fn deregister(&self, staying: impl Future) {
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
        if self.report_leaving("/registry/deregister").await == Some(true) {
            self.state.send_replace(MembershipState::Left);
        }
    }

    /// Tells the gateway that the agent leaves. True if it was done, `None` without an answer. A token that is refused
    /// is tried again: its file may be about to change.
    async fn report_leaving(&self, path: &str) -> Option<bool> {
        let deadline = Instant::now() + LEAVING;
        loop {
            let error = match timeout_at(deadline, self.post(path, &self.ids_json())).await {
                Ok(Ok(_)) => return Some(true),
                Ok(Err(error)) => error,
                Err(_) => {
                    tracing::warn!(path, "The gateway does not answer within {LEAVING:?}");
                    return None;
                }
            };
            let is_passing = matches!(error.status(), Some(401 | 429 | 503));
            if !is_passing || Instant::now() + LOOK >= deadline {
                tracing::warn!(%error, path, "The gateway does not know that the agent leaves");
                return Some(false);
            }
            sleep(LOOK).await;
        }
    }

    /// Waits until calls on their way have come and those in progress are over. False if the gateway does not answer.
    async fn await_calls(&self) -> bool {
        let least = Instant::now() + ON_THEIR_WAY;
        let mut idle = 0;
        loop {
            let (is_idle, pause, enough) = match &self.guard {
                Some(guard) => (guard.drain.work_count() == 0, GUARD_LOOK, 1),
                None => match timeout(LEAVING, self.is_idle()).await {
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
        let path = format!("/workspaces/{}", self.workspace);
        let token = self.best_token().await;
        let request = Request {
            token: Some(&token),
            ..self.registry.request(Method::GET, &path, &[])
        };
        match request.fetch_json().await {
            Ok(workspace) => in_flight(&workspace, &self.instance) == 0,
            Err(error) => matches!(error.status(), Some(404 | 410)) || error.is_unsent(),
        }
    }

    fn ids_json(&self) -> Value {
        json!({
            "workspace_id": self.workspace.as_str(),
            "instance_id": self.instance.as_str(),
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
