//! `?dry_run=true` (`docs/reference/http-api.md`, "Dry runs"). A handler that takes a [`Changer`] has a dry run; the
//! extractors of the other handlers refuse the parameter ([`super::extract::admit`]).

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::FromRequestParts;
use http::request::Parts;
use serde::Serialize;
use url::form_urlencoded;

use super::extract::{AdmittedRequest, Caller, prove};
use crate::gateway::Gateway;
use crate::rejection::{Reason, Rejection};
use crate::store::{DRY_RUN, Run};

/// A caller that makes a change, or a dry run of it.
pub(super) struct Changer {
    pub(super) caller: Caller,
    pub(super) run: Run,
}

impl FromRequestParts<Arc<Gateway>> for Changer {
    type Rejection = Rejection;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Rejection> {
        let (caller, [dry_run]) = prove_with(parts, gateway, [DRY_RUN]).await?;
        let run = Run::from_dry_run(dry_run);
        Ok(Self { caller, run })
    }
}

/// An operator that applies a policy: `?dry_run=` and `?prune=`.
pub(super) struct Applier {
    pub(super) caller: Caller,
    pub(super) run: Run,
    pub(super) prune: bool,
}

impl FromRequestParts<Arc<Gateway>> for Applier {
    type Rejection = Rejection;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Rejection> {
        let (caller, [dry_run, prune]) = prove_with(parts, gateway, [DRY_RUN, "prune"]).await?;
        caller.require_operator()?;
        let run = Run::from_dry_run(dry_run);
        Ok(Self { caller, run, prune })
    }
}

/// Proves the caller, then reads the switches of the query, of which the first is `dry_run`.
async fn prove_with<const N: usize>(
    parts: &mut Parts,
    gateway: &Gateway,
    names: [&str; N],
) -> Result<(Caller, [bool; N]), Rejection> {
    let switches = parse_switches(parts, names);
    let is_dry = switches
        .as_ref()
        .is_ok_and(|switches| switches.first() == Some(&true));
    // Also if the caller is refused, so that the record of the refusal says so.
    AdmittedRequest::from_parts(parts).set_run(Run::from_dry_run(is_dry));
    Ok((prove(parts, gateway).await?, switches?))
}

/// Reads a query that has nothing but these names, each `true` or `false`, and once at most. A misspelt `dry_run` would
/// make the change.
///
/// # Errors
/// `invalid_params`.
fn parse_switches<const N: usize>(parts: &Parts, names: [&str; N]) -> Result<[bool; N], Rejection> {
    let wrong = || {
        let names = names.map(|name| format!("`{name}`")).join(" and ");
        let message =
            format!("the query of this route is {names}: `true` or `false`, and once at most");
        Rejection::new(Reason::InvalidParams, message)
    };
    let mut switches = [None; N];
    let query = parts.uri.query().unwrap_or_default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let place = names.iter().position(|known| **known == *name);
        let switch = place
            .and_then(|place| switches.get_mut(place))
            .ok_or_else(wrong)?;
        let value = value.parse().map_err(|_| wrong())?;
        if switch.replace(value).is_some() {
            return Err(wrong());
        }
    }
    Ok(switches.map(Option::unwrap_or_default))
}

/// The answer to a change, with `"dry_run": true` if it was one.
#[derive(Serialize)]
pub(super) struct ChangeResponse<T> {
    #[serde(flatten)]
    answer: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    dry_run: Option<bool>,
}

/// Returns the answer to a change.
pub(super) fn change_response<T>(run: Run, answer: T) -> Answer<ChangeResponse<T>> {
    Answer(ChangeResponse {
        answer,
        dry_run: run.is_dry().then_some(true),
    })
}

/// Returns a secret that a change made; of a dry run none.
pub(super) fn secret_unless_dry<T>(run: Run, secret: T) -> Option<T> {
    (!run.is_dry()).then_some(secret)
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
