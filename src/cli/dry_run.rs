//! `--dry-run` of the commands that change something at a running gateway.

use http::Method;
use serde_json::Value;

use super::client::{Client, Failure};
use crate::store::DRY_RUN;

/// `--dry-run`.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct DryRun {
    /// Show what it would do: the gateway makes all checks, and changes nothing
    #[arg(long)]
    dry_run: bool,
}

impl DryRun {
    /// True if nothing is to be changed.
    pub(super) fn is_set(self) -> bool {
        self.dry_run
    }

    /// Returns `done` of a change, `would` of a dry run.
    pub(super) fn choose<'a>(self, done: &'a str, would: &'a str) -> &'a str {
        if self.dry_run { would } else { done }
    }

    /// Makes a change, or a dry run of it. A body of `null` is none.
    ///
    /// # Errors
    /// The gateway refuses, does not answer, or has no dry runs.
    pub(super) async fn send(
        self,
        client: &Client,
        (method, path): (Method, &str),
        body: &Value,
    ) -> Result<Value, Failure> {
        if !self.dry_run {
            return Ok(client.send_change(method, path, &[], body).await?);
        }
        let fail = |complaint: &str| Err(Failure::Failed(complaint.to_owned()));
        if client.get("/.well-known/a2a-gateway").await?[DRY_RUN] != true {
            return fail(
                "the gateway is of a release without dry runs, and would make the change: nothing was sent",
            );
        }
        let query = [(DRY_RUN, "true")];
        let answer = client.send_change(method, path, &query, body).await?;
        // Replicas of two releases, during an update.
        if answer[DRY_RUN] != true {
            return fail(
                "a replica of a release without dry runs answered, and made the change: look at it, and take it back",
            );
        }
        Ok(answer)
    }
}
