//! An `OpenID` provider, at which people sign in: its metadata (OpenID Connect Discovery 1.0), the exchange of a code
//! (RFC 6749, RFC 7636), and the verification of ID tokens (OpenID Connect Core 1.0, 3.1.3.7). Each request has one
//! clock and a bounded answer, and follows no redirect.

use std::error::Error;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::timeout;
use url::Url;
use url::form_urlencoded::Serializer;

use super::remote_keys::{
    FETCH_MAX, FetchFailure, build_client, fetch_json, fetch_keys, read_bounded,
};
use super::token::whole_seconds;
use super::{KeySet, TokenError, TokenHead};
use kernel::config::check_url;
use kernel::metrics::JwksFetch;
use kernel::time::Timestamp;

/// Longest error word of a provider that is logged, in bytes.
const WORD_MAX: usize = 64;

/// Age of an ID token from which it is too old to be one that was just issued, in seconds.
const ISSUED_WITHIN: i64 = 600;

/// The metadata of a provider and its keys.
pub struct Provider {
    issuer: String,
    metadata: Metadata,
    keys: KeySet,
}

/// The members of the metadata that are read.
#[derive(Deserialize)]
struct Metadata {
    issuer: String,
    authorization_endpoint: Url,
    token_endpoint: Url,
    jwks_uri: Url,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// A request for the tokens behind a code.
pub struct CodeExchange<'a> {
    /// The code.
    pub code: &'a str,
    /// The `code_verifier`: its hash began the sign-in.
    pub verifier: &'a str,
    /// The redirect URI of the sign-in.
    pub redirect_uri: &'a str,
    /// The name of the gateway at the provider.
    pub client_id: &'a str,
    /// The secret of the client; `None`: a public client.
    pub client_secret: Option<&'a SecretString>,
}

/// The reason why a code gives no token.
#[derive(Debug)]
pub enum ExchangeFailure {
    /// The provider cannot be reached, or its answer cannot be read.
    Away(FetchFailure),
    /// The provider does not take the code: unknown, used, expired, or of another sign-in.
    Code,
    /// The provider does not take the client, or the request; with its word.
    Client(String),
}

impl From<FetchFailure> for ExchangeFailure {
    fn from(failure: FetchFailure) -> Self {
        Self::Away(failure)
    }
}

impl Provider {
    /// Fetches metadata and keys.
    ///
    /// # Errors
    /// [`FetchFailure`] names the step that failed.
    pub async fn discover(issuer: &str) -> Result<Self, FetchFailure> {
        let base = issuer.trim_end_matches('/');
        let url = format!("{base}/.well-known/openid-configuration");
        let url: Url = url.parse().map_err(invalid_metadata)?;
        let metadata: Metadata = fetch_json(&url).await?;
        if metadata.issuer != issuer {
            let why = "the metadata has another `issuer` than admin.sign_in.issuer";
            return Err(invalid_metadata(why));
        }
        for url in [
            &metadata.authorization_endpoint,
            &metadata.token_endpoint,
            &metadata.jwks_uri,
        ] {
            check_url(url)
                .map_err(|why| invalid_metadata(format!("a URL of the metadata {why}")))?;
        }
        let at = &metadata.jwks_uri;
        let (keys, _) = fetch_keys(at).await?;
        Ok(Self {
            issuer: issuer.to_owned(),
            keys,
            metadata,
        })
    }

    /// Returns the URL at which a person signs in, with these parameters.
    pub fn sign_in_url(&self, parameters: &[(&str, &str)]) -> Url {
        let mut url = self.metadata.authorization_endpoint.clone();
        url.query_pairs_mut().extend_pairs(parameters);
        url
    }

    /// True if an answer to a sign-in with this `iss` is from this provider (RFC 9207).
    pub fn is_own_issuer(&self, iss: Option<&str>) -> bool {
        match iss {
            Some(iss) => iss == self.issuer,
            None => !self.metadata.authorization_response_iss_parameter_supported,
        }
    }

