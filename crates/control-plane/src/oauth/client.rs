//! The client of `POST /oauth/token`: a workspace, by its credential as `Bearer`, or as `Basic` with its id (RFC 6749,
//! 2.3.1).

use std::sync::Arc;

use axum::extract::FromRequestParts;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::request::Parts;

use crate::extract::{admit, single_authorization};
use access::identity::Proof;
use assembly::gateway::Gateway;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};

/// The client of a request.
pub(crate) struct Client {
    pub(super) proof: Arc<Proof>,
    pub(super) id: WorkspaceId,
}

impl FromRequestParts<Arc<Gateway>> for Client {
    type Rejection = Rejection;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Rejection> {
        let field = single_authorization(&parts.headers)?;
        let basic = field.and_then(read_basic);
        let bearer = basic.as_ref().map(|(_, secret)| format!("Bearer {secret}"));
        let field = bearer.as_ref().map_or(field, |text| Some(text.as_bytes()));
        let proof = gateway.identity.authenticate(field).await?;
        admit(gateway, parts, &proof)?;
        let named = basic.is_none_or(|(id, _)| {
            proof
                .principal
                .workspace()
                .is_some_and(|own| own.as_str() == id)
        });
        let id = proof.principal.workspace().filter(|_| named).cloned();
        let id = id.ok_or_else(|| {
            Rejection::new(
                Reason::Unauthenticated,
                "the client is a workspace: send its own token as `Bearer`, or as the password of `Basic` with its id",
            )
        })?;
        Ok(Self { proof, id })
    }
}

/// Reads a field of the scheme `Basic`: the id and the secret. Neither has a character that a form encodes.
fn read_basic(field: &[u8]) -> Option<(String, String)> {
    let text = std::str::from_utf8(field).ok()?;
    let (scheme, coded) = text.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = STANDARD.decode(coded.trim()).ok()?;
    let both = String::from_utf8(decoded).ok()?;
    let (id, secret) = both.split_once(':')?;
    Some((id.to_owned(), secret.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_has_an_id_and_a_secret() {
        let read = |text: &str| read_basic(text.as_bytes());
        let both = Some(("dev".to_owned(), "a2aw_x:y".to_owned()));
        assert_eq!(
            read(&format!("basic {}", STANDARD.encode("dev:a2aw_x:y"))),
            both
        );
        for wrong in [
            "Basic",
            "Basic !",
            "Bearer ZGV2OmE=",
            &format!("Basic {}", STANDARD.encode("dev")),
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
