//! Logout tokens of the issuers of `auth.issuers` (OpenID Connect Back-Channel Logout 1.0, 2.4 and 2.6).

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Issuers, check_issued_at};
use crate::identity::refusal::AuthError;
use crate::identity::revocations::{SessionName, Subject};
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use trust::{TokenError, TokenHead, whole_seconds};

/// The event that a logout token has.
const EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";

/// Age of the oldest token that is taken, in seconds: a provider sends it at once, and again if it must.
const AGE_MAX: i64 = 300;

/// What a provider says has ended.
pub struct Logout {
    /// The session, else the person.
    pub subject: Subject,
    /// The provider.
    pub issuer: String,
    /// The id of the token, which counts once.
    pub jti: String,
}

/// Times are seconds since 1970.
#[derive(Deserialize)]
struct Claims {
    iat: f64,
    jti: String,
    events: Map<String, Value>,
    sub: Option<String>,
    sid: Option<String>,
    nonce: Option<Value>,
}

impl Claims {
    fn into_logout(self, issuer: &str, leeway: u64, now: i64) -> Result<Logout, TokenError> {
        check_issued_at(Some(self.iat), leeway)?;
        if whole_seconds(self.iat) < now - AGE_MAX {
            return Err(TokenError::Expired);
        }
        let is_event = self.events.get(EVENT).is_some_and(Value::is_object);
        if !is_event || self.nonce.is_some() || self.jti.is_empty() {
            return Err(TokenError::Claims);
        }
        let iss = issuer.to_owned();
        let subject = match (self.sid, self.sub) {
            (Some(sid), _) => Subject::Session(SessionName { iss, sid }),
            (None, Some(sub)) => Subject::root(issuer, &sub),
            (None, None) => return Err(TokenError::Claims),
        };
        subject.check().map_err(|_| TokenError::Claims)?;
        Ok(Logout {
            subject,
            issuer: issuer.to_owned(),
            jti: self.jti,
        })
    }
}

impl Issuers {
    /// Verifies the logout token of the issuer with this `name`.
    pub(in crate::identity) async fn verify_logout(
        &self,
        name: &str,
        token: &str,
        leeway: u64,
    ) -> Result<Logout, Rejection> {
        let all = self.all.load();
        let mut named = all.iter().map(|issuer| &issuer.settings.named);
        let at = named.position(|one| one.name.as_deref() == Some(name));
        let Some(issuer) = at.and_then(|at| all.get(at)) else {
            let message = "there is no issuer of this `name` in auth.issuers";
            return Err(Rejection::new(Reason::NotFound, message));
        };
        let verify = async {
            let head = TokenHead::parse_logout(token)?;
            let key = issuer.fetch_key(&head).await?;
            let known = &issuer.settings.named;
            let audience = known.client_id.as_ref().unwrap_or(&known.audience);
            let claims: Claims = key.verify(token, &head, leeway, &known.issuer, audience)?;
            let now = Timestamp::now().0 / 1000;
            Ok::<_, AuthError>(claims.into_logout(&known.issuer, leeway, now)?)
        };
        verify.await.map_err(|error| match error {
            AuthError::Unavailable(rejection) => rejection,
            AuthError::Refused(_) => Rejection::new(
                Reason::InvalidParams,
                "the logout token is not one of this issuer for this gateway: it has `iss`, `aud` (client_id, else \
                 audience), `iat` of the last five minutes, `exp`, `jti`, `events`, `sid` or `sub`, and no `nonce`",
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_logout_token_has_all_that_the_standard_asks_of_it() {
        let now = Timestamp::now().0 / 1000;
        let good = json!({"iat": now, "jti": "1", "events": {EVENT: {}}, "sub": "ada", "sid": "s"});
        let read = |claims: &Value| {
            let claims: Result<Claims, _> = serde_json::from_value(claims.clone());
            let claims = claims.map_err(|_| TokenError::Claims)?;
            claims.into_logout("iss", 60, now).map(|out| out.subject)
        };
        let (iss, sid) = ("iss".to_owned(), "s".to_owned());
        assert_eq!(read(&good), Ok(Subject::Session(SessionName { iss, sid })));
        let with = |name: &str, value: Option<Value>| {
            let mut claims = good.clone();
            let members = claims.as_object_mut().unwrap();
            members.remove(name);
            members.extend(value.map(|value| (name.to_owned(), value)));
            claims
        };
        assert_eq!(read(&with("sid", None)), Ok(Subject::root("iss", "ada")));
        assert!(read(&with("sub", None)).is_ok());
        for (name, value) in [
            ("iat", None),
            ("iat", Some(json!(now - 400))),
            ("iat", Some(json!(now + 400))),
            ("jti", None),
            ("jti", Some(json!(""))),
            ("events", None),
            ("events", Some(json!({}))),
            ("events", Some(json!({EVENT: true}))),
            ("nonce", Some(json!("n"))),
            ("sid", Some(json!(""))),
        ] {
            assert!(
                read(&with(name, value.clone())).is_err(),
                "{name} {value:?}"
            );
        }
        let nobody = json!({"iat": now, "jti": "1", "events": {EVENT: {}}});
        assert!(read(&nobody).is_err());
    }
}
