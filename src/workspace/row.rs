//! Conversion of rows to values. An unreadable row is an error, never a decision.

use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::{CallerProof, DeliveryMode, Liveness, Resolve, Status, Step, Timestamp, Workspace};
use crate::config::{Bridging, CardAccess, CompletionMode, RefusalStatus};
use crate::ids::WorkspaceId;
use crate::trust::SealedSecret;

pub(super) fn read_optional<T>(
    row: Option<AnyRow>,
    read: fn(&AnyRow) -> Result<T, sqlx::Error>,
) -> Result<Option<T>, sqlx::Error> {
    row.as_ref().map(read).transpose()
}

pub(super) fn read_workspace(row: &AnyRow) -> Result<Workspace, sqlx::Error> {
    let card = read_text(row, "agent_card")?;
    Ok(Workspace {
        id: read_id(row, "id")?,
        name: row.try_get("name")?,
        role: read_text(row, "role")?,
        parent_id: read_optional_id(row, "parent_id")?,
        org: read_text(row, "org")?,
        status: read_word(row, "status", Status::parse)?,
        delivery_mode: read_word(row, "delivery_mode", DeliveryMode::parse)?,
        liveness: read_word(row, "liveness", Liveness::parse)?,
        url: read_text(row, "url")?,
        internal_url: read_text(row, "internal_url")?,
        card_url: read_text(row, "card_url")?,
        agent_card: card
            .map(RawValue::from_string)
            .transpose()
            .map_err(|error| unreadable_column("agent_card", error))?,
        upstream_auth: read_text(row, "upstream_auth")?.map(SealedSecret::from_stored),
        upstream_auth_base: read_text(row, "upstream_auth_base")?,
        upstream_tls: read_text(row, "upstream_tls")?
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|error| unreadable_column("upstream_tls", error))?,
        wake: read_text(row, "wake")?
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|error| unreadable_column("wake", error))?,
        probe: read_text(row, "probe")?
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|error| unreadable_column("probe", error))?,
        complete: read_optional_word(row, "complete", CompletionMode::parse)?,
        push_notifications: read_number(row, "push_notifications")?.map(|on| on != 0),
        card_access: read_optional_word(row, "card_access", CardAccess::parse)?,
        proof: read_optional_word(row, "proof", CallerProof::parse)?,
        bridge: read_optional_word(row, "bridge", Bridging::parse)?,
        refusal_status: read_optional_word(row, "refusal_status", RefusalStatus::parse)?,
        resolve: read_optional_word(row, "resolve", Resolve::parse)?,
        max_concurrent: read_number(row, "max_concurrent")?,
        idle_timeout_seconds: read_number(row, "idle_timeout_seconds")?,
        instances: read_number(row, "instances")?.unwrap_or(0),
        current_task: read_text(row, "current_task")?,
        active_tasks: read_number(row, "active_tasks")?.unwrap_or(0),
        last_seen: row.try_get::<Option<i64>, _>("last_seen")?.map(Timestamp),
        created_at: Timestamp(row.try_get("created_at")?),
        updated_at: Timestamp(row.try_get("updated_at")?),
    })
}

pub(super) fn read_step(row: &AnyRow) -> Result<Step, sqlx::Error> {
    let status = read_word(row, "status", Status::parse)?;
    Ok(Step {
        id: read_id(row, "id")?,
        parent_id: read_optional_id(row, "parent_id")?,
        org: read_text(row, "org")?,
        removed: status == Status::Removed,
        paused: status == Status::Paused,
        generation: row.try_get("access_generation")?,
        born_at: row.try_get("born_at")?,
    })
}

pub(super) fn read_text(row: &AnyRow, column: &'static str) -> Result<Option<String>, sqlx::Error> {
    row.try_get(column)
}

pub(super) fn read_number(row: &AnyRow, column: &'static str) -> Result<Option<u32>, sqlx::Error> {
    let value: Option<i64> = row.try_get(column)?;
    value
        .map(|value| u32::try_from(value).map_err(|error| unreadable_column(column, error)))
        .transpose()
}

pub(super) fn read_id(row: &AnyRow, column: &'static str) -> Result<WorkspaceId, sqlx::Error> {
    let text: String = row.try_get(column)?;
    WorkspaceId::parse(&text).map_err(|error| unreadable_column(column, error))
}

pub(super) fn read_optional_id(
    row: &AnyRow,
    column: &'static str,
) -> Result<Option<WorkspaceId>, sqlx::Error> {
    read_text(row, column)?
        .map(|text| WorkspaceId::parse(&text).map_err(|error| unreadable_column(column, error)))
        .transpose()
}

pub(super) fn read_word<T>(
    row: &AnyRow,
    column: &'static str,
    parse: fn(&str) -> Option<T>,
) -> Result<T, sqlx::Error> {
    let text: String = row.try_get(column)?;
    parse(&text).ok_or_else(|| unreadable_column(column, UnknownWord))
}

fn read_optional_word<T>(
    row: &AnyRow,
    column: &'static str,
    parse: fn(&str) -> Option<T>,
) -> Result<Option<T>, sqlx::Error> {
    read_text(row, column)?
        .map(|text| parse(&text).ok_or_else(|| unreadable_column(column, UnknownWord)))
        .transpose()
}

/// Returns the stored text of a setting that is stored as JSON: TLS towards an agent, a waker, a probe.
pub(super) fn json_text<T: Serialize>(setting: Option<&T>) -> Result<Option<String>, sqlx::Error> {
    let text = setting.map(serde_json::to_string).transpose();
    text.map_err(|error| sqlx::Error::Encode(Box::new(error)))
}

/// A value unknown to this release: written by a newer one, or by hand.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a word that this release does not know")]
struct UnknownWord;

/// An unreadable row counts as a store that cannot be asked.
pub(super) fn unreadable_column(
    column: &'static str,
    source: impl std::error::Error + Send + Sync + 'static,
) -> sqlx::Error {
    sqlx::Error::ColumnDecode {
        index: column.to_owned(),
        source: Box::new(source),
    }
}
