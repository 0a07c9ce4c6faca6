//! Key patterns in the shared state: `ws:{id}:url`. Configurable, since existing deployments use
//! several, and other programs write some of them.

use crate::ids::{InstanceId, WorkspaceId};

/// Placeholder of the workspace id in a pattern.
const PLACE: &str = "{id}";

/// Parsed pattern. If it has no placeholder, the id is appended.
#[derive(Clone, Debug)]
pub(super) struct KeyPattern {
    prefix: String,
    suffix: String,
}

impl KeyPattern {
    pub(super) fn new(pattern: &str) -> Self {
        let (prefix, suffix) = pattern.split_once(PLACE).unwrap_or((pattern, ""));
        Self {
            prefix: prefix.to_owned(),
            suffix: suffix.to_owned(),
        }
    }

    /// Returns the key of one workspace.
    pub(super) fn format_key(&self, id: &WorkspaceId) -> String {
        format!("{}{id}{}", self.prefix, self.suffix)
    }

    /// Returns the key of one instance of a workspace. No id has a `/`, so it is the key of no workspace.
    pub(super) fn instance_key(&self, id: &WorkspaceId, instance: &InstanceId) -> String {
        format!("{}{id}/instance/{instance}{}", self.prefix, self.suffix)
    }

    /// Returns the workspace of `key`, if it is one of these keys.
    pub(super) fn parse_id(&self, key: &str) -> Option<WorkspaceId> {
        let id = key.strip_prefix(&self.prefix)?.strip_suffix(&self.suffix)?;
        WorkspaceId::parse(id).ok()
    }

    /// Returns the common prefix of its keys.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_its_workspace_and_only_that() {
        let url = KeyPattern::new("ws:{id}:url");
        let id = WorkspaceId::parse("a.b").unwrap();
        assert_eq!(url.format_key(&id), "ws:a.b:url");
        assert_eq!(url.parse_id("ws:a.b:url"), Some(id));
        for foreign in [
            "ws:a.b:internal_url",
            "ws::url",
            "ws:a:b:url",
            "a.b",
            "ws:url",
        ] {
            assert_eq!(url.parse_id(foreign), None, "{foreign}");
        }
        let instance = InstanceId::parse("one").unwrap();
        for pattern in ["workspace:{id}:heartbeat", "beat:{id}", "{id}", ""] {
            let key = KeyPattern::new(pattern);
            let of_instance = key.instance_key(&WorkspaceId::parse("a.b").unwrap(), &instance);
            assert_eq!(key.parse_id(&of_instance), None, "{of_instance}");
        }
    }
}
