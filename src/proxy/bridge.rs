//! Translates a call for an agent that does not speak its generation or its binding, and the agent's answer
//! ([`crate::a2a::bridge`]; `docs/reference/bridge.md`): a stage between completion and forwarding, and one on the way
//! back. A call that the agent speaks passes by.

use std::borrow::Cow;
use std::sync::Arc;

use http::Method as Verb;
use pingora::protocols::http::ServerSession;

use crate::a2a::Generation;
use crate::a2a::bridge::{AgentRequest, Bridge, Call, Failure, Side};
use crate::a2a::card::{AgentSide, AgentSides, Binding as Carried};
use crate::a2a::method::Method;
use crate::a2a::task::Binding;
use crate::config::Bridging;
use crate::directory::AgentOptions;
use crate::proxy::context::Context;
use crate::proxy::offload;
use crate::proxy::outcome::{ExchangeOutcome, box_cold_path};
use crate::proxy::record::Exchange;
use crate::proxy::relay::forward::AgentCall;
use crate::proxy::relay::response_translator::ResponseTranslator;
use crate::proxy::relay::rewrite::Rewrite;
use crate::proxy::request::checked_call::CheckedCall;
use crate::proxy::translation::{TranslatedHeaders, TranslationFields, reject_untranslatable};
use crate::rejection::{Delivery, Rejection};

/// Returns the form in which a call is, if it is one that has a translation: a method that its generation defines.
fn side_of(method: Method, call: &CheckedCall) -> Option<Side> {
    if let Some(route) = &call.route {
        return method
            .name_in(route.generation)
            .map(|_| Side::http_json(route.generation));
    }
    let name = call.method_name.as_deref()?;
    let generation = Generation::of_method(name);
    (method.name_in(generation) == Some(name)).then(|| Side::json_rpc(generation))
}

/// Returns the side on which the agent gets a call of `asked`: another one than that if the call is to be translated.
/// `None`: the call passes as it is.
///
/// # Errors
/// The agent does not speak its generation, and translation is off.
pub(in crate::proxy) fn agent_side(
    asked: Side,
    spoken: &AgentSides,
    options: &AgentOptions,
) -> Result<Option<AgentSide>, Failure> {
    let spoke = match spoken.find_nearest(asked) {
        Some(spoke) => spoke.clone(),
        // Nothing says what the agent speaks: a call of JSON-RPC passes as it is.
        None if asked.binding == Carried::JsonRpc => return Ok(None),
        None => AgentSide {
            side: Side::json_rpc(options.generation),
            tenant: None,
        },
    };
    if spoke.side == asked || options.bridge == Bridging::Auto {
        return Ok(Some(spoke));
    }
    if spoke.side.generation == asked.generation {
        return Ok(None);
    }
    Err(Failure::Off {
        caller: asked.generation,
        agent: spoke.side.generation,
    })
}

/// True if an agent has an HTTP+JSON interface of its own.
pub(in crate::proxy) fn serves_http_json(spoken: &AgentSides) -> bool {
    spoken.sides().any(|side| side.binding == Carried::HttpJson)
}

/// Returns the side on which an agent that polls gets a call of `asked`, if it speaks only the other generation.
/// Entries of inboxes are calls of JSON-RPC.
pub(in crate::proxy) fn inbox_side(
    asked: Generation,
    options: &AgentOptions,
) -> Option<&AgentSide> {
    let spoke = options.spoken.find_nearest(Side::json_rpc(asked))?;
    (options.bridge == Bridging::Auto && spoke.side.generation != asked).then_some(spoke)
}

/// Translates a message for the inbox of an agent that does not speak its generation.
///
/// # Errors
/// The reason that the call has no translation.
pub(in crate::proxy) async fn translate_for_inbox(
    context: &Context,
    options: &AgentOptions,
    exchange: &mut Exchange,
    call: &mut CheckedCall,
) -> Result<(), Rejection> {
    let method = exchange.method;
    let asked = side_of(method, call).filter(|_| method.sends());
    let spoke = asked.and_then(|asked| Some((asked, inbox_side(asked.generation, options)?)));
    let Some((caller, spoke)) = spoke else {
        return Ok(());
    };
    let agent = Side::json_rpc(spoke.side.generation);
    let tenant = spoke.tenant.clone();
    let work = move |body: &[u8]| {
        let bridge = Bridge {
            caller,
            agent,
            tenant: tenant.as_deref(),
        };
        let (sent, _) = bridge.translate_request(method, Call::Rpc(body))?;
        Ok((sent, bridge.label()))
    };
    let metrics = &context.gateway.metrics;
    let done = box_cold_path(offload::run_on_body(&call.body, work)).await;
    let done = done
        .map_err(|failure: Failure| reject_untranslatable(metrics, &failure, Delivery::NotSent));
    let (sent, label) = done?;
    charge_translation(context, exchange, call, &sent, (caller, agent))?;
    exchange.bridged = Some(TranslationFields::new(label, caller.generation));
    call.body = sent.body.into();
    call.method_name = sent.method.map(Cow::Borrowed);
    Ok(())
}

