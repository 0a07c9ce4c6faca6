//! Closed sets of values: enums with one form for storage, display and labels.

use utoipa::openapi::schema::{ObjectBuilder, Type};
pub use utoipa::openapi::{RefOr, Schema};
pub use utoipa::{PartialSchema, ToSchema};

/// Returns the schema of a closed set.
pub fn schema_of(words: &[&str]) -> RefOr<Schema> {
    let schema = ObjectBuilder::new().schema_type(Type::String);
    schema.enum_values(Some(words.iter().copied())).into()
}

/// A closed set of values.
pub trait ClosedSet: Copy {
    /// The forms of all values, by index.
    const WORDS: &'static [&'static str];

    /// Returns the index of the value.
    fn index(self) -> usize;
}

/// Declares enums of closed sets, with the form of each value.
#[macro_export]
macro_rules! words {
    ($($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident => $word:literal,)* })+) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$doc])* #[serde(rename = $word)] $variant,)* }

        impl $name {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the value's form in JSON, in the table, in labels and in logs.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// Parses a value.
            pub fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)* _ => None }
            }
        }

        impl $crate::closed_set::ClosedSet for $name {
            const WORDS: &'static [&'static str] = &[$($word),*];

            fn index(self) -> usize {
                self as usize
            }
        }

        impl $crate::closed_set::PartialSchema for $name {
            fn schema() -> $crate::closed_set::RefOr<$crate::closed_set::Schema> {
                $crate::closed_set::schema_of(<Self as $crate::closed_set::ClosedSet>::WORDS)
            }
        }

        impl $crate::closed_set::ToSchema for $name {}
    )+};
}

pub use crate::words;
