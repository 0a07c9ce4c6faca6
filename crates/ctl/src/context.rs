//! `a2a-gateway context`: gateways by name, each with its URLs and its token, in a file of this user.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Subcommand;
use clap_complete::engine::ArgValueCandidates;
use serde_json::{Value, json};
use url::Url;

use super::access::{Context, Contexts, names_for_shells, token_alone, without_user};
use super::failure::Failure;
use super::parse_http_url;
use super::table::{Table, align_rows, format_cell, format_json};
use super::terminal::read_input;
use super::who;

/// Longest token on standard input, in bytes.
const TOKEN_BYTES_MAX: u64 = 64 * 1024;

const COLUMNS: Table<'_> = Table {
    columns: "_=mark NAME=name URL=url ADMIN_URL=admin_url TOKEN=token",
    made: &[("mark", mark_current), ("token", describe_credential)],
    none: "no context is there: `a2a-gateway context add` adds one",
};

/// `a2a-gateway context add|list|use|remove|show`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Add a gateway by a name; the first one becomes the current context
    Add(Box<AddArguments>),
    /// List the contexts
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Choose the context of commands that name none
    Use {
        /// Its name
        #[arg(add = ArgValueCandidates::new(names_for_shells))]
        name: String,
    },
    /// Remove a context from the file; the gateway is not asked
    Remove {
        /// Its name
        #[arg(add = ArgValueCandidates::new(names_for_shells))]
        name: String,
    },
    /// Show a context without its token
    Show {
        /// Its name [default: the current one]
        #[arg(add = ArgValueCandidates::new(names_for_shells))]
        name: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `a2a-gateway context add`.
#[derive(clap::Args, Debug)]
pub struct AddArguments {
    /// Its name: letters, digits, `-`, `_` and `.`
    pub(super) name: String,
    /// Base URL of the gateway; needed unless --replace keeps that of the context
    #[arg(long, value_name = "URL", value_parser = parse_http_url, required_unless_present = "replace")]
    pub(super) url: Option<Url>,
    /// Base URL of the admin listener, for `explain`, `health` and `exchange tail`
    #[arg(long, value_name = "URL", value_parser = parse_http_url)]
    pub(super) admin: Option<Url>,
    /// The token, kept in the file of contexts; `-` reads it from standard input, where other users cannot see it
    #[arg(long, conflicts_with = "token_file")]
    pub(super) token: Option<String>,
    /// File with the token, read for each command; others must not be able to read it
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// The token is that of this workspace, for `send --as` and `task --as`; may be added to for others with --replace
    #[arg(
        id = "as",
        long,
        value_name = "WORKSPACE",
        requires = "token",
        conflicts_with = "token_file"
    )]
    pub(super) caller: Option<String>,
    /// Do not ask the gateway whether it is there and takes the token
    #[arg(long)]
    pub(super) offline: bool,
    /// Change the one with this name: what is not given stays. With another --url, neither admin URL nor token stay
    #[arg(long)]
    pub(super) replace: bool,
    /// Make it the current context
    #[arg(long = "use")]
    pub(super) choose: bool,
}

/// Runs `a2a-gateway context`.
pub async fn run(command: &Command) -> Result<String, Failure> {
    match command {
        Command::Add(arguments) => add_context(arguments).await,
        Command::List { json } => {
            let contexts = Contexts::read()?;
            let list = contexts.list.iter();
            let list = list.map(|(name, context)| as_json(&contexts, name, context));
            Ok(COLUMNS.show(list.collect(), *json))
        }
        Command::Use { name } => {
            let (_locked, mut contexts) = Contexts::lock_and_read()?;
            contexts.set_current(name)?;
            contexts.write()?;
            Ok(format!("{name} is the current context\n"))
        }
        Command::Remove { name } => {
            let (_locked, mut contexts) = Contexts::lock_and_read()?;
            let was_current = contexts.remove(name)?;
            let note = match was_current && contexts.current.is_none() {
                true => "; there is no current one now: `a2a-gateway context use` chooses one",
                false => "",
            };
            contexts.write()?;
            Ok(format!("{name} was removed{note}\n"))
        }
        Command::Show { name, json } => {
            let contexts = Contexts::read()?;
            let name = name.as_ref().or(contexts.current.as_ref());
            let name = name.ok_or_else(|| {
                Failure::usage("there is no current context: `a2a-gateway context use` chooses one, `a2a-gateway login` makes one")
            })?;
            let context = as_json(&contexts, name, contexts.find(name)?);
            Ok(match json {
                true => format_json(&context),
                false => format_context(&context),
            })
        }
    }
}

pub(super) async fn add_context(arguments: &AddArguments) -> Result<String, Failure> {
    let name = &arguments.name;
    let mut given = arguments.url.iter().chain(&arguments.admin);
    if given.any(|url| without_user(url) != url.as_str()) {
        return Err(Failure::usage(
            "write URLs without a user and a password: give the token with --token or --token-file",
        ));
    }
    // Before the lock, since a user may write it.
    let token = arguments.token.as_deref().map(read_token).transpose()?;
    let context = build_context(&Contexts::read()?, arguments, token.clone())?;
    // Before the lock, too, since it takes a while.
    let tried = match arguments.offline {
        true => None,
        false => Some(who::try_context(&context, token.as_deref()).await?),
    };
    let (_locked, mut contexts) = Contexts::lock_and_read()?;
    let is_changed = contexts.list.contains_key(name);
    let context = build_context(&contexts, arguments, token)?;
    contexts.insert(name, context, arguments.replace)?;
    if arguments.choose {
        contexts.set_current(name)?;
    }
    contexts.write()?;
    let note = match contexts.current.as_ref() == Some(name) {
        true => ", and is the current context",
        false => "",
    };
    let tried = tried.map_or_else(String::new, |tried| format!("{tried}\n"));
    let was = if is_changed { "changed" } else { "added" };
    Ok(format!("{tried}{name} was {was}{note}\n"))
}

