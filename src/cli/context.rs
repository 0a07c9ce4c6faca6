//! `a2a-gateway context`: gateways by name, each with its URLs and its token, in a file of this user.

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use clap_complete::engine::ArgValueCandidates;
use serde_json::{Value, json};
use url::Url;

use super::access::{
    Context, Contexts, ContextsError, Secret, names_for_shells, token_alone, without_user,
};
use super::client::{Failure, finish, format_json};
use super::parse_http_url;
use super::table::align_columns;

/// Longest token on standard input, in bytes.
const TOKEN_BYTES_MAX: u64 = 64 * 1024;

const EXAMPLES: &str = "\
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
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
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
struct AddArguments {
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

impl From<ContextsError> for Failure {
    fn from(error: ContextsError) -> Self {
        Self::Access(error.into())
    }
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    finish(run_command(&arguments.command))
}

fn run_command(command: &Command) -> Result<String, Failure> {
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
            let note = if was_current {
                "; there is no current one now: `a2a-gateway context use` chooses one"
            } else {
                ""
            };
            Ok(format!("{name} was removed{note}\n"))
        }
        Command::Show { name, json } => {
            let contexts = Contexts::read()?;
            let context = match name {
                Some(name) => Some(contexts.find(name)?),
                None => contexts.current()?,
            };
            let context = context.ok_or_else(|| {
                let complaint =
                    "there is no current context: `a2a-gateway context use` chooses one";
                Failure::Usage(complaint.to_owned())
            })?;
            let is_current = contexts.current_name() == Some(&context.name);
            Ok(format_context(&context, is_current, *json))
        }
    }
}

fn add_context(arguments: &AddArguments) -> Result<String, Failure> {
    let name = &arguments.name;
    let mut given = arguments.url.iter().chain(&arguments.admin);
    if given.any(|url| without_user(url) != url.as_str()) {
        let complaint =
            "write URLs without a user and a password: give the token with --token or --token-file";
        return Err(Failure::Usage(complaint.to_owned()));
    }
    // Before the lock, since a user may write it.
    let token = arguments.token.as_deref().map(read_token).transpose()?;
    let (_locked, mut contexts) = Contexts::lock_and_read()?;
    let mut context = base_context(&contexts, arguments)?;
    if let Some(admin) = &arguments.admin {
        context.admin_url = Some(admin.clone());
    }
    if let Some(token) = token {
        context.secret = Secret::Inline(token);
    } else if let Some(path) = &arguments.token_file {
        context.secret = Secret::File(std::path::absolute(path)?);
        // As each later command would.
        context.read_token()?;
    }
    let is_changed = contexts.contains(name);
    contexts.insert(context, arguments.replace)?;
    if arguments.choose {
        contexts.set_current(name)?;
    }
    contexts.write()?;
    let note = if contexts.current_name() == Some(name) {
        ", and is the current context"
    } else {
        ""
    };
    let was = if is_changed { "changed" } else { "added" };
    Ok(format!("{name} was {was}{note}\n"))
}

/// Returns what stays of the context that is to be changed, else an empty one. Its token goes to no other gateway.
fn base_context(contexts: &Contexts, arguments: &AddArguments) -> Result<Context, Failure> {
    let name = &arguments.name;
    let known = match arguments.replace && contexts.contains(name) {
        true => Some(contexts.find(name)?),
        false => None,
    };
    match (known, &arguments.url) {
        (Some(known), None) => Ok(known),
        (Some(known), Some(url)) if known.url == *url => Ok(known),
        (_, Some(url)) => Ok(Context {
            name: name.clone(),
            url: url.clone(),
            admin_url: None,
            secret: Secret::None,
        }),
        (None, None) => {
            let complaint = format!("there is no context {name:?} to change: give --url, too");
            Err(Failure::Usage(complaint))
        }
    }
}

/// Returns a token as it was given, or from standard input.
fn read_token(token: &str) -> Result<String, Failure> {
    let mut text = token.to_owned();
    if token == "-" {
        text.clear();
        io::stdin()
            .take(TOKEN_BYTES_MAX)
            .read_to_string(&mut text)?;
    }
    match token_alone(text.as_bytes()) {
        Ok(token) if token.is_empty() => Err(Failure::Usage("the token is empty".to_owned())),
        token => token.map_err(|why| Failure::Usage(format!("the token is none: {why}"))),
    }
}

fn format_list(contexts: &Contexts, json: bool) -> String {
    let current = contexts.current_name();
    let list = contexts.list();
    if json {
        let list = list
            .iter()
            .map(|one| as_json(one, current == Some(&one.name)));
        return format_json(&list.collect());
    }
    if list.is_empty() {
        return "no context is there: `a2a-gateway context add` adds one\n".to_owned();
    }
    let rows: Vec<Vec<String>> = list
        .iter()
        .map(|one| {
            let is_current = current == Some(&one.name);
            vec![
                if is_current { "*" } else { " " }.to_owned(),
                one.name.clone(),
                without_user(&one.url),
                one.admin_url
                    .as_ref()
                    .map_or_else(String::new, without_user),
                describe_credential(one),
            ]
        })
        .collect();
    align_columns(&[" ", "NAME", "URL", "ADMIN URL", "TOKEN"], &rows)
}

/// Says where the token is, and never what it is.
fn describe_credential(context: &Context) -> String {
    match &context.secret {
        Secret::None => String::new(),
        Secret::Inline(_) => "kept with the context".to_owned(),
        Secret::File(path) => path.display().to_string(),
    }
}

fn as_json(context: &Context, is_current: bool) -> Value {
    let (kept, file) = match &context.secret {
        Secret::None => (false, None),
        Secret::Inline(_) => (true, None),
        Secret::File(path) => (false, Some(path.display().to_string())),
    };
    json!({
        "name": context.name,
        "current": is_current,
        "url": without_user(&context.url),
        "admin_url": context.admin_url.as_ref().map(without_user),
        "has_token": kept,
        "token_file": file,
    })
}

fn format_context(context: &Context, is_current: bool, json: bool) -> String {
    if json {
        return format_json(&as_json(context, is_current));
    }
    let none = || "-".to_owned();
    let admin = context.admin_url.as_ref().map_or_else(none, without_user);
    let token = Some(describe_credential(context)).filter(|told| !told.is_empty());
    format!(
        "name:       {}{}\nurl:        {}\nadmin url:  {admin}\ntoken:      {}\n",
        context.name,
        if is_current { "  (current)" } else { "" },
        without_user(&context.url),
        token.unwrap_or_else(none),
    )
}
