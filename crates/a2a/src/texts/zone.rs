//! Places of strings in a walk ([`Zone`]): content, or identifiers, words of the protocol and encoded bytes, which are
//! told by the name of their member and by their shape.

use super::StringKind;

/// Longest word of the protocol: names of methods are the longest.
const WORD_MAX: usize = 48;

/// Longest identifier.
const ID_MAX: usize = 128;

/// Place of the value that follows, as the walk knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zone {
    /// A typed object, or an array of such.
    Node,
    /// An array of parts.
    Parts,
    /// A part.
    Part,
    /// The file of a part, in 0.3.
    File,
    /// Free-form content that readers see.
    Data,
    /// Free-form content beside it.
    Meta,
    /// A string of that shape is no content.
    Shaped(Shape),
}

/// The shape of a string that is no content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `2.0`.
    Version,
    /// A word of the protocol.
    Word,
    /// An identifier.
    Id,
    /// A time of RFC 3339.
    Time,
    /// Bytes in base64.
    Bytes,
}

impl Shape {
    /// Returns the shape of a typed object's member, if it is one of the protocol's without content.
    fn of_member(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"jsonrpc" => Self::Version,
            b"kind" | b"method" | b"role" | b"state" | b"type" => Self::Word,
            b"artifactId" | b"contextId" | b"id" | b"messageId" | b"nextPageToken"
            | b"pageToken" | b"referenceTaskIds" | b"taskId" => Self::Id,
            b"timestamp" => Self::Time,
            b"bytes" | b"fileWithBytes" | b"raw" => Self::Bytes,
            _ => return None,
        })
    }

    /// True if a string has the shape.
    pub(super) fn matches(self, text: &str) -> bool {
        let all = |more: &[u8]| {
            text.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
        };
        match self {
            Self::Version => text == "2.0",
            Self::Word => {
                let is_of_word = |byte: u8| byte.is_ascii_alphabetic() || b"_-/.".contains(&byte);
                text.len() <= WORD_MAX && text.bytes().all(is_of_word)
            }
            Self::Id => text.len() <= ID_MAX && all(b"_-.:/+="),
            Self::Time => {
                let separators = |at: usize| text.as_bytes().get(at).copied();
                let is_date = (separators(4), separators(7)) == (Some(b'-'), Some(b'-'));
                let is_of_time = |byte: u8| byte.is_ascii_digit() || b"-:.+TtZz".contains(&byte);
                is_date && text.len() <= 40 && text.bytes().all(is_of_time)
            }
            Self::Bytes => all(b"+/=_-"),
        }
    }
}

/// Returns true for a member that the protocol has in its typed objects, besides those of a [`Shape`].
const fn is_protocol_name(name: &[u8]) -> bool {
    match name {
        b"append" | b"artifact" | b"artifactUpdate" | b"artifacts" | b"authentication"
        | b"blocking" | b"code" | b"configuration" | b"content" | b"credentials" | b"data"
        | b"description" | b"error" | b"extensions" | b"file" | b"fileWithUri" | b"filename"
        | b"final" | b"history" | b"historyLength" | b"includeArtifacts" | b"lastChunk"
        | b"lastModified" | b"lastUpdatedAfter" | b"mediaType" | b"message" | b"metadata"
        | b"mimeType" | b"name" | b"pageSize" | b"params" | b"parts" | b"result"
        | b"returnImmediately" | b"scheme" | b"schemes" | b"status" | b"statusUpdate" | b"task"
        | b"tasks" | b"tenant" | b"text" | b"token" | b"totalSize" | b"update" | b"uri"
        | b"url" => true,
        _ => matches!(
            name,
            b"acceptedOutputModes"
                | b"pushNotificationConfig"
                | b"pushNotificationConfigId"
                | b"pushNotificationConfigs"
                | b"taskPushNotificationConfig"
        ),
    }
}

impl Zone {
    /// Returns the zone of the value of a member.
    pub(super) fn zone_of_member(self, name: &[u8], first: Option<u8>) -> Self {
        let is_container = matches!(first, Some(b'{' | b'['));
        match self {
            Self::Data | Self::Meta => return self,
            // An object is no word.
            Self::Shaped(_) => return Self::Meta,
            _ if name == b"metadata" => return Self::Meta,
            _ => {}
        }
        let shape = Shape::of_member(name);
        let holds = |shape: &Shape| !is_container || *shape == Shape::Id && first == Some(b'[');
        if let Some(shape) = shape.filter(holds) {
            return Self::Shaped(shape);
        }
        match self {
            // All of an error is free.
            Self::Node if name == b"error" => Self::Data,
            Self::Node if matches!(name, b"parts" | b"content") => Self::Parts,
            Self::Part | Self::Parts => match name {
                b"file" if is_container => Self::File,
                b"data" | b"text" | b"filename" | b"name" => Self::Data,
                _ => Self::Meta,
            },
            Self::File if name == b"name" => Self::Data,
            Self::File => Self::Meta,
            _ => Self::Node,
        }
    }

    /// Returns the zone of the elements of an array.
    pub(super) const fn zone_of_elements(self) -> Self {
        match self {
            Self::Parts => Self::Part,
            zone => zone,
        }
    }

    /// True if a sender chooses the name of a member.
    pub(super) fn is_free(self, name: &[u8]) -> bool {
        match self {
            Self::Data | Self::Meta | Self::Shaped(_) => true,
            Self::Node | Self::Parts | Self::Part | Self::File => {
                Shape::of_member(name).is_none() && !is_protocol_name(name)
            }
        }
    }

    /// Returns the place of a string.
    pub(super) fn string_kind(self, text: &str) -> Option<StringKind> {
        match self {
            Self::Data | Self::Part | Self::Parts => Some(StringKind::Text),
            Self::Node | Self::File | Self::Meta => Some(StringKind::Other),
            Self::Shaped(shape) => (!shape.matches(text)).then_some(StringKind::Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_strings_of_their_shape_are_no_content() {
        for (shape, fit, unfit) in [
            (Shape::Version, vec!["2.0"], vec!["2.0 secret", "secret"]),
            (
                Shape::Word,
                vec!["status-update", "TASK_STATE_WORKING", "tasks/get", ""],
                vec!["my secret", "key-1234", "a@b"],
            ),
            (
                Shape::Id,
                vec!["0199-ab_c.d:e", "a/b+c=", ""],
                vec!["a b", "a@b", "ä"],
            ),
            (
                Shape::Time,
                vec!["2026-11-27T14:00:00.000Z", "2026-11-27T14:00:00+01:00"],
                vec!["now", "1234567890123456", "2026-11-27 secret"],
            ),
            (Shape::Bytes, vec!["AAAA+/=", "_-"], vec!["not this", "{}"]),
        ] {
            for text in fit {
                assert!(shape.matches(text), "{shape:?} {text}");
            }
            for text in unfit {
                assert!(!shape.matches(text), "{shape:?} {text}");
            }
        }
        assert!(!Shape::Word.matches(&"x".repeat(49)));
        assert!(!Shape::Id.matches(&"x".repeat(129)));
    }
}
