//! What a decision was made by: the facts that rooms tell whoever listens, and the explanation that is put
//! together of them (contract §9, `GET /explain`). Pure: no I/O.
//!
//! There is one procedure that admits. It tells its facts to a [`Witness`]; a message brings `()`, which hears
//! nothing and costs nothing, an explanation brings [`Facts`].

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

use crate::rejection::Rejection;
use crate::store::Unavailable;

/// Where a fact came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The configuration in force.
    Config,
    /// A name server, just now.
    Dns,
    /// This process: what it remembers, or counts.
    Memory,
    /// The request itself, here the question.
    Question,
    /// The shared state.
    Redis,
    /// The database.
    Sql,
}

impl Source {
    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Dns => "dns",
            Self::Memory => "memory",
            Self::Question => "question",
            Self::Redis => "redis",
            Self::Sql => "sql",
        }
    }
}

/// Which check a fact belongs to, in the order of the checks. A closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Whether this process takes anything new.
    Process,
    /// A place among the exchanges (`server.max_exchanges`).
    Places,
    /// The form of the target's id.
    Target,
    /// Whom the caller's credential proves.
    Caller,
    /// How often it may ask.
    Rate,
    /// Where a workspace is in the hierarchy: the caller, then the target.
    CallerPlace,
    /// The target's.
    TargetPlace,
    /// An explicit grant, where the places do not say yes.
    Grant,
    /// What the caller is to the target.
    Rule,
    /// Where the target is in its life.
    State,
    /// Whether it lives.
    Liveness,
    /// Where its agent listens.
    Url,
    /// What the gateway shows the agent: credential, certificates.
    Upstream,
    /// How the agent is called.
    Call,
    /// The inbox of a target that polls.
    Inbox,
    /// Calls in progress at the target.
    Slots,
    /// The address that is dialled.
    Address,
    /// Clocks and bounds of the exchange.
    Limits,
}

impl Check {
    /// The word on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Places => "places",
            Self::Target => "target",
            Self::Caller => "caller",
            Self::Rate => "rate",
            Self::CallerPlace => "caller_place",
            Self::TargetPlace => "target_place",
            Self::Grant => "grant",
            Self::Rule => "rule",
            Self::State => "state",
            Self::Liveness => "liveness",
            Self::Url => "url",
            Self::Upstream => "upstream",
            Self::Call => "call",
            Self::Inbox => "inbox",
            Self::Slots => "slots",
            Self::Address => "address",
            Self::Limits => "limits",
        }
    }
}

/// Something that a decision was made by.
#[derive(Clone, Debug)]
pub struct Fact {
    /// Which check it belongs to.
    pub check: Check,
    /// A JSON object. Never a secret.
    pub value: Value,
    /// Where it came from.
    pub source: Source,
    /// How long ago it was read there.
    pub age: Duration,
}

impl Fact {
    /// One that was read just now.
    pub fn new(check: Check, source: Source, value: Value) -> Self {
        Self {
            check,
            value,
            source,
            age: Duration::ZERO,
        }
    }

    /// The same, read `age` ago.
    #[must_use]
    pub fn aged(self, age: Duration) -> Self {
        Self { age, ..self }
    }
}

/// Who listens while something is decided.
pub trait Witness: Send {
    /// Hears a fact, which is made only where somebody listens.
    fn hear(&mut self, fact: impl FnOnce() -> Fact);
}

/// A message: nobody listens.
impl Witness for () {
    #[inline]
    fn hear(&mut self, _: impl FnOnce() -> Fact) {}
}

/// An explanation in the making: what was heard, in order.
#[derive(Debug, Default)]
pub struct Facts(Vec<Fact>);

impl Witness for Facts {
    fn hear(&mut self, fact: impl FnOnce() -> Fact) {
        self.0.push(fact());
    }
}

/// One check of an explanation.
#[derive(Clone, Debug)]
pub struct Step {
    /// What was known.
    pub fact: Fact,
    /// Whether a message would pass it.
    pub ok: bool,
}

impl Step {
    fn json(&self) -> Value {
        json!({
            "step": self.fact.check.word(),
            "ok": self.ok,
            "fact": self.fact.value,
            "source": self.fact.source.word(),
            "age_ms": u64::try_from(self.fact.age.as_millis()).unwrap_or(u64::MAX),
        })
    }
}

/// The way of a message, as far as it would come.
#[derive(Debug, Default)]
pub struct Explanation {
    steps: Vec<Step>,
    refusal: Option<Rejection>,
}

