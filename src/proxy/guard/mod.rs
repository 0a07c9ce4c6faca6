//! Guards (`[[guard]]`; `docs/reference/guards.md`): services or patterns that judge what messages, answers and events
//! say before these reach the other side. Nothing that a guard has not passed goes out.
//!
//! [`Guards`] has the compiled guards of the configuration in force; [`Guarded`] the ones of one call, which all its
//! phases share. A call is asked about in its final form, right before it is sent or stored ([`super::guarding`]); an
//! answer or event as its caller gets it ([`super::relay::rewrite`], [`stream`]).

mod ask;
mod document;
mod facts;
mod patterns;
mod reading;
pub(in crate::proxy) mod stream;
pub(in crate::proxy) mod verdict;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use self::ask::{Asker, Server};
use self::document::{Document, Form};
pub(in crate::proxy) use self::facts::{Facts, Party, trace_of};
use self::patterns::Patterns;
use self::verdict::Verdicts;
use crate::a2a::method::Method;
use crate::a2a::texts::only_call;
use crate::config::{
    Config, Derived, Guard as Settings, GuardMode, GuardPhase, GuardStream, OnFailure,
};
use crate::drain::Drain;
use crate::gateway::Gateway;
use crate::ids::WorkspaceId;
use crate::metrics::GuardVerdict;
use crate::rejection::{Delivery, Reason, Rejection};

/// Longest reason of a guard that callers get, in characters.
const REASON_MAX: usize = 500;

/// The reason that a document is unfit.
const TOO_DEEP: &str = "is not asked about what nests deeper than 100 levels";

/// Time after which a call that a guard could not judge may succeed.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The guards of the configuration in force.
pub(in crate::proxy) struct Guards {
    asker: Arc<Asker>,
    compiled: Derived<Compiled>,
}

struct Compiled(Vec<Arc<Guard>>);

/// One guard, ready to judge.
struct Guard {
    name: Arc<str>,
    settings: Settings,
    judge: Judge,
}

enum Judge {
    Server(Box<Server>),
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

impl Compiled {
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
            judge: match &settings.url {
                Some(url) => Judge::Server(Box::new(Server::new(url, settings.concurrency))),
                None => Judge::Patterns(Patterns::new(settings)),
            },
            settings: settings.clone(),
        }
    }

    /// Judges a document, and changes it if the guard replaces something.
    async fn judge(
        &self,
        asker: &Asker,
        (phase, facts): (GuardPhase, &Arc<Facts>),
        document: &mut Document,
    ) -> Judgement {
        match &self.judge {
            Judge::Server(server) => {
                let about = (phase, facts);
                server.judge(asker, &self.settings, about, document).await
            }
            Judge::Patterns(patterns) => patterns.judge(document).await,
        }
    }

    fn is_asked_about_events(&self) -> bool {
        let settings = &self.settings;
        settings.phases.contains(&GuardPhase::Event) && settings.stream != GuardStream::Off
    }

    fn rejected(&self, reason: &str, delivered: Delivery) -> Rejection {
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let why: String = reason.chars().take(REASON_MAX).map(plain).collect();
        let message = format!(
            "the guard `{}` rejects what this says; metadata.why has its reason",
            self.name
        );
        Rejection::new(Reason::GuardRejected, message)
            .fact("guard", &self.name)
            .fact("why", why)
            .delivered(delivered)
    }

    fn unavailable(
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
            .fact("guard", name)
            .fact("failure", failure.as_str())
            .delivered(delivered);
        match failure {
            GuardVerdict::TooLarge => rejection.fact("limit", settings.max_bytes.0),
            _ if unfit.is_some() => rejection,
            _ => rejection.retry_after(RETRY_AFTER),
        }
    }
}

/// The caller's side of a call.
pub(in crate::proxy) struct Side {
    /// True if it is JSON-RPC.
    pub(in crate::proxy) is_rpc: bool,
    /// The id of the call, as it is spelled; `None`: unknown.
    pub(in crate::proxy) rpc_id: Option<String>,
}

/// The guards of one call.
pub(in crate::proxy) struct Guarded {
    asker: Arc<Asker>,
    guards: Vec<Arc<Guard>>,
    facts: Arc<Facts>,
    /// The caller's side.
    side: Side,
    /// True if the method is answered with a stream.
    streams: bool,
    /// The verdicts so far.
    pub(in crate::proxy) verdicts: Arc<Verdicts>,
}

impl Guards {
    /// Compiles the guards. Opens no connection.
    pub(in crate::proxy) fn new(gateway: &Arc<Gateway>, drain: &Arc<Drain>) -> Self {
        Self {
            asker: Arc::new(Asker::new(gateway, drain)),
            compiled: Derived::new(&gateway.config, Compiled::new),
        }
    }

    fn about(
        &self,
        method: Method,
        (target, org): (&WorkspaceId, Option<&str>),
    ) -> Vec<Arc<Guard>> {
        let compiled = self.compiled.get();
        let about = compiled.0.iter().filter(|guard| {
            guard.settings.is_about(method) && guard.settings.targets.covers(target, org)
        });
        about.cloned().collect()
    }

