//! Predicts the handling of a message (`GET /explain`; `docs/reference/admin-api.md`). Runs the stages of a message in
//! their order (but for caps, which come before the instance), with the same functions and caches, and records the
//! facts behind each decision ([`Facts`]). Sends nothing.
//!
//! Facts that are read enter the caches, as for a message. There is no other side effect: no slot, rate or
//! allowance is taken, no lapse is noted, no record is written, no card is fetched.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use crate::policy::{check_access, permit_target};
use crate::services::Context;
use crate::upstream_request::{
    agent_side, bindings_label, correct_side, inbox_side, serves_http_json,
};
use a2a::Generation;
use a2a::bridge::{Bridge, FileBytes, Side};
use a2a::card::{AgentSides, Binding};
use a2a::method::Method;
use access::caps::{self, CapState, Caps};
use access::explain::Witness as _;
use access::explain::{
    CheckFailed, ExplainFn, ExplainQuery, Explanation, Fact, Facts, Source, Trail as _,
};
use access::hierarchy::Permit;
use access::identity::{NamedCaller, Proof, Role};
use directory::{
    Agent, AgentOptions, CallKind, CardSource, Destination, Finding, LookupFor, Preference,
    choose_instance,
};
use kernel::config::Bridging;
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::rejection::{Reason, Rejection};
use kernel::shares::Account;
use kernel::stage::Stage;
use kernel::time::to_millis;

/// Maximum concurrent requests: each may wait for both stores and a name server.
const AT_ONCE: usize = 8;

/// The forms of calls.
const SIDES: [Side; 4] = [
    Side::json_rpc(Generation::V0),
    Side::http_json(Generation::V0),
    Side::json_rpc(Generation::V1),
    Side::http_json(Generation::V1),
];

/// Answers `GET /explain`.
pub struct Explainer {
    context: Arc<Context>,
    places: Semaphore,
}

