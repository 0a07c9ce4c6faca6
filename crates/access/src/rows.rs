//! Statements and their rows: parameters, and conversion of columns to values, and back. An unreadable row is an
//! error, never a decision.

use std::error::Error;

use serde_json::value::RawValue;
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, Decode, Encode, FromRow, Row as _, Type};

use kernel::config::{Bridging, CardAccess, ChainMode, CompletionMode, RefusalStatus, Transport};
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::time::Timestamp;
use stores::db::{Connection, Db, Values};
use stores::store::Unavailable;
use trust::SealedSecret;

pub(crate) type DynError = Box<dyn Error + Send + Sync>;

/// A type of values, and the form in which they are stored.
pub(crate) trait StoredValue: Sized {
    /// The form: text or a number, or none.
    type Sql: Type<Any> + for<'q> Encode<'q, Any> + for<'r> Decode<'r, Any> + 'static;

    /// Returns the value in that form.
    fn to_sql(&self) -> Result<Self::Sql, DynError>;

    /// Reads the form.
    fn from_sql(stored: Self::Sql) -> Result<Self, DynError>;
}

impl<T: StoredValue> StoredValue for Option<T> {
    type Sql = Option<T::Sql>;

    fn to_sql(&self) -> Result<Self::Sql, DynError> {
        self.as_ref().map(T::to_sql).transpose()
    }

    fn from_sql(stored: Self::Sql) -> Result<Self, DynError> {
        stored.map(T::from_sql).transpose()
    }
}

/// Declares types of values: each with its form, and how it is written and read.
macro_rules! stored_values {
    ($($type:ty as $sql:ty: |$value:ident| $to:expr, |$stored:ident| $from:expr;)+) => {
        $(impl $crate::rows::StoredValue for $type {
            type Sql = $sql;

            fn to_sql(&self) -> Result<$sql, $crate::rows::DynError> {
                let $value = self;
                Ok($to)
            }

            fn from_sql($stored: $sql) -> Result<Self, $crate::rows::DynError> {
                Ok($from)
            }
        })+
    };
}

pub(crate) use stored_values;

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
}

/// Declares types of words, each of which is stored as its text.
macro_rules! stored_words {
    ($($type:ident),+) => {
        $crate::rows::stored_values! {
            $($type as String: |word| word.as_str().to_owned(), |stored| $type::parse(&stored).ok_or($crate::rows::UnknownWord)?;)+
        }
    };
}

pub(crate) use stored_words;

stored_words!(
    Bridging,
    CardAccess,
    ChainMode,
    CompletionMode,
    RefusalStatus,
    Transport
);

/// Reads the value of a column.
pub(crate) fn read<T: StoredValue>(row: &AnyRow, column: &'static str) -> Result<T, sqlx::Error> {
    // An unreadable row counts as a store that cannot be asked.
    T::from_sql(row.try_get(column)?).map_err(|source| sqlx::Error::ColumnDecode {
        index: column.to_owned(),
        source,
    })
}

/// Binds a value as the next one of a statement.
pub(crate) fn bind<'q>(
    query: Statement<'q>,
    value: &impl StoredValue,
) -> Result<Statement<'q>, sqlx::Error> {
    Ok(query.bind(value.to_sql().map_err(sqlx::Error::Encode)?))
}

/// Builds a statement of a text and the values of its parameters, in their order.
macro_rules! sql {
    ($text:expr $(, $value:expr)* $(,)?) => {
        sqlx::query($text)$(.bind($value))*
    };
}
pub(crate) use sql;

/// Declares how rows of a type are read: each field from the column of its name, or of the one that is given.
macro_rules! from_row {
    ($type:ty: $($field:ident $(= $column:literal)?),+) => {
        impl sqlx::FromRow<'_, sqlx::any::AnyRow> for $type {
            fn from_row(row: &sqlx::any::AnyRow) -> Result<Self, sqlx::Error> {
                use $crate::rows::{from_row, read};
                Ok(Self { $($field: read(row, from_row!(@column $field $($column)?))?),+ })
            }
        }
    };
    (@column $field:ident) => { stringify!($field) };
    (@column $field:ident $column:literal) => { $column };
}
pub(crate) use from_row;

/// A statement with its parameters.
pub(crate) type Statement<'q> = Query<'q, Any, AnyArguments>;

/// Builds a statement of the rows of these ids: `select`, which ends with the column of the ids, then their places, and
/// `rest`.
pub(crate) fn select_in<'i>(
    select: &str,
    ids: impl Iterator<Item = &'i WorkspaceId>,
    rest: &str,
) -> Statement<'static> {
    let mut values = Values::default();
    let places: Vec<String> = ids.map(|id| values.bind(id.as_str())).collect();
    values.into_query(format!("{select} IN ({}){rest}", places.join(", ")))
}

/// Runs a query outside of any transaction, and returns what `read` reads of its rows.
pub(crate) async fn fetch_with<T>(
    db: &Db,
    operation: &'static str,
    query: Statement<'_>,
    read: impl Fn(&AnyRow) -> Result<T, sqlx::Error>,
) -> Result<Vec<T>, Unavailable> {
    let work = async { query.fetch_all(db.pool()).await?.iter().map(read).collect() };
    db.run(operation, work).await
}

/// Returns a number of rows as a parameter.
pub(crate) fn to_bigint(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Runs a query on a connection, and returns its rows.
pub(crate) async fn fetch_all<T: for<'r> FromRow<'r, AnyRow>>(
    connection: &mut Connection,
    query: Statement<'_>,
) -> Result<Vec<T>, sqlx::Error> {
    let rows = query.fetch_all(connection).await?;
    rows.iter().map(T::from_row).collect()
}

/// Runs a query on a connection, and returns its row, if there is one.
pub(crate) async fn fetch_optional<T: for<'r> FromRow<'r, AnyRow>>(
    connection: &mut Connection,
    query: Statement<'_>,
) -> Result<Option<T>, sqlx::Error> {
    let row = query.fetch_optional(connection).await?;
    row.as_ref().map(T::from_row).transpose()
}

/// Runs a change on a connection, and returns the number of changed rows.
pub(crate) async fn execute(
    connection: &mut Connection,
    change: Statement<'_>,
) -> Result<u64, sqlx::Error> {
    Ok(change.execute(connection).await?.rows_affected())
}

/// A value unknown to this release: written by a newer one, or by hand.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a word that this release does not know")]
pub(crate) struct UnknownWord;
