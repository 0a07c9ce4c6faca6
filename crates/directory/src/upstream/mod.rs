//! Credential and client certificate that the gateway shows an agent. Sealed in the row of the workspace, and
//! opened once for each directory entry.

mod tls;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderName;
use http::header::AUTHORIZATION;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::value::RawValue;

pub(super) use self::tls::require_https;
pub use self::tls::{ClientIdentity, UpstreamTls};
use crate::address::Endpoint;
use crate::rejections::{RETRY_AFTER, invalid};
use access::workspace::Workspace;
use kernel::config::{NEVER_TO_AGENTS, PASSED_TO_AGENTS};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use trust::{Seal, SealError, SealedSecret};

/// Longest field value, in bytes. Agents take heads of 8 KiB and more.
const VALUE_BYTES_MAX: usize = 4096;

/// Longest field name, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// Field names that are not allowed, besides those that the gateway sets, passes on or drops.
const RESERVED: &str =
    "date, idempotency-key, origin, prefer, proxy-authenticate, proxy-connection";

/// Prefixes reserved for the gateway's fields, present and future.
const RESERVED_PREFIXES: [&str; 5] = ["a2a-", "x-a2a-", "x-forwarded-", "sec-", "access-control-"];

/// Accepted forms, besides a plain string.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Form {
    Bearer { token: String },
    Basic { username: String, password: String },
    Header { name: String, value: String },
}

/// One request field: its name, and a value that is never shown.
#[derive(Clone, Debug)]
pub struct UpstreamAuth {
    /// Its name, in lower case.
    pub name: HeaderName,
    /// Its value, for the wire.
    pub value: SecretString,
}

impl UpstreamAuth {
    /// Parses the member `upstream_auth` of a body: one of the three forms, or a string, which is a bearer
    /// token.
    ///
    /// # Errors
    /// `invalid_params`, with the cause; the message does not contain the value.
    pub fn parse(json: &RawValue) -> Result<Self, Rejection> {
        let form = if json.get().starts_with('"') {
            serde_json::from_str(json.get()).map(|token| Form::Bearer { token })
        } else {
            serde_json::from_str(json.get())
        };
        // The error of serde may contain the secret.
        let form = form.map_err(|_| {
            invalid(
                r#"`upstream_auth` is a bearer token, or {"type":"bearer","token"}, {"type":"basic","username","password"} or {"type":"header","name","value"}, each of them text; null takes it back"#,
            )
        })?;
        match form {
            Form::Bearer { token } => {
                if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                    return Err(invalid(
                        "`upstream_auth.token` is visible ASCII without spaces: the token alone, without `Bearer`",
                    ));
                }
                Self::new(AUTHORIZATION, format!("Bearer {token}"))
            }
            Form::Basic { username, password } => {
                let controls = [&*username, &*password].concat().contains(char::is_control);
                if controls
                    || username.contains(':')
                    || (username.is_empty() && password.is_empty())
                {
                    return Err(invalid(
                        "`upstream_auth.username` and `password` have no control characters, the user name no colon, and one of them is not empty",
                    ));
                }
                let both = STANDARD.encode(format!("{username}:{password}"));
                Self::new(AUTHORIZATION, format!("Basic {both}"))
            }
            Form::Header { name, value } => {
                let name = field_name("upstream_auth.name", &name)?;
                field_value("upstream_auth.value", &value)?;
                Self::new(name, value)
            }
        }
    }

    fn new(name: HeaderName, value: String) -> Result<Self, Rejection> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(invalid(format!(
                "`upstream_auth` makes a request field of more than {VALUE_BYTES_MAX} bytes"
            )));
        }
        let value = value.into();
        Ok(Self { name, value })
    }

    /// Returns its kind: `bearer`, `basic` or `header`.
    pub fn kind(&self) -> &'static str {
        let value = self.value.expose_secret();
        match self.name.as_str() {
            "authorization" if value.starts_with("Bearer ") => "bearer",
            "authorization" if value.starts_with("Basic ") => "basic",
            _ => "header",
        }
    }

    /// Returns the form that is sealed: `name:value`.
    fn to_secret(&self) -> SecretString {
        format!("{}:{}", self.name, self.value.expose_secret()).into()
    }

    fn of_secret(secret: &SecretString) -> Option<Self> {
        let (name, value) = secret.expose_secret().split_once(':')?;
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        let value = SecretString::from(value);
        is_field_value(value.expose_secret()).then_some(Self { name, value })
    }

    /// Seals it for the row of `id`; it opens for no other row.
    pub(crate) fn seal(&self, seal: &Seal, id: &WorkspaceId) -> Result<SealedSecret, Rejection> {
        seal_for(seal, (id, "upstream_auth"), &self.to_secret())
    }

    /// Returns the credential of the agent of `workspace` for the endpoint that is about to be dialled; `None` also
    /// where it does not go. There is no other way to one. `is_vouched`: the operator lets it go to this endpoint.
    ///
    /// If it cannot be opened the message is rejected: an agent that requires a credential must not be called without.
    pub(crate) fn open(
        seal: &Seal,
        workspace: &Workspace,
        dialled: &Endpoint,
        is_vouched: bool,
    ) -> Result<Option<Self>, Rejection> {
        let Some(sealed) = &workspace.upstream_auth else {
            return Ok(None);
        };
        if !is_vouched && !workspace.has_credential_for(&dialled.url()) {
            return Ok(None);
        }
        let row = (&workspace.id, "upstream_auth");
        let wrong = (
            "The credential for calling this agent (upstream_auth) cannot be opened; its messages are refused",
            "the gateway cannot open the credential with which it calls this agent: an operator sets upstream_auth again, or restores the key that sealed it",
        );
        open_for(seal, row, sealed, Self::of_secret, wrong).map(Some)
    }
}

