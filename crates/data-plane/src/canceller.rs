//! Cancels the tasks of a stop at their agents (`docs/reference/http-api.md`, "Stops"): lists those that agents have
//! begun and not ended, and sends `tasks/cancel` for each, as an operator. One replica does it; if that one ends,
//! another goes on with the tasks that have no outcome yet.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::Method;
use pingora::http::RequestHeader;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::admission::{AdmittedCall, AllowedCaller};
use crate::complete::{CallShape, CheckedCall, complete_body};
use crate::fetch::BufferedRequest;
use crate::listener::internal_error;
use crate::record::{Answered, Exchange};
use crate::services::Context;
use crate::upstream::WireRequest;
use crate::upstream_request::{AgentCall, Origin, callee_attributes, resolve_peer};
use a2a::Generation;
use a2a::method::Method as A2aMethod;
use a2a::refs::Refs;
use a2a::reply::Reply;
use a2a::state::TaskState;
use access::identity::Proof;
use audit::{Draft, EventType};
use directory::stops::{Cancel, End, Stop, TASKS_MAX, TaskOutcome};
use directory::{Destination, LookupFor};
use kernel::deadline::ticks;
use kernel::ids::{RequestId, WorkspaceId};
use kernel::rejection::{AtStage as _, Delivery, Reason, Rejection};
use kernel::shares::Account;
use kernel::stage::Stage;
use kernel::telemetry::Chain;
use stores::store::Unavailable;

/// Interval of looks for stops whose tasks are to be canceled.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Wait before the tasks are listed: by then the stop is in force on every replica, and each has written the tasks that
/// it saw begin.
const LIST_AFTER: Duration = Duration::from_millis(1500);

/// Stops of one replica whose tasks are canceled at once.
const RUNNING_MAX: usize = 4;

/// Calls of one stop at once.
const CALLS_MAX: usize = 16;

/// Longest time of one call.
const CALL_MAX: Duration = Duration::from_secs(10);

/// Interval of renewals of a claim.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// Tasks per page.
const PAGE: u32 = 500;

/// Canceller of tasks; runs until the process ends.
pub struct Canceller {
    pub(super) context: Arc<Context>,
}

impl Canceller {
    /// Runs until a drain begins. Another replica goes on with what is in progress.
    pub async fn run(&self) {
        let gateway = &self.context.gateway;
        let mut running = JoinSet::new();
        let mut tick = ticks(LOOK_EVERY);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = gateway.stops.wait_for_cancel() => {}
                Some(_) = running.join_next() => {}
                () = gateway.drain.wait_for_leave() => return,
            }
            while running.len() < RUNNING_MAX && gateway.stops.may_cancel() {
                // An outage of the store: the next look finds it.
                let Ok(Some(stop)) = gateway.stops.claim_cancel().await else {
                    break;
                };
                let cancellation = StopCancellation {
                    context: Arc::clone(&self.context),
                    stop: Arc::new(stop),
                };
                running.spawn(cancellation.run());
            }
        }
    }
}

/// The cancellation of one stop's tasks.
#[derive(Clone)]
struct StopCancellation {
    context: Arc<Context>,
    stop: Arc<Stop>,
}

impl StopCancellation {
    async fn run(self) {
        let done = tokio::select! {
            done = self.cancel_all() => done,
            () = self.wait_until_lost() => return,
        };
        if let Err(error) = done {
            tracing::debug!(stop = self.stop.id, error = %Chain(&error), "the cancellation of a stop's tasks is interrupted; it goes on once its claim ends");
        }
    }

    /// Resolves when another replica has the claim, or the stop was released.
    async fn wait_until_lost(&self) {
        let stops = &self.context.gateway.stops;
        loop {
            sleep(RENEW_EVERY).await;
            if let Ok(false) = stops.renew_cancel(&self.stop).await {
                return;
            }
        }
    }

    async fn cancel_all(&self) -> Result<(), Unavailable> {
        let gateway = &self.context.gateway;
        if self.stop.cancel == Cancel::Wanted {
            sleep(LIST_AFTER).await;
            self.list_tasks().await?;
            if !gateway
                .stops
                .advance_cancel(&self.stop, Cancel::Listed)
                .await?
            {
                return Ok(());
            }
        }
        loop {
            let limit = i64::try_from(CALLS_MAX * 4).unwrap_or(1);
            let pending = gateway.stops.pending_tasks(&self.stop, limit).await?;
            if pending.is_empty() {
                break;
            }
            self.cancel_batch(pending).await?;
        }
        if gateway
            .stops
            .advance_cancel(&self.stop, Cancel::Done)
            .await?
        {
            let counts = gateway.stops.count_tasks(&self.stop.id).await?;
            let count = |outcome| counts.get(&outcome).copied().unwrap_or(0);
            let draft = Draft::new(EventType::StopTasksCanceled).with_detail(json!({
                "canceled": count(TaskOutcome::Canceled),
                "failed": count(TaskOutcome::Failed),
                "over": count(TaskOutcome::Over),
                "stop_id": self.stop.id,
            }));
            gateway.audit.record(draft);
        }
        Ok(())
    }

