//! `a2a-gateway login` and `whoami`: which gateway commands ask, with which token, and who that is there.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use gateway_client::{Registry, RegistryError};
use http::Method;
use serde_json::{Value, json};
use url::Url;

use super::access::{Context, Contexts, OperatorAccess, is_loopback, without_user};
use super::context::{AddArguments, add_context};
use super::failure::Failure;
use super::parse_http_url;
use super::table::format_json;
use super::terminal::{ask_line, print_note};

/// The default address of a gateway on this machine.
const LOCAL: &str = "http://127.0.0.1:8080";

/// `a2a-gateway login`.
#[derive(clap::Args, Debug)]
pub struct LoginArguments {
    /// Base URL of the gateway; without it, asked for on a terminal
    #[arg(value_parser = parse_http_url)]
    url: Option<Url>,
    /// Base URL of the admin listener, for `explain`, `health` and what is past
    #[arg(long, value_name = "URL", value_parser = parse_http_url)]
    admin: Option<Url>,
    /// The name of the context [default: the host of the URL]
    #[arg(long)]
    name: Option<String>,
    /// The token; `-` reads it from standard input, where other users cannot see it
    #[arg(long, conflicts_with = "token_file")]
    token: Option<String>,
    /// File with the token, read for each command; others must not be able to read it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// `a2a-gateway whoami`.
#[derive(clap::Args, Debug)]
pub struct WhoamiArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// Runs `a2a-gateway login`.
pub async fn run_login(arguments: &LoginArguments) -> Result<String, Failure> {
    let url = match &arguments.url {
        Some(url) => url.clone(),
        None => ask_url()?,
    };
    let (mut token, mut token_file) = (arguments.token.clone(), arguments.token_file.clone());
    if token.is_none() && token_file.is_none() {
        let given = ask("token, or the file with it: ", "--token - or --token-file")?;
        // A path has no form of a token.
        match given.starts_with("a2a") || given.matches('.').count() == 2 && !given.contains('/') {
            true => token = Some(given),
            false => token_file = Some(given.into()),
        }
    }
    let name = arguments.name.clone();
    let name = name.or_else(|| {
        url.host_str()
            .map(|host| host.trim_matches(['[', ']']).replace(':', "-"))
    });
    let name = name.ok_or_else(|| Failure::usage("the URL has no host"))?;
    let admin = match &arguments.admin {
        Some(admin) => Some(admin.clone()),
        None => find_admin(&url).await,
    };
    let replace = Contexts::read()?.list.contains_key(&name);
    let arguments = AddArguments {
        name,
        url: Some(url),
        admin,
        token,
        token_file,
        caller: None,
        offline: false,
        replace,
        choose: true,
    };
    add_context(&arguments).await
}

fn ask_url() -> Result<Url, Failure> {
    let typed = ask(&format!("URL of the gateway [{LOCAL}]: "), "the URL")?;
    let typed = if typed.is_empty() { LOCAL } else { &typed };
    parse_http_url(typed).map_err(Failure::usage)
}

/// Asks on a terminal; elsewhere `flag` has to say it.
fn ask(question: &str, flag: &str) -> Result<String, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(format!(
            "there is no terminal to ask on: give {flag}"
        )));
    }
    ask_line(question)?.ok_or_else(|| Failure::usage(format!("nothing was typed: give {flag}")))
}

/// Returns the admin listener at its default place, if one is there: it is on the gateway's own machine alone.
async fn find_admin(url: &Url) -> Option<Url> {
    if !is_loopback(url) {
        return None;
    }
    let admin = parse_http_url("http://127.0.0.1:9090").ok()?;
    let client = Registry::new(admin.clone());
    let ready = client
        .request(Method::GET, "/readyz", &[])
        .send()
        .await
        .ok()?;
    let (_, body) = ready.read_json().await.ok()?;
    body["status"].is_string().then_some(admin)
}

/// Runs `a2a-gateway whoami`.
pub async fn run_whoami(arguments: &WhoamiArguments) -> Result<String, Failure> {
    let client = arguments.gateway.build_client()?;
    let url = client.request(Method::GET, "/", &[]).url;
    let url = without_user(&url);
    let who = identify(&client).await?;
    Ok(match arguments.json {
        true => format_json(&json!({"url": url, "who": who})),
        false => format!("{} at {url}\n", describe(&who)),
    })
}

/// Tries what a context has: that a gateway is there, and takes the token. Returns who the token proves. What cannot be
/// reached is said, and is no failure: it may be up later.
///
/// # Errors
/// Another server answers, or the gateway does not take the token.
pub(crate) async fn try_context(context: &Context, given: Option<&str>) -> Result<String, Failure> {
    let token = match given {
        Some(token) => Some(token.to_owned()),
        None => context.read_token()?,
    };
    let shown = without_user(&context.url);
    let client = Registry::for_user(context.url.clone(), token, "");
    let about = client.get("/.well-known/a2a-gateway", &[]).await;
    match about {
        Ok(about) if about["issuer"].is_string() => {}
        Err(error) if error.status().is_none() => {
            print_note(&format!("could not be tried: {error}"));
            return Ok(format!("{shown} was not reached"));
        }
        _ => {
            return Err(Failure::usage(format!(
                "{shown} is no public listener of a gateway (server.listen), such as {LOCAL}; --offline adds it all the same"
            )));
        }
    }
    if client.token.is_none() {
        return Ok(format!("{shown} is a gateway; there is no token"));
    }
    Ok(format!(
        "{} at {shown}",
        describe(&identify(&client).await?)
    ))
}

/// Asks who the client's token proves.
///
/// # Errors
/// The gateway does not take the token, or does not answer.
async fn identify(client: &Registry) -> Result<Value, Failure> {
    let request = client.request(Method::GET, "/operators/me", &[]);
    let token = client.token.as_deref().unwrap_or_default();
    match request.fetch_json().await {
        Ok(mut operator) => {
            operator["kind"] = json!("operator");
            Ok(operator)
        }
        // Any other kind is known to the gateway, and is no operator.
        Err(RegistryError::Refused { status: 403, .. }) => Ok(json!({"kind": kind_of(token)})),
        Err(error) => Err(error.into()),
    }
}

/// Returns what a token is by its form.
fn kind_of(token: &str) -> &'static str {
    match token.split_once('_').map(|(prefix, _)| prefix) {
        Some("a2aw") => "workspace",
        Some("a2ae") => "enrolment",
        Some("a2ao") => "org",
        _ => "signed",
    }
}

/// Returns who a token proves in words.
fn describe(who: &Value) -> String {
    let word = |name: &str| who[name].as_str();
    match word("kind") {
        Some("operator") => {
            let name = word("name")
                .or(word("label"))
                .map(|name| format!(" ({name})"));
            let role = word("role").unwrap_or("admin");
            format!("operator{}, role {role},", name.unwrap_or_default())
        }
        Some("workspace") => "a workspace's token, which is taken".to_owned(),
        Some("org") => "an org's token, which is taken".to_owned(),
        Some("enrolment") => "an enrolment token, good for one registration,".to_owned(),
        _ => "a signed token, which is taken".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_told_by_its_form_and_an_operator_by_name_and_role() {
        assert_eq!(kind_of("a2aw_x"), "workspace");
        assert_eq!(kind_of("eyJ.x.y"), "signed");
        let ada = json!({"kind": "operator", "role": "read", "label": "ada"});
        assert_eq!(describe(&ada), "operator (ada), role read,");
    }
}
