//! Audit records of changes: one for each request that changes something or was rejected, on any listener
//! (`docs/reference/audit.md`). The declaration of a route names its event type, and the path
//! the object of the change, or the handler does with [`ChangeFacts`].

use std::net::IpAddr;
use std::sync::Arc;

use http::Method;
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{Audit, DONE, Detail, Draft, EventType};
use access::identity::{Proof, may_be_credential};
use kernel::config::Config;
use kernel::config::load::Setting;
use kernel::ids::{RequestId, WorkspaceId, is_made_here};
use kernel::rejection::Reason;
use kernel::telemetry::MaskedAddress;

/// The facts of a change that are not in its path. A handler attaches it to its response as an extension.
#[derive(Clone, Debug, Default)]
pub struct ChangeFacts {
    /// The workspace that was changed.
    pub target: Option<WorkspaceId>,
    /// Names of created or changed objects; never a credential, never content.
    pub detail: Map<String, Value>,
    /// True if an operator read content, whatever the route.
    is_content_read: bool,
}

impl ChangeFacts {
    /// Returns the facts of a change of a workspace that is not in the path.
    pub fn for_workspace(id: &WorkspaceId) -> Self {
        Self {
            target: Some(id.clone()),
            ..Self::default()
        }
    }

    /// Returns the facts of a look at content, of a workspace or of many. `None`: the reader is no operator, or gets no
    /// content.
    pub fn for_content_read(reader: &Proof, id: Option<&WorkspaceId>) -> Option<Self> {
        reader.sees_all_content().then(|| Self {
            target: id.cloned(),
            is_content_read: true,
            ..Self::default()
        })
    }

    /// Adds a fact to the detail.
    #[must_use]
    pub fn with_fact(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.detail.insert(name.to_owned(), value.into());
        self
    }
}

/// A request that may change something.
#[derive(Clone, Debug)]
pub struct ChangeRequest<'a> {
    /// The HTTP method.
    pub method: &'a Method,
    /// The type of the record that the route leaves; `None`: it leaves none.
    pub event_type: Option<EventType>,
    /// The pattern of the route on the public listener.
    pub pattern: &'a str,
    /// The path on the public listener.
    pub path: &'a str,
    /// The request id.
    pub id: &'a RequestId,
    /// The proof of the caller's identity, if there is one.
    pub proof: Option<Arc<Proof>>,
    /// The address of the client.
    pub client: Option<IpAddr>,
}

/// Returns settings as records hold them: masked as for operators, and a long value replaced by its hash.
pub fn settings_as_json<'a>(settings: impl Iterator<Item = &'a Setting>) -> Map<String, Value> {
    let written_down = |setting: &Setting| {
        let value = setting.to_json();
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

/// Returns the SHA-256 of the operator's token from the environment, or `null` if there is none.
pub fn operator_token_hash(config: &Config) -> Value {
    let token = config.auth.admin_token.as_ref();
    token.map_or(Value::Null, |token| {
        let hash = Sha256::digest(token.expose_secret());
        json!({"sha256": hex::encode(hash)})
    })
}

/// Maximum size of a setting's value in a record, in bytes of JSON.
const SETTING_BYTES_MAX: usize = 1024;

impl Audit {
    /// Returns a client address as `audit.client_address` allows it to be recorded.
    pub fn mask_client(&self, client: Option<IpAddr>) -> Option<MaskedAddress> {
        let how = self.config.get().audit.client_address;
        client.and_then(|client| MaskedAddress::mask(client, how))
    }

    /// Records a change, if the route is one. `refused` is the reason if the change was rejected.
    pub fn record_change(
        &self,
        asked: ChangeRequest<'_>,
        about: Option<ChangeFacts>,
        status: u16,
        refused: Option<Reason>,
    ) {
        let event_type = match &about {
            Some(about) if about.is_content_read => Some(EventType::ContentRead),
            _ => asked.event_type,
        };
        let Some(event_type) = event_type else {
            return;
        };
        // A `discover` request that only reads the address of a workspace is issued no token.
        let issues = event_type == EventType::TokenIssued;
        if issues && asked.method == Method::GET && about.is_none() && refused.is_none() {
            return;
        }
        let ChangeFacts {
            target, mut detail, ..
        } = about.unwrap_or_default();
        // A value in a rejected request is not known to be a name: it may be a misplaced credential.
        let known = refused.is_none();
        let target = target.filter(|id| known || !may_be_credential(id.as_str()));
        let mut in_path = None;
        for (name, value) in path_parameters(asked.pattern, asked.path) {
            if name == "id" {
                let named = known || !may_be_credential(value);
                in_path = named.then(|| WorkspaceId::parse(value).ok()).flatten();
            } else if name != "stream" {
                // The id of a stream is known only to its caller and the gateway, and authenticates the
                // gateway's last event, so it is not recorded.
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
                | EventType::InstanceDraining
                | EventType::CardUpdated
        );
        let target = target
            .or(in_path)
            // The target of a rejected request may have been another workspace.
            .or_else(|| own.filter(|_| by_itself && known).cloned());
        self.record(Draft {
            request_id: Some(asked.id.clone()),
            target,
            outcome: refused.map_or(DONE, Reason::as_str),
            status,
            detail: match detail.is_empty() {
                true => None,
                false => Detail::new(detail),
            },
            proof: asked.proof,
            client: self.mask_client(asked.client),
            ..Draft::new(event_type)
        });
    }
}

/// Maximum length of a recorded org, in characters.
const NAME_CHARS_MAX: usize = 128;

/// Returns the parameters of a path by the names in its pattern, without decoding them.
fn path_parameters<'a>(
    pattern: &'a str,
    path: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str)> {
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
            path_parameters("/orgs/{org}/tokens/{token_id}", "/orgs/acme/tokens/t-1").collect();
        assert_eq!(found, [("org", "acme"), ("token_id", "t-1")]);
    }
}
