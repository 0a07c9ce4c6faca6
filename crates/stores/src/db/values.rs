//! The values of a statement in the making.

use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, Arguments as _, AssertSqlSafe, Encode, Type};

/// The values that a statement binds, in the order of their markers.
#[derive(Default)]
pub struct Values(AnyArguments);

impl Values {
    /// Adds a value, and returns its marker.
    pub fn bind<'v, T: Encode<'v, Any> + Type<Any>>(&mut self, value: T) -> String {
        // Texts, numbers and bytes are copied, which cannot fail.
        let _ = self.0.add(value);
        format!("${}", self.0.len())
    }

    /// Returns the query of `text`, which consists of constants of this program and of markers.
    pub fn into_query(self, text: String) -> Query<'static, Any, AnyArguments> {
        sqlx::query_with(AssertSqlSafe(text), self.0)
    }

    /// Returns the number of values.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}
