//! Changes, written down (contract §10): one record for each request that changes something, or was
//! refused to, whichever listener it came to. What a route changes is here; of what, the path says, or the handler by
//! an [`About`].

use std::net::IpAddr;
use std::sync::Arc;

use http::Method;
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{Audit, DONE, Draft, EventType};
use crate::config::Config;
use crate::config::load::Setting;
use crate::identity::{Proof, may_be_credential};
use crate::ids::{RequestId, WorkspaceId, is_made_here};
use crate::rejection::Reason;
use crate::telemetry::ShownAddress;

/// What a handler knows of a change that the path does not say. Goes with the answer, as an extension.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The workspace.
    pub target: Option<WorkspaceId>,
    /// Names of what was made or changed; never a credential, never content.
    pub detail: Map<String, Value>,
}

impl About {
    /// It is about a workspace that the path does not name.
    pub fn workspace(id: &WorkspaceId) -> Self {
        Self {
            target: Some(id.clone()),
            ..Self::default()
        }
    }

    /// And about this.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.detail.insert(name.to_owned(), value.into());
        self
    }
}

/// A request that may change something.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// Its method.
    pub method: &'a Method,
    /// The route's pattern, as the public listener has it.
    pub pattern: &'a str,
    /// Its path, likewise.
    pub path: &'a str,
    /// Its id.
    pub id: &'a RequestId,
    /// Who asks, if that is proven.
    pub proof: Option<Arc<Proof>>,
    /// Where it comes from.
    pub client: Option<IpAddr>,
}

/// What a route changes; `None`: nothing that is written down. Heartbeats and acknowledgements are not:
/// there are thousands, and what follows from them is.
pub fn event(method: &Method, pattern: &str) -> Option<EventType> {
    use EventType as E;
    Some(match (method.as_str(), pattern) {
        ("POST", "/workspaces") => E::WorkspaceCreated,
        ("PATCH", "/workspaces/{id}") => E::WorkspaceChanged,
        ("DELETE", "/workspaces/{id}") => E::WorkspaceRemoved,
        ("POST", "/workspaces/{id}/pause") => E::WorkspacePaused,
        ("POST", "/workspaces/{id}/resume") => E::WorkspaceResumed,
        ("POST", "/workspaces/{id}/delegate") => E::DelegationCreated,
        ("POST", "/workspaces/{id}/activity/{activity_id}/reply") => E::MessageReplied,
        ("POST", "/workspaces/{id}/notify") => E::MessageNotified,
        ("POST", "/registry/register") => E::WorkspaceRegistered,
        ("POST", "/registry/deregister") => E::WorkspaceDeregistered,
        ("POST", "/registry/update-card") => E::CardUpdated,
        ("POST", "/grants") => E::GrantCreated,
        ("DELETE", "/grants/{grant_id}") => E::GrantRemoved,
        (
            "POST",
            "/workspaces/{id}/tokens"
            | "/workspaces/{id}/enrolment"
            | "/orgs/{org}/tokens"
            | "/canvas/tokens"
            | "/ws/tickets",
        )
        | ("GET", "/registry/discover/{id}") => E::TokenIssued,
        ("DELETE", "/workspaces/{id}/tokens/{token_id}" | "/orgs/{org}/tokens/{token_id}") => {
            E::TokenRevoked
        }
        // Changes nothing, and is how the answer to a call reaches its caller after all.
        ("GET", "/workspaces/{id}/streams/{stream}") => E::StreamResumed,
        // Of the admin listener.
        ("POST", "/console/keys/rotate") => E::KeysChanged,
        _ => return None,
    })
}

/// Settings as records have them: masked as operators see them, and a long one by its hash.
pub fn settings<'a>(settings: impl Iterator<Item = &'a Setting>) -> Map<String, Value> {
    let written_down = |setting: &Setting| {
        let value = setting.json();
        let text = value.to_string();
        if text.len() <= SETTING_BYTES_MAX {
            return value;
        }
        json!({"sha256": hex::encode(Sha256::digest(&text))})
    };
    settings
        .map(|setting| (setting.key.clone(), written_down(setting)))
        .collect()
}

/// The operator's token of the environment, by its hash; `null`: there is none.
pub fn operator_token(config: &Config) -> Value {
    let token = config.auth.admin_token.as_ref();
    token.map_or(Value::Null, |token| {
        let hash = Sha256::digest(token.expose_secret());
        json!({"sha256": hex::encode(hash)})
    })
}

/// Longest value of a setting that is written down, in bytes of JSON.
const SETTING_BYTES_MAX: usize = 1024;

impl Audit {
    /// What is written down of an address.
    pub fn shown(&self, client: Option<IpAddr>) -> Option<ShownAddress> {
        let how = self.config.get().audit.client_address;
        client.and_then(|client| ShownAddress::of(client, how))
    }

    /// Writes a change down, if it is one. `refused`: the reason why it was not made.
    pub fn record_change(
        &self,
        asked: Asked<'_>,
        about: Option<About>,
        status: u16,
        refused: Option<Reason>,
    ) {
        let Some(event_type) = event(asked.method, asked.pattern) else {
            return;
        };
        // Who only reads where a workspace is gets no token.
        let issues = event_type == EventType::TokenIssued;
        if issues && asked.method == Method::GET && about.is_none() && refused.is_none() {
            return;
        }
        let About { target, mut detail } = about.unwrap_or_default();
        // Of what was refused nobody knows that it is a name: it may be a credential in a wrong place.
        let known = refused.is_none();
        let target = target.filter(|id| known || !may_be_credential(id.as_str()));
        let mut in_path = None;
        for (name, value) in names(asked.pattern, asked.path) {
            if name == "id" {
                let named = known || !may_be_credential(value);
                in_path = named.then(|| WorkspaceId::parse(value).ok()).flatten();
            } else if name != "stream" {
                // Which a stream is only its caller and the gateway know: its last event proves itself by it.
                let kept =
                    is_made_here(value) || (name == "org" && known && !may_be_credential(value));
                let kept = kept.then(|| value.chars().take(NAME_CHARS_MAX).collect::<String>());
                detail.entry(name.to_owned()).or_insert(kept.into());
            }
        }
        let own = asked
            .proof
            .as_ref()
            .and_then(|proof| proof.principal.workspace());
        let by_itself = matches!(
            event_type,
            EventType::WorkspaceRegistered
                | EventType::WorkspaceDeregistered
                | EventType::CardUpdated
        );
        let target = target
            .or(in_path)
            // Who is refused may have meant another.
            .or_else(|| own.filter(|_| by_itself && known).cloned());
        self.record(Draft {
            request_id: Some(asked.id.clone()),
            target,
            outcome: refused.map_or(DONE, Reason::word),
            status,
            detail: (!detail.is_empty()).then_some(Value::Object(detail)),
            proof: asked.proof,
            client: self.shown(asked.client),
            ..Draft::new(event_type)
        });
    }
}

/// Longest name of an org that is written down, in characters.
const NAME_CHARS_MAX: usize = 128;

/// The names in a path, by its pattern, as they are spelled.
fn names<'a>(pattern: &'a str, path: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    pattern
        .split('/')
        .zip(path.split('/'))
        .filter_map(|(name, value)| {
            let name = name.strip_prefix('{')?.strip_suffix('}')?;
            Some((name, value))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_from_the_path() {
        let found: Vec<_> =
            names("/orgs/{org}/tokens/{token_id}", "/orgs/acme/tokens/t-1").collect();
        assert_eq!(found, [("org", "acme"), ("token_id", "t-1")]);
    }
}
