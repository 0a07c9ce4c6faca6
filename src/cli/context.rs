//! `a2a-gateway context`: gateways by name, each with its URLs and its token, in a file of this user.

use std::path::PathBuf;

use clap::Subcommand;
use clap_complete::engine::ArgValueCandidates;
use serde_json::{Value, json};
use url::Url;

use super::access::{Context, Contexts, names_for_shells, token_alone, without_user};
use super::client::format_json;
use super::failure::Failure;
use super::parse_http_url;
use super::table::align_columns;
use super::terminal::read_input;

/// Longest token on standard input, in bytes.
const TOKEN_BYTES_MAX: u64 = 64 * 1024;

pub(super) const EXAMPLES: &str = "\
Examples:
  a2a-gateway context add staging --url https://gateway.staging.example.com --token-file operator-token
  a2a-gateway context use staging
  a2a-gateway context list
  a2a-gateway context show staging

The file is A2A_CONTEXTS, else $XDG_CONFIG_HOME/a2a-gateway/contexts.toml, else
~/.config/a2a-gateway/contexts.toml; it has the mode 0600. A flag counts more than the environment,
the environment more than the current context. The token of a context goes to its own URLs alone.";

const ADD_EXAMPLES: &str = "\
Examples:
  a2a-gateway context add local --url http://127.0.0.1:8080 --admin http://127.0.0.1:9090 --token - < operator-token
  a2a-gateway context add staging --url https://gateway.staging.example.com --token-file operator-token
  a2a-gateway context add local --url http://127.0.0.1:8080 --replace
  a2a-gateway context add staging --replace --admin http://127.0.0.1:9090        keeps URL and token";

const LIST_EXAMPLES: &str = "\
Examples:
  a2a-gateway context list
  a2a-gateway context list --json";

const USE_EXAMPLES: &str = "\
Examples:
  a2a-gateway context use staging
  a2a-gateway stops --context staging     without a choice, for one command";

const REMOVE_EXAMPLES: &str = "\
Examples:
  a2a-gateway context remove staging";

const SHOW_EXAMPLES: &str = "\
Examples:
  a2a-gateway context show             the current one
  a2a-gateway context show staging --json";

/// `a2a-gateway context add|list|use|remove|show`.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Add a gateway by a name; the first one becomes the current context
    #[command(after_help = ADD_EXAMPLES)]
    Add(Box<AddArguments>),
    /// List the contexts
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Choose the context of commands that name none
    #[command(after_help = USE_EXAMPLES)]
    Use {
        /// Its name
        #[arg(add = ArgValueCandidates::new(names_for_shells))]
        name: String,
    },
    /// Remove a context from the file; the gateway is not asked
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove {
        /// Its name
        #[arg(add = ArgValueCandidates::new(names_for_shells))]
        name: String,
    },
    /// Show a context without its token
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// Its name [default: the current one]
        #[arg(add = ArgValueCandidates::new(names_for_shells))]
        name: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args, Debug)]
pub(super) struct AddArguments {
    /// Its name: letters, digits, `-`, `_` and `.`
    name: String,
    /// Base URL of the gateway; needed unless --replace keeps that of the context
    #[arg(long, value_name = "URL", value_parser = parse_http_url, required_unless_present = "replace")]
    url: Option<Url>,
    /// Base URL of the admin listener, for `explain`, `health` and `exchange tail`
    #[arg(long, value_name = "URL", value_parser = parse_http_url)]
    admin: Option<Url>,
    /// The token, kept in the file of contexts; `-` reads it from standard input, where other users cannot see it
    #[arg(long, conflicts_with = "token_file")]
    token: Option<String>,
    /// File with the token, read for each command; others must not be able to read it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Change the one with this name: what is not given stays. With another --url, neither admin URL nor token stay
    #[arg(long)]
    replace: bool,
    /// Make it the current context
    #[arg(long = "use")]
    choose: bool,
}

pub(super) fn run(command: &Command) -> Result<String, Failure> {
    match command {
        Command::Add(arguments) => add_context(arguments),
        Command::List { json } => Ok(format_list(&Contexts::read()?, *json)),
        Command::Use { name } => {
            let (_locked, mut contexts) = Contexts::lock_and_read()?;
            contexts.set_current(name)?;
            contexts.write()?;
            Ok(format!("{name} is the current context\n"))
        }
        Command::Remove { name } => {
            let (_locked, mut contexts) = Contexts::lock_and_read()?;
            let was_current = contexts.current_name() == Some(name);
            contexts.remove(name)?;
            contexts.write()?;
            let note = match was_current {
                true => "; there is no current one now: `a2a-gateway context use` chooses one",
                false => "",
            };
            Ok(format!("{name} was removed{note}\n"))
        }
        Command::Show { name, json } => {
            let contexts = Contexts::read()?;
            let name = name.as_deref().or(contexts.current_name());
            let name = name.ok_or_else(|| {
                Failure::usage("there is no current context: `a2a-gateway context use` chooses one")
            })?;
            let context = contexts.find(name)?;
            let is_current = contexts.current_name() == Some(name);
            Ok(format_context(name, context, is_current, *json))
        }
    }
}

