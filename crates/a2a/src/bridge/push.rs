//! Push configurations: 0.3 nests one beside its task, 1.0 has one object for both, and HTTP+JSON of 0.3
//! names the task in a path.

use percent_encoding::percent_decode;

use super::failure::Fault;
use super::pass::Pass;
use super::table::{Form, camel};
use crate::fields::{quoted, said};
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
pub(super) fn push_config(pass: &mut Pass<'_>) -> Result<(), Fault> {
    let mut config = Config::default();
    read_config(pass, &mut config)?;
    pass.push = true;
    pass.out.push(b'{');
    put_config(pass, &config);
    pass.close();
    Ok(())
}

/// Writes the configuration of a task that follows. `task`: the id that its path has.
pub(super) fn push_config_of_task(pass: &mut Pass<'_>, task: Option<&str>) -> Result<(), Fault> {
    let mut config = Config::default();
    read_config(pass, &mut config)?;
    pass.push = true;
    let named = match config.name {
        Some(name) => task_of(pass, name)?,
        None => None,
    };
    let task = match (task.map(str::to_owned).or(named), config.task) {
        (Some(task), _) => Some(quoted(&task)),
        (None, Some(task)) => Some(String::from_utf8_lossy(task.raw(pass.text)).into_owned()),
        (None, None) => None,
    };
    pass.task = task.as_deref().and_then(said);
    // The path in `name` would be read as another one.
    let is_split = |id: &str| !id.is_empty() && !is_segment(id);
    let id = config.id.map(|id| id.said(pass.text));
    let id = id.is_some_and(|id| is_split(&String::from_utf8_lossy(&id)));
    let names = pass.settings.is_request && pass.settings.to == Form::V0Rest;
    if names && (id || pass.task.as_deref().is_some_and(is_split)) {
        return Err(Fault::Shape(if id { "id" } else { "taskId" }));
    }
    pass.out.push(b'{');
    match pass.settings.to {
        Form::V1 => {
            put_task(pass, "taskId", task.as_deref());
            put_config(pass, &config);
            put_tenant(pass);
        }
        Form::V0 => {
            put_task(pass, "taskId", Some(task.as_deref().unwrap_or("\"\"")));
            pass.put("\"pushNotificationConfig\":{");
            put_config(pass, &config);
            pass.close();
        }
        Form::V0Rest => {
            let name = name_of(pass, task.as_deref(), config.id);
            put_task(pass, "name", Some(&name));
            pass.put("\"pushNotificationConfig\":{");
            put_config(pass, &config);
            pass.close();
        }
    }
    pass.close();
    Ok(())
}

fn put_task(pass: &mut Pass<'_>, name: &str, task: Option<&str>) {
    if let Some(task) = task {
        pass.name(name);
        pass.put(task);
        pass.out.push(b',');
    }
}

fn put_tenant(pass: &mut Pass<'_>) {
    if let Some(tenant) = pass.settings.tenant.filter(|_| pass.settings.is_request) {
        pass.name("tenant");
        pass.put(&quoted(tenant));
        pass.out.push(b',');
    }
}

/// Returns the task in a resource name of HTTP+JSON 0.3.
///
/// # Errors
/// A request names it percent-encoded: the checks before read the name as it is spelled.
fn task_of(pass: &Pass<'_>, name: Value) -> Result<Option<String>, Fault> {
    let said = name.said(pass.text);
    if pass.settings.is_request && said.contains(&b'%') {
        return Err(Fault::Shape("name"));
    }
    let said = std::str::from_utf8(&said).unwrap_or_default();
    let task = said
        .strip_prefix("tasks/")
        .and_then(|rest| rest.split('/').next());
    let decoded = task.and_then(|task| percent_decode(task.as_bytes()).decode_utf8().ok());
    Ok(decoded.map(std::borrow::Cow::into_owned))
}

/// Returns the path in HTTP+JSON 0.3, as JSON.
fn name_of(pass: &Pass<'_>, task: Option<&str>, id: Option<Value>) -> String {
    let task: Option<String> = task.and_then(|task| serde_json::from_str(task).ok());
    let id = id.map(|id| String::from_utf8_lossy(&id.said(pass.text)).into_owned());
    let (task, id) = (task.unwrap_or_default(), id.unwrap_or_default());
    quoted(&format!("tasks/{task}/pushNotificationConfigs/{id}"))
}