impl Explainer {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            places: Semaphore::new(AT_ONCE),
        }
    }

    /// Returns it as a function for the admin listener.
    pub fn into_fn(self) -> ExplainFn {
        let explainer = Arc::new(self);
        Arc::new(move |question| {
            let explainer = Arc::clone(&explainer);
            Box::pin(async move { explainer.explain(&question).await })
        })
    }

    /// Answers one query.
    ///
    /// # Errors
    /// `invalid_params` for an invalid query, `overloaded` for too many concurrent ones.
    async fn explain(&self, question: &ExplainQuery) -> Result<Explanation, Rejection> {
        let named = NamedCaller::parse(question)?;
        let place = self.places.try_acquire();
        let _place = place.map_err(|_| {
            let message = "as many explanations as may be are in progress; ask again shortly";
            Rejection::new(Reason::Overloaded, message).with_retry_after(Duration::from_secs(1))
        })?;
        let mut explanation = Explanation::default();
        let way = self.explain_message(named, &question.target, &mut explanation);
        // The explanation records the check at which it ended.
        let _ = way.await;
        Ok(explanation)
    }

    /// Runs the steps of a message ([`plan`](crate::plan)), without those that depend on the request.
    async fn explain_message(
        &self,
        named: NamedCaller,
        target: &str,
        explanation: &mut Explanation,
    ) -> Result<(), CheckFailed> {
        let (proof, target) = self.check_caller(named, target, explanation).await?;
        let permit = self.check_access(&proof, &target, explanation).await?;
        let mut facts = Facts::default();
        let gateway = &self.context.gateway;
        let destination = match gateway.resolution.explain(&permit, &mut facts).await {
            Ok(destination) => explanation.record_check(Stage::State, facts, Ok(destination))?,
            Err(mut why) => {
                self.explain_waker(&permit, &mut facts).await;
                let stage = why.stage.take().unwrap_or(Stage::State);
                explanation.record_check(stage, facts, Err(why))?
            }
        };
        if Caps::are_configured(&gateway.config()) {
            self.explain_caps(&proof, &permit, explanation).await?;
        }
        let org = destination.options().org.as_deref();
        let target = (permit.target(), org);
        let guards = self.context.guards.explain(Method::SendMessage, target);
        match &destination {
            Destination::Inbox(options) => {
                let mut facts = Facts::default();
                let source = gateway.resolution.card_source(&permit).await.ok();
                let spoken = self.explain_generation(source.as_deref(), options);
                let (generation, by, _) = spoken.await;
                let bridge = inbox_bridge(options, by);
                let call = json!({"into": "the inbox", "a2a": generation.map(generation_word), "a2a_by": by,
                    "bridge": bridge});
                facts.record(|| Fact::new(Stage::Call, Source::Memory, call));
                let inbox = &gateway.delivery.inbox;
                let sender = (permit.target(), proof.account);
                let looked = inbox.check_room(sender, &mut facts).await;
                explanation.record_check(Stage::Inbox, facts, looked)?;
                self.explain_limits(None, guards, explanation)
            }
            Destination::Agent(agent) => {
                let agent = self.choose_instance(agent, proof.account, explanation)?;
                self.explain_address(&permit, proof.account, &agent, explanation)
                    .await?;
                self.explain_limits(Some(&agent), guards, explanation)
            }
        }
    }

    /// Chooses the instance that a call without a task and a context gets, if the agent has several.
    fn choose_instance(
        &self,
        agent: &Arc<Agent>,
        account: Account,
        explanation: &mut Explanation,
    ) -> Result<Arc<Agent>, CheckFailed> {
        if agent.instances.is_empty() {
            return Ok(Arc::clone(agent));
        }
        let mut facts = Facts::default();
        let chosen = choose_instance(&agent.instances, account, &Preference::default(), &[]);
        facts.record(|| {
            let instances = agent.instances.iter().map(|one| {
                json!({"instance_id": one.agent.instance.as_ref().map(InstanceId::as_str),
                    "draining": one.is_draining, "in_flight": one.agent.slots.in_progress(),
                    "breaker": one.agent.slots.breaker_state(account)})
            });
            let chosen = chosen.as_ref().ok();
            let value = json!({"instances": instances.collect::<Vec<_>>(),
                "chosen": chosen.and_then(|(agent, _)| agent.instance.as_ref()).map(InstanceId::as_str),
                "by": "the less busy of two; a call about a task or a context goes to the instance that has it",
                "of": "this replica"});
            Fact::new(Stage::Instance, Source::Memory, value)
        });
        let chosen = chosen.map(|(agent, _)| Arc::clone(agent));
        explanation.record_check(Stage::Instance, facts, chosen)
    }

    /// Checks whether the gateway accepts requests, of which caller, and at which rate.
    async fn check_caller(
        &self,
        named: NamedCaller,
        target: &str,
        explanation: &mut Explanation,
    ) -> Result<(Proof, WorkspaceId), CheckFailed> {
        let gateway = &self.context.gateway;
        let mut facts = Facts::default();
        facts.record(|| {
            let value = json!({"draining": gateway.is_draining()});
            Fact::new(Stage::Process, Source::Memory, value)
        });
        explanation.record_check(Stage::Process, facts, self.context.relay.load.check_open())?;
        let mut facts = Facts::default();
        let place = self.context.relay.load.check_slot(&mut facts);
        explanation.record_check(Stage::Places, facts, place)?;
        let mut facts = Facts::default();
        facts.record(|| Fact::new(Stage::Target, Source::Question, json!({"id": target})));
        let target = WorkspaceId::parse(target).map_err(Rejection::from);
        let target = explanation.record_check(Stage::Target, facts, target)?;
        let mut facts = Facts::default();
        let workspace = named.workspace().cloned();
        let named = gateway.identity.prove_named_caller(named, &mut facts).await;
        if let (Err(_), Some(caller)) = (&named, &workspace) {
            // A caller without a credential may not exist.
            let mut place = Facts::default();
            gateway.hierarchy.report_caller(caller, &mut place).await;
            explanation.record_check(Stage::CallerPlace, place, Ok(()))?;
        }
        let (proof, credentials) = explanation.record_check(Stage::Caller, facts, named)?;
        let mut facts = Facts::default();
        let may_ask = credentials.check_rates(&gateway.rates, &mut facts);
        explanation.record_check(Stage::Rate, facts, may_ask)?;
        Ok((proof, target))
    }

    /// Checks the role of the caller, and whether it may reach the target.
    async fn check_access(
        &self,
        proof: &Proof,
        target: &WorkspaceId,
        explanation: &mut Explanation,
    ) -> Result<Permit, CheckFailed> {
        let gateway = &self.context.gateway;
        if let Err(refusal) = proof.require_at_least(Role::for_call(&http::Method::POST)) {
            let value = json!({"role": proof.role().map(Role::as_str)});
            let fact = Fact::new(Stage::Role, Source::Memory, value);
            explanation.judge(Stage::Role, || Some(fact), Err(refusal))?;
        }
        let permit = permit_target(gateway, proof, target, explanation).await?;
        check_access(gateway, (proof, &permit), explanation).await?;
        Ok(permit)
    }

    /// Reports whether a call to a target that is away would wake it, instead of the rejection.
    async fn explain_waker(&self, permit: &Permit, facts: &mut Facts) {
        let waking = &self.context.gateway.directory.waking;
        let Ok(Some(times)) = waking.wake_times(permit.target()).await else {
            return;
        };
        let wake = json!({
            "by": if times.own { "wake of the workspace" } else { "wake.url" },
            "max_wait_ms": to_millis(times.max_wait),
            "cool_down_ms": to_millis(times.cool_down),
        });
        facts.amend_last("wakes", wake);
    }

    /// Explains how the agent is called: its state, its capacity for one more call, and its address.
    async fn explain_address(
        &self,
        permit: &Permit,
        account: Account,
        agent: &Agent,
        explanation: &mut Explanation,
    ) -> Result<(), CheckFailed> {
        let mut facts = Facts::default();
        let path = self.explain_call(permit, agent, &mut facts).await;
        let path = explanation.record_check(Stage::Call, facts, path)?;
        let mut facts = Facts::default();
        let slot = agent.slots.check(account, CallKind::Unary, &mut facts);
        explanation.record_check(Stage::Slots, facts, slot)?;
        let endpoint = match path {
            Some(path) => agent.endpoint.with_path(path),
            None => agent.endpoint.clone(),
        };
        let mut facts = Facts::default();
        let addresses = &self.context.gateway.directory.addresses;
        let (decision, asker) = (&agent.address_decision, LookupFor::for_call(account));
        let address = addresses.agent_address(decision, &endpoint, asker, &mut facts);
        let address = address.await;
        explanation.record_check(Stage::Address, facts, address)?;
        Ok(())
    }

    /// Returns the path from the cached card, for an agent registered by the location of its card. `None` if the path
    /// is that of the registered URL, or if the card would have to be fetched.
    async fn explain_call(
        &self,
        permit: &Permit,
        agent: &Agent,
        facts: &mut Facts,
    ) -> Result<Option<String>, Rejection> {
        let resolution = &self.context.gateway.resolution;
        let source = resolution.card_source(permit).await?;
        let by_card = self.explain_generation(Some(&source), &agent.options).await;
        let shown = resolution.learnt.find(&source, Method::SendMessage).await;
        let bridge = self.explain_bridge(&source, &agent.options, by_card.1, shown);
        let bridge = bridge.await;
        let counts = shown.filter(|_| agent.options.bridge == Bridging::Auto);
        let by_answers = counts.filter(|shown| shown.takes.is_some());
        let by_answers = by_answers.map(|shown| {
            let age = Some(shown.learnt_at.elapsed());
            (shown.takes, "its answers", age)
        });
        let (generation, by, age) = by_answers.unwrap_or(by_card);
        let mut call = json!({"method": "POST", "a2a": generation.map(generation_word), "a2a_by": by, "bridge": bridge});
        if let Some(age) = age {
            call["a2a_ms_ago"] = json!(to_millis(age));
        }
        if !agent.options.path_in_card {
            let by_card = agent.json_rpc.path(generation.unwrap_or_default());
            call["path"] = json!(by_card.unwrap_or(&agent.endpoint.path_and_query));
            call["path_by"] = json!(match by_card {
                Some(_) => "the registered card: the registered url has no path",
                None => "the registered url",
            });
            if let Some(mismatch) = agent.json_rpc.mismatch() {
                call["path_warning"] = json!(mismatch);
            }
            let place = self.explain_place(&source, &mut call).await;
            facts.record(|| Fact::new(Stage::Call, Source::Memory, call));
            return Ok(place.or_else(|| by_card.map(str::to_owned)));
        }
        let cards = &self.context.cards;
        let looked = cards.peek_path(&source, generation.unwrap_or_default());
        let Some((path, age)) = looked.await else {
            call["path"] = Value::Null;
            call["path_by"] = json!("the card at card_url, which would be fetched first");
            facts.record(|| Fact::new(Stage::Call, Source::Memory, call));
            return Ok(None);
        };
        let card = cards.cached(&source).await;
        let is_spoken = card.is_some_and(|card| !card.said.spoken.is_unknown());
        if path.is_err() && agent.options.bridge == Bridging::Auto && is_spoken {
            call["path"] = Value::Null;
            call["path_by"] =
                json!("the HTTP+JSON interface in the card at card_url: calls are translated");
            facts.record(|| Fact::new(Stage::Call, Source::Memory, call).with_age(age));
            return Ok(None);
        }
        call["path"] = json!(path.as_ref().ok());
        call["path_by"] = json!("the card at card_url");
        let place = self.explain_place(&source, &mut call).await;
        facts.record(|| Fact::new(Stage::Call, Source::Memory, call).with_age(age));
        path.map(|path| place.or(Some(path)))
    }

    /// Reports the path to which the agent redirects calls of the one in `call`, and returns it.
    async fn explain_place(&self, source: &CardSource, call: &mut Value) -> Option<String> {
        let learnt = &self.context.gateway.resolution.learnt;
        let from = call["path"].as_str()?.to_owned();
        let place = learnt.find_place(source, &from).await?;
        call["redirected"] = json!({"from": from, "ms_ago": to_millis(place.learnt_at.elapsed())});
        call["path"] = json!(place.path);
        Some(place.path)
    }

    /// Reports which translation a call in each form would have, as far as it is known without asking the target.
    async fn explain_bridge(
        &self,
        source: &CardSource,
        options: &AgentOptions,
        by: &str,
        shown: Option<Finding>,
    ) -> Value {
        let read = match options.has_card {
            false => self.context.cards.cached(source).await,
            true => None,
        };
        let age = read.as_ref().map(|card| card.age());
        let spoken = read
            .as_ref()
            .map_or(&options.spoken, |card| &card.said.spoken);
        let takes = shown.and_then(|shown| shown.takes);
        let calls = SIDES.map(|asked| {
            let rest = asked.binding == Binding::HttpJson;
            let side = agent_side((asked, asked.binding.into()), spoken, options);
            let side = side.map(|by_card| correct_side(asked, by_card, takes, options));
            let answer = match side {
                _ if age.is_none() && !options.has_card => {
                    json!("as its card says, which would be fetched first")
                }
                Err(_) => json!(Reason::VersionNotSupported.as_str()),
                // It has no such routes.
                _ if rest && options.bridge == Bridging::Off && !serves_http_json(spoken) => {
                    json!(Reason::NotFound.as_str())
                }
                Ok(Some(spoke)) => {
                    let differs = spoke.side != asked;
                    let label = differs.then(|| bridge_label(asked, spoke.side));
                    json!(bindings_label((asked, asked.binding.into()), &spoke).or(label))
                }
                Ok(None) => Value::Null,
            };
            (asked, answer)
        });
        let mut fact = bridge_fact(options, spoken, by, calls);
        if let Some(age) = age {
            fact["read_ms_ago"] = json!(to_millis(age));
        }
        if let Some(shown) = shown {
            fact["shown_by_answers"] = json!({"takes": shown.takes.map(generation_word), "ms_ago": to_millis(shown.learnt_at.elapsed())});
        }
        fact
    }

    /// Reports the generation that the target speaks by its card, as far as it is known without asking the target, its
    /// source, and the age of a card that was fetched.
    async fn explain_generation(
        &self,
        source: Option<&CardSource>,
        options: &AgentOptions,
    ) -> (Option<Generation>, &'static str, Option<Duration>) {
        if options.has_card {
            return (Some(options.generation), "its registered card", None);
        }
        let fetched = match source {
            Some(source) => self.context.cards.cached(source).await,
            None => None,
        };
        match fetched.and_then(|card| Some((card.generation()?, card.age()))) {
            Some((generation, age)) => (Some(generation), "the card that was fetched", Some(age)),
            None => (
                None,
                "no card: it would be fetched where that matters",
                None,
            ),
        }
    }

    /// Reports the clocks and bounds that the exchange would have. They reject nothing at this point.
    fn explain_limits(
        &self,
        agent: Option<&Agent>,
        guards: Vec<Value>,
        explanation: &mut Explanation,
    ) -> Result<(), CheckFailed> {
        let config = self.context.gateway.config();
        let (limits, timeouts) = (&config.limits, &config.timeouts);
        let idle = agent.and_then(|agent| agent.idle_timeout);
        let mut facts = Facts::default();
        facts.record(|| {
            let value = json!({
                "request_bytes": limits.request_bytes.0,
                "response_bytes": limits.response_bytes.0,
                "stream_bytes": limits.stream_bytes.0,
                "request_body_ms": to_millis(timeouts.request_body),
                "connect_ms": to_millis(timeouts.connect),
                "head_ms": to_millis(timeouts.head),
                "idle_ms": to_millis(idle.unwrap_or(timeouts.idle)),
                "idle_by": if idle.is_some() { "the workspace" } else { "timeouts.idle" },
                "total_ms": to_millis(timeouts.total),
                "stream_ms": to_millis(timeouts.stream),
                "x_timeout_max_ms": to_millis(timeouts.max),
                "guards": guards,
            });
            Fact::new(Stage::Limits, Source::Config, value)
        });
        explanation.record_check(Stage::Limits, facts, Ok(()))
    }
}

