//! `a2a-gateway export` and `apply`: workspaces, grants and stops of a running gateway as one file
//! (`docs/guide/policy-in-git.md`).

mod difference;
mod enforce;
mod prove;
mod replay;

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gateway_client::{Registry, RegistryError, Request};
use http::Method;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use serde_saphyr::budget::BudgetBreach;

pub use self::enforce::EnforceArguments;
pub use self::prove::{
    AccessCommand, MatrixArguments, PolicyCommand, ProveArguments, run_access, run_policy,
};

use self::difference::{count_changes, format_difference, format_name};
use super::access::OperatorAccess;
use super::failure::{Failure, OrFail as _};
use super::print;
use super::terminal::{ask_line, is_control};

const PATH: &str = "/policy";

/// Timeout of one request: longer than the transaction of a policy may take.
const WITHIN: Duration = Duration::from_secs(120);

/// Exit status of `apply --dry-run --exit-code` if there are changes.
const CHANGES: u8 = 2;

/// Maximum bytes of a policy's file: those that a gateway takes at most by default, with room for comments.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Nodes of a file at most: 50,000 workspaces with twenty members each, and as many grants.
const NODES_MAX: usize = 4_000_000;

/// `a2a-gateway export`.
#[derive(clap::Args, Debug)]
pub struct ExportArguments {
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Put the revision in: `apply` then refuses the file once the gateway was changed
    #[arg(long)]
    with_revision: bool,
    /// Print JSON instead of YAML, with the revision
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// `a2a-gateway apply FILE`.
#[derive(clap::Args, Debug)]
pub struct ApplyArguments {
    /// The policy, in YAML or JSON; `-`: from standard input
    file: PathBuf,
    /// Show the difference only
    #[arg(long)]
    dry_run: bool,
    /// Remove workspaces, grants and stops that the file does not have
    #[arg(long)]
    prune: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Also if a statement of the policy does not hold
    #[arg(long)]
    force: bool,
    /// Let removed ids come back: without the tokens, grants, tasks and messages that they had
    #[arg(long)]
    recreate: bool,
    /// Show which calls of this time, such as 7d, it would deny or allow, and change nothing
    #[arg(long, value_name = "TIME", conflicts_with_all = ["dry_run", "yes", "exit_code"])]
    replay: Option<String>,
    /// With --dry-run: exit status 2 if there are changes
    #[arg(long, requires = "dry_run")]
    exit_code: bool,
    /// Print the gateway's answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// Runs `a2a-gateway export`.
pub async fn run_export(arguments: &ExportArguments) -> Result<String, Failure> {
    let client = arguments.gateway.build_client()?;
    let mut policy = send_policy(&client, (Method::GET, PATH), &[], &Value::Null).await?;
    let revision = policy["revision"].as_str().unwrap_or_default().to_owned();
    let text = if arguments.json {
        format!("{policy}\n")
    } else {
        if let (Some(members), false) = (policy.as_object_mut(), arguments.with_revision) {
            members.remove("revision");
        }
        let text = to_yaml(&policy, &revision)?;
        // JSON is YAML, too, and says what is printed as an escape.
        match text.chars().any(|c| c != '\n' && is_control(c)) {
            true => format!("{policy:#}\n"),
            false => text,
        }
    };
    let Some(path) = &arguments.output else {
        return Ok(text);
    };
    let written = std::fs::write(path, text);
    written.or_fail(format_args!("{} cannot be written", path.display()))?;
    Ok(String::new())
}

/// Asks for the present state as a policy, or compares one with it and applies it.
async fn send_policy(
    client: &Registry,
    (method, path): (Method, &str),
    query: &[(&str, &str)],
    policy: &Value,
) -> Result<Value, Failure> {
    let request = Request {
        within: WITHIN,
        ..client.request(method, path, query)
    };
    let answer = request.with_body(policy).fetch_json().await;
    answer.map_err(|error| match error {
        RegistryError::Refused { status, body, .. } => to_failure(status, &body, policy),
        // The route says nothing of which part failed.
        RegistryError::Unanswered { source, .. } => source.into(),
        other => other.into(),
    })
}

/// Returns the name of the entry at a path of a policy, such as `workspaces[3].parent_id`.
fn name_at(path: &str, policy: &Value) -> Option<String> {
    let (section, rest) = path.split_once('[')?;
    let (number, _) = rest.split_once(']')?;
    let entry = policy.get(section)?.get(number.parse::<usize>().ok()?)?;
    let text = |name: &str| entry[name].as_str();
    Some(match (text("id"), text("caller_id"), text("target_id")) {
        (Some(id), ..) => id.to_owned(),
        (None, Some(caller), Some(target)) => format!("{caller} -> {target}"),
        _ => return None,
    })
}

/// Returns a refusal with a line for each error and each changed object.
fn to_failure(status: u16, body: &Value, policy: &Value) -> Failure {
    let [reason, message] = ["reason", "error"].map(|name| body[name].as_str().unwrap_or("?"));
    let mut text = format!("refused with {status} {reason}: {message}");
    for error in body["errors"].as_array().into_iter().flatten() {
        let [path, why] = ["path", "error"].map(|name| error[name].as_str().unwrap_or_default());
        let name = name_at(path, policy);
        let name = name.map_or_else(String::new, |name| format!(" ({name})"));
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  {path}{name}: {why}");
    }
    for changed in body["changed"].as_array().into_iter().flatten() {
        let _ = write!(text, "\n  changed: {}", format_name(changed));
    }
    Failure::new(text)
}

/// Writes a policy, the version first, and each entry beginning with its names.
fn to_yaml(policy: &Value, revision: &str) -> Result<String, Failure> {
    let written = |value: &Value| {
        let text = serde_saphyr::to_string(&NamesFirst(value));
        text.or_fail("the policy cannot be written as YAML")
    };
    let mut text = format!(
        "# Policy of a gateway, at revision {revision}. Secrets, and what agents report, are not in it.\n"
    );
    for name in ["version", "revision", "workspaces", "grants", "stops"] {
        let Some(value) = policy.get(name) else {
            continue;
        };
        let mut section = Map::new();
        section.insert(name.to_owned(), value.clone());
        text.push_str(&written(&section.into())?);
    }
    Ok(text)
}

/// Members that an entry begins with, in this order.
const FIRST: &str = "id name org parent_id caller_id target_id scope";

/// A value. Its objects begin with their names.
struct NamesFirst<'a>(&'a Value);

impl Serialize for NamesFirst<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Array(list) => serializer.collect_seq(list.iter().map(NamesFirst)),
            Value::Object(members) => {
                let place = |name: &str| FIRST.split(' ').position(|first| first == name);
                let mut members: Vec<_> = members.iter().collect();
                members.sort_by_key(|(name, _)| place(name).unwrap_or(usize::MAX));
                let members = members.into_iter();
                serializer.collect_map(members.map(|(name, value)| (name, NamesFirst(value))))
            }
            other => other.serialize(serializer),
        }
    }
}

