//! Requests ([`Bridge::translate_request`]).

use memchr::memmem;

use super::exchange::{AgentRequest, Call, Exchange};
use super::failure::Failure;
use super::nodes::{CANCEL, CARD, GET, PUSH_GET, PUSH_LIST, SEND, SUBSCRIBE};
use super::part::find_member;
use super::pass::{Pass, Settings};
use super::push::push_config_of_task;
use super::route::{self, Route};
use super::rules::write_node;
use super::sides::{Bridge, extensions_field};
use super::table::{Form, Node};
use crate::fields::{Fields, array_elements, quote_string};
use crate::generation::Generation;
use crate::json::{Kind, Value};
use crate::method::Method;

/// The id of a JSON-RPC call that is made of an HTTP+JSON request.
const ID: &str = "1";

impl<'a> Bridge<'a> {
    /// Translates a request. The body of a JSON-RPC call was completed before ([`crate::envelope`]), so that
    /// no member that the gateway checks stands in it twice.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn translate_request(
        &self,
        method: Method,
        call: Call<'_>,
    ) -> Result<(AgentRequest, Exchange), Failure> {
        let name = self.agent_method(method)?;
        let mut exchange = Exchange::new(self.caller, self.agent, method, None);
        exchange.files = self.files;
        let sent = match call {
            Call::Rpc(body) => self.translate_rpc(name, body, &mut exchange)?,
            Call::Rest { tail, query, body } => {
                let route = Route::from_request(method, self.caller.generation, tail, query, body)?;
                self.translate_route(name, &route, &mut exchange)?
            }
        };
        Ok((sent, exchange))
    }

    /// Returns the request for the task of a call that subscribes to it, for [`super::Stream::translate_snapshot`].
    ///
    /// # Errors
    /// [`Failure`].
    pub fn snapshot_request(&self, call: Call<'_>) -> Result<AgentRequest, Failure> {
        let method = Method::GetTask;
        let Call::Rest { tail, query, body } = call else {
            return Ok(self.translate_request(method, call)?.0);
        };
        let subscribe = Method::SubscribeToTask;
        let route = Route::from_request(subscribe, self.caller.generation, tail, query, body)?;
        let mut exchange = Exchange::new(self.caller, self.agent, method, None);
        let name = self.agent_method(method)?;
        self.translate_route(name, &route, &mut exchange)
    }

    /// Returns the name of the method at the agent.
    fn agent_method(&self, method: Method) -> Result<&'static str, Failure> {
        let agent = self.agent.generation;
        if self.crosses_generations() && method.is_of_push() {
            return Err(Failure::Push { agent });
        }
        let from = self.caller.generation;
        if self.crosses_generations() && (method, from) == (Method::ListTasks, Generation::V1) {
            return Err(Failure::List);
        }
        let both = method.name_in(from);
        let name = both.and_then(|_| method.name_in(agent));
        name.ok_or(Failure::Method { agent })
    }

    fn settings(&self, from: Form, to: Form) -> Settings<'a> {
        Settings {
            from,
            to,
            is_request: true,
            zero_is_all: self.agent.generation == Generation::V0,
            files: self.files,
            tenant: self.tenant,
            ..Settings::default()
        }
    }

    /// Returns the form in which the parameters are written: the agent's own in JSON-RPC and in a body, and
    /// that of 1.0 where they become a path.
    fn form_of_params(&self, method: Method) -> Form {
        if self.agent.is_rpc() || method.sends() || method == Method::CreatePushConfig {
            self.agent.wire_form()
        } else {
            Form::V1
        }
    }

    fn translate_rpc(
        &self,
        name: &'static str,
        body: &[u8],
        exchange: &mut Exchange,
    ) -> Result<AgentRequest, Failure> {
        let method = exchange.method;
        let settings = self.settings(self.caller.wire_form(), self.form_of_params(method));
        let mut pass = Pass::new(body, settings);
        exchange.id = write_call(&mut pass, method, name, self.agent.is_rpc())?;
        self.finish_request(name, pass, None, exchange)
    }

    fn translate_route(
        &self,
        name: &'static str,
        route: &Route<'_>,
        exchange: &mut Exchange,
    ) -> Result<AgentRequest, Failure> {
        let method = exchange.method;
        // Parameters of a path are written in the names of 1.0.
        let from = if route.is_body {
            self.caller.wire_form()
        } else {
            Form::V1
        };
        let settings = self.settings(from, self.form_of_params(method));
        let mut pass = Pass::new(route.params.as_bytes(), settings);
        let is_rpc = self.agent.is_rpc();
        if is_rpc {
            exchange.id = Some(ID.to_owned());
            pass.put(&format!(
                r#"{{"jsonrpc":"2.0","id":{ID},"method":"{name}","params":"#
            ));
        }
        let task = route.task.as_deref();
        write_params(&mut pass, method, task)?;
        pass.walker.expect_end()?;
        pass.put(if is_rpc { "}" } else { "" });
        self.finish_request(name, pass, task, exchange)
    }

    fn finish_request(
        &self,
        name: &'static str,
        pass: Pass<'_>,
        task: Option<&str>,
        exchange: &mut Exchange,
    ) -> Result<AgentRequest, Failure> {
        let agent = self.agent.generation;
        if pass.push && self.crosses_generations() {
            return Err(Failure::Push { agent });
        }
        exchange.without_history = pass.no_history;
        let mut sent = AgentRequest {
            verb: "POST",
            target: None,
            body: pass.out,
            content_type: self.agent.content_type(),
            version: agent.version(),
            extensions: extensions_field(agent),
            method: Some(name),
            left_out: pass.left,
        };
        if !self.agent.is_rpc() {
            let task = pass.task.as_deref().or(task);
            route::direct_request(&mut sent, exchange.method, agent, self.tenant, task)?;
        }
        Ok(sent)
    }
}