/// Returns the field names that are not allowed: set, passed on or dropped by the gateway.
fn reserved_names() -> impl Iterator<Item = &'static str> {
    let own = NEVER_TO_AGENTS.split(", ").chain(RESERVED.split(", "));
    let own = own.filter(|name| *name != "authorization");
    own.chain(PASSED_TO_AGENTS)
}

/// Parses the name of a request field that an operator sets, in `member` of a body.
///
/// # Errors
/// `invalid_params`: it is no name, or one that the gateway sets.
pub(crate) fn field_name(member: &str, name: &str) -> Result<HeaderName, Rejection> {
    let known = HeaderName::from_bytes(name.as_bytes()).ok();
    let Some(known) = known.filter(|_| name.len() <= NAME_BYTES_MAX) else {
        return Err(invalid(format!(
            "`{member}` is not the name of a request field, such as X-API-Key"
        )));
    };
    let text = known.as_str();
    let mut reserved = reserved_names();
    if reserved.any(|name| name == text) || RESERVED_PREFIXES.iter().any(|p| text.starts_with(p)) {
        return Err(invalid(format!(
            "`{member}` is a field that the gateway sets itself, or that ends at it: name the server's own, such as X-API-Key"
        )));
    }
    Ok(known)
}

/// Checks the value of such a field.
///
/// # Errors
/// `invalid_params`; the message does not contain the value.
pub(crate) fn field_value(member: &str, value: &str) -> Result<(), Rejection> {
    if value.is_empty() || !is_field_value(value) {
        return Err(invalid(format!(
            "`{member}` is visible ASCII, with spaces only in between"
        )));
    }
    if value.len() > VALUE_BYTES_MAX {
        return Err(invalid(format!(
            "`{member}` has more than {VALUE_BYTES_MAX} bytes"
        )));
    }
    Ok(())
}

fn is_field_value(value: &str) -> bool {
    value.trim() == value && value.bytes().all(|b| b.is_ascii_graphic() || b == b' ')
}

/// Seals the secret in `column` of the row of `id`; it opens for no other row and column.
pub(crate) fn seal_for(
    seal: &Seal,
    (id, column): (&WorkspaceId, &str),
    secret: &SecretString,
) -> Result<SealedSecret, Rejection> {
    seal.seal(&seal_owner(id, column), secret).map_err(|error| {
        Rejection::new(
            Reason::Internal,
            "the gateway cannot seal the credential; the log says more under the request's id",
        )
        .with_cause(error)
    })
}

/// Opens the secret in `column` of the row of `id`, and parses it. `wrong`: the message in the log and to the caller if
/// it cannot be opened, as the agent or its waker must not be called without it.
pub(crate) fn open_for<T>(
    seal: &Seal,
    (id, column): (&WorkspaceId, &str),
    sealed: &SealedSecret,
    parse: impl FnOnce(&SecretString) -> Option<T>,
    (logged, told): (&'static str, &'static str),
) -> Result<T, Rejection> {
    let opened = seal.open(&seal_owner(id, column), sealed);
    let parsed = opened.and_then(|secret| parse(&secret).ok_or(SealError::Form));
    parsed.map_err(|error| {
        tracing::error!(%error, workspace.id = %id, "{logged}");
        Rejection::new(Reason::StoreUnavailable, told)
            .with_retry_after(RETRY_AFTER)
            .with_cause(error)
    })
}