/// Runs `a2a-gateway apply`.
pub async fn run_apply(arguments: &ApplyArguments) -> Result<String, Failure> {
    let mut policy = read_policy(&arguments.file)?;
    if arguments.recreate {
        policy["recreate"] = true.into();
    }
    let client = arguments.gateway.build_client()?;
    if let Some(back) = &arguments.replay {
        let prune = if arguments.prune { "true" } else { "false" };
        let query = [("replay", back.as_str()), ("prune", prune)];
        return replay::run_replay(&client, &query, &policy, arguments.json).await;
    }
    let query = |dry_run| {
        let word = |switch: bool| if switch { "true" } else { "false" };
        let mut query = vec![("dry_run", dry_run), ("prune", word(arguments.prune))];
        // A gateway of an earlier release does not have it.
        query.extend(arguments.force.then_some(("force", "true")));
        query
    };
    let answer = send_policy(&client, (Method::POST, PATH), &query("true"), &policy).await?;
    let count = count_changes(&answer);
    let outcome = match arguments.json {
        true => format!("{answer}\n"),
        false => format_difference(&answer, arguments.prune),
    };
    if arguments.dry_run {
        print(&outcome).map_err(|error| Failure::from(error).with_status(1))?;
        let said = policy.get("revision");
        if said.is_some_and(|said| *said != answer["revision"]) {
            return Err(Failure::new(
                "the gateway was changed since the revision of the file, so `apply` refuses it: export it again, or take `revision` out",
            ));
        }
        let tells = arguments.exit_code && count > 0;
        return Err(Failure::quiet(if tells { CHANGES } else { 0 }));
    }
    if count == 0 {
        return Ok(outcome);
    }
    if !arguments.json {
        print(&outcome)?;
    }
    if !arguments.yes {
        confirm_changes(count)?;
    }
    // What was shown is what is applied: a file that has a revision keeps it.
    if policy.get("revision").is_none() {
        policy["revision"] = answer["revision"].clone();
    }
    let applied = send_policy(&client, (Method::POST, PATH), &query("false"), &policy).await?;
    Ok(match arguments.json {
        true => format!("{applied}\n"),
        false => format!("Applied {count} changes.\n"),
    })
}

/// Asks on the terminal whether to apply.
fn confirm_changes(count: usize) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "standard input is no terminal, so nothing was asked or applied: give --yes",
        ));
    }
    let said = ask_line(&format!("Apply these {count} changes? Only `yes` does: "))?;
    match said.as_deref() {
        Some("yes") => Ok(()),
        _ => Err(Failure::new("nothing was applied")),
    }
}

