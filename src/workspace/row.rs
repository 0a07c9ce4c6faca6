//! Conversion of rows to values. An unreadable row is an error, never a decision.

use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::{CallerProof, DeliveryMode, Liveness, Resolve, Status, Step, Timestamp, Workspace};
use crate::config::{Bridging, CardAccess, Complete};
use crate::ids::WorkspaceId;
use crate::trust::Sealed;

pub(super) fn optional<T>(
    row: Option<AnyRow>,
    read: fn(&AnyRow) -> Result<T, sqlx::Error>,
) -> Result<Option<T>, sqlx::Error> {
    row.as_ref().map(read).transpose()
}

pub(super) fn workspace(row: &AnyRow) -> Result<Workspace, sqlx::Error> {
    let card = text(row, "agent_card")?;
    Ok(Workspace {
        id: id(row, "id")?,
        name: row.try_get("name")?,
        role: text(row, "role")?,
        parent_id: optional_id(row, "parent_id")?,
        org: text(row, "org")?,
        status: word(row, "status", Status::parse)?,
        delivery_mode: word(row, "delivery_mode", DeliveryMode::parse)?,
        liveness: word(row, "liveness", Liveness::parse)?,
        url: text(row, "url")?,
        internal_url: text(row, "internal_url")?,
        card_url: text(row, "card_url")?,
        agent_card: card
            .map(RawValue::from_string)
            .transpose()
            .map_err(|error| unreadable("agent_card", error))?,
        upstream_auth: text(row, "upstream_auth")?.map(Sealed::from_stored),
        upstream_auth_base: text(row, "upstream_auth_base")?,
        upstream_tls: text(row, "upstream_tls")?
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|error| unreadable("upstream_tls", error))?,
        wake: text(row, "wake")?
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|error| unreadable("wake", error))?,
        probe: text(row, "probe")?
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|error| unreadable("probe", error))?,
        complete: text(row, "complete")?
            .map(|word| complete(&word))
            .transpose()?,
        push_notifications: number(row, "push_notifications")?.map(|on| on != 0),
        card_access: text(row, "card_access")?
            .map(|word| card_access(&word))
            .transpose()?,
        proof: text(row, "proof")?
            .map(|word| CallerProof::parse(&word).ok_or_else(|| unreadable("proof", UnknownWord)))
            .transpose()?,
        bridge: text(row, "bridge")?
            .map(|word| Bridging::parse(&word).ok_or_else(|| unreadable("bridge", UnknownWord)))
            .transpose()?,
        resolve: text(row, "resolve")?
            .map(|word| Resolve::parse(&word).ok_or_else(|| unreadable("resolve", UnknownWord)))
            .transpose()?,
        max_concurrent: number(row, "max_concurrent")?,
        idle_timeout_seconds: number(row, "idle_timeout_seconds")?,
        instances: number(row, "instances")?.unwrap_or(0),
        current_task: text(row, "current_task")?,
        active_tasks: number(row, "active_tasks")?.unwrap_or(0),
        last_seen: row.try_get::<Option<i64>, _>("last_seen")?.map(Timestamp),
        created_at: Timestamp(row.try_get("created_at")?),
        updated_at: Timestamp(row.try_get("updated_at")?),
    })
}

pub(super) fn step(row: &AnyRow) -> Result<Step, sqlx::Error> {
    let status = word(row, "status", Status::parse)?;
    Ok(Step {
        id: id(row, "id")?,
        parent_id: optional_id(row, "parent_id")?,
        org: text(row, "org")?,
        removed: status == Status::Removed,
        paused: status == Status::Paused,
        generation: row.try_get("access_generation")?,
        born_at: row.try_get("born_at")?,
    })
}

pub(super) fn text(row: &AnyRow, column: &'static str) -> Result<Option<String>, sqlx::Error> {
    row.try_get(column)
}

pub(super) fn number(row: &AnyRow, column: &'static str) -> Result<Option<u32>, sqlx::Error> {
    let value: Option<i64> = row.try_get(column)?;
    value
        .map(|value| u32::try_from(value).map_err(|error| unreadable(column, error)))
        .transpose()
}

pub(super) fn id(row: &AnyRow, column: &'static str) -> Result<WorkspaceId, sqlx::Error> {
    let text: String = row.try_get(column)?;
    WorkspaceId::parse(&text).map_err(|error| unreadable(column, error))
}

pub(super) fn optional_id(
    row: &AnyRow,
    column: &'static str,
) -> Result<Option<WorkspaceId>, sqlx::Error> {
    text(row, column)?
        .map(|text| WorkspaceId::parse(&text).map_err(|error| unreadable(column, error)))
        .transpose()
}

pub(super) fn word<T>(
    row: &AnyRow,
    column: &'static str,
    parse: fn(&str) -> Option<T>,
) -> Result<T, sqlx::Error> {
    let text: String = row.try_get(column)?;
    parse(&text).ok_or_else(|| unreadable(column, UnknownWord))
}

fn complete(word: &str) -> Result<Complete, sqlx::Error> {
    match word {
        "full" => Ok(Complete::Full),
        "bare" => Ok(Complete::Bare),
        "off" => Ok(Complete::Off),
        _ => Err(unreadable("complete", UnknownWord)),
    }
}

fn card_access(word: &str) -> Result<CardAccess, sqlx::Error> {
    match word {
        "public" => Ok(CardAccess::Public),
        "private" => Ok(CardAccess::Private),
        _ => Err(unreadable("card_access", UnknownWord)),
    }
}

pub(super) const fn card_access_word(access: CardAccess) -> &'static str {
    match access {
        CardAccess::Public => "public",
        CardAccess::Private => "private",
    }
}

pub(super) const fn complete_word(complete: Complete) -> &'static str {
    match complete {
        Complete::Full => "full",
        Complete::Bare => "bare",
        Complete::Off => "off",
    }
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
pub(super) fn unreadable(
    column: &'static str,
    source: impl std::error::Error + Send + Sync + 'static,
) -> sqlx::Error {
    sqlx::Error::ColumnDecode {
        index: column.to_owned(),
        source: Box::new(source),
    }
}