    /// Returns the guards of a call; `None` if there are none.
    pub(in crate::proxy) fn of(
        &self,
        method: Method,
        target: (&WorkspaceId, Option<&str>),
        side: impl FnOnce() -> Side,
        facts: impl FnOnce() -> Facts,
    ) -> Option<Arc<Guarded>> {
        let guards = self.about(method, target);
        if guards.is_empty() {
            return None;
        }
        Some(Arc::new(Guarded {
            asker: Arc::clone(&self.asker),
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
        let guards = self.about(method, target);
        let shown = guards.iter().map(|guard| {
            let settings = &guard.settings;
            let phases: Vec<_> = settings.phases.iter().map(|phase| phase.as_str()).collect();
            serde_json::json!({"name": &*guard.name, "phases": phases, "mode": settings.mode.as_str(),
                "on_failure": settings.on_failure.as_str(), "stream": settings.stream.as_str()})
        });
        shown.collect()
    }
}

impl Guarded {
    /// True if a guard is asked in `phase`.
    pub(in crate::proxy) fn has(&self, phase: GuardPhase) -> bool {
        self.guards.iter().any(|guard| match phase {
            GuardPhase::Event => guard.is_asked_about_events(),
            phase => guard.settings.phases.contains(&phase),
        })
    }

    /// True if a guard whose verdicts count is asked about the last event of a stream only.
    fn holds_events(&self) -> bool {
        self.guards.iter().any(|guard| {
            let settings = &guard.settings;
            guard.is_asked_about_events()
                && settings.stream == GuardStream::Final
                && settings.mode == GuardMode::Enforce
        })
    }

    /// Asks about a call in its final form. `is_rpc`: its agent's side is JSON-RPC; `sends`: it carries a message. Returns
    /// another body if one was replaced.
    ///
    /// # Errors
    /// `guard_rejected`, `guard_unavailable`.
    pub(in crate::proxy) async fn request(
        self: &Arc<Self>,
        body: &Bytes,
        is_rpc: bool,
        sends: bool,
    ) -> Result<Option<Bytes>, Rejection> {
        if body.is_empty() {
            return Ok(None);
        }
        let form = Form::Request { is_rpc, sends };
        let drops = is_rpc && self.enforces(GuardPhase::Request);
        let text = std::str::from_utf8(body).ok().filter(|_| drops);
        let only = text.and_then(only_call).map(Bytes::from);
        let document = Document::read(only.as_ref().unwrap_or(body).clone(), form);
        let document = document.ok_or_else(|| {
            let message = "the call has its message twice, or cannot be read";
            Rejection::new(Reason::InvalidRequest, message)
        })?;
        self.facts.note_run(&document);
        let changed = self.pass(GuardPhase::Request, (document, false)).await?;
        Ok(changed.or(only))
    }

    /// Asks about an answer as its caller gets it. Returns another body if one was replaced.
    ///
    /// # Errors
    /// As [`Guarded::request`].
    pub(in crate::proxy) async fn response(
        self: &Arc<Self>,
        body: &Bytes,
    ) -> Result<Option<Bytes>, Rejection> {
        if body.is_empty() || !self.has(GuardPhase::Response) {
            return Ok(None);
        }
        match self.answer(GuardPhase::Response, body)? {
            Some(document) => self.pass(GuardPhase::Response, (document, true)).await,
            None => Ok(None),
        }
    }

    /// Records the verdicts so far by themselves, for what no exchange records.
    pub(in crate::proxy) fn record(&self) {
        if let Some(verdicts) = self.verdicts.close() {
            self.asker.record(&self.facts, verdicts);
        }
    }

    /// Asks the guards of a phase in order. `is_last`: of an event, it is the last one of its turn.
    async fn pass(
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
            let judged = self.judge(guard, phase, &mut document).await;
            match judged {
                Judgement::Pass | Judgement::Replaced => {}
                Judgement::Reject(reason) => return Err(guard.rejected(&reason, delivered)),
                // Callers choose how much they ask: what finds no place passes under no setting.
                Judgement::Failed(failure)
                    if settings.on_failure == OnFailure::Allow && failure != GuardVerdict::Busy => {
                }
                Judgement::Failed(failure) => {
                    return Err(guard.unavailable((failure, None), delivered));
                }
                Judgement::Unfit(failure, why) => {
                    return Err(guard.unavailable((failure, Some(why)), delivered));
                }
            }
        }
        Ok(document.into_changed())
    }

    async fn judge(&self, guard: &Guard, phase: GuardPhase, document: &mut Document) -> Judgement {
        let asked = Instant::now();
        let judged = guard
            .judge(&self.asker, (phase, &self.facts), document)
            .await;
        self.note(guard, phase, judged.verdict(), asked);
        judged
    }

    fn note(&self, guard: &Guard, phase: GuardPhase, verdict: GuardVerdict, asked: Instant) {
        let elapsed = asked.elapsed();
        let metrics = &self.asker.metrics.guards;
        metrics.judged(&guard.name, phase.as_str(), verdict, elapsed);
        self.verdicts.add(&guard.name, phase, verdict, elapsed);
    }

    /// Has a guard judge a document without following its verdict. The call waits for patterns, and not for a server: that
    /// is asked beside it, unless it has as many questions as may be.
    async fn observe(self: &Arc<Self>, guard: &Arc<Guard>, phase: GuardPhase, document: &Document) {
        let mut document = document.clone();
        match &guard.judge {
            Judge::Patterns(_) => {
                self.judge(guard, phase, &mut document).await;
            }
            Judge::Server(server) if !server.has_place(self.facts.account) => {
                self.note(guard, phase, GuardVerdict::Busy, Instant::now());
            }
            Judge::Server(_) => {
                let (pending, guard) = (Pending::new(self), Arc::clone(guard));
                tokio::spawn(async move {
                    pending.0.judge(&guard, phase, &mut document).await;
                });
            }
        }
    }
}

/// A question that its exchange does not wait for. Its verdict is in the record of the exchange if it comes before that is
/// written, else in a record of its own.
struct Pending(Arc<Guarded>);

impl Pending {
    fn new(guarded: &Arc<Guarded>) -> Self {
        guarded.verdicts.begin_pending();
        Self(Arc::clone(guarded))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(late) = self.0.verdicts.end_pending() {
            self.0.asker.record(&self.0.facts, late);
        }
    }
}