/// Reads a policy, which is an object.
fn read_policy(path: &Path) -> Result<Value, Failure> {
    let mut text = String::new();
    let room = FILE_BYTES_MAX + 1;
    let length = match path.as_os_str() == "-" {
        true => io::stdin().lock().take(room).read_to_string(&mut text),
        false => {
            std::fs::File::open(path).and_then(|file| file.take(room).read_to_string(&mut text))
        }
    };
    let path = path.display();
    let length = length.or_fail(format_args!("{path} cannot be read"))?;
    if length as u64 > FILE_BYTES_MAX {
        return Err(Failure::new(format!(
            "{path} has more than {FILE_BYTES_MAX} bytes: split it by sections"
        )));
    }
    match parse_yaml(&text, NODES_MAX) {
        Ok(policy @ Value::Object(_)) => Ok(policy),
        Ok(_) => Err(Failure::usage(format!(
            "{path} has no mapping at its top: it begins with `version: 1`"
        ))),
        Err(why) => Err(Failure::usage(format!("{path} {why}"))),
    }
}

/// Reads YAML of at most `nodes` nodes. The gateway bounds the entries (limits.policy_workspaces), and
/// [`FILE_BYTES_MAX`] the text.
///
/// # Errors
/// What is wrong with the file.
fn parse_yaml(text: &str, nodes: usize) -> Result<Value, String> {
    // A node has one event or two.
    let budget = serde_saphyr::budget! { max_nodes: nodes, max_events: usize::MAX };
    // As YAML 1.2 has it: `no` and `y` are names.
    let options = serde_saphyr::options! { strict_booleans: true, budget: budget };
    let read = serde_saphyr::from_str_with_options(text, options);
    read.map_err(|error| match error.without_snippet() {
        serde_saphyr::Error::Budget {
            breach: BudgetBreach::Nodes { .. },
            ..
        } => format!(
            "has more than {nodes} names, values, lists and mappings: split it by sections, each in a file of its own"
        ),
        _ => format!("is no YAML: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_is_read_as_it_was_written() {
        let names = [
            "no", "1e3", "0x10", "a: b", "- x", "", " ", "~", "null", "é", "{a", "# c", "'q'",
            "12:30:45",
        ];
        let grants: Vec<_> = names.iter().map(|note| json!({"note": note})).collect();
        let policy = json!({"version": 1, "workspaces": [{"id": "dev", "max_concurrent": 4, "paused": true,
            "urls": ["http://a/", "http://b/"], "probe": {"path": "/healthz", "every_seconds": 30}}],
            "grants": grants, "stops": []});
        let text = to_yaml(&policy, "r1").unwrap();
        assert_eq!(parse_yaml(&text, NODES_MAX).unwrap(), policy, "{text}");
        assert!(text.starts_with("# Policy of a gateway, at revision r1."));
        assert_eq!(parse_yaml(&policy.to_string(), NODES_MAX).unwrap(), policy);
    }

    #[test]
    fn ten_thousand_workspaces_are_within_the_bounds_of_the_reader() {
        let of = |n: usize| json!({"id": format!("w{n}"), "org": "acme", "parent_id": format!("w{}", n / 10)});
        let policy = json!({"version": 1, "workspaces": (0..10_000).map(of).collect::<Vec<_>>()});
        let text = to_yaml(&policy, "r").unwrap();
        assert_eq!(parse_yaml(&text, NODES_MAX).unwrap(), policy);
    }

    #[test]
    fn more_nodes_than_a_file_may_have_are_refused_with_the_limit() {
        let list = |count: usize| format!("[{}]", "1,".repeat(count));
        assert!(parse_yaml(&list(9), 10).is_ok());
        let refusal = parse_yaml(&list(10), 10).unwrap_err();
        assert!(refusal.starts_with("has more than 10 "), "{refusal}");
        // More than the reader takes by itself.
        let many = parse_yaml(&list(300_000), NODES_MAX).unwrap();
        assert_eq!(many.as_array().unwrap().len(), 300_000);
    }

    #[test]
    fn names_that_were_booleans_of_earlier_versions_of_yaml_are_names() {
        let read = parse_yaml("- y\n- no\n- on\n- true\n", NODES_MAX).unwrap();
        assert_eq!(read, json!(["y", "no", "on", true]));
    }

    #[test]
    fn what_is_no_policy_is_told_with_its_place() {
        let why = parse_yaml("version: 1\nworkspaces: [", NODES_MAX).unwrap_err();
        assert!(
            why.starts_with("is no YAML") && why.contains("line"),
            "{why}"
        );
    }

    #[test]
    fn a_refusal_names_each_error_and_each_changed_object() {
        let body = json!({"reason": "invalid_params", "error": "two errors", "errors": [
            {"path": "workspaces[3].parent_id", "error": "the parent does not exist"},
            {"path": "grants[0]", "error": "one"},
        ], "changed": [{"kind": "workspace", "name": "dev"}]});
        let policy = json!({"workspaces": [{}, {}, {}, {"id": "qa"}], "grants": [{"caller_id": "a", "target_id": "b"}]});
        let told = to_failure(400, &body, &policy).to_string();
        assert_eq!(
            told,
            "refused with 400 invalid_params: two errors\n  workspaces[3].parent_id (qa): the parent does not exist\n  \
             grants[0] (a -> b): one\n  changed: workspace dev"
        );
    }
}
