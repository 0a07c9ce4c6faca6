//! Closed sets of values: enums with one form for storage, display and labels.

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
    )+};
}

pub use crate::words;
