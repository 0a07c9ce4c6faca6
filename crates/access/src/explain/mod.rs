//! Explanations of admission decisions: the facts reported by the checks, and the explanation built
//! of them (`docs/reference/admin-api.md`). No I/O.
//!
//! Messages and explanations use the same admission code. It reports facts to a [`Witness`]: `()`
//! for a message, which ignores them at no cost, or [`Facts`] for an explanation.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

use kernel::closed_set::words;
use kernel::rejection::{AtStage as _, Rejection};
use kernel::stage::Stage;
use stores::store::Unavailable;

words! {
    /// The source of a fact.
    Source {
        /// The configuration in force.
        Config => "config",
        /// A name server, queried for this explanation.
        Dns => "dns",
        /// This process: its caches and counters.
        Memory => "memory",
        /// The request itself, or the query for an explanation.
        Question => "question",
        /// The shared state.
        Redis => "redis",
        /// The database.
        Sql => "sql",
    }
}

/// A fact on which a decision was based.
#[derive(Clone, Debug)]
pub struct Fact {
    /// The check that reported it.
    pub check: Stage,
    /// A JSON object. Never a secret.
    pub value: Value,
    /// The source.
    pub source: Source,
    /// Time since it was read from the source.
    pub age: Duration,
}

impl Fact {
    /// Creates a fact that was read just now.
    pub fn new(check: Stage, source: Source, value: Value) -> Self {
        Self {
            check,
            value,
            source,
            age: Duration::ZERO,
        }
    }

    /// Returns the fact with the given age.
    #[must_use]
    pub fn with_age(self, age: Duration) -> Self {
        Self { age, ..self }
    }
}

/// A receiver of the facts of a decision.
pub trait Witness: Send {
    /// Receives a fact. Implementations that ignore facts do not call the closure.
    fn record<F: Into<Option<Fact>>>(&mut self, fact: impl FnOnce() -> F);
}

/// For messages: ignores all facts.
impl Witness for () {
    #[inline]
    fn record<F: Into<Option<Fact>>>(&mut self, _: impl FnOnce() -> F) {}
}

/// The facts reported so far, in order.
#[derive(Debug, Default)]
pub struct Facts(Vec<Fact>);

impl Facts {
    /// Adds a member to the fact that was reported last.
    pub fn amend_last(&mut self, name: &str, value: Value) {
        if let Some(Value::Object(members)) = self.0.last_mut().map(|fact| &mut fact.value) {
            members.insert(name.to_owned(), value);
        }
    }
}

impl Witness for Facts {
    fn record<F: Into<Option<Fact>>>(&mut self, fact: impl FnOnce() -> F) {
        self.0.extend(fact().into());
    }
}

/// The way of a decision through the stages: those of a message, or of an explanation, which shows them.
pub trait Trail: Send {
    /// The facts of a stage.
    type Facts: Witness + Default;
    /// The error with which a decision ends.
    type Stop;

    /// Passes a stage.
    ///
    /// # Errors
    /// The stage refuses.
    fn pass<T>(
        &mut self,
        stage: Stage,
        facts: Self::Facts,
        decided: Result<T, Rejection>,
    ) -> Result<T, Self::Stop>;

    /// Passes a stage that has at most one fact.
    ///
    /// # Errors
    /// As [`Trail::pass`].
    fn judge<T>(
        &mut self,
        stage: Stage,
        fact: impl FnOnce() -> Option<Fact>,
        decided: Result<T, Rejection>,
    ) -> Result<T, Self::Stop> {
        let mut facts = Self::Facts::default();
        facts.record(fact);
        self.pass(stage, facts, decided)
    }
}

/// The way of a message. It keeps no fact, at no cost.
pub struct Live;

impl Trail for Live {
    type Facts = ();
    type Stop = Rejection;

    #[inline]
    fn pass<T>(
        &mut self,
        stage: Stage,
        (): (),
        decided: Result<T, Rejection>,
    ) -> Result<T, Rejection> {
        decided.at(stage)
    }
}

impl Trail for Explanation {
    type Facts = Facts;
    type Stop = CheckFailed;

    fn pass<T>(
        &mut self,
        stage: Stage,
        facts: Facts,
        decided: Result<T, Rejection>,
    ) -> Result<T, CheckFailed> {
        self.record_check(stage, facts, decided)
    }
}

/// The checks of a message, up to the first that fails.
#[derive(Debug, Default)]
pub struct Explanation {
    /// All but the last are passed; so is the last without a refusal.
    steps: Vec<Fact>,
    refusal: Option<Rejection>,
}