/// `:` is in no workspace id.
fn seal_owner(id: &WorkspaceId, column: &str) -> String {
    match column {
        "upstream_auth" => id.to_string(),
        _ => format!("{id}:{column}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::rejection::Reason;

    fn parse(json: &str) -> Result<UpstreamAuth, Rejection> {
        UpstreamAuth::parse(&RawValue::from_string(json.to_owned()).unwrap())
    }

    #[test]
    fn every_form_becomes_one_field() {
        for (json, name, value) in [
            (r#""tok-1""#, "authorization", "Bearer tok-1"),
            (
                r#"{"type":"bearer","token":"tok-1"}"#,
                "authorization",
                "Bearer tok-1",
            ),
            (
                r#"{"token":"t","type":"bearer","note":1}"#,
                "authorization",
                "Bearer t",
            ),
            (
                r#"{"type":"basic","username":"Ada","password":"pässword: 1"}"#,
                "authorization",
                "Basic QWRhOnDDpHNzd29yZDogMQ==",
            ),
            (
                r#"{"type":"basic","username":"key","password":""}"#,
                "authorization",
                "Basic a2V5Og==",
            ),
            (
                r#"{"type":"header","name":"X-API-Key","value":"a b:c"}"#,
                "x-api-key",
                "a b:c",
            ),
            (
                r#"{"type":"header","name":"Authorization","value":"ApiKey k"}"#,
                "authorization",
                "ApiKey k",
            ),
        ] {
            let auth = parse(json).unwrap();
            assert_eq!(
                (auth.name.as_str(), auth.value.expose_secret()),
                (name, value)
            );
            let again = UpstreamAuth::of_secret(&auth.to_secret()).unwrap();
            assert_eq!(
                (again.name.as_str(), again.value.expose_secret()),
                (name, value)
            );
            assert!(!format!("{auth:?}").contains(value));
        }
    }

    #[test]
    fn what_would_break_a_head_or_forge_a_field_is_refused_and_not_repeated() {
        let long = "s".repeat(VALUE_BYTES_MAX);
        let field = |name: &str, value: &str| {
            serde_json::json!({"type": "header", "name": name, "value": value}).to_string()
        };
        let mut cases = vec![
            "7".to_owned(),
            "[]".into(),
            "{}".into(),
            r#""""#.into(),
            r#""s3cret here""#.into(),
            r#""s3cret\r\nX: y""#.into(),
            r#""s3crét""#.into(),
            format!("\"{long}\""),
            r#"{"type":"bearer"}"#.into(),
            r#"{"type":"digest","token":"s3cret"}"#.into(),
            r#"{"type":"bearer","token":{"s3cret":1}}"#.into(),
            r#"{"type":"bearer","token":"s3cret","token":"s3cret"}"#.into(),
            r#"{"type":"basic","username":"s3cret:a","password":"b"}"#.into(),
            r#"{"type":"basic","username":"","password":""}"#.into(),
            r#"{"type":"basic","username":"a","password":"s3cret\u0000"}"#.into(),
            field("X-API-Key", ""),
            field("X-API-Key", " s3cret"),
            field("X-API-Key", "s3cret\r\nHost: evil"),
            field("X-API-Key", &"s".repeat(VALUE_BYTES_MAX + 1)),
            field("", "s3cret"),
            field("X API", "s3cret"),
            field("X:Y", "s3cret"),
            field(&"x".repeat(NAME_BYTES_MAX + 1), "s3cret"),
        ];
        for name in reserved_names() {
            cases.push(field(&name.to_uppercase(), "s3cret"));
        }
        for prefix in RESERVED_PREFIXES {
            cases.push(field(&format!("{prefix}any"), "s3cret"));
        }
        for json in cases {
            let refusal = parse(&json).unwrap_err();
            assert_eq!(refusal.reason, Reason::InvalidParams, "{json}");
            assert!(refusal.message.contains("upstream_auth"), "{json}");
            assert!(!refusal.message.contains("s3cr"), "{}", refusal.message);
        }
    }
}
