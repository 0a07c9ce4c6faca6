//! `a2a-gateway stop`, `release` and `stops`: stops calls at a running gateway, ends a stop, and lists those in force.

use std::time::Duration;

use gateway_client::Registry;
use http::Method;
use serde_json::{Value, json};

use super::client::{ChangeFlags, ReadFlags, body_of, end_of, format_end, path_of};
use super::failure::Failure;
use super::table::{Table, format_cell, format_cells};
use super::workspace::all_workspaces;
use super::{complete, print_note};

const COLUMNS: Table<'_> = Table {
    columns: "ID=id SCOPE=scope MODE=mode AGE=created_at:age ENDS=expires_at MADE_BY=made_by TASKS=tasks REASON=reason",
    made: &[
        ("scope", format_scope),
        ("made_by", format_maker),
        ("tasks", format_tasks),
    ],
    none: "no stop is in force",
};

/// `a2a-gateway stop SCOPE --reason TEXT`.
#[derive(clap::Args, Debug)]
pub struct StopArguments {
    #[command(flatten)]
    scope: ScopeArguments,
    /// Why, in up to 500 characters: refused callers get it
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// End calls and streams under way, too
    #[arg(long)]
    running: bool,
    /// Cancel known unfinished tasks at their agents, too
    #[arg(long, requires = "running")]
    cancel_tasks: bool,
    /// Release it by itself after this time, such as 1h
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    expires_in: Option<Duration>,
    #[command(flatten)]
    flags: ChangeFlags,
}

/// The calls to stop.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
struct ScopeArguments {
    /// Calls from and to this workspace
    #[arg(long, value_name = "ID", add = complete::by_workspace())]
    workspace: Option<String>,
    /// Calls from and to this workspace and those below it
    #[arg(long, value_name = "ID", add = complete::by_workspace())]
    subtree: Option<String>,
    /// Calls from and to the workspaces of this org, and those of its users
    #[arg(long, value_name = "NAME")]
    org: Option<String>,
    /// Calls of the first workspace to the second
    #[arg(long, num_args = 2, value_names = ["CALLER", "TARGET"], add = complete::by_workspace())]
    pair: Option<Vec<String>>,
    /// All calls
    #[arg(long)]
    all: bool,
}

/// `a2a-gateway release STOP`.
#[derive(clap::Args, Debug)]
pub struct ReleaseArguments {
    /// Id of the stop, as `a2a-gateway stops` lists it
    #[arg(add = complete::by_stop())]
    stop: String,
    #[command(flatten)]
    flags: ChangeFlags,
}

impl ScopeArguments {
    fn to_json(&self) -> Value {
        let pair = self.pair.as_deref();
        match (&self.workspace, &self.subtree, &self.org, pair) {
            (Some(id), ..) => json!({"workspace": id}),
            (_, Some(id), ..) => json!({"subtree": id}),
            (_, _, Some(org), _) => json!({"org": org}),
            (.., Some([caller, target])) => json!({"caller": caller, "target": target}),
            _ => json!({"all": true}),
        }
    }
}

/// Runs `a2a-gateway stop`.
pub async fn run_stop(arguments: &StopArguments) -> Result<String, Failure> {
    let flags = &arguments.flags;
    let client = flags.gateway.build_client()?;
    let body = body_of(json!({
        "scope": arguments.scope.to_json(),
        "mode": if arguments.running { "running" } else { "new" },
        "reason": arguments.reason,
        "cancel_tasks": arguments.cancel_tasks,
        "expires_at": end_of(arguments.expires_in),
    }));
    let route = (Method::POST, "/stops");
    let stop = flags.dry_run.send(&client, route, &body).await?;
    if let Some(org) = &arguments.scope.org {
        warn_of_empty(&client, org).await;
    }
    Ok(flags.format(&stop, |stop| {
        if !flags.dry_run.is_set {
            let id = stop["id"].as_str().unwrap_or_default();
            return format!(
                "{}\nEnd it with: a2a-gateway release {id}",
                format_line(stop)
            );
        }
        let tasks = match arguments.cancel_tasks {
            true => "  tasks: would be canceled",
            false => "",
        };
        format!("would be stopped: {}{tasks}", describe_stop(stop))
    }))
}

/// Says on standard error that an org has no workspace: its name may be misspelt. The stop does not wait for it.
async fn warn_of_empty(client: &Registry, org: &str) {
    let found = all_workspaces(client, Some(org), &[]).await;
    if found.is_ok_and(|found| found.is_empty()) {
        print_note(&format!(
            "no workspace is in the org {org:?}: is it spelt as in `a2a-gateway agents`?"
        ));
    }
}

