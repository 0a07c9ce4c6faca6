//! Guards (`[[guard]]`; `docs/reference/guards.md`): services or patterns that judge what messages, answers and events
//! say before these reach the other side. Nothing that a guard has not passed goes out.
//!
//! [`Guards`] has the guards of the configuration in force; [`CallGuards`] the ones of one call, which all its
//! phases share. A call is asked about in its final form, right before it is sent or stored
//! ([`super::policy`]); an answer or event as its caller gets it ([`super::filters`], [`stream`]).

mod answers;
mod document;
pub(in crate::proxy) mod facts;
mod patterns;
mod server;
pub(in crate::proxy) mod stream;

use crate::a2a::method::Method;
use crate::a2a::texts::retain_call_members;
use crate::config::{
    Config, Derived, Guard as Settings, GuardMode, GuardPhase, GuardStream, OnFailure,
};
use crate::drain::Drain;
use crate::gateway::Gateway;
use crate::ids::WorkspaceId;
use crate::metrics::GuardVerdict;
use crate::proxy::guard::document::{Document, DocumentForm};
pub(in crate::proxy) use crate::proxy::guard::facts::CallFacts;
pub(in crate::proxy) use crate::proxy::guard::facts::parse_trace;
use crate::proxy::guard::patterns::Patterns;
use crate::proxy::guard::server::{GuardClient, GuardServer};
use crate::proxy::guard_verdicts::Verdicts;
use crate::rejection::{Delivery, Reason, Rejection};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Longest reason of a guard that callers get, in characters.
const REASON_MAX: usize = 500;

/// The reason that a document is unfit.
const TOO_DEEP: &str = "is not asked about what nests deeper than 100 levels";

/// Time after which a call that a guard could not judge may succeed.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The guards of the configuration in force.
pub(in crate::proxy) struct Guards {
    client: Arc<GuardClient>,
    set: Derived<GuardSet>,
}

struct GuardSet(Vec<Arc<Guard>>);

/// One guard, ready to judge.
struct Guard {
    name: Arc<str>,
    settings: Settings,
    kind: GuardKind,
}

enum GuardKind {
    Server(Box<GuardServer>),
    Patterns(Patterns),
}

/// Verdict of a guard on a document.
enum Judgement {
    /// It passes.
    Pass,
    /// It is rejected, for this reason.
    Reject(String),
    /// It passes in another form, which is in the document now.
    Replaced,
    /// There is no verdict.
    Failed(GuardVerdict),
    /// The document, or what is to replace it, is none that the guard may be asked about or that may pass. A sender can
    /// choose that, so it is rejected under `on_failure = "allow"`, too. With the reason in words.
    Unfit(GuardVerdict, &'static str),
}

impl Judgement {
    const fn verdict(&self) -> GuardVerdict {
        match self {
            Self::Pass => GuardVerdict::Pass,
            Self::Reject(_) => GuardVerdict::Reject,
            Self::Replaced => GuardVerdict::Replace,
            Self::Failed(failure) | Self::Unfit(failure, _) => *failure,
        }
    }
}

impl GuardSet {
    /// Compiles the guards. One that is unchanged keeps its breaker and its questions in progress.
    fn new(config: &Config, before: Option<&Self>) -> Self {
        let guards = config.guard.iter().map(|settings| {
            let mut known = before.into_iter().flat_map(|before| &before.0);
            let kept = known.find(|guard| guard.settings == *settings);
            kept.cloned()
                .unwrap_or_else(|| Arc::new(Guard::new(settings)))
        });
        Self(guards.collect())
    }
}

impl Guard {
    fn new(settings: &Settings) -> Self {
        Self {
            name: settings.name.as_str().into(),
            kind: match &settings.url {
                Some(url) => {
                    GuardKind::Server(Box::new(GuardServer::new(url, settings.concurrency)))
                }
                None => GuardKind::Patterns(Patterns::new(settings)),
            },
            settings: settings.clone(),
        }
    }

