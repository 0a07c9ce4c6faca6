//! An agent that sleeps. A waker starts it when the gateway asks for it, and it stops after a while, as an idle
//! container does.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use gateway_client::Registry;
use http::StatusCode;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use url::Url;

use crate::Failure;
use crate::agents::{Agent, Kind};

/// The workspace of the agent.
pub(super) const SLEEPER: &str = "rival-night";
/// Time that the agent takes to start.
const START: Duration = Duration::from_secs(1);
/// Time after which it stops.
const AWAKE: Duration = Duration::from_secs(20);

/// The waker of one agent.
struct Waker {
    registry: Registry,
    /// The agent's own token.
    token: String,
    is_awake: AtomicBool,
}

/// Serves the waker at `listener`, whose address is in `wake` of the workspace. `token` is the agent's, `gateway` the
/// URL at which it registers.
///
/// # Errors
/// If the listener cannot be polled.
pub(super) fn serve(listener: &StdListener, gateway: Url, token: &str) -> io::Result<()> {
    let listener = listener.try_clone()?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let waker = Arc::new(Waker {
        registry: Registry::new(gateway),
        token: token.to_owned(),
        is_awake: AtomicBool::new(false),
    });
    let router = Router::new()
        .route("/wake/{id}", post(wake))
        .with_state(waker);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(())
}

/// Answers the gateway. A waker of real agents verifies its token (`docs/guide/wake-a-sleeping-agent.md`).
async fn wake(State(waker): State<Arc<Waker>>, Path(id): Path<String>) -> StatusCode {
    if id != SLEEPER {
        return StatusCode::NOT_FOUND;
    }
    if !waker.is_awake.swap(true, Ordering::AcqRel) {
        tokio::spawn(async move {
            sleep(START).await;
            if let Err(error) = waker.run_agent().await {
                tracing::warn!(workspace.id = SLEEPER, %error, "the agent that sleeps failed to start");
            }
            waker.is_awake.store(false, Ordering::Release);
        });
    }
    StatusCode::ACCEPTED
}

impl Waker {
    /// Starts the agent, registers it, and deregisters it when it stops.
    async fn run_agent(&self) -> Result<(), Failure> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let agent = Agent::bind(Kind::Echo, any, None).await;
        let agent = agent.map_err(Failure::because("cannot open a port"))?;
        let body = json!({"id": SLEEPER, "url": agent.url, "agent_card": agent.card()});
        let serving = tokio::spawn(timeout(2 * AWAKE, agent.serve()));
        self.registry.register(&self.token, &body).await?;
        sleep(AWAKE).await;
        let leave = json!({"workspace_id": SLEEPER});
        let path = "/registry/deregister";
        let left = self.registry.post(path, &self.token, &leave).await;
        serving.abort();
        Ok(left.map(drop)?)
    }
}
