//! `POST /oauth/logout/{name}`: an identity provider says that a person or a session signed out (OpenID Connect
//! Back-Channel Logout 1.0). The provider's signature is the credential.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use sha2::{Digest, Sha256};

use super::{Form, refuse};
use crate::extract::PathIssuer;
use access::revocations::NewRevocation;
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use kernel::rejection::Rejection;
use stores::store::Run;

/// Time for which the id of a logout token is kept: longer than such a token is taken.
const USED: Duration = Duration::from_secs(15 * 60);

/// Serves it. What the person, or the session, began by now ends.
pub(crate) async fn accept_logout(
    State(gateway): State<Arc<Gateway>>,
    PathIssuer(name): PathIssuer,
    form: Form,
) -> Result<Response, Rejection> {
    let token = form.require("logout_token")?;
    let logout = gateway.identity.verify_logout(&name, token).await?;
    let used = Sha256::digest(format!("{} {}", logout.issuer, logout.jti));
    let used = URL_SAFE_NO_PAD.encode(used);
    let used = format!("gw:logout:{used}");
    if !gateway.shared.set_if_absent(&used, "1", USED).await? {
        return Err(refuse(
            "invalid_request",
            "the logout token was used before",
        ));
    }
    let new = NewRevocation {
        subject: logout.subject,
        org: None,
        reason: Some("the provider signed it out".to_owned()),
        created_by: format!("issuer:{name}"),
    };
    let made = gateway.identity.revocations.revoke(&new, Run::Real).await;
    if made.is_err() {
        // The provider sends it again.
        let _ = gateway.shared.delete(&[&used]).await;
    }
    let made = made?;
    let about = ChangeFacts::default()
        .with_fact("before", made.before.to_string())
        .with_fact("by", new.created_by)
        .with_fact("revocation_id", made.id);
    Ok((StatusCode::OK, Extension(about)).into_response())
}