    /// Judges a document, and changes it if the guard replaces something.
    async fn judge_document(
        &self,
        client: &GuardClient,
        (phase, facts): (GuardPhase, &Arc<CallFacts>),
        document: &mut Document,
    ) -> Judgement {
        match &self.kind {
            GuardKind::Server(server) => {
                let about = (phase, facts);
                server
                    .judge_document(client, &self.settings, about, document)
                    .await
            }
            GuardKind::Patterns(patterns) => patterns.judge_document(document).await,
        }
    }

    fn covers_events(&self) -> bool {
        let settings = &self.settings;
        settings.phases.contains(&GuardPhase::Event) && settings.stream != GuardStream::Off
    }

    fn rejection(&self, reason: &str, delivered: Delivery) -> Rejection {
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let why: String = reason.chars().take(REASON_MAX).map(plain).collect();
        let message = format!(
            "the guard `{}` rejects what this says; metadata.why has its reason",
            self.name
        );
        Rejection::new(Reason::GuardRejected, message)
            .with_fact("guard", &self.name)
            .with_fact("why", why)
            .with_delivery(delivered)
    }

    fn unavailable_rejection(
        &self,
        (failure, unfit): (GuardVerdict, Option<&'static str>),
        delivered: Delivery,
    ) -> Rejection {
        let (name, settings) = (&self.name, &self.settings);
        let why = match failure {
            GuardVerdict::Timeout => format!(
                "did not answer within its timeout, {}",
                humantime::format_duration(settings.timeout)
            ),
            GuardVerdict::Unreachable => "cannot be reached".to_owned(),
            GuardVerdict::TooLarge => format!(
                "is not asked about more than its max_bytes, {} bytes",
                settings.max_bytes.0
            ),
            GuardVerdict::Busy => format!(
                "has as many questions as may be, {} (its concurrency), or half of what others leave of them from this caller",
                settings.concurrency
            ),
            GuardVerdict::Open => "failed too often and is not asked for a while".to_owned(),
            _ => unfit
                .unwrap_or("gave an answer that is no verdict")
                .to_owned(),
        };
        let remedy = match unfit {
            Some(_) => "that is rejected whatever its on_failure is",
            None if failure == GuardVerdict::Busy => "try again, with fewer calls at once",
            None => "an operator looks at the guard, or sets its on_failure",
        };
        let message = format!("the guard `{name}` must be asked about this and {why}; {remedy}");
        let rejection = Rejection::new(Reason::GuardUnavailable, message)
            .with_fact("guard", name)
            .with_fact("failure", failure.as_str())
            .with_delivery(delivered);
        match failure {
            GuardVerdict::TooLarge => rejection.with_fact("limit", settings.max_bytes.0),
            _ if unfit.is_some() => rejection,
            _ => rejection.with_retry_after(RETRY_AFTER),
        }
    }
}

/// The caller's side of a call.
pub(in crate::proxy) struct CallerSide {
    /// True if it is JSON-RPC.
    pub(in crate::proxy) is_rpc: bool,
    /// The id of the call, as it is spelled; `None`: unknown.
    pub(in crate::proxy) rpc_id: Option<String>,
}

/// The guards of one call.
pub(in crate::proxy) struct CallGuards {
    client: Arc<GuardClient>,
    guards: Vec<Arc<Guard>>,
    facts: Arc<CallFacts>,
    /// The caller's side.
    side: CallerSide,
    /// True if the method is answered with a stream.
    streams: bool,
    /// The verdicts so far.
    pub(in crate::proxy) verdicts: Arc<Verdicts>,
}

impl Guards {
    /// Compiles the guards. Opens no connection.
    pub(in crate::proxy) fn new(gateway: &Arc<Gateway>, drain: &Arc<Drain>) -> Self {
        Self {
            client: Arc::new(GuardClient::new(gateway, drain)),
            set: Derived::new(&gateway.config, GuardSet::new),
        }
    }

    fn guards_for(
        &self,
        method: Method,
        (target, org): (&WorkspaceId, Option<&str>),
    ) -> Vec<Arc<Guard>> {
        let set = self.set.get();
        let about = set.0.iter().filter(|guard| {
            guard.settings.is_about(method) && guard.settings.targets.covers(target, org)
        });
        about.cloned().collect()
    }

