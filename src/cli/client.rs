//! The gateway as operators' commands ask it, and how they end: text for standard output, or an error and an exit
//! status.

use std::io;
use std::process::ExitCode;

use gateway_client::{ClientError, Registry, RegistryError, Response};
use http::Method;
use serde_json::Value;

use super::access::{AccessError, OperatorAccess};
use super::{USAGE, block_on, print, print_error};

/// A request to the gateway's control plane failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error(
        "{0}; is the gateway running? --url, A2A_GATEWAY_URL, a context or --config says where"
    )]
    NotRunning(ClientError),
    #[error(transparent)]
    Gateway(RegistryError),
}

impl From<RegistryError> for RequestError {
    fn from(error: RegistryError) -> Self {
        match error {
            RegistryError::Unanswered {
                source: away @ ClientError::NotListening { .. },
                ..
            } => Self::NotRunning(away),
            other => Self::Gateway(other),
        }
    }
}

/// The command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The gateway refused, or did not answer.
    #[error(transparent)]
    Request(RequestError),
    /// There is no gateway to ask, or no credential.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The arguments are wrong: nothing was done.
    #[error("{0}")]
    Usage(String),
    /// There is no result.
    #[error("{0}")]
    Failed(String),
    /// Standard output is closed or full, or a file cannot be written.
    #[error("cannot read or write")]
    Io(#[from] io::Error),
}

impl From<RegistryError> for Failure {
    fn from(error: RegistryError) -> Self {
        Self::Request(error.into())
    }
}

/// The control plane of a gateway, with a credential.
pub(super) struct Client {
    registry: Registry,
    token: String,
}

impl OperatorAccess {
    /// Returns the gateway that the arguments choose.
    ///
    /// # Errors
    /// [`AccessError`].
    pub(super) fn build_client(&self) -> Result<Client, AccessError> {
        let (url, token) = self.resolve()?;
        let registry = Registry::new(url);
        Ok(Client { registry, token })
    }
}

impl Client {
    /// Returns the JSON at a path.
    pub(super) async fn get(&self, path: &str) -> Result<Value, RegistryError> {
        self.registry.get(path, Some(&self.token)).await
    }

    /// Returns the JSON at a path, with a query.
    pub(super) async fn get_with_query(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<Value, RegistryError> {
        self.registry.get_page(path, &self.token, query).await
    }

    /// Opens what is at a path, with a query, as this media type; it may be long.
    pub(super) async fn open(
        &self,
        path: &str,
        query: &[(&str, &str)],
        accept: &'static str,
    ) -> Result<Response, RegistryError> {
        self.registry.open(path, &self.token, query, accept).await
    }

    /// Returns all entries of a list: of an array, or of the member `name`.
    pub(super) async fn list(
        &self,
        path: &str,
        query: &[(&str, &str)],
        name: Option<&str>,
    ) -> Result<Vec<Value>, RegistryError> {
        self.registry
            .get_whole_list(path, &self.token, query, name)
            .await
    }

    /// Returns a page of a list, and the cursor of the next one.
    pub(super) async fn read_page(
        &self,
        path: &str,
        query: &[(&str, &str)],
        cursor: Option<&str>,
    ) -> Result<(Value, Option<String>), RegistryError> {
        let page = self
            .registry
            .get_list_page(path, &self.token, query, cursor);
        page.await.map(|(page, next, _)| (page, next))
    }

    /// Posts JSON to a path.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, RegistryError> {
        self.registry.post(path, &self.token, body).await
    }

    /// Changes what is at a path, with a query. A body of `null` is none.
    pub(super) async fn send_change(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: &Value,
    ) -> Result<Value, RegistryError> {
        let route = (method, path);
        self.registry
            .change_resource(route, query, &self.token, body)
            .await
    }
}

/// Runs a command to its end: prints its text, or its error.
pub(super) fn run(work: impl Future<Output = Result<String, Failure>>) -> ExitCode {
    finish(block_on(work))
}

/// Prints the text of a command, or its error, and returns the exit status.
pub(super) fn finish(text: Result<String, Failure>) -> ExitCode {
    match text.and_then(|text| Ok(print(&text)?)) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has enough: `a2a-gateway workspace list | head`.
        Err(Failure::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            match error {
                Failure::Access(_) | Failure::Usage(_) => ExitCode::from(USAGE),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// Returns a document as `--json` prints it.
pub(super) fn format_json(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Fails unless `id` can stand in a path as one segment: what a user types must not choose another route.
pub(super) fn check_segment(id: &str) -> Result<&str, Failure> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-._~@:+=,!$'()*".contains(c);
    if id.is_empty() || id == "." || id == ".." || !id.chars().all(is_good) {
        let complaint = format!("{id:?} is no id: it has letters, digits, `-`, `.` and `_`");
        return Err(Failure::Usage(complaint));
    }
    Ok(id)
}
