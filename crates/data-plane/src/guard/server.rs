//! One question to the server of a guard: signed by the gateway, with bounds on time, bytes and number of its own, over
//! connections of its own.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use crate::fetch::{BufferedRequest, audience_of, signed_head};
use crate::guard::{CallFacts, Judgement, TOO_DEEP};
use crate::upstream::{Upstream, WireRequest, refuse_redirect};
use a2a::texts::{Document, nests_too_deep};
use assembly::gateway::Gateway;
use audit::{Detail, Draft, EventType};
use http1::build_peer;
use kernel::breaker::{Breaker, BreakerChange, Phase};
use kernel::config::{self, Guard, GuardPhase, OnFailure};
use kernel::drain::Drain;
use kernel::ids::{RequestId, WorkspaceId};
use kernel::metrics::GuardVerdict;
use kernel::offload;
use kernel::rejection::{Reason, Rejection};
use kernel::shares::{Account, Bound, Share, Shares};
use trust::{GUARD, body_hash};

/// Maximum unused connections to all guards, of all threads.
const POOL_SIZE: usize = 1024;

/// Interval at which a question that waits looks for a place, if it is not notified.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Bytes that an answer may have beside a payload.
const ANSWER_BESIDE: usize = 64 * 1024;

/// The field of the token if the guard's own field is `Authorization`.
const TOKEN_FIELD: &str = "x-a2a-guard-token";

/// Breaker of a guard: five failures in a row open it; those of one caller alone, for that one.
const BREAKER: config::Breaker = config::Breaker {
    failures: 5,
    ratio: config::Ratio(0.0),
    window: Duration::from_secs(30),
    open: Duration::from_secs(5),
    open_max: Duration::from_secs(60),
};

/// Client of the servers of guards: connections, keys, addresses.
pub(super) struct GuardClient {
    pub(super) gateway: Arc<Gateway>,
    pub(super) upstream: Upstream,
}

impl GuardClient {
    pub(super) fn new(gateway: &Arc<Gateway>, drain: &Arc<Drain>) -> Self {
        let threads = gateway.config().server.threads();
        Self {
            upstream: Upstream::new(POOL_SIZE, threads, drain),
            gateway: Arc::clone(gateway),
        }
    }

    /// Records verdicts that no record of an exchange has.
    pub(super) fn record_verdicts(&self, facts: &CallFacts, verdicts: Detail) {
        let draft = Draft {
            request_id: Some(RequestId::from_caller(Some(facts.request_id.as_bytes()))),
            target: WorkspaceId::parse(&facts.target.id).ok(),
            detail: Some(verdicts),
            ..Draft::new(EventType::GuardsJudged)
        };
        self.gateway.audit.record(draft);
    }
}

/// The server of one guard.
pub(super) struct GuardServer {
    url: String,
    bound: Bound,
    places: Arc<Shares>,
    /// Notified when a place becomes free.
    freed: Notify,
    breaker: Mutex<Breaker<GuardVerdict>>,
}

/// The members of a question in front of its payload.
#[derive(Serialize)]
struct QuestionHead<'a> {
    version: u8,
    guard: &'a str,
    phase: &'static str,
    #[serde(flatten)]
    facts: &'a CallFacts,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<Box<RawValue>>,
    texts: Vec<String>,
}

/// The reason that a question has no answer.
struct AskFailure {
    verdict: GuardVerdict,
    /// For the log. It names no content.
    cause: Cow<'static, str>,
}

impl AskFailure {
    fn new(verdict: GuardVerdict, cause: impl Into<Cow<'static, str>>) -> Self {
        Self {
            verdict,
            cause: cause.into(),
        }
    }

    fn timed_out() -> Self {
        Self::new(GuardVerdict::Timeout, "it did not answer in time")
    }

    /// True if the server of the guard fails, for whatever question: a sender cannot choose it.
    fn is_of_server(&self) -> bool {
        matches!(
            self.verdict,
            GuardVerdict::Timeout | GuardVerdict::Unreachable
        )
    }
}

/// The verdict of a guard on the wire.
#[derive(Deserialize)]
struct VerdictAnswer<'a> {
    #[serde(borrow)]
    action: Cow<'a, str>,
    #[serde(borrow)]
    reason: Option<Cow<'a, str>>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

impl GuardServer {
    pub(super) fn new(url: &url::Url, concurrency: usize) -> Self {
        Self {
            url: url.as_str().to_owned(),
            bound: Bound::with_places(concurrency),
            places: Arc::default(),
            freed: Notify::new(),
            breaker: Mutex::new(Breaker::new(Instant::now())),
        }
    }

