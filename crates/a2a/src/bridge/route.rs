//! Routes of HTTP+JSON: parameters in a path and a query, read ([`Route`]) and written ([`direct_request`]).

use percent_encoding::percent_decode_str;

use super::exchange::AgentRequest;
use super::failure::Failure;
use crate::fields::{Fields, quote_string};
use crate::generation::Generation;
use crate::method::Method;
use crate::rest::is_segment;

/// The parameters of an HTTP+JSON request, as JSON.
pub(super) struct Route<'a> {
    pub(super) params: std::borrow::Cow<'a, str>,
    /// True if they are the body, in the caller's own form. Otherwise they are written in the names of 1.0.
    pub(super) is_body: bool,
    /// The task in the path.
    pub(super) task: Option<String>,
}

/// Parameters of a query that are numbers or booleans in JSON.
const BARE: [&str; 3] = ["pageSize", "historyLength", "includeArtifacts"];

impl<'a> Route<'a> {
    /// Reads the parameters of a request whose route was accepted.
    pub(super) fn from_request(
        method: Method,
        generation: Generation,
        tail: &str,
        query: Option<&str>,
        body: &'a [u8],
    ) -> Result<Self, Failure> {
        let body =
            std::str::from_utf8(body).map_err(|error| Failure::NotJson(error.valid_up_to()))?;
        let body = body.trim_start_matches('\u{feff}').trim();
        let tail = tail.strip_suffix('/').unwrap_or(tail);
        let segments: Vec<&str> = tail.split('/').collect();
        let own = usize::from(generation == Generation::V0);
        let decoded = |at: usize| {
            let segment = percent_decode_str(segments.get(own + at)?).decode_utf8();
            segment.ok().map(std::borrow::Cow::into_owned)
        };
        if method.sends() {
            return Ok(Self::from_body(body, None));
        }
        let mut task = decoded(1);
        if matches!(method, Method::CancelTask | Method::SubscribeToTask) {
            let id = task.as_deref().and_then(|task| task.rsplit_once(':'));
            task = id.map(|(id, _)| id.to_owned());
        }
        if method == Method::CreatePushConfig {
            return Ok(Self::from_body(body, task));
        }
        let mut params = Fields::default();
        let of_push = method.is_of_push();
        if let Some(task) = task.filter(|_| method.is_of_a_task()) {
            params.push(if of_push { "taskId" } else { "id" }, quote_string(&task));
        }
        if let Some(config) = decoded(3).filter(|_| of_push) {
            params.push("id", quote_string(&config));
        }
        for (name, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            let name = match &*name {
                "A2A-Version" | "configId" => continue,
                "history_length" => "historyLength",
                name => name,
            };
            // 0 is "all" in 0.3, where 1.0 leaves the parameter out.
            if generation == Generation::V0 && (name, &*value) == ("historyLength", "0") {
                continue;
            }
            let is_bare =
                BARE.contains(&name) && serde_json::from_str::<serde_json::Value>(&value).is_ok();
            params.push(
                name,
                if is_bare {
                    value.into_owned()
                } else {
                    quote_string(&value)
                },
            );
        }
        let body = Fields::parse(body).filter(|_| method == Method::CancelTask);
        if let Some(metadata) = body.as_ref().and_then(|body| body.get("metadata")) {
            params.push("metadata", metadata.to_owned());
        }
        Ok(Self {
            params: params.to_json().into(),
            is_body: false,
            task: None,
        })
    }

    fn from_body(body: &'a str, task: Option<String>) -> Self {
        Self {
            params: body.into(),
            is_body: true,
            task,
        }
    }
}

/// Returns the beginning of the routes of 1.0 of an interface with a tenant: its segment, with a slash.
///
/// # Errors
/// [`Failure::Answer`] for a tenant that an agent could read as another route.
pub fn tenant_prefix(tenant: Option<&str>) -> Result<String, Failure> {
    let why = Failure::Answer("its card names a tenant that is no segment of a path");
    tenant.map_or(Ok(String::new()), |tenant| {
        Ok(encode_segment(tenant).ok_or(why)? + "/")
    })
}

/// Returns path and query of a route below an interface, the interface's own query first. `history_length`, which
/// callers may write, is there under the name that A2A has for it.
pub fn path_below(interface: &str, route: &str) -> String {
    let (base, own) = interface.split_once('?').unwrap_or((interface, ""));
    let (tail, query) = route.split_once('?').unwrap_or((route, ""));
    let mut path = format!("{}/{tail}", base.trim_end_matches('/'));
    let mut mark = '?';
    let parameters = own.split('&').chain(query.split('&'));
    for parameter in parameters.filter(|parameter| !matches!(*parameter, "" | "alt=sse")) {
        path.push(std::mem::replace(&mut mark, '&'));
        match parameter.strip_prefix("history_length=") {
            Some(length) => path.extend(["historyLength=", length]),
            None => path.push_str(parameter),
        }
    }
    path
}

