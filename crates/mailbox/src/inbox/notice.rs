//! Notices of a workspace to its user.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Inbox;
use super::activity::{Activity, ActivityType, NewActivity, Source};
use directory::events::{Event, Kind};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};

/// Octets of a message at most. It is part of an event, and events are kept in memory.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Attachments at most.
const ATTACHMENTS_MAX: usize = 32;

/// Octets of the URI of an attachment at most.
const URI_BYTES_MAX: usize = 2048;

/// Octets of its name, and of its type, at most.
const NAME_BYTES_MAX: usize = 256;

/// A notice.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Notice {
    /// The text: at most 64 KiB, not only blanks.
    #[schema(min_length = 1)]
    pub message: String,
    /// Attached files.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_as_empty"
    )]
    #[schema(value_type = Option<Vec<Attachment>>, max_items = 32)]
    pub attachments: Vec<Attachment>,
}

/// A file that is attached to a notice.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// The address of the file: at most 2048 octets.
    #[schema(min_length = 1)]
    pub uri: String,
    /// The name of the file: at most 256 octets.
    #[schema(min_length = 1)]
    pub name: String,
    /// The media type: at most 256 octets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// The size in octets.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 18446744073709551615_u64)]
    pub size: Option<u64>,
}

/// Reads a list; `null` is an empty one.
fn null_as_empty<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<Attachment>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Notice {
    fn check(&self) -> Result<(), Rejection> {
        let wrong = |message| Err(Rejection::new(Reason::InvalidParams, message));
        if self.message.trim().is_empty() || self.message.len() > MESSAGE_BYTES_MAX {
            return wrong("`message` is text of 1 octet to 64 KiB".to_owned());
        }
        if self.attachments.len() > ATTACHMENTS_MAX {
            return wrong(format!("there are at most {ATTACHMENTS_MAX} `attachments`"));
        }
        for (i, file) in self.attachments.iter().enumerate() {
            let mime_type = file.mime_type.as_deref().unwrap_or_default();
            let fits = (1..=URI_BYTES_MAX).contains(&file.uri.len())
                && (1..=NAME_BYTES_MAX).contains(&file.name.len())
                && mime_type.len() <= NAME_BYTES_MAX;
            if !fits {
                return wrong(format!(
                    "`attachments[{i}]` needs a `uri` of at most {URI_BYTES_MAX} octets and a `name` of at most \
                     {NAME_BYTES_MAX}, as has `mimeType`"
                ));
            }
        }
        Ok(())
    }
}

impl Inbox {
    /// Puts a notice of `workspace` to its user into its inbox, and publishes it as an event.
    ///
    /// # Errors
    /// `invalid_params`; as [`Inbox::put`].
    pub async fn put_notice(
        &self,
        workspace: &WorkspaceId,
        owner: String,
        notice: &Notice,
    ) -> Result<Activity, Rejection> {
        notice.check()?;
        let said = serde_json::to_value(notice).unwrap_or(Value::Null);
        let source = Source::Agent(workspace.clone());
        let new = NewActivity {
            request_body: Some(said.to_string()),
            ..NewActivity::new(workspace, ActivityType::Notify, source, owner)
        };
        let activity = self.put(new).await?;
        let event = Event::new(Kind::AgentMessage, workspace, said);
        self.events.publish(event);
        Ok(activity)
    }
}
