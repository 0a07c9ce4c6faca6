//! The gateway as commands ask it: requests with a credential, lists by their pages, changes and dry runs of them.

use std::time::{Duration, SystemTime};

use gateway_client::{Call, ClientError, Registry, RegistryError, Response};
use http::Method;
use serde_json::{Value, json};
use url::Url;

use super::access::OperatorAccess;
use super::failure::Failure;
use super::table::{Column, align_columns, fill_rows};

/// Member of a query that asks for a dry run, and of an answer that is of one.
const DRY_RUN: &str = "dry_run";

/// Timeout of a file.
const FILE_WITHIN: Duration = Duration::from_secs(600);

/// What a user does if nothing listens where a command asks the public listener.
pub(super) const PUBLIC: &str = "--url, A2A_GATEWAY_URL, a context or --config says where";

/// The same for the admin listener.
pub(super) const ADMIN: &str = "--admin, A2A_GATEWAY_ADMIN_URL, a context or --config say where its admin listener \
    (admin.listen) is";

/// A listener of a gateway, with a credential.
pub(super) struct Client {
    registry: Registry,
    token: Option<String>,
    advice: &'static str,
}

impl Client {
    /// Returns a client of the listener at `base`. `advice` is for a user whose gateway is not there.
    pub(super) fn new(base: Url, token: Option<String>, advice: &'static str) -> Self {
        let registry = Registry::new(base);
        Self {
            registry,
            token,
            advice,
        }
    }

    /// True if there is a credential.
    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Returns a request for the JSON at a path.
    pub(super) fn call<'a>(&'a self, path: &'a str) -> Call<'a> {
        Call {
            token: self.token.as_deref(),
            ..Call::get(path)
        }
    }

    /// Returns the failure for a request without an answer.
    pub(super) fn fail_unanswered(&self, error: &ClientError) -> Failure {
        Failure::new(match error {
            ClientError::NotListening { .. } => {
                format!("{error}; is the gateway running? {}", self.advice)
            }
            other => other.to_string(),
        })
    }

    /// Asks the admin listener, and returns the status and the JSON of its answer; null if it is not JSON.
    pub(super) async fn ask_admin(&self, call: &Call<'_>) -> Result<(u16, Value), Failure> {
        let answer = async { self.open(call).await?.read_json().await };
        answer.await.map_err(|error| match error {
            ClientError::NotListening { .. } => self.fail_unanswered(&error),
            other => Failure::new(format!(
                "cannot ask the gateway; is this the URL of its admin listener (admin.listen)?: {other}"
            )),
        })
    }

    /// Returns the failure for a request that was refused or has no answer.
    pub(super) fn fail(&self, error: RegistryError) -> Failure {
        match error {
            RegistryError::Unanswered { source, .. }
                if matches!(source, ClientError::NotListening { .. }) =>
            {
                self.fail_unanswered(&source)
            }
            other => other.into(),
        }
    }

    /// Sends a request, and returns the answer, whatever its status.
    pub(super) async fn open(&self, call: &Call<'_>) -> Result<Response, ClientError> {
        self.registry.open(call).await
    }

    /// Sends a request, and returns the JSON of its answer.
    pub(super) async fn request(&self, call: &Call<'_>) -> Result<Value, RegistryError> {
        self.registry.request(call).await
    }

    /// Returns the JSON at a path, with a query.
    pub(super) async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Failure> {
        let call = Call {
            query,
            ..self.call(path)
        };
        self.request(&call).await.map_err(|error| self.fail(error))
    }

    /// Opens a file at a path, with a query, as this media type; it may be long.
    pub(super) async fn open_file(
        &self,
        path: &str,
        query: &[(&str, &str)],
        accept: &'static str,
    ) -> Result<Response, Failure> {
        let call = Call {
            query,
            accept,
            within: FILE_WITHIN,
            ..self.call(path)
        };
        let opened = self.registry.send(&call).await;
        opened.map_err(|error| self.fail(error))
    }

    /// Returns all entries of a list: of an array, or of the member `name`.
    pub(super) async fn list(
        &self,
        path: &str,
        query: &[(&str, &str)],
        name: Option<&str>,
    ) -> Result<Vec<Value>, Failure> {
        let call = Call {
            query,
            ..self.call(path)
        };
        let list = self.registry.get_whole_list(&call, name).await;
        list.map_err(|error| self.fail(error))
    }

    /// Returns a page of a list, and the cursor of the next one.
    pub(super) async fn read_page(
        &self,
        path: &str,
        query: &[(&str, &str)],
        cursor: Option<&str>,
    ) -> Result<(Value, Option<String>), Failure> {
        let call = Call {
            query,
            ..self.call(path)
        };
        let page = self.registry.get_list_page(&call, cursor).await;
        let (page, next, _) = page.map_err(|error| self.fail(error))?;
        Ok((page, next))
    }