    /// Returns the guards of a call; `None` if there are none.
    pub(in crate::proxy) fn for_call(
        &self,
        method: Method,
        target: (&WorkspaceId, Option<&str>),
        side: impl FnOnce() -> CallerSide,
        facts: impl FnOnce() -> CallFacts,
    ) -> Option<Arc<CallGuards>> {
        let guards = self.guards_for(method, target);
        if guards.is_empty() {
            return None;
        }
        Some(Arc::new(CallGuards {
            client: Arc::clone(&self.client),
            guards,
            facts: Arc::new(facts()),
            side: side(),
            streams: method.streams(),
            verdicts: Arc::default(),
        }))
    }

    /// Returns the guards that a call would be asked about, for an explanation.
    pub(in crate::proxy) fn explain(
        &self,
        method: Method,
        target: (&WorkspaceId, Option<&str>),
    ) -> Vec<serde_json::Value> {
        let guards = self.guards_for(method, target);
        let explained = guards.iter().map(|guard| {
            let settings = &guard.settings;
            let phases: Vec<_> = settings.phases.iter().map(|phase| phase.as_str()).collect();
            serde_json::json!({"name": &*guard.name, "phases": phases, "mode": settings.mode.as_str(),
                "on_failure": settings.on_failure.as_str(), "stream": settings.stream.as_str()})
        });
        explained.collect()
    }
}

impl CallGuards {
    /// True if a guard is asked in `phase`.
    pub(in crate::proxy) fn has_phase(&self, phase: GuardPhase) -> bool {
        self.guards.iter().any(|guard| match phase {
            GuardPhase::Event => guard.covers_events(),
            phase => guard.settings.phases.contains(&phase),
        })
    }

    /// True if a guard whose verdicts count is asked about the last event of a stream only.
    fn delays_events(&self) -> bool {
        self.guards.iter().any(|guard| {
            let settings = &guard.settings;
            guard.covers_events()
                && settings.stream == GuardStream::Final
                && settings.mode == GuardMode::Enforce
        })
    }

    /// Asks about a call in its final form. `is_rpc`: its agent's side is JSON-RPC; `sends`: it carries a message. Returns
    /// another body if one was replaced.
    ///
    /// # Errors
    /// `guard_rejected`, `guard_unavailable`.
    pub(in crate::proxy) async fn check_request(
        self: &Arc<Self>,
        body: &Bytes,
        is_rpc: bool,
        sends: bool,
    ) -> Result<Option<Bytes>, Rejection> {
        if body.is_empty() {
            return Ok(None);
        }
        let form = DocumentForm::Request { is_rpc, sends };
        let drops = is_rpc && self.is_enforced(GuardPhase::Request);
        let text = std::str::from_utf8(body).ok().filter(|_| drops);
        let only = text.and_then(retain_call_members).map(Bytes::from);
        let document = Document::parse(only.as_ref().unwrap_or(body).clone(), form);
        let document = document.ok_or_else(|| {
            let message = "the call has its message twice, or cannot be read";
            Rejection::new(Reason::InvalidRequest, message)
        })?;
        self.facts.record_run(&document);
        let changed = self
            .run_phase(GuardPhase::Request, (document, false))
            .await?;
        Ok(changed.or(only))
    }

    /// Asks about an answer as its caller gets it. Returns another body if one was replaced.
    ///
    /// # Errors
    /// As [`CallGuards::check_request`].
    pub(in crate::proxy) async fn check_response(
        self: &Arc<Self>,
        body: &Bytes,
    ) -> Result<Option<Bytes>, Rejection> {
        if body.is_empty() || !self.has_phase(GuardPhase::Response) {
            return Ok(None);
        }
        match self.read_answer(GuardPhase::Response, body)? {
            Some(document) => self.run_phase(GuardPhase::Response, (document, true)).await,
            None => Ok(None),
        }
    }

