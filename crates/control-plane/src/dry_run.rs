//! `?dry_run=true` (`docs/reference/http-api.md`, "Dry runs"). A route that declares one has it; the extractors
//! of the others refuse the parameter ([`super::extract::admit`]).

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json as Answer};
use http::StatusCode;
use http::request::Parts;
use serde::Serialize;
use serde_json::{Value, json};

use super::extract::{Caller, parse_switches, prove_with};
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use kernel::rejection::Rejection;
use stores::store::{DRY_RUN, Run};

/// An operator that applies a policy: `?dry_run=`, `?prune=` and `?force=`.
pub(super) struct Applier {
    pub(super) caller: Caller,
    pub(super) prune: bool,
    pub(super) force: bool,
}

impl FromRequestParts<Arc<Gateway>> for Applier {
    type Rejection = Rejection;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Rejection> {
        let names = [DRY_RUN, "prune", "force"];
        let (caller, [_, prune, force]) = prove_with(parts, gateway, names).await?;
        caller.require_operator()?;
        Ok(Self {
            caller,
            prune,
            force,
        })
    }
}

/// A caller that has a policy proven: `?prune=`.
pub(super) struct Prover {
    pub(super) caller: Caller,
    pub(super) prune: bool,
}

impl FromRequestParts<Arc<Gateway>> for Prover {
    type Rejection = Rejection;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Rejection> {
        let switches = parse_switches(parts, ["prune"]);
        let caller = Caller::from_request_parts(parts, gateway).await?;
        let [prune] = switches?;
        Ok(Self { caller, prune })
    }
}

/// The answer to a change, with `"dry_run": true` if it was one.
#[derive(Serialize)]
pub(super) struct ChangeResponse<T> {
    #[serde(flatten)]
    answer: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    dry_run: Option<bool>,
}

/// Returns the answer to a request that says no more than what it did.
pub(super) fn status_json(status: &str) -> Value {
    json!({"status": status})
}

/// Returns the answer to a change.
pub(super) fn change_response<T>(run: Run, answer: T) -> Answer<ChangeResponse<T>> {
    Answer(ChangeResponse {
        answer,
        dry_run: run.is_dry().then_some(true),
    })
}

impl Caller {
    /// Returns the answer to the change that the request makes.
    pub(super) fn respond<T>(&self, answer: T) -> Answer<ChangeResponse<T>> {
        change_response(self.run(), answer)
    }

    /// Returns the answer to the request, which made something.
    pub(super) fn respond_created<T: Serialize>(&self, about: ChangeFacts, answer: T) -> Response {
        let created = (StatusCode::CREATED, Extension(about), self.respond(answer));
        created.into_response()
    }

    /// Returns a secret that the request made; of a dry run none.
    pub(super) fn secret<T>(&self, secret: T) -> Option<T> {
        (!self.run().is_dry()).then_some(secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::rejection::Reason;

    fn read(query: &str) -> Result<[bool; 2], Rejection> {
        let request = http::Request::get(format!("/policy{query}")).body(());
        let (parts, ()) = request.unwrap().into_parts();
        parse_switches(&parts, [DRY_RUN, "prune"])
    }

    #[test]
    fn switches_are_true_or_false_and_nothing_else() {
        for (query, switches) in [
            ("", [false, false]),
            ("?dry_run=true", [true, false]),
            ("?prune=true&dry_run=false", [false, true]),
        ] {
            assert_eq!(read(query).unwrap(), switches, "{query}");
        }
        for query in [
            "?dry_run",
            "?dry_run=1",
            "?dry_run=yes",
            "?dry_run=True",
            "?dryrun=true",
            "?prune=true&prune=true",
        ] {
            let refusal = read(query).unwrap_err();
            assert_eq!(refusal.reason, Reason::InvalidParams, "{query}");
        }
    }
}