impl Explanation {
    /// Takes up what was heard while a part of the way was decided, and whether it was passed. `check`: what
    /// stands for a refusal of which nothing was heard.
    ///
    /// # Errors
    /// [`Refused`], when it was not passed: nothing behind it would be asked.
    pub fn decided<T>(
        &mut self,
        check: Check,
        facts: Facts,
        decided: Result<T, Rejection>,
    ) -> Result<T, Refused> {
        let passed = facts.0.into_iter().map(|fact| Step { fact, ok: true });
        let heard = self.steps.len();
        self.steps.extend(passed);
        decided.map_err(|rejection| {
            let last = self.steps[heard..]
                .last()
                .filter(|step| step.fact.check == check);
            if last.is_none() {
                let fact = Fact::new(check, source_of(&rejection), json!({}));
                self.steps.push(Step { fact, ok: true });
            }
            if let Some(step) = self.steps.last_mut() {
                step.ok = false;
                step.fact.because(&rejection);
            }
            self.refusal = Some(rejection);
            Refused
        })
    }

    /// Whether a message would be sent.
    pub fn admitted(&self) -> bool {
        self.refusal.is_none()
    }

    /// The body of the answer, about `caller` and `target` as they were asked for.
    pub fn json(&self, caller: &str, target: &str) -> Value {
        let refusal = self.refusal.as_ref();
        let mut facts = Map::new();
        for (name, value) in refusal.iter().flat_map(|refusal| refusal.facts()) {
            facts.insert(name.into(), value.into());
        }
        json!({
            "caller": caller,
            "target": target,
            "admitted": self.admitted(),
            "reason": refusal.map(|refusal| refusal.reason.word()),
            "status": refusal.map(|refusal| refusal.reason.status()),
            "message": refusal.map(|refusal| refusal.message.as_ref()),
            "retry_after": refusal.and_then(|refusal| refusal.retry_after),
            "facts": facts,
            "steps": self.steps.iter().map(Step::json).collect::<Vec<_>>(),
        })
    }
}

impl Fact {
    /// Says beside the fact why the check was not passed: what a caller is not told.
    fn because(&mut self, rejection: &Rejection) {
        let (Some(cause), Value::Object(members)) = (&rejection.cause, &mut self.value) else {
            return;
        };
        // Its own sentence and no driver's below it, which could name a store's address.
        members.insert("because".into(), cause.to_string().into());
    }
}

fn source_of(rejection: &Rejection) -> Source {
    let cause = rejection.cause.as_deref();
    let store = cause.and_then(|cause| cause.downcast_ref::<Unavailable>());
    match store.map(|unavailable| unavailable.store) {
        Some("sql") => Source::Sql,
        Some(_) => Source::Redis,
        None => Source::Memory,
    }
}

/// The way ends here; the explanation says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// What an operator asks: would a message of this caller reach this target?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// As records name a caller.
    pub caller: String,
    /// A workspace id.
    pub target: String,
    /// The org that a canvas token says.
    pub org: Option<String>,
    /// The workspaces that a canvas token lists.
    pub workspaces: Option<String>,
}

/// Who answers it: the data plane, for the listener that is asked.
///
/// Its errors: `invalid_params` for what is no question, `overloaded` for too many at once.
pub type Explain =
    Arc<dyn Fn(Question) -> BoxFuture<'static, Result<Explanation, Rejection>> + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rejection::Reason;

    #[test]
    fn nothing_is_made_for_a_message() {
        ().hear(|| panic!("somebody listens"));
    }

    #[test]
    fn the_last_check_that_was_heard_of_is_the_one_that_was_not_passed() {
        let mut explanation = Explanation::default();
        let mut facts = Facts::default();
        facts.hear(|| Fact::new(Check::State, Source::Sql, json!({"status": "online"})));
        facts.hear(|| Fact::new(Check::Liveness, Source::Redis, json!({"beats": false})));
        let refusal = Rejection::new(Reason::WorkspaceOffline, "no heartbeat").fact("last_seen", 1);
        let decided = explanation.decided::<()>(Check::Liveness, facts, Err(refusal));
        assert_eq!(decided, Err(Refused));
        let json = explanation.json("a", "b");
        assert_eq!(json["admitted"], false);
        assert_eq!(json["reason"], "workspace_offline");
        assert_eq!(json["status"], 503);
        assert_eq!(json["facts"]["last_seen"], "1");
        let steps = json["steps"].as_array().unwrap();
        let told: Vec<_> = steps
            .iter()
            .map(|step| (&step["step"], &step["ok"]))
            .collect();
        assert_eq!(
            told,
            [
                (&json!("state"), &json!(true)),
                (&json!("liveness"), &json!(false))
            ]
        );
    }

    #[test]
    fn a_store_that_is_away_is_the_source_of_what_is_not_known() {
        for (store, source) in [("sql", "sql"), ("shared", "redis")] {
            let away = Unavailable {
                store,
                operation: "find",
                source: Arc::new(std::io::Error::other("postgres://u:secret@h/d")),
            };
            let mut explanation = Explanation::default();
            let decided: Result<(), Rejection> = Err(away.into());
            assert!(
                explanation
                    .decided(Check::State, Facts::default(), decided)
                    .is_err()
            );
            let json = explanation.json("a", "b");
            assert_eq!(json["steps"][0]["source"], source);
            assert_eq!(json["reason"], "store_unavailable");
            assert!(!json.to_string().contains("secret"), "{json}");
        }
    }
}