    /// Writes down the tasks that the stop covers.
    async fn list_tasks(&self) -> Result<(), Unavailable> {
        let gateway = &self.context.gateway;
        let (mut after, mut listed) = ((String::new(), String::new()), 0);
        while listed < TASKS_MAX {
            let page = gateway.tasks.open.load_page(&after, PAGE).await?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = (last.target.to_string(), last.task.clone());
            let mut covered = Vec::new();
            for open in page {
                let caller = WorkspaceId::parse(&open.caller).ok();
                let from = match &caller {
                    Some(caller) => gateway.hierarchy.load_lineage(caller).await?,
                    None => None,
                };
                let to = gateway.hierarchy.load_lineage(&open.target).await?;
                let caller = match &caller {
                    Some(id) => End::at_workspace(id, from.as_deref()),
                    None => End::of_org(open.caller_org.as_deref()),
                };
                if self
                    .stop
                    .covers_call(&[caller, End::at_workspace(&open.target, to.as_deref())])
                {
                    covered.push((open.target, open.task));
                }
            }
            covered.truncate(TASKS_MAX - listed);
            listed += covered.len();
            gateway.stops.add_tasks(&self.stop, &covered).await?;
        }
        tracing::warn!(
            stop = self.stop.id,
            max = TASKS_MAX,
            "a stop covers more tasks than one stop cancels; make another"
        );
        Ok(())
    }

    async fn cancel_batch(&self, pending: Vec<(WorkspaceId, String)>) -> Result<(), Unavailable> {
        let mut calls = JoinSet::new();
        let mut pending = pending.into_iter();
        loop {
            while calls.len() < CALLS_MAX
                && let Some((target, task)) = pending.next()
            {
                calls.spawn(self.clone().cancel_task(target, task));
            }
            match calls.join_next().await {
                None => return Ok(()),
                Some(Ok(written)) => written?,
                // A bug: the task stays without an outcome, and is tried again.
                Some(Err(error)) => {
                    tracing::error!(%error, "the cancellation of a task ended by a bug");
                    sleep(LOOK_EVERY).await;
                }
            }
        }
    }

    async fn cancel_task(self, target: WorkspaceId, task: String) -> Result<(), Unavailable> {
        // The type is nested too deeply for the compiler when this future is spawned.
        let asked = self.cancel_at_agent(&target, &task).boxed();
        let outcome = match timeout(CALL_MAX, asked).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(why)) => {
                let reason = why.reason.as_str();
                tracing::debug!(stop = self.stop.id, reason, "a task could not be canceled");
                TaskOutcome::Failed
            }
            Err(_) => TaskOutcome::Failed,
        };
        let stops = &self.context.gateway.stops;
        let one = (&target, task.as_str());
        stops.set_outcome(&self.stop, one, outcome).await?;
        if outcome != TaskOutcome::Failed {
            let tasks = &self.context.gateway.tasks;
            tasks.note_end(&target, &task, &self.stop.id);
        }
        Ok(())
    }

    /// Asks the agent, and records the exchange as one of an operator.
    async fn cancel_at_agent(
        &self,
        target: &WorkspaceId,
        task: &str,
    ) -> Result<TaskOutcome, Rejection> {
        let proof = Arc::new(Proof::of_operator());
        let mut exchange = Exchange::begin_at(&self.context.gateway, RequestId::random(), false);
        exchange.call.method = A2aMethod::CancelTask;
        exchange.call.target = Some(target.clone());
        exchange.record.task = Some(task.to_owned());
        exchange.call.proof = Some(Arc::clone(&proof));
        let outcome = self
            .run_exchange(proof, (target, task), &mut exchange)
            .await;
        match &outcome {
            Ok(_) => {
                // Cannot fail: no response is left to send.
                let _ = exchange.record_outcome(Ok(Answered));
            }
            Err(why) => {
                exchange.record_rejection(why);
                exchange.record.status = why.reason.status();
            }
        }
        outcome
    }

    async fn run_exchange(
        &self,
        proof: Arc<Proof>,
        (target, task): (&WorkspaceId, &str),
        exchange: &mut Exchange,
    ) -> Result<TaskOutcome, Rejection> {
        let context = &*self.context;
        let gateway = &context.gateway;
        let permit = gateway.hierarchy.permit(&proof, target).await?;
        exchange.call.set_access(&permit);
        let destination = gateway.resolution.resolve(&permit).await?;
        let refs = Refs {
            tasks: vec![task.to_owned()],
            ..Refs::default()
        };
        let allowed = AllowedCaller { proof, permit };
        let admitted = AdmittedCall::own(gateway, (allowed, destination), 1, &refs).await?;
        exchange.record.instance = admitted.instance().cloned();
        let mut call = self
            .build_call(exchange, &admitted, task)
            .await
            .at(Stage::Call)?;
        let Destination::Agent(agent) = &admitted.destination else {
            // Its tasks are in its inbox, which it does not read while it is stopped.
            return Ok(TaskOutcome::Over);
        };
        exchange.record.request_bytes = call.body.len() as u64;
        let agents = AgentCall {
            context,
            admitted: &admitted,
            agent,
        };
        let routed = agents.route_call(None, exchange, &mut call).await;
        routed.map_err(|ended| ended.into_rejection(cancel_timeout))?;
        let asker = LookupFor::for_call(Account::default());
        let connect = exchange.call.config.timeouts.connect;
        let peer = resolve_peer(context, agent, &call, asker, connect).await?;
        exchange.begin_call_span(&callee_attributes(agent, &call));
        let head = RequestHeader::build(Method::POST, b"/", None).map_err(internal_error)?;
        let origin = Origin {
            head: &head,
            client: IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        let wire = agents.write_head(&origin, exchange, &call).await?;
        let upstream = &context.relay.upstream;
        let question = BufferedRequest {
            peer: &peer,
            call: WireRequest::new(wire, call.body),
            deadline: Instant::now() + CALL_MAX,
            bytes_max: exchange.call.config.limits.response_bytes.bytes(),
            idle: exchange.call.config.upstream.idle,
            late: cancel_timeout,
        };
        exchange.record.start_call_span();
        let (mut head, mut body) = question.send(upstream, &context.relay.metrics).await?;
        exchange.record.set_call_status(head.status);
        exchange.record.status = head.status.as_u16();
        exchange.record.add_bytes(body.len());
        if let Some(rewrite) = call.rewrite {
            body = rewrite.rewrite_body(&mut head, body).await?;
        }
        Ok(read_outcome(&body))
    }

    /// Returns the call in the agent's generation.
    async fn build_call(
        &self,
        exchange: &mut Exchange,
        admitted: &AdmittedCall,
        task: &str,
    ) -> Result<CheckedCall, Rejection> {
        let context = &*self.context;
        let spoken = context.cards.generation(None, exchange, admitted, true);
        let generation = spoken
            .await
            .map_err(|ended| ended.into_rejection(cancel_timeout))?;
        let method = match generation {
            Generation::V0 => "tasks/cancel",
            Generation::V1 => "CancelTask",
        };
        let body =
            json!({"jsonrpc": "2.0", "id": self.stop.id, "method": method, "params": {"id": task}});
        let shape = CallShape::of_call(admitted.options(), generation, false);
        let body = Bytes::from(body.to_string());
        let completed = complete_body(exchange, &admitted.allowed.permit, &body, &shape).await?;
        let share = context.relay.load.new_share(Account::default());
        let (call, _) = CheckedCall::from_completed(completed, generation, share);
        Ok(CheckedCall {
            version_1_0: generation == Generation::V1,
            ..call
        })
    }
}