    /// Changes what is at a path, with a query. A body of `null` is none.
    pub(super) async fn change(
        &self,
        (method, path): (Method, &str),
        query: &[(&str, &str)],
        body: &Value,
    ) -> Result<Value, Failure> {
        let call = Call {
            method,
            query,
            body,
            ..self.call(path)
        };
        self.request(&call).await.map_err(|error| self.fail(error))
    }
}

/// The last flags of commands that show something.
#[derive(clap::Args, Debug)]
pub(super) struct ReadFlags {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) gateway: OperatorAccess,
}

impl ReadFlags {
    /// Returns a list as JSON, or as a table, or `none` if it has no entry.
    pub(super) fn format_list(&self, list: Vec<Value>, columns: &[Column], none: &str) -> String {
        if self.json {
            return format_json(&list.into());
        }
        if list.is_empty() {
            return format!("{none}\n");
        }
        let titles: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
        align_columns(&titles, &fill_rows(&list, columns, SystemTime::now()))
    }
}

/// The last flags of commands that change something at a running gateway.
#[derive(clap::Args, Debug)]
pub(super) struct ChangeFlags {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) dry_run: DryRun,
    #[command(flatten)]
    pub(super) gateway: OperatorAccess,
}

impl ChangeFlags {
    /// Makes a change, or a dry run of it, and returns what is printed: the answer as JSON, or the line that `tell` makes
    /// of it. A body of `null` is none.
    ///
    /// # Errors
    /// As [`DryRun::send`].
    pub(super) async fn make(
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
    pub(super) fn format(&self, made: &Value, tell: impl FnOnce(&Value) -> String) -> String {
        match self.json {
            true => format_json(made),
            false => tell(made) + "\n",
        }
    }
}

/// `--dry-run`.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct DryRun {
    /// Show what it would do: the gateway makes all checks, and changes nothing
    #[arg(long = "dry-run")]
    pub(super) is_set: bool,
}

impl DryRun {
    /// Returns `done` of a change, `would` of a dry run.
    pub(super) fn choose<'a>(self, done: &'a str, would: &'a str) -> &'a str {
        if self.is_set { would } else { done }
    }

    /// Makes a change, or a dry run of it. A body of `null` is none.
    ///
    /// # Errors
    /// The gateway refuses, does not answer, or has no dry runs.
    pub(super) async fn send(
        self,
        client: &Client,
        route: (Method, &str),
        body: &Value,
    ) -> Result<Value, Failure> {
        if !self.is_set {
            return client.change(route, &[], body).await;
        }
        // Another server at this address would make the change.
        if client.get("/.well-known/a2a-gateway", &[]).await?[DRY_RUN] != true {
            return Err(Failure::new(
                "the gateway is of a release without dry runs, and would make the change: nothing was sent",
            ));
        }
        client.change(route, &[(DRY_RUN, "true")], body).await
    }
}

/// Returns a document as `--json` prints it.
pub(super) fn format_json(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Returns the members of a query that were given.
pub(super) fn query_of<'a>(members: &[(&'a str, &'a Option<String>)]) -> Vec<(&'a str, &'a str)> {
    let given = |(name, value): &(&'a str, &'a Option<String>)| Some((*name, value.as_deref()?));
    members.iter().filter_map(given).collect()
}

/// Returns the members of a body that were given: those that are not null.
pub(super) fn body_of(mut body: Value) -> Value {
    if let Some(members) = body.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    body
}

/// Returns the time after `span`, for the member `expires_at` of a body.
pub(super) fn end_of(span: Option<Duration>) -> Value {
    let end = span.map(|span| humantime::format_rfc3339_millis(SystemTime::now() + span));
    json!(end.map(|end| end.to_string()))
}

/// Returns ` until …` for an answer with an end.
pub(super) fn format_end(answer: &Value) -> String {
    let end = answer["expires_at"].as_str();
    end.map_or_else(String::new, |at| format!(" until {at}"))
}

/// Returns the path of an object whose id a user typed, such as `/workspaces/ID/tokens` for `ID` and `tokens`.
///
/// # Errors
/// As [`check_segment`].
pub(super) fn path_of(list: &str, id: &str, rest: &str) -> Result<String, Failure> {
    Ok(format!("/{list}/{}{rest}", check_segment(id)?))
}

/// True for the id of a workspace, a token, a grant or a stop.
pub(super) fn is_id(text: &str) -> bool {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !text.is_empty() && text.chars().all(is_good)
}

/// Fails unless `id` can stand in a path as one segment: what a user types must not choose another route.
pub(super) fn check_segment(id: &str) -> Result<&str, Failure> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-._~@:+=,!$'()*".contains(c);
    if id.is_empty() || id == "." || id == ".." || !id.chars().all(is_good) {
        let complaint = format!("{id:?} is no id: it has letters, digits, `-`, `.` and `_`");
        return Err(Failure::usage(complaint));
    }
    Ok(id)
}