    /// Exchanges a code for an ID token.
    ///
    /// # Errors
    /// [`ExchangeFailure`].
    pub async fn exchange(&self, exchange: &CodeExchange<'_>) -> Result<String, ExchangeFailure> {
        #[derive(Deserialize)]
        struct TokenResponse {
            id_token: String,
        }
        let failed = |outcome, cause: &str| FetchFailure::new(outcome, cause);
        let late = |_| failed(JwksFetch::TimedOut, "no whole answer within 5 s");
        let answer = timeout(FETCH_MAX, self.send_request(exchange)).await;
        let (status, body) = answer.map_err(late)??;
        if status == StatusCode::OK {
            let tokens: TokenResponse = serde_json::from_slice(&body).map_err(|_| {
                failed(JwksFetch::Invalid, "the answer to a code has no `id_token`")
            })?;
            return Ok(tokens.id_token);
        }
        if status.is_server_error() || status.is_redirection() {
            return Err(FetchFailure::new(JwksFetch::Status, status.to_string()).into());
        }
        Err(match error_word(&body).as_str() {
            "invalid_grant" => ExchangeFailure::Code,
            word => ExchangeFailure::Client(word.to_owned()),
        })
    }

    async fn send_request(
        &self,
        exchange: &CodeExchange<'_>,
    ) -> Result<(StatusCode, Vec<u8>), FetchFailure> {
        let url = &self.metadata.token_endpoint;
        let client = build_client(url)?;
        let (form, authorization) = self.encode_request(exchange);
        let mut request = client
            .post(url.clone())
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        if let Some(field) = authorization {
            request = request.header(AUTHORIZATION, field);
        }
        let response = request
            .body(form)
            .send()
            .await
            .map_err(FetchFailure::from_reqwest)?;
        let status = response.status();
        Ok((status, read_bounded(response).await?))
    }

    /// Returns the body of a request for tokens, and the value of its `Authorization`.
    fn encode_request(&self, exchange: &CodeExchange<'_>) -> (String, Option<String>) {
        let mut form = Serializer::new(String::new());
        form.append_pair("grant_type", "authorization_code")
            .append_pair("code", exchange.code)
            .append_pair("redirect_uri", exchange.redirect_uri)
            .append_pair("code_verifier", exchange.verifier)
            .append_pair("client_id", exchange.client_id);
        let secret = exchange.client_secret.map(SecretString::expose_secret);
        let in_field = secret.filter(|_| self.supports_basic());
        if let Some(secret) = secret.filter(|_| in_field.is_none()) {
            form.append_pair("client_secret", secret);
        }
        let field = in_field.map(|secret| basic_authorization(exchange.client_id, secret));
        (form.finish(), field)
    }

    /// True if the provider takes the client's secret in `Authorization`, which is the default.
    fn supports_basic(&self) -> bool {
        let methods = self.metadata.token_endpoint_auth_methods_supported.as_ref();
        let basic = |methods: &Vec<String>| methods.iter().any(|one| one == "client_secret_basic");
        methods.is_none_or(basic)
    }

    /// Returns the claims of an ID token, if this provider signed it for `client_id`, just now, in answer to the
    /// sign-in of `nonce`. `leeway`: forgiven seconds.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn verify(
        &self,
        token: &str,
        client_id: &str,
        nonce: &str,
        leeway: u64,
    ) -> Result<Map<String, Value>, TokenError> {
        let head = TokenHead::parse_foreign(token)?;
        let key = self.keys.find(&head).ok_or(TokenError::UnknownKey)?;
        let claims: Map<String, Value> =
            key.verify(token, &head, leeway, &self.issuer, client_id)?;
        let now = Timestamp::now().0 / 1000;
        check_claims(&claims, client_id, nonce, now, leeway)?;
        Ok(claims)
    }
}

