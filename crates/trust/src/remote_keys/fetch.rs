//! Fetches one JWKS or a gateway's metadata: no redirects, one timeout, a bounded body.

use std::error::Error;
use std::time::Duration;

use http::header::{ACCEPT, CACHE_CONTROL};
use http::{HeaderMap, StatusCode};
use reqwest::redirect::Policy;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use url::Url;

use crate::KeySet;
use kernel::metrics::JwksFetch;

/// Limit from the DNS lookup to the last byte of the body.
pub(crate) const FETCH_MAX: Duration = Duration::from_secs(5);

/// Longest document, in bytes. Real key sets have 1 to 20 KiB.
const BODY_BYTES_MAX: usize = 256 * 1024;

/// Time until keys are fetched again if their host sends none, and the longest that it can set.
const AGE_DEFAULT: Duration = Duration::from_secs(600);

/// Shortest time that a host can set, so that it cannot cause fetches without pause.
const AGE_MIN: Duration = Duration::from_secs(60);

/// The cause of a failure, for the log.
type Cause = Box<dyn Error + Send + Sync>;

/// The reason that a document cannot be fetched.
#[derive(Debug)]
pub struct FetchFailure {
    /// The class.
    pub outcome: JwksFetch,
    /// The detailed cause, for the log.
    pub cause: Cause,
}

impl FetchFailure {
    pub(crate) fn new(outcome: JwksFetch, cause: impl Into<Cause>) -> Self {
        Self {
            outcome,
            cause: cause.into(),
        }
    }

    pub(crate) fn from_reqwest(error: reqwest::Error) -> Self {
        let outcome = if error.is_timeout() {
            JwksFetch::TimedOut
        } else {
            JwksFetch::Unreachable
        };
        // A URL may contain a secret.
        Self::new(outcome, error.without_url())
    }
}

/// Builds a client for one URL. It connects directly and ignores proxies in the environment.
/// Certificates are verified with the system's roots, or those of `SSL_CERT_FILE`. Plain `http` is
/// for loopback only, or if the operator allows it (`--plain-http` of a sidecar).
///
/// # Errors
/// If the system has no roots.
pub(crate) fn build_client(url: &Url) -> Result<reqwest::Client, FetchFailure> {
    // rustls panics without a provider. An error here means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder()
        .redirect(Policy::none())
        .no_proxy()
        .connect_timeout(FETCH_MAX)
        .timeout(FETCH_MAX)
        .pool_max_idle_per_host(0)
        .user_agent(concat!("a2a-gateway/", env!("CARGO_PKG_VERSION")));
    let builder = match url.scheme() {
        "https" => builder.https_only(true),
        _ => builder.tls_certs_only([]),
    };
    builder.build().map_err(FetchFailure::from_reqwest)
}

/// Fetches the keys and the time for which they are valid.
pub(crate) async fn fetch_keys(url: &Url) -> Result<(KeySet, Duration), FetchFailure> {
    let (body, age) = fetch_document(url).await?;
    let keys = KeySet::parse(&body).map_err(|e| FetchFailure::new(JwksFetch::Invalid, e))?;
    Ok((keys, age))
}

/// Fetches the issuer of a gateway's tokens from its metadata at `url`
/// (`/.well-known/a2a-gateway`).
///
/// # Errors
/// [`FetchFailure`] names the step that failed.
pub async fn fetch_issuer(url: &Url) -> Result<String, FetchFailure> {
    #[derive(Deserialize)]
    struct GatewayMetadata {
        issuer: String,
    }
    let metadata: GatewayMetadata = fetch_json(url).await?;
    Ok(metadata.issuer)
}

/// Fetches a JSON document once.
pub(crate) async fn fetch_json<T: DeserializeOwned>(url: &Url) -> Result<T, FetchFailure> {
    let (body, _) = fetch_document(url).await?;
    serde_json::from_slice(&body).map_err(|e| FetchFailure::new(JwksFetch::Invalid, e))
}

/// Fetches the document at `url` and the time for which it is valid.
async fn fetch_document(url: &Url) -> Result<(Vec<u8>, Duration), FetchFailure> {
    let late = |_| FetchFailure::new(JwksFetch::TimedOut, "no whole answer within 5 s");
    let fetched = timeout(FETCH_MAX, request_document(url)).await;
    fetched.map_err(late)?
}

async fn request_document(url: &Url) -> Result<(Vec<u8>, Duration), FetchFailure> {
    let client = build_client(url)?;
    let request = client.get(url.clone()).header(ACCEPT, "application/json");
    let response = request.send().await.map_err(FetchFailure::from_reqwest)?;
    let status = response.status();
    if status.is_redirection() {
        let cause = format!("{status}: a redirect is not followed; configure the final URL");
        return Err(FetchFailure::new(JwksFetch::Redirected, cause));
    }
    if status != StatusCode::OK {
        return Err(FetchFailure::new(JwksFetch::Status, status.to_string()));
    }
    let age = cache_lifetime(response.headers());
    Ok((read_bounded(response).await?, age))
}

/// Reads the body of an answer, of at most 256 KiB. The caller has a clock.
pub(crate) async fn read_bounded(mut response: reqwest::Response) -> Result<Vec<u8>, FetchFailure> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(FetchFailure::from_reqwest)? {
        if body.len() + piece.len() > BODY_BYTES_MAX {
            return Err(FetchFailure::new(JwksFetch::TooLarge, "more than 256 KiB"));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// Returns the lifetime by `Cache-Control`, clamped to the gateway's bounds.
fn cache_lifetime(headers: &HeaderMap) -> Duration {
    let fields = headers.get_all(CACHE_CONTROL).iter();
    let directives = fields
        .filter_map(|field| field.to_str().ok())
        .flat_map(|field| field.split(','))
        .map(|directive| directive.trim().to_ascii_lowercase());
    let mut age = AGE_DEFAULT;
    for directive in directives {
        if directive.starts_with("no-store") || directive.starts_with("no-cache") {
            return AGE_MIN;
        }
        let seconds = directive.strip_prefix("max-age=");
        if let Some(seconds) = seconds.and_then(|text| text.trim_matches('"').parse().ok()) {
            age = Duration::from_secs(seconds);
        }
    }
    age.clamp(AGE_MIN, AGE_DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_says_how_long_its_keys_count_within_bounds() {
        for (field, seconds) in [
            ("", 600),
            ("public", 600),
            ("max-age=300", 300),
            ("public, Max-Age=120, must-revalidate", 120),
            ("max-age=\"90\"", 90),
            ("max-age=0", 60),
            ("max-age=86400", 600),
            ("max-age=never", 600),
            ("no-store", 60),
            ("max-age=300, no-cache", 60),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CACHE_CONTROL, field.parse().unwrap());
            assert_eq!(
                cache_lifetime(&headers),
                Duration::from_secs(seconds),
                "{field}"
            );
        }
    }
}
