//! Push configurations: 0.3 nests one beside its task, 1.0 has one object for both, and HTTP+JSON of 0.3
//! names the task in a path.

use percent_encoding::percent_decode;

use super::failure::Failure;
use super::pass::Pass;
use super::table::{Form, to_camel_case};
use crate::fields::{quote_string, unescape_string};
use crate::json::{Kind, Value};
use crate::rest::is_segment;

const LABEL: &str = "push_config";

/// The members of a configuration and of its task.
#[derive(Default)]
struct Config {
    task: Option<Value>,
    id: Option<Value>,
    url: Option<Value>,
    token: Option<Value>,
    authentication: Option<Authentication>,
    /// The path of HTTP+JSON 0.3: `tasks/{task}/pushNotificationConfigs/{id}`.
    name: Option<Value>,
    tenant: Option<Value>,
    /// The id that HTTP+JSON 0.3 has beside the configuration.
    config_id: Option<Value>,
}

/// How the agent authenticates at the webhook.
#[derive(Default)]
struct Authentication {
    scheme: Option<Value>,
    /// The list of 0.3, of which 1.0 takes the first.
    schemes: Option<Value>,
    credentials: Option<Value>,
}

/// Writes the configuration that follows, without its task.
pub(super) fn push_config(pass: &mut Pass<'_>) -> Result<(), Failure> {
    let mut config = Config::default();
    read_config(pass, &mut config)?;
    pass.push = true;
    pass.out.push(b'{');
    put_config(pass, &config);
    pass.close();
    Ok(())
}

/// Writes the configuration of a task that follows. `task`: the id that its path has.
pub(super) fn push_config_of_task(pass: &mut Pass<'_>, task: Option<&str>) -> Result<(), Failure> {
    let mut config = Config::default();
    read_config(pass, &mut config)?;
    pass.push = true;
    let named = match config.name {
        Some(name) => task_of(pass, name)?,
        None => None,
    };
    let task = match (task.map(str::to_owned).or(named), config.task) {
        (Some(task), _) => Some(quote_string(&task)),
        (None, Some(task)) => Some(String::from_utf8_lossy(task.raw(pass.text)).into_owned()),
        (None, None) => None,
    };
    pass.task = task.as_deref().and_then(unescape_string);
    // The path in `name` would be read as another one.
    let is_split = |id: &str| !id.is_empty() && !is_segment(id);
    let id = config.id.map(|id| id.unescaped(pass.text));
    let id = id.map(|id| String::from_utf8_lossy(&id).into_owned());
    let splits_id = id.as_deref().is_some_and(is_split);
    let names = pass.settings.is_request && pass.settings.to == Form::V0Rest;
    if names && (splits_id || pass.task.as_deref().is_some_and(is_split)) {
        return Err(Failure::Params(if splits_id { "id" } else { "taskId" }));
    }
    pass.out.push(b'{');
    if pass.settings.to == Form::V1 {
        if let Some(task) = &task {
            pass.put_json("taskId", task);
        }
        put_config(pass, &config);
        if let Some(tenant) = pass.settings.tenant.filter(|_| pass.settings.is_request) {
            pass.put_json("tenant", &quote_string(tenant));
        }
    } else {
        if pass.settings.to == Form::V0Rest {
            let (task, id) = (pass.task.as_deref(), id.as_deref());
            let (task, id) = (task.unwrap_or_default(), id.unwrap_or_default());
            let name = format!("tasks/{task}/pushNotificationConfigs/{id}");
            pass.put_json("name", &quote_string(&name));
        } else {
            pass.put_json("taskId", task.as_deref().unwrap_or("\"\""));
        }
        pass.put("\"pushNotificationConfig\":{");
        put_config(pass, &config);
        pass.close();
    }
    pass.close();
    Ok(())
}

/// Returns the task in a resource name of HTTP+JSON 0.3.
///
/// # Errors
/// A request names it percent-encoded: the checks before read the name as it is spelled.
fn task_of(pass: &Pass<'_>, name: Value) -> Result<Option<String>, Failure> {
    let said = name.unescaped(pass.text);
    if pass.settings.is_request && said.contains(&b'%') {
        return Err(Failure::Params("name"));
    }
    let said = std::str::from_utf8(&said).unwrap_or_default();
    let task = said
        .strip_prefix("tasks/")
        .and_then(|rest| rest.split('/').next());
    let decoded = task.and_then(|task| percent_decode(task.as_bytes()).decode_utf8().ok());
    Ok(decoded.map(std::borrow::Cow::into_owned))
}