impl Explanation {
    /// Adds the facts of a part of the decision, and its result. `check` is the step of a
    /// rejection without a reported fact.
    ///
    /// # Errors
    /// [`CheckFailed`] for a rejection: later checks are not made.
    pub fn record_check<T>(
        &mut self,
        check: Stage,
        facts: Facts,
        decided: Result<T, Rejection>,
    ) -> Result<T, CheckFailed> {
        let heard = self.steps.len();
        self.steps.extend(facts.0);
        decided.map_err(|rejection| {
            if self.steps[heard..]
                .last()
                .is_none_or(|last| last.check != check)
            {
                let fact = Fact::new(check, rejection_source(&rejection), json!({}));
                self.steps.push(fact);
            }
            if let Some(last) = self.steps.last_mut() {
                last.add_cause(&rejection);
            }
            self.refusal = Some(rejection);
            CheckFailed
        })
    }

    /// True if a message would be sent.
    pub fn is_admitted(&self) -> bool {
        self.refusal.is_none()
    }

    /// Returns the body of the response; `caller` and `target` are repeated as they were requested.
    pub fn to_json(&self, caller: &str, target: &str) -> Value {
        let refusal = self.refusal.as_ref();
        let facts = refusal.iter().flat_map(|refusal| refusal.facts());
        let facts = facts.map(|(name, value)| (name.into(), value.into()));
        let refused = refusal.map(|_| self.steps.len().saturating_sub(1));
        let steps = self.steps.iter().enumerate();
        let steps = steps.map(|(n, fact)| fact.to_step(refused != Some(n)));
        json!({
            "caller": caller,
            "target": target,
            "admitted": self.is_admitted(),
            "reason": refusal.map(|refusal| refusal.reason.as_str()),
            "status": refusal.map(|refusal| refusal.reason.status()),
            "message": refusal.map(|refusal| refusal.message.as_ref()),
            "retry_after": refusal.and_then(|refusal| refusal.retry_after),
            "facts": facts.collect::<Map<_, _>>(),
            "steps": steps.collect::<Vec<_>>(),
        })
    }
}

impl Fact {
    /// Returns the check as JSON; `ok` if a message would pass it.
    fn to_step(&self, ok: bool) -> Value {
        json!({
            "step": self.check.as_str(),
            "ok": ok,
            "fact": self.value,
            "source": self.source.as_str(),
            "age_ms": u64::try_from(self.age.as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Adds the cause of a rejection to the fact. Callers do not get this cause.
    fn add_cause(&mut self, rejection: &Rejection) {
        let (Some(cause), Value::Object(members)) = (&rejection.cause, &mut self.value) else {
            return;
        };
        // Only the outermost message: a driver's message could contain a store's address.
        members.insert("because".into(), cause.to_string().into());
    }
}

fn rejection_source(rejection: &Rejection) -> Source {
    let cause = rejection.cause.as_deref();
    let store = cause.and_then(|cause| cause.downcast_ref::<Unavailable>());
    match store.map(|unavailable| unavailable.store) {
        Some("sql") => Source::Sql,
        Some(_) => Source::Redis,
        None => Source::Memory,
    }
}

/// A check fails, so the message is rejected; the explanation has the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckFailed;

/// A query of an operator: would a message of this caller reach this target?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExplainQuery {
    /// The caller, named as in audit records.
    pub caller: String,
    /// The target, a workspace id.
    pub target: String,
    /// The org of a canvas token.
    pub org: Option<String>,
    /// The workspaces in a canvas token.
    pub workspaces: Option<String>,
}

/// The data plane's function that answers a [`ExplainQuery`] of the admin listener.
///
/// Its errors: `invalid_params` for a malformed query, `overloaded` for too many queries at
/// once.
pub type ExplainFn =
    Arc<dyn Fn(ExplainQuery) -> BoxFuture<'static, Result<Explanation, Rejection>> + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::rejection::Reason;

    #[test]
    fn nothing_is_made_for_a_message() {
        ().record(|| -> Fact { panic!("somebody listens") });
    }

    #[test]
    fn the_last_check_that_was_heard_of_is_the_one_that_was_not_passed() {
        let mut explanation = Explanation::default();
        let mut facts = Facts::default();
        facts.record(|| Fact::new(Stage::State, Source::Sql, json!({"status": "online"})));
        facts.record(|| Fact::new(Stage::Liveness, Source::Redis, json!({"beats": false})));
        let refusal =
            Rejection::new(Reason::WorkspaceOffline, "no heartbeat").with_fact("last_seen", 1);
        let decided = explanation.record_check::<()>(Stage::Liveness, facts, Err(refusal));
        assert_eq!(decided, Err(CheckFailed));
        let json = explanation.to_json("a", "b");
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
                    .record_check(Stage::State, Facts::default(), decided)
                    .is_err()
            );
            let json = explanation.to_json("a", "b");
            assert_eq!(json["steps"][0]["source"], source);
            assert_eq!(json["reason"], "store_unavailable");
            assert!(!json.to_string().contains("secret"), "{json}");
        }
    }
}
