//! The document of a policy: what operators set of workspaces, grants and stops, and nothing that agents report or that
//! is secret. Absent members have their defaults; a member with its default is left out of an export.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use access::workspace::{LINE_MAX, PolicyEntry};
use directory::id_taken;
use kernel::config::LineageReach;
use kernel::json_errors::wrong_member;
use kernel::rejection::{Reason, Rejection};

/// The version of the format.
pub(super) const VERSION: u32 = 1;

/// A document as it was sent, its entries as text: as values they would take many times their bytes. A section that is
/// absent is not the policy's: nothing of it is changed or removed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawDocument {
    version: u32,
    revision: Option<String>,
    #[serde(default)]
    recreate: bool,
    workspaces: Option<Vec<Box<RawValue>>>,
    grants: Option<Vec<Box<RawValue>>>,
    stops: Option<Vec<Box<RawValue>>>,
    #[serde(default)]
    pub(super) statements: Vec<String>,
    pub(super) access: Option<AccessEntry>,
    pub(super) caps: Option<Vec<Box<RawValue>>>,
}

/// `access` of a document, as `[access]` has it: for proofs and replays alone.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AccessEntry {
    pub(super) lineage: Option<LineageReach>,
}

impl RawDocument {
    /// True if it has sections of the state, not statements alone.
    pub(super) fn has_sections(&self) -> bool {
        let sections = [&self.workspaces, &self.grants, &self.stops];
        sections.iter().any(|section| section.is_some())
    }

    /// Refuses what `apply` cannot make so: it is in the configuration.
    ///
    /// # Errors
    /// `invalid_params`.
    pub(super) fn refuse_configuration(&self) -> Result<(), Rejection> {
        let named = [
            ("access", self.access.is_some()),
            ("caps", self.caps.is_some()),
        ];
        let Some((name, _)) = named.into_iter().find(|(_, is_there)| *is_there) else {
            return Ok(());
        };
        let message = format!(
            "`{name}` is for proofs and replays alone: put it into the configuration, and take it out here"
        );
        Err(Rejection::new(Reason::InvalidParams, message))
    }
}

/// A grant of a document.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GrantEntry {
    pub(super) caller_id: String,
    pub(super) target_id: String,
    pub(super) note: Option<String>,
    pub(super) expires_at: Option<String>,
}

/// A stop of a document.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StopEntry {
    pub(super) scope: Map<String, Value>,
    pub(super) mode: String,
    pub(super) reason: String,
    pub(super) expires_at: Option<String>,
}

/// An entry, with its place in the document.
#[derive(Debug)]
pub(super) struct LocatedEntry<T> {
    pub(super) path: String,
    pub(super) entry: Box<T>,
}

/// A document with members of the right types.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) revision: Option<String>,
    pub(super) recreate: bool,
    pub(super) workspaces: Option<Vec<LocatedEntry<PolicyEntry>>>,
    pub(super) grants: Option<Vec<LocatedEntry<GrantEntry>>>,
    pub(super) stops: Option<Vec<LocatedEntry<StopEntry>>>,
}

impl Document {
    /// Reads the entries. Those that cannot be read are noted in `problems`.
    ///
    /// # Errors
    /// `invalid_params`: another version, or more entries than `limits.policy_workspaces`.
    pub(super) fn read(
        raw: RawDocument,
        max: usize,
        problems: &mut Problems,
    ) -> Result<Self, Rejection> {
        if raw.version != VERSION {
            let message = format!("`version` is {VERSION} in this release");
            return Err(Rejection::new(Reason::InvalidParams, message));
        }
        for section in [&raw.workspaces, &raw.grants, &raw.stops] {
            if section.as_ref().is_some_and(|entries| entries.len() > max) {
                return Err(too_many(max));
            }
        }
        Ok(Self {
            revision: raw.revision,
            recreate: raw.recreate,
            workspaces: read_section("workspaces", raw.workspaces, problems),
            grants: read_section("grants", raw.grants, problems),
            stops: read_section("stops", raw.stops, problems),
        })
    }
}