/// Returns true if a JSON-RPC call has a message as 1.0 has it: nothing in it says its `kind`. Agents and clients of
/// fasta2a send such messages by the methods of 0.3.
pub fn has_v1_message(body: &[u8]) -> bool {
    fn member<'a>(text: &'a str, name: &str) -> Option<&'a str> {
        Fields::parse(text)?.get_borrowed(name)
    }
    let message = || {
        let params = member(std::str::from_utf8(body).ok()?, "params")?;
        Fields::parse(member(params, "message")?)
    };
    // Almost all calls of 0.3 say it.
    if memmem::find(body, br#""kind""#).is_some() {
        return false;
    }
    let Some(message) = message() else {
        return false;
    };
    let parts = message.get("parts").and_then(array_elements);
    let is_of_v1 = |part: &&str| {
        let part = Fields::parse(part);
        part.is_some_and(|part| !part.contains("type") && !part.contains("file"))
    };
    parts.is_some_and(|parts| !parts.is_empty() && parts.iter().all(is_of_v1))
}

/// Writes a JSON-RPC call, or with `is_rpc` false its parameters alone. Returns its id.
fn write_call(
    pass: &mut Pass<'_>,
    method: Method,
    name: &str,
    is_rpc: bool,
) -> Result<Option<String>, Failure> {
    let (mut id, mut has_params) = (None, false);
    if pass.walker.peek() != Some(b'{') {
        return Err(Failure::Params("params"));
    }
    if is_rpc {
        pass.out.push(b'{');
    }
    pass.walk_members(|pass, member| {
        match member {
            b"params" if has_params => return Err(Failure::Twice("params")),
            b"params" => {
                has_params = true;
                pass.put(if is_rpc { "\"params\":" } else { "" });
                write_params(pass, method, None)?;
                pass.put(if is_rpc { "," } else { "" });
            }
            b"id" => {
                let value = pass.walker.read_value()?;
                if value.is_rpc_id() {
                    id = Some(String::from_utf8_lossy(value.raw(pass.text)).into_owned());
                }
                if is_rpc {
                    pass.put_member("id", value);
                }
            }
            b"jsonrpc" => {
                let value = pass.walker.read_value()?;
                if value.raw(pass.text) != b"\"2.0\"" {
                    return Err(Failure::Params("jsonrpc"));
                }
                if is_rpc {
                    pass.put_member("jsonrpc", value);
                }
            }
            b"method" => {
                pass.walker.read_value()?;
                if is_rpc {
                    pass.put_word("method", name);
                }
            }
            _ => {
                pass.walker.read_value()?;
                pass.left.add("call", "other");
            }
        }
        Ok(())
    })?;
    pass.walker.expect_end()?;
    if !has_params {
        if method.sends() {
            return Err(Failure::Params("message"));
        }
        pass.put(if is_rpc { "\"params\":{}" } else { "{}" });
    }
    if is_rpc {
        pass.close();
    }
    Ok(id)
}

/// Writes the parameters that follow.
fn write_params(pass: &mut Pass<'_>, method: Method, task: Option<&str>) -> Result<(), Failure> {
    if method == Method::CreatePushConfig {
        return push_config_of_task(pass, task);
    }
    // Parameters for a path of 0.3 are in the names of 1.0, and have their meaning in 0.3.
    if pass.settings.from == pass.settings.to && !pass.settings.zero_is_all {
        let value = pass.walker.read_value()?;
        put_with_tenant(pass, value);
        return Ok(());
    }
    if method == Method::GetExtendedCard && !pass.is_object()? {
        pass.put("{}");
        return Ok(());
    }
    write_node(pass, params_table(method))
}

/// Writes parameters as they are, with the tenant of the agent's interface if they name none.
fn put_with_tenant(pass: &mut Pass<'_>, value: Value) {
    let tenant = pass.settings.tenant.filter(|_| {
        value.kind == Kind::Object && find_member(pass.text, value, b"tenant").is_none()
    });
    let Some(tenant) = tenant else {
        return pass.copy(value);
    };
    let rest = &value.raw(pass.text)[1..];
    let is_empty = rest.trim_ascii_start().starts_with(b"}");
    pass.put("{\"tenant\":");
    pass.put(&quote_string(tenant));
    pass.put(if is_empty { "" } else { "," });
    pass.out.extend_from_slice(rest);
}

/// Returns the table of a method's parameters.
const fn params_table(method: Method) -> &'static Node {
    match method {
        Method::GetTask => &GET,
        Method::CancelTask => &CANCEL,
        Method::SubscribeToTask => &SUBSCRIBE,
        Method::GetPushConfig | Method::DeletePushConfig => &PUSH_GET,
        Method::ListPushConfigs => &PUSH_LIST,
        Method::GetExtendedCard => &CARD,
        _ => &SEND,
    }
}
