//! Asks the waker of a workspace to start its agent: one request, signed by the gateway, with an answer of which only the
//! status counts (`docs/guide/wake-a-sleeping-agent.md`). One replica makes it in `cool_down`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::context::Context;
use super::parking::Parking;
use super::relay::Relay;
use super::relay::answer_head::refuse_redirect;
use super::relay::fetch::BufferedRequest;
use super::relay::upstream::{WireRequest, build_peer};
use crate::audit::{DONE, Draft, EventType};
use crate::directory::{WakeRequest, WakeTimes};
use crate::events::{Event, Kind};
use crate::gateway::Gateway;
use crate::ids::WorkspaceId;
use crate::metrics::WakeOutcome;
use crate::rejection::{Reason, Rejection};

/// Timeout of the whole request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum bytes of the answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Pause before the next attempt to claim the request, after another replica has claimed it.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);

/// Has the waker of `id` called, unless it was within its cool-down. Returns at once: the request outlives the call
/// that caused it.
pub(in crate::proxy) fn wake_workspace(context: &Context, id: &WorkspaceId, times: WakeTimes) {
    if !context.parking.claim_wake(id, times.cool_down) {
        return;
    }
    let attempt = WakeAttempt {
        gateway: Arc::clone(&context.gateway),
        relay: Arc::clone(&context.relay),
        parking: Arc::clone(&context.parking),
        id: id.clone(),
    };
    let running = context.gateway.drain.count_work();
    tokio::spawn(async move {
        let _running = running;
        attempt.run(times.cool_down).await;
    });
}

/// One attempt to wake a workspace.
struct WakeAttempt {
    gateway: Arc<Gateway>,
    relay: Arc<Relay>,
    parking: Arc<Parking>,
    id: WorkspaceId,
}

impl WakeAttempt {
    async fn run(&self, cool_down: Duration) {
        let id = &self.id;
        match self.gateway.directory.waking.claim(id, cool_down).await {
            Ok(true) => {}
            Ok(false) => return self.parking.postpone_wake(id, CLAIM_PAUSE),
            // Without the shared state each replica keeps to its own cool-down.
            Err(error) => {
                tracing::debug!(%error, workspace.id = %id, "failed to claim the request to a waker; calling it for this replica");
            }
        }
        let payload = json!({"reason": "message"});
        let event = Event::new(Kind::WorkspaceWaking, id, payload);
        self.gateway.events.publish(event);
        let asked = Instant::now();
        let answered = self.send_request(asked + PATIENCE).await;
        self.record_outcome(&answered, asked.elapsed());
    }

    /// Sends the request, and returns the status of the answer.
    async fn send_request(&self, deadline: Instant) -> Result<u16, Rejection> {
        let request = self.gateway.directory.waking.build_request(&self.id);
        let request = timeout_at(deadline, request).await;
        let request = request.map_err(|_| waker_timeout())??;
        let config = self.relay.config.snapshot();
        let endpoint = &request.endpoint;
        let question = BufferedRequest {
            peer: &build_peer(
                request.address,
                endpoint.tls,
                &endpoint.sni,
                config.timeouts.connect.min(PATIENCE),
            ),
            call: WireRequest::new(self.request_head(&request)?, self.request_body()),
            deadline,
            bytes_max: ANSWER_BYTES_MAX,
            idle: config.upstream.idle,
            late: waker_timeout,
        };
        let asked = question.send(&self.relay.upstream, &self.relay.metrics);
        let (head, _) = asked.await?;
        refuse_redirect(&head)?;
        Ok(head.status.as_u16())
    }

    fn request_body(&self) -> Bytes {
        let body = json!({"workspace_id": self.id.as_str(), "reason": "message"});
        Bytes::from(body.to_string())
    }

    /// Writes the head. The operator's field takes the place of the token's if it has that name.
    fn request_head(&self, request: &WakeRequest) -> Result<Vec<u8>, Rejection> {
        let endpoint = &request.endpoint;
        let scheme = if endpoint.tls { "https" } else { "http" };
        let audience = format!("{scheme}://{}", endpoint.host);
        let token = self
            .gateway
            .identity
            .signed
            .issue_wake(&self.id, audience)?;
        let mut wire = format!(
            "{} {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\naccept: application/json\r\n\
             user-agent: a2a-gateway\r\ncontent-length: {}\r\n",
            request.method.as_str(),
            endpoint.path_and_query,
            endpoint.host,
            self.request_body().len(),
        )
        .into_bytes();
        let mut own = false;
        for (name, value) in &request.fields {
            own |= *name == header::AUTHORIZATION;
            for part in [name.as_str(), ": ", value.expose_secret(), "\r\n"] {
                wire.extend_from_slice(part.as_bytes());
            }
        }
        let before = if own {
            "x-a2a-wake-token: "
        } else {
            "authorization: Bearer "
        };
        for part in [before, token.expose_secret(), "\r\n\r\n"] {
            wire.extend_from_slice(part.as_bytes());
        }
        Ok(wire)
    }

    fn record_outcome(&self, answered: &Result<u16, Rejection>, elapsed: Duration) {
        let (outcome, status) = match answered {
            Ok(status @ 200..=299) => (WakeOutcome::Accepted, *status),
            Ok(status) => (WakeOutcome::Refused, *status),
            Err(why) => (failure_outcome(why.reason), 0),
        };
        self.gateway.metrics.waking.count_wake(outcome);
        let (id, word) = (&self.id, outcome.as_str());
        if outcome == WakeOutcome::Accepted {
            tracing::info!(workspace.id = %id, "woke a workspace");
        } else {
            let why = answered.as_ref().err().map(|why| why.message.as_ref());
            tracing::warn!(workspace.id = %id, outcome = word, status, why, "The waker of a workspace did not accept the request; its parked calls wait, and it is asked again after its cool-down");
        }
        let mut detail = json!({"wake": word});
        if status > 0 {
            detail["status"] = Value::from(status);
        }
        let draft = Draft::new(EventType::WorkspaceWake).with_target(id);
        self.gateway.audit.record(Draft {
            outcome: match answered {
                Ok(200..=299) => DONE,
                Ok(_) => Reason::AgentProtocolError.as_str(),
                Err(why) => why.reason.as_str(),
            },
            duration_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            ..draft.with_detail(detail)
        });
    }
}

const fn failure_outcome(reason: Reason) -> WakeOutcome {
    match reason {
        Reason::AgentUnreachable => WakeOutcome::Unreachable,
        Reason::AgentTimeout => WakeOutcome::TimedOut,
        Reason::AgentRedirected => WakeOutcome::Redirected,
        Reason::AddressForbidden => WakeOutcome::Forbidden,
        _ => WakeOutcome::Failed,
    }
}

fn waker_timeout() -> Rejection {
    let message = "the waker did not answer within 10 s";
    Rejection::new(Reason::AgentTimeout, message).with_fact("clock", "wake")
}