    /// Records the verdicts so far by themselves, for what no exchange records.
    pub(in crate::proxy) fn record_verdicts(&self) {
        if let Some(verdicts) = self.verdicts.close() {
            self.client.record_verdicts(&self.facts, verdicts);
        }
    }

    /// Asks the guards of a phase in order. `is_last`: of an event, it is the last one of its turn.
    async fn run_phase(
        self: &Arc<Self>,
        phase: GuardPhase,
        (mut document, is_last): (Document, bool),
    ) -> Result<Option<Bytes>, Rejection> {
        let delivered = match phase {
            GuardPhase::Request => Delivery::NotSent,
            GuardPhase::Response | GuardPhase::Event => Delivery::Sent,
        };
        for guard in &self.guards {
            let settings = &guard.settings;
            if !settings.phases.contains(&phase) {
                continue;
            }
            if phase == GuardPhase::Event {
                let asked = match settings.stream {
                    GuardStream::Each => true,
                    GuardStream::Final => is_last,
                    GuardStream::Off => false,
                };
                if !asked {
                    continue;
                }
            }
            if settings.mode == GuardMode::Observe {
                self.observe(guard, phase, &document).await;
                continue;
            }
            let judged = self.judge_document(guard, phase, &mut document).await;
            match judged {
                Judgement::Pass | Judgement::Replaced => {}
                Judgement::Reject(reason) => return Err(guard.rejection(&reason, delivered)),
                // Callers choose how much they ask: what finds no place passes under no setting.
                Judgement::Failed(failure)
                    if settings.on_failure == OnFailure::Allow && failure != GuardVerdict::Busy => {
                }
                Judgement::Failed(failure) => {
                    return Err(guard.unavailable_rejection((failure, None), delivered));
                }
                Judgement::Unfit(failure, why) => {
                    return Err(guard.unavailable_rejection((failure, Some(why)), delivered));
                }
            }
        }
        Ok(document.into_changed())
    }

    async fn judge_document(
        &self,
        guard: &Guard,
        phase: GuardPhase,
        document: &mut Document,
    ) -> Judgement {
        let asked = Instant::now();
        let judged = guard
            .judge_document(&self.client, (phase, &self.facts), document)
            .await;
        self.record_verdict(guard, phase, judged.verdict(), asked);
        judged
    }

    fn record_verdict(
        &self,
        guard: &Guard,
        phase: GuardPhase,
        verdict: GuardVerdict,
        asked: Instant,
    ) {
        let elapsed = asked.elapsed();
        let metrics = &self.client.metrics.guards;
        metrics.record_verdict(&guard.name, phase.as_str(), verdict, elapsed);
        self.verdicts.add(&guard.name, phase, verdict, elapsed);
    }

    /// Has a guard judge a document without following its verdict. The call waits for patterns, and not for a server: that
    /// is asked beside it, unless it has as many questions as may be.
    async fn observe(self: &Arc<Self>, guard: &Arc<Guard>, phase: GuardPhase, document: &Document) {
        let mut document = document.clone();
        match &guard.kind {
            GuardKind::Patterns(_) => {
                self.judge_document(guard, phase, &mut document).await;
            }
            GuardKind::Server(server) if !server.has_place(self.facts.account) => {
                self.record_verdict(guard, phase, GuardVerdict::Busy, Instant::now());
            }
            GuardKind::Server(_) => {
                let (pending, guard) = (PendingVerdict::new(self), Arc::clone(guard));
                tokio::spawn(async move {
                    pending.0.judge_document(&guard, phase, &mut document).await;
                });
            }
        }
    }
}

/// A question that its exchange does not wait for. Its verdict is in the record of the exchange if it comes before that is
/// written, else in a record of its own.
struct PendingVerdict(Arc<CallGuards>);

impl PendingVerdict {
    fn new(guarded: &Arc<CallGuards>) -> Self {
        guarded.verdicts.begin_pending();
        Self(Arc::clone(guarded))
    }
}

impl Drop for PendingVerdict {
    fn drop(&mut self) {
        if let Some(late) = self.0.verdicts.end_pending() {
            self.0.client.record_verdicts(&self.0.facts, late);
        }
    }
}