/// Returns what an agent's answer says of the task.
fn read_outcome(body: &[u8]) -> TaskOutcome {
    let reply = Reply::parse(body);
    if let Some(error) = reply.as_ref().and_then(Reply::error) {
        let error: serde_json::Value = serde_json::from_str(error).unwrap_or_default();
        // TaskNotFoundError, TaskNotCancelableError.
        return match error["code"].as_i64() {
            Some(-32_001 | -32_002) => TaskOutcome::Over,
            _ => TaskOutcome::Failed,
        };
    }
    match TaskState::from_answer(body) {
        Some(TaskState::Canceled) => TaskOutcome::Canceled,
        Some(state) if state.is_terminal() => TaskOutcome::Over,
        _ => TaskOutcome::Failed,
    }
}

fn cancel_timeout() -> Rejection {
    let message = "the agent did not answer tasks/cancel in time";
    Rejection::new(Reason::AgentTimeout, message)
        .with_fact("clock", "cancel")
        .with_delivery(Delivery::Sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_what_became_of_the_task() {
        for (body, expected) in [
            (
                r#"{"jsonrpc":"2.0","id":"1","result":{"id":"t","status":{"state":"canceled"}}}"#,
                TaskOutcome::Canceled,
            ),
            (
                r#"{"jsonrpc":"2.0","id":"1","result":{"id":"t","status":{"state":"TASK_STATE_CANCELED"}}}"#,
                TaskOutcome::Canceled,
            ),
            (
                r#"{"jsonrpc":"2.0","id":"1","result":{"id":"t","status":{"state":"completed"}}}"#,
                TaskOutcome::Over,
            ),
            (
                r#"{"jsonrpc":"2.0","id":"1","result":{"id":"t","status":{"state":"working"}}}"#,
                TaskOutcome::Failed,
            ),
            (
                r#"{"jsonrpc":"2.0","id":"1","error":{"code":-32002,"message":"over"}}"#,
                TaskOutcome::Over,
            ),
            (
                r#"{"jsonrpc":"2.0","id":"1","error":{"code":-32603,"message":"no"}}"#,
                TaskOutcome::Failed,
            ),
            ("hello", TaskOutcome::Failed),
        ] {
            assert_eq!(read_outcome(body.as_bytes()), expected, "{body}");
        }
    }
}
