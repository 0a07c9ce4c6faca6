//! `[wake]`: calls to agents that sleep.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use url::{Position, Url};

use super::value::{ByteSize, duration, has_user, is_http};
use crate::ids::WorkspaceId;

/// The part of the URL that stands for the workspace.
const PLACEHOLDER: &str = "{workspace_id}";

const FORM: &str = "is not the URL of a waker: write \"http://waker:9000/wake/{workspace_id}\", with {workspace_id} in \
                    the path or the query, and without a user, a password and a fragment";

sections! {
    /// `[wake]`: calls to agents that sleep.
    Wake {
        /// The waker of workspaces without one of their own; `None`: they are not woken.
        #[serde(default)]
        url: Option<WakeTemplate>,
        /// Longest wait of a call for its agent; a workspace can override it.
        max_wait: Duration as "duration",
        /// Shortest time between two requests to the waker of one workspace; a workspace can override it.
        cool_down: Duration as "duration",
        /// Maximum parked calls.
        max_parked: usize,
        /// Maximum bytes of the bodies of parked calls.
        max_parked_bytes: ByteSize,
    }
}

/// The URL of a waker for all workspaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeTemplate(String);

impl WakeTemplate {
    fn parse(text: &str) -> Option<Self> {
        let url = Url::parse(text).ok()?;
        let plain = is_http(&url) && !has_user(&url) && url.fragment().is_none();
        // Elsewhere an id would choose the host. The parser encodes the braces in a path only.
        let before_path = text.find("://")? + 3;
        let authority = text[before_path..].split(['/', '?']).next()?;
        let placed = !authority.contains('{') && text.matches(PLACEHOLDER).count() > 0;
        let tail = &url[Position::BeforePath..];
        (plain && placed && !tail.is_empty()).then(|| Self(text.to_owned()))
    }

    /// Returns the URL for a workspace. `None` for the ids `.` and `..`, which a path cannot hold.
    pub fn url_for(&self, id: &WorkspaceId) -> Option<String> {
        let id = id.as_str();
        (!matches!(id, "." | "..")).then(|| self.0.replace(PLACEHOLDER, id))
    }
}

impl<'de> Deserialize<'de> for WakeTemplate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer).map_err(|_| D::Error::custom(FORM))?;
        Self::parse(&text).ok_or_else(|| D::Error::custom(FORM))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_stands_in_the_path_or_the_query_and_never_chooses_the_host() {
        let id = WorkspaceId::parse("a.b-1").unwrap();
        for (text, url) in [
            (
                "http://w:9000/wake/{workspace_id}",
                "http://w:9000/wake/a.b-1",
            ),
            ("https://w/?id={workspace_id}", "https://w/?id=a.b-1"),
            ("https://w?id={workspace_id}", "https://w?id=a.b-1"),
        ] {
            let template = WakeTemplate::parse(text).unwrap();
            assert_eq!(template.url_for(&id).as_deref(), Some(url));
            for odd in [".", ".."] {
                assert_eq!(template.url_for(&WorkspaceId::parse(odd).unwrap()), None);
            }
        }
        for text in [
            "",
            "http://w:9000/wake",
            "http://{workspace_id}/wake",
            "http://{workspace_id}.w/{workspace_id}",
            "http://w:{workspace_id}/{workspace_id}",
            "http://u:p@w/{workspace_id}",
            "http://w/{workspace_id}#x",
            "ftp://w/{workspace_id}",
            "w/{workspace_id}",
        ] {
            assert_eq!(WakeTemplate::parse(text), None, "{text}");
        }
    }
}