    /// Asks about a document, and changes it if the guard replaces its payload.
    pub(super) async fn judge_document(
        &self,
        client: &GuardClient,
        guard: &Guard,
        (phase, facts): (GuardPhase, &Arc<CallFacts>),
        document: &mut Document,
    ) -> Judgement {
        let limit = guard.max_bytes.0;
        if document.judged_len() as u64 > limit {
            return Judgement::Unfit(GuardVerdict::TooLarge, "");
        }
        if offload::run_on_body(document.as_json(), nests_too_deep).await {
            return Judgement::Unfit(GuardVerdict::Invalid, TOO_DEEP);
        }
        let deadline = Instant::now() + guard.timeout;
        let asked = self.ask_server(client, guard, (phase, facts), (document, deadline));
        let asked = timeout_at(deadline, asked).await;
        let judged = match asked.unwrap_or_else(|_| Err(AskFailure::timed_out())) {
            Ok(answer) => read_verdict(&answer, document).await,
            Err(failure) => {
                let cause = &*failure.cause;
                tracing::debug!(guard = guard.name, cause, "a guard gave no verdict");
                return Judgement::Failed(failure.verdict);
            }
        };
        if let Judgement::Failed(_) | Judgement::Unfit(..) = judged {
            let cause = "its answer is no verdict, or replaces what it may not";
            tracing::debug!(guard = guard.name, cause, "a guard gave no verdict");
        }
        judged
    }

    async fn ask_server(
        &self,
        client: &GuardClient,
        guard: &Guard,
        (phase, facts): (GuardPhase, &Arc<CallFacts>),
        (document, deadline): (&Document, Instant),
    ) -> Result<Bytes, AskFailure> {
        // What waits for its place has half of its time left for the guard: a caller that asks too much does not make
        // the guard look late.
        let until = deadline.checked_sub(guard.timeout / 2).unwrap_or(deadline);
        let place = timeout_at(until, self.wait_for_place(facts.account)).await;
        let place = place.map_err(|_| {
            let cause = "as many questions as may be are in progress, in all or of this caller";
            AskFailure::new(GuardVerdict::Busy, cause)
        })?;
        let (now, allows) = (Instant::now(), guard.on_failure == OnFailure::Allow);
        let patience = deadline.saturating_duration_since(now);
        let admission = {
            let mut breaker = self.breaker.lock();
            match breaker.admit(facts.account, patience, || now) {
                // What passes without a question is no sender's choice: it is asked while it judges others.
                Err(_) if allows && breaker.reported_circuit(None).phase == Phase::Closed => None,
                Err(_) => {
                    return Err(AskFailure::new(
                        GuardVerdict::Open,
                        "it failed too often before",
                    ));
                }
                Ok(admission) => Some(admission),
            }
        };
        let question = build_question(guard, phase, facts, document).await;
        let sent = self.send_question(client, guard, question, deadline);
        let answered = timeout_at(deadline, sent).await;
        let answered = answered.unwrap_or_else(|_| Err(AskFailure::timed_out()));
        let failure = answered.as_ref().err();
        let failure = failure.filter(|failure| failure.is_of_server());
        let turned = admission.and_then(|admission| {
            let call = (admission, facts.account);
            let verdict = failure.map(|failure| failure.verdict);
            self.breaker
                .lock()
                .record_outcome(call, verdict, &BREAKER, Instant::now())
        });
        if let (Some(turned), Some(failure)) = (turned, failure) {
            tracing::warn!(
                guard = guard.name,
                failure = failure.verdict.as_str(),
                alone = turned == BreakerChange::OpenedAlone,
                cause = &*failure.cause,
                "A guard fails; it is not asked for a while, and calls that need it are rejected unless its on_failure is \"allow\""
            );
        }
        drop(place);
        self.freed.notify_one();
        answered
    }

    /// True if a question of `account` would have a place now.
    pub(super) fn has_place(&self, account: Account) -> bool {
        self.places.check_one(account, self.bound).is_ok()
    }

    /// Waits for a place. The one that is notified may have its share, or leave: others look by themselves.
    async fn wait_for_place(&self, account: Account) -> Share {
        loop {
            match self.places.take(account, 1, self.bound) {
                Ok(place) => return place,
                Err(_) => _ = timeout(LOOK_EVERY, self.freed.notified()).await,
            }
        }
    }