fn read_config(pass: &mut Pass<'_>, config: &mut Config) -> Result<(), Failure> {
    if pass.walker.peek() != Some(b'{') {
        return Err(Failure::Params(LABEL));
    }
    let is_v1 = pass.settings.from == Form::V1;
    pass.walk_members(|pass, name| {
        let is_object = pass.walker.peek() == Some(b'{');
        match &*to_camel_case(name).unwrap_or_default() {
            b"pushNotificationConfig" | b"config" if !is_v1 && is_object => {
                read_config(pass, config)
            }
            b"authentication" if is_object => read_authentication(pass, config),
            b"taskId" => pass.fill_slot(&mut config.task, "taskId"),
            b"id" => pass.fill_slot(&mut config.id, "id"),
            b"url" => pass.fill_slot(&mut config.url, "url"),
            b"token" => pass.fill_slot(&mut config.token, "token"),
            b"name" if !is_v1 => pass.fill_slot(&mut config.name, "name"),
            b"configId" if !is_v1 => pass.fill_slot(&mut config.config_id, "configId"),
            b"parent" if !is_v1 => Ok(pass.walker.read_value().map(drop)?),
            b"tenant" if is_v1 => {
                pass.left.add(LABEL, "tenant");
                pass.fill_slot(&mut config.tenant, "tenant")
            }
            _ => {
                if pass.walker.read_value()?.kind != Kind::Null {
                    pass.left.add(LABEL, "other");
                }
                Ok(())
            }
        }
    })?;
    config.id = config.id.or(config.config_id);
    Ok(())
}

fn read_authentication(pass: &mut Pass<'_>, config: &mut Config) -> Result<(), Failure> {
    const LABEL: &str = "authentication";
    let mut found = Authentication::default();
    pass.walk_members(|pass, name| match name {
        b"scheme" => pass.fill_slot(&mut found.scheme, "scheme"),
        b"credentials" => pass.fill_slot(&mut found.credentials, "credentials"),
        b"schemes" if pass.walker.peek() == Some(b'[') => {
            let mut first = None;
            let (to, left) = (pass.settings.to, &mut pass.left);
            let list = pass.walker.walk_array(|walker| {
                let value = walker.read_value()?;
                if first.is_some() && to == Form::V1 {
                    left.add(LABEL, "schemes");
                }
                first.get_or_insert(value);
                Ok(())
            })?;
            (found.scheme, found.schemes) = (first, Some(list));
            Ok(())
        }
        _ => {
            pass.walker.read_value()?;
            pass.left.add(LABEL, "other");
            Ok(())
        }
    })?;
    if config.authentication.replace(found).is_some() && pass.settings.is_request {
        return Err(Failure::Twice(LABEL));
    }
    Ok(())
}

fn put_config(pass: &mut Pass<'_>, config: &Config) {
    let is_v0 = pass.settings.to.is_v0();
    let given = |value: Option<Value>| value.filter(|value| !value.is_void());
    for (name, value) in [
        ("id", config.id),
        ("url", config.url),
        ("token", config.token),
    ] {
        match given(value) {
            Some(value) => pass.put_member(name, value),
            None if name == "url" && pass.settings.to == Form::V0 => pass.put("\"url\":\"\","),
            None => {}
        }
    }
    let Some(authentication) = &config.authentication else {
        return;
    };
    pass.put("\"authentication\":{");
    let scheme = given(authentication.scheme);
    match (authentication.schemes, scheme) {
        (Some(schemes), _) if is_v0 => pass.put_member("schemes", schemes),
        (None, Some(scheme)) if is_v0 => {
            pass.put("\"schemes\":[");
            pass.copy(scheme);
            pass.put("],");
        }
        (None, None) if is_v0 => pass.put("\"schemes\":[],"),
        (_, Some(scheme)) => pass.put_member("scheme", scheme),
        (_, None) => {}
    }
    if let Some(credentials) = given(authentication.credentials) {
        pass.put_member("credentials", credentials);
    }
    pass.close();
    pass.out.push(b',');
}
