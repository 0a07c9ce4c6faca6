//! Rejects JSON objects with duplicate keys, which parsers resolve differently (RFC 8259 §4).

use std::collections::HashSet;
use std::fmt;

use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// True if no object in `raw` has duplicate keys, at any depth.
pub(super) fn names_each_once(raw: &RawValue) -> bool {
    serde_json::from_str::<EachOnce>(raw.get()).is_ok()
}

/// JSON without duplicate keys.
struct EachOnce;

impl<'de> Deserialize<'de> for EachOnce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for EachOnce {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON in which no name stands twice")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self, A::Error> {
        let mut names = HashSet::new();
        while let Some((name, _)) = object.next_entry::<String, Self>()? {
            if !names.insert(name) {
                return Err(A::Error::custom("a name stands twice"));
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_stands_twice_is_found_at_any_depth() {
        let once = |text: &str| names_each_once(&RawValue::from_string(text.to_owned()).unwrap());
        for text in [
            r#"{"a":1,"b":{"a":[{"a":null},{"a":-1.5}]}}"#,
            "[]",
            "3",
            r#""a""#,
            "null",
            "true",
        ] {
            assert!(once(text), "{text}");
        }
        let twice = [
            r#"{"a":1,"a":1}"#,
            r#"{"b":[{"a":1,"\u0061":2}]}"#,
            r#"[{"a":{"c":1,"c":2}}]"#,
        ];
        for text in twice {
            assert!(!once(text), "{text}");
        }
    }
}
