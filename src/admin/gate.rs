//! Who may read what tells of callers and workspaces: operators (`admin.auth`).
//!
//! Metrics, health and configuration tell of neither, and need no credential.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, header};

use super::reject;
use crate::gateway::Gateway;
use crate::identity::Principal;
use crate::rejection::{Reason, Rejection};

/// Lets operators through to the routes behind it, and tells others why not. A layer of those routes.
pub(super) async fn operators_only(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let client = peer.map(|peer| peer.0.ip());
    match require_operator(&gateway, request.headers(), client).await {
        Ok(()) => next.run(request).await,
        Err(rejection) => reject(&rejection, request.headers()),
    }
}

/// Whether whoever sends these fields may read what tells of callers and workspaces. A credential that
/// is sent must be an operator's, also where none is needed: a wrong one is somebody's mistake.
///
/// `client` is whom failures count against (`rate.failures_per_second`).
///
/// # Errors
/// `unauthenticated`, `not_permitted`; `rate_limited` in their place for an address that failed too
/// often; `store_unavailable`.
pub(super) async fn require_operator(
    gateway: &Gateway,
    headers: &HeaderMap,
    client: Option<IpAddr>,
) -> Result<(), Rejection> {
    let judged = judge(gateway, headers).await;
    judged.map_err(|rejection| match client {
        Some(client) => gateway.rates.failed(client, rejection),
        None => rejection,
    })
}

async fn judge(gateway: &Gateway, headers: &HeaderMap) -> Result<(), Rejection> {
    let mut fields = headers.get_all(header::AUTHORIZATION).iter();
    let field = match (fields.next(), fields.next()) {
        (Some(field), None) => field,
        (Some(_), Some(_)) => {
            return Err(Rejection::new(
                Reason::Unauthenticated,
                "the request has several `Authorization` fields: send exactly one",
            ));
        }
        (None, _) if !gateway.config().admin.needs_token() => return Ok(()),
        (None, _) => {
            return Err(Rejection::new(
                Reason::Unauthenticated,
                "this route of the admin listener tells of callers and workspaces: send \
                 `Authorization: Bearer <admin token>` (admin.auth)",
            ));
        }
    };
    let field = Some(HeaderValue::as_bytes(field));
    let proof = gateway.identity.authenticate(field).await?;
    match proof.principal {
        Principal::Operator => Ok(()),
        Principal::Canvas { .. } | Principal::Org { .. } | Principal::Workspace { .. } => Err(
            Rejection::new(Reason::NotPermitted, "this needs an admin token"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::{Layers, load};
    use crate::config::{AdminAuth, Config, Live};
    use crate::metrics::Metrics;

    const TOKEN: &str = "a2aa_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";
    const OTHER: &str = "a2aa_9999999999abcdefghijklmnopqrstuvwxyzABCDEFG";

    async fn said(change: impl FnOnce(&mut Config), fields: &[&str]) -> Result<(), Reason> {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let overrides = vec![
            format!("stores.sql=sqlite:{}", at("gateway.db")),
            format!("keys.dir={}", at("keys")),
        ];
        let layers = Layers {
            overrides,
            ..Layers::default()
        };
        let mut loaded = load(&layers).unwrap();
        loaded.config.auth.admin_token = Some(TOKEN.into());
        change(&mut loaded.config);
        let gateway = Gateway::open(Live::new(loaded), Arc::new(Metrics::new())).unwrap();
        gateway.prepare().await;
        let mut headers = HeaderMap::new();
        for field in fields {
            headers.append(header::AUTHORIZATION, field.parse().unwrap());
        }
        let answer = require_operator(&gateway, &headers, None).await;
        answer.map_err(|rejection| rejection.reason)
    }

    fn beyond_loopback(config: &mut Config) {
        config.admin.listen = "0.0.0.0:9090".parse().unwrap();
    }

    #[tokio::test]
    async fn a_loopback_listener_needs_no_token_and_others_do() {
        let always = |config: &mut Config| config.admin.auth = AdminAuth::Token;
        assert_eq!(said(|_| {}, &[]).await, Ok(()));
        assert_eq!(said(always, &[]).await, Err(Reason::Unauthenticated));
        let refused = said(beyond_loopback, &[]).await;
        assert_eq!(refused, Err(Reason::Unauthenticated));
        let good = format!("Bearer {TOKEN}");
        for gate in [always, beyond_loopback] {
            assert_eq!(said(gate, &[&good]).await, Ok(()));
        }
    }

    #[tokio::test]
    async fn a_credential_that_is_sent_must_be_an_operators() {
        let (good, wrong) = (format!("Bearer {TOKEN}"), format!("Bearer {OTHER}"));
        assert_eq!(said(|_| {}, &[&good]).await, Ok(()));
        for wrong in [&[wrong.as_str()][..], &["Basic eDp5"], &[&good, &good]] {
            let refused = said(|_| {}, wrong).await;
            assert_eq!(refused, Err(Reason::Unauthenticated), "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn open_mode_opens_nothing_here() {
        let open = |config: &mut Config| {
            config.auth.mode = crate::config::AuthMode::Open;
            config.admin.auth = AdminAuth::Token;
        };
        assert_eq!(said(open, &[]).await, Err(Reason::Unauthenticated));
    }
}