fn read_config(pass: &mut Pass<'_>, config: &mut Config) -> Result<(), Fault> {
    if pass.walker.peek() != Some(b'{') {
        return Err(Fault::Shape(LABEL));
    }
    let is_v1 = pass.settings.from == Form::V1;
    let mut more = pass.walker.begin(b'{', b'}')?;
    while more {
        let name = pass.walker.name()?;
        let said = camel(&name.said).unwrap_or_default();
        let is_object = pass.walker.peek() == Some(b'{');
        match &*said {
            b"pushNotificationConfig" | b"config" if !is_v1 && is_object => {
                read_config(pass, config)?;
            }
            b"authentication" if is_object => read_authentication(pass, config)?,
            b"taskId" => slot(pass, &mut config.task, "taskId")?,
            b"id" => slot(pass, &mut config.id, "id")?,
            b"url" => slot(pass, &mut config.url, "url")?,
            b"token" => slot(pass, &mut config.token, "token")?,
            b"name" if !is_v1 => slot(pass, &mut config.name, "name")?,
            b"configId" if !is_v1 => slot(pass, &mut config.config_id, "configId")?,
            b"parent" if !is_v1 => drop(pass.walker.value()?),
            b"tenant" if is_v1 => {
                slot(pass, &mut config.tenant, "tenant")?;
                pass.left.add(LABEL, "tenant");
            }
            _ => {
                let value = pass.walker.value()?;
                if value.kind != Kind::Null {
                    pass.left.add(LABEL, "other");
                }
            }
        }
        more = pass.walker.more(b'}')?;
    }
    config.id = config.id.or(config.config_id);
    Ok(())
}

fn slot(pass: &mut Pass<'_>, slot: &mut Option<Value>, name: &'static str) -> Result<(), Fault> {
    let value = pass.walker.value()?;
    if slot.replace(value).is_some() && pass.settings.is_request {
        return Err(Fault::Twice(name));
    }
    Ok(())
}

fn read_authentication(pass: &mut Pass<'_>, config: &mut Config) -> Result<(), Fault> {
    let mut found = Authentication::default();
    let mut more = pass.walker.begin(b'{', b'}')?;
    while more {
        let name = pass.walker.name()?;
        match &*name.said {
            b"scheme" => slot(pass, &mut found.scheme, "scheme")?,
            b"credentials" => slot(pass, &mut found.credentials, "credentials")?,
            b"schemes" if pass.walker.peek() == Some(b'[') => {
                let (mut first, mut count) = (None, 0);
                let list = pass.walker.array(|walker| {
                    let value = walker.value()?;
                    count += 1;
                    first.get_or_insert(value);
                    Ok(())
                })?;
                (found.scheme, found.schemes) = (first, Some(list));
                for _ in 1..if pass.settings.to == Form::V1 {
                    count
                } else {
                    1
                } {
                    pass.left.add("authentication", "schemes");
                }
            }
            _ => {
                pass.walker.value()?;
                pass.left.add("authentication", "other");
            }
        }
        more = pass.walker.more(b'}')?;
    }
    if config.authentication.replace(found).is_some() && pass.settings.is_request {
        return Err(Fault::Twice("authentication"));
    }
    Ok(())
}

fn put_config(pass: &mut Pass<'_>, config: &Config) {
    let is_v0 = pass.settings.to.is_v0();
    let given = |value: Option<Value>| value.filter(|value| !value.is_void());
    if let Some(id) = given(config.id) {
        pass.member("id", id);
    }
    match given(config.url) {
        Some(url) => pass.member("url", url),
        None if pass.settings.to == Form::V0 => pass.put("\"url\":\"\","),
        None => {}
    }
    if let Some(token) = given(config.token) {
        pass.member("token", token);
    }
    let Some(authentication) = &config.authentication else {
        return;
    };
    pass.put("\"authentication\":{");
    let scheme = given(authentication.scheme);
    match (authentication.schemes, scheme) {
        (Some(schemes), _) if is_v0 => pass.member("schemes", schemes),
        (None, Some(scheme)) if is_v0 => {
            pass.put("\"schemes\":[");
            pass.copy(scheme);
            pass.put("],");
        }
        (None, None) if is_v0 => pass.put("\"schemes\":[],"),
        (_, Some(scheme)) => pass.member("scheme", scheme),
        (_, None) => {}
    }
    if let Some(credentials) = given(authentication.credentials) {
        pass.member("credentials", credentials);
    }
    pass.close();
    pass.out.push(b',');
}
