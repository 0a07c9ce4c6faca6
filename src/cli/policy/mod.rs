//! `a2a-gateway export` and `apply`: workspaces, grants and stops of a running gateway as one file
//! (`docs/guide/policy-in-git.md`).

mod difference;
mod request;

use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use serde_saphyr::budget::BudgetBreach;

use self::difference::Difference;
use self::request::RequestFailure;
use super::access::{AccessError, OperatorAccess};
use super::terminal::is_control;
use super::{USAGE, block_on, print, print_error, write_prompt};

/// Exit status of `apply --dry-run --exit-code` if there are changes.
const CHANGES: u8 = 2;

/// Maximum bytes of a policy's file: those that a gateway takes at most by default, with room for comments.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Nodes of a file at most: 50,000 workspaces with twenty members each, and as many grants.
const NODES_MAX: usize = 4_000_000;

const EXPORT_EXAMPLES: &str = "\
Examples:
  a2a-gateway export > policy.yaml
  a2a-gateway export --output policy.yaml       write the file
  a2a-gateway export --json                     as JSON, with the revision

It has what operators set of workspaces, grants and stops. It has no tokens, no credentials or certificates for
agents (upstream_auth, upstream_tls), no wakers (wake), and nothing that agents report: `apply` leaves those as
they are. Guards and caps are in the gateway's configuration file.";

const APPLY_EXAMPLES: &str = "\
Examples:
  a2a-gateway apply policy.yaml --dry-run       show the difference: + created, ~ changed, - removed
  a2a-gateway apply policy.yaml                 show it, ask, and apply it
  a2a-gateway apply policy.yaml --yes --prune   for CI: without a question; what the file does not have is removed
  a2a-gateway apply policy.yaml --dry-run --exit-code   exit status 0: no changes, 2: changes
  git show main:policy.yaml | a2a-gateway apply - --yes

All changes are made, or none. If the gateway was changed after the difference was shown, nothing is applied.
A section (workspaces, grants, stops) that the file does not have is left as it is, also with --prune.";

/// `a2a-gateway export`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXPORT_EXAMPLES)]
pub(super) struct ExportArguments {
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
#[command(after_help = APPLY_EXAMPLES)]
pub(super) struct ApplyArguments {
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
    /// Let removed ids come back: without the tokens, grants, tasks and messages that they had
    #[arg(long)]
    recreate: bool,
    /// With --dry-run: exit status 2 if there are changes
    #[arg(long, requires = "dry_run")]
    exit_code: bool,
    /// Print the gateway's answer as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: OperatorAccess,
}

/// The command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Request(#[from] RequestFailure),
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("{} cannot be read", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} has more than {FILE_BYTES_MAX} bytes: split it by sections", .0.display())]
    TooLong(PathBuf),
    #[error(
        "{} has more than {NODES_MAX} names, values, lists and mappings: split it by sections, each in a file of its own",
        .0.display()
    )]
    TooManyNodes(PathBuf),
    #[error("{} is no YAML: {why}", path.display())]
    NotYaml { path: PathBuf, why: String },
    #[error("{} has no mapping at its top: it begins with `version: 1`", .0.display())]
    NoDocument(PathBuf),
    #[error("the policy cannot be written as YAML: {0}")]
    Unwritable(String),
    #[error("{} cannot be written", path.display())]
    NotWritten {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("standard input is no terminal, so nothing was asked or applied: give --yes")]
    NoTerminal,
    #[error("nothing was applied")]
    Declined,
    #[error(
        "the gateway was changed since the revision of the file, so `apply` refuses it: export it again, or take `revision` out"
    )]
    Stale,
    #[error("cannot print")]
    Io(#[from] io::Error),
}

/// Runs `a2a-gateway export`.
pub(super) fn run_export(arguments: &ExportArguments) -> ExitCode {
    finish(block_on(export(arguments)).map(|()| ExitCode::SUCCESS))
}

/// Runs `a2a-gateway apply`.
pub(super) fn run_apply(arguments: &ApplyArguments) -> ExitCode {
    finish(block_on(apply(arguments)))
}

fn finish(done: Result<ExitCode, Failure>) -> ExitCode {
    done.unwrap_or_else(|error| {
        print_error(&error);
        match error {
            Failure::Access(_)
            | Failure::TooManyNodes(_)
            | Failure::NotYaml { .. }
            | Failure::NoDocument(_)
            | Failure::NoTerminal => ExitCode::from(USAGE),
            _ => ExitCode::FAILURE,
        }
    })
}

async fn export(arguments: &ExportArguments) -> Result<(), Failure> {
    let mut policy = request::export(&arguments.gateway).await?;
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
    match &arguments.output {
        Some(path) => std::fs::write(path, text).map_err(|source| Failure::NotWritten {
            path: path.clone(),
            source,
        }),
        None => Ok(print(&text)?),
    }
}