fn read_section<T: for<'de> Deserialize<'de>>(
    name: &str,
    entries: Option<Vec<Box<RawValue>>>,
    problems: &mut Problems,
) -> Option<Vec<LocatedEntry<T>>> {
    let mut read = Vec::new();
    for (n, entry) in entries?.into_iter().enumerate() {
        let path = format!("{name}[{n}]");
        let mut reader = serde_json::Deserializer::from_str(entry.get());
        match serde_path_to_error::deserialize(&mut reader) {
            Ok(entry) => read.push(LocatedEntry { path, entry }),
            Err(error) => problems.add_member(&path, &error),
        }
    }
    Some(read)
}

/// Returns the rejection of more objects than a policy may have.
pub(super) fn too_many(max: usize) -> Rejection {
    let message = format!(
        "a policy has at most {max} workspaces and as many grants (limits.policy_workspaces): raise it, or use the single \
         routes"
    );
    Rejection::new(Reason::Conflict, message).with_fact("limit", max)
}

/// Returns the members of an entry that are said, but for its names.
pub(super) fn members_without<T: Serialize>(entry: &T, names: &[&str]) -> Map<String, Value> {
    let Value::Object(mut members) = json!(entry) else {
        return Map::new();
    };
    members.retain(|name, value| !value.is_null() && !names.contains(&name.as_str()));
    members
}

/// Problems that are listed at most.
const LISTED_MAX: usize = 100;

/// The problems of a document.
#[derive(Debug, Default)]
pub(super) struct Problems {
    listed: Vec<Value>,
    count: usize,
}

impl Problems {
    /// Notes that the entry at `path` is refused.
    pub(super) fn add(&mut self, path: &str, why: &Rejection) {
        self.count += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push(json!({
                "path": path, "reason": why.reason.as_str(), "error": why.message,
            }));
        }
    }

    /// Adds those of `other`.
    pub(super) fn absorb(&mut self, other: Self) {
        self.count += other.count;
        let room = LISTED_MAX.saturating_sub(self.listed.len());
        self.listed.extend(other.listed.into_iter().take(room));
    }

    /// Notes a member of a wrong name or type.
    pub(super) fn add_member(
        &mut self,
        path: &str,
        error: &serde_path_to_error::Error<serde_json::Error>,
    ) {
        let member = error.path().to_string();
        let path = match member.as_str() {
            "." => path.to_owned(),
            member => format!("{path}.{member}"),
        };
        self.add(&path, &wrong_member(error));
    }

    /// Refuses the document if there is a problem.
    ///
    /// # Errors
    /// `invalid_params`.
    pub(super) fn into_result(self) -> Result<(), Rejection> {
        if self.count == 0 {
            return Ok(());
        }
        let message = match self.count {
            1 => "the policy has an error, and nothing was changed: `errors` has its place"
                .to_owned(),
            count if count > LISTED_MAX => format!(
                "the policy has {count} errors, and nothing was changed: `errors` has the first {LISTED_MAX}"
            ),
            count => {
                format!("the policy has {count} errors, and nothing was changed: `errors` has them")
            }
        };
        Err(Rejection::new(Reason::InvalidParams, message).with_list("errors", self.listed))
    }
}

/// Returns the rejection of a removed id in a policy that does not recreate.
pub(super) fn id_removed() -> Rejection {
    let mut rejection = id_taken();
    rejection.reason = Reason::WorkspaceRemoved;
    rejection.message = "the workspace of this id was removed: choose another id, or say \"recreate\": true in the policy, \
                         and it comes back without tokens, grants, tasks and messages"
        .into();
    rejection
}

/// Returns the rejection of a place that makes the hierarchy too deep.
pub(super) fn too_deep() -> Rejection {
    let message = format!(
        "the hierarchy is {LINE_MAX} levels deep at most: choose a parent that is higher up"
    );
    Rejection::new(Reason::Conflict, message).with_fact("limit", LINE_MAX)
}

/// Returns the rejection of an id that comes back in another org than the workspaces below it.
pub(super) fn other_org_below() -> Rejection {
    Rejection::new(
        Reason::Conflict,
        "workspaces below it belong to another org: name that org, or move them to another parent first",
    )
}
