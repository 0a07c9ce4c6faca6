//! Ids for shells that complete a command line: asked of the gateway, within a second, and silent if it does not
//! answer. The credential and the gateway are those that the command would use.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::time::Duration;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use gateway_client::Registry;
use serde_json::Value;
use tokio::time::timeout;

use super::access::OperatorAccess;
use super::build_runtime;
use super::client::is_id;
use super::table::mask_controls;

/// Longest wait for the gateway.
const CLOCK: Duration = Duration::from_secs(1);

/// Variable by which a shell's script asks for candidates.
pub const VARIABLE: &str = "A2A_GATEWAY_COMPLETE";

/// Completes the id of a workspace.
pub(crate) fn by_workspace() -> ArgValueCompleter {
    ArgValueCompleter::new(complete_workspaces)
}

/// Completes the id of a stop in force.
pub(crate) fn by_stop() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| candidates_of_page("/stops", "stops", "reason", typed))
}

/// Completes the id of a grant.
pub(crate) fn by_grant() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates_of_page("/grants", "grants", "target_id", typed)
    })
}

/// Completes the id of a workspace, or behind one, or behind `--org` or `--operator`, of a token of it.
pub(crate) fn by_workspace_or_token() -> ArgValueCompleter {
    ArgValueCompleter::new(complete_workspaces_or_tokens)
}

/// Returns the workspaces of which the id begins with what is typed, else those of which the name does: as far as the
/// gateway tells them within the clock.
fn complete_workspaces(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy().to_lowercase();
    let found = RefCell::new(Vec::new());
    let keep = |page: Value| {
        if let Value::Array(page) = page {
            found.borrow_mut().extend(page);
        }
    };
    ask_gateway(async |client| {
        if !typed.is_empty() {
            let of_name = client
                .get_list_page("/workspaces", &[("q", &typed)], None)
                .await;
            keep(of_name.ok()?.0);
        }
        let mut cursor: Option<String> = None;
        loop {
            let (page, next, _) = client
                .get_list_page("/workspaces", &[], cursor.as_deref())
                .await
                .ok()?;
            keep(page);
            cursor = Some(next?);
        }
    });
    let (mut of_ids, mut of_names) = (BTreeMap::new(), BTreeMap::new());
    for workspace in found.take() {
        let (Some(id), Some(name)) = (workspace["id"].as_str(), workspace["name"].as_str()) else {
            continue;
        };
        if id.to_lowercase().starts_with(&typed) {
            of_ids.insert(id.to_owned(), name.to_owned());
        } else if name.to_lowercase().starts_with(&typed) {
            of_names.insert(id.to_owned(), name.to_owned());
        }
    }
    let offered = if of_ids.is_empty() { of_names } else { of_ids };
    offered
        .iter()
        .filter_map(|(id, name)| candidate(id, name))
        .collect()
}

/// Returns the workspaces, or behind one, or behind `--org` or `--operator`, the tokens of it, for `token revoke`.
fn complete_workspaces_or_tokens(typed: &OsStr) -> Vec<CompletionCandidate> {
    let words = typed_words();
    let mut behind = words.iter().skip_while(|word| *word != "revoke").skip(1);
    let find = |flag: &str| words.iter().position(|word| word == flag);
    let path = match (find("--org"), find("--operator")) {
        (Some(at), _) => words.get(at + 1).map(|org| format!("/orgs/{org}/tokens")),
        (None, Some(_)) => Some("/operators/tokens".to_owned()),
        (None, None) => {
            let id = behind.next();
            let id = id.filter(|id| !id.starts_with('-') && id.as_str() != typed);
            id.map(|id| format!("/workspaces/{id}/tokens"))
        }
    };
    match path {
        Some(path) => candidates_of_page(&path, "tokens", "prefix", typed),
        None => complete_workspaces(typed),
    }
}

/// Returns the ids of the first page of a list that begin with what is typed, each with a member that describes it.
fn candidates_of_page(
    path: &str,
    list: &str,
    about: &str,
    typed: &OsStr,
) -> Vec<CompletionCandidate> {
    let page =
        ask_gateway(async |client| Some(client.get_list_page(path, &[], None).await.ok()?.0));
    let page = page.unwrap_or_default();
    let typed = typed.to_string_lossy();
    let entries = page[list].as_array();
    let ids = entries.into_iter().flatten().filter_map(|entry| {
        let id = entry["id"].as_str()?;
        let about = entry[about].as_str().unwrap_or_default();
        candidate(id, about).filter(|_| id.starts_with(&*typed))
    });
    ids.collect()
}

/// Returns an id with what describes it. `None` for one that no gateway gives, which a shell could read as a command or
/// an option.
fn candidate(id: &str, about: &str) -> Option<CompletionCandidate> {
    let is_word = is_id(id) && !id.starts_with('-');
    let about = mask_controls(about);
    is_word.then(|| CompletionCandidate::new(id).help(Some(about.into())))
}

/// Returns the words of the command line that is being completed.
fn typed_words() -> Vec<String> {
    let words = env::args_os().map(|word| word.to_string_lossy().into_owned());
    words.skip_while(|word| word != "--").skip(1).collect()
}

/// Asks the gateway; `None` if there is none, no credential, or no answer within the clock.
fn ask_gateway(question: impl AsyncFnOnce(Registry) -> Option<Value>) -> Option<Value> {
    let client = OperatorAccess::from_words(&typed_words())
        .build_client()
        .ok()?;
    let runtime = build_runtime().ok()?;
    runtime.block_on(async { timeout(CLOCK, question(client)).await.ok().flatten() })
}
