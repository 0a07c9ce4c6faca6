//! `/policy`: workspaces, grants and stops as one document (`docs/reference/http-api.md`, "Policy"). Operators only.

use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use http::request::Parts;
use serde_json::{Value, json};
use url::form_urlencoded;

use super::body::PolicyJson;
use super::extract::Caller;
use crate::audit::change::About;
use crate::audit::{Detail, Draft, EventType};
use crate::gateway::Gateway;
use crate::identity::ClientAddr;
use crate::ids::RequestId;
use crate::policy::{self, Applied, Raw, Wish};
use crate::rejection::{Reason, Rejection};

/// Changes that one record of the audit names.
const CHANGES_OF_A_RECORD: usize = 100;

/// `?dry_run=` and `?prune=`, each `true` or `false`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Switches {
    dry_run: bool,
    prune: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for Switches {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejection> {
        let query = parts.uri.query().unwrap_or_default();
        let (mut dry_run, mut prune) = (None, None);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let switch = match &*name {
                "dry_run" => &mut dry_run,
                "prune" => &mut prune,
                _ => return Err(wrong_query()),
            };
            let value = value.parse().map_err(|_| wrong_query())?;
            if switch.replace(value).is_some() {
                return Err(wrong_query());
            }
        }
        Ok(Self {
            dry_run: dry_run.unwrap_or_default(),
            prune: prune.unwrap_or_default(),
        })
    }
}

fn wrong_query() -> Rejection {
    Rejection::new(
        Reason::InvalidParams,
        "the query is `dry_run` and `prune`, each `true` or `false`, and once at most",
    )
}

/// `GET /policy`.
pub(super) async fn export(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
) -> Result<Answer<Value>, Rejection> {
    caller.require_operator()?;
    policy::export(&gateway).await.map(Answer)
}

/// Facts of a request for its records.
pub(super) struct Origin {
    id: Option<RequestId>,
    client: Option<ClientAddr>,
}

impl<S: Send + Sync> FromRequestParts<S> for Origin {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejection> {
        Ok(Self {
            id: parts.extensions.get().cloned(),
            client: parts.extensions.get().copied(),
        })
    }
}

/// `POST /policy`.
pub(super) async fn apply(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    switches: Switches,
    origin: Origin,
    PolicyJson(raw): PolicyJson<Raw>,
) -> Result<Response, Rejection> {
    caller.require_operator()?;
    let wish = Wish {
        dry_run: switches.dry_run,
        prune: switches.prune,
        by: caller.0.principal.name().into_owned(),
    };
    let applied = policy::apply(&gateway, raw, &wish).await?;
    let about = record(&gateway, &caller, origin, &applied, switches);
    let body = json!({
        "dry_run": switches.dry_run,
        "prune": switches.prune,
        "revision": applied.revision,
        "changes": applied.changes,
        "unmanaged": applied.unmanaged,
        "expired": applied.expired,
        "unchanged": applied.unchanged,
    });
    Ok((Extension(about), Answer(body)).into_response())
}

/// Records all changes, [`CHANGES_OF_A_RECORD`] in each record. Returns the facts of the first, which the frame writes.
fn record(
    gateway: &Gateway,
    caller: &Caller,
    origin: Origin,
    applied: &Applied,
    switches: Switches,
) -> About {
    let about = About::default()
        .with("changed", applied.changes.len())
        .with("prune", switches.prune)
        .with("revision", applied.revision.as_str());
    if switches.dry_run {
        return about.with("dry_run", true);
    }
    let mut parts = applied.changes.chunks(CHANGES_OF_A_RECORD);
    let first = parts.next().unwrap_or_default();
    let client = gateway.audit.shown(origin.client.map(|client| client.0));
    for (n, part) in parts.enumerate() {
        let detail = json!({"changes": told(part), "part": n + 2, "revision": applied.revision});
        gateway.audit.record(Draft {
            request_id: origin.id.clone(),
            status: 200,
            detail: Detail::new(detail),
            proof: Some(Arc::clone(&caller.0)),
            client,
            ..Draft::new(EventType::PolicyApplied)
        });
    }
    about.with("changes", told(first)).with("part", 1)
}

/// Returns changes as records have them: names and the names of members, never values.
fn told(changes: &[Value]) -> Value {
    let of = |change: &Value| {
        let fields = change["fields"].as_array().into_iter().flatten();
        let fields: Vec<&Value> = fields.map(|field| &field["field"]).collect();
        let mut told =
            json!({"action": change["action"], "kind": change["kind"], "name": change["name"]});
        if !fields.is_empty() {
            told["fields"] = json!(fields);
        }
        told
    };
    changes.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(query: &str) -> Result<Switches, Rejection> {
        let request = http::Request::get(format!("/policy{query}"))
            .body(())
            .unwrap();
        let (mut parts, ()) = request.into_parts();
        Switches::from_request_parts(&mut parts, &()).await
    }

    #[tokio::test]
    async fn switches_are_true_or_false_and_nothing_else() {
        for (query, dry_run, prune) in [
            ("", false, false),
            ("?dry_run=true", true, false),
            ("?prune=true&dry_run=false", false, true),
        ] {
            let read = read(query).await.unwrap();
            assert_eq!((read.dry_run, read.prune), (dry_run, prune), "{query}");
        }
        for query in [
            "?dry_run",
            "?dry_run=1",
            "?dry_run=yes",
            "?dry_run=True",
            "?dryrun=true",
            "?prune=true&prune=true",
        ] {
            let refusal = read(query).await.unwrap_err();
            assert_eq!(refusal.reason, Reason::InvalidParams, "{query}");
        }
    }
}
