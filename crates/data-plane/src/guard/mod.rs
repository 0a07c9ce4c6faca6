//! Guards (`[[guard]]`; `docs/reference/guards.md`): services or patterns that judge what messages, answers and events
//! say before these reach the other side. Nothing that a guard has not passed goes out.
//!
//! [`Guards`] has the guards of the configuration in force; [`CallGuards`] the ones of one call, which all its
//! phases share. A call is asked about in its final form, right before it is sent or stored
//! ([`super::policy`]); an answer or event as its caller gets it ([`super::filters`], [`stream`]).

mod server;
pub(crate) mod stream;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use pingora::http::ResponseHeader;
use regex::{NoExpand, Regex};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::guard::server::{GuardClient, GuardServer};
use crate::upstream::reject_answer;
use a2a::method::Method;
use a2a::texts::{
    Document, DocumentForm, Root, answers_call, retain_call_members, walk_strings, with_strings,
};
use assembly::gateway::Gateway;
use audit::Verdicts;
use http1::names_utf8;
use kernel::config::{
    Config, Derived, Guard as Settings, GuardMode, GuardPhase, GuardStream, OnFailure,
    PatternAction,
};
use kernel::drain::Drain;
use kernel::ids::WorkspaceId;
use kernel::metrics::GuardVerdict;
use kernel::offload;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::Account;

/// Longest reason of a guard that callers get, in characters.
const REASON_MAX: usize = 500;

/// The reason that a document is unfit.
const TOO_DEEP: &str = "is not asked about what nests deeper than 100 levels";

/// Time after which a call that a guard could not judge may succeed.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The guards of the configuration in force.
pub(crate) struct Guards {
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

