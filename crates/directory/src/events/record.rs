//! Form of an event between replicas, and for readers.
//!
//! Members of payloads that are about more than the workspace of their event, and the readers that get them.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::audience::ViewCache;
use super::{Event, Kind};
use access::hierarchy::{Hierarchy, Lineage};
use access::identity::{Principal, WITHHELD_CONTENT};
use access::workspace::Timestamp;
use kernel::ids::WorkspaceId;
use stores::shared::EntryId;
use stores::store::Unavailable;

/// Largest payload, in bytes: a card of 16 KiB with maximum escaping, and the rest. A larger one is omitted,
/// since every replica keeps thousands of them.
const PAYLOAD_BYTES_MAX: usize = 64 * 1024;

/// Event in the log or on the channel.
#[derive(Serialize, Deserialize)]
pub(super) struct Record {
    /// Distinguishes a repeated write from a second event.
    pub(super) nonce: String,
    event: String,
    workspace_id: String,
    timestamp: String,
    payload: Box<RawValue>,
    now: Option<WorkspacePlace>,
    was: Option<WorkspacePlace>,
    /// Not known to releases before it, which show the whole payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    besides: Option<RestrictedMembers>,
}

/// Place of a workspace, for decisions about access.
#[derive(Serialize, Deserialize)]
struct WorkspacePlace {
    org: Option<String>,
    above: Vec<String>,
    #[serde(default)]
    removed: bool,
    #[serde(default)]
    cyclic: bool,
    /// Beginning of the life of the workspace. Releases before it write none: a later life's events of theirs count as
    /// those of the first, and are not shown.
    #[serde(default)]
    born_at: i64,
}

impl WorkspacePlace {
    fn from_lineage(lineage: &Lineage) -> Self {
        Self {
            org: lineage.org.clone(),
            above: lineage.ancestors.iter().map(ToString::to_string).collect(),
            removed: lineage.removed,
            cyclic: lineage.cyclic,
            born_at: lineage.born_at,
        }
    }

    fn into_lineage(self, id: &WorkspaceId) -> Option<Lineage> {
        let above = self.above.iter().map(|id| WorkspaceId::parse(id).ok());
        Some(Lineage {
            id: id.clone(),
            org: self.org,
            ancestors: above.collect::<Option<_>>()?,
            removed: self.removed,
            paused: false,
            cyclic: self.cyclic,
            generation: 0,
            born_at: self.born_at,
        })
    }
}

impl Record {
    /// `now`: present place of the workspace, if it exists.
    pub(super) fn new(nonce: &str, event: &Event, now: Option<&Lineage>) -> Self {
        let payload = serde_json::value::to_raw_value(&event.payload).ok();
        let payload = payload.filter(|payload| payload.get().len() <= PAYLOAD_BYTES_MAX);
        let was = event.was.as_deref();
        // An id that was given away again since then is another workspace.
        let now = now.filter(|now| {
            now.born_at <= event.at.0 && was.is_none_or(|was| was.born_at == now.born_at)
        });
        let mut now = now.map(WorkspacePlace::from_lineage);
        if event.kind == Kind::WorkspaceRemoved
            && was.is_none()
            && let Some(now) = &mut now
        {
            // Readers that could see it get the event of its removal.
            now.removed = false;
        }
        Self {
            nonce: nonce.to_owned(),
            event: event.kind.as_str().to_owned(),
            workspace_id: event.workspace.to_string(),
            timestamp: event.at.to_string(),
            payload: payload.unwrap_or_else(empty_payload),
            now,
            was: was.map(WorkspacePlace::from_lineage),
            besides: event.restricted.clone(),
        }
    }