/// Directs a request, whose body has its parameters so far, to the route of its method.
///
/// # Errors
/// [`Failure::Params`] for an id that an agent could read as another route; [`Failure::Answer`] for such a tenant of
/// its card.
pub(super) fn direct_request(
    sent: &mut AgentRequest,
    method: Method,
    generation: Generation,
    tenant: Option<&str>,
    task: Option<&str>,
) -> Result<(), Failure> {
    sent.method = None;
    let first = match generation {
        Generation::V0 => "v1/".to_owned(),
        Generation::V1 => tenant_prefix(tenant)?,
    };
    if method.sends() {
        let verb = if method.streams() { "stream" } else { "send" };
        sent.target = Some(format!("{first}message:{verb}"));
        return Ok(());
    }
    let text = String::from_utf8(std::mem::take(&mut sent.body)).unwrap_or_default();
    let fields = Fields::parse(&text).ok_or(Failure::Params("params"))?;
    let (verb, path) = call_path(&fields, method, generation, task)?;
    let body = match (method, generation) {
        (Method::CreatePushConfig, Generation::V0) => wrap_push_config(&fields, &text, task),
        (Method::CreatePushConfig, Generation::V1) => text.clone(),
        (Method::CancelTask, _) => match fields.get("metadata") {
            Some(metadata) if generation == Generation::V1 => {
                format!(r#"{{"metadata":{metadata}}}"#)
            }
            _ => "{}".to_owned(),
        },
        _ => String::new(),
    };
    let query = build_query(&fields, method)?;
    sent.verb = verb;
    sent.target = Some(format!("{first}{path}{query}"));
    sent.body = body.into_bytes();
    Ok(())
}

/// Returns the HTTP method and the path of a call without a message.
fn call_path(
    fields: &Fields<'_>,
    method: Method,
    generation: Generation,
    task: Option<&str>,
) -> Result<(&'static str, String), Failure> {
    let id_of = |name: &'static str| {
        let id = fields.get_text(name).ok_or(Failure::Params(name))?;
        encode_segment(&id).ok_or(Failure::Params(name))
    };
    let name = if method.is_of_push() { "taskId" } else { "id" };
    let task = || match task {
        Some(task) => encode_segment(task).ok_or(Failure::Params(name)),
        None => id_of(name),
    };
    let configs = || Ok::<_, Failure>(format!("tasks/{}/pushNotificationConfigs", task()?));
    // 0.3 may leave out the configuration's id; its SDKs give a task's only one the task's own id.
    let config = || match fields.get("id") {
        None if method == Method::GetPushConfig => task(),
        _ => id_of("id"),
    };
    Ok(match method {
        Method::ListTasks => ("GET", "tasks".to_owned()),
        Method::GetTask => ("GET", format!("tasks/{}", task()?)),
        Method::CancelTask => ("POST", format!("tasks/{}:cancel", task()?)),
        Method::SubscribeToTask => ("GET", format!("tasks/{}:subscribe", task()?)),
        Method::CreatePushConfig => ("POST", configs()?),
        Method::ListPushConfigs => ("GET", configs()?),
        Method::GetPushConfig => ("GET", format!("{}/{}", configs()?, config()?)),
        Method::DeletePushConfig => ("DELETE", format!("{}/{}", configs()?, config()?)),
        _ if generation == Generation::V0 => ("GET", "card".to_owned()),
        _ => ("GET", "extendedAgentCard".to_owned()),
    })
}

/// Returns the body that creates a push configuration in 0.3.
fn wrap_push_config(fields: &Fields<'_>, text: &str, task: Option<&str>) -> String {
    let config = fields.get("pushNotificationConfig").and_then(Fields::parse);
    let id = config.and_then(|config| config.get_text("id"));
    format!(
        r#"{{"parent":{},"configId":{},"config":{text}}}"#,
        quote_string(&format!("tasks/{}", task.unwrap_or_default())),
        quote_string(&id.unwrap_or_default())
    )
}

/// Returns the query, with its question mark.
///
/// # Errors
/// [`Failure::Params`] for a context that is no id.
fn build_query(fields: &Fields<'_>, method: Method) -> Result<String, Failure> {
    let names = match method {
        Method::GetTask => "historyLength",
        Method::ListPushConfigs => "pageSize pageToken",
        Method::ListTasks => {
            "contextId status pageSize pageToken historyLength statusTimestampAfter includeArtifacts"
        }
        _ => "",
    };
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for name in names.split_ascii_whitespace() {
        let Some(value) = fields.get_given(name) else {
            continue;
        };
        let said = fields.get_text(name);
        let is_id = |id: &str| id.is_empty() || is_segment(id);
        if name == "contextId" && !said.as_deref().is_some_and(is_id) {
            return Err(Failure::Params(name));
        }
        query.append_pair(name, said.as_deref().unwrap_or(value));
    }
    let query = query.finish();
    Ok(if query.is_empty() {
        query
    } else {
        format!("?{query}")
    })
}

/// Returns an id as a segment of a path. `None`: an agent could read it as another route, one that the
/// gateway did not check.
fn encode_segment(id: &str) -> Option<String> {
    // A colon that is not encoded begins a verb for some routers.
    is_segment(id).then(|| id.replace(':', "%3A"))
}