/// Checks the claims besides `iss`, `aud`, `exp` and `nbf`. `now`: seconds since 1970; `leeway`: forgiven seconds.
fn check_claims(
    claims: &Map<String, Value>,
    client_id: &str,
    nonce: &str,
    now: i64,
    leeway: u64,
) -> Result<(), TokenError> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let iat = claims.get("iat").and_then(Value::as_f64);
    let iat = whole_seconds(iat.ok_or(TokenError::Claims)?);
    if iat > now.saturating_add_unsigned(leeway) {
        return Err(TokenError::Immature);
    }
    if iat < now.saturating_sub(ISSUED_WITHIN) {
        return Err(TokenError::Expired);
    }
    let several = claims
        .get("aud")
        .and_then(Value::as_array)
        .is_some_and(|all| all.len() > 1);
    let for_us = match claims.get("azp") {
        Some(azp) => azp.as_str() == Some(client_id),
        None => !several,
    };
    if text("nonce") != Some(nonce) || !for_us {
        return Err(TokenError::Claims);
    }
    Ok(())
}

/// Returns the `error` of an answer as a word that may be logged.
fn error_word(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct ErrorResponse {
        error: String,
    }
    let said = serde_json::from_slice::<ErrorResponse>(body).ok();
    let plain = |word: &String| {
        word.len() <= WORD_MAX && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
    };
    let word = said.map(|said| said.error).filter(plain);
    word.unwrap_or_else(|| "an error without a word".to_owned())
}

/// Returns the value of `Authorization` for a client (RFC 6749, 2.3.1).
fn basic_authorization(client_id: &str, secret: &str) -> String {
    let encoded =
        |text: &str| -> String { url::form_urlencoded::byte_serialize(text.as_bytes()).collect() };
    let pair = format!("{}:{}", encoded(client_id), encoded(secret));
    format!("Basic {}", STANDARD.encode(pair))
}

fn invalid_metadata(cause: impl Into<Box<dyn Error + Send + Sync>>) -> FetchFailure {
    FetchFailure::new(JwksFetch::Invalid, cause)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_of_another_sign_in_client_or_time_are_refused() {
        let good = json!({"sub": "1", "aud": ["gw"], "iat": 1000, "nonce": "n"});
        let check = |change: &dyn Fn(&mut Value)| {
            let mut claims = good.clone();
            change(&mut claims);
            check_claims(claims.as_object().unwrap(), "gw", "n", 1000, 5)
        };
        assert_eq!(check(&|_| {}), Ok(()));
        assert_eq!(check(&|claims| claims["azp"] = json!("gw")), Ok(()));
        assert_eq!(check(&|claims| claims["iat"] = json!(1005.5)), Ok(()));
        let both = |azp: Value| {
            move |claims: &mut Value| {
                claims["aud"] = json!(["gw", "other"]);
                claims["azp"] = azp.clone();
            }
        };
        assert_eq!(check(&both(json!("gw"))), Ok(()));
        type Change<'c> = &'c dyn Fn(&mut Value);
        let wrong: [(Change<'_>, TokenError); 8] = [
            (&|claims| claims["nonce"] = json!("m"), TokenError::Claims),
            (&|claims| claims["nonce"] = Value::Null, TokenError::Claims),
            (&|claims| claims["azp"] = json!("other"), TokenError::Claims),
            (&both(json!("other")), TokenError::Claims),
            (
                &|claims| claims["aud"] = json!(["gw", "other"]),
                TokenError::Claims,
            ),
            (&|claims| claims["iat"] = json!("1000"), TokenError::Claims),
            (&|claims| claims["iat"] = json!(1006), TokenError::Immature),
            (&|claims| claims["iat"] = json!(399), TokenError::Expired),
        ];
        for (change, error) in wrong {
            assert_eq!(check(change), Err(error));
        }
    }

    #[test]
    fn a_clients_name_and_secret_are_encoded_before_they_are_joined() {
        // "a%3Ab:c+d"
        assert_eq!(basic_authorization("a:b", "c d"), "Basic YSUzQWI6Yytk");
    }

    #[test]
    fn a_providers_word_is_logged_only_if_it_is_one() {
        let word = |body: &str| error_word(body.as_bytes());
        assert_eq!(word(r#"{"error":"invalid_client"}"#), "invalid_client");
        for body in ["", "x", r#"{"error":"<b>"}"#, r#"{"error":1}"#] {
            assert_eq!(word(body), "an error without a word", "{body}");
        }
    }
}