    pub(super) fn encode(&self) -> Option<String> {
        serde_json::to_string(self).ok()
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Converts it for readers. `id`: its position in the log; `None` for a passing event.
    pub(super) fn into_published(self, id: Option<EntryId>) -> Option<PublishedEvent> {
        let workspace = WorkspaceId::parse(&self.workspace_id).ok()?;
        let frame_id = id.map_or_else(|| uuid::Uuid::now_v7().to_string(), |id| id.to_string());
        let parts = Parts {
            id: &frame_id,
            event: &self.event,
            workspace_id: Some(workspace.as_str()),
            timestamp: &self.timestamp,
            payload: &self.payload,
        };
        let bare = self.was.is_some().then(|| {
            let payload = &empty_payload();
            Frame::new(id, None, &Parts { payload, ..parts })
        });
        let withheld = (self.event == Kind::AgentMessage.as_str()).then(|| {
            let payload = &serde_json::value::to_raw_value(&WITHHELD_CONTENT);
            let payload = payload.as_ref().map_or(&self.payload, |payload| payload);
            Frame::new(id, None, &Parts { payload, ..parts })
        });
        let limited = self.besides.and_then(|besides| {
            let payload = &besides.payload_without(&self.payload)?;
            let frame = Frame::new(id, None, &Parts { payload, ..parts });
            Some((besides, frame))
        });
        let whole = Frame::new(id, None, &parts);
        // An event with an unreadable place is shown to no reader.
        let place = |place: Option<WorkspacePlace>| place?.into_lineage(&workspace);
        let (now, was) = (place(self.now), place(self.was));
        Some(PublishedEvent {
            id,
            subject: Some(Subject {
                workspace,
                at: Timestamp::parse(&self.timestamp)?,
                now,
                was,
            }),
            views: ViewCache::default(),
            whole,
            withheld,
            limited,
            bare,
        })
    }
}

/// An event for readers.
pub(super) struct PublishedEvent {
    /// Position in the log; `None`: it is not in it.
    pub(super) id: Option<EntryId>,
    /// Workspace that it is about. `None`: it is for every reader.
    pub(super) subject: Option<Subject>,
    /// Decisions that several readers share.
    pub(super) views: ViewCache,
    /// For readers that see the workspace at its new place.
    pub(super) whole: Frame,
    /// For operators who see no content, of an event that has some.
    pub(super) withheld: Option<Frame>,
    /// For readers that look after less than the payload tells of: without a part of it.
    pub(super) limited: Option<(RestrictedMembers, Frame)>,
    /// For readers that saw only its old place: without a payload.
    pub(super) bare: Option<Frame>,
}

/// A workspace, with its present and its earlier place.
pub(super) struct Subject {
    pub(super) workspace: WorkspaceId,
    /// Time of the event.
    pub(super) at: Timestamp,
    pub(super) now: Option<Lineage>,
    pub(super) was: Option<Lineage>,
}

impl Subject {
    /// Returns its org; workspaces without one count as one org.
    pub(super) fn org(&self) -> Option<&String> {
        let place = self.now.as_ref().or(self.was.as_ref());
        place.and_then(|place| place.org.as_ref())
    }
}

impl PublishedEvent {
    /// True if it is sent to the readers of the moment only.
    pub(super) fn is_passing(&self) -> bool {
        self.id.is_none() && self.subject.is_some()
    }

    /// Returns a gap: events may be missing here.
    pub(super) fn new_gap() -> Arc<Self> {
        let id = uuid::Uuid::now_v7().to_string();
        let parts = Parts {
            id: &id,
            event: "GAP",
            workspace_id: None,
            timestamp: &Timestamp::now().to_string(),
            payload: &empty_payload(),
        };
        Arc::new(Self {
            id: None,
            subject: None,
            views: ViewCache::default(),
            whole: Frame::new(None, Some("gap"), &parts),
            withheld: None,
            limited: None,
            bare: None,
        })
    }
}

#[derive(Clone, Copy, Serialize)]
struct Parts<'a> {
    id: &'a str,
    event: &'a str,
    workspace_id: Option<&'a str>,
    timestamp: &'a str,
    payload: &'a RawValue,
}

/// One frame, formatted once for all its readers.
#[derive(Clone, Debug)]
pub struct Frame {
    sse: Bytes,
    json: Range<usize>,
}

impl Frame {
    fn new(id: Option<EntryId>, name: Option<&str>, parts: &Parts<'_>) -> Self {
        let json = serde_json::to_string(parts).unwrap_or_default();
        let mut sse = String::with_capacity(json.len() + 64);
        if let Some(id) = id {
            sse.push_str(&format!("id: {id}\n"));
        }
        if let Some(name) = name {
            sse.push_str(&format!("event: {name}\n"));
        }
        sse.push_str("data: ");
        let start = sse.len();
        sse.push_str(&json);
        let json = start..sse.len();
        sse.push_str("\n\n");
        Self {
            sse: sse.into(),
            json,
        }
    }

    /// Returns the frame as one JSON object, in one line.
    pub fn as_json(&self) -> Bytes {
        self.sse.slice(self.json.clone())
    }

    /// Returns the frame as one event of an event stream.
    pub fn as_sse(&self) -> Bytes {
        self.sse.clone()
    }
}

fn empty_payload() -> Box<RawValue> {
    serde_json::value::to_raw_value(&Value::Object(Map::new())).unwrap_or_default()
}

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
