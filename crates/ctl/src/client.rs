//! One shape for what commands ask of a gateway: their last flags, lists as tables, changes and dry runs of them.

use std::time::{Duration, SystemTime};

use gateway_client::{Registry, Request, RequestProgress};
use http::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::USAGE;
use super::access::OperatorAccess;
use super::failure::Failure;
use super::table::{Table, format_json};

/// Delay before a command with `--wait` asks again.
const AGAIN: Duration = Duration::from_millis(200);

/// Member of a query that asks for a dry run, and of an answer that is of one.
const DRY_RUN: &str = "dry_run";

/// Asks the admin listener, and returns the status and the JSON of its answer; null if it is not JSON.
pub(crate) async fn ask_admin(request: Request<'_>) -> Result<(u16, Value), Failure> {
    let answer = async { request.send().await?.read_json().await };
    answer.await.map_err(|error| match error.reached {
        RequestProgress::NoListener => error.into(),
        _ => Failure::new(format!(
            "cannot ask the gateway; is this the URL of its admin listener (admin.listen)?: {error}"
        )),
    })
}

/// The last flags of commands that show something.
#[derive(clap::Args, Debug)]
pub struct ReadFlags {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) gateway: OperatorAccess,
}

impl ReadFlags {
    /// Asks for a list, which is an array or the member `name` of the answer, and returns what is printed of it.
    ///
    /// # Errors
    /// There is no credential, or the gateway refuses or does not answer.
    pub(crate) async fn show_list(
        &self,
        path: &str,
        query: &[(&str, &str)],
        name: Option<&str>,
        table: Table<'_>,
    ) -> Result<String, Failure> {
        let client = self.gateway.build_client()?;
        let list = client.get_whole_list(path, query, name).await?;
        Ok(table.show(list, self.json))
    }
}

/// The last flags of commands that change something at a running gateway.
#[derive(clap::Args, Debug)]
pub(crate) struct ChangeFlags {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) dry_run: DryRun,
    #[command(flatten)]
    pub(crate) gateway: OperatorAccess,
}

impl ChangeFlags {
    /// Makes a change, or a dry run of it, and returns what is printed: the answer as JSON, or the line that `tell`
    /// makes of it. A body of `null` is none.
    ///
    /// # Errors
    /// As [`DryRun::send`].
    pub(crate) async fn make(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        tell: impl FnOnce(&Value) -> String,
    ) -> Result<String, Failure> {
        let client = self.gateway.build_client()?;
        let route = (method, path);
        let made = self.dry_run.send(&client, route, body).await?;
        Ok(self.format(&made, tell))
    }

    /// Returns an answer as it is printed.
    pub(crate) fn format(&self, made: &Value, tell: impl FnOnce(&Value) -> String) -> String {
        match self.json {
            true => format_json(made),
            false => tell(made) + "\n",
        }
    }
}

/// `--dry-run`.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct DryRun {
    /// Show what it would do: the gateway makes all checks, and changes nothing
    #[arg(long = "dry-run")]
    pub(crate) is_set: bool,
}

impl DryRun {
    /// Returns `done` of a change, `would` of a dry run.
    pub(crate) fn choose<'a>(self, done: &'a str, would: &'a str) -> &'a str {
        if self.is_set { would } else { done }
    }

    /// Makes a change, or a dry run of it. A body of `null` is none.
    ///
    /// # Errors
    /// The gateway refuses, does not answer, or has no dry runs.
    pub(crate) async fn send(
        self,
        client: &Registry,
        (method, path): (Method, &str),
        body: &Value,
    ) -> Result<Value, Failure> {
        // Another server at this address would make the change.
        if self.is_set && client.get("/.well-known/a2a-gateway", &[]).await?[DRY_RUN] != true {
            return Err(Failure::new(
                "the gateway is of a release without dry runs, and would make the change: nothing was sent",
            ));
        }
        let query: &[_] = match self.is_set {
            true => &[(DRY_RUN, "true")],
            false => &[],
        };
        let request = client.request(method, path, query).with_body(body);
        Ok(request.fetch_json().await?)
    }
}

/// Tries until it succeeds, or `wait` is over; then with the last failure. Wrong arguments are not tried again.
pub(crate) async fn until_done(
    wait: Option<Duration>,
    attempt: impl AsyncFn() -> Result<String, Failure>,
) -> Result<String, Failure> {
    let deadline = wait.map(|wait| Instant::now() + wait);
    loop {
        let failure = match attempt().await {
            Err(failure) if failure.status != USAGE => failure,
            ended => return ended,
        };
        if deadline.is_none_or(|deadline| Instant::now() + AGAIN > deadline) {
            return Err(failure);
        }
        sleep(AGAIN).await;
    }
}

/// Returns the members of a query that were given.
pub(crate) fn query_of<'a>(members: &[(&'a str, &'a Option<String>)]) -> Vec<(&'a str, &'a str)> {
    let given = |(name, value): &(&'a str, &'a Option<String>)| Some((*name, value.as_deref()?));
    members.iter().filter_map(given).collect()
}

/// Returns the members of a body that were given: those that are not null.
pub(crate) fn body_of(mut body: Value) -> Value {
    if let Some(members) = body.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    body
}

/// Returns the time after `span`, for the member `expires_at` of a body.
pub(crate) fn end_of(span: Option<Duration>) -> Value {
    let end = span.map(|span| humantime::format_rfc3339_millis(SystemTime::now() + span));
    json!(end.map(|end| end.to_string()))
}

/// Returns ` until …` for an answer with an end.
pub(crate) fn format_end(answer: &Value) -> String {
    let end = answer["expires_at"].as_str();
    end.map_or_else(String::new, |at| format!(" until {at}"))
}

/// Returns the path of an object whose id a user typed, such as `/workspaces/ID/tokens` for `ID` and `tokens`.
///
/// # Errors
/// As [`check_segment`].
pub(crate) fn path_of(list: &str, id: &str, rest: &str) -> Result<String, Failure> {
    Ok(format!("/{list}/{}{rest}", check_segment(id)?))
}

/// True for the id of a workspace, a token, a grant or a stop.
pub(crate) fn is_id(text: &str) -> bool {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !text.is_empty() && text.chars().all(is_good)
}

/// Fails unless `id` can stand in a path as one segment: what a user types must not choose another route.
pub(crate) fn check_segment(id: &str) -> Result<&str, Failure> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-._~@:+=,!$'()*".contains(c);
    if id.is_empty() || id == "." || id == ".." || !id.chars().all(is_good) {
        let complaint = format!("{id:?} is no id: it has letters, digits, `-`, `.` and `_`");
        return Err(Failure::usage(complaint));
    }
    Ok(id)
}
