//! Tests of the translation, by the list of what has bitten others.

mod answers;
mod attacks;
mod bindings;
mod bound;
mod cards;
mod errors;
mod objects;
mod parts;
mod properties;
mod requests;
mod streams;

use serde_json::Value;

use super::{
    AgentRequest, Answer, Bridge, Call, Exchange, Failure, FileBytes, OmittedMembers, Side, Stream,
    TranslatedEvent,
};
use crate::generation::Generation;
use crate::method::Method;

const V0: Side = Side::json_rpc(Generation::V0);
const V1: Side = Side::json_rpc(Generation::V1);
const V0_REST: Side = Side::http_json(Generation::V0);
const V1_REST: Side = Side::http_json(Generation::V1);

/// A caller of 0.3 and an agent of 1.0.
const UP: Bridge<'static> = bridge(V0, V1);
/// A caller of 1.0 and an agent of 0.3.
const DOWN: Bridge<'static> = bridge(V1, V0);

const fn bridge(caller: Side, agent: Side) -> Bridge<'static> {
    Bridge {
        caller,
        agent,
        tenant: None,
        files: FileBytes::Once,
    }
}

/// Returns a JSON-RPC call.
fn call(bridge: &Bridge<'_>, method: Method, params: &str) -> String {
    let name = method.name_in(bridge.caller.generation).unwrap();
    format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{name}","params":{params}}}"#)
}

fn request(
    bridge: &Bridge<'_>,
    method: Method,
    params: &str,
) -> Result<(AgentRequest, Exchange), Failure> {
    bridge.translate_request(method, Call::Rpc(call(bridge, method, params).as_bytes()))
}

/// Returns the parameters of a call as the agent gets them.
fn params(bridge: &Bridge<'_>, method: Method, params: &str) -> String {
    let (sent, _) = request(bridge, method, params).unwrap_or_else(|f| panic!("{params}: {f}"));
    let name = method.name_in(bridge.agent.generation).unwrap();
    let head = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{name}","params":"#);
    let body = String::from_utf8(sent.body).unwrap();
    let inner = body
        .strip_prefix(&head)
        .and_then(|rest| rest.strip_suffix('}'));
    inner.unwrap_or_else(|| panic!("{body}")).to_owned()
}

/// Returns an exchange after a call of `method`.
fn exchange(bridge: &Bridge<'_>, method: Method) -> Exchange {
    request(bridge, method, r#"{"id":"t","message":{}}"#)
        .unwrap()
        .1
}

/// Returns a refusal in the caller's form.
fn failure_answer(exchange: &Exchange, failure: &Failure) -> Answer {
    exchange.with_error(200, &failure_text(exchange, failure))
}

fn failure_text(exchange: &Exchange, failure: &Failure) -> String {
    let generation = exchange.caller.generation;
    super::error::new_error(failure.code(), &failure.to_string(), generation)
}

/// Returns the result of an answer as the caller gets it, and what was left out.
fn answered(
    bridge: &Bridge<'_>,
    method: Method,
    result: &str,
) -> Result<(String, OmittedMembers), Failure> {
    let body = format!(r#"{{"jsonrpc":"2.0","id":7,"result":{result}}}"#);
    let answer = exchange(bridge, method).translate_answer(200, body.as_bytes())?;
    let body = String::from_utf8(answer.body).unwrap();
    let inner = body.strip_prefix(r#"{"jsonrpc":"2.0","id":7,"result":"#);
    let inner = inner.and_then(|rest| rest.strip_suffix('}'));
    Ok((
        inner.unwrap_or_else(|| panic!("{body}")).to_owned(),
        answer.left_out,
    ))
}

fn result(bridge: &Bridge<'_>, method: Method, said: &str) -> String {
    let answered = answered(bridge, method, said);
    answered
        .unwrap_or_else(|failure| panic!("{said}: {failure}"))
        .0
}

/// Returns a block as the caller gets it.
fn block(stream: &mut Stream, block: &str) -> Result<(String, TranslatedEvent), Failure> {
    let mut out = Vec::new();
    let told = stream.translate_block(block.as_bytes(), &mut out)?;
    Ok((String::from_utf8(out).unwrap(), told))
}

fn json(text: impl AsRef<[u8]>) -> Value {
    let text = text.as_ref();
    let read = serde_json::from_slice(text);
    read.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(text)))
}
