//! `?dry_run=true` (`docs/reference/http-api.md`, "Dry runs"). A route that declares one has it; the extractors
//! of the others refuse the parameter ([`super::extract::admit`]).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json as Answer};
use http::StatusCode;
use http::request::Parts;
use serde::Serialize;
use serde_json::{Value, json};
use url::form_urlencoded;

use super::extract::{Caller, parse_switches, prove_with};
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use kernel::rejection::{Reason, Rejection};
use stores::store::{DRY_RUN, Run};

/// An operator that applies a policy: `?dry_run=`, `?prune=`, `?force=` and `?replay=`.
pub(super) struct Applier {
    pub(super) caller: Caller,
    pub(super) prune: bool,
    pub(super) force: bool,
    /// The time whose calls are judged by the policy, instead of applying it.
    pub(super) replay: Option<Duration>,
}

impl FromRequestParts<Arc<Gateway>> for Applier {
    type Rejection = Rejection;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Rejection> {
        let replay = take_replay(parts);
        let names = [DRY_RUN, "prune", "force"];
        let (caller, [_, prune, force]) = prove_with(parts, gateway, names).await?;
        caller.require_operator()?;
        let replay = replay?;
        Ok(Self {
            caller,
            prune,
            force,
            replay,
        })
    }
}

/// Longest time that is replayed.
const REPLAY_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Takes `?replay=` out of the query. A replay changes nothing: it is a dry run.
///
/// # Errors
/// `invalid_params`.
fn take_replay(parts: &mut Parts) -> Result<Option<Duration>, Rejection> {
    let wrong = || {
        let message =
            "`replay` is a duration such as 7d or 12h, of at most a year, and once at most";
        Rejection::new(Reason::InvalidParams, message)
    };
    let query = parts.uri.query().unwrap_or_default();
    let (said, rest): (Vec<_>, Vec<_>) = form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .partition(|(name, _)| name == "replay");
    if said.is_empty() {
        return Ok(None);
    }
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(rest.iter().filter(|(name, _)| name != DRY_RUN));
    let query = query.append_pair(DRY_RUN, "true").finish();
    let rest = format!("{}?{query}", parts.uri.path());
    parts.uri = rest.parse().map_err(|_| wrong())?;
    let back = match &*said {
        [(_, back)] => kernel::config::value::duration(json!(back)).ok(),
        _ => None,
    };
    let back = back.filter(|back| *back <= REPLAY_MAX);
    back.map(Some).ok_or_else(wrong)
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