/// Sets the address of an HTTP+JSON call, and translates the call if its agent does not speak its form.
///
/// # Errors
/// `version_not_supported` if translation is off; the reason that the call has no translation; as
/// [`Cards::http_json_path`](crate::proxy::cards::store::Cards::http_json_path).
pub(in crate::proxy) async fn translate_for_agent(
    agents: &AgentCall<'_>,
    mut caller: Option<&mut ServerSession>,
    exchange: &mut Exchange,
    call: &mut CheckedCall,
) -> Result<(), ExchangeOutcome> {
    let Some(asked) = side_of(exchange.method, call) else {
        return Ok(());
    };
    let cards = &agents.context.cards;
    let options = &agents.agent.options;
    let spoken = if options.path_in_card || call.route.is_some() {
        // The card says the path, so it is fetched in any case.
        let fetched = cards.fetch_sides(caller.as_deref_mut(), exchange, agents.admitted);
        box_cold_path(fetched).await?
    } else {
        cards.known_sides(agents.admitted).await?
    };
    let metrics = &agents.context.gateway.metrics;
    let side = agent_side(asked, &spoken, options);
    let Some(spoke) =
        side.map_err(|failure| reject_untranslatable(metrics, &failure, Delivery::NotSent))?
    else {
        return Ok(());
    };
    let interface = match spoke.side.binding {
        Carried::HttpJson => {
            let generation = spoke.side.generation;
            let path = cards.http_json_path(caller.take(), exchange, agents.admitted, generation);
            Some(box_cold_path(path).await?)
        }
        Carried::JsonRpc => None,
    };
    if spoke.side == asked {
        if let (Some(route), Some(interface)) = (&call.route, interface) {
            call.path = Some(route.path_below(&interface));
        }
        return Ok(());
    }
    let sides = (asked, &spoke);
    Ok(box_cold_path(translate_call(agents, exchange, call, sides, interface)).await?)
}

/// Translates the call for an agent that speaks `spoke`.
async fn translate_call(
    agents: &AgentCall<'_>,
    exchange: &mut Exchange,
    call: &mut CheckedCall,
    (asked, spoke): (Side, &AgentSide),
    interface: Option<String>,
) -> Result<(), Rejection> {
    let metrics = &agents.context.gateway.metrics;
    let method = exchange.method;
    let (side, tenant) = (spoke.side, spoke.tenant.clone());
    let (route, body) = (call.route.clone(), call.body.clone());
    let long = offload::is_long(body.len());
    let work = move || {
        let bridge = Bridge {
            caller: asked,
            agent: side,
            tenant: tenant.as_deref(),
        };
        let asked = match &route {
            None => Call::Rpc(&body),
            Some(route) => Call::Rest {
                tail: &route.tail,
                query: route.query.as_deref(),
                body: &body,
            },
        };
        let snapshot = match bridge.needs_snapshot(method) {
            true => Some(bridge.snapshot_request(asked)?),
            false => None,
        };
        let (sent, exchange) = bridge.translate_request(method, asked)?;
        Ok((sent, exchange, snapshot, bridge.label()))
    };
    let done = match long {
        true => box_cold_path(offload::run(work)).await,
        false => work(),
    };
    let done = done
        .map_err(|failure: Failure| reject_untranslatable(metrics, &failure, Delivery::NotSent));
    let (sent, back, snapshot, label) = done?;
    charge_translation(agents.context, exchange, call, &sent, (asked, side))?;
    exchange.bridged = Some(TranslationFields::new(label, asked.generation));
    if let Some(learner) = &mut exchange.learner {
        learner.set_binding(match side.binding {
            Carried::JsonRpc => Binding::Rpc,
            Carried::HttpJson => Binding::Rest,
        });
    }
    if call.rewrite.is_none() && call.route.is_none() {
        call.original = Some(Box::new((call.body.clone(), call.method_name.clone())));
    }
    let inner = call.rewrite.take();
    let limit = exchange.config.limits.event_bytes.bytes();
    let back = ResponseTranslator::new(back, Arc::clone(metrics), limit);
    let snapshot = snapshot.map(|sent| {
        let share = agents.context.relay.load.new_share(Default::default());
        let mut asks = CheckedCall::json_rpc(bytes::Bytes::new(), share);
        replace_call(&mut asks, sent, interface.as_deref(), false);
        Box::new(asks)
    });
    replace_call(call, sent, interface.as_deref(), method.streams());
    call.rewrite = Some(Rewrite::Bridged(Box::new(back), inner.map(Box::new)));
    call.snapshot = snapshot;
    Ok(())
}

/// Charges the caller for a translated request, and counts it.
///
/// # Errors
/// `overloaded`, as [`Load::reserve`](crate::proxy::load::Load::reserve).
fn charge_translation(
    context: &Context,
    exchange: &Exchange,
    call: &mut CheckedCall,
    sent: &AgentRequest,
    (asked, side): (Side, Side),
) -> Result<(), Rejection> {
    context
        .relay
        .load
        .reserve(&mut call.share, sent.body.len())?;
    let counts = &context.gateway.metrics.bridge;
    counts.count_call(asked.generation, side, exchange.method);
    counts.count_left_out(&sent.left_out);
    Ok(())
}

/// Replaces the call by the translated request.
fn replace_call(
    call: &mut CheckedCall,
    sent: AgentRequest,
    interface: Option<&str>,
    streams: bool,
) {
    call.verb = match sent.verb {
        "GET" => Verb::GET,
        "DELETE" => Verb::DELETE,
        _ => Verb::POST,
    };
    call.path = sent
        .target
        .map(|target| format!("{}/{target}", interface.unwrap_or_default()));
    call.body = sent.body.into();
    call.method_name = sent.method.map(Cow::Borrowed);
    call.route = None;
    call.wire = Some(TranslatedHeaders {
        content_type: sent.content_type,
        accept: if streams {
            "text/event-stream"
        } else {
            "application/json"
        },
        version: sent.version,
        extensions: sent.extensions,
    });
}