/// Returns which translation a call in each form has for the inbox of an agent that polls. HTTP+JSON of 0.3 has no
/// routes there.
fn inbox_bridge(options: &AgentOptions, by: &str) -> Value {
    let forms = [
        Side::json_rpc(Generation::V0),
        Side::json_rpc(Generation::V1),
        Side::http_json(Generation::V1),
    ];
    let calls = forms.map(|asked| {
        let spoke = inbox_side(asked.generation, options);
        (
            asked,
            json!(spoke.map(|spoke| bridge_label(asked, spoke.side))),
        )
    });
    bridge_fact(options, &options.spoken, by, calls)
}

fn bridge_fact<const N: usize>(
    options: &AgentOptions,
    spoken: &AgentSides,
    by: &str,
    calls: [(Side, Value); N],
) -> Value {
    let form = |side: Side| format!("{} {}", side.generation.version(), side.binding.name());
    let calls: Map<_, _> = calls
        .into_iter()
        .map(|(asked, answer)| (form(asked), answer))
        .collect();
    json!({
        "mode": match options.bridge {
            Bridging::Auto => "auto",
            Bridging::Off => "off",
        },
        "agent_speaks": spoken.all().map(|spoke| match spoke.grpc {
            Some(_) => format!("{} GRPC", spoke.side.generation.version()),
            None => form(spoke.side),
        }).collect::<Vec<_>>(),
        "by": by,
        "calls": calls,
    })
}

