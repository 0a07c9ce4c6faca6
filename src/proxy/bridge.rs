//! Translates a call for an agent that does not speak its generation or its binding, and the agent's answer
//! ([`crate::a2a::bridge`]; `docs/reference/bridge.md`): a stage between completion and forwarding, and one on the way
//! back. A call that the agent speaks passes by.

use std::borrow::Cow;
use std::sync::Arc;

use http::Method as Verb;
use pingora::protocols::http::ServerSession;

use crate::a2a::Generation;
use crate::a2a::bridge::{Bridge, Call, Failure, Sent, Side};
use crate::a2a::card::{Binding as Carried, Spoke, Spoken};
use crate::a2a::method::Method;
use crate::a2a::task::Binding;
use crate::config::Bridging;
use crate::directory::AgentOptions;
use crate::proxy::beside;
use crate::proxy::bridged::{Fields, Wire, refuse};
use crate::proxy::context::Context;
use crate::proxy::outcome::{Ended, rare};
use crate::proxy::record::Exchange;
use crate::proxy::relay::back::Back;
use crate::proxy::relay::forward::AgentCall;
use crate::proxy::relay::rewrite::Rewrite;
use crate::proxy::request::checked::CheckedCall;
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
pub(in crate::proxy) fn agents_side(
    asked: Side,
    spoken: &Spoken,
    options: &AgentOptions,
) -> Result<Option<Spoke>, Failure> {
    let spoke = match spoken.nearest(asked) {
        Some(spoke) => spoke.clone(),
        // Nothing says what the agent speaks: a call of JSON-RPC passes as it is.
        None if asked.binding == Carried::JsonRpc => return Ok(None),
        None => Spoke {
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
pub(in crate::proxy) fn serves_http_json(spoken: &Spoken) -> bool {
    spoken.sides().any(|side| side.binding == Carried::HttpJson)
}

/// Returns the side on which an agent that polls gets a call of `asked`, if it speaks only the other generation.
/// Entries of inboxes are calls of JSON-RPC.
pub(in crate::proxy) fn inbox_side(asked: Generation, options: &AgentOptions) -> Option<&Spoke> {
    let spoke = options.spoken.nearest(Side::json_rpc(asked))?;
    (options.bridge == Bridging::Auto && spoke.side.generation != asked).then_some(spoke)
}

/// Translates a message for the inbox of an agent that does not speak its generation.
///
/// # Errors
/// The reason that the call has no translation.
pub(in crate::proxy) async fn meet_inbox(
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
        let (sent, _) = bridge.request(method, Call::Rpc(body))?;
        Ok((sent, bridge.label()))
    };
    let metrics = &context.gateway.metrics;
    let done = rare(beside::on(&call.body, work)).await;
    let done = done.map_err(|failure: Failure| refuse(metrics, &failure, Delivery::NotSent));
    let (sent, label) = done?;
    account_for(context, exchange, call, &sent, (caller, agent))?;
    exchange.bridged = Some(Fields::new(label, caller.generation));
    call.body = sent.body.into();
    call.method_name = sent.method.map(Cow::Borrowed);
    Ok(())
}

/// Sets the address of an HTTP+JSON call, and translates the call if its agent does not speak its form.
///
/// # Errors
/// `version_not_supported` if translation is off; the reason that the call has no translation; as
/// [`Cards::http_json`](crate::proxy::cards::store::Cards::http_json).
pub(in crate::proxy) async fn meet(
    agents: &AgentCall<'_>,
    mut caller: Option<&mut ServerSession>,
    exchange: &mut Exchange,
    call: &mut CheckedCall,
) -> Result<(), Ended> {
    let Some(asked) = side_of(exchange.method, call) else {
        return Ok(());
    };
    let cards = &agents.context.cards;
    let options = &agents.agent.options;
    let spoken = if options.path_in_card || call.route.is_some() {
        // The card says the path, so it is fetched in any case.
        let fetched = cards.fetched(caller.as_deref_mut(), exchange, agents.admitted);
        rare(fetched).await?
    } else {
        cards.spoken(agents.admitted).await?
    };
    let metrics = &agents.context.gateway.metrics;
    let side = agents_side(asked, &spoken, options);
    let Some(spoke) = side.map_err(|failure| refuse(metrics, &failure, Delivery::NotSent))? else {
        return Ok(());
    };
    let interface = match spoke.side.binding {
        Carried::HttpJson => {
            let generation = spoke.side.generation;
            let path = cards.http_json(caller.take(), exchange, agents.admitted, generation);
            Some(rare(path).await?)
        }
        Carried::JsonRpc => None,
    };
    if spoke.side == asked {
        if let (Some(route), Some(interface)) = (&call.route, interface) {
            call.path = Some(route.below(&interface));
        }
        return Ok(());
    }
    let sides = (asked, &spoke);
    Ok(rare(translate(agents, exchange, call, sides, interface)).await?)
}

/// Translates the call for an agent that speaks `spoke`.
async fn translate(
    agents: &AgentCall<'_>,
    exchange: &mut Exchange,
    call: &mut CheckedCall,
    (asked, spoke): (Side, &Spoke),
    interface: Option<String>,
) -> Result<(), Rejection> {
    let metrics = &agents.context.gateway.metrics;
    let method = exchange.method;
    let (side, tenant) = (spoke.side, spoke.tenant.clone());
    let (route, body) = (call.route.clone(), call.body.clone());
    let long = beside::is_long(body.len());
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
            true => Some(bridge.snapshot(asked)?),
            false => None,
        };
        let (sent, exchange) = bridge.request(method, asked)?;
        Ok((sent, exchange, snapshot, bridge.label()))
    };
    let done = match long {
        true => rare(beside::run(work)).await,
        false => work(),
    };
    let done = done.map_err(|failure: Failure| refuse(metrics, &failure, Delivery::NotSent));
    let (sent, back, snapshot, label) = done?;
    account_for(agents.context, exchange, call, &sent, (asked, side))?;
    exchange.bridged = Some(Fields::new(label, asked.generation));
    if let Some(learner) = &mut exchange.learner {
        learner.reads(match side.binding {
            Carried::JsonRpc => Binding::Rpc,
            Carried::HttpJson => Binding::Rest,
        });
    }
    if call.rewrite.is_none() && call.route.is_none() {
        call.original = Some(Box::new((call.body.clone(), call.method_name.clone())));
    }
    let inner = call.rewrite.take();
    let limit = exchange.config.limits.event_bytes.bytes();
    let back = Back::new(back, Arc::clone(metrics), limit);
    let snapshot = snapshot.map(|sent| {
        let share = agents.context.relay.load.share(Default::default());
        let mut asks = CheckedCall::json_rpc(bytes::Bytes::new(), share);
        put(&mut asks, sent, interface.as_deref(), false);
        Box::new(asks)
    });
    put(call, sent, interface.as_deref(), method.streams());
    call.rewrite = Some(Rewrite::Bridged(Box::new(back), inner.map(Box::new)));
    call.snapshot = snapshot;
    Ok(())
}

/// Charges the caller for a translated request, and counts it.
///
/// # Errors
/// `overloaded`, as [`Load::hold`](crate::proxy::load::Load::hold).
fn account_for(
    context: &Context,
    exchange: &Exchange,
    call: &mut CheckedCall,
    sent: &Sent,
    (asked, side): (Side, Side),
) -> Result<(), Rejection> {
    context.relay.load.hold(&mut call.share, sent.body.len())?;
    let counts = &context.gateway.metrics.bridge;
    counts.translated(asked.generation, side, exchange.method);
    counts.left_out(&sent.left_out);
    Ok(())
}

/// Replaces the call by the translated request.
fn put(call: &mut CheckedCall, sent: Sent, interface: Option<&str>, streams: bool) {
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
    call.wire = Some(Wire {
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
