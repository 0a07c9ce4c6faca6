//! `/oauth/…`: OAuth 2.0 for agents and identity providers (`docs/reference/credentials.md`, "OAuth"). Bodies are
//! forms, and refusals have the form of RFC 6749 (5.2), with the gateway's reason beside it.

mod client;
pub(super) mod logout;
pub(super) mod metadata;
pub(super) mod token;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use serde_json::json;
use url::form_urlencoded;

use super::body::{FORM_BYTES_MAX, read_bytes};
use assembly::gateway::Gateway;
use kernel::ids::RequestId;
use kernel::rejection::{REFUSED, Reason, Rejection};

/// The media type of the bodies.
const FORM: &str = "application/x-www-form-urlencoded";

/// Maximum members of a body.
const MEMBERS_MAX: usize = 64;

/// The fact of a rejection that is its error code.
const ERROR: &str = "error";

/// The body of a request: a form, in which no name is there twice.
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    /// Returns a member. An empty one counts as none (RFC 6749, 3.2).
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let mut members = self.0.iter();
        let found = members.find(|(known, value)| known == name && !value.is_empty());
        found.map(|(_, value)| &**value)
    }

    /// Returns a member that must be there.
    ///
    /// # Errors
    /// `invalid_request`.
    pub(super) fn require(&self, name: &'static str) -> Result<&str, Rejection> {
        self.get(name)
            .ok_or_else(|| refuse("invalid_request", format!("`{name}` is missing")))
    }
}

impl FromRequest<Arc<Gateway>> for Form {
    type Rejection = Rejection;

    async fn from_request(request: Request, gateway: &Arc<Gateway>) -> Result<Self, Rejection> {
        if !is_form(request.headers()) {
            let message = format!("send the body as a form: `Content-Type: {FORM}`");
            return Err(Rejection::new(Reason::UnsupportedMediaType, message));
        }
        let body = read_bytes(request, gateway, FORM_BYTES_MAX).await?;
        let mut members: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(&body) {
            if members.len() >= MEMBERS_MAX || members.iter().any(|(known, _)| *known == name) {
                let message = "the form has a name twice, or more than 64 names";
                return Err(refuse("invalid_request", message));
            }
            members.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self(members))
    }
}

fn is_form(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (Some(one), None) = (types.next(), types.next()) else {
        return false;
    };
    let media = one.to_str().unwrap_or_default().split(';').next();
    media.is_some_and(|media| media.trim().eq_ignore_ascii_case(FORM))
}

/// Builds a rejection with a code of OAuth.
pub(super) fn refuse(
    code: &'static str,
    message: impl Into<std::borrow::Cow<'static, str>>,
) -> Rejection {
    Rejection::new(Reason::InvalidParams, message).with_fact(ERROR, code)
}

/// True if refusals of this route have the form of OAuth.
pub(super) fn is_oauth_route(pattern: &str) -> bool {
    pattern.starts_with("/oauth/")
}

/// Formats a rejection as RFC 6749 (5.2) has it.
pub(super) fn format_error(rejection: &Rejection, id: &RequestId) -> Response {
    let named = rejection.facts().find(|(name, _)| *name == ERROR);
    let status = rejection.reason.status();
    let code = match (named, status) {
        (Some((_, code)), _) => code,
        (None, 401) => "invalid_client",
        (None, 403) => "unauthorized_client",
        (None, 429 | 503) => "temporarily_unavailable",
        (None, 400..500) => "invalid_request",
        (None, _) => "server_error",
    };
    let body = json!({
        "error": code,
        "error_description": rejection.message,
        "reason": rejection.reason.as_str(),
        "request_id": id.as_str(),
    });
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(REFUSED, HeaderValue::from_static(rejection.reason.as_str()));
    if let Some(seconds) = rejection.retry_after {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    if status == 401 {
        headers.append(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        headers.append(WWW_AUTHENTICATE, HeaderValue::from_static("Basic"));
    }
    for (name, value) in &rejection.fields {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(*name, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn refusals_have_the_codes_of_oauth() {
        for (rejection, status, code) in [
            (refuse("invalid_target", "no"), 400, "invalid_target"),
            (
                Rejection::new(Reason::Unauthenticated, "no"),
                401,
                "invalid_client",
            ),
            (
                Rejection::new(Reason::NotPermitted, "no"),
                403,
                "unauthorized_client",
            ),
            (
                Rejection::new(Reason::BodyTooLarge, "no"),
                413,
                "invalid_request",
            ),
            (
                Rejection::new(Reason::RateLimited, "no"),
                429,
                "temporarily_unavailable",
            ),
            (Rejection::new(Reason::Internal, "no"), 500, "server_error"),
            (
                Rejection::new(Reason::StoreUnavailable, "no"),
                503,
                "temporarily_unavailable",
            ),
        ] {
            let reason = rejection.reason.as_str();
            let response = format_error(&rejection, &RequestId::random());
            assert_eq!(response.status(), status, "{code}");
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(
                (&body["error"], &body["reason"]),
                (&code.into(), &reason.into())
            );
        }
    }

    #[test]
    fn only_forms_are_forms() {
        let field = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_TYPE, value.parse().unwrap());
            }
            is_form(&headers)
        };
        assert!(field(&[FORM]) && field(&["Application/X-WWW-Form-URLEncoded; charset=utf-8"]));
        for wrong in [
            &[][..],
            &["application/json"],
            &["text/plain"],
            &[FORM, FORM],
        ] {
            assert!(!field(wrong), "{wrong:?}");
        }
    }
}