/// Runs `a2a-gateway release`.
pub async fn run_release(arguments: &ReleaseArguments) -> Result<String, Failure> {
    let flags = &arguments.flags;
    let path = path_of("stops", &arguments.stop, "")?;
    let is = flags.dry_run.choose("released", "would be released");
    let tell = |stop: &Value| format!("{is}: {}", format_line(stop));
    flags.make(Method::DELETE, &path, &Value::Null, tell).await
}

/// Runs `a2a-gateway stops`.
pub async fn run_stops(flags: &ReadFlags) -> Result<String, Failure> {
    flags.show_list("/stops", &[], Some("stops"), COLUMNS).await
}

/// Returns the maker of a stop: an operator by the name, else by the id of the token, with the role.
fn format_maker(stop: &Value) -> String {
    let operator = &stop["operator"];
    let names = ["name", "label", "subject", "token_id"];
    let named = names.map(|name| &operator[name]);
    match named.into_iter().find(|name| name.is_string()) {
        Some(name) => format!("{} ({})", format_cell(name), format_cell(&operator["role"])),
        None => format_cell(&stop["created_by"]),
    }
}

/// Returns a stop in one line.
fn format_line(stop: &Value) -> String {
    let mut text = format!("{}  {}", format_cell(&stop["id"]), describe_stop(stop));
    let tasks = format_tasks(stop);
    if !tasks.is_empty() {
        text.push_str(&format!("  tasks: {tasks}"));
    }
    if stop["cancel"]["state"] == "wanted" {
        text.push_str("; `a2a-gateway stops` shows what becomes of them");
    }
    text
}

/// Returns a stop in one line, without its id and its tasks.
fn describe_stop(stop: &Value) -> String {
    let [mode, reason] = format_cells(stop, ["mode", "reason"]);
    let until = format_end(stop).replace(" until", "  until");
    format!("{}  {mode}  {reason}{until}", format_scope(stop))
}

/// Returns the calls that a stop covers, in words.
fn format_scope(stop: &Value) -> String {
    let scope = stop["scope"].as_object();
    match scope.and_then(|scope| scope.iter().next()) {
        _ if stop["scope"]["caller"].is_string() => {
            let [caller, target] = format_cells(&stop["scope"], ["caller", "target"]);
            format!("{caller} to {target}")
        }
        Some((kind, _)) if kind == "all" => "all calls".to_owned(),
        Some((kind, name)) => format!("{kind} {}", format_cell(name)),
        None => String::new(),
    }
}

/// Returns what became of the tasks that were to be canceled; nothing if none were.
fn format_tasks(stop: &Value) -> String {
    let cancel = &stop["cancel"];
    if cancel.is_null() {
        return String::new();
    }
    if cancel["state"] == "wanted" {
        return "being looked for".to_owned();
    }
    let [canceled, over, failed, pending] = ["canceled", "over", "failed", "pending"]
        .map(|name| cancel[name].as_i64().unwrap_or_default());
    format!("{canceled} canceled, {over} over, {failed} failed, {pending} pending")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_named_by_what_is_known() {
        let made = |operator: Value| {
            format_maker(&json!({"created_by": "operator:", "operator": operator}))
        };
        let person = json!({"role": "admin", "token_id": "t-1", "subject": "1", "name": "Ada"});
        assert_eq!(made(person), "Ada (admin)");
        let token = json!({"role": "operate", "token_id": "t-1", "label": "night"});
        assert_eq!(made(token), "night (operate)");
        assert_eq!(made(json!({"role": "admin"})), "operator:");
        assert_eq!(format_maker(&json!({"created_by": "org:acme"})), "org:acme");
    }

    #[test]
    fn a_stop_is_told_in_one_line() {
        let mut stop = json!({"id": "stop-1", "scope": {"workspace": "dev"}, "mode": "new", "reason": "a loop",
            "expires_at": null, "cancel": null});
        assert_eq!(format_line(&stop), "stop-1  workspace dev  new  a loop");
        stop["scope"] = json!({"caller": "pm", "target": "dev"});
        assert_eq!(format_line(&stop), "stop-1  pm to dev  new  a loop");
        stop["scope"] = json!({"all": true});
        stop["expires_at"] = json!("2026-11-21T10:00:00Z");
        stop["cancel"] = json!({"canceled": 2, "over": 1, "failed": 0, "pending": 3});
        assert_eq!(
            format_line(&stop),
            "stop-1  all calls  new  a loop  until 2026-11-21T10:00:00Z  tasks: 2 canceled, 1 over, 0 failed, 3 pending"
        );
        stop["cancel"] = json!({"state": "wanted"});
        assert!(
            format_line(&stop).ends_with(
                "tasks: being looked for; `a2a-gateway stops` shows what becomes of them"
            )
        );
    }
}