    /// True if its verdict counts in `phase`.
    fn is_enforced(&self, phase: GuardPhase) -> bool {
        self.settings.mode == GuardMode::Enforce && self.settings.phases.contains(&phase)
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
pub(crate) struct CallerSide {
    /// True if it is JSON-RPC.
    pub(crate) is_rpc: bool,
    /// The id of the call, as it is spelled; `None`: unknown.
    pub(crate) rpc_id: Option<String>,
}

/// The guards of one call.
pub(crate) struct CallGuards {
    client: Arc<GuardClient>,
    guards: Vec<Arc<Guard>>,
    facts: Arc<CallFacts>,
    /// The caller's side.
    side: CallerSide,
    /// True if the method is answered with a stream.
    streams: bool,
    /// The verdicts so far.
    pub(crate) verdicts: Arc<Verdicts>,
}

impl Guards {
    /// Compiles the guards. Opens no connection.
    pub(crate) fn new(gateway: &Arc<Gateway>, drain: &Arc<Drain>) -> Self {
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
    pub(crate) fn for_call(
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
    pub(crate) fn explain(
        &self,
        method: Method,
        target: (&WorkspaceId, Option<&str>),
    ) -> Vec<Value> {
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
    pub(crate) fn has_phase(&self, phase: GuardPhase) -> bool {
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

    /// Asks about a call in its final form. `is_rpc`: its agent's side is JSON-RPC; `sends`: it carries a message.
    /// Returns another body if one was replaced.
    ///
    /// # Errors
    /// `guard_rejected`, `guard_unavailable`.
    pub(crate) async fn check_request(
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
    pub(crate) async fn check_response(
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
    pub(crate) fn record_verdicts(&self) {
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
            let is_asked = match settings.stream {
                _ if phase != GuardPhase::Event => true,
                GuardStream::Each => true,
                GuardStream::Final => is_last,
                GuardStream::Off => false,
            };
            if !is_asked {
                continue;
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

    /// Judges a document, and changes it if the guard replaces something.
    async fn judge_document(
        &self,
        guard: &Guard,
        phase: GuardPhase,
        document: &mut Document,
    ) -> Judgement {
        let asked = Instant::now();
        let (settings, about) = (&guard.settings, (phase, &self.facts));
        let judged = match &guard.kind {
            GuardKind::Server(server) => {
                let judging = server.judge_document(&self.client, settings, about, document);
                judging.await
            }
            GuardKind::Patterns(patterns) => patterns.judge_document(document).await,
        };
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
        let metrics = &self.client.gateway.metrics.guards;
        metrics.record_verdict(&guard.name, phase.as_str(), verdict, elapsed);
        self.verdicts.add(&guard.name, phase, verdict, elapsed);
    }

    /// Has a guard judge a document without following its verdict. The call waits for patterns, and not for a server:
    /// that is asked beside it, unless it has as many questions as may be.
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
                self.verdicts.begin_pending();
                let (pending, guard) = (PendingVerdict(Arc::clone(self)), Arc::clone(guard));
                tokio::spawn(async move {
                    pending.0.judge_document(&guard, phase, &mut document).await;
                });
            }
        }
    }
}

/// A question that its exchange does not wait for. Its verdict is in the record of the exchange if it comes before that
/// is written, else in a record of its own.
struct PendingVerdict(Arc<CallGuards>);

impl Drop for PendingVerdict {
    fn drop(&mut self) {
        if let Some(late) = self.0.verdicts.end_pending() {
            self.0.client.record_verdicts(&self.0.facts, late);
        }
    }
}

// Answers and events that guards are asked about, as their readers read them.

impl CallGuards {
    /// True if a verdict counts in `phase`.
    fn is_enforced(&self, phase: GuardPhase) -> bool {
        self.guards.iter().any(|guard| guard.is_enforced(phase))
    }

    /// Reads an answer, or the data of an event. What is no JSON is a string. `None`: it is not judged, and no verdict
    /// on it would count.
    ///
    /// # Errors
    /// `agent_protocol_error`: its reader may read something else than guards would.
    fn read_answer(&self, phase: GuardPhase, body: &Bytes) -> Result<Option<Document>, Rejection> {
        match self.parse_answer(body) {
            Ok(document) => Ok(Some(document)),
            Err(why) if self.is_enforced(phase) => Err(why),
            Err(_) => Ok(None),
        }
    }

    fn parse_answer(&self, body: &Bytes) -> Result<Document, Rejection> {
        let refused = |message: &'static str| Err(reject_answer(message));
        let json = match body.strip_prefix(b"\xef\xbb\xbf") {
            Some(json) => body.slice_ref(json),
            None => body.clone(),
        };
        if json.contains(&0) || std::str::from_utf8(&json).is_err() {
            return refused("the agent's answer is not UTF-8");
        }
        let is_rpc = self.side.is_rpc;
        if is_rpc && !answers_call(&json, self.side.rpc_id.as_deref()) {
            return refused("the agent's answer is one to another call, by its id or jsonrpc");
        }
        match Document::parse(json, DocumentForm::Answer { is_rpc }) {
            Some(document) if !document.is_broken() => Ok(document),
            _ => refused("the agent's answer looks like JSON and is none, or nests too deeply"),
        }
    }

    /// Checks the head of an answer.
    ///
    /// # Errors
    /// The reason in words: its charset is none that guards read, or it is a stream where guards are asked about
    /// answers.
    pub(crate) fn refuse_by_head(
        &self,
        head: &ResponseHeader,
        is_stream: bool,
    ) -> Result<(), &'static str> {
        let phase = match is_stream {
            true => GuardPhase::Event,
            false => GuardPhase::Response,
        };
        if self.is_enforced(phase) && !names_utf8(head) {
            return Err("the agent's answer has another charset than UTF-8");
        }
        let only_answers =
            |guard: &Arc<Guard>| guard.is_enforced(GuardPhase::Response) && !guard.covers_events();
        if is_stream && !self.streams && self.guards.iter().any(only_answers) {
            return Err("the agent answered with a stream, of which a guard would not be asked");
        }
        Ok(())
    }
}

// The facts of a call that questions to guards name.

/// Longest id of a task, a context or a run that questions name.
const ID_MAX: usize = 512;

/// The facts of a call, the same in all phases.
#[derive(Serialize)]
pub(crate) struct CallFacts {
    /// `X-Request-Id`.
    pub(crate) request_id: String,
    /// The method as its caller spells it.
    pub(crate) method: String,
    /// The caller.
    pub(crate) caller: Party,
    /// The account of the caller: its questions take a share of the guard's places.
    #[serde(skip)]
    pub(crate) account: Account,
    /// The target.
    pub(crate) target: Party,
    /// The rule that permits the call.
    pub(crate) rule: &'static str,
    /// The trace that the call is part of, for [`CallFacts::run_id`].
    #[serde(skip)]
    pub(crate) trace: Option<String>,
    /// `run_id` in `metadata`.
    #[serde(skip)]
    pub(crate) run: OnceLock<String>,
}

/// The caller or the target of a call.
#[derive(Serialize)]
pub(crate) struct Party {
    /// Its name in records.
    pub(crate) id: String,
    /// Its org.
    pub(crate) org: Option<String>,
    /// The kind of a caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
}

/// The members of a message, a task or an event with names, and those that hold one of these.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NamedMembers<'a> {
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    task_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    context_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    task: Option<Box<NamedMembers<'a>>>,
    message: Option<Box<NamedMembers<'a>>>,
    status_update: Option<Box<NamedMembers<'a>>>,
    artifact_update: Option<Box<NamedMembers<'a>>>,
}

impl CallFacts {
    /// Returns the run of the call: `metadata.run_id` of its message, or the trace that it is part of.
    fn run_id(&self) -> Option<&str> {
        self.run.get().or(self.trace.as_ref()).map(String::as_str)
    }

    /// Records the run that a message names.
    fn record_run(&self, document: &Document) {
        let beside = document.metadata();
        let own = || {
            let named = serde_json::from_slice::<NamedMembers<'_>>(document.payload());
            Some(named.ok()?.metadata?.get().as_bytes())
        };
        let run = beside.and_then(read_run).or_else(|| read_run(own()?));
        if let Some(run) = run {
            let _ = self.run.set(run);
        }
    }

    /// Returns the task and the context that a document names.
    fn read_names(document: &Document) -> (Option<String>, Option<String>) {
        let named = serde_json::from_slice::<NamedMembers<'_>>(document.payload());
        let Ok(named) = named else {
            return (None, None);
        };
        let is_named = named.task_id.is_some() || named.context_id.is_some();
        let inner = [
            named.task,
            named.status_update,
            named.artifact_update,
            named.message,
        ];
        let inner = inner.into_iter().flatten().next();
        let (id, task, context) = match inner.filter(|_| !is_named) {
            Some(inner) => (inner.id, inner.task_id, inner.context_id),
            None => (named.id, named.task_id, named.context_id),
        };
        let short = |id: Cow<'_, str>| (id.len() <= ID_MAX).then(|| id.into_owned());
        (task.or(id).and_then(short), context.and_then(short))
    }
}

fn read_run(metadata: &[u8]) -> Option<String> {
    let metadata = serde_json::from_slice::<Value>(metadata).ok()?;
    let run = metadata.get("run_id")?.as_str()?;
    (!run.is_empty() && run.len() <= ID_MAX).then(|| run.to_owned())
}

/// Returns the trace of a `traceparent` field.
pub(crate) fn parse_trace(traceparent: &str) -> Option<String> {
    let id = traceparent.split('-').nth(1)?;
    let hex = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    hex.then(|| id.to_owned())
}

// The built-in guard of regular expressions. It looks at all strings that a sender chooses, `metadata` and names of
// members that the protocol does not have included; not at identifiers, words of the protocol and encoded bytes that
// have the shape of such.

/// Why the patterns do not judge a document.
const UNREADABLE: &str = "cannot read it, or what it would be with masks";

/// The patterns of one guard.
struct Patterns(Vec<Pattern>);

#[derive(Clone)]
struct Pattern {
    name: String,
    regex: Regex,
    action: PatternAction,
}

impl Patterns {
    /// Compiles the patterns of a guard. They were checked with the configuration.
    fn new(guard: &Settings) -> Self {
        let patterns = guard.patterns.iter().filter_map(|pattern| {
            Some(Pattern {
                name: pattern.name.clone(),
                regex: pattern.compile().ok()?,
                action: pattern.action,
            })
        });
        Self(patterns.collect())
    }

    /// Judges a document, and masks what is to be masked in it.
    async fn judge_document(&self, document: &mut Document) -> Judgement {
        let root = document.root();
        let matched = if offload::is_long(document.as_json().len()) {
            let (patterns, json) = (self.0.clone(), document.as_json().clone());
            Box::pin(offload::run(move || match_all(&patterns, &json, root))).await
        } else {
            match_all(&self.0, document.as_json(), root)
        };
        match matched {
            Ok(None) => Judgement::Pass,
            Ok(Some(masked)) => match document.replace_json(masked) {
                true => Judgement::Replaced,
                false => Judgement::Unfit(GuardVerdict::Invalid, UNREADABLE),
            },
            Err(judged) => judged,
        }
    }
}

/// Returns the text with masks, if it gets any; or the judgement that it does not pass.
fn match_all(patterns: &[Pattern], json: &[u8], root: Root) -> Result<Option<Vec<u8>>, Judgement> {
    let mut rejected = None;
    let mut masked = Vec::new();
    let walked = walk_strings(json, root, |found| {
        let mut text = found.text;
        let mut changed = false;
        for pattern in patterns {
            if !pattern.regex.is_match(&text) {
                continue;
            }
            match pattern.action {
                PatternAction::Reject => {
                    rejected.get_or_insert(&pattern.name);
                    return;
                }
                PatternAction::Mask => {
                    let mask = format!("[{}]", pattern.name);
                    let said = pattern.regex.replace_all(&text, NoExpand(&mask));
                    text = Cow::Owned(said.into_owned());
                    changed = true;
                }
            }
        }
        if changed {
            masked.push((found.range, text.into_owned()));
        }
    });
    if let Some(name) = rejected {
        return Err(Judgement::Reject(format!("pattern `{name}` matches")));
    }
    match (walked, std::str::from_utf8(json)) {
        (Ok(()), _) if masked.is_empty() => Ok(None),
        (Ok(()), Ok(text)) => Ok(Some(with_strings(text, masked))),
        _ => Err(Judgement::Unfit(GuardVerdict::Invalid, UNREADABLE)),
    }
}

#[cfg(test)]
mod pattern_tests {
    use super::*;

    fn patterns(each: &[(&str, &str, PatternAction)]) -> Vec<Pattern> {
        let each = each.iter().map(|(name, regex, action)| Pattern {
            name: (*name).to_owned(),
            regex: Regex::new(regex).unwrap(),
            action: *action,
        });
        each.collect()
    }

    #[test]
    fn texts_names_and_metadata_are_matched_and_identifiers_are_not() {
        let both = patterns(&[
            ("card", "[0-9]{4}-[0-9]{4}", PatternAction::Reject),
            ("email", "[a-z]+@[a-z]+", PatternAction::Mask),
        ]);
        let json = |json: &str| match match_all(&both, json.as_bytes(), Root::Typed) {
            Ok(None) => "nothing".to_owned(),
            Ok(Some(json)) => String::from_utf8(json).unwrap(),
            Err(Judgement::Reject(why)) => format!("rejected: {why}"),
            Err(_) => "broken".to_owned(),
        };
        for rejected in [
            r#"{"parts":[{"text":"1234-5678"}]}"#,
            r#"{"parts":[{"text":"1234\u002d5678"}]}"#,
            r#"{"parts":[{"data":{"1234-5678":1}}]}"#,
            r#"{"params":{"metadata":{"x":["1234-5678"]}}}"#,
            r#"{"artifacts":[{"description":"1234-5678"}]}"#,
            r#"{"parts":[{"text":"a@b"},{"text":"1234-5678"}]}"#,
            r#"{"error":{"code":1,"data":{"id":"1234-5678"}}}"#,
            r#"{"kind":"1234-5678"}"#,
            r#"{"status":{"timestamp":"1234-5678"}}"#,
            r#"{"parts":[{"type":"1234-5678"}]}"#,
            r#"{"extensions":["1234-5678"]}"#,
            r#"{"tenant":"1234-5678"}"#,
            r#"{"1234-5678":1}"#,
        ] {
            assert_eq!(
                json(rejected),
                "rejected: pattern `card` matches",
                "{rejected}"
            );
        }
        let masked = json(r#"{"a":1.0,"parts":[{"text":"to a@b, \"c@d\""},{"data":{"e@f":"g"}}]}"#);
        assert_eq!(
            masked,
            r#"{"a":1.0,"parts":[{"text":"to [email], \"[email]\""},{"data":{"[email]":"g"}}]}"#
        );
        for passed in [
            r#"{"messageId":"1234-5678","parts":[{"raw":"AAAA"}]}"#,
            r#"{"parts":[{"text":"hello"}]}"#,
        ] {
            assert_eq!(json(passed), "nothing", "{passed}");
        }
        assert_eq!(json("{"), "broken");
    }
}