fn add_context(arguments: &AddArguments) -> Result<String, Failure> {
    let name = &arguments.name;
    let mut given = arguments.url.iter().chain(&arguments.admin);
    if given.any(|url| without_user(url) != url.as_str()) {
        return Err(Failure::usage(
            "write URLs without a user and a password: give the token with --token or --token-file",
        ));
    }
    // Before the lock, since a user may write it.
    let token = arguments.token.as_deref().map(read_token).transpose()?;
    let (_locked, mut contexts) = Contexts::lock_and_read()?;
    let is_changed = contexts.list().contains_key(name);
    let mut context = base_context(&contexts, arguments)?;
    if let Some(admin) = &arguments.admin {
        context.admin_url = Some(admin.clone());
    }
    if token.is_some() || arguments.token_file.is_some() {
        let file = arguments.token_file.as_ref();
        context.token_file = file.map(std::path::absolute).transpose()?;
        context.token = token;
        // As each later command would.
        context.read_token()?;
    }
    contexts.insert(name, context, arguments.replace)?;
    if arguments.choose {
        contexts.set_current(name)?;
    }
    contexts.write()?;
    let note = match contexts.current_name() == Some(name) {
        true => ", and is the current context",
        false => "",
    };
    let was = if is_changed { "changed" } else { "added" };
    Ok(format!("{name} was {was}{note}\n"))
}

/// Returns what stays of the context that is to be changed, else an empty one. Its token goes to no other gateway.
fn base_context(contexts: &Contexts, arguments: &AddArguments) -> Result<Context, Failure> {
    let name = &arguments.name;
    let known = contexts.list().get(name);
    match (known.filter(|_| arguments.replace), &arguments.url) {
        (Some(known), url) if url.as_ref().is_none_or(|url| known.url == *url) => Ok(known.clone()),
        (_, Some(url)) => Ok(Context {
            url: url.clone(),
            admin_url: None,
            token: None,
            token_file: None,
        }),
        (_, None) => Err(Failure::usage(format!(
            "there is no context {name:?} to change: give --url, too"
        ))),
    }
}

/// Returns a token as it was given, or from standard input.
fn read_token(token: &str) -> Result<String, Failure> {
    let text = match token {
        "-" => read_input(TOKEN_BYTES_MAX)?,
        token => token.to_owned(),
    };
    match token_alone(text.as_bytes()) {
        Ok(token) if token.is_empty() => Err(Failure::usage("the token is empty")),
        token => token.map_err(|why| Failure::usage(format!("the token is none: {why}"))),
    }
}

fn format_list(contexts: &Contexts, json: bool) -> String {
    let is_current = |name: &str| contexts.current_name() == Some(name);
    let list = contexts.list().iter();
    if json {
        let list = list.map(|(name, context)| as_json(name, context, is_current(name)));
        return format_json(&list.collect());
    }
    let rows: Vec<Vec<String>> = list
        .map(|(name, context)| {
            let mark = if is_current(name) { "*" } else { " " };
            let admin = context.admin_url.as_ref().map(without_user);
            vec![
                mark.to_owned(),
                name.clone(),
                without_user(&context.url),
                admin.unwrap_or_default(),
                describe_credential(context),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "no context is there: `a2a-gateway context add` adds one\n".to_owned();
    }
    align_columns(&[" ", "NAME", "URL", "ADMIN URL", "TOKEN"], &rows)
}

/// Says where the token is, and never what it is.
fn describe_credential(context: &Context) -> String {
    match (&context.token, &context.token_file) {
        (None, None) => String::new(),
        (Some(_), _) => "kept with the context".to_owned(),
        (None, Some(path)) => path.display().to_string(),
    }
}

fn as_json(name: &str, context: &Context, is_current: bool) -> Value {
    let file = context
        .token_file
        .as_ref()
        .filter(|_| context.token.is_none());
    json!({
        "name": name,
        "current": is_current,
        "url": without_user(&context.url),
        "admin_url": context.admin_url.as_ref().map(without_user),
        "has_token": context.token.is_some(),
        "token_file": file.map(|path| path.display().to_string()),
    })
}

fn format_context(name: &str, context: &Context, is_current: bool, json: bool) -> String {
    if json {
        return format_json(&as_json(name, context, is_current));
    }
    let admin = context.admin_url.as_ref().map(without_user);
    let token = Some(describe_credential(context)).filter(|token| !token.is_empty());
    let [admin, token] = [admin, token].map(|value| value.unwrap_or_else(|| "-".to_owned()));
    format!(
        "name:       {name}{}\nurl:        {}\nadmin url:  {admin}\ntoken:      {token}\n",
        if is_current { "  (current)" } else { "" },
        without_user(&context.url),
    )
}