/// Writes a policy, the version first, and each entry beginning with its names.
fn to_yaml(policy: &Value, revision: &str) -> Result<String, Failure> {
    let written = |value: &Value| {
        let text = serde_saphyr::to_string(&NamesFirst(value));
        text.map_err(|error| Failure::Unwritable(error.to_string()))
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

async fn apply(arguments: &ApplyArguments) -> Result<ExitCode, Failure> {
    let mut policy = read_policy(&arguments.file)?;
    if arguments.recreate {
        policy.insert("recreate".to_owned(), true.into());
    }
    let gateway = &arguments.gateway;
    let answer = request::apply(gateway, &policy, true, arguments.prune).await?;
    let difference = Difference::from_answer(&answer, arguments.prune);
    if arguments.dry_run {
        print(&format_outcome(arguments, &answer, &difference))?;
        if policy
            .get("revision")
            .is_some_and(|said| *said != answer["revision"])
        {
            return Err(Failure::Stale);
        }
        let tells = arguments.exit_code && !difference.is_empty();
        return Ok(ExitCode::from(if tells { CHANGES } else { 0 }));
    }
    if difference.is_empty() {
        print(&format_outcome(arguments, &answer, &difference))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.json {
        print(&difference.format_text())?;
    }
    if !arguments.yes {
        confirm_changes(difference.count())?;
    }
    // What was shown is what is applied: a file that has a revision keeps it.
    let revision = answer["revision"].clone();
    policy.entry("revision").or_insert(revision);
    let applied = request::apply(gateway, &policy, false, arguments.prune).await?;
    print(&match arguments.json {
        true => format!("{applied}\n"),
        false => format!("Applied {} changes.\n", difference.count()),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn format_outcome(
    arguments: &ApplyArguments,
    answer: &Value,
    difference: &Difference<'_>,
) -> String {
    match arguments.json {
        true => format!("{answer}\n"),
        false => difference.format_text(),
    }
}

/// Asks on the terminal whether to apply.
fn confirm_changes(count: usize) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::NoTerminal);
    }
    write_prompt(&format!("Apply these {count} changes? Only `yes` does: "))?;
    let mut said = String::new();
    io::stdin().read_line(&mut said)?;
    (said.trim() == "yes")
        .then_some(())
        .ok_or(Failure::Declined)
}

/// Reads a policy.
fn read_policy(path: &Path) -> Result<Map<String, Value>, Failure> {
    let unreadable = |source| Failure::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    let room = FILE_BYTES_MAX + 1;
    let length = if path.as_os_str() == "-" {
        io::stdin().lock().take(room).read_to_string(&mut text)
    } else {
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(room).read_to_string(&mut text)
    };
    let length = length.map_err(unreadable)?;
    if length as u64 > FILE_BYTES_MAX {
        return Err(Failure::TooLong(path.to_owned()));
    }
    match parse_yaml(&text, NODES_MAX) {
        Ok(Value::Object(policy)) => Ok(policy),
        Ok(_) => Err(Failure::NoDocument(path.to_owned())),
        Err(PolicyReadError::TooManyNodes) => Err(Failure::TooManyNodes(path.to_owned())),
        Err(PolicyReadError::NotYaml(why)) => Err(Failure::NotYaml {
            path: path.to_owned(),
            why,
        }),
    }
}

/// The text of a policy cannot be read.
#[derive(Debug, PartialEq)]
enum PolicyReadError {
    /// It has more nodes than it may.
    TooManyNodes,
    /// It is no YAML, with the reason.
    NotYaml(String),
}

/// Reads YAML of at most `nodes` nodes. The gateway bounds the entries (limits.policy_workspaces), and [`FILE_BYTES_MAX`]
/// the text.
fn parse_yaml(text: &str, nodes: usize) -> Result<Value, PolicyReadError> {
    // A node has one event or two.
    let budget = serde_saphyr::budget! { max_nodes: nodes, max_events: usize::MAX };
    // As YAML 1.2 has it: `no` and `y` are names.
    let options = serde_saphyr::options! { strict_booleans: true, budget: budget };
    let read = serde_saphyr::from_str_with_options(text, options);
    read.map_err(|error| match error.without_snippet() {
        serde_saphyr::Error::Budget {
            breach: BudgetBreach::Nodes { .. },
            ..
        } => PolicyReadError::TooManyNodes,
        _ => PolicyReadError::NotYaml(error.to_string()),
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
        assert_eq!(
            parse_yaml(&list(10), 10),
            Err(PolicyReadError::TooManyNodes)
        );
        let refusal = Failure::TooManyNodes("policy.yaml".into()).to_string();
        assert!(
            refusal.starts_with("policy.yaml has more than 4000000 "),
            "{refusal}"
        );
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
        let Err(PolicyReadError::NotYaml(why)) = parse_yaml("version: 1\nworkspaces: [", NODES_MAX)
        else {
            panic!("it is read");
        };
        assert!(why.contains("line"), "{why}");
    }
}
