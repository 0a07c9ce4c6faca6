//! The rejection of a name that an object of a body has twice.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_path_to_error::Segment;

use kernel::json_errors::{is_showable, quoted_member};
use kernel::rejection::{Reason, Rejection};

/// The error of [`UniqueNames`].
const DUPLICATE: &str = "a name stands twice";

/// Returns the rejection of a name that an object of a body has twice. `place`: that of the object, if it is known.
pub(super) fn duplicate_rejection(name: &str, place: Option<&str>) -> Rejection {
    let message = match place {
        Some(place) => format!("{} stands twice in `{place}`", quoted_member(name)),
        None => format!("{} stands twice in the body", quoted_member(name)),
    };
    Rejection::new(Reason::InvalidRequest, message)
}

/// Returns the path of the first object that has a name twice, such as `workspaces[3].probe`, as far as its names may
/// be shown; `None`: it is the outermost one, or there is none.
pub(super) fn duplicate_path(text: &str) -> Option<String> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let error = serde_path_to_error::deserialize::<_, UniqueNames>(&mut reader).err()?;
    if !error.inner().to_string().starts_with(DUPLICATE) {
        return None;
    }
    let mut place = String::new();
    for segment in error.path() {
        match segment {
            Segment::Seq { index } => place.push_str(&format!("[{index}]")),
            Segment::Map { key } if is_showable(key) => {
                if !place.is_empty() {
                    place.push('.');
                }
                place.push_str(key);
            }
            _ => break,
        }
    }
    (!place.is_empty()).then_some(place)
}

/// Any JSON with each name once in an object.
struct UniqueNames;

impl<'de> Deserialize<'de> for UniqueNames {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        reader.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for UniqueNames {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E: Error>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self, A::Error> {
        let mut seen = HashSet::new();
        while let Some(name) = members.next_key::<String>()? {
            if !seen.insert(name) {
                return Err(A::Error::custom(DUPLICATE));
            }
            members.next_value::<Self>()?;
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_with_a_name_twice_is_named() {
        for (text, place) in [
            (r#"{"a":1,"b":[{"a":1},[2,null,true,-1,1.5,"a"]]}"#, None),
            (r#"{"a":1,"a":2}"#, None),
            (r#"{"a":[{"b":1},{"b":1,"b":1}]}"#, Some("a[1]")),
            (
                r#"{"a":[{"b":{"c":{"d":1,"\u0064":1}}}]}"#,
                Some("a[0].b.c"),
            ),
            (r#"{"a":{"a secret":{"d":1,"d":1}}}"#, Some("a")),
            (r#"{"a":1,"b":"#, None),
        ] {
            assert_eq!(duplicate_path(text).as_deref(), place, "{text}");
        }
    }
}
