//! Conversion of rows to values, and back. An unreadable row is an error, never a decision.

use std::error::Error;

use serde_json::value::RawValue;
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, Decode, Encode, Row as _, Type};

use super::{
    CallerProof, DeliveryMode, Liveness, Resolve, SealedTls, Status, Step, StoredProbe, StoredWake,
    Timestamp, Workspace, WorkspaceSettings,
};
use kernel::config::{Bridging, CardAccess, CompletionMode, RefusalStatus};
use kernel::ids::{InstanceId, WorkspaceId};
use trust::SealedSecret;

type DynError = Box<dyn Error + Send + Sync>;

/// A value that a column can have: of a [`StoredValue`], or none.
pub(super) trait ColumnValue: Sized {
    /// Reads the value of a column.
    fn read(row: &AnyRow, column: &'static str) -> Result<Self, sqlx::Error>;

    /// Binds the value as the next one of a statement.
    fn bind_to<'q>(
        &self,
        query: Query<'q, Any, AnyArguments>,
    ) -> Result<Query<'q, Any, AnyArguments>, sqlx::Error>;
}

/// A type of values, and the form in which they are stored.
pub(super) trait StoredValue: Sized {
    /// The form: text or a number.
    type Sql: Type<Any> + for<'q> Encode<'q, Any> + for<'r> Decode<'r, Any> + 'static;

    /// Returns the value in that form.
    fn to_sql(&self) -> Result<Self::Sql, DynError>;

    /// Reads the form.
    fn from_sql(stored: Self::Sql) -> Result<Self, DynError>;
}

impl<T: StoredValue> ColumnValue for T {
    fn read(row: &AnyRow, column: &'static str) -> Result<Self, sqlx::Error> {
        T::from_sql(row.try_get(column)?).map_err(|error| unreadable_column(column, error))
    }

    fn bind_to<'q>(
        &self,
        query: Query<'q, Any, AnyArguments>,
    ) -> Result<Query<'q, Any, AnyArguments>, sqlx::Error> {
        Ok(query.bind(self.to_sql().map_err(sqlx::Error::Encode)?))
    }
}

impl<T: StoredValue> ColumnValue for Option<T> {
    fn read(row: &AnyRow, column: &'static str) -> Result<Self, sqlx::Error> {
        let stored: Option<T::Sql> = row.try_get(column)?;
        let value = stored.map(T::from_sql).transpose();
        value.map_err(|error| unreadable_column(column, error))
    }

    fn bind_to<'q>(
        &self,
        query: Query<'q, Any, AnyArguments>,
    ) -> Result<Query<'q, Any, AnyArguments>, sqlx::Error> {
        let stored = self.as_ref().map(T::to_sql).transpose();
        Ok(query.bind(stored.map_err(sqlx::Error::Encode)?))
    }
}

/// Declares types of values: each with its form, and how it is written and read.
macro_rules! stored_values {
    ($($type:ty as $sql:ty: |$value:ident| $to:expr, |$stored:ident| $from:expr;)+) => {
        $(impl StoredValue for $type {
            type Sql = $sql;

            fn to_sql(&self) -> Result<$sql, DynError> {
                let $value = self;
                Ok($to)
            }

            fn from_sql($stored: $sql) -> Result<Self, DynError> {
                Ok($from)
            }
        })+
    };
}

stored_values! {
    String as String: |text| text.clone(), |stored| stored;
    bool as i64: |flag| i64::from(*flag), |stored| stored != 0;
    u32 as i64: |number| i64::from(*number), |stored| u32::try_from(stored)?;
    i64 as i64: |number| *number, |stored| stored;
    Timestamp as i64: |at| at.0, |stored| Timestamp(stored);
    WorkspaceId as String: |id| id.to_string(), |stored| WorkspaceId::parse(&stored)?;
    InstanceId as String: |id| id.to_string(), |stored| InstanceId::parse(&stored)?;
    SealedSecret as String: |secret| secret.as_str().to_owned(), |stored| SealedSecret::from_stored(stored);
    Box<RawValue> as String: |json| json.get().to_owned(), |stored| RawValue::from_string(stored)?;
    SealedTls as String: |tls| serde_json::to_string(tls)?, |stored| serde_json::from_str(&stored)?;
    StoredWake as String: |wake| serde_json::to_string(wake)?, |stored| serde_json::from_str(&stored)?;
    StoredProbe as String: |probe| serde_json::to_string(probe)?, |stored| serde_json::from_str(&stored)?;
}

macro_rules! stored_words {
    ($($type:ident),+) => {
        stored_values! {
            $($type as String: |word| word.as_str().to_owned(), |stored| $type::parse(&stored).ok_or(UnknownWord)?;)+
        }
    };
}

stored_words!(
    Status,
    DeliveryMode,
    Liveness,
    CallerProof,
    Resolve,
    Bridging,
    CardAccess,
    CompletionMode,
    RefusalStatus
);

/// Reads the value of a column.
pub(super) fn read<T: ColumnValue>(row: &AnyRow, column: &'static str) -> Result<T, sqlx::Error> {
    T::read(row, column)
}

pub(super) fn read_optional<T>(
    row: Option<AnyRow>,
    read: fn(&AnyRow) -> Result<T, sqlx::Error>,
) -> Result<Option<T>, sqlx::Error> {
    row.as_ref().map(read).transpose()
}

pub(super) fn read_workspace(row: &AnyRow) -> Result<Workspace, sqlx::Error> {
    Ok(Workspace {
        id: read(row, "id")?,
        settings: WorkspaceSettings::read(row)?,
        agent_card: read(row, "agent_card")?,
        idle_timeout_seconds: read(row, "idle_timeout_seconds")?,
        instances: read::<Option<u32>>(row, "instances")?.unwrap_or(0),
        current_task: read(row, "current_task")?,
        active_tasks: read::<Option<u32>>(row, "active_tasks")?.unwrap_or(0),
        last_seen: read(row, "last_seen")?,
        created_at: read(row, "created_at")?,
        updated_at: read(row, "updated_at")?,
    })
}

pub(super) fn read_step(row: &AnyRow) -> Result<Step, sqlx::Error> {
    let status: Status = read(row, "status")?;
    Ok(Step {
        id: read(row, "id")?,
        parent_id: read(row, "parent_id")?,
        org: read(row, "org")?,
        removed: status == Status::Removed,
        paused: status == Status::Paused,
        generation: read(row, "access_generation")?,
        born_at: read(row, "born_at")?,
    })
}

/// A value unknown to this release: written by a newer one, or by hand.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a word that this release does not know")]
struct UnknownWord;

/// An unreadable row counts as a store that cannot be asked.
fn unreadable_column(column: &'static str, source: DynError) -> sqlx::Error {
    sqlx::Error::ColumnDecode {
        index: column.to_owned(),
        source,
    }
}