/// Returns the context that the arguments make, with what stays of the one that is changed.
fn build_context(
    contexts: &Contexts,
    arguments: &AddArguments,
    token: Option<String>,
) -> Result<Context, Failure> {
    let mut context = base_context(contexts, arguments)?;
    if let Some(admin) = &arguments.admin {
        context.admin_url = Some(admin.clone());
    }
    if let (Some(caller), Some(token)) = (&arguments.caller, &token) {
        context.callers.insert(caller.clone(), token.clone());
    } else if token.is_some() || arguments.token_file.is_some() {
        let file = arguments.token_file.as_ref();
        context.token_file = file.map(std::path::absolute).transpose()?;
        context.token = token;
        // As each later command would.
        context.read_token()?;
    }
    Ok(context)
}

/// Makes the context `name` of a gateway, its operator's token and tokens of callers, in place of one of this name,
/// and the current one.
///
/// # Errors
/// The file cannot be read or written.
pub fn save_context(
    name: &str,
    (url, admin_url): (Url, Url),
    token: String,
    callers: BTreeMap<String, String>,
) -> Result<(), Failure> {
    let (_locked, mut contexts) = Contexts::lock_and_read()?;
    let before = contexts.current.take_if(|current| *current != name);
    let context = Context {
        url,
        admin_url: Some(admin_url),
        token: Some(token),
        token_file: None,
        before,
        callers,
    };
    contexts.insert(name, context, true)?;
    contexts.set_current(name)?;
    contexts.write()
}

/// Returns the public URL in a context, if there is one of this name and the file can be read.
pub fn find_context(name: &str) -> Option<Url> {
    let contexts = Contexts::read().ok()?;
    contexts.list.get(name).map(|context| context.url.clone())
}

/// Removes a context. The one that was current before it is so again.
///
/// # Errors
/// There is none of this name, or the file cannot be written.
pub fn remove_context(name: &str) -> Result<(), Failure> {
    let (_locked, mut contexts) = Contexts::lock_and_read()?;
    contexts.remove(name)?;
    contexts.write()
}

/// Returns what stays of the context that is to be changed, else an empty one. Its token goes to no other gateway.
fn base_context(contexts: &Contexts, arguments: &AddArguments) -> Result<Context, Failure> {
    let name = &arguments.name;
    let known = contexts.list.get(name);
    match (known.filter(|_| arguments.replace), &arguments.url) {
        (Some(known), url) if url.as_ref().is_none_or(|url| known.url == *url) => Ok(known.clone()),
        (_, Some(url)) => Ok(Context {
            url: url.clone(),
            admin_url: None,
            token: None,
            token_file: None,
            before: None,
            callers: BTreeMap::new(),
        }),
        (_, None) => Err(Failure::usage(format!(
            "there is no context {name:?} to change: give --url, too"
        ))),
    }
}

/// Returns a token as it was given, or from standard input.
pub(crate) fn read_token(token: &str) -> Result<String, Failure> {
    let text = match token {
        "-" => read_input(TOKEN_BYTES_MAX)?,
        token => token.to_owned(),
    };
    match token_alone(text.as_bytes()) {
        Ok(token) if token.is_empty() => Err(Failure::usage("the token is empty")),
        token => token.map_err(|why| Failure::usage(format!("the token is none: {why}"))),
    }
}

/// Returns what is known of a context, without its token.
fn as_json(contexts: &Contexts, name: &str, context: &Context) -> Value {
    let file = context
        .token_file
        .as_ref()
        .filter(|_| context.token.is_none());
    json!({
        "name": name,
        "current": contexts.current.as_deref() == Some(name),
        "url": without_user(&context.url),
        "admin_url": context.admin_url.as_ref().map(without_user),
        "has_token": context.token.is_some(),
        "token_file": file.map(|path| path.display().to_string()),
        "callers": context.callers.keys().collect::<Vec<_>>(),
    })
}

fn mark_current(context: &Value) -> String {
    let mark = if context["current"] == true { "*" } else { " " };
    mark.to_owned()
}

/// Says where the token is, and never what it is.
fn describe_credential(context: &Value) -> String {
    match context["has_token"] == true {
        true => "kept with the context".to_owned(),
        false => format_cell(&context["token_file"]),
    }
}

/// Returns a context as lines of members and values.
fn format_context(context: &Value) -> String {
    let current = match context["current"] == true {
        true => "  (current)",
        false => "",
    };
    let callers = context["callers"].as_array().into_iter().flatten();
    let callers: Vec<&str> = callers.filter_map(Value::as_str).collect();
    let rows = [
        ("name:", format_cell(&context["name"]) + current),
        ("url:", format_cell(&context["url"])),
        ("admin url:", format_cell(&context["admin_url"])),
        ("token:", describe_credential(context)),
        ("callers:", callers.join(", ")),
    ];
    align_rows(&rows.map(|(title, value)| vec![title.to_owned(), value]))
}