    async fn send_question(
        &self,
        client: &GuardClient,
        guard: &Guard,
        question: Bytes,
        deadline: Instant,
    ) -> Result<Bytes, AskFailure> {
        let addresses = &client.gateway.directory.addresses;
        let (endpoint, address) = addresses
            .resolve_url("the guard's URL (guard.url)", &self.url)
            .await?;
        let config = client.gateway.config.snapshot();
        let hash = offload::run_on_body(&question, body_hash).await;
        let signed = &client.gateway.identity.signed;
        let token =
            signed.issue_for_service(&GUARD, &guard.name, audience_of(&endpoint), Some(hash))?;
        let wire = signed_head(
            ("POST", &endpoint),
            question.len(),
            guard.header.as_ref().and_then(|header| header.parts()),
            (token.expose_secret(), TOKEN_FIELD),
        );
        let connect = config.timeouts.connect.min(guard.timeout);
        let question = BufferedRequest {
            peer: &build_peer(address, endpoint.tls, &endpoint.sni, connect),
            call: WireRequest::new(wire, question),
            deadline,
            bytes_max: guard.max_bytes.bytes().saturating_add(ANSWER_BESIDE),
            idle: config.upstream.idle,
            late: guard_timeout,
        };
        let asked = question.send(&client.upstream, &client.gateway.metrics);
        let (head, body) = asked.await?;
        refuse_redirect(&head)?;
        if !head.status.is_success() {
            let cause = format!("it answered with the status {}", head.status.as_u16());
            return Err(AskFailure::new(GuardVerdict::Invalid, cause));
        }
        Ok(body)
    }
}

/// Writes the question. The payload stands last, as it travels.
async fn build_question(
    guard: &Guard,
    phase: GuardPhase,
    facts: &Arc<CallFacts>,
    document: &Document,
) -> Bytes {
    let write = move |name: &str, facts: &CallFacts, document: &Document| {
        let (task_id, context_id) = CallFacts::read_names(document);
        let raw = |bytes| serde_json::from_slice::<&RawValue>(bytes).ok();
        let head = QuestionHead {
            version: 1,
            guard: name,
            phase: phase.as_str(),
            facts,
            task_id,
            context_id,
            run_id: facts.run_id(),
            metadata: document.metadata().and_then(raw),
            beside: document
                .other_members()
                .and_then(|beside| RawValue::from_string(beside).ok()),
            texts: document.texts(),
        };
        let mut question = serde_json::to_vec(&head).unwrap_or_default();
        question.pop();
        question.extend_from_slice(b",\"payload\":");
        question.extend_from_slice(document.payload());
        question.push(b'}');
        Bytes::from(question)
    };
    if !offload::is_long(document.as_json().len()) {
        return write(&guard.name, facts, document);
    }
    let (name, facts, document) = (guard.name.clone(), Arc::clone(facts), document.clone());
    Box::pin(offload::run(move || write(&name, &facts, &document))).await
}

/// Reads a verdict, and replaces the payload of the document.
async fn read_verdict(answer: &Bytes, document: &mut Document) -> Judgement {
    let mut next = document.clone();
    let judged = offload::run_on_body(answer, move |answer| {
        let Ok(answer) = serde_json::from_slice::<VerdictAnswer<'_>>(answer) else {
            return (Judgement::Failed(GuardVerdict::Invalid), None);
        };
        match (&*answer.action, answer.payload) {
            ("pass", _) => (Judgement::Pass, None),
            ("reject", _) => {
                let reason = answer.reason.filter(|reason| !reason.trim().is_empty());
                let reason = reason.unwrap_or(Cow::Borrowed("no reason given"));
                (Judgement::Reject(reason.into_owned()), None)
            }
            ("replace", Some(payload)) if next.replace(payload.get().as_bytes()) => {
                (Judgement::Replaced, Some(next))
            }
            _ => (Judgement::Failed(GuardVerdict::Invalid), None),
        }
    });
    let (judgement, replaced) = judged.await;
    if let Some(replaced) = replaced {
        *document = replaced;
    }
    judgement
}

/// The failure of a question that was not answered.
impl From<Rejection> for AskFailure {
    fn from(why: Rejection) -> Self {
        let verdict = match why.reason {
            Reason::AgentTimeout => GuardVerdict::Timeout,
            Reason::ResponseTooLarge | Reason::AgentRedirected => GuardVerdict::Invalid,
            _ => GuardVerdict::Unreachable,
        };
        // Messages of the relay name no content.
        Self::new(verdict, why.message)
    }
}

fn guard_timeout() -> Rejection {
    Rejection::new(Reason::AgentTimeout, "the guard did not answer in time")
}
