//! Members of payloads that are about more than the workspace of their event, and the readers that get them.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use access::hierarchy::Hierarchy;
use access::identity::Principal;
use kernel::ids::WorkspaceId;
use stores::store::Unavailable;

/// Subject of a payload besides the workspace of its event.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PayloadSubject {
    /// These workspaces, by their ids.
    Workspaces(Vec<String>),
    /// An org.
    Org(String),
    /// All orgs.
    All,
}

impl PayloadSubject {
    /// Returns these workspaces as a subject.
    pub fn from_workspaces<'a>(ids: impl IntoIterator<Item = &'a WorkspaceId>) -> Self {
        Self::Workspaces(ids.into_iter().map(ToString::to_string).collect())
    }
}

/// Members of a payload for readers only that look after all of a subject. Workspaces get them: their own calls tell as
/// much.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RestrictedMembers {
    pub(super) of: PayloadSubject,
    pub(super) members: Vec<String>,
}

impl RestrictedMembers {
    /// Returns the payload without the members; `None` if it is no object.
    pub(super) fn payload_without(&self, payload: &RawValue) -> Option<Box<RawValue>> {
        let mut left: Map<String, Value> = serde_json::from_str(payload.get()).ok()?;
        left.retain(|name, _| !self.members.contains(name));
        serde_json::value::to_raw_value(&left).ok()
    }

    /// True if the members are for `principal`.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub(super) async fn is_for(
        &self,
        hierarchy: &Hierarchy,
        principal: &Principal,
    ) -> Result<bool, Unavailable> {
        if principal.workspace().is_some() {
            return Ok(true);
        }
        match &self.of {
            PayloadSubject::Workspaces(ids) => {
                for id in ids {
                    let is_over = match WorkspaceId::parse(id) {
                        Ok(id) => hierarchy.may_reach_id(principal, &id).await?,
                        Err(_) => false,
                    };
                    if !is_over {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            PayloadSubject::Org(org) => Ok(hierarchy.may_reach_org(principal, org)),
            PayloadSubject::All => Ok(false),
        }
    }
}
