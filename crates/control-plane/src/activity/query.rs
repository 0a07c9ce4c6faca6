//! The query of an inbox, `?since_id=&type=&source=&wait=`, and the choice of an event stream.

use std::time::Duration;

use axum::extract::{FromRequestParts, Query as Pairs};
use http::request::Parts;
use serde::Deserialize;

use a2a::accept::prefers_stream;
use kernel::rejection::{Reason, Rejection};
use mailbox::inbox::{ActivityType, Filter, SourceKind};

/// Maximum wait, in seconds: proxies between gateway and agent cut connections that are silent for longer.
const WAIT_MAX: u64 = 60;

/// The query besides the page.
pub(crate) struct Query {
    /// The entry after which to continue.
    pub(super) since_id: Option<String>,
    pub(super) filter: Filter,
    /// The time to wait for an entry if there is none.
    pub(super) wait: Duration,
    /// True if an event stream is requested.
    pub(super) streams: bool,
}

#[derive(Deserialize)]
struct RawQuery {
    since_id: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    source: Option<String>,
    wait: Option<u64>,
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let wrong = |message| Rejection::new(Reason::InvalidParams, message);
        let wait_is = "`wait` is a whole number of seconds, 60 at most";
        let Ok(Pairs(raw)) = Pairs::<RawQuery>::from_request_parts(parts, state).await else {
            return Err(wrong(
                "`since_id`, `type`, `source` and `wait` stand once at most; `wait` is a whole number of seconds",
            ));
        };
        let kind = raw.kind.as_deref().map(|word| {
            let wrong = || wrong("`type` is `a2a_receive`, `notify` or `delegate_result`");
            ActivityType::parse(word).ok_or_else(wrong)
        });
        let source = raw.source.as_deref().map(|word| {
            SourceKind::parse(word).ok_or_else(|| wrong("`source` is `canvas` or `agent`"))
        });
        let wait = raw.wait.unwrap_or(0);
        if wait > WAIT_MAX {
            return Err(wrong(wait_is));
        }
        let streams = prefers_stream(&parts.headers);
        let last = parts.headers.get("last-event-id").filter(|_| streams);
        // A value that is not text cannot be an id of the gateway.
        let last = last.map(|value| value.to_str().unwrap_or("-").to_owned());
        let since_id = last.filter(|id| !id.is_empty()).or(raw.since_id);
        Ok(Self {
            since_id,
            filter: Filter {
                kind: kind.transpose()?,
                source: source.transpose()?,
            },
            wait: Duration::from_secs(wait),
            streams,
        })
    }
}
