//! Ids for shells that complete a command line: asked of the gateway, within a second, and silent if it does not
//! answer. The credential and the gateway are those that the command would use.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::time::Duration;

use clap_complete::engine::CompletionCandidate;
use serde_json::Value;
use tokio::time::timeout;

use super::access::OperatorAccess;
use super::build_runtime;
use super::client::{Client, is_id};
use super::table::mask_controls;

/// Longest wait for the gateway.
const CLOCK: Duration = Duration::from_secs(1);

/// Variable by which a shell's script asks for candidates.
pub(super) const VARIABLE: &str = "A2A_GATEWAY_COMPLETE";

/// Returns the workspaces of which the id begins with what is typed, else those of which the name does: as far as the
/// gateway tells them within the clock.
pub(super) fn complete_workspaces(typed: &OsStr) -> Vec<CompletionCandidate> {
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
                .read_page("/workspaces", &[("q", &typed)], None)
                .await;
            keep(of_name.ok()?.0);
        }
        let mut cursor: Option<String> = None;
        loop {
            let (page, next) = client
                .read_page("/workspaces", &[], cursor.as_deref())
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

/// Returns the stops in force.
pub(super) fn complete_stops(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates_of_page("/stops", "stops", "reason", typed)
}

/// Returns the grants.
pub(super) fn complete_grants(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates_of_page("/grants", "grants", "target_id", typed)
}

/// Returns the workspaces, or behind one, or behind `--org` or `--operator`, the tokens of it, for `token revoke`.
pub(super) fn complete_workspaces_or_tokens(typed: &OsStr) -> Vec<CompletionCandidate> {
    let words = typed_words();
    let mut behind = words.iter().skip_while(|word| *word != "revoke").skip(1);
    let org = words.iter().position(|word| word == "--org");
    let path = match org {
        Some(at) => words.get(at + 1).map(|org| format!("/orgs/{org}/tokens")),
        None if words.iter().any(|word| word == "--operator") => {
            Some("/operators/tokens".to_owned())
        }
        None => {
            let id = behind
                .next()
                .filter(|id| !id.starts_with('-') && id.as_str() != typed);
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
    let page = ask_gateway(async |client| Some(client.read_page(path, &[], None).await.ok()?.0));
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
fn ask_gateway(question: impl AsyncFnOnce(Client) -> Option<Value>) -> Option<Value> {
    let client = OperatorAccess::from_words(&typed_words())
        .build_client()
        .ok()?;
    let runtime = build_runtime().ok()?;
    runtime.block_on(async { timeout(CLOCK, question(client)).await.ok().flatten() })
}
