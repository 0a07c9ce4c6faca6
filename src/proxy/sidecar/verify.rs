//! `GET /auth/verify`, for a proxy that forwards requests itself after asking (nginx `auth_request`, Traefik
//! ForwardAuth, Caddy `forward_auth`), and `GET /auth/ready`, for probes.
//!
//! The sidecar does not see the body of the request in question, so it does not compare its hash.

use bytes::Bytes;
use http::{HeaderValue, Method, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use tokio::time::Instant;

use crate::dialect::Dialect;
use crate::ids::RequestId;
use crate::metrics::Plane;
use crate::proxy::admission::require_valid;
use crate::proxy::http1::{AbortCause, NOSNIFF};
use crate::proxy::listener::{put_request_id, write_response};
use crate::proxy::record::log_cause;
use crate::proxy::reject::send_rejection;
use crate::proxy::sidecar::fields::identity_fields;
use crate::proxy::sidecar::{READY, SidecarProxy, VERIFY, presented_token};
use crate::rejection::{Reason, Rejection};
use crate::trust::PairClaims;

/// A request for one of the sidecar's own routes.
struct Probe {
    route: &'static str,
    started: Instant,
}

impl SidecarProxy {
    /// Answers 200 with the fields that identify the caller, or the rejection.
    pub(super) async fn serve_verify(
        &self,
        session: &mut ServerSession,
        request_id: &RequestId,
    ) -> Result<(), AbortCause> {
        let started = Instant::now();
        let verified = self.verify_caller(session).await;
        tracing::info!(
            target: "access",
            {
            exchange.id = request_id.as_str(),
            caller = verified.as_ref().ok().map(|claims| claims.sub.as_str()),
            callee = self.sidecar.settings.workspace.as_str(),
            outcome = verified.as_ref().map_or_else(|r| r.reason.as_str(), |_| "verified"),
            },
            "A proxy asked who calls"
        );
        let said = verified.map(|claims| identity_fields(&claims).collect());
        self.send_result(
            session,
            request_id,
            Probe {
                route: VERIFY,
                started,
            },
            said,
        )
        .await
    }

    /// Answers 200 once callers can be verified.
    pub(super) async fn serve_ready(
        &self,
        session: &mut ServerSession,
        request_id: &RequestId,
    ) -> Result<(), AbortCause> {
        let started = Instant::now();
        let checked = require_valid(session).and_then(|()| self.require_read(session));
        let ready = checked.and_then(|()| {
            let draining = self.relay.drain.has_begun();
            let stops = || Rejection::new(Reason::ShuttingDown, "this process is shutting down");
            if draining { Err(stops()) } else { Ok(()) }
        });
        let ready = ready.and_then(|()| self.sidecar.check_ready());
        let said = ready.map(|()| Vec::new());
        self.send_result(
            session,
            request_id,
            Probe {
                route: READY,
                started,
            },
            said,
        )
        .await
    }

    async fn verify_caller(&self, session: &mut ServerSession) -> Result<PairClaims, Rejection> {
        let _place = self.check_preliminaries(session)?;
        self.require_read(session)?;
        let claims = self
            .sidecar
            .authenticate(presented_token(&self.sidecar, session.req_header())?)
            .await?;
        self.sidecar.mark_used(&claims)?;
        Ok(claims)
    }

    fn require_read(&self, session: &ServerSession) -> Result<(), Rejection> {
        if matches!(session.req_header().method, Method::GET | Method::HEAD) {
            return Ok(());
        }
        let mut rejection = Rejection::new(Reason::MethodNotAllowed, "ask with GET");
        rejection.allow = Some("GET, HEAD");
        Err(rejection)
    }

    async fn send_result(
        &self,
        session: &mut ServerSession,
        request_id: &RequestId,
        Probe { route, started }: Probe,
        said: Result<Vec<(&'static str, String)>, Rejection>,
    ) -> Result<(), AbortCause> {
        let status = said.as_ref().map_or_else(|r| r.reason.status(), |_| 200);
        let metrics = &self.relay.metrics;
        metrics
            .control
            .record_response(route, status, started.elapsed());
        if let Err(rejection) = &said {
            metrics
                .refusals
                .count_refusal(Plane::Control, rejection.reason);
        }
        // The proxy does not send the body of the request in question.
        match said {
            Ok(fields) => AbortCause::from_write(write_fields(session, request_id, &fields).await),
            Err(rejection) => {
                log_cause(&rejection, request_id);
                let form = Dialect::Plain.into();
                AbortCause::from_write(
                    send_rejection(session, &self.origins, request_id, &rejection, &form).await,
                )
            }
        }
    }
}

async fn write_fields(
    session: &mut ServerSession,
    request_id: &RequestId,
    fields: &[(&'static str, String)],
) -> pingora::Result<()> {
    let mut head = ResponseHeader::build(200, Some(6))?;
    for (name, value) in fields {
        head.append_header(*name, value.as_str())?;
    }
    head.append_header(header::CONTENT_LENGTH, 0)?;
    head.append_header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))?;
    head.append_header(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF)?;
    put_request_id(&mut head, request_id)?;
    write_response(session, head, Bytes::new()).await
}