const fn bridge_label(caller: Side, agent: Side) -> &'static str {
    let bridge = Bridge {
        caller,
        agent,
        tenant: None,
        files: FileBytes::Unknown,
    };
    bridge.label()
}

const fn generation_word(generation: Generation) -> &'static str {
    match generation {
        Generation::V0 => "0.x",
        Generation::V1 => "1.x",
    }
}

impl Explainer {
    /// Reports the caps that cover a message, and rejects it if one is reached. Counts nothing. What a run or a context
    /// has used depends on the message.
    pub(super) async fn explain_caps(
        &self,
        proof: &Proof,
        permit: &Permit,
        explanation: &mut Explanation,
    ) -> Result<(), CheckFailed> {
        let gateway = &self.context.gateway;
        let names = caps::Names::default();
        let (hierarchy, method) = (&gateway.hierarchy, Method::SendMessage);
        let states = async {
            let call = caps::Facts::for_call(hierarchy, proof, permit, method, names).await?;
            Ok::<_, Rejection>(gateway.caps.states_for(&call).await?)
        };
        let states = states.await;
        let mut facts = Facts::default();
        let verdict = states.and_then(|states| {
            let source = if gateway.shared.is_embedded() {
                Source::Memory
            } else {
                Source::Redis
            };
            facts.record(|| Fact::new(Stage::Caps, source, json!({"caps": states})));
            states
                .iter()
                .find_map(CapState::as_rejection)
                .map_or(Ok(()), Err)
        });
        explanation.record_check(Stage::Caps, facts, verdict)
    }
}
